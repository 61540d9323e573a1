//! Wakes the task that processes deadlines when something is added that is due before the task would wake by itself.
//!
//! Invariant: after the task has said how long it sleeps, the first addition that is due earlier wakes it, and later ones
//! do not.

use std::task::Waker;

use crate::time::Due;

#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Sleeper>);

#[derive(Debug)]
struct Sleeper {
    /// When the task wakes by itself; `None`: nothing is due.
    until: Option<Due>,
    waker: Waker,
}

impl Alarm {
    /// Notes that the task sleeps until `until`.
    pub(crate) fn set(&mut self, until: Option<Due>, waker: Waker) {
        self.0 = Some(Sleeper { until, waker });
    }

    /// Wakes the task if it would sleep beyond `due`.
    pub(crate) fn ring(&mut self, due: Due) {
        if self.0.as_ref().is_some_and(|sleeper| sleeper.until.is_none_or(|until| due < until))
            && let Some(sleeper) = self.0.take()
        {
            sleeper.waker.wake();
        }
    }
}
