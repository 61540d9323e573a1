//! All sessions: those of connections that use the ledger, and leased ones, to which connections attach.
//!
//! Invariants: an attachment is symmetric: a connection is attached to a leased session if and only if that session has
//! this connection; a session has at most one deadline, which its state contains; a leased session that is not ending has one;
//! `leased` and `by_key` contain all leased sessions.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::grants::{ALLOCATION_BYTES, CachedGrant};
use super::leases::{Gaps, Lease};
use crate::durable::AnswerRecord;
use crate::invariant::{broken, invariant};
use crate::limit::ClientKey;
use crate::mailbox::{Mailbox, Message, ReplyTo, SessionClient};
use crate::outcome::{Answer, Opened, Token};
use crate::request_log::{Reply, RequestLog};
use crate::ring_map::RingMap;
use crate::time::MonotonicMs;
use signalbox_model::{
    ConnectionId, DeclaredState, EventKind, GrantId, Notice, Refusal, RequestId, SessionId, SessionKey,
};

#[derive(Debug, Default)]
pub(super) struct Sessions {
    all: BTreeMap<SessionId, Box<SessionState>>,
    deadlines: BTreeSet<(MonotonicMs, SessionId)>,
    /// Leased sessions, by the first half of their keys.
    by_key: BTreeSet<(u64, SessionId)>,
    gaps: Gaps,
    leased: BTreeSet<SessionId>,
}

#[derive(Debug)]
pub(super) struct SessionState {
    kind: SessionKind,
    label: Box<[u8]>,
    /// The client whose shares it counts against: for a leased session, the one that attached to it last.
    owner: Option<ClientKey>,
    /// Its grants and waiters, by id, so that its end releases the newest first.
    grants: RingMap<GrantId, ()>,
    /// The number of its waiters.
    waiting: u32,
    /// The bytes that count against the memory share of its client.
    bytes: usize,
    log: RequestLog<CachedReply>,
    /// Waiting requests whose answers go to its connection, by the tokens with which the connection identifies them.
    tokens: RingMap<Token, GrantId>,
    /// When it ends because it was revoked.
    revoked: Option<MonotonicMs>,
    /// The time of its entry in `deadlines`.
    deadline: Option<MonotonicMs>,
    ending: Option<Ending>,
    /// Whether it is known to be a keyed lease (a lease over HTTP). Records do not say so: after a restart it is `false` until a
    /// request with the key arrives.
    is_keyed: bool,
    /// Whether the client of a keyed lease has been told that its request was granted.
    is_told: bool,
    /// Whether a store has its record, now or soon. `false`: it is stored with the first change that depends on it.
    is_stored: bool,
}

/// The cached reply to a request, or the state of a request that has no reply yet.
#[derive(Clone, Debug)]
pub(super) enum CachedReply {
    /// The request waits, under this id.
    Waiting(GrantId),
    Granted(Box<CachedGrant>),
    /// The request is done, and its reply waits for a commit.
    Committing,
    Done(Result<(), Refusal>),
    /// The states of declared semaphores. Boxed twice, since a box of a slice would make all other replies larger by a
    /// half.
    Declared(Box<Box<[DeclaredState]>>),
}

const _: () = assert!(size_of::<CachedReply>() <= 16);

impl CachedReply {
    pub(super) fn declared(states: impl Into<Box<[DeclaredState]>>) -> Self {
        Self::Declared(Box::new(states.into()))
    }

    /// The record of this reply; `None`: it is not stored.
    pub(super) fn record(&self, session: SessionId, request: RequestId) -> Option<AnswerRecord> {
        let Self::Declared(states) = self else { return None };
        Some(AnswerRecord { session, request, answer: states.as_ref().clone() })
    }

    /// Returns whether a store may have a reply to this request, now or soon. For a changed declaration, it may have
    /// one even if the client was answered [`Refusal::NotStored`].
    pub(super) fn may_be_stored(&self) -> bool {
        matches!(self, Self::Declared(_) | Self::Committing | Self::Done(Err(Refusal::NotStored)))
    }

    /// The answer that the client gets; `ttl_left_ms` is what remains of the session's lease.
    pub(super) fn answer(self, ttl_left_ms: Option<u32>) -> Result<Answer, Refusal> {
        match self {
            Self::Granted(granted) => Ok(Answer::Granted(granted.answer(ttl_left_ms))),
            Self::Declared(states) => Ok(Answer::Declared(*states)),
            Self::Done(result) => result.map(|()| Answer::Done),
            Self::Waiting(_) | Self::Committing => Err(Refusal::StaleRequest),
        }
    }
}

impl Reply for CachedReply {
    fn bytes(&self) -> usize {
        match self {
            Self::Waiting(_) | Self::Committing | Self::Done(_) => 0,
            Self::Granted(granted) => granted.bytes(),
            Self::Declared(states) => {
                2 * ALLOCATION_BYTES + size_of::<Box<[DeclaredState]>>() + size_of_val::<[_]>(states)
            }
        }
    }
}

impl RequestLog<CachedReply> {
    /// The requests whose replies a store may have.
    pub(super) fn stored(&self) -> impl Iterator<Item = RequestId> {
        self.iter().filter(|(_, reply)| reply.may_be_stored()).map(|(request, _)| request)
    }

    /// The waiter of a request that waits.
    pub(super) fn waiting(&self, request: RequestId) -> Option<GrantId> {
        match self.get(request)? {
            CachedReply::Waiting(grant) => Some(*grant),
            _ => None,
        }
    }
}

#[derive(Debug)]
enum SessionKind {
    /// It ends with its connection.
    Connection { mailbox: Arc<Mailbox>, attachment: Attachment },
    /// It has a key and a time to live, and outlives connections.
    Leased {
        key: SessionKey,
        lease: Arc<Lease>,
        connection: Option<ConnectionId>,
        /// The client that is attached or was attached last; `None`: no client since the start of the server.
        client: Option<SessionClient>,
        /// When it was opened; `None`: before the start of the server.
        opened: Option<MonotonicMs>,
        /// Where the opening is answered, until it is stored and answered.
        opener: Option<ReplyTo>,
    },
}

/// The session that the requests of a connection are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// The connection's own.
    None,
    To(SessionId),
    /// One that ended or is attached to another connection: requests that were meant for it must not go elsewhere.
    Lost,
}

/// The state of a session that ends step by step. It acquires nothing more.
#[derive(Debug)]
struct Ending {
    /// The kind of its last events.
    why: EventKind,
    /// The answer to its waiting requests.
    refusal: Refusal,
    /// Where the request that closed it is answered, when its end is committed.
    closer: Option<ReplyTo>,
}

impl Sessions {
    /// Adds the session of a connection, or sets its label.
    pub(super) fn join(&mut self, connection: ConnectionId, label: Option<&[u8]>, mailbox: &Arc<Mailbox>) {
        let state = self.all.entry(connection.session()).or_insert_with(|| {
            let kind = SessionKind::Connection { mailbox: Arc::clone(mailbox), attachment: Attachment::None };
            Box::new(SessionState { owner: mailbox.owner(), ..SessionState::new(kind, &[]) })
        });
        if let Some(label) = label {
            state.label = label.into();
        }
    }

    /// Adds a leased session that was opened at this time, or that is restored and may have been revoked; its lease starts now.
    /// Returns when it ends without a renewal. The caller attaches a connection.
    pub(super) fn add_leased(
        &mut self,
        Opened { session, key, ttl_ms }: Opened,
        label: &[u8],
        opened: Option<MonotonicMs>,
        revoked: Option<MonotonicMs>,
        now: MonotonicMs,
    ) -> MonotonicMs {
        self.by_key.insert((key.first_half(), session));
        self.leased.insert(session);
        let lease = Arc::new(Lease::new(ttl_ms, now));
        let kind = SessionKind::Leased { key, lease, connection: None, client: None, opened, opener: None };
        let state = SessionState { revoked, ..SessionState::new(kind, label) };
        self.all.insert(session, Box::new(state));
        let end = revoked.map_or(now.after(ttl_ms), |revoked| revoked.min(now.after(ttl_ms)));
        self.set_deadline(session, end);
        end
    }

    /// Removes a session that has nothing left. If it is leased, the connection that is attached to it loses it. If it is the
    /// session of a connection, the connection must be detached.
    pub(super) fn remove(&mut self, session: SessionId) {
        let Some(state) = self.all.remove(&session) else { return };
        if let Some(deadline) = state.deadline {
            self.deadlines.remove(&(deadline, session));
        }
        match state.kind {
            SessionKind::Leased { key, connection, .. } => {
                self.by_key.remove(&(key.first_half(), session));
                self.leased.remove(&session);
                if let Some(connection) = connection {
                    self.set_attachment(connection, Attachment::Lost);
                }
            }
            SessionKind::Connection { attachment, .. } => {
                invariant!(
                    !matches!(attachment, Attachment::To(_)),
                    "connection {session} has left its leased session before it ends"
                );
            }
        }
    }

    /// The session with this id, if there is one: a client may name any id.
    pub(super) fn get(&self, session: SessionId) -> Option<&SessionState> {
        self.all.get(&session).map(AsRef::as_ref)
    }

    /// Like [`Self::get`], but mutable.
    pub(super) fn get_mut(&mut self, session: SessionId) -> Option<&mut SessionState> {
        self.all.get_mut(&session).map(AsMut::as_mut)
    }

    /// The session with this id, which exists because it has a grant, or because one of its requests was accepted.
    pub(super) fn existing(&self, session: SessionId) -> &SessionState {
        match self.all.get(&session) {
            Some(state) => state,
            None => unknown(session),
        }
    }

    /// Like [`Self::existing`], but mutable.
    pub(super) fn existing_mut(&mut self, session: SessionId) -> &mut SessionState {
        match self.all.get_mut(&session) {
            Some(state) => state,
            None => unknown(session),
        }
    }

    /// A session that a client names and that is not ending.
    pub(super) fn active(&self, session: SessionId) -> Result<&SessionState, Refusal> {
        self.get(session).filter(|state| !state.is_ending()).ok_or(Refusal::NoSuchSession)
    }

    /// The session that a connection's requests are for: its own, or the leased one that it is attached to.
    pub(super) fn acting(&self, connection: ConnectionId) -> Result<SessionId, Refusal> {
        self.check_not_ending(connection)?;
        let session = match self.attachment(connection) {
            Attachment::None => connection.session(),
            Attachment::To(session) => session,
            Attachment::Lost => return Err(Refusal::NoSuchSession),
        };
        self.active(session).map(|_| session)
    }

    /// Refuses requests of a connection whose own session is ending, or has ended because it was revoked: what they acquire would
    /// be lost.
    pub(super) fn check_not_ending(&self, connection: ConnectionId) -> Result<(), Refusal> {
        self.active(connection.session()).map(|_| ())
    }

    /// The answer to waiting requests of a session that is ending.
    pub(super) fn ending(&self, session: SessionId) -> Option<Refusal> {
        self.get(session)?.ending.as_ref().map(|ending| ending.refusal)
    }

    pub(super) fn is_leased(&self, session: SessionId) -> bool {
        self.get(session).is_some_and(|state| state.lease().is_some())
    }

    /// The number of leased sessions.
    pub(super) fn leased(&self) -> u64 {
        self.leased.len() as u64
    }

    /// The leased session that was opened last.
    pub(super) fn last_leased(&self) -> Option<SessionId> {
        self.leased.last().copied()
    }

    /// The leased sessions with higher ids than this one.
    pub(super) fn leased_after(
        &self,
        after: Option<SessionId>,
    ) -> impl Iterator<Item = (SessionId, &SessionState)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.leased.range((from, Bound::Unbounded));
        rest.map(|session| (*session, self.existing(*session)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, &SessionState)> {
        self.all.iter().map(|(session, state)| (*session, state.as_ref()))
    }
}

/// Connections, and the leased sessions that they are attached to.
impl Sessions {
    pub(super) fn attachment(&self, connection: ConnectionId) -> Attachment {
        match self.get(connection.session()).map(|state| &state.kind) {
            Some(SessionKind::Connection { attachment, .. }) => *attachment,
            _ => Attachment::Lost,
        }
    }

    /// The lease of a session, if this is its key.
    pub(super) fn lease_with_key(&self, session: SessionId, key: &SessionKey) -> Result<Arc<Lease>, Refusal> {
        // A session that is ending attaches no connection: what it would acquire would be lost.
        let matching = self.active(session)?.lease().filter(|(own, _)| *own == key);
        matching.map(|(_, lease)| Arc::clone(lease)).ok_or(Refusal::NoSuchSession)
    }

    /// Where the opening of a session is answered; `None`: it is stored and answered.
    pub(super) fn opener(&self, session: SessionId) -> Option<&ReplyTo> {
        match &self.get(session)?.kind {
            SessionKind::Leased { opener, .. } => opener.as_ref(),
            SessionKind::Connection { .. } => None,
        }
    }

    /// Like [`Self::opener`], to set it or to take it; `None`: the session does not exist, or is not leased.
    pub(super) fn opener_mut(&mut self, session: SessionId) -> Option<&mut Option<ReplyTo>> {
        match &mut self.get_mut(session)?.kind {
            SessionKind::Leased { opener, .. } => Some(opener),
            SessionKind::Connection { .. } => None,
        }
    }

    /// The leased session that was opened with this key; `None`: it does not exist, or is ending.
    pub(super) fn with_key(&self, key: &SessionKey) -> Option<SessionId> {
        let half = key.first_half();
        let found = self.by_key.range((half, SessionId::MIN)..).take_while(|(other, _)| *other == half);
        found.map(|(_, session)| *session).find(|session| self.lease_with_key(*session, key).is_ok())
    }

    /// Attaches a connection to a leased session. Both must be detached.
    pub(super) fn attach(&mut self, connection: ConnectionId, session: SessionId) {
        if let SessionKind::Leased { connection: attached, .. } = &mut self.existing_mut(session).kind {
            invariant!(attached.is_none(), "session {session} has one connection at a time");
            *attached = Some(connection);
        }
        self.set_attachment(connection, Attachment::To(session));
        self.note_client(connection);
    }

    /// Records the connection's client in the leased session that the connection is attached to, if there is one.
    pub(super) fn note_client(&mut self, connection: ConnectionId) {
        let Attachment::To(session) = self.attachment(connection) else { return };
        let attached = self.mailbox(connection).and_then(|mailbox| mailbox.client());
        if let SessionKind::Leased { client, .. } = &mut self.existing_mut(session).kind {
            *client = attached;
        }
    }

    /// Detaches a connection from its leased session, which is returned. The connection's requests are for its own session
    /// from now on.
    pub(super) fn detach(&mut self, connection: ConnectionId) -> Option<SessionId> {
        let attachment = self.attachment(connection);
        self.set_attachment(connection, Attachment::None);
        let Attachment::To(session) = attachment else { return None };
        if let SessionKind::Leased { connection, .. } = &mut self.existing_mut(session).kind {
            *connection = None;
        }
        Some(session)
    }

    /// Notes that a detached connection has lost its session to another connection.
    pub(super) fn lose(&mut self, connection: ConnectionId) {
        self.set_attachment(connection, Attachment::Lost);
    }

    /// Sets the attachment of a connection, unless the connection has ended.
    fn set_attachment(&mut self, connection: ConnectionId, to: Attachment) {
        if let Some(state) = self.all.get_mut(&connection.session())
            && let SessionKind::Connection { attachment, .. } = &mut state.kind
        {
            *attachment = to;
        }
    }

    /// The connection of a session, if it has one now.
    pub(super) fn connection_of(&self, session: SessionId) -> Option<ConnectionId> {
        match &self.get(session)?.kind {
            SessionKind::Connection { .. } => Some(session.connection()),
            SessionKind::Leased { connection, .. } => *connection,
        }
    }

    /// The client whose shares a connection counts against; `None`: it has ended, has not joined, or its client is not counted.
    pub(super) fn owner_of(&self, connection: ConnectionId) -> Option<ClientKey> {
        self.get(connection.session())?.owner
    }

    /// The mailbox of a connection; `None`: it has ended, or has not joined.
    pub(super) fn mailbox(&self, connection: ConnectionId) -> Option<&Arc<Mailbox>> {
        match &self.get(connection.session())?.kind {
            SessionKind::Connection { mailbox, .. } => Some(mailbox),
            SessionKind::Leased { .. } => None,
        }
    }

    /// Where a late answer to a connection's request goes.
    pub(super) fn reply_to(&self, connection: ConnectionId, token: Token) -> Option<ReplyTo> {
        let mailbox = Arc::clone(self.mailbox(connection)?);
        Some(ReplyTo { mailbox, token })
    }

    /// Sends a notice to a connection, unless it has ended.
    pub(super) fn send(&self, connection: ConnectionId, notice: Notice<MonotonicMs>) {
        if let Some(mailbox) = self.mailbox(connection) {
            mailbox.put(Message::Notice(notice));
        }
    }

    /// Sends a notice to the connection of a session, if it has one now.
    pub(super) fn send_to_session(&self, session: SessionId, notice: Notice<MonotonicMs>) {
        if let Some(connection) = self.connection_of(session) {
            self.send(connection, notice);
        }
    }
}

/// Leases and deadlines.
impl Sessions {
    /// Notes that the server checks for expired leases now. A long pause since the last check extends leases
    /// ([`Gaps::tick`]).
    pub(super) fn tick(&mut self, now: MonotonicMs) {
        self.gaps.tick(now);
    }

    /// Renews the leases of all restored sessions, and delays the ends of revoked ones by the time since they were restored.
    pub(super) fn begin_serving(&mut self, late_ms: u64, now: MonotonicMs) {
        for state in self.all.values_mut() {
            if let Some(revoked) = &mut state.revoked {
                revoked.0 += late_ms;
            }
            if let Some((_, lease)) = state.lease() {
                lease.renew(now);
            }
        }
    }

    /// The milliseconds from this time until a session's lease expires or its grace period ends, whichever is earlier;
    /// `None`: it has no lease.
    pub(super) fn ttl_left_ms(&self, session: SessionId, from: MonotonicMs) -> Option<u32> {
        let state = self.get(session)?;
        let expiry = self.gaps.expiry(state.lease()?.1);
        Some(from.until(state.revoked.map_or(expiry, |revoked| revoked.min(expiry))))
    }

    /// When a session ends unless its lease is renewed; `None`: it ends with its connection, or is ending already.
    pub(super) fn end_of(&self, session: SessionId) -> Option<MonotonicMs> {
        let state = self.active(session).ok()?;
        let expiry = state.lease().map(|(_, lease)| self.gaps.expiry(lease));
        expiry.into_iter().chain(state.revoked).min()
    }

    /// Revokes a session, so that it ends at this time. A second revocation may bring the end forward and never delays it.
    /// Returns when it ends. Fails with [`Refusal::NoSuchSession`] if it does not exist or is ending.
    pub(super) fn revoke_at(&mut self, session: SessionId, at: MonotonicMs) -> Result<MonotonicMs, Refusal> {
        let state = self.get_mut(session).filter(|state| !state.is_ending());
        let state = state.ok_or(Refusal::NoSuchSession)?;
        let at = state.revoked.map_or(at, |before| before.min(at));
        state.revoked = Some(at);
        Ok(at)
    }

    /// Replaces the deadline at which a session is checked.
    pub(super) fn set_deadline(&mut self, session: SessionId, at: MonotonicMs) {
        let before = self.existing_mut(session).deadline.replace(at);
        if let Some(before) = before {
            self.deadlines.remove(&(before, session));
        }
        self.deadlines.insert((at, session));
    }

    /// The first session whose deadline has passed, and its deadline.
    pub(super) fn first_due(&self, now: MonotonicMs) -> Option<(MonotonicMs, SessionId)> {
        self.deadlines.first().copied().filter(|(at, _)| *at <= now)
    }

    pub(super) fn next_deadline(&self) -> Option<MonotonicMs> {
        self.deadlines.first().map(|(at, _)| *at)
    }
}

impl Sessions {
    /// Fails with a description of an invariant that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        for (session, state) in self.iter() {
            let attached = match &state.kind {
                SessionKind::Leased { connection, .. } => {
                    connection.map(|connection| self.attachment(connection) == Attachment::To(session))
                }
                SessionKind::Connection { attachment: Attachment::To(leased), .. } => {
                    Some(self.connection_of(*leased) == Some(session.connection()))
                }
                SessionKind::Connection { .. } => None,
            };
            if attached == Some(false) {
                return Err(format!("the attachment of session {session} is not symmetric"));
            }
            if state.lease().is_some() && !state.is_ending() && state.deadline.is_none() {
                return Err(format!("leased session {session} never expires"));
            }
        }
        let deadline = |(session, state): (SessionId, &SessionState)| Some((state.deadline?, session));
        let expected: BTreeSet<_> = self.iter().filter_map(deadline).collect();
        if expected != self.deadlines {
            let wrong = expected.symmetric_difference(&self.deadlines).next();
            return Err(format!("deadline {wrong:?} of a session is missing or left over"));
        }
        let with_half = |(session, state): (SessionId, &SessionState)| {
            state.lease().map(|(key, _)| (key.first_half(), session))
        };
        if !self.iter().filter_map(with_half).collect::<BTreeSet<_>>().eq(&self.by_key) {
            return Err("a leased session is not found by its key, or one that ended is".to_owned());
        }
        let leased = self.iter().filter(|(_, state)| state.lease().is_some()).map(|(session, _)| session);
        if !leased.eq(self.leased.iter().copied()) {
            return Err("a leased session is missing in `leased`, or one that ended is there".to_owned());
        }
        Ok(())
    }
}

#[cold]
fn unknown(session: SessionId) -> ! {
    broken(format_args!("session {session} exists as long as the ledger refers to it"))
}
