//! Eviction: the holders of a semaphore that is removed at once are informed, and lose it after a grace period.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use super::backlog::{STEP_GRANTS, Task, TaskKind};
use super::removal::SEMAPHORES;
use super::state::{Ledger, LedgerContext};
use crate::mailbox::Mailbox;
use crate::state::Core;
use crate::time::{Moment, MonotonicMs};
use signalbox_model::{ConnectionId, GrantId, Notice, Refusal};

impl Core {
    /// Takes a step of the revocations of clients, or of the evictions from semaphores that are removed at once. Returns
    /// whether there is more to do.
    /// `mailbox_of` finds the mailbox of a connection: one that holds by plain Acquires when the grace period is over is
    /// closed.
    pub fn evict(&self, now: Moment, mailbox_of: impl Fn(ConnectionId) -> Option<Arc<Mailbox>>) -> bool {
        let mut ledger = self.ledger();
        if ledger.revoke_some_clients(now.monotonic) {
            return true;
        }
        let Some(holders) = ledger.evict_some(now.monotonic, self.context(now.unix)) else { return false };
        for connection in holders {
            // A connection that is being closed is not revoked again.
            if let Some(mailbox) = mailbox_of(connection).filter(|mailbox| !mailbox.is_closed()) {
                ledger.sessions.join(connection, None, &mailbox);
                ledger.revoke_connection(connection, now.monotonic);
            }
        }
        true
    }
}

impl Ledger {
    /// Takes a step of the evictions. Holders by grants have those revoked. Connections that hold by plain Acquires are
    /// informed, and returned when the grace period is over if they still hold: only their end takes the semaphore from
    /// them. `None`: there is nothing to do now.
    fn evict_some(&mut self, now: MonotonicMs, context: LedgerContext<'_>) -> Option<Vec<ConnectionId>> {
        self.backlog.wake_delayed(now);
        if let Some(Task::Disconnect(object, mut connections)) = self.backlog.pop(TaskKind::Disconnect) {
            let some = connections.drain(..connections.len().min(STEP_GRANTS));
            let holders = some.filter(|connection| object.is_held_by(*connection)).collect();
            if !connections.is_empty() {
                self.backlog.push_front(Task::Disconnect(object, connections));
            }
            return Some(holders);
        }
        let Some(Task::Evict(mut eviction)) = self.backlog.pop(TaskKind::Evict) else { return None };
        let (object, grace_ms) = (eviction.object.clone(), now.until(eviction.at));
        let from = eviction.after.map_or(Bound::Unbounded, Bound::Excluded);
        let grants = self.queues.grants(SEMAPHORES, &object, (from, Bound::Excluded(eviction.removed)));
        let some: Vec<_> = grants.take(STEP_GRANTS).collect();
        if let Some(last) = some.last() {
            eviction.after = Some(*last);
            for id in some {
                self.evict_grant(id, grace_ms, now, context);
            }
            self.backlog.push_front(Task::Evict(eviction));
            self.run_backlog(context);
            return Some(Vec::new());
        }
        let plain: Vec<_> = eviction.plain.by_ref().take(STEP_GRANTS).collect();
        if !plain.is_empty() {
            let at = eviction.at;
            self.backlog.push_front(Task::Evict(eviction));
            let holders: VecDeque<_> =
                plain.into_iter().filter(|connection| object.is_held_by(*connection)).collect();
            if grace_ms > 0 {
                for connection in &holders {
                    let session = connection.session();
                    self.sessions
                        .send(*connection, Notice::SessionRevoked { session: session.number(), end: at });
                }
            }
            if !holders.is_empty() {
                self.backlog.push_delayed(at, Task::Disconnect(object, holders));
            }
        }
        Some(Vec::new())
    }

    fn evict_grant(&mut self, id: GrantId, grace_ms: u32, now: MonotonicMs, context: LedgerContext<'_>) {
        // A waiter for several names has taken this one already.
        if self.grants.known(id).is_waiting() {
            self.refuse_waiter(id, Refusal::Removed, context);
        } else {
            self.revoke_known_grant(id, grace_ms, now, context);
        }
    }
}
