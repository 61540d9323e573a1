//! Futures that are dropped before they are done.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// When it is done.
    Whole,
    /// After as many polls that left it pending.
    Polls(u32),
    /// After so long.
    Time(Duration),
}

/// Drives a future until it is done, which gives what it comes to, or drops it.
pub async fn for_as_long_as<T>(patience: Patience, future: impl Future<Output = T>) -> Option<T> {
    match patience {
        Patience::Whole => Some(future.await),
        Patience::Polls(0) => None,
        Patience::Polls(polls) => Polled { future: pin!(future), left: polls }.await,
        Patience::Time(span) => {
            let (mut future, mut over) = (pin!(future), pin!(tokio::time::sleep(span)));
            tokio::select! {
                biased;
                done = &mut future => Some(done),
                () = &mut over => None,
            }
        }
    }
}

struct Polled<'a, F> {
    future: Pin<&'a mut F>,
    left: u32,
}

impl<F: Future> Future for Polled<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(done) = self.future.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        self.left -= 1;
        if self.left == 0 { Poll::Ready(None) } else { Poll::Pending }
    }
}
