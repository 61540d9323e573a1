//! Explains why a request for resources is refused or waits, from the state of its names. Most refusals have the
//! message of the client; this file adds numbers or options of the command line to the others.
//!
//! The refusal itself is only a status, so the numbers in the message come from another request. Other clients may have
//! acquired or released in between: if the numbers do not explain the refusal, the message says so.

use super::exit::{Exit, Failure};
use super::listing::{State, no_such_slot};
use super::output::slot_ranges;
use super::server::Server;
use super::values::{quoted, shown};
use super::wanted::{Amount, Amounts, Waiting};
use signalbox_client::{
    DeclaredEntry, Direct, Error, HelloAnswer, Inspected, Namespace, PlainClient, Status,
};
use signalbox_model::noun;

/// The server's answer about a name; `Ok(None)` if it does not exist.
pub(super) type Answer = Result<Option<State>, Error>;

/// Questions to the server about the names of a request, over one connection, which the first question opens.
pub(super) struct Questions<'a> {
    server: &'a Server,
    pub(super) amounts: &'a Amounts,
    direct: Option<Direct>,
}

impl<'a> Questions<'a> {
    pub(super) fn new(server: &'a Server, amounts: &'a Amounts) -> Self {
        Self { server, amounts, direct: None }
    }

    /// Connects, and returns the limits of the server.
    pub(super) async fn limits(&mut self) -> Result<HelloAnswer, Failure> {
        let direct = self.server.direct().await?;
        Ok(self.direct.insert(direct).server())
    }

    /// Returns the answer for each name, with its holders and its queue only if `wants_lists`; empty if the server does
    /// not respond.
    pub(super) async fn answers(&mut self, wants_lists: bool) -> Vec<Answer> {
        let ask = async {
            let direct = match self.direct.take() {
                Some(direct) => direct,
                None => self.server.direct().await.ok()?,
            };
            let mut answers = Vec::new();
            for amount in &self.amounts.each {
                let answer = State::read(&direct, self.amounts.kind, amount.name.bytes(), wants_lists).await;
                // Without a status, the connection has failed.
                if answer.as_ref().is_err_and(|error| error.status().is_none()) {
                    return None;
                }
                answers.push(answer);
            }
            self.direct = Some(direct);
            Some(answers)
        };
        tokio::time::timeout(self.server.timeout, ask).await.ok().flatten().unwrap_or_default()
    }
}

/// The state of a name, requested after the server has refused the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// The name exists.
    Known {
        /// Its state and the request, such as `1 of 4 in use, 4 requested`.
        state: String,
        /// Whether the request fits now.
        fits: bool,
        /// `None` if the capacity cannot be the reason for the refusal.
        capacity: Option<u32>,
    },
    /// The name does not exist.
    Missing,
    /// The name is not declared, but clients use it with a maximum.
    NotDeclared,
    /// The server did not answer.
    Unknown,
}

impl Usage {
    /// Requests the usage of a name by a plain Get, which any server of the protocol supports.
    pub(super) async fn by_get(
        server: &Server,
        client: &PlainClient,
        amount: &Amount,
        namespace: Namespace,
    ) -> Self {
        let call = client.get(amount.name.bytes());
        match (server.answer(call).await, namespace) {
            (Ok(number), Namespace::Counters) => Self::in_use(amount, number.0, amount.max),
            (Ok(number), Namespace::Semaphores) => {
                let (available, resources) = (number.0, amount.resources);
                let state = format!("{available} available, {resources} requested");
                Self::Known { state, fits: resources <= available, capacity: None }
            }
            (Err(error), _) if error.status() == Some(Status::NotFound) => Self::Missing,
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
        let blocked = |why: String| Self::Known { state: why, fits: false, capacity: None };
        match (namespace, &state.declared, amount.slot) {
            (Namespace::Counters, ..) if amount.max.is_none() => Self::NotDeclared,
            // A counter has no capacity of its own, but each request for it has a maximum.
            (Namespace::Counters, ..) => Self::in_use(amount, in_use, amount.max),
            (_, Some(DeclaredEntry { removing: true, .. }), _) => blocked("it is being removed".to_owned()),
            (_, Some(DeclaredEntry { paused: true, .. }), _) => {
                blocked("an administrator has paused it".to_owned())
            }
            (_, Some(entry), Some(slot)) if !entry.numbered || u32::from(slot) >= entry.capacity => {
                blocked(no_such_slot(entry))
            }
            (_, Some(entry), Some(slot)) => blocked(match entry.slots_out.contains(&slot) {
                true => format!("slot {slot} is out of service"),
                false => format!("slot {slot} is held, or others wait before it"),
            }),
            (_, Some(DeclaredEntry { slots_out: slots, .. }), None) if !slots.is_empty() => {
                let (s, are) = if slots.len() == 1 { ("", "is") } else { ("s", "are") };
                let (slots, resources) = (slot_ranges(slots), amount.resources);
                let state = format!(
                    "slot{s} {slots} {are} out of service; {available} available, {resources} requested"
                );
                Self::Known { state, fits: resources <= available, capacity: Some(capacity) }
            }
            _ => Self::in_use(amount, in_use, Some(capacity)),
        }
    }

    /// Returns the usage of a name of which `in_use` resources are in use.
    fn in_use(amount: &Amount, in_use: u32, capacity: Option<u32>) -> Self {
        let (resources, Some(most)) = (amount.resources, capacity) else { return Self::Unknown };
        let fits = u64::from(in_use) + u64::from(resources) <= u64::from(most);
        Self::Known { state: format!("{in_use} of {most} in use, {resources} requested"), fits, capacity }
    }

    /// Returns the state and the request as text.
    fn text(&self, Amount { resources, slot, .. }: &Amount) -> String {
        match (self, slot) {
            (Self::Known { state, fits: true, .. }, _) => format!("other requests were first; now {state}"),
            (Self::Known { state, .. }, _) => state.clone(),
            (_, Some(slot)) => format!("slot {slot} is held, out of service, or others wait before it"),
            (_, None) => format!("not enough resources available, {resources} requested"),
        }
    }
}

/// Returns whether the message of this error needs the state of the names.
pub(super) fn needs_usage(error: &Error) -> bool {
    use Status::{NoSuchSlot, NotFound, ResourceNotAvailable, TimedOut};
    matches!(error.status(), Some(ResourceNotAvailable | TimedOut | NotFound | NoSuchSlot))
}

/// Returns the failure of a refused request. `usages` has one entry per name, or is empty.
pub(super) fn refused(amounts: &Amounts, waiting: &Waiting, error: Error, usages: &[Usage]) -> Failure {
    let names = amounts.object();
    let (exit, message) = match (error.status(), waiting.wait) {
        // If a request may wait, the server refuses it with this status only if it can never be granted.
        (Some(Status::ResourceNotAvailable), wait) => match (too_small(amounts, usages), wait) {
            (Some(message), _) => (Exit::Failure, message),
            (None, Some(_)) => {
                (Exit::Failure, format!("{names}: more requested than can ever be granted; request fewer"))
            }
            (None, None) => (
                Exit::NothingAvailable,
                format!("{names}: {}; try again later or use --wait", state(amounts, usages)),
            ),
        },
        (Some(Status::TimedOut), wait) => {
            let limit = wait.flatten();
            let longer = if limit.is_some() { " or wait longer" } else { "" };
            let (limit, state) = (shown(limit), state(amounts, usages));
            (
                Exit::NothingAvailable,
                format!("{names}: not granted within {limit} ({state}); try again later{longer}"),
            )
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
        (Some(Status::NoSuchSlot), _)
            if let Some(Usage::Known { state, fits: false, .. }) = usages.first() =>
        {
            (Exit::Failure, format!("{names} does not have this slot: {state}"))
        }
        (Some(Status::MaximumTooSmall), _) if waiting.share => (
            Exit::Failure,
            format!(
                "{names}: it is declared with a capacity above 1, and --share is for a limit of 1; use another name, or omit \
                 --share"
            ),
        ),
        _ => return error.into(),
    };
    Failure::new(exit, message)
}

/// Returns the state of the only name, or of those that are not available.
fn state(amounts: &Amounts, usages: &[Usage]) -> String {
    if let Some(amount) = amounts.single() {
        return usages.first().unwrap_or(&Usage::Unknown).text(amount);
    }
    let blocked = amounts.each.iter().zip(usages).filter_map(|(amount, usage)| {
        let does_not_fit = matches!(usage, Usage::Known { fits: false, .. });
        does_not_fit.then(|| format!("{} ({})", amount.name, usage.text(amount)))
    });
    match &blocked.collect::<Vec<_>>()[..] {
        [] => "not all were available".to_owned(),
        blocked => format!("not all are available: {}", blocked.join(", ")),
    }
}

/// Returns the message for a semaphore whose capacity is less than what was requested.
fn too_small(amounts: &Amounts, usages: &[Usage]) -> Option<String> {
    amounts.each.iter().zip(usages).find_map(|(amount, usage)| {
        let Amount { name, resources, .. } = amount;
        let Usage::Known { capacity: Some(capacity), .. } = usage else { return None };
        let advice = match *capacity {
            _ if capacity >= resources => return None,
            0 => "increase the capacity".to_owned(),
            _ => format!("request at most {capacity}, or increase the capacity"),
        };
        Some(format!("{} {name}: capacity {capacity}, {resources} requested; {advice}", noun(amounts.kind)))
    })
}

fn missing(amounts: &Amounts, usages: &[Usage]) -> String {
    let what = if amounts.kind.is_none() { "is not declared" } else { "does not exist" };
    // Only a name that is requested without a maximum must exist.
    let lacking = amounts.each.iter().zip(usages).filter(|(amount, usage)| {
        amount.max.is_none() && matches!(usage, Usage::Missing | Usage::NotDeclared)
    });
    let names: Vec<_> = match amounts.single() {
        Some(amount) => vec![&amount.name],
        None => lacking.clone().map(|(amount, _)| &amount.name).collect(),
    };
    let noun = noun(amounts.kind);
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
