//! The alarm of the task that does what is due.
//!
//! Invariant: if something comes due earlier than the task last asked for, the task is woken once.

use std::task::Waker;

use crate::time::Due;

#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Sleeper>);

#[derive(Debug)]
struct Sleeper {
    /// When it wakes by itself; `None`: no wake-up is scheduled for the ledger.
    until: Option<Due>,
    waker: Waker,
}

impl Alarm {
    /// The task sleeps until then.
    pub(crate) fn set(&mut self, until: Option<Due>, waker: Waker) {
        self.0 = Some(Sleeper { until, waker });
    }

    /// Something is due then: wakes the task if it sleeps longer.
    pub(crate) fn ring(&mut self, due: Due) {
        if self.0.as_ref().is_some_and(|sleeper| sleeper.until.is_none_or(|until| due < until))
            && let Some(sleeper) = self.0.take()
        {
            sleeper.waker.wake();
        }
    }
}
