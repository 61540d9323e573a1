//! Whether a leader is reached. As long as it is not, the clients that wait for it take turns: one makes an attempt, and the
//! others wait for its outcome. So a leader that has failed costs one attempt at a time, however many clients wait.
//!
//! Invariant: nobody waits for a turn once the leader is reached, except for the moment in which those before it pass.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, MutexGuard};

/// Whether the leader of a term is reached.
#[derive(Debug, Default)]
pub struct Reach {
    /// Whether the last attempt has reached it; false before the first one.
    is_reached: AtomicBool,
    /// Held during a turn. Fair: those that wait have their turns in order.
    turn: Mutex<()>,
}

/// The permission to make an attempt. To be kept until the next one may be made.
#[derive(Debug)]
pub struct Turn<'a> {
    /// `None`: the leader is reached, so all may make attempts.
    _alone: Option<MutexGuard<'a, ()>>,
}

impl Reach {
    /// Waits until an attempt may be made.
    pub async fn turn(&self) -> Turn<'_> {
        if self.is_reached() {
            return Turn { _alone: None };
        }
        let alone = self.turn.lock().await;
        Turn { _alone: (!self.is_reached()).then_some(alone) }
    }

    /// An attempt has reached the leader, or has not.
    pub fn set(&self, is_reached: bool) {
        self.is_reached.store(is_reached, Ordering::Relaxed);
    }

    fn is_reached(&self) -> bool {
        self.is_reached.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_ready(turn: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        turn.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn one_at_a_time_tries_to_reach_a_leader() {
        let reach = Reach::default();
        let mut first = Box::pin(reach.turn());
        let std::task::Poll::Ready(turn) = first.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("the first one has to wait for nobody")
        };
        let mut second = pin!(async { drop(reach.turn().await) });
        let mut third = pin!(async { drop(reach.turn().await) });
        assert!(!is_ready(second.as_mut()) && !is_ready(third.as_mut()));
        // The attempt has failed.
        drop(turn);
        assert!(!is_ready(third.as_mut()), "it is not its turn");
        // The second attempt reaches the leader.
        reach.set(true);
        assert!(is_ready(second.as_mut()));
        assert!(is_ready(third.as_mut()));
        let (one, two) = (pin!(async { drop(reach.turn().await) }), pin!(async { drop(reach.turn().await) }));
        assert!(is_ready(one) && is_ready(two), "all may try");
    }
}
