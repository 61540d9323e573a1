//! Several addresses, of which some may not answer: the first one that does is used.
//!
//! They are tried in their order, and the next one as soon as one has failed. A machine that has vanished does not even refuse a
//! connection, and a frozen server accepts it and stays silent, so the next address is also tried, beside those before it, when
//! the last one takes long. A server that has accepted is given more time: a relay of a cluster in which no node leads is silent,
//! and is worth waiting for.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::Address;

/// How long an address may take to accept a connection before the next one is tried as well.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// How long it may take to answer after that.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// A part of an attempt.
pub(crate) type Stage<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// An attempt at one address.
struct Attempt<C, T, E> {
    /// Of the address.
    index: usize,
    deadline: Instant,
    stage: Progress<Stage<C, E>, Stage<T, E>>,
}

/// What an attempt does, or has done.
enum Progress<C, T> {
    Connecting(C),
    Asking(T),
}

impl<C, T, E> Attempt<C, T, E> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Progress<Result<C, E>, Result<T, E>>> {
        match &mut self.stage {
            Progress::Connecting(stage) => stage.as_mut().poll(context).map(Progress::Connecting),
            Progress::Asking(stage) => stage.as_mut().poll(context).map(Progress::Asking),
        }
    }
}

/// Connects to each address and asks there, until one answers; returns its index and the answer. An attempt fails with `late`
/// after `limit`. Those that are not needed are dropped.
///
/// # Errors
/// The last failure, if all addresses have failed.
///
/// # Panics
/// Without an address.
pub(crate) async fn first_answer<C, T, E>(
    addresses: &[Address],
    limit: Duration,
    late: impl Fn(&Address) -> E,
    connect: impl Fn(&Address) -> Stage<C, E>,
    ask: impl Fn(C) -> Stage<T, E>,
) -> Result<(usize, T), E>
where
    C: Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let mut untried = addresses.iter().enumerate();
    let mut attempts: Vec<Attempt<C, T, E>> = Vec::new();
    let mut next_at = Instant::now();
    let mut last_failure = None;
    loop {
        if next_at <= Instant::now() || attempts.is_empty() {
            if let Some((index, address)) = untried.next() {
                let now = Instant::now();
                let deadline = now + limit;
                let stage = Progress::Connecting(limited(deadline, late(address), connect(address)));
                attempts.push(Attempt { index, deadline, stage });
                next_at = now + CONNECT_PATIENCE;
            } else if attempts.is_empty() {
                return Err(last_failure.expect("there is an address"));
            }
        }
        let (place, progress) = tokio::select! {
            biased;
            progress = any(&mut attempts) => progress,
            () = sleep_until(next_at), if untried.len() > 0 => continue,
        };
        let Attempt { index, deadline, .. } = attempts[place];
        match progress {
            Progress::Connecting(Ok(connection)) => {
                let stage = limited(deadline, late(&addresses[index]), ask(connection));
                attempts[place].stage = Progress::Asking(stage);
                let is_latest = attempts.iter().all(|attempt| attempt.index <= index);
                if is_latest {
                    next_at = Instant::now() + ANSWER_PATIENCE;
                }
            }
            Progress::Asking(Ok(answer)) => return Ok((index, answer)),
            Progress::Connecting(Err(failure)) | Progress::Asking(Err(failure)) => {
                attempts.remove(place);
                last_failure = Some(failure);
                next_at = Instant::now();
            }
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

/// Waits until an attempt makes progress, and returns its place. Cancel safe.
async fn any<C, T, E>(attempts: &mut [Attempt<C, T, E>]) -> (usize, Progress<Result<C, E>, Result<T, E>>) {
    poll_fn(|context| {
        for (place, attempt) in attempts.iter_mut().enumerate() {
            if let Poll::Ready(progress) = attempt.poll(context) {
                return Poll::Ready((place, progress));
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
        fails: bool,
    }

    const SERVES: Behaviour = Behaviour { accepts: Some(1), answers: Some(1), fails: false };
    const VANISHED: Behaviour = Behaviour { accepts: None, answers: None, fails: false };
    const FROZEN: Behaviour = Behaviour { accepts: Some(1), answers: None, fails: false };
    const REFUSES: Behaviour = Behaviour { accepts: Some(1), answers: None, fails: true };

    /// A relay that waits for a leader for some time.
    const fn waits(ms: u64) -> Behaviour {
        Behaviour { accepts: Some(1), answers: Some(ms), fails: false }
    }

    async fn after(ms: Option<u64>) {
        match ms {
            Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            None => std::future::pending().await,
        }
    }

    /// Which address has answered, or what the last failure is; after how many milliseconds; and how many were tried.
    async fn race(behaviours: &[Behaviour]) -> (Result<usize, String>, u128, usize) {
        let addresses: Vec<Address> =
            (0..behaviours.len()).map(|number| format!("{number}:1").parse().unwrap()).collect();
        let tried = Mutex::new(0);
        let began = Instant::now();
        let behaviour = |address: &Address| {
            *tried.lock().unwrap() += 1;
            behaviours[address.host().parse::<usize>().unwrap()]
        };
        let outcome = first_answer(
            &addresses,
            LIMIT,
            |address| format!("{address} is late"),
            |address| {
                let (behaviour, address) = (behaviour(address), address.to_string());
                Box::pin(async move {
                    after(behaviour.accepts).await;
                    if behaviour.fails { Err(format!("{address} refuses")) } else { Ok(behaviour) }
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
        let tried = *tried.lock().unwrap();
        (outcome.map(|(index, ())| index), began.elapsed().as_millis(), tried)
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
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_failure_is_reported_when_all_have_failed() {
        assert_eq!(race(&[REFUSES, REFUSES]).await, (Err("1:1 refuses".to_owned()), 2, 2));
        assert_eq!(race(&[REFUSES, FROZEN]).await, (Err("1:1 is late".to_owned()), 5001, 2));
        assert_eq!(race(&[VANISHED]).await, (Err("0:1 is late".to_owned()), 5000, 1));
        assert_eq!(race(&[FROZEN, REFUSES]).await, (Err("0:1 is late".to_owned()), 5000, 2));
    }
}
