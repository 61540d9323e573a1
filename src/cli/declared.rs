//! Declared semaphores: the common part of `declare`, `resize`, `remove`, `pause`, `resume` and `slot`.

use std::io;

use serde::Serialize;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::output::{Form, Named, escaped, json};
use super::server::Server;
use super::server::permission_denied;
use super::table::{Column, Rows};
use crate::client::{DeclaredState, Direct, Error, Status};

const COLUMNS: [Column; 4] = [
    Column::number("CAPACITY", 10),
    Column::number("IN USE", 10),
    Column::number("GENERATION", 20),
    Column::text("NAME"),
];

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
struct Line<'a> {
    #[serde(flatten)]
    name: Named<'a>,
    capacity: u32,
    in_use: u32,
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    generation: String,
}

/// The failure of a change to a declared semaphore.
pub(super) async fn refused(server: &Server, direct: &Direct, error: Error, name: &Name) -> Failure {
    let message = match error {
        Error::Status(Status::NotFound) => {
            format!("semaphore {name} is not declared; \"signalbox list\" lists the declared semaphores")
        }
        Error::Status(Status::Removed) => {
            format!(
                "semaphore {name} is being removed; wait until its holders have released it, then declare it again"
            )
        }
        Error::Status(Status::GenerationDiffers) => {
            format!(
                "semaphore {name} was not changed: its generation differs, so another request has changed it; \
                 \"signalbox list\" shows its current state and generation"
            )
        }
        Error::Status(Status::NotPermitted) => {
            let what_failed = format!("semaphore {name} was not changed");
            not_permitted(server, direct, &what_failed, std::slice::from_ref(name)).await
        }
        error => return error.into(),
    };
    Failure::new(Exit::Failure, message)
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
        if let Ok(Some(true)) = server.answer(is_configured(direct, name)).await.unwrap_or(Ok(None)) {
            return format!(
                "{what_failed}: the server's configuration file declares {name}; change it there, then reload the \
                 configuration"
            );
        }
    }
    permission_denied(what_failed)
}

/// Whether the configuration declares a semaphore; `None`: there is no such semaphore. The list is ordered by name, so
/// the name itself precedes all longer ones.
async fn is_configured(direct: &Direct, name: &Name) -> Result<Option<bool>, Error> {
    let Some(first) = direct.list(name.bytes()).await?.next().await else { return Ok(None) };
    let first = first?;
    Ok((first.name == name.bytes()).then_some(first.configured))
}
