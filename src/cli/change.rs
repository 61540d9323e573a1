//! The commands that change declared semaphores and counters: each requests one [`Operation`], and prints its result or
//! why it was refused.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::json;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::list;
use super::listing::{find_declared, no_such_slot};
use super::server::{PERMISSION_DENIED, Server};
use super::table::Column;
use super::values::{
    Name, WaitLimit, WholeNames, check_wait, looks_like_pattern, shown, time_or_none, wait_limit, within,
};
use super::wanted::has_amount;
use crate::declarations::needs_more;
use signalbox_client::{
    Changed, Declaration, DeclaredState, Direct, Error, Generation, Idle, IfExists, Milliseconds, Namespace,
    Operation, Removal, Resizing, Status,
};
use signalbox_core::SLOTS_MAX;
use signalbox_model::views::Named;
use signalbox_model::{Cancellation, Quoted, Revocation, ServiceChange, Target};

/// A change by an administrator.
#[derive(Debug, Subcommand)]
pub(super) enum Change {
    Declare(Declare),
    Resize(Resize),
    /// Pause a declared semaphore
    ///
    /// A paused semaphore grants nothing. Waiting requests keep their places in the queue, and their time limits;
    /// holders keep what they hold, and can release it. "signalbox resume" ends the pause. The pause survives a restart
    /// of the server if it has a data directory. Unlike "signalbox resize NAME 0", it refuses no waiting request.
    ///
    /// Semaphores that the server's configuration declares can be paused too; a reload of the configuration keeps the pause. The
    /// command prints the semaphore in the format of "signalbox list".
    #[command(after_help = "\
Examples:
  signalbox pause deploys
  signalbox pause deploys && signalbox await-idle --semaphore deploys --wait 1h
  signalbox resume deploys")]
    Pause(Declared),
    /// End the pause of a declared semaphore
    ///
    /// The queue is served at once, in its order. A semaphore that is not paused stays as it is. The command prints the semaphore
    /// in the format of "signalbox list".
    #[command(after_help = "\
Examples:
  signalbox resume deploys
  signalbox resume deploys --generation 1882571025678336021")]
    Resume(Declared),
    Slot(Slot),
    Remove(Remove),
    Delete(Delete),
}

/// Declare semaphores, all of them or none
///
/// A declared semaphore exists until "signalbox remove", whether it is held or not. Its capacity is the declared one; clients that
/// acquire it cannot set another. "signalbox resize" changes it. With --slots, its resources are numbered from 0, and each holder
/// gets the numbers of its resources.
///
/// The command prints the resulting semaphores as a list with the columns capacity, resources in use, generation (a number that
/// grows with each change) and name. With --json, the output is one object per line with the keys name, capacity, in_use and
/// generation.
///
/// Without data_dir in the configuration of the server, the declarations are lost when it restarts.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox declare deploys --capacity 3
  signalbox declare gpu --capacity 8 --slots --label 'the machines in room 3'
  signalbox declare --capacity 8 --if-exists set licences/a licences/b")]
pub(super) struct Declare {
    /// Semaphores to declare
    #[arg(value_name = "NAME", required = true, value_parser = Name::parser())]
    names: Vec<Name>,

    /// Number of resources of each semaphore
    #[arg(long, value_name = "N", value_parser = within(0..=u32::MAX))]
    capacity: u32,

    /// Number the resources from 0, and tell each holder its numbers
    #[arg(long)]
    slots: bool,

    /// Description for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: OsString,

    #[command(flatten)]
    whole: WholeNames,

    /// What to do if one of them is already declared
    #[arg(long, value_enum, value_name = "WHAT", default_value = "fail")]
    if_exists: Existing,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Existing {
    /// Declare none of them and exit with status 1
    Fail,
    /// Do not change it
    Keep,
    /// Change it to what is declared here
    Set,
}

/// The declared semaphore of a command, and the generation that it must have.
#[derive(Debug, Args)]
pub(super) struct Declared {
    /// Declared semaphore to change
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// Change it only if its generation, as printed by "signalbox list", is G
    #[arg(long, value_name = "G", value_parser = within(1..=u64::MAX))]
    generation: Option<u64>,
}

/// Change the capacity of a declared semaphore
///
/// N sets the capacity; +N and -N change it. A change to less than 0 is refused. After an increase, waiting requests
/// are granted at once. After a decrease, holders keep what they hold, and nothing is granted while more is in use than
/// the capacity. Waiting requests for more than the new capacity, or for a slot that it does not have then, would be
/// refused: if there are any, the command says how many and changes nothing, unless --refuse-waiters is given.
/// "signalbox pause" refuses none. The same capacity changes nothing.
///
/// The command prints the resulting semaphore in the format of "signalbox declare".
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox resize deploys 5
  signalbox resize gpu -2
  signalbox resize gpu +2 --json | jq .capacity")]
pub(super) struct Resize {
    #[command(flatten)]
    declared: Declared,

    /// New capacity, or the change of it
    #[arg(value_name = "N|+N|-N", allow_negative_numbers = true, value_parser = resizing)]
    capacity: Resizing,

    /// Refuse the waiting requests for more than the new capacity
    #[arg(long)]
    refuse_waiters: bool,
}

/// Take a slot of a declared semaphore out of service, or put it back
///
/// With --out, slot N is no longer granted. Its holder keeps it: with --wait, the command waits until it is released.
/// If that takes longer than TIME, the exit status is 75, and the slot stays out of service. With --in, the slot is
/// granted again. The capacity stays the same, but less of it is available while slots are out of service. "signalbox
/// list" shows the slots that are out of service.
///
/// A slot stays out of service when the semaphore is resized, and when the server is restarted if it has a data directory.
/// Semaphores that the server's configuration declares can be changed too; a reload of the configuration keeps the slots out of
/// service. The command prints the semaphore in the format of "signalbox list".
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").required(true), after_help = "\
Examples:
  signalbox slot gpu 3 --out --wait 1h
  signalbox slot gpu 3 --in
  signalbox list --json | jq .slots_out")]
pub(super) struct Slot {
    #[command(flatten)]
    declared: Declared,

    /// Number of the slot, from 0
    #[arg(value_name = "N", value_parser = within(0..=u16::MAX))]
    slot: u16,

    /// Take the slot out of service
    #[arg(long, group = "change")]
    out: bool,

    /// Put the slot back into service
    #[arg(long = "in", group = "change")]
    put_in: bool,

    /// Wait until its holder has released the slot, at most TIME
    ///
    /// With max, as long as the server allows.
    #[arg(long, value_name = "TIME|max", conflicts_with = "put_in", value_parser = wait_limit)]
    wait: Option<WaitLimit>,
}

/// Remove a declared semaphore
///
/// Requests that wait for it are refused with the status "Removed".
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox remove deploys
  signalbox remove gpu --when last-holder
  signalbox remove gpu --when now --grace 5m")]
pub(super) struct Remove {
    #[command(flatten)]
    declared: Declared,

    /// When to remove it
    #[arg(long, value_enum, value_name = "WHEN", default_value = "idle")]
    when: When,

    /// With --when now: how long holders keep it [default: 10]
    ///
    /// They can stop in this grace period; 0 for no time.
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    grace: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum When {
    /// Now if it has no holders; otherwise do nothing and exit with status 1
    Idle,
    /// When its last holder has released it; until then, nothing more is granted
    LastHolder,
    /// Now: its holders are notified, and lose it when the grace period ends
    Now,
}

/// Delete a counter that is not in use
///
/// The first request that acquires a counter creates it, and "signalbox dump" lists it until the end of the interval
/// (counter.stat_interval in the server's configuration) in which it was last in use. This command deletes a counter earlier, for
/// example because its name was mistyped. The peak of its interval is lost.
///
/// A counter that is held, or that a request waits for, is not deleted, and the exit status is 1: "signalbox status" shows its
/// holders and its queue, and "signalbox revoke" takes it from them. A declared semaphore is removed by "signalbox remove"; other
/// semaphores vanish soon after they are released.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  signalbox delete bakcup")]
pub(super) struct Delete {
    /// Counter to delete
    #[arg(value_parser = Name::parser())]
    name: Name,
}

impl Change {
    pub(super) async fn run(&self, common: &Common) -> Result<(), Failure> {
        let server = &common.server;
        match self {
            Self::Declare(declare) => {
                let (operation, names) = (declare.operation()?, declare.names.iter().collect::<Vec<_>>());
                request_and_print(common, &server.direct().await?, &operation, &names).await
            }
            Self::Resize(resize) => {
                let direct = server.direct().await?;
                if !resize.refuse_waiters {
                    resize.check_waiters(server, &direct).await?;
                }
                let how = resize.capacity;
                let (name, expected) = resize.declared.parts();
                request_and_print(
                    common,
                    &direct,
                    &Operation::Resize { name: name.bytes(), how, expected },
                    &[name],
                )
                .await
            }
            Self::Pause(declared) => declared.change(common, ServiceChange::Pause).await,
            Self::Resume(declared) => declared.change(common, ServiceChange::Resume).await,
            Self::Slot(slot) => slot.run(common).await,
            Self::Remove(remove) => {
                let operation = remove.operation()?;
                request_and_print(common, &server.direct().await?, &operation, &[]).await
            }
            Self::Delete(Delete { name }) => {
                let operation = Operation::DeleteCounter { name: name.bytes() };
                request_and_print(common, &server.direct().await?, &operation, &[]).await
            }
        }
    }
}

impl Declare {
    fn operation(&self) -> Result<Operation<'_>, Failure> {
        let Self { names, capacity, slots, label, whole, if_exists } = self;
        if *slots && *capacity > SLOTS_MAX {
            return Err(Failure::usage(format!(
                "--capacity {capacity} is more than {SLOTS_MAX}, the maximum with --slots"
            )));
        }
        whole.check(names)?;
        if let Some(name) = names.iter().find(|name| !whole.exact && has_amount(name)) {
            return Err(Failure::usage(format!(
                "{name} has an amount, which declare has in --capacity; omit it, or add --exact if it is a part of the name"
            )));
        }
        let (capacity, numbered, label) = (*capacity, *slots, label.as_encoded_bytes());
        let declarations =
            names.iter().map(|name| Declaration { name: name.bytes(), capacity, numbered, label }).collect();
        let if_exists = match if_exists {
            Existing::Fail => IfExists::Fail,
            Existing::Keep => IfExists::Keep,
            Existing::Set => IfExists::Set,
        };
        Ok(Operation::Declare { if_exists, declarations })
    }
}

impl Declared {
    fn parts(&self) -> (&Name, Option<Generation>) {
        (&self.name, self.generation.map(Generation))
    }

    fn service(&self, how: ServiceChange) -> Operation<'_> {
        Operation::ChangeService { name: self.name.bytes(), how, expected: self.parts().1 }
    }

    async fn change(&self, common: &Common, how: ServiceChange) -> Result<(), Failure> {
        let direct = common.server.direct().await?;
        request(&common.server, &direct, &self.service(how)).await?;
        list::print_declared(common, &direct, &self.name).await
    }
}

impl Resize {
    /// Fails if the change would refuse waiting requests. A change that the server will not allow passes this check, because
    /// it would refuse none.
    async fn check_waiters(&self, server: &Server, direct: &Direct) -> Result<(), Failure> {
        let Self { declared: Declared { name, .. }, capacity: how, .. } = self;
        let ask = async {
            let Some(entry) = find_declared(direct, name.bytes()).await? else { return Ok(None) };
            let capacity = match *how {
                Resizing::To(capacity) => Some(capacity),
                Resizing::GrowBy(more) => entry.capacity.checked_add(more),
                Resizing::ShrinkBy(less) => entry.capacity.checked_sub(less),
            };
            let Some(capacity) = capacity.filter(|capacity| *capacity < entry.capacity) else {
                return Ok(None);
            };
            let refused = waiting_for_more(direct, name.bytes(), capacity).await?;
            Ok((refused > 0).then_some((refused, capacity)))
        };
        let reason = match server.answer(ask).await {
            Ok(None) => return Ok(()),
            Ok(Some((refused, capacity))) => {
                let (requests, need) = if refused == 1 { ("request", "needs") } else { ("requests", "need") };
                format!(
                    "{refused} waiting {requests} {need} more than the new capacity {capacity} and would be refused; add \
                     --refuse-waiters to refuse them, or stop all grants for a while with \"signalbox pause\""
                )
            }
            Err(error) if error.status() == Some(Status::NotPermitted) => {
                "this client may not read which waiting requests that would refuse; use a token with the right to read, or add \
                 --refuse-waiters"
                    .to_owned()
            }
            Err(error) => return Err(error.into()),
        };
        Err(Failure::refused(format!("semaphore {name} was not changed: {reason}")))
    }
}

/// Counts the requests that wait for a declared semaphore and need more than this capacity.
pub(super) async fn waiting_for_more(direct: &Direct, name: &[u8], capacity: u32) -> Result<usize, Error> {
    let mut waiters = direct.waiters(Namespace::Semaphores, name).await?;
    let mut count = 0;
    while let Some(waiter) = waiters.next().await.transpose()? {
        count += usize::from(needs_more(&waiter, capacity));
    }
    Ok(count)
}

/// Parses a capacity, or, with a sign, a change of the capacity.
fn resizing(text: &str) -> Result<Resizing, &'static str> {
    let (make, digits): (fn(u32) -> Resizing, _) = match text.as_bytes().first() {
        Some(b'+') => (Resizing::GrowBy, &text[1..]),
        Some(b'-') => (Resizing::ShrinkBy, &text[1..]),
        _ => (Resizing::To, text),
    };
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    let amount = digits.parse().ok().filter(|_| is_number);
    amount
        .map(make)
        .ok_or("expected a capacity such as 8, or a change such as +2 or -2, of at most 4294967295")
}

impl Slot {
    async fn run(&self, common: &Common) -> Result<(), Failure> {
        let Self { declared, slot, wait, .. } = self;
        let how = if self.put_in { ServiceChange::SlotIn(*slot) } else { ServiceChange::SlotOut(*slot) };
        let Some(limit) = wait else { return declared.change(common, how).await };
        let (name, direct) = (&declared.name, common.server.direct().await?);
        check_wait(*limit, direct.server())?;
        request(&common.server, &direct, &declared.service(how)).await?;
        // --timeout does not apply, because the response takes as long as the wait. If the server vanishes, the connection
        // is lost, and the call fails.
        match direct.await_idle(Namespace::Semaphores, name.bytes(), Idle::Slot(*slot), *limit).await {
            Err(error) if error.status() == Some(Status::TimedOut) => Err(Failure::new(
                Exit::NothingAvailable,
                format!(
                    "slot {slot} of semaphore {name} is out of service, but was not released within {}; \"signalbox \
                     status --holders\" shows its holder; wait again, or put the slot back with --in",
                    shown(*limit)
                ),
            )),
            // The semaphore is gone, and the slot with it.
            Err(error) if error.status() == Some(Status::NotFound) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => list::print_declared(common, &direct, name).await,
        }
    }
}

impl Remove {
    fn operation(&self) -> Result<Operation<'_>, Failure> {
        let how = removal(self.when, self.grace)?;
        let (name, expected) = self.declared.parts();
        Ok(Operation::Remove { name: name.bytes(), how, expected })
    }
}

/// Returns how a semaphore is removed. Fails if a grace period is given without `--when now`, because no holder would get
/// it.
pub(super) fn removal(when: When, grace: Option<Duration>) -> Result<Removal, Failure> {
    Ok(match (when, grace) {
        (When::Now, grace) => {
            let grace = grace.map_or(Milliseconds::GRACE_DEFAULT, Milliseconds::saturating_from);
            Removal::Now { grace }
        }
        (_, Some(_)) => {
            return Err(Failure::usage(
                "--grace is only valid with --when now; add --when now, or omit --grace",
            ));
        }
        (When::Idle, None) => Removal::IfIdle,
        (When::LastHolder, None) => Removal::WithLastHolder,
    })
}

/// Requests a change, and prints its result: the states of the declared semaphores with these names, or a count.
pub(super) async fn request_and_print(
    common: &Common,
    direct: &Direct,
    operation: &Operation<'_>,
    names: &[&Name],
) -> Result<(), Failure> {
    match request(&common.server, direct, operation).await? {
        Changed::Declared(states) => print(common, names, &states)?,
        Changed::Done => {}
        Changed::Count(_) if matches!(operation, Operation::Cancel(Cancellation::Request(_))) => {}
        Changed::Count(count) => writeln!(io::stdout(), "{count}")?,
    }
    Ok(())
}

async fn request(server: &Server, direct: &Direct, operation: &Operation<'_>) -> Result<Changed, Failure> {
    match server.answer(direct.change(operation)).await {
        Ok(changed) => Ok(changed),
        Err(error) => Err(refused(server, direct, operation, error).await),
    }
}

const COLUMNS: [Column; 4] = [
    Column::number("CAPACITY", 10),
    Column::number("IN USE", 10),
    Column::number("GENERATION", 20),
    Column::text("NAME"),
];

fn print(common: &Common, names: &[&Name], states: &[DeclaredState]) -> io::Result<()> {
    let mut rows = common.rows(&COLUMNS);
    for (name, DeclaredState { generation, capacity, in_use }) in names.iter().zip(states) {
        let mut object = json!(Named::of(name.bytes()));
        object["capacity"] = json!(capacity);
        object["in_use"] = json!(in_use);
        // A string: many JSON readers convert numbers to doubles, which would round it.
        object["generation"] = json!(generation.0.to_string());
        rows.push(&object)?;
    }
    rows.finish()
}

/// Returns the failure of a change: what was requested, and why it was refused.
pub(super) async fn refused(
    server: &Server,
    direct: &Direct,
    operation: &Operation<'_>,
    error: Error,
) -> Failure {
    use Operation::{Cancel, ChangeService, Declare, DeleteCounter, Remove, Resize, Revoke};
    let Some(status) = error.status() else { return error.into() };
    let reason = match (status, operation) {
        (Status::AlreadyExists, Declare { declarations, .. }) => {
            let mut existing = Vec::new();
            for Declaration { name, .. } in declarations {
                if let Ok(Some(_)) = server.answer(find_declared(direct, name)).await {
                    existing.push(Quoted(name).to_string());
                }
            }
            format!(
                "already declared: {}; use --if-exists keep to leave it unchanged, or --if-exists set to change it",
                existing.join(", ")
            )
        }
        (Status::InUse, Declare { .. }) => {
            "resources cannot be changed between numbered and not numbered while they are held; wait until they are released"
                .to_owned()
        }
        (Status::InUse, Remove { .. }) => {
            "it is held; release it first, or use --when last-holder or --when now".to_owned()
        }
        (Status::InUse, DeleteCounter { name }) => {
            let state = match server.answer(direct.inspect(Namespace::Counters, name)).await {
                Ok(usage) => format!("{} in use, {} waiting", usage.in_use, usage.waiting),
                _ => "it is in use".to_owned(),
            };
            format!(
                "{state}; \"signalbox status\" shows its holders and its queue; wait for them, or use \"signalbox revoke\""
            )
        }
        (Status::NotFound, DeleteCounter { name }) => {
            let Ok(name) = Name::new(name.to_vec()) else { return error.into() };
            if server.exists_as(Namespace::Semaphores, &name).await {
                "it does not exist; a semaphore of this name exists, and \"signalbox remove\" removes a declared one".to_owned()
            } else {
                return server.not_found_of(Some(Namespace::Counters), &name).await;
            }
        }
        (Status::NotFound, Cancel(Cancellation::Request(_))) => {
            "it does not wait; \"signalbox status\" lists the requests for a name".to_owned()
        }
        (Status::NotAcquired | Status::NoSuchSession, Revoke { what: Revocation::Grant(_), .. }) => {
            "it is not held; \"signalbox status\" lists the grants of a name".to_owned()
        }
        (Status::NotAcquired | Status::NoSuchSession, Cancel(_) | Revoke { .. }) => {
            "it does not exist; \"signalbox sessions\" lists sessions".to_owned()
        }
        (Status::NotFound, Resize { name, .. } | Remove { name, .. } | ChangeService { name, .. }) => {
            let advice = match looks_like_pattern(name) {
                true => "this command takes one whole name; \"signalbox list\" takes patterns",
                false => "\"signalbox list\" lists the declared semaphores",
            };
            format!("it is not declared; {advice}")
        }
        (Status::Removed, _) => {
            "it is being removed; wait until its holders have released it, then declare it again".to_owned()
        }
        (Status::InvalidArguments, Resize { name, how, .. }) => {
            let declared = server.answer(find_declared(direct, name)).await.ok().flatten();
            let (now, numbered) = declared.map_or((0, false), |entry| (entry.capacity, entry.numbered));
            let limit = match numbered {
                true => format!("{SLOTS_MAX}, because its resources are numbered slots"),
                false => u32::MAX.to_string(),
            };
            match how {
                Resizing::ShrinkBy(_) => format!("its capacity is {now}, and cannot be less than 0"),
                Resizing::To(_) | Resizing::GrowBy(_) => format!("its capacity is {now}; the maximum is {limit}"),
            }
        }
        (
            Status::NoSuchSlot,
            ChangeService { name, how: ServiceChange::SlotIn(slot) | ServiceChange::SlotOut(slot), .. },
        ) => match server.answer(find_declared(direct, name)).await {
            Ok(Some(entry)) => format!("there is no slot {slot}: {}", no_such_slot(&entry)),
            _ => return error.into(),
        },
        (Status::NotPermitted, _) => match configured(server, direct, operation).await {
            true => "the server's configuration file declares it; change it there, then reload the configuration".to_owned(),
            false => PERMISSION_DENIED.to_owned(),
        },
        _ => return error.into(),
    };
    Failure::refused(format!("cannot {operation}: {reason}"))
}

/// Returns whether the server's configuration declares one of the semaphores and the client may administer it: the
/// configuration is then the reason for the refusal.
async fn configured(server: &Server, direct: &Direct, operation: &Operation<'_>) -> bool {
    for one in operation.for_each_target() {
        if let Target::Name(Namespace::Semaphores, name) = one.target()
            && let Ok(Some(entry)) = server.answer(find_declared(direct, name)).await
            && entry.configured
        {
            let may = server.answer(direct.may_administer(Namespace::Semaphores, name)).await;
            return matches!(may, Ok(true));
        }
    }
    false
}
