//! What an administrator takes away: a grant or a session, at once or after a grace.

use super::{
    Call, Done, EventKind, GrantId, Ledger, Notice, Outcome, Phase, Refusal, Remembered, SessionId, World,
    left,
};

impl Ledger {
    /// Takes a grant away when its grace is over, or ends its waiting at once.
    pub(in crate::core) fn revoke_grant(
        &mut self,
        call: Call,
        grant: GrantId,
        grace_ms: u32,
        world: World<'_>,
    ) -> Outcome {
        self.change(call, world, |ledger, _| {
            let is_durable = ledger.grants.get(&grant).is_some_and(|grant| ledger.is_durable(grant.session));
            ledger.revoke_grant_now(grant, grace_ms, world)?;
            ledger.serve(world);
            Ok(Done { outcome: Remembered::Done(Ok(())), is_durable })
        })
    }

    /// Takes a grant away, and leaves it to the caller to serve who waits for what it had.
    pub(super) fn revoke_grant_now(
        &mut self,
        id: GrantId,
        grace_ms: u32,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        let now_ms = world.now.monotonic_ms;
        let grant = self.grants.get_mut(&id).ok_or(Refusal::NotAcquired)?;
        self.stats.revoked += 1;
        match &mut grant.phase {
            Phase::Waiting { .. } => self.fail(id, Refusal::Revoked, world),
            Phase::Held { .. } if grace_ms == 0 => {
                let session = grant.session;
                self.give_back(id, EventKind::Revoked, world);
                self.notify_session(session, Notice::GrantRevoked { grant: id, grace_ms });
            }
            Phase::Held { revoked_ms, .. } => {
                let at_ms = now_ms + u64::from(grace_ms);
                // A second Revoke may hasten the end and never delays it.
                let before_ms = *revoked_ms;
                let at_ms = before_ms.map_or(at_ms, |before_ms| before_ms.min(at_ms));
                *revoked_ms = Some(at_ms);
                if let Some(before_ms) = before_ms {
                    self.grant_ends.remove(&(before_ms, id));
                }
                self.end_grant_at(at_ms, id);
                self.note_grant(id, world);
                self.notify_if_revoked(id, world);
            }
        }
        Ok(())
    }

    /// Tells the holder of a grant that it is going to be taken away, where it is.
    pub(super) fn notify_if_revoked(&self, id: GrantId, world: World<'_>) {
        if let Some(grant) = self.grants.get(&id)
            && let Phase::Held { revoked_ms: Some(at_ms), .. } = grant.phase
        {
            let grace_ms = left(at_ms, world.now.monotonic_ms);
            self.notify_session(grant.session, Notice::GrantRevoked { grant: id, grace_ms });
        }
    }

    /// Takes a session away when its grace is over, with all that it holds; a connection's own is closed with it.
    pub(in crate::core) fn revoke_session(
        &mut self,
        call: Call,
        session: SessionId,
        grace_ms: u32,
        world: World<'_>,
    ) -> Outcome {
        self.change(call, world, |ledger, _| {
            let is_durable = ledger.is_durable(session);
            let at_ms = ledger.revoke_session_later(session, grace_ms, world)?;
            if at_ms <= world.now.monotonic_ms {
                ledger.expire(world);
            }
            Ok(Done { outcome: Remembered::Done(Ok(())), is_durable })
        })
    }

    /// Has a session end by [`Self::expire`] when its grace is over, which is told.
    pub(in crate::core) fn revoke_session_later(
        &mut self,
        session: SessionId,
        grace_ms: u32,
        world: World<'_>,
    ) -> Result<u64, Refusal> {
        let now_ms = world.now.monotonic_ms;
        let at_ms = now_ms + u64::from(grace_ms);
        let owner = self.owners.get_mut(&session).filter(|owner| owner.ending.is_none());
        let owner = owner.ok_or(Refusal::NoSuchSession)?;
        let at_ms = owner.revoked_ms.map_or(at_ms, |before_ms| before_ms.min(at_ms));
        owner.revoked_ms = Some(at_ms);
        self.stats.revoked += 1;
        if self.is_durable(session) {
            self.note_session(session, world);
        }
        self.notify_session(session, Notice::SessionRevoked { session, grace_ms: left(at_ms, now_ms) });
        let due_ms = self.session_ends_ms(session).unwrap_or(at_ms);
        self.end_session_at(due_ms, session);
        Ok(at_ms)
    }
}
