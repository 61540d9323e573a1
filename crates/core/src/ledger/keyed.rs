//! Keyed leases, for clients that keep no connection (`docs/http.md`, "Leases"): a leased session with one grant, which is
//! found by its key alone. In everything else it is like any other leased session.
//!
//! The key of the session is a keyed hash of the client's key, so a client cannot choose the key of another client's session,
//! and no other client can attach to this one. The id of its only request is a keyed hash of what was requested, so
//! another request with the same key is detected, also after a restart, because the grant's record has the id.
//!
//! Invariants: a keyed lease is stored together with its grant, or when its request begins to wait, so a request that is
//! refused at once stores nothing; its lease is renewed when a request arrives, and never when one is answered.

use super::grants::{Queueing, Want};
use super::places::Purpose;
use super::replies::RequestKind;
use super::sessions::CachedReply;
use super::state::{Ledger, LedgerContext};
use crate::invariant::broken;
use crate::outcome::{Call, Opened, Outcome, Token};
use crate::state::Core;
use crate::time::{Moment, MonotonicMs};
use signalbox_model::{
    ConnectionId, EventKind, GrantId, LeaseKey, Namespace, Place, PlaceKey, Refusal, RequestId, RequestIds,
    SessionId, SessionKey,
};

/// The highest number of waiters that is counted for a position. Counting them takes about 50 µs.
const POSITION_MAX: usize = 10_000;

/// A request for a keyed lease.
#[derive(Clone, Copy, Debug)]
pub struct KeyedRequest<'a> {
    /// The client's secret.
    pub key: &'a LeaseKey,
    /// Everything that has to be the same in a repeated request, as one text.
    pub text: &'a [u8],
    /// The time to live in milliseconds.
    pub ttl_ms: u32,
    /// The label of the lease in listings.
    pub label: &'a [u8],
    /// The names, each once.
    pub wants: &'a [Want<'a>],
    /// How it waits.
    pub queueing: Queueing,
    /// The place in the queue that the client was told before a restart.
    pub place: Option<Place>,
}

/// The reason why a request for a keyed lease is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedRefusal {
    /// Something else was requested with this key.
    DifferentRequest,
    /// The client may not acquire every name of the lease.
    NotPermitted,
    /// The core refused it. [`Refusal::NoSuchSession`]: there is no such lease.
    Refused(Refusal),
}

impl From<Refusal> for KeyedRefusal {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A keyed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedLease {
    /// Its state.
    pub state: KeyedState,
    /// Its time to live in milliseconds.
    pub ttl_ms: u32,
    /// How long it lasts without a renewal, in milliseconds from the time that the caller gave.
    pub left_ms: u32,
    /// If it was revoked, what remains of its grace period, in milliseconds from that time.
    pub grace_ms: Option<u32>,
}

/// The state of a keyed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyedState {
    /// The request waits.
    Queued {
        /// From 1; 10,001 for all requests after the first 10,000.
        position: u32,
        /// Its place in the queue, if the place survives a restart.
        place: Option<Place>,
    },
    /// The store is writing the grant, or the waiting request.
    Storing,
    /// The lease holds everything that was requested.
    Held {
        /// The fencing token.
        grant: GrantId,
        /// The slots of each name, in the order of the request; empty if no semaphore has numbered slots.
        slots: Box<[Box<[u16]>]>,
        /// Whether the caller is the first to learn of the grant.
        is_new: bool,
    },
    /// The holder has done the work of the single flight in which the request waited. The lease holds nothing.
    Done,
    /// The request was refused, or the grant was revoked: the lease holds nothing.
    Over(Refusal),
}

/// The numbers of keyed leases by state. A lease is counted if a client has used it since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyedCounts {
    /// Waiting.
    pub queued: u64,
    /// Holding.
    pub held: u64,
    /// Holding, but revoked.
    pub revoking: u64,
}

impl Core {
    /// Sets the key of keyed hashes, unless there is one. A server without a store calls this before the first request for a
    /// keyed lease; a store has the key.
    pub fn set_place_key(&self, key: PlaceKey) {
        self.ledger().places.set_key_once(key);
    }

    /// Requests the grant of a keyed lease, opening the lease if there is none, and attaches the connection to it. Repeating the
    /// same request renews the lease, and keeps its grant or its place. [`Core::keyed_lease`] returns its state; the connection
    /// gets a message when that changes. A lease whose request is refused ends.
    pub fn acquire_keyed(
        &self,
        connection: ConnectionId,
        token: Token,
        request: KeyedRequest<'_>,
        now: Moment,
    ) -> Result<(), KeyedRefusal> {
        let number = SessionId::new(self.next_session());
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        let KeyedRequest { key, text, ttl_ms, label, wants, queueing, place } = request;
        let [a, b, c, d, e, f, g, h, ..] = ledger.keyed_hash(Purpose::Request, text);
        // A request id is not 0.
        let id = RequestId(u64::from_be_bytes([a, b, c, d, e, f, g, h]).max(1));
        let session = match ledger.find_keyed(key) {
            Some((session, key)) => {
                if ledger.keyed_request(session).is_some_and(|other| other != id) {
                    return Err(KeyedRefusal::DifferentRequest);
                }
                ledger.attach(session, connection, &key, place.is_some().into())?.renew(now.monotonic);
                ledger.redirect_opening((connection, token), session);
                session
            }
            None => {
                let opened = Opened { session: number, key: ledger.session_key(key), ttl_ms };
                ledger.begin_leased(connection, opened, label, now.monotonic, context)?;
                ledger.sessions.existing_mut(number).store_later();
                number
            }
        };
        ledger.sessions.existing_mut(session).set_keyed();
        let call = Call { connection, ids: only(id), token };
        let outcome = ledger.acquire(call, wants, queueing, place, now.monotonic, context);
        if place.is_some() {
            ledger.count_repetition(connection, context);
        }
        let refusal = match outcome {
            // The lease stays, so that a repeated request is told too that the work is done.
            Outcome::Refused(Refusal::Done) => return Ok(()),
            Outcome::Refused(refusal) => refusal,
            Outcome::Answered(_) | Outcome::Waiting => {
                let is_new = ledger.store_unstored(session, now.monotonic);
                // If the client were told the place before the session is stored, a restart would lose it.
                if let Some(reply_to) = ledger.sessions.reply_to(connection, token).filter(|_| is_new) {
                    ledger.answer_when_opened(reply_to, session);
                }
                ledger.journal.end_unit();
                return Ok(());
            }
        };
        // After a restart, and when the store works again, the client repeats the request with its place. So a stored
        // lease stays.
        let will_be_repeated = refusal == Refusal::ShuttingDown || ledger.keyed_request(session).is_none();
        if !will_be_repeated || !ledger.sessions.existing(session).is_stored() {
            ledger.end_keyed(session, now.monotonic, context);
        }
        Err(refusal.into())
    }

    /// Renews a keyed lease, and attaches the connection to it, which gets a message when the lease changes. `may`
    /// returns whether the client may acquire a name.
    pub fn renew_keyed(
        &self,
        connection: ConnectionId,
        token: Token,
        key: &LeaseKey,
        may: impl Fn(Namespace, &[u8]) -> bool,
        now: Moment,
    ) -> Result<(), KeyedRefusal> {
        let ledger = &mut *self.ledger();
        let (session, key) = ledger.find_keyed(key).ok_or(Refusal::NoSuchSession)?;
        // A request that waited before a restart has to be repeated with its place.
        let request = ledger.keyed_request(session).ok_or(Refusal::NoSuchSession)?;
        if !ledger.passes(session, may) {
            return Err(KeyedRefusal::NotPermitted);
        }
        ledger.attach(session, connection, &key, 0)?.renew(now.monotonic);
        ledger.redirect_opening((connection, token), session);
        ledger.sessions.existing_mut(session).set_keyed();
        let call = Call { connection, ids: only(request), token };
        if let Some(reply) = ledger.find_reply(connection, call.ids)?.1 {
            // If the request waits, the message about its outcome goes to this connection from now on.
            ledger.answer_again(session, reply, RequestKind::Grant, call, now.monotonic);
        }
        Ok(())
    }

    /// Returns whether `may` is true for every name of a keyed lease, or there is no such lease.
    pub fn keyed_names_pass(&self, key: &LeaseKey, may: impl Fn(Namespace, &[u8]) -> bool) -> bool {
        let ledger = &*self.ledger();
        ledger.find_keyed(key).is_none_or(|(session, _)| ledger.passes(session, may))
    }

    /// The state of a keyed lease; its times count from `from`. `None`: there is no such lease, or its request has to be
    /// repeated after a restart.
    pub fn keyed_lease(&self, key: &LeaseKey, from: MonotonicMs) -> Option<KeyedLease> {
        let ledger = &mut *self.ledger();
        let (session, _) = ledger.find_keyed(key)?;
        let state = ledger.sessions.existing(session);
        let (_, reply) = state.log().iter().next()?;
        let mut revoked = state.revoked();
        let state = match reply {
            CachedReply::Waiting(_) if ledger.sessions.opener(session).is_some() => KeyedState::Storing,
            CachedReply::Waiting(id) => {
                KeyedState::Queued { position: ledger.position(*id), place: ledger.place_of(session, *id) }
            }
            CachedReply::Committing => KeyedState::Storing,
            CachedReply::Granted(granted) => match ledger.grants.get(granted.grant) {
                Some(grant) => {
                    revoked = revoked.into_iter().chain(grant.revoked()).min();
                    let (grant, slots) = (granted.grant, granted.slots.clone());
                    KeyedState::Held {
                        grant,
                        slots,
                        is_new: !ledger.sessions.existing_mut(session).note_told(),
                    }
                }
                None => KeyedState::Over(Refusal::Revoked),
            },
            CachedReply::Done(Err(Refusal::Done)) => KeyedState::Done,
            CachedReply::Done(Err(refusal)) => KeyedState::Over(*refusal),
            CachedReply::Done(Ok(())) | CachedReply::Declared(_) => KeyedState::Over(Refusal::StaleRequest),
        };
        let (_, lease) = ledger.sessions.existing(session).lease()?;
        let grace_ms = revoked.map(|at| from.until(at));
        let left_ms = ledger.sessions.ttl_left_ms(session, from)?;
        Some(KeyedLease {
            state,
            ttl_ms: lease.ttl_ms(),
            left_ms: grace_ms.map_or(left_ms, |grace_ms| grace_ms.min(left_ms)),
            grace_ms,
        })
    }

    /// Closes a keyed lease; the key alone permits that. The answer comes as a message when the end is stored. `is_done`: if
    /// the lease holds its resource, the work of its single flight is done. [`Refusal::NotShared`]: it is held without a single
    /// flight, and nothing has changed.
    pub fn close_keyed(
        &self,
        connection: ConnectionId,
        token: Token,
        key: &LeaseKey,
        is_done: bool,
        now: Moment,
    ) -> Outcome {
        let ledger = &mut *self.ledger();
        let Some((session, key)) = ledger.find_keyed(key) else {
            return Outcome::Refused(Refusal::NoSuchSession);
        };
        let grant = ledger.sessions.existing(session).grants_newest_first().next();
        // Checked before the attachment: a refused release must not take the lease from the connection whose request
        // waits.
        if is_done
            && let Some(held) = grant.filter(|id| !ledger.grants.existing(*id).is_waiting())
            && let Err(refusal) = ledger.set_done(held)
        {
            return Outcome::Refused(refusal);
        }
        if let Err(refusal) = ledger.attach(session, connection, &key, 0) {
            return Outcome::Refused(refusal);
        }
        ledger.close_leased((connection, token), now.monotonic, self.context(now.unix))
    }

    /// Ends a keyed lease, unless it holds resources or waits for them.
    pub fn end_idle_keyed(&self, key: &LeaseKey, now: Moment) {
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        let Some((session, _)) = ledger.find_keyed(key) else { return };
        if ledger.sessions.existing(session).grant_count() == 0 {
            ledger.end_keyed(session, now.monotonic, context);
        }
    }

    /// Counts the keyed leases among at most `step` leased sessions after this one. Returns the last of them; `None`: there are
    /// no more.
    pub fn count_keyed(
        &self,
        after: Option<SessionId>,
        step: usize,
        counts: &mut KeyedCounts,
    ) -> Option<SessionId> {
        let ledger = &*self.ledger();
        let mut last = None;
        for (session, state) in ledger.sessions.leased_after(after).take(step) {
            last = Some(session);
            let Some(grant) = state.grants_newest_first().next().filter(|_| state.is_keyed()) else {
                continue;
            };
            let grant = ledger.grants.existing(grant);
            let count = match grant.is_waiting() {
                true => &mut counts.queued,
                false if state.revoked().or(grant.revoked()).is_some() => &mut counts.revoking,
                false => &mut counts.held,
            };
            *count += 1;
        }
        last
    }
}

impl Ledger {
    fn end_keyed(&mut self, session: SessionId, now: MonotonicMs, context: LedgerContext<'_>) {
        self.end_now(session, EventKind::Released, Refusal::Canceled, now, context);
        self.run_backlog(context);
    }

    /// The session of a keyed lease, and its key.
    fn find_keyed(&self, key: &LeaseKey) -> Option<(SessionId, SessionKey)> {
        let key = self.session_key(key);
        Some((self.sessions.with_key(&key)?, key))
    }

    fn session_key(&self, key: &LeaseKey) -> SessionKey {
        SessionKey(self.keyed_hash(Purpose::Session, &key.0))
    }

    fn keyed_hash(&self, purpose: Purpose, text: &[u8]) -> [u8; 16] {
        let hash = self.places.keyed_hash(purpose, text);
        hash.unwrap_or_else(|| broken(format_args!("the server has set the key of keyed leases")))
    }

    /// Returns whether `may` is true for every name of a session.
    fn passes(&self, session: SessionId, may: impl Fn(Namespace, &[u8]) -> bool) -> bool {
        let mut grants = self.sessions.existing(session).grants_after(None);
        grants.all(|id| self.names_pass(self.grants.existing(id), &may))
    }

    /// The id of the only request of a keyed lease; `None`: it has to be repeated after a restart.
    fn keyed_request(&self, session: SessionId) -> Option<RequestId> {
        self.sessions.existing(session).log().iter().next().map(|(id, _)| id)
    }

    /// The position of a waiter in the queue in which it waits, from 1.
    fn position(&self, id: GrantId) -> u32 {
        let Some(part) = self.grants.existing(id).awaited() else { return 1 };
        let Some((namespace, object)) = part.object() else { return 1 };
        1 + self.queues.waiters_before(namespace, object, id, POSITION_MAX) as u32
    }
}

/// The ids of a call whose session has no other request.
fn only(request: RequestId) -> RequestIds {
    RequestIds { own: request, lowest_unanswered: request }
}
