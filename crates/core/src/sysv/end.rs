//! The ends of connections, processes, sets and waits, and the shutdown.

use std::sync::Arc;
use std::task::Waker;

use super::durable::SysvKey;
use super::set::{Completed, Set};
use super::state::Sysv;
use crate::state::Core;
use crate::time::{Due, Moment};
use signalbox_model::ConnectionId;
use signalbox_model::sysv::{Errno, ProcessId, SetId};

/// The number of calls whose wait one step ends.
const STEP_WAITERS: usize = 64;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The client's machine closed it: the program closed it, or has ended in any way.
    Closed,
    /// It was lost: the process may live.
    Lost,
}

impl Core {
    /// Detaches a connection that has ended. If it was the last one of a process, the process ends too, at once or
    /// later.
    pub fn leave_process(&self, connection: ConnectionId, how: ConnectionEnd, now: Moment) {
        self.sysv().disconnected(connection, how, now);
    }
}

impl Sysv {
    /// Detaches a connection that has ended. If it was the last one of its process, the process ends. If the
    /// connection was closed, it ends at once, or after the announced time if it replaces its program. If the connection
    /// was lost, it ends after its time to live.
    pub(crate) fn disconnected(&mut self, connection: ConnectionId, how: ConnectionEnd, now: Moment) {
        let Some(process) = self.forget_connection(connection) else { return };
        let Some(left) = self.processes.get(process).filter(|left| !left.is_connected()) else { return };
        let lives_on_ms = match how {
            ConnectionEnd::Lost => left.grace_ms.unwrap_or(0).max(left.record.ttl_ms),
            ConnectionEnd::Closed => left.grace_ms.unwrap_or(0),
        };
        if lives_on_ms == 0 && !self.end_process_step(process, now) {
            return;
        }
        let deadline = now.monotonic.after(lives_on_ms);
        self.processes.set_deadline(process, deadline);
        self.alarm.ring(Due::At(deadline));
    }

    /// Lets a connection leave its process for another one, as if it were closed.
    pub(super) fn leave_process(&mut self, connection: ConnectionId, now: Moment) {
        self.disconnected(connection, ConnectionEnd::Closed, now);
    }

    /// Detaches a connection from its process. Waiting calls stay in their queues, and their answers no longer go to it.
    fn forget_connection(&mut self, connection: ConnectionId) -> Option<ProcessId> {
        let (process, mailbox) = self.processes.acting(connection)?;
        let mailbox = Arc::clone(mailbox);
        if let Some(left) = self.processes.get(process) {
            for (set, waiter_id) in left.waiting().values() {
                let waiter = self.sets.get_mut(*set).and_then(|set| set.waiters.get_mut(*waiter_id));
                if let Some(waiter) = waiter {
                    waiter.reply_to.take_if(|to| Arc::ptr_eq(&to.mailbox, &mailbox));
                }
            }
        }
        self.processes.detach(connection)
    }

    /// Runs a step of the end of a process: its waiting calls fail, and then the adjustments of one set are applied.
    /// The set that it began to adjust last comes first, as in the kernel. Returns whether there is more to do.
    pub(super) fn end_process_step(&mut self, process: ProcessId, now: Moment) -> bool {
        let Some(ending) = self.processes.get_mut(process) else { return false };
        let waiting: Vec<_> = ending.waiting().values().copied().collect();
        let pid = ending.record.pid;
        let set = ending.adjusts.pop_last();
        let is_last = ending.adjusts.is_empty();
        for (set, waiter_id) in waiting {
            self.fail(set, waiter_id, Errno::Intr, now);
        }
        let mut undone = None;
        if let Some((_, id)) = set
            && let Some(set) = self.sets.get_mut(id)
        {
            set.undo(process, pid, now.unix);
            undone = Some((id, set.completion(None)));
            self.store_set(id);
            self.store_undone(process, id, is_last);
        }
        if is_last {
            self.forget_stored(process);
            self.processes.remove(process);
        }
        self.journal.end_unit();
        if let Some((id, completion)) = undone {
            self.complete(id, completion, now);
        }
        !is_last
    }

    /// Removes a set, which the caller then passes to [`Self::clean_up_removed`].
    pub(super) fn remove(&mut self, id: SetId) -> Option<Set> {
        let set = self.sets.remove(id)?;
        if set.is_durable {
            self.delete(SysvKey::Set(id));
        }
        Some(set)
    }

    /// Fails the calls that wait for a removed set with EIDRM, and deletes its adjustments.
    pub(super) fn clean_up_removed(&mut self, id: SetId, mut set: Set) {
        while let Some(waiter_id) = set.waiters.first()
            && let Some(waiter) = set.waiters.remove(waiter_id)
        {
            self.finish_one(id, set.is_durable, Completed { waiter, waiter_id, result: Err(Errno::IdRm) });
        }
        for process in set.values.adjusters() {
            if set.is_durable {
                self.delete_alone(SysvKey::Adjustments(process, id));
            }
            if let Some(process) = self.processes.get_mut(process) {
                process.adjusts.retain(|_, adjusted| *adjusted != id);
            }
        }
    }

    /// Runs a step that ends what is due: waits that time out, and processes that end. Returns whether there is more to do at
    /// once.
    pub(crate) fn expire(&mut self, now: Moment) -> bool {
        for _ in 0..STEP_WAITERS {
            let due = self.timeouts.first().filter(|(deadline, ..)| *deadline <= now.monotonic);
            let Some((_, set, waiter_id)) = due.copied() else { break };
            self.fail(set, waiter_id, Errno::Again, now);
        }
        if let Some((deadline, process)) = self.processes.first_deadline()
            && deadline <= now.monotonic
        {
            self.end_process_step(process, now);
        }
        self.next_deadline().is_some_and(|due| due <= Due::At(now.monotonic))
    }

    fn next_deadline(&self) -> Option<Due> {
        let timeout = self.timeouts.first().map(|(deadline, ..)| *deadline);
        let end = self.processes.first_deadline().map(|(deadline, _)| deadline);
        timeout.into_iter().chain(end).min().map(Due::At)
    }

    /// Returns when something is due next, if ever. The alarm wakes `sleeper` if something is added that is due
    /// earlier.
    pub(crate) fn next_due(&mut self, sleeper: &Waker) -> Option<Due> {
        let due = self.next_deadline();
        self.alarm.set(due, sleeper.clone());
        due
    }

    /// Ends the waits for sets that are not durable, because the next server knows nothing of these sets: calls that wait for
    /// them fail with EIDRM, in steps, and so do calls that would wait from now on. Calls that wait for durable sets are not
    /// answered: clients repeat them to the next server, where they wait again. Returns whether there is more to do.
    pub(crate) fn shut_down(&mut self, now: Moment) -> bool {
        self.is_shutting_down = true;
        let waiting = self.processes.iter().flat_map(|(_, process)| process.waiting().values().copied());
        let waiting = waiting.filter(|(set, _)| !self.is_durable(*set));
        let some: Vec<_> = waiting.take(STEP_WAITERS).collect();
        for (set, waiter_id) in &some {
            self.fail(*set, *waiter_id, Errno::IdRm, now);
        }
        some.len() == STEP_WAITERS
    }
}
