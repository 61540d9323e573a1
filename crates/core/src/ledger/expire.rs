//! Deadlines: waits that time out, grants that were revoked, sessions that expire; and the shutdown.

use std::task::Waker;

use super::backlog::{STEP_GRANTS, TIMELESS_KINDS, TaskKind};
use super::state::{Ledger, LedgerContext};
use crate::state::Core;
use crate::time::{Due, Moment, MonotonicMs};
use signalbox_model::{EventKind, GrantId, Notice, Refusal, SessionId};

impl Core {
    /// Runs a step that ends what is due: waits, leases and grace periods. Returns whether there is more to do at once.
    /// The server calls this whenever something is due, and every [`TICK_MS`](crate::TICK_MS) in any case: a pause of
    /// three times that or more counts as time in which the server could receive nothing, and extends every lease.
    pub fn expire(&self, now: Moment) -> bool {
        // Not `||`: both run a step.
        self.sysv().expire(now) | self.ledger().expire(now.monotonic, self.context(now.unix))
    }

    /// Returns when something is due next. `sleeper` is woken once if something is added that is due earlier.
    pub fn next_due(&self, sleeper: &Waker) -> Option<Due> {
        let due = {
            let ledger = &mut *self.ledger();
            let due = ledger.next_timeout().into_iter().chain(ledger.backlog.due()).min();
            ledger.alarm.set(due, sleeper.clone());
            due
        };
        due.into_iter().chain(self.sysv().next_due(sleeper)).min()
    }

    /// Tells all clients that have sent a Hello that another node of the cluster is going to lead.
    pub fn announce_move(&self) {
        self.ledger().announce(Notice::Moved(()));
    }

    /// From now on, refuses new grants, sessions and waits. Answers the requests that wait, in steps. Returns whether there
    /// is more to do.
    pub fn shut_down(&self, now: Moment) -> bool {
        self.sysv().shut_down(now) | self.ledger().shut_down(self.context(now.unix))
    }
}

impl Ledger {
    /// Runs a step that ends what is due. Returns whether there is more to do at once.
    pub(super) fn expire(&mut self, now: MonotonicMs, context: LedgerContext<'_>) -> bool {
        self.sessions.tick(now);
        self.expire_window(now);
        self.expire_grants(now, context);
        self.time_out_idle_waits(now);
        self.expire_sessions(now, context);
        self.run_backlog(context);
        // Evictions and revocations of clients are left out: the server runs their steps by `Core::evict`, in turn with these.
        self.backlog.has_any_of(&TIMELESS_KINDS) || self.next_timeout().is_some_and(|due| due <= Due::At(now))
    }

    fn expire_grants(&mut self, now: MonotonicMs, context: LedgerContext<'_>) {
        let mut work = 0;
        while work < STEP_GRANTS
            && let Some(id) = self.grants.first_due(now)
        {
            work += self.work_of(id);
            if self.grants.existing(id).is_waiting() {
                self.counts.timed_out += 1;
                self.refuse_waiter(id, Refusal::TimedOut, context);
            } else {
                self.end_grant(id, EventKind::Revoked, context);
            }
        }
    }

    fn expire_sessions(&mut self, now: MonotonicMs, context: LedgerContext<'_>) {
        let mut work = 0;
        while work < STEP_GRANTS
            && let Some((deadline, session)) = self.sessions.first_due(now)
        {
            // The session ends later, because its lease was renewed or extended since.
            if let Some(end) = self.sessions.end_of(session).filter(|end| *end > deadline) {
                self.sessions.set_deadline(session, end);
                work += 1;
                continue;
            }
            work += self.next_end_step(session).1;
            if self.end_due_session(session, now, context) {
                // This session alone is work for more than one step.
                break;
            }
        }
    }

    /// Runs a step of the end of a session that expired or was revoked. Returns whether there is more to do.
    fn end_due_session(&mut self, session: SessionId, now: MonotonicMs, context: LedgerContext<'_>) -> bool {
        let state = self.sessions.existing(session);
        let is_revoked = state.revoked().is_some_and(|at| at <= now);
        if !state.is_ending() && !is_revoked {
            self.counts.expired_sessions += 1;
        }
        let (why, refusal) = if is_revoked {
            (EventKind::Revoked, Refusal::Revoked)
        } else {
            (EventKind::Expired, Refusal::NoSuchSession)
        };
        self.end_session(session, why, refusal, context)
    }

    /// When a grant, a session, an idle waiter or the reconnect window is due next.
    fn next_timeout(&self) -> Option<Due> {
        let deadlines = self.grants.next_deadline().into_iter().chain(self.sessions.next_deadline());
        let deadlines = deadlines.chain(self.places.window_end());
        deadlines.map(Due::At).chain(self.idle_waiters.due()).min()
    }

    /// Sends a notice to all connections that have joined.
    fn announce(&self, notice: Notice<MonotonicMs>) {
        let connections = self.sessions.iter().filter(|(_, state)| state.lease().is_none());
        for (session, _) in connections {
            self.sessions.send(session.connection(), notice);
        }
    }

    /// From now on, refuses new grants, sessions and waits. Announces that, and answers the requests that wait, in steps.
    /// Returns whether there is more to do.
    fn shut_down(&mut self, context: LedgerContext<'_>) -> bool {
        if self.shut_down_up_to.is_none() {
            self.announce(Notice::ShuttingDown);
        }
        let from = *self.shut_down_up_to.get_or_insert(GrantId(0));
        let some: Vec<_> = self.grants.ids_after(from).take(STEP_GRANTS).collect();
        for id in &some {
            if self.grants.existing(*id).is_waiting() {
                self.refuse_waiter(*id, Refusal::ShuttingDown, context);
            }
        }
        self.shut_down_up_to = some.last().copied().or(self.shut_down_up_to);
        let has_more = some.len() == STEP_GRANTS || self.shut_down_idle_waits();
        if !has_more {
            // No request waits.
            self.backlog.clear(TaskKind::ServeQueue);
            self.run_backlog(context);
        }
        has_more
    }
}
