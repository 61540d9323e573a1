//! Declared semaphores: the common part of `declare`, `resize`, `remove`, `pause`, `resume` and `slot`.

use std::io;
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::number::within;
use super::output::{Form, escaped, json};
use super::pattern::looks_like_pattern;
use super::server::{Server, permission_denied};
use super::table::{Column, Rows};
use signalbox_client::{DeclaredEntry, DeclaredState, Direct, Error, Generation, Status};
use signalbox_model::Changed;
use signalbox_model::views::Named;

const COLUMNS: [Column; 4] = [
    Column::number("CAPACITY", 10),
    Column::number("IN USE", 10),
    Column::number("GENERATION", 20),
    Column::text("NAME"),
];

/// The options of the commands that change one semaphore and print it.
#[derive(Debug, Args)]
pub(super) struct Change {
    /// Change it only if the semaphore's generation is G
    #[arg(long, value_name = "G", value_parser = within(1..=u64::MAX))]
    generation: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(super) server: Server,
}

impl Change {
    pub(super) fn generation(&self) -> Option<Generation> {
        self.generation.map(Generation)
    }

    /// Prints the state after the change.
    pub(super) fn print(&self, name: &Name, changed: &Changed) -> Result<ExitCode, Failure> {
        print(Form::of_output(self.json), changed.states().iter().map(|state| (name, state)))?;
        Ok(Exit::Success.into())
    }
}

/// Prints the state of semaphores after a change, one per line.
pub(super) fn print<'a>(
    form: Form,
    changed: impl Iterator<Item = (&'a Name, &'a DeclaredState)>,
) -> io::Result<()> {
    let mut rows = Rows::new(form, &COLUMNS, io::stdout().lock());
    for (name, DeclaredState { generation, capacity, in_use }) in changed {
        let generation = generation.0.to_string();
        let text = escaped(name.bytes());
        let cells = || vec![capacity.to_string(), in_use.to_string(), generation.clone(), text];
        let object = || {
            let (name, capacity, in_use) = (Named::of(name.bytes()), *capacity, *in_use);
            json(&Line { name, capacity, in_use, generation: generation.clone() })
        };
        rows.push(cells, object)?;
    }
    rows.finish()
}

/// The state of a semaphore in JSON.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    name: Named,
    capacity: u32,
    in_use: u32,
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    generation: String,
}

/// The message for a name that no declared semaphore has.
pub(super) fn not_declared(name: &Name) -> String {
    let advice = match looks_like_pattern(name.bytes()) {
        true => "this command takes one whole name; \"signalbox list\" takes patterns",
        false => "\"signalbox list\" lists the declared semaphores",
    };
    format!("semaphore {name} is not declared; {advice}")
}

/// The failure of a change to a declared semaphore.
pub(super) async fn refused(server: &Server, direct: &Direct, error: Error, name: &Name) -> Failure {
    let message = match error.status() {
        Some(Status::NotFound) => not_declared(name),
        Some(Status::Removed) => {
            format!(
                "semaphore {name} is being removed; wait until its holders have released it, then declare it again"
            )
        }
        Some(Status::GenerationDiffers) => {
            format!(
                "semaphore {name} was not changed: its generation differs, so another request has changed it; \
                 \"signalbox list\" shows its current state and generation"
            )
        }
        Some(Status::NotPermitted) => {
            let what_failed = format!("semaphore {name} was not changed");
            not_permitted(server, direct, &what_failed, std::slice::from_ref(name)).await
        }
        _ => return error.into(),
    };
    Failure::new(Exit::Failure, message)
}

/// The failure of a request for a slot that the server says does not exist.
pub(super) async fn slot_refused(
    server: &Server,
    direct: &Direct,
    error: Error,
    name: &Name,
    slot: u16,
) -> Failure {
    match server.answer(find(direct, name.bytes())).await {
        Ok(Ok(Some(entry))) => Failure::new(Exit::Failure, no_such_slot(name, slot, &entry)),
        _ => error.into(),
    }
}

/// The message for a slot that a declared semaphore does not have.
pub(super) fn no_such_slot(name: &Name, slot: u16, entry: &DeclaredEntry<Bytes>) -> String {
    match (entry.numbered, entry.capacity) {
        (false, _) => format!(
            "semaphore {name} has no slot {slot}: its resources are not numbered; \"signalbox declare --slots --if-exists \
             set\" numbers them"
        ),
        (true, 0) => {
            format!("semaphore {name} has no slot {slot}: its capacity is 0; \"signalbox resize\" changes it")
        }
        (true, capacity) => format!(
            "semaphore {name} has no slot {slot}: its capacity is {capacity}, so its slots are 0 to {}; \"signalbox \
             resize\" changes the capacity",
            capacity - 1
        ),
    }
}

/// The message for a change that the server permits to no client, because its configuration declares one of the
/// semaphores, or not to this client.
pub(super) async fn not_permitted(
    server: &Server,
    direct: &Direct,
    what_failed: &str,
    names: &[Name],
) -> String {
    for name in names {
        let declared = server.answer(find(direct, name.bytes())).await.unwrap_or(Ok(None));
        if let Ok(Some(DeclaredEntry { configured: true, .. })) = declared {
            return format!(
                "{what_failed}: the server's configuration file declares {name}; change it there, then reload the \
                 configuration"
            );
        }
    }
    permission_denied(what_failed)
}

/// The declared semaphore of a name, if there is one. The list is ordered by name, so the name itself precedes all longer
/// ones.
pub(super) async fn find(direct: &Direct, name: &[u8]) -> Result<Option<DeclaredEntry<Bytes>>, Error> {
    let first = direct.list(name).await?.next().await.transpose()?;
    Ok(first.filter(|entry| entry.name == name))
}
