//! The holdings of the programs around this one: an outer `run`, or an `acquire` of the script that started this program.
//!
//! Those programs release them only after this program has ended, so a request that needs the same resources would wait
//! forever. `run` tells its command in the environment what is held. The server is asked what is still held, because a
//! process in the background may outlive the `run` that started it.

use std::{env, slice};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::exit::{Exit, Failure};
use super::listing::Entry;
use super::refusal::Answer;
use super::server::label;
use super::session::GRANT;
use super::wanted::Amounts;
use signalbox_client::{GrantId, Namespace};
use signalbox_model::noun;

/// The environment variable with the holdings, in JSON. Only this program reads it.
pub(super) const OUTER: &str = "SIGNALBOX_OUTER";

/// A holding of one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Holding {
    Grant(GrantId),
    /// A holding of a `run` without a grant: the session of its connection, and its process, because a session of another
    /// server may have the same number.
    Connection {
        session: u64,
        process: u32,
    },
}

impl Holding {
    fn matches(&self, holder: &Entry) -> bool {
        match self {
            Self::Grant(grant) => holder.grant == Some(*grant),
            Self::Connection { session, process } => {
                let is_of_process = || holder.label.starts_with(&label(&format!("run[{process}] ")));
                holder.grant.is_none() && holder.session == *session && is_of_process()
            }
        }
    }
}

/// Returns the holdings of the `run`s around this program.
pub(super) fn of_runs() -> Vec<Holding> {
    env::var(OUTER).ok().and_then(|value| serde_json::from_str(&value).ok()).unwrap_or_default()
}

/// Returns the holdings of the `run`s around this program and of an `acquire` of its script.
pub(super) fn all() -> Vec<Holding> {
    let of_acquire = env::var(GRANT).ok().and_then(|grant| grant.parse().ok());
    let mut all = of_runs();
    all.extend(of_acquire.map(|grant| Holding::Grant(GrantId(grant))).filter(|grant| !all.contains(grant)));
    all
}

/// Returns the value of [`OUTER`] for a command that this program runs.
pub(super) fn with(own: &Holding) -> String {
    json!([&all()[..], slice::from_ref(own)].concat()).to_string()
}

/// Returns the failure of a request that needs more than the programs around this one leave; `None` if they leave enough,
/// or if the server did not answer.
pub(super) fn conflict(amounts: &Amounts, answers: &[Answer], held: &[Holding]) -> Option<Failure> {
    amounts.each.iter().zip(answers).find_map(|(amount, answer)| {
        let state = answer.as_ref().ok()?.as_ref()?;
        let is_outer = |holder: &&Entry| held.iter().any(|outer| outer.matches(holder));
        let outer: Vec<_> = state.holders.iter().filter(is_outer).collect();
        let capacity = match state.inspected.namespace {
            // Without a maximum, the request is not for the counter.
            Namespace::Counters => amount.max?,
            Namespace::Semaphores => state.inspected.capacity,
        };
        let in_use: u64 = outer.iter().map(|holder| u64::from(holder.resources)).sum();
        let has_slot = amount.slot.is_some_and(|slot| outer.iter().any(|holder| holder.slots.contains(&slot)));
        let fits = !has_slot && in_use + u64::from(amount.resources) <= u64::from(capacity);
        (!outer.is_empty() && !fits).then(|| {
            let message = format!(
                "{} {}: {} requested, but the commands around this one hold {in_use} of {capacity} until it ends, so it would \
                 wait forever; request less, or give this command what they hold and omit this request",
                noun(amounts.kind),
                amount.name,
                amount.resources
            );
            Failure::new(Exit::NothingAvailable, message)
        })
    })
}
