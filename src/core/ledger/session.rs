//! Sessions: the own ones of connections, and leased ones, to which connections attach.

use std::sync::Arc;

use super::grant::{Phase, Reply};
use super::journal::Then;
use super::owner::{Attachment, OwnerKind};
use super::{
    Answer, EventKind, Lease, Ledger, Mailbox, Message, Moment, Notice, Opened, Outcome, Owner, Refusal,
    STEP_GRANTS, SessionId, SessionKey, World, left,
};
use crate::core::mailbox::Token;

impl Ledger {
    /// Takes up a connection's own session, which may now own grants.
    pub(in crate::core) fn join(
        &mut self,
        connection: SessionId,
        label: Option<&[u8]>,
        mailbox: &Arc<Mailbox>,
    ) {
        let owner =
            self.owners.entry(connection).or_insert_with(|| Box::new(Owner::own(Arc::clone(mailbox))));
        if let Some(label) = label {
            owner.label = label.into();
        }
    }

    /// Lets a connection go: its own session ends, and a leased one that was attached lives on without it. What it
    /// held is given back in steps; tells whether there is more to do.
    pub(in crate::core) fn leave(&mut self, connection: SessionId, world: World<'_>) -> bool {
        let more = self.end(connection, EventKind::Released, Refusal::Canceled, world);
        self.serve(world);
        more
    }

    /// Makes a leased session, attached to this connection.
    pub(in crate::core) fn open(
        &mut self,
        (connection, token): (SessionId, Token),
        opened: Opened,
        label: &[u8],
        world: World<'_>,
    ) -> Outcome {
        let Opened { session, key, ttl_ms } = opened;
        if let Err(refusal) = self.check_staying(connection).and_then(|()| self.check_open()) {
            return Outcome::Refused(refusal);
        }
        if self.stats.sessions >= self.limits.sessions_max as u64 {
            self.stats.limited += 1;
            return Outcome::Refused(Refusal::LimitReached);
        }
        let now_ms = world.now.monotonic_ms;
        let lease = Arc::new(Lease::new(ttl_ms, now_ms));
        let owner = Owner::leased(key, lease, Some(connection), label);
        self.detach(connection, Some(Refusal::NoSuchSession));
        self.owners.insert(session, Box::new(owner));
        self.stats.sessions += 1;
        self.set_attachment(connection, Attachment::To(session));
        self.end_session_at(now_ms + u64::from(ttl_ms), session);
        match self.mailbox_of(connection).cloned().filter(|_| self.journal.is_some()) {
            Some(mailbox) => {
                self.note_session(session, world);
                self.then(Then::Opened(session, Reply { mailbox, token }));
                Outcome::Waiting
            }
            None => Outcome::Answered(Answer::Opened(opened)),
        }
    }

    /// What is told of a session that was opened.
    pub(super) fn opened(&self, session: SessionId) -> Option<Answer> {
        match &self.owners.get(&session)?.kind {
            OwnerKind::Leased { key, lease, .. } => {
                Some(Answer::Opened(Opened { session, key: *key, ttl_ms: lease.ttl_ms() }))
            }
            OwnerKind::Own { .. } => None,
        }
    }

    /// Attaches a connection to a leased session; the connection that was attached before is told.
    pub(in crate::core) fn attach(
        &mut self,
        session: SessionId,
        connection: SessionId,
        key: &SessionKey,
        now: Moment,
    ) -> Result<Arc<Lease>, Refusal> {
        self.check_staying(connection)?;
        let owner = self.owners.get(&session).filter(|owner| owner.opens_with(key));
        let Some(OwnerKind::Leased { lease, connection: before, .. }) = owner.map(|owner| &owner.kind) else {
            return Err(Refusal::NoSuchSession);
        };
        let (lease, before) = (Arc::clone(lease), *before);
        lease.renew(now.monotonic_ms);
        if before == Some(connection) {
            return Ok(lease);
        }
        if let Some(before) = before {
            self.detach(before, Some(Refusal::NoSuchSession));
            self.set_attachment(before, Attachment::Lost);
            self.notify(before, Notice::AttachedElsewhere { session });
        }
        self.detach(connection, Some(Refusal::NoSuchSession));
        if let Some(owner) = self.owners.get_mut(&session)
            && let OwnerKind::Leased { connection: attached, .. } = &mut owner.kind
        {
            *attached = Some(connection);
        }
        self.set_attachment(connection, Attachment::To(session));
        if let Some(revoked_ms) = self.owners.get(&session).and_then(|owner| owner.revoked_ms) {
            let grace_ms = left(revoked_ms, now.monotonic_ms);
            self.notify(connection, Notice::SessionRevoked { session, grace_ms });
        }
        Ok(lease)
    }

    /// The lease of the session that a connection is attached to.
    pub(in crate::core) fn lease(&self, connection: SessionId) -> Result<Arc<Lease>, Refusal> {
        let Attachment::To(session) = self.attachment(connection) else {
            return Err(Refusal::NoSuchSession);
        };
        self.lease_of(session).cloned().ok_or(Refusal::NoSuchSession)
    }

    /// Ends the session that a connection is attached to. Afterwards the connection has its own.
    pub(in crate::core) fn close(
        &mut self,
        (connection, token): (SessionId, Token),
        world: World<'_>,
    ) -> Outcome {
        let attachment = self.attachment(connection);
        self.detach(connection, Some(Refusal::Canceled));
        let Attachment::To(session) = attachment else { return Outcome::Refused(Refusal::NoSuchSession) };
        let mailbox = self.mailbox_of(connection).cloned().filter(|_| self.journal.is_some());
        let is_told_later = mailbox.is_some();
        if let Some(owner) = self.owners.get_mut(&session) {
            owner.told_at_end = mailbox.map(|mailbox| Reply { mailbox, token });
        }
        if self.end(session, EventKind::Released, Refusal::Canceled, world) {
            self.end_session_at(world.now.monotonic_ms, session);
        }
        self.serve(world);
        if is_told_later { Outcome::Waiting } else { Outcome::Answered(Answer::Done) }
    }

    /// The session that owns what a connection asks for.
    pub(super) fn acting(&self, connection: SessionId) -> Result<SessionId, Refusal> {
        self.check_staying(connection)?;
        let session = match self.attachment(connection) {
            Attachment::None => connection,
            Attachment::To(session) => session,
            Attachment::Lost => return Err(Refusal::NoSuchSession),
        };
        let owner = self.owners.get(&session).filter(|owner| owner.ending.is_none());
        owner.map(|_| session).ok_or(Refusal::NoSuchSession)
    }

    /// Whether a connection's own session is not being taken away, step by step: what it asks for now would be lost.
    pub(super) fn check_staying(&self, connection: SessionId) -> Result<(), Refusal> {
        if self.ending(connection).is_some() { Err(Refusal::NoSuchSession) } else { Ok(()) }
    }

    pub(super) fn attachment(&self, connection: SessionId) -> Attachment {
        match self.owners.get(&connection).map(|owner| &owner.kind) {
            Some(OwnerKind::Own { attachment, .. }) => *attachment,
            _ => Attachment::Lost,
        }
    }

    pub(super) fn set_attachment(&mut self, connection: SessionId, to: Attachment) {
        if let Some(owner) = self.owners.get_mut(&connection)
            && let OwnerKind::Own { attachment, .. } = &mut owner.kind
        {
            *attachment = to;
        }
    }

    /// Lets go of the leased session that a connection is attached to. Its requests that wait are no more answered
    /// here but stay where they stand; where the connection is still there, it is told so for each.
    pub(super) fn detach(&mut self, connection: SessionId, told: Option<Refusal>) {
        let attachment = self.attachment(connection);
        self.set_attachment(connection, Attachment::None);
        let Attachment::To(session) = attachment else { return };
        let Some(owner) = self.owners.get_mut(&session) else { return };
        if let OwnerKind::Leased { connection, .. } = &mut owner.kind {
            *connection = None;
        }
        if let Some(journal) = &mut self.journal {
            for storing in journal.storing_of(session) {
                tell(storing.reply.take(), told);
            }
        }
        let mut waiting: Vec<_> = std::mem::take(&mut owner.tokens).into_iter().map(|(_, id)| id).collect();
        waiting.sort_unstable();
        for id in waiting {
            let Some(grant) = self.grants.get_mut(&id) else { continue };
            if let Phase::Waiting { reply, .. } = &mut grant.phase {
                tell(reply.take(), told);
            }
        }
    }

    /// Forgets that requests which wait are to be answered to a connection that has ended, some a step. Tells whether
    /// there are more.
    pub(super) fn forget_replies_to(&mut self, connection: SessionId) -> bool {
        let Attachment::To(session) = self.attachment(connection) else { return false };
        for _ in 0..STEP_GRANTS {
            let Some(owner) = self.owners.get_mut(&session) else { return false };
            let Some((_, id)) = owner.tokens.pop_first() else { return false };
            if let Some(grant) = self.grants.get_mut(&id)
                && let Phase::Waiting { reply, .. } = &mut grant.phase
            {
                *reply = None;
            }
        }
        true
    }

    pub(super) fn notify(&self, connection: SessionId, notice: Notice) {
        if let Some(mailbox) = self.mailbox_of(connection) {
            mailbox.put(Message::Notice(notice));
        }
    }

    /// Tells the connection that a session has, where it has one.
    pub(super) fn notify_session(&self, session: SessionId, notice: Notice) {
        if let Some(connection) = self.connection_of(session) {
            self.notify(connection, notice);
        }
    }

    /// The mailbox of a connection, known by its own session.
    pub(super) fn mailbox_of(&self, connection: SessionId) -> Option<&Arc<Mailbox>> {
        match &self.owners.get(&connection)?.kind {
            OwnerKind::Own { mailbox, .. } => Some(mailbox),
            OwnerKind::Leased { .. } => None,
        }
    }

    /// The lease of a session, where it has one.
    pub(super) fn lease_of(&self, session: SessionId) -> Option<&Arc<Lease>> {
        match &self.owners.get(&session)?.kind {
            OwnerKind::Leased { lease, .. } => Some(lease),
            OwnerKind::Own { .. } => None,
        }
    }

    /// The own session of the connection that a session has.
    pub(super) fn connection_of(&self, session: SessionId) -> Option<SessionId> {
        match &self.owners.get(&session)?.kind {
            OwnerKind::Own { .. } => Some(session),
            OwnerKind::Leased { connection, .. } => *connection,
        }
    }
}

/// Tells who waits for an answer that it comes no more.
fn tell(reply: Option<Reply>, told: Option<Refusal>) {
    if let Some((reply, refusal)) = reply.zip(told) {
        reply.answer(Err(refusal));
    }
}
