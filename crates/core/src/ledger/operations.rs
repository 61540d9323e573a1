//! The operations of administrators, which [`Core::execute`] dispatches, with the steps of the two that may take long.
//! Revocation: an administrator ends a grant, a session or all leased sessions of a client, at once or after a grace
//! period. Eviction: the holders of a semaphore that is removed without waiting for them are informed, and lose it after
//! a grace period.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use super::backlog::{ClientRevocation, ClientSelector, STEP_GRANTS, Task, TaskKind};
use super::removal::SEMAPHORES;
use super::replies::Changed;
use super::sessions::SessionState;
use super::state::{Ledger, LedgerContext, OnCommit};
use crate::mailbox::Mailbox;
use crate::outcome::{Answer, Call, Executed, Outcome};
use crate::state::Core;
use crate::time::{Due, Moment, MonotonicMs};
use signalbox_model::{
    Cancellation, ConnectionId, EventKind, GrantId, Namespace, Notice, Operation, Refusal, Revocation,
    SessionId,
};

/// The number of sessions that one step of a revocation of clients visits.
const STEP_VISITS: usize = 4 * STEP_GRANTS;

impl Core {
    /// Executes an operation of an administrator. One that has request ids makes one change, however often it is sent.
    pub fn execute(&self, call: Call, operation: &Operation<'_>, now: Moment) -> Executed {
        let (monotonic, context) = (now.monotonic, self.context(now.unix));
        match *operation {
            Operation::Declare { if_exists, ref declarations } => {
                self.ledger().change(call, monotonic, |ledger, session| {
                    ledger.declare((call.connection, session), declarations, if_exists, monotonic, context)
                })
            }
            Operation::Resize { name, how, expected } => {
                self.ledger().change(call, monotonic, |ledger, session| {
                    ledger.resize(session, name, (how, expected), monotonic, context)
                })
            }
            Operation::Remove { name, how, expected } => {
                self.ledger().change(call, monotonic, |ledger, _| {
                    ledger.remove(name, (how, expected), monotonic, context)
                })
            }
            Operation::ChangeService { name, how, expected } => {
                self.ledger().change(call, monotonic, |ledger, session| {
                    ledger.change_service(session, name, (how, expected), monotonic, context)
                })
            }
            Operation::Revoke { what: Revocation::Grant(grant), grace } => {
                self.ledger().change(call, monotonic, |ledger, _| {
                    ledger.revoke_grant(grant, grace.0, monotonic, context)
                })
            }
            Operation::Revoke { what: Revocation::Session(session), grace } => {
                self.ledger().change(call, monotonic, |ledger, _| {
                    ledger.revoke_session(session, grace.0, monotonic, context)
                })
            }
            Operation::Revoke { what: Revocation::Addresses(addresses), grace } => {
                let clients = ClientSelector::Addresses(addresses);
                self.ledger().revoke_clients(call, clients, monotonic.after(grace.0))
            }
            // Identities are UTF-8, so other bytes select no client.
            Operation::Revoke { what: Revocation::Identity(identity), grace } => {
                let clients = ClientSelector::Identity(String::from_utf8_lossy(identity).into());
                self.ledger().revoke_clients(call, clients, monotonic.after(grace.0))
            }
            Operation::DeleteCounter { name } => {
                Executed::at_once(self.delete_counter(name).map(|()| Answer::Done))
            }
            Operation::Cancel(what) => Executed::at_once(
                self.cancel_waiting(what, now).map(|requests| Answer::Canceled { requests }),
            ),
        }
    }

    /// Deletes a counter that is not held and that no request waits for, with the peak of its interval.
    fn delete_counter(&self, name: &[u8]) -> Result<(), Refusal> {
        let ledger = self.ledger();
        let deleted = self.registry(Namespace::Counters).delete_unused(name)?;
        ledger.publish(Namespace::Counters, &deleted, EventKind::Removed, None, None, 0);
        Ok(())
    }

    /// Cancels waiting requests (`docs/protocol.md`, "CancelWaiting"), those of a session newest first, so that none of them
    /// is granted in between. Returns their number. Other requests are served between the steps.
    fn cancel_waiting(&self, what: Cancellation, now: Moment) -> Result<u64, Refusal> {
        let waiters = match what {
            Cancellation::Request(id) => vec![id],
            Cancellation::Session(session) => self.ledger().waiters_of(session)?,
        };
        let mut canceled = 0;
        for some in waiters.chunks(STEP_GRANTS) {
            let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
            for id in some {
                if ledger.grants.get(*id).is_some_and(|grant| grant.is_waiting()) {
                    ledger.refuse_waiter(*id, Refusal::Canceled, context);
                    canceled += 1;
                }
            }
            ledger.run_backlog(context);
        }
        match what {
            Cancellation::Request(_) if canceled == 0 => Err(Refusal::NotFound),
            _ => Ok(canceled),
        }
    }
}

impl Ledger {
    /// The waiting requests of a session, newest first.
    fn waiters_of(&self, session: SessionId) -> Result<Vec<GrantId>, Refusal> {
        let state = self.sessions.active(session)?;
        let is_waiting = |id: &GrantId| self.grants.existing(*id).is_waiting();
        Ok(state.grants_newest_first().filter(is_waiting).collect())
    }

    /// Revokes a grant (`docs/protocol.md`, "Revoke"): it ends after a grace period.
    fn revoke_grant(
        &mut self,
        grant: GrantId,
        grace_ms: u32,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        let session = self.grants.get(grant).ok_or(Refusal::NotAcquired)?.session;
        let is_durable = self.is_durable(session);
        self.revoke_existing_grant(grant, grace_ms, now, context);
        self.run_backlog(context);
        Ok(Changed::done(is_durable))
    }

    /// Revokes a session (`docs/protocol.md`, "Revoke"): it ends after a grace period. If it is the session of a
    /// connection, the connection must have joined, and is closed when the session ends.
    fn revoke_session(
        &mut self,
        session: SessionId,
        grace_ms: u32,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        let is_durable = self.is_durable(session);
        let at = self.revoke_session_at(session, now.after(grace_ms), now)?;
        if at <= now {
            self.expire(now, context);
        }
        Ok(Changed::done(is_durable))
    }

    /// Revokes the leased sessions to which these clients are attached or were attached last (`docs/protocol.md`,
    /// "RevokeClient" and "RevokeIdentity"): each ends at this time. The answer, which comes later, has their number.
    fn revoke_clients(&mut self, call: Call, clients: ClientSelector, at: MonotonicMs) -> Executed {
        if let Err(refusal) = self.sessions.check_not_ending(call.connection) {
            return Executed::at_once(Err(refusal));
        }
        let Some(reply_to) = self.sessions.reply_to(call.connection, call.token) else {
            return Executed::at_once(Err(Refusal::NoSuchSession));
        };
        let last = self.sessions.last_leased();
        let task = ClientRevocation { clients, at, after: None, last, revoked: 0, reply_to };
        self.backlog.push(Task::RevokeClients(task));
        self.alarm.ring(Due::Now);
        Executed { outcome: Outcome::Waiting, is_change: true }
    }

    /// Revokes a grant or a waiter that exists. The caller runs the backlog.
    fn revoke_existing_grant(
        &mut self,
        id: GrantId,
        grace_ms: u32,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        self.counts.revoked += 1;
        let grant = self.grants.existing(id);
        let session = grant.session;
        if grant.is_waiting() {
            self.refuse_waiter(id, Refusal::Revoked, context);
        } else if grace_ms == 0 {
            self.end_grant(id, EventKind::Revoked, context);
            self.sessions.send_to_session(session, Notice::GrantRevoked { grant: id, end: now });
        } else {
            let before = grant.revoked();
            let at = self.grants.revoke_at(id, now.after(grace_ms));
            if before != Some(at) {
                self.alarm.ring(Due::At(at));
                self.store_grant(id, now);
                self.journal.end_unit();
            }
            self.send_revocation(id);
        }
    }

    /// Tells the holder of a revoked grant when it ends. Does nothing if the grant is gone or was not revoked.
    pub(super) fn send_revocation(&self, id: GrantId) {
        let Some(grant) = self.grants.get(id) else { return };
        if let Some(at) = grant.revoked() {
            self.sessions.send_to_session(grant.session, Notice::GrantRevoked { grant: id, end: at });
        }
    }

    /// Runs a step of a revocation of clients. Returns whether there was a revocation.
    fn revoke_some_clients(&mut self, now: MonotonicMs) -> bool {
        let Some(Task::RevokeClients(mut task)) = self.backlog.pop(TaskKind::RevokeClients) else {
            return false;
        };
        let is_before_last = |session: &SessionId| task.last.is_some_and(|last| *session <= last);
        let rest = self.sessions.leased_after(task.after).take_while(|(session, _)| is_before_last(session));
        let (mut after, mut of_clients) = (None, Vec::new());
        for (session, state) in rest.take(STEP_VISITS) {
            after = Some(session);
            if state.client().is_some_and(|client| task.clients.selects(client)) {
                of_clients.push(session);
            }
            if of_clients.len() == STEP_GRANTS {
                break;
            }
        }
        for session in of_clients {
            // A session that is ending needs no revocation.
            task.revoked += u64::from(self.revoke_session_at(session, task.at.max(now), now).is_ok());
        }
        match after {
            Some(_) => {
                task.after = after;
                self.backlog.push_front(Task::RevokeClients(task));
            }
            None if self.journal.has_store() => {
                self.journal.on_commit(OnCommit::ClientsRevoked(task.revoked, task.reply_to));
            }
            None => task.reply_to.send(Ok(Answer::Revoked { sessions: task.revoked })),
        }
        true
    }

    /// Revokes a session, so that [`Self::expire`] ends it at this time, and informs its client. Returns when it ends.
    fn revoke_session_at(
        &mut self,
        session: SessionId,
        at: MonotonicMs,
        now: MonotonicMs,
    ) -> Result<MonotonicMs, Refusal> {
        let before = self.sessions.get(session).and_then(SessionState::revoked);
        let at = self.sessions.revoke_at(session, at)?;
        self.counts.revoked += 1;
        if self.is_durable(session) && before != Some(at) {
            self.store_session(session, now);
            self.journal.end_unit();
        }
        self.sessions.send_to_session(session, Notice::SessionRevoked { session: session.number(), end: at });
        let end = self.sessions.end_of(session).unwrap_or(at);
        self.sessions.set_deadline(session, end);
        self.alarm.ring(Due::At(end));
        Ok(at)
    }
}

impl Core {
    /// Runs a step of a revocation of clients or, if there is none, of an eviction. A connection that still holds the
    /// semaphore by plain Acquires when the grace period is over is closed; `mailbox_of` returns its mailbox. Returns
    /// whether there is more to do.
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
                // A connection whose session is ending holds nothing for long.
                let _ = ledger.revoke_session_at(connection.session(), now.monotonic, now.monotonic);
            }
        }
        true
    }
}

impl Ledger {
    /// Runs a step of an eviction. Grants are revoked. Connections that hold by plain Acquires are informed; those
    /// that still hold when the grace period is over are returned, so that the caller closes them. `None`: there is
    /// nothing to do now.
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
                // A waiter in this list has taken this name, and waits for others.
                if self.grants.existing(id).is_waiting() {
                    self.refuse_waiter(id, Refusal::Removed, context);
                } else {
                    self.revoke_existing_grant(id, grace_ms, now, context);
                }
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
}
