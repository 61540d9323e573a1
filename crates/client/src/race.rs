//! Several addresses, of which some may not answer: the first one that does is used. A name that has several addresses is as
//! good as these: once it is resolved, they take its place.
//!
//! They are tried in their order, and the next one as soon as one has failed. A machine that has vanished does not even refuse a
//! connection, and a frozen server accepts it and stays silent, so the next address is also tried, beside those before it, when
//! the last one takes long. A server that has accepted is given more time: a relay of a cluster in which no node leads is silent,
//! and is worth waiting for. While an address is silent, those that have failed are tried again: one of them may be the next to
//! lead.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::debug;

use crate::Address;

/// How long an address may take to accept a connection before the next one is tried as well.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// How long it may take to answer after that.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// The pause before an address that has failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long attempts may take.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)] // For the command line.
pub enum Limit {
    /// Each of them.
    Each(Duration),
    /// All of them end at this moment. No address takes the time that the others need.
    Until(Instant),
}

/// The reason for which an attempt has failed.
#[doc(hidden)] // For the command line.
pub trait Reason {
    /// Whether a server is there, and refuses this client or is not trusted. This says more than that no server is there.
    fn is_of_server(&self) -> bool;
}

/// The address that has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)] // For the command line.
pub struct First<T> {
    /// One of those that were given, or to which one of them was resolved.
    pub address: Address,
    /// What it has answered.
    pub answer: T,
    /// The other addresses.
    pub others: Vec<Address>,
}

impl Limit {
    fn deadline(self, now: Instant) -> Instant {
        match self {
            Self::Each(limit) => now + limit,
            Self::Until(deadline) => deadline,
        }
    }

    /// How long the next of this number of addresses may have to wait.
    fn patience(self, usual: Duration, addresses: usize, began: Instant) -> Duration {
        match self {
            Self::Each(_) => usual,
            Self::Until(deadline) => usual.min((deadline - began) / addresses as u32),
        }
    }
}

/// A part of an attempt.
#[doc(hidden)] // For the command line.
pub type Stage<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Says that a server has accepted a connection, which is not ready yet or has not answered.
#[derive(Clone, Debug, Default)]
#[doc(hidden)] // For the command line.
pub struct Accepted(Arc<AtomicBool>);

impl Accepted {
    /// Notes that the address has accepted the connection, and later that the connection is ready.
    #[doc(hidden)] // For the command line.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// An attempt at one address.
struct Attempt<T, E> {
    address: Address,
    accepted: Accepted,
    stage: Progress<T, E>,
}

/// What an attempt does.
enum Progress<T, E> {
    Resolving(Stage<Vec<Address>, E>),
    Asking(Stage<T, E>),
}

/// What has happened in an attempt.
enum Event<T, E> {
    /// The addresses that the host has.
    Resolved(Vec<Address>),
    /// The server has come a step further.
    Accepted,
    Answered(T),
    Failed(E),
}

impl<T, E> Attempt<T, E> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event<T, E>> {
        let event = match &mut self.stage {
            Progress::Resolving(stage) => {
                stage.as_mut().poll(context).map(|done| done.map_or_else(Event::Failed, Event::Resolved))
            }
            Progress::Asking(stage) => {
                stage.as_mut().poll(context).map(|done| done.map_or_else(Event::Failed, Event::Answered))
            }
        };
        // Noted by the future that was polled.
        if event.is_pending() && self.accepted.take() { Poll::Ready(Event::Accepted) } else { event }
    }
}

/// Resolves each address, and asks at each address that it has, until one answers: `ask` connects there and notes how far it has
/// come. An attempt fails with `late` when it has taken too long. Those that are not needed are dropped.
///
/// # Errors
/// Once all addresses were tried and none is awaited: the last failure that a server is the reason of, else the last one.
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
    let mut queue = Queue::new(addresses);
    let mut attempts: Vec<Attempt<T, E>> = Vec::new();
    let mut reason: Option<E> = None;
    let mut next_at = began;
    loop {
        if next_at <= Instant::now()
            && let Some(Waiting { address, is_resolved }) = queue.pop()
        {
            let (now, accepted) = (Instant::now(), Accepted::default());
            let deadline = limit.deadline(now);
            let stage = if is_resolved {
                Progress::Asking(limited(deadline, late(&address), ask(&address, accepted.clone())))
            } else {
                Progress::Resolving(limited(deadline, late(&address), resolve(&address)))
            };
            attempts.push(Attempt { address, accepted, stage });
            next_at = now + limit.patience(CONNECT_PATIENCE, queue.known, began);
        }
        let (position, event) = tokio::select! {
            biased;
            event = any(&mut attempts) => event,
            () = sleep_until(next_at), if !queue.is_empty() => continue,
        };
        match event {
            Event::Accepted => {
                if position + 1 == attempts.len() {
                    next_at = Instant::now() + limit.patience(ANSWER_PATIENCE, queue.known, began);
                }
            }
            Event::Resolved(resolved) => {
                let name = attempts.remove(position).address;
                let others = attempts.iter().map(|attempt| &attempt.address);
                queue.replace(&name, resolved, &others.collect::<Vec<_>>());
                next_at = Instant::now();
            }
            Event::Answered(answer) => {
                let address = attempts.remove(position).address;
                let tried = attempts.into_iter().map(|attempt| attempt.address);
                return Ok(First { address, answer, others: tried.chain(queue.addresses()).collect() });
            }
            Event::Failed(failure) => {
                if failure.is_of_server() || reason.as_ref().is_none_or(|reason| !reason.is_of_server()) {
                    reason = Some(failure);
                }
                queue.failed(attempts.remove(position));
                if queue.untried == 0 && attempts.is_empty() {
                    return Err(reason.expect("an attempt has failed"));
                }
                next_at = Instant::now() + if queue.untried > 0 { Duration::ZERO } else { RETRY_PAUSE };
            }
        }
    }
}

/// The addresses that are to be tried.
struct Queue {
    /// Those that were not tried yet, and then those that have failed.
    waiting: VecDeque<Waiting>,
    untried: usize,
    /// How many addresses are known, with those that are being tried.
    known: usize,
}

/// An address that is to be tried.
struct Waiting {
    address: Address,
    /// Otherwise, it may stand for several.
    is_resolved: bool,
}

impl Queue {
    fn new(addresses: &[Address]) -> Self {
        let waiting =
            addresses.iter().map(|address| Waiting { address: address.clone(), is_resolved: false });
        Self { waiting: waiting.collect(), untried: addresses.len(), known: addresses.len() }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        self.untried = self.untried.saturating_sub(1);
        Some(next)
    }

    /// The addresses of a name are tried next, except those that are there already.
    fn replace(&mut self, name: &Address, resolved: Vec<Address>, tried: &[&Address]) {
        self.known -= 1;
        for address in resolved.into_iter().rev() {
            let is_known = |waiting: &Waiting| waiting.is_resolved && waiting.address == address;
            if !tried.contains(&&address) && !self.waiting.iter().any(is_known) {
                self.waiting.push_front(Waiting { address, is_resolved: true });
                self.untried += 1;
                self.known += 1;
            }
        }
        debug!(%name, known = self.known, "resolved");
    }

    /// It may be tried again. A name that could not be resolved is still one.
    fn failed<T, E>(&mut self, Attempt { address, stage, .. }: Attempt<T, E>) {
        let is_resolved = !matches!(stage, Progress::Resolving(_));
        self.waiting.push_back(Waiting { address, is_resolved });
    }

    fn addresses(self) -> impl Iterator<Item = Address> {
        self.waiting.into_iter().map(|waiting| waiting.address)
    }
}

/// Fails with `late` at the deadline.
fn limited<T: Send + 'static, E: Send + 'static>(
    deadline: Instant,
    late: E,
    stage: Stage<T, E>,
) -> Stage<T, E> {
    Box::pin(async move { timeout_at(deadline, stage).await.unwrap_or(Err(late)) })
}

/// Waits until something happens in an attempt, and returns its position. Cancel safe.
async fn any<T, E>(attempts: &mut [Attempt<T, E>]) -> (usize, Event<T, E>) {
    poll_fn(|context| {
        for (position, attempt) in attempts.iter_mut().enumerate() {
            if let Poll::Ready(event) = attempt.poll(context) {
                return Poll::Ready((position, event));
            }
        }
        Poll::Pending
    })
    .await
}
