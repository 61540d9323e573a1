//! Why a request for resources is refused, or waits: what the server says about its names, and the message. For most refusals
//! the message is the client's; here are those for which the command line has numbers or options to add.
//!
//! The refusal itself is only a status, so the numbers in the message come from another request. Other clients may have
//! acquired or released in between: if the numbers do not explain the refusal, the message says so.

use std::time::Duration;

use super::declared::no_such_slot;
use super::exit::{Exit, Failure};
use super::listing::State;
use super::name::quoted;
use super::server::Server;
use super::slots;
use super::wanted::{Amount, Amounts, Waiting};
use signalbox_client::{
    DeclaredEntry, Direct, Error, HelloAnswer, Inspected, Namespace, PlainClient, Status,
};
use signalbox_model::noun;

/// What the server says about a name; `Ok(None)`: it does not exist.
pub(super) type Answer = Result<Option<State>, Error>;

/// Questions to the server about the names of a request, over one connection, which the first question opens.
pub(super) struct Questions<'a> {
    server: &'a Server,
    amounts: &'a Amounts,
    direct: Option<Direct>,
}

impl<'a> Questions<'a> {
    pub(super) fn new(server: &'a Server, amounts: &'a Amounts) -> Self {
        Self { server, amounts, direct: None }
    }

    pub(super) fn amounts(&self) -> &'a Amounts {
        self.amounts
    }

    /// The limits of the server.
    pub(super) async fn limits(&mut self) -> Result<HelloAnswer, Failure> {
        let direct = self.server.direct().await?;
        Ok(self.direct.insert(direct).server())
    }

    /// The answer for each name, with its holders and its queue only if they are wanted; none if the server does not respond.
    pub(super) async fn answers(&mut self, wants_lists: bool) -> Vec<Answer> {
        let ask = async {
            let direct = match self.direct.take() {
                Some(direct) => direct,
                None => self.server.direct().await.ok()?,
            };
            let mut answers = Vec::new();
            for amount in self.amounts.each() {
                let answer =
                    State::read(&direct, self.amounts.kind(), amount.name.bytes(), wants_lists).await;
                // Without a status, the connection is of no more use.
                if answer.as_ref().is_err_and(|error| error.status().is_none()) {
                    return None;
                }
                answers.push(answer);
            }
            self.direct = Some(direct);
            Some(answers)
        };
        tokio::time::timeout(self.server.timeout(), ask).await.ok().flatten().unwrap_or_default()
    }
}

/// What the server said about a name after it had refused the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// How many resources are in use, and of how many.
    InUse { in_use: u32, capacity: u32 },
    /// How many resources of a semaphore are available.
    Available(u32),
    /// Slots of the semaphore are out of service, so fewer resources are available than its capacity says.
    OutOfService { slots: Vec<u16>, available: u32, capacity: u32 },
    /// The slot that was requested is out of service, or others hold it or wait before the request.
    Slot { slot: u16, is_out: bool },
    /// The semaphore does not have the slot that was requested, for this reason.
    NoSuchSlot(String),
    /// The semaphore is paused, so it grants nothing.
    Paused,
    /// The name does not exist.
    Missing,
    /// The name is not declared, but clients use it with a maximum.
    NotDeclared,
    /// The server did not say.
    Unknown,
}

impl Usage {
    /// Asks a server of any kind, over the connection of a plain operation.
    pub(super) async fn by_get(
        server: &Server,
        client: &PlainClient,
        amount: &Amount,
        namespace: Namespace,
    ) -> Self {
        let call = client.get(amount.name.bytes());
        match (server.answer(call).await, namespace) {
            (Ok(Ok(number)), Namespace::Counters) => Self::counter(number.0, amount),
            (Ok(Ok(number)), Namespace::Semaphores) => Self::Available(number.0),
            (Ok(Err(error)), _) if error.status() == Some(Status::NotFound) => Self::Missing,
            _ => Self::Unknown,
        }
    }

    pub(super) fn of(amount: &Amount, answer: &Answer) -> Self {
        let state = match answer {
            Ok(Some(state)) => state,
            Ok(None) => return Self::Missing,
            Err(_) => return Self::Unknown,
        };
        let Inspected { in_use, capacity, available, namespace, .. } = state.inspected;
        match (namespace, &state.declared, amount.slot) {
            (Namespace::Counters, ..) if amount.max.is_none() => Self::NotDeclared,
            (Namespace::Counters, ..) => Self::counter(in_use, amount),
            (_, Some(DeclaredEntry { paused: true, .. }), _) => Self::Paused,
            (_, Some(entry), Some(slot)) if !entry.numbered || u32::from(slot) >= entry.capacity => {
                Self::NoSuchSlot(no_such_slot(entry))
            }
            (_, Some(entry), Some(slot)) => Self::Slot { slot, is_out: entry.slots_out.contains(&slot) },
            (_, Some(DeclaredEntry { slots_out: slots, .. }), None) if !slots.is_empty() => {
                Self::OutOfService { slots: slots.clone(), available, capacity }
            }
            _ => Self::InUse { in_use, capacity },
        }
    }

    /// A counter has no capacity of its own, but each request for it has a maximum.
    fn counter(in_use: u32, amount: &Amount) -> Self {
        amount.max.map_or(Self::Unknown, |capacity| Self::InUse { in_use, capacity })
    }

    /// Whether the request fits now; `None` if that is not known.
    fn fits(&self, resources: u32) -> Option<bool> {
        match *self {
            Self::InUse { in_use, capacity } => {
                Some(u64::from(in_use) + u64::from(resources) <= u64::from(capacity))
            }
            Self::Available(available) | Self::OutOfService { available, .. } => Some(resources <= available),
            Self::Slot { .. } | Self::NoSuchSlot(_) | Self::Paused => Some(false),
            Self::Missing | Self::NotDeclared | Self::Unknown => None,
        }
    }

    /// The capacity, if it is known to be less than what was requested.
    fn too_small(&self, resources: u32) -> Option<u32> {
        match *self {
            Self::InUse { capacity, .. } | Self::OutOfService { capacity, .. } => {
                Some(capacity).filter(|capacity| *capacity < resources)
            }
            _ => None,
        }
    }

    /// The state and the request, such as `1 of 4 in use, 4 requested`.
    fn text(&self, resources: u32) -> String {
        match self {
            Self::InUse { in_use, capacity } => {
                format!("{in_use} of {capacity} in use, {resources} requested")
            }
            Self::Available(available) => format!("{available} available, {resources} requested"),
            Self::OutOfService { slots, available, .. } => {
                let (s, are) = if slots.len() == 1 { ("", "is") } else { ("s", "are") };
                let slots = slots::ranges(slots);
                format!("slot{s} {slots} {are} out of service; {available} available, {resources} requested")
            }
            Self::Slot { slot, is_out: true } => format!("slot {slot} is out of service"),
            Self::Slot { slot, is_out: false } => format!("slot {slot} is held, or others wait before it"),
            Self::NoSuchSlot(reason) => reason.clone(),
            Self::Paused => format!("it is paused, {resources} requested"),
            Self::Missing | Self::NotDeclared => format!("it does not exist, {resources} requested"),
            Self::Unknown => format!("{resources} requested"),
        }
    }
}

/// Whether the state of the names matters for the message of this error.
pub(super) fn needs_usage(error: &Error) -> bool {
    use Status::{NoSuchSlot, NotFound, ResourceNotAvailable, TimedOut};
    matches!(error.status(), Some(ResourceNotAvailable | TimedOut | NotFound | NoSuchSlot))
}

/// The failure of a refused request. `usages` has one entry per name, or none.
pub(super) fn refused(amounts: &Amounts, waiting: &Waiting, error: Error, usages: &[Usage]) -> Failure {
    let names = amounts.object();
    let (exit, message) = match (error.status(), waiting.wait) {
        (Some(Status::ResourceNotAvailable), None) => match too_small(amounts, usages) {
            Some(message) => (Exit::Failure, message),
            None => (Exit::NothingAvailable, not_available(amounts, usages)),
        },
        // The server refuses a request that may wait with this status only if it can never be granted.
        (Some(Status::ResourceNotAvailable), Some(_)) => (Exit::Failure, never_available(amounts, usages)),
        (Some(Status::TimedOut), wait) => {
            (Exit::NothingAvailable, timed_out(amounts, wait.flatten(), usages))
        }
        (Some(Status::QueueFull), _) => {
            let of =
                if amounts.single().is_some() { "the wait queue" } else { "the wait queue of one of them" };
            let length = waiting.queue_max.unwrap_or_default();
            let message = format!(
                "{names}: {of} has {length} or more requests, the limit of --queue-max; try again later or raise \
                 --queue-max"
            );
            (Exit::NothingAvailable, message)
        }
        (Some(Status::NotFound), _) => (Exit::Failure, missing(amounts, usages)),
        (Some(Status::NoSuchSlot), _) if let Some(Usage::NoSuchSlot(reason)) = usages.first() => {
            (Exit::Failure, format!("{names} does not have this slot: {reason}"))
        }
        _ => return error.into(),
    };
    Failure::new(exit, message)
}

fn not_available(amounts: &Amounts, usages: &[Usage]) -> String {
    const ADVICE: &str = "try again later or use --wait";
    let names = amounts.object();
    let blocked = blocked(amounts, usages);
    match (amounts.single(), usages.first()) {
        (Some(_), Some(Usage::Paused)) => {
            format!("{names}: an administrator has paused it; {ADVICE}")
        }
        (Some(Amount { slot: Some(slot), .. }), None | Some(Usage::Unknown)) => {
            format!("{names}: slot {slot} is held, out of service, or others wait before it; {ADVICE}")
        }
        (Some(amount), Some(usage)) if usage.fits(amount.resources) == Some(true) => {
            let state = usage.text(amount.resources);
            format!("{names}: other requests were first (now {state}); {ADVICE}")
        }
        (Some(amount), Some(Usage::Unknown | Usage::Missing | Usage::NotDeclared) | None) => {
            format!("{names}: not enough resources available, {} requested; {ADVICE}", amount.resources)
        }
        (Some(amount), Some(usage)) => format!("{names}: {}; {ADVICE}", usage.text(amount.resources)),
        (None, _) if blocked.is_empty() => format!("{names}: not all were available; {ADVICE}"),
        (None, _) => format!("{names}: not all are available: {blocked}; {ADVICE}"),
    }
}

fn never_available(amounts: &Amounts, usages: &[Usage]) -> String {
    too_small(amounts, usages).unwrap_or_else(|| {
        let names = amounts.object();
        match amounts.single() {
            Some(amount) => {
                format!(
                    "{names}: {} requested, more than can ever be granted; request fewer",
                    amount.resources
                )
            }
            None => format!("{names}: more requested than can ever be granted; request fewer"),
        }
    })
}

/// The message for a semaphore whose capacity is less than what was requested.
fn too_small(amounts: &Amounts, usages: &[Usage]) -> Option<String> {
    amounts.each().iter().zip(usages).find_map(|(amount, usage)| {
        let Amount { name, resources, .. } = amount;
        let capacity = usage.too_small(*resources)?;
        let advice = match capacity {
            0 => "increase the capacity".to_owned(),
            _ => format!("request at most {capacity}, or increase the capacity"),
        };
        Some(format!("{} {name}: capacity {capacity}, {resources} requested; {advice}", noun(amounts.kind())))
    })
}

fn timed_out(amounts: &Amounts, limit: Option<Duration>, usages: &[Usage]) -> String {
    let names = amounts.object();
    let (limit, advice) = match limit {
        Some(limit) => (format!("{} s", limit.as_secs_f64()), "try again later or wait longer"),
        None => ("the longest wait that the server allows".to_owned(), "try again later"),
    };
    let state = match (amounts.single(), usages.first()) {
        (Some(amount), Some(usage)) => usage.text(amount.resources),
        (Some(amount), None) => Usage::Unknown.text(amount.resources),
        (None, _) => blocked(amounts, usages),
    };
    let state = if state.is_empty() { state } else { format!(" ({state})") };
    format!("{names}: not granted within {limit}{state}; {advice}")
}

fn missing(amounts: &Amounts, usages: &[Usage]) -> String {
    let what = if amounts.kind().is_none() { "is not declared" } else { "does not exist" };
    // Only a name that is requested without a maximum has to exist.
    let lacking = amounts.each().iter().zip(usages).filter(|(amount, usage)| {
        amount.max.is_none() && matches!(usage, Usage::Missing | Usage::NotDeclared)
    });
    let names: Vec<_> = match amounts.single() {
        Some(amount) => vec![&amount.name],
        None => lacking.clone().map(|(amount, _)| &amount.name).collect(),
    };
    let noun = noun(amounts.kind());
    let (object, it) = match &names[..] {
        [] => (format!("one of {}", amounts.names()), "it"),
        [name] => (format!("{noun} {name}"), "it"),
        names => (format!("each of {noun}s {}", quoted(names.iter().copied())), "them"),
    };
    let used = match lacking.clone().any(|(_, usage)| *usage == Usage::NotDeclared) {
        true => ", but clients use it with a maximum",
        false => "",
    };
    format!(
        "{object} {what}{used}; declare {it} with \"signalbox declare\", or give the maximum, with --max N or as NAME:N"
    )
}

/// The names that do not fit now, each with its state; empty if all fit or none is known.
fn blocked(amounts: &Amounts, usages: &[Usage]) -> String {
    let blocked = amounts.each().iter().zip(usages).filter_map(|(Amount { name, resources, .. }, usage)| {
        let does_not_fit = usage.fits(*resources) == Some(false);
        does_not_fit.then(|| format!("{name} has {}", usage.text(*resources)))
    });
    blocked.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::name::Name;
    use signalbox_client::ErrorKind;

    const NOW: Waiting = Waiting { wait: None, queue_max: None, share: false, done_status: None };
    const FOREVER: Waiting = Waiting { wait: Some(None), ..NOW };

    fn amount(name: &str, resources: u32, max: Option<u32>) -> Amount {
        Amount { name: Name::new(name.into()).unwrap(), resources, max, slot: None }
    }

    fn message(amounts: &Amounts, waiting: &Waiting, status: Status, usages: &[Usage]) -> String {
        let failure = refused(amounts, waiting, ErrorKind::Status(status).into(), usages);
        format!("{failure:?}")
    }

    #[test]
    fn the_numbers_explain_the_refusal_or_the_message_says_that_they_are_later_ones() {
        let backup = Amounts::new(None, vec![amount("backup", 1, Some(1))]);
        let in_use = |in_use| Usage::InUse { in_use, capacity: 1 };
        for (usage, expected) in [
            (in_use(1), "backup\\\": 1 of 1 in use, 1 requested; try again later or use --wait"),
            (
                in_use(0),
                "other requests were first (now 0 of 1 in use, 1 requested); try again later or use --wait",
            ),
            (Usage::Unknown, "not enough resources available, 1 requested; try again later or use --wait"),
        ] {
            let said = message(&backup, &NOW, Status::ResourceNotAvailable, &[usage]);
            assert!(said.contains(expected), "{said}");
        }
        let said = message(&backup, &NOW, Status::ResourceNotAvailable, &[]);
        assert!(said.contains("not enough resources available, 1 requested"), "{said}");
    }

    #[test]
    fn a_semaphore_that_is_too_small_is_not_worth_another_try() {
        let pool = Amounts::new(None, vec![amount("pool", 3, None)]);
        let usage = Usage::InUse { in_use: 0, capacity: 2 };
        for waiting in [NOW, FOREVER] {
            let said = message(&pool, &waiting, Status::ResourceNotAvailable, std::slice::from_ref(&usage));
            assert!(said.contains("capacity 2, 3 requested; request at most 2"), "{said}");
        }
    }

    #[test]
    fn of_several_names_those_that_are_in_the_way_are_shown() {
        let both = vec![amount("a", 1, Some(1)), amount("b", 2, Some(4))];
        let both = Amounts::new(None, both);
        let usages = [Usage::InUse { in_use: 0, capacity: 1 }, Usage::InUse { in_use: 3, capacity: 4 }];
        let said = message(&both, &NOW, Status::ResourceNotAvailable, &usages);
        assert!(said.contains("not all are available: \\\"b\\\" has 3 of 4 in use, 2 requested"), "{said}");
        let said = message(&both, &NOW, Status::ResourceNotAvailable, &[]);
        assert!(said.contains("not all were available; try again later or use --wait"), "{said}");
    }
}
