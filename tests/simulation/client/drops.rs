//! Futures that are dropped before they complete.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
pub enum DropPoint {
    /// Not before it completes.
    Never,
    /// After this many polls that returned `Pending`.
    AfterPolls(u32),
    /// After this time.
    After(Duration),
}

/// Drives a future to its result, or drops it at this point.
pub async fn run_until_dropped<T>(drop_point: DropPoint, future: impl Future<Output = T>) -> Option<T> {
    match drop_point {
        DropPoint::Never => Some(future.await),
        DropPoint::AfterPolls(0) => None,
        DropPoint::AfterPolls(polls) => Polled { future: pin!(future), left: polls }.await,
        DropPoint::After(span) => {
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
