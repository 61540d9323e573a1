//! Finds the first of several addresses that answers. A host name is first resolved and replaced by its IP addresses.
//!
//! The addresses are tried in their order, the next one as soon as one has failed. A machine that has vanished does not
//! even refuse a connection, and a frozen server accepts it and stays silent. So the next address is also tried,
//! concurrently, when the last one takes long. A server that has accepted the connection is given more time: in a
//! cluster in which no node leads, a relay is silent, but worth waiting for. While an address is silent, those that
//! have failed are tried again, since one of their nodes may be the next leader.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::debug;

use crate::Address;

/// How long an address may take to accept a connection before the next one is tried as well.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// How long an address that has accepted the connection may take to answer before the next one is tried as well.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// The pause before an address that has failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long attempts may take.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)] // For the command line.
pub enum Limit {
    /// Each attempt may take this long.
    Each(Duration),
    /// All attempts end at this moment. If there are many addresses, the next one is tried sooner, so that there is time
    /// for each.
    Until(Instant),
}

/// The reason why an attempt failed.
#[doc(hidden)] // For the command line.
pub trait Reason {
    /// Returns whether a server is reachable, but refuses this client or is not trusted. Such a reason is preferred to
    /// that of an unreachable server.
    fn is_of_server(&self) -> bool;
}

/// The first answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)] // For the command line.
pub struct First<T> {
    /// The address that has answered: one of those given, or an IP address of its host.
    pub address: Address,
    /// Its answer.
    pub answer: T,
    /// The other addresses, given or resolved.
    pub others: Vec<Address>,
}

impl Limit {
    fn deadline(self, now: Instant) -> Instant {
        match self {
            Self::Each(limit) => now + limit,
            Self::Until(deadline) => deadline,
        }
    }

    /// Returns how long to wait before the next address is tried as well. `addresses` is the number of all known ones.
    fn patience(self, usual: Duration, addresses: usize, began: Instant) -> Duration {
        match self {
            Self::Each(_) => usual,
            Self::Until(deadline) => usual.min((deadline - began) / addresses as u32),
        }
    }
}

/// A future that is one part of an attempt.
#[doc(hidden)] // For the command line.
pub type Stage<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A flag by which an attempt reports progress.
#[derive(Clone, Debug, Default)]
#[doc(hidden)] // For the command line.
pub struct Accepted(Arc<AtomicBool>);

impl Accepted {
    /// Notes that the server has accepted the connection or, later, that the connection is ready for requests.
    #[doc(hidden)] // For the command line.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// An address that is to be tried, or is being tried.
#[derive(PartialEq)]
struct Target {
    address: Address,
    /// Whether the address is one IP address; otherwise, its host may have several.
    is_resolved: bool,
}

/// An attempt at one address.
struct Attempt<T, E> {
    target: Target,
    accepted: Accepted,
    outcome: Stage<Event<T>, E>,
}

/// An event in an attempt that has not failed.
enum Event<T> {
    /// The IP addresses of the host.
    Resolved(Vec<Address>),
    /// The server has accepted the connection, or the connection is ready.
    Accepted,
    Answered(T),
}

/// Resolves each address and calls `ask` for each result, until one answers. `ask` connects to the address, and notes
/// its progress in [`Accepted`]. An attempt that takes too long fails with `late`. After the first answer, the other
/// attempts are dropped.
///
/// # Errors
/// The last failure for which [`Reason::is_of_server`] is true, else the last failure, when all addresses have failed.
///
/// # Panics
/// Without an address.
#[doc(hidden)] // For the command line.
pub async fn first_answer<T, E>(
    addresses: &[Address],
    limit: Limit,
    late: impl Fn(&Address) -> E,
    resolve: impl Fn(&Address) -> Stage<Vec<Address>, E>,
    ask: impl Fn(&Address, Accepted) -> Stage<T, E>,
) -> Result<First<T>, E>
where
    T: Send + 'static,
    E: Reason + Send + 'static,
{
    assert!(!addresses.is_empty(), "there is an address");
    let began = Instant::now();
    let begin = |target: Target| {
        let (address, accepted, deadline) =
            (&target.address, Accepted::default(), limit.deadline(Instant::now()));
        let outcome = if target.is_resolved {
            let asking = ask(address, accepted.clone());
            limited(deadline, late(address), async move { asking.await.map(Event::Answered) })
        } else {
            let resolving = resolve(address);
            limited(deadline, late(address), async move { resolving.await.map(Event::Resolved) })
        };
        Attempt { target, accepted, outcome }
    };
    let configured = addresses.iter().map(|address| Target { address: address.clone(), is_resolved: false });
    let (mut untried, mut failed): (VecDeque<Target>, VecDeque<Target>) =
        (configured.collect(), VecDeque::new());
    let mut attempts: Vec<Attempt<T, E>> = Vec::new();
    let mut reason: Option<E> = None;
    let mut next_at = began;
    loop {
        if next_at <= Instant::now()
            && let Some(target) = untried.pop_front().or_else(|| failed.pop_front())
        {
            attempts.push(begin(target));
            let known = attempts.len() + untried.len() + failed.len();
            next_at = Instant::now() + limit.patience(CONNECT_PATIENCE, known, began);
        }
        let (position, event) = tokio::select! {
            biased;
            event = any(&mut attempts) => event,
            () = sleep_until(next_at), if !untried.is_empty() || !failed.is_empty() => continue,
        };
        match event {
            Ok(Event::Accepted) if position + 1 == attempts.len() => {
                let known = attempts.len() + untried.len() + failed.len();
                next_at = Instant::now() + limit.patience(ANSWER_PATIENCE, known, began);
            }
            Ok(Event::Accepted) => {}
            Ok(Event::Resolved(resolved)) => {
                let name = attempts.remove(position).target.address;
                debug!(%name, ?resolved, "resolved");
                // The IP addresses are tried next, except those that are already known.
                for address in resolved.into_iter().rev() {
                    let target = Target { address, is_resolved: true };
                    let tried = attempts.iter().map(|attempt| &attempt.target);
                    if !tried.chain(&untried).chain(&failed).any(|known| *known == target) {
                        untried.push_front(target);
                    }
                }
                next_at = Instant::now();
            }
            Ok(Event::Answered(answer)) => {
                let address = attempts.remove(position).target.address;
                let tried = attempts.into_iter().map(|attempt| attempt.target);
                let others = tried.chain(untried).chain(failed).map(|target| target.address).collect();
                return Ok(First { address, answer, others });
            }
            Err(failure) => {
                if failure.is_of_server() || reason.as_ref().is_none_or(|reason| !reason.is_of_server()) {
                    reason = Some(failure);
                }
                // The address may be tried again. A host that could not be resolved is then resolved again.
                failed.push_back(attempts.remove(position).target);
                if untried.is_empty() && attempts.is_empty() {
                    return Err(reason.expect("an attempt has failed"));
                }
                next_at = Instant::now() + if untried.is_empty() { RETRY_PAUSE } else { Duration::ZERO };
            }
        }
    }
}

/// Fails with `late` at the deadline.
fn limited<T: 'static, E: Send + 'static>(
    deadline: Instant,
    late: E,
    stage: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Stage<T, E> {
    Box::pin(async move { timeout_at(deadline, stage).await.unwrap_or(Err(late)) })
}

/// Waits until something happens in an attempt, and returns its position. Cancel safe.
async fn any<T, E>(attempts: &mut [Attempt<T, E>]) -> (usize, Result<Event<T>, E>) {
    poll_fn(|context| {
        for (position, Attempt { accepted, outcome, .. }) in attempts.iter_mut().enumerate() {
            if let Poll::Ready(outcome) = outcome.as_mut().poll(context) {
                return Poll::Ready((position, outcome));
            }
            // Noted by the future that was polled.
            if accepted.take() {
                return Poll::Ready((position, Ok(Event::Accepted)));
            }
        }
        Poll::Pending
    })
    .await
}
