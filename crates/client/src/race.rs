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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// How an address behaves: after how many milliseconds it accepts, and how many more until it answers; `None`: never.
    #[derive(Clone, Copy)]
    struct Behaviour {
        accepts: Option<u64>,
        answers: Option<u64>,
        /// How many attempts it refuses.
        refuses: usize,
        /// How long it takes for a handshake.
        handshake: u64,
        /// Whether it does not accept the client.
        distrusts: bool,
        /// How long it takes to resolve its name, if it is the first address of that.
        resolves: Option<u64>,
    }

    const SERVES: Behaviour = Behaviour {
        accepts: Some(1),
        answers: Some(1),
        refuses: 0,
        handshake: 0,
        distrusts: false,
        resolves: Some(0),
    };
    const DISTRUSTS: Behaviour = Behaviour { distrusts: true, ..SERVES };
    const VANISHED: Behaviour = Behaviour { accepts: None, ..SERVES };
    const FROZEN: Behaviour = Behaviour { answers: None, ..SERVES };
    const REFUSES: Behaviour = refuses(usize::MAX);

    /// A relay that waits for a leader for some time.
    const fn waits(ms: u64) -> Behaviour {
        Behaviour { answers: Some(ms), ..SERVES }
    }

    /// The same, of connections over TLS.
    const fn waits_in_handshake(ms: u64) -> Behaviour {
        Behaviour { handshake: ms, ..SERVES }
    }

    /// A node that leads after a while.
    const fn refuses(attempts: usize) -> Behaviour {
        Behaviour { refuses: attempts, ..SERVES }
    }

    async fn after(ms: Option<u64>) {
        match ms {
            Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            None => std::future::pending().await,
        }
    }

    /// A failure of this name is that of a server.
    impl Reason for String {
        fn is_of_server(&self) -> bool {
            self.contains("distrusts")
        }
    }

    /// Which address has answered, or what the failure is; after how many milliseconds; and how many attempts were made. Each name
    /// has addresses with these behaviours, which are numbered from 0 on over all names.
    async fn race_of_names(
        limit: impl FnOnce(Instant) -> Limit,
        names: &[&[Behaviour]],
    ) -> (Result<usize, String>, u128, usize) {
        let behaviours = names.concat();
        let number_of = |address: &Address| usize::from(address.resolved().unwrap().port());
        let mut resolved: Vec<Vec<Address>> = Vec::new();
        let mut port = 0..;
        for (number, addresses) in names.iter().enumerate() {
            let name = format!("{number}:1").parse::<Address>().unwrap();
            let addresses = addresses.iter().zip(&mut port);
            resolved.push(
                addresses.map(|(_, port)| name.clone().resolved_to(([127, 0, 0, 1], port).into())).collect(),
            );
        }
        let names: Vec<Address> =
            (0..names.len()).map(|number| format!("{number}:1").parse().unwrap()).collect();
        let tried = Mutex::new(vec![0; behaviours.len()]);
        let began = Instant::now();
        let outcome = first_answer(
            &names,
            limit(began),
            |address| match address.resolved() {
                Some(_) => format!("{} is late", number_of(address)),
                None => format!("the name {} is late", address.host()),
            },
            |name| {
                let addresses = resolved[name.host().parse::<usize>().unwrap()].clone();
                let delay = behaviours[number_of(&addresses[0])].resolves;
                Box::pin(async move {
                    after(delay).await;
                    Ok(addresses)
                })
            },
            |address, accepted| {
                let number = number_of(address);
                let behaviour = behaviours[number];
                let mut tried = tried.lock().unwrap();
                tried[number] += 1;
                let refuses = tried[number] <= behaviour.refuses;
                Box::pin(async move {
                    after(behaviour.accepts).await;
                    if refuses {
                        return Err(format!("{number} refuses"));
                    }
                    if behaviour.handshake > 0 {
                        accepted.note();
                        after(Some(behaviour.handshake)).await;
                    }
                    if behaviour.distrusts {
                        return Err(format!("{number} distrusts"));
                    }
                    accepted.note();
                    after(behaviour.answers).await;
                    Ok(())
                })
            },
        )
        .await;
        let all = behaviours.len();
        let outcome = outcome.map(|First { address, others, .. }| {
            // Names that were not resolved stand for all their addresses.
            let others = others.iter().map(|other| match other.resolved() {
                Some(_) => 1,
                None => resolved[other.host().parse::<usize>().unwrap()].len(),
            });
            assert_eq!(others.sum::<usize>(), all - 1, "no other address is forgotten");
            number_of(&address)
        });
        let tried = tried.lock().unwrap().iter().sum();
        (outcome, began.elapsed().as_millis(), tried)
    }

    /// As [`race_of_names`]; each address has a name of its own.
    async fn race_within(
        limit: impl FnOnce(Instant) -> Limit,
        behaviours: &[Behaviour],
    ) -> (Result<usize, String>, u128, usize) {
        let names: Vec<_> = behaviours.iter().map(std::slice::from_ref).collect();
        race_of_names(limit, &names).await
    }

    async fn race(behaviours: &[Behaviour]) -> (Result<usize, String>, u128, usize) {
        race_within(|_| Limit::Each(LIMIT), behaviours).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_address_that_answers_is_used_and_no_other_one_tried() {
        assert_eq!(race(&[SERVES, SERVES]).await, (Ok(0), 2, 1));
        assert_eq!(race(&[REFUSES, SERVES, SERVES]).await, (Ok(1), 3, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_do_not_answer_cost_little() {
        assert_eq!(race(&[VANISHED, SERVES]).await, (Ok(1), 502, 2));
        assert_eq!(race(&[VANISHED, VANISHED, SERVES]).await, (Ok(2), 1002, 3));
        assert_eq!(race(&[FROZEN, SERVES]).await, (Ok(1), 2003, 2));
        assert_eq!(race(&[VANISHED, REFUSES, SERVES]).await, (Ok(2), 503, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_goes_on_while_others_are_tried() {
        assert_eq!(race(&[waits(2600), FROZEN]).await, (Ok(0), 2601, 2));
        assert_eq!(race(&[waits(1900), SERVES]).await, (Ok(0), 1901, 1), "it is not disturbed");
        assert_eq!(race(&[waits_in_handshake(1900), SERVES]).await, (Ok(0), 1902, 1), "nor over TLS");
        assert_eq!(race(&[waits_in_handshake(2600), SERVES]).await, (Ok(1), 2003, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_address_that_was_tried_last_delays_the_next_one() {
        let accepts_late = Behaviour { accepts: Some(600), ..FROZEN };
        assert_eq!(race(&[accepts_late, VANISHED, SERVES]).await, (Ok(2), 1002, 3));
    }

    /// Such as the next leader of a cluster whose nodes do not relay, beside the one before, which is silent.
    #[tokio::test(start_paused = true)]
    async fn what_has_failed_is_tried_again_while_another_address_is_silent() {
        assert_eq!(race(&[FROZEN, refuses(2), REFUSES]).await, (Ok(1), 3507, 6));
        assert_eq!(race(&[VANISHED, refuses(1)]).await, (Ok(1), 1003, 3));
        assert_eq!(race(&[refuses(1), FROZEN]).await, (Ok(0), 2004, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_for_all_addresses_is_kept_and_is_divided() {
        let within = |limit: u64| move |began| Limit::Until(began + Duration::from_millis(limit));
        assert_eq!(race_within(within(9000), &[FROZEN; 3]).await, (Err("2 is late".to_owned()), 9000, 3));
        assert_eq!(race_within(within(1000), &[VANISHED; 4]).await, (Err("3 is late".to_owned()), 1000, 4));
        assert_eq!(race_within(within(1500), &[FROZEN, FROZEN, SERVES]).await, (Ok(2), 1004, 3));
        assert_eq!(race_within(within(600), &[VANISHED, VANISHED, SERVES]).await, (Ok(2), 402, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_failure_is_reported_when_all_have_failed() {
        assert_eq!(race(&[REFUSES, REFUSES]).await, (Err("1 refuses".to_owned()), 2, 2));
        assert_eq!(race(&[REFUSES, FROZEN]).await, (Err("1 is late".to_owned()), 5001, 8));
        assert_eq!(race(&[VANISHED]).await, (Err("0 is late".to_owned()), 5000, 1));
        assert_eq!(race(&[FROZEN, REFUSES]).await, (Err("0 is late".to_owned()), 5000, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn the_addresses_of_a_name_are_raced_as_those_that_were_configured() {
        let each = |_| Limit::Each(LIMIT);
        for addresses in [[VANISHED, SERVES], [FROZEN, SERVES], [REFUSES, SERVES], [SERVES, SERVES]] {
            let configured = race(&addresses).await;
            assert_eq!(race_of_names(each, &[&addresses]).await, configured);
        }
        assert_eq!(race_of_names(each, &[&[REFUSES, FROZEN], &[VANISHED, SERVES]]).await, (Ok(3), 2504, 4));
        let within = |began| Limit::Until(began + Duration::from_millis(1000));
        assert_eq!(race_of_names(within, &[&[VANISHED; 3]]).await, (Err("2 is late".to_owned()), 1000, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_not_resolved_costs_little() {
        let each = |_| Limit::Each(LIMIT);
        let unresolved = Behaviour { resolves: None, ..SERVES };
        assert_eq!(race_of_names(each, &[&[unresolved], &[SERVES]]).await, (Ok(1), 502, 1));
        let late = Behaviour { resolves: Some(700), ..SERVES };
        assert_eq!(race_of_names(each, &[&[late], &[VANISHED]]).await, (Ok(0), 702, 2));
        let failed = race_of_names(each, &[&[unresolved]]).await;
        assert_eq!(failed, (Err("the name 0 is late".to_owned()), 5000, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_accept_the_client_says_more_than_one_that_is_not_there() {
        for addresses in [[DISTRUSTS, REFUSES], [REFUSES, DISTRUSTS]] {
            let (outcome, ..) = race(&addresses).await;
            assert!(outcome.clone().unwrap_err().contains("distrusts"), "{outcome:?}");
        }
    }
}
