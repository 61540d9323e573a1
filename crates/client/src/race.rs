//! Several addresses, of which some may not answer: the first one that does is used.
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

/// Says that a server has accepted a connection that is not ready yet.
#[derive(Clone, Debug, Default)]
#[doc(hidden)] // For the command line.
pub struct Accepted(Arc<AtomicBool>);

impl Accepted {
    /// Notes that the address has accepted the connection.
    #[doc(hidden)] // For the command line.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// An attempt at one address.
struct Attempt<C, T, E> {
    /// Of the address.
    index: usize,
    deadline: Instant,
    accepted: Accepted,
    stage: Progress<Stage<C, E>, Stage<T, E>>,
}

/// What an attempt does, or has done.
enum Progress<C, T> {
    Connecting(C),
    Asking(T),
}

/// What has happened in an attempt.
enum Event<C, T, E> {
    /// The server has accepted the connection, which is not ready yet.
    Accepted,
    Connected(C),
    Answered(T),
    Failed(E),
}

impl<C, T, E> Attempt<C, T, E> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event<C, T, E>> {
        let event = match &mut self.stage {
            Progress::Connecting(stage) => {
                stage.as_mut().poll(context).map(|done| done.map_or_else(Event::Failed, Event::Connected))
            }
            Progress::Asking(stage) => {
                stage.as_mut().poll(context).map(|done| done.map_or_else(Event::Failed, Event::Answered))
            }
        };
        // Noted by the future that was polled.
        if event.is_pending() && self.accepted.take() { Poll::Ready(Event::Accepted) } else { event }
    }
}

/// Connects to each address and asks there, until one answers; returns its index and the answer. An attempt fails with `late`
/// when it has taken too long. Those that are not needed are dropped.
///
/// # Errors
/// The last failure, once all addresses were tried and none is awaited.
///
/// # Panics
/// Without an address.
#[doc(hidden)] // For the command line.
pub async fn first_answer<C, T, E>(
    addresses: &[Address],
    limit: Limit,
    late: impl Fn(&Address) -> E,
    connect: impl Fn(&Address, Accepted) -> Stage<C, E>,
    ask: impl Fn(C) -> Stage<T, E>,
) -> Result<(usize, T), E>
where
    C: Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    assert!(!addresses.is_empty(), "there is an address");
    let began = Instant::now();
    let patience = |usual| limit.patience(usual, addresses.len(), began);
    // Those that were not tried yet, and then those that have failed.
    let mut next: VecDeque<usize> = (0..addresses.len()).collect();
    let mut untried = addresses.len();
    let mut attempts: Vec<Attempt<C, T, E>> = Vec::new();
    let mut next_at = began;
    loop {
        if next_at <= Instant::now()
            && let Some(index) = next.pop_front()
        {
            untried = untried.saturating_sub(1);
            let (now, address, accepted) = (Instant::now(), &addresses[index], Accepted::default());
            let deadline = limit.deadline(now);
            let connecting = limited(deadline, late(address), connect(address, accepted.clone()));
            attempts.push(Attempt { index, deadline, accepted, stage: Progress::Connecting(connecting) });
            next_at = now + patience(CONNECT_PATIENCE);
        }
        let (position, event) = tokio::select! {
            biased;
            event = any(&mut attempts) => event,
            () = sleep_until(next_at), if !next.is_empty() => continue,
        };
        let is_latest = position + 1 == attempts.len();
        match event {
            Event::Accepted => {}
            Event::Connected(connection) => {
                let Attempt { index, deadline, .. } = attempts[position];
                let asking = limited(deadline, late(&addresses[index]), ask(connection));
                attempts[position].stage = Progress::Asking(asking);
            }
            Event::Answered(answer) => return Ok((attempts[position].index, answer)),
            Event::Failed(failure) => {
                next.push_back(attempts.remove(position).index);
                if untried == 0 && attempts.is_empty() {
                    return Err(failure);
                }
                next_at = Instant::now() + if untried > 0 { Duration::ZERO } else { RETRY_PAUSE };
                continue;
            }
        }
        if is_latest {
            next_at = Instant::now() + patience(ANSWER_PATIENCE);
        }
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
async fn any<C, T, E>(attempts: &mut [Attempt<C, T, E>]) -> (usize, Event<C, T, E>) {
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
    }

    const SERVES: Behaviour = Behaviour { accepts: Some(1), answers: Some(1), refuses: 0, handshake: 0 };
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

    /// Which address has answered, or what the last failure is; after how many milliseconds; and how many attempts were made.
    async fn race_within(
        limit: impl FnOnce(Instant) -> Limit,
        behaviours: &[Behaviour],
    ) -> (Result<usize, String>, u128, usize) {
        let addresses: Vec<Address> =
            (0..behaviours.len()).map(|number| format!("{number}:1").parse().unwrap()).collect();
        let tried = Mutex::new(vec![0; behaviours.len()]);
        let began = Instant::now();
        let outcome = first_answer(
            &addresses,
            limit(began),
            |address| format!("{address} is late"),
            |address, accepted| {
                let number = address.host().parse::<usize>().unwrap();
                let (behaviour, address) = (behaviours[number], address.to_string());
                let mut tried = tried.lock().unwrap();
                tried[number] += 1;
                let refuses = tried[number] <= behaviour.refuses;
                Box::pin(async move {
                    after(behaviour.accepts).await;
                    if refuses {
                        return Err(format!("{address} refuses"));
                    }
                    if behaviour.handshake > 0 {
                        accepted.note();
                        after(Some(behaviour.handshake)).await;
                    }
                    Ok(behaviour)
                })
            },
            |behaviour| {
                Box::pin(async move {
                    after(behaviour.answers).await;
                    Ok(())
                })
            },
        )
        .await;
        let tried = tried.lock().unwrap().iter().sum();
        (outcome.map(|(index, ())| index), began.elapsed().as_millis(), tried)
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
        assert_eq!(race_within(within(9000), &[FROZEN; 3]).await, (Err("2:1 is late".to_owned()), 9000, 3));
        assert_eq!(race_within(within(1000), &[VANISHED; 4]).await, (Err("3:1 is late".to_owned()), 1000, 4));
        assert_eq!(race_within(within(1500), &[FROZEN, FROZEN, SERVES]).await, (Ok(2), 1004, 3));
        assert_eq!(race_within(within(600), &[VANISHED, VANISHED, SERVES]).await, (Ok(2), 402, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_failure_is_reported_when_all_have_failed() {
        assert_eq!(race(&[REFUSES, REFUSES]).await, (Err("1:1 refuses".to_owned()), 2, 2));
        assert_eq!(race(&[REFUSES, FROZEN]).await, (Err("1:1 is late".to_owned()), 5001, 8));
        assert_eq!(race(&[VANISHED]).await, (Err("0:1 is late".to_owned()), 5000, 1));
        assert_eq!(race(&[FROZEN, REFUSES]).await, (Err("0:1 is late".to_owned()), 5000, 7));
    }
}
