//! Connections join and leave; leased sessions are opened, attached to and closed.

use std::sync::Arc;

use super::backlog::STEP_GRANTS;
use super::leases::Lease;
use super::sessions::Attachment;
use super::state::{Ledger, LedgerContext, OnCommit};
use crate::clients::Counted;
use crate::limit::limit_reached;
use crate::mailbox::{Mailbox, ReplyTo, SessionClient};
use crate::outcome::{Answer, Opened, Outcome, Token};
use crate::state::Core;
use crate::time::{Due, Moment, MonotonicMs};
use signalbox_model::{
    ConnectionId, EventKind, GrantId, Limit, Namespace, Notice, Refusal, SessionId, SessionKey,
};

/// The number of names that one call of [`Core::check_names`] checks.
const CHECKED_NAMES: usize = 256;

/// The result of [`Core::check_names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedNames {
    /// All names passed.
    All,
    /// The names of the session's grants up to this one passed. The next call continues after it.
    UpTo(GrantId),
    /// A name did not pass.
    Failed,
}

impl Core {
    /// Attaches a connection to a leased session. Another connection that was attached is informed and detached.
    /// `repetitions` is the number of requests that the client will repeat with their places in queues. The
    /// caller renews the lease.
    pub fn attach(
        &self,
        session: SessionId,
        connection: ConnectionId,
        key: &SessionKey,
        repetitions: u32,
    ) -> Result<Arc<Lease>, Refusal> {
        self.ledger().attach(session, connection, key, repetitions)
    }

    /// Notes that the client of a connection has proven another identity. The session that the connection is attached
    /// to is listed and revoked under that identity from now on.
    pub fn note_client(&self, connection: ConnectionId) {
        self.ledger().sessions.note_client(connection);
        self.sysv().note_client(connection);
    }

    /// Returns the client of a connection; `None`: the client is not known, or the connection has not joined or has
    /// ended.
    pub fn client_of(&self, connection: ConnectionId) -> Option<SessionClient> {
        self.ledger().sessions.mailbox(connection)?.client()
    }

    /// The lease of the session that the connection is attached to, if there is one.
    pub fn lease(&self, connection: ConnectionId) -> Option<Arc<Lease>> {
        self.ledger().acting_lease(connection).ok()
    }

    /// Runs a step that checks the names that the leased session of a connection holds or waits for, starting with the
    /// first grant after `after`. `passes` returns whether a name passes.
    pub fn check_names(
        &self,
        connection: ConnectionId,
        after: Option<GrantId>,
        passes: impl Fn(Namespace, &[u8]) -> bool,
    ) -> CheckedNames {
        let ledger = &*self.ledger();
        let Attachment::To(session) = ledger.sessions.attachment(connection) else {
            return CheckedNames::All;
        };
        let (mut checked, mut names) = (CheckedNames::All, 0);
        for id in ledger.sessions.existing(session).grants_after(after) {
            let grant = ledger.grants.existing(id);
            if !ledger.names_pass(grant, &passes) {
                return CheckedNames::Failed;
            }
            checked = CheckedNames::UpTo(id);
            names += grant.parts().len();
            if names >= CHECKED_NAMES {
                break;
            }
        }
        checked
    }

    /// Returns the remaining time of the lease of the session that the connection is attached to, in milliseconds.
    pub fn ttl_left_ms(&self, connection: ConnectionId, now: Moment) -> Result<u32, Refusal> {
        let ledger = &*self.ledger();
        let session = ledger.sessions.acting(connection)?;
        ledger.sessions.ttl_left_ms(session, now.monotonic).ok_or(Refusal::NoSuchSession)
    }

    /// Adds a connection; [`Self::leave`] ends it. It may request grants, and receives late answers through its mailbox.
    /// `label`, if there is one, names it in listings. A connection that was added before only gets the label.
    pub fn join(&self, connection: ConnectionId, label: Option<&[u8]>, mailbox: &Arc<Mailbox>) {
        self.ledger().sessions.join(connection, label, mailbox);
    }

    /// Opens a leased session with this key and attaches the connection to it (`docs/protocol.md`, "OpenSession"). If a
    /// session with the key exists, the request is a repetition: the connection is attached to that session, and its lease is not
    /// renewed. The answer has the number and the time to live of the session.
    pub fn open_leased(
        &self,
        connection: ConnectionId,
        key: SessionKey,
        ttl_ms: u32,
        label: &[u8],
        token: Token,
        now: Moment,
    ) -> Outcome {
        let session = SessionId::new(self.next_session());
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        if let Some(session) = ledger.sessions.with_key(&key) {
            if let Err(refusal) = ledger.attach(session, connection, &key, 0) {
                return Outcome::Refused(refusal);
            }
            let is_stored = !ledger.redirect_opening((connection, token), session);
            return if is_stored { ledger.opened(session).into() } else { Outcome::Waiting };
        }
        let opened = Opened { session, key, ttl_ms };
        if let Err(refusal) = ledger.begin_leased(connection, opened, label, now.monotonic, context) {
            return Outcome::Refused(refusal);
        }
        match ledger.sessions.reply_to(connection, token).filter(|_| ledger.journal.has_store()) {
            Some(reply_to) => {
                ledger.store_session(session, now.monotonic);
                ledger.answer_when_opened(reply_to, session);
                Outcome::Waiting
            }
            None => Outcome::Answered(Answer::Opened(opened)),
        }
    }

    /// Runs a step of the end of a connection: what its session holds is released; a leased session lives on. Returns
    /// whether there is more to do.
    pub fn leave(&self, connection: ConnectionId, now: Moment) -> bool {
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        let has_more =
            ledger.end_session(connection.session(), EventKind::Released, Refusal::Canceled, context);
        ledger.run_backlog(context);
        has_more
    }

    /// Renews the lease of the session that the connection is attached to (`docs/protocol.md`, "KeepAlive"). Returns
    /// how long it is valid from now on, in milliseconds.
    pub fn keep_alive(&self, connection: ConnectionId, now: Moment) -> Result<u32, Refusal> {
        self.ledger().acting_lease(connection)?.renew(now.monotonic);
        self.ttl_left_ms(connection, now)
    }

    /// Closes the leased session that the connection is attached to (`docs/protocol.md`, "CloseSession"). Afterwards
    /// the connection's requests are for its own session.
    pub fn close_leased(&self, connection: ConnectionId, token: Token, now: Moment) -> Outcome {
        self.ledger().close_leased((connection, token), now.monotonic, self.context(now.unix))
    }
}

impl Ledger {
    /// Closes the leased session that a connection is attached to.
    pub(super) fn close_leased(
        &mut self,
        (connection, token): (ConnectionId, Token),
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Outcome {
        let attachment = self.sessions.attachment(connection);
        self.detach(connection, Some(Refusal::Canceled));
        // A connection that has lost its session may now attach to another one.
        let Attachment::To(session) = attachment else { return Outcome::Refused(Refusal::NoSuchSession) };
        let closer = self.sessions.reply_to(connection, token).filter(|_| self.journal.has_store());
        let is_answered_later = closer.is_some();
        let (why, refusal) = (EventKind::Released, Refusal::Canceled);
        let state = self.sessions.existing_mut(session);
        state.begin_end(why, refusal);
        if let Some(closer) = closer {
            state.set_closer(closer);
        }
        self.end_now(session, why, refusal, now, context);
        self.run_backlog(context);
        if is_answered_later { Outcome::Waiting } else { Outcome::Answered(Answer::Done) }
    }

    /// Begins a leased session with a new key and attaches the connection to it. The caller stores it.
    pub(super) fn begin_leased(
        &mut self,
        connection: ConnectionId,
        opened: Opened,
        label: &[u8],
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<(), Refusal> {
        self.sessions.check_not_ending(connection)?;
        self.check_open()?;
        self.check_store()?;
        self.check_memory(connection)?;
        self.make_room_for_session(connection, context)?;
        self.detach(connection, Some(Refusal::NoSuchSession));
        let end = self.sessions.add_leased(opened, label, Some(now), None, now);
        self.attach_counted(connection, opened.session);
        self.alarm.ring(Due::At(end));
        Ok(())
    }

    /// Answers the opening of a session when everything so far is stored.
    pub(super) fn answer_when_opened(&mut self, reply_to: ReplyTo, session: SessionId) {
        self.sessions.opener_mut(session).map(|opener| opener.replace(reply_to));
        self.journal.on_commit(OnCommit::Opened(session));
    }

    /// Directs the answer to the opening of a session to this request, and cancels the earlier one. Returns `false`, and
    /// changes nothing, if the opening is stored already.
    pub(super) fn redirect_opening(
        &mut self,
        (connection, token): (ConnectionId, Token),
        session: SessionId,
    ) -> bool {
        let reply_to = self.sessions.reply_to(connection, token);
        let Some(reply_to) = reply_to.filter(|_| self.sessions.opener(session).is_some()) else {
            return false;
        };
        if let Some(before) = self.sessions.opener_mut(session).and_then(|opener| opener.replace(reply_to)) {
            before.send(Err(Refusal::Canceled));
        }
        true
    }

    /// Attaches a connection to a leased session, and informs the connection that was attached before
    /// (`docs/protocol.md`, "AttachSession"). `repetitions` is the number of requests that the client will
    /// repeat with their places. The caller renews the lease, if the client may acquire the names of the session.
    pub(super) fn attach(
        &mut self,
        session: SessionId,
        connection: ConnectionId,
        key: &SessionKey,
        repetitions: u32,
    ) -> Result<Arc<Lease>, Refusal> {
        self.sessions.check_not_ending(connection)?;
        let lease = self.sessions.lease_with_key(session, key)?;
        self.places.attached(session, repetitions);
        self.end_window_if_complete();
        let before = self.sessions.connection_of(session);
        if before == Some(connection) {
            return Ok(lease);
        }
        if let Some(before) = before {
            self.detach(before, Some(Refusal::NoSuchSession));
            self.sessions.lose(before);
            self.sessions.send(before, Notice::AttachedElsewhere { session: session.number() });
        }
        self.detach(connection, Some(Refusal::NoSuchSession));
        self.attach_counted(connection, session);
        if let Some(at) = self.sessions.existing(session).revoked() {
            self.sessions.send(connection, Notice::SessionRevoked { session: session.number(), end: at });
        }
        Ok(lease)
    }

    /// The lease of the session that a connection is attached to.
    fn acting_lease(&self, connection: ConnectionId) -> Result<Arc<Lease>, Refusal> {
        let Attachment::To(session) = self.sessions.attachment(connection) else {
            return Err(Refusal::NoSuchSession);
        };
        let (_, lease) = self.sessions.existing(session).lease().ok_or(Refusal::NoSuchSession)?;
        Ok(Arc::clone(lease))
    }

    /// The answer to the opening of a session.
    pub(super) fn opened(&self, session: SessionId) -> Result<Answer, Refusal> {
        let (key, lease) =
            self.sessions.get(session).and_then(|state| state.lease()).ok_or(Refusal::NoSuchSession)?;
        let opened = Opened { session, key: *key, ttl_ms: lease.ttl_ms() };
        Ok(Answer::Opened(opened))
    }

    /// Attaches a connection to a leased session, which counts against the shares of the connection's client from now
    /// on. Both must be detached.
    fn attach_counted(&mut self, connection: ConnectionId, session: SessionId) {
        self.sessions.attach(connection, session);
        let client = self.sessions.owner_of(connection);
        let state = self.sessions.existing_mut(session);
        let (before, waiters, bytes) = (state.set_owner(client), state.waiting() as usize, state.bytes());
        self.clients.remove_unused(before, session);
        if before != client {
            self.clients.subtract(before, Counted::Sessions, 1);
            self.clients.subtract(before, Counted::Waiters, waiters);
            self.clients.subtract(before, Counted::Bytes, bytes);
            self.clients.add(client, Counted::Sessions, 1);
            self.clients.add(client, Counted::Waiters, waiters);
            self.clients.add(client, Counted::Bytes, bytes);
        }
    }

    /// Checks that the client of a connection may open one more leased session. At a limit, its own oldest unused
    /// sessions end first.
    fn make_room_for_session(
        &mut self,
        connection: ConnectionId,
        context: LedgerContext<'_>,
    ) -> Result<(), Refusal> {
        let client = self.sessions.owner_of(connection);
        // Bounded: after the limit was lowered, there may be more excess sessions than one request may end.
        for _ in 0..STEP_GRANTS {
            let Err(refusal) = self.check_sessions(client) else { return Ok(()) };
            let Some(unused) = self.clients.pop_unused(client) else {
                self.counts.limited += 1;
                return Err(refusal);
            };
            // Since it was noted as unused, the session may have cached a reply, or begun to end.
            if self.sessions.existing(unused).is_unused() {
                self.counts.expired_sessions += 1;
                self.end_session(unused, EventKind::Expired, Refusal::NoSuchSession, context);
            }
        }
        self.counts.limited += 1;
        Err(limit_reached(Limit::Sessions, self.limits.sessions_max))
    }
}
