//! Revocation: an administrator ends a grant or a session, at once or after a grace period.

use super::replies::Changed;
use super::{Ledger, LedgerContext};
use crate::core::Refusal;
use crate::core::ids::{ConnectionId, GrantId, SessionId};
use crate::core::mailbox::{EventKind, Notice};
use crate::core::outcome::{Call, Outcome};
use crate::core::time::{Due, MonotonicMs};

impl Ledger {
    /// Revokes a grant, or ends the wait of a waiter at once (`docs/protocol.md`, "Revoke").
    pub(in crate::core) fn revoke_grant(
        &mut self,
        call: Call,
        grant: GrantId,
        grace_ms: u32,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Outcome {
        self.change(call, now, |ledger, _| {
            let session = ledger.grants.get(grant).ok_or(Refusal::NotAcquired)?.session;
            let is_durable = ledger.is_durable(session);
            ledger.revoke_known_grant(grant, grace_ms, now, context);
            ledger.run_backlog(context);
            Ok(Changed::done(is_durable))
        })
    }

    /// Revokes a grant or a waiter that exists. The caller runs the backlog.
    pub(super) fn revoke_known_grant(
        &mut self,
        id: GrantId,
        grace_ms: u32,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        self.counts.revoked += 1;
        let grant = self.grants.known(id);
        let session = grant.session;
        if grant.is_waiting() {
            self.refuse_waiter(id, Refusal::Revoked, context);
        } else if grace_ms == 0 {
            self.end_grant(id, EventKind::Revoked, context);
            self.sessions.send_to_session(session, Notice::GrantRevoked { grant: id, grace_ms });
        } else {
            let at = self.grants.revoke_at(id, now.after(grace_ms));
            self.alarm.ring(Due::At(at));
            self.store_grant(id, now);
            self.send_revocation(id, now);
        }
    }

    /// Revokes a session, which ends with everything that it holds; the connection of a connection's session is closed
    /// with it (`docs/protocol.md`, "Revoke").
    pub(in crate::core) fn revoke_session(
        &mut self,
        call: Call,
        session: SessionId,
        grace_ms: u32,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Outcome {
        self.change(call, now, |ledger, _| {
            let is_durable = ledger.is_durable(session);
            let at = ledger.revoke_session_at(session, now.after(grace_ms), now)?;
            if at <= now {
                ledger.expire(now, context);
            }
            Ok(Changed::done(is_durable))
        })
    }

    /// Revokes a connection that holds a removed semaphore by plain Acquires: it is closed at once.
    pub(in crate::core) fn revoke_connection(&mut self, connection: ConnectionId, now: MonotonicMs) {
        // A connection whose session is ending holds nothing for long.
        let _ = self.revoke_session_at(connection.session(), now, now);
    }

    /// Has a session end at this time by [`Self::expire`], and informs its client. Returns when it ends.
    fn revoke_session_at(
        &mut self,
        session: SessionId,
        at: MonotonicMs,
        now: MonotonicMs,
    ) -> Result<MonotonicMs, Refusal> {
        let at = self.sessions.revoke_at(session, at)?;
        self.counts.revoked += 1;
        if self.is_durable(session) {
            self.store_session(session, now);
        }
        self.sessions.send_to_session(session, Notice::SessionRevoked { session, grace_ms: now.until(at) });
        let end = self.sessions.end_of(session).unwrap_or(at);
        self.sessions.set_deadline(session, end);
        self.alarm.ring(Due::At(end));
        Ok(at)
    }
}
