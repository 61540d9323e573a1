//! One session: its label, its grants and waiters, its cached replies, and its end.

use std::mem;
use std::sync::Arc;

use super::{CachedReply, Ending, SessionKind, SessionState};
use crate::invariant::invariant;
use crate::ledger::leases::Lease;
use crate::limit::ClientKey;
use crate::mailbox::ReplyTo;
use crate::mailbox::SessionClient;
use crate::outcome::Token;
use crate::request_log::RequestLog;
use crate::ring_map::RingMap;
use crate::time::MonotonicMs;
use signalbox_model::{EventKind, GrantId, Refusal, SessionKey};

/// The size of a leased session with its entries in the tables of the ledger, in bytes, rounded up.
const LEASED_SESSION_BYTES: usize = 1024;

impl SessionState {
    pub(super) fn new(kind: SessionKind, label: &[u8]) -> Self {
        let mut state = Self {
            kind,
            label: label.into(),
            grants: RingMap::default(),
            waiting: 0,
            bytes: 0,
            owner: None,
            log: RequestLog::default(),
            tokens: RingMap::default(),
            revoked: None,
            deadline: None,
            ending: None,
            is_keyed: false,
            is_told: false,
            is_stored: true,
        };
        state.bytes = state.own_bytes();
        state
    }

    /// The bytes that a leased session by itself counts against the memory share of its client; 0 for the session of a
    /// connection, because connections are limited themselves.
    pub(in crate::ledger) fn own_bytes(&self) -> usize {
        match self.kind {
            SessionKind::Connection { .. } => 0,
            SessionKind::Leased { .. } => LEASED_SESSION_BYTES + self.label.len(),
        }
    }

    pub(in crate::ledger) fn label(&self) -> &[u8] {
        &self.label
    }

    pub(in crate::ledger) fn owner(&self) -> Option<ClientKey> {
        self.owner
    }

    /// Sets the client whose shares the session counts against, and returns the previous one.
    pub(in crate::ledger) fn set_owner(&mut self, owner: Option<ClientKey>) -> Option<ClientKey> {
        mem::replace(&mut self.owner, owner)
    }

    /// Returns whether the session is leased, no connection is attached to it, and nothing is lost if it ends: it has
    /// no grants, no waiters, and no replies that the client may ask for again.
    pub(in crate::ledger) fn is_unused(&self) -> bool {
        matches!(self.kind, SessionKind::Leased { connection: None, .. })
            && self.grants.len() == 0
            && self.log.len() == 0
            && self.ending.is_none()
    }

    /// The key and the lease of a leased session.
    pub(in crate::ledger) fn lease(&self) -> Option<(&SessionKey, &Arc<Lease>)> {
        match &self.kind {
            SessionKind::Leased { key, lease, .. } => Some((key, lease)),
            SessionKind::Connection { .. } => None,
        }
    }

    /// Notes that a client has found the session by the key of its lease.
    pub(in crate::ledger) fn set_keyed(&mut self) {
        self.is_keyed = true;
    }

    pub(in crate::ledger) fn is_keyed(&self) -> bool {
        self.is_keyed
    }

    /// Notes that the client is told that its request was granted. Returns whether it was told before.
    pub(in crate::ledger) fn note_told(&mut self) -> bool {
        mem::replace(&mut self.is_told, true)
    }

    /// Lets the session be stored with the first change that depends on it, and not now.
    pub(in crate::ledger) fn store_later(&mut self) {
        self.is_stored = false;
    }

    /// Returns whether the session must still be stored. The caller stores it, so later calls return `false`.
    pub(in crate::ledger) fn take_unstored(&mut self) -> bool {
        !mem::replace(&mut self.is_stored, true)
    }

    pub(in crate::ledger) fn is_stored(&self) -> bool {
        self.is_stored
    }

    pub(in crate::ledger) fn revoked(&self) -> Option<MonotonicMs> {
        self.revoked
    }

    pub(in crate::ledger) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Begins the end of the session, unless it has begun. Returns the kind of its last events and the answer to its
    /// waiting requests.
    pub(in crate::ledger) fn begin_end(&mut self, why: EventKind, refusal: Refusal) -> (EventKind, Refusal) {
        let ending = self.ending.get_or_insert(Ending { why, refusal, closer: None });
        (ending.why, ending.refusal)
    }

    /// Sets the recipient of the answer to the request that closed the session. It is sent when the end is committed.
    pub(in crate::ledger) fn set_closer(&mut self, closer: ReplyTo) {
        if let Some(ending) = &mut self.ending {
            ending.closer = Some(closer);
        }
    }

    pub(in crate::ledger) fn take_closer(&mut self) -> Option<ReplyTo> {
        self.ending.as_mut()?.closer.take()
    }

    pub(in crate::ledger) fn add_grant(&mut self, id: GrantId) {
        self.grants.insert(id, ());
    }

    pub(in crate::ledger) fn add_waiter(&mut self, id: GrantId) {
        self.grants.insert(id, ());
        self.waiting += 1;
    }

    /// Notes that one of the waiters has become a grant.
    pub(in crate::ledger) fn waiter_granted(&mut self) {
        self.waiting -= 1;
    }

    pub(in crate::ledger) fn remove_grant(&mut self, id: GrantId) {
        self.grants.remove(id);
    }

    pub(in crate::ledger) fn remove_waiter(&mut self, id: GrantId) {
        self.grants.remove(id);
        self.waiting -= 1;
    }

    /// The number of its waiters.
    pub(in crate::ledger) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// The bytes that the session counts against the memory share of its client: itself, its cached replies, and what was added.
    pub(in crate::ledger) fn bytes(&self) -> usize {
        self.bytes + self.log.counted_bytes()
    }

    pub(in crate::ledger) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    pub(in crate::ledger) fn subtract_bytes(&mut self, bytes: usize) {
        invariant!(self.bytes >= bytes, "no more memory is subtracted from a session than was added");
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// The client that is attached to a leased session or was last; `None`: not known, or the session is not leased.
    pub(in crate::ledger) fn client(&self) -> Option<&SessionClient> {
        match &self.kind {
            SessionKind::Leased { client, .. } => client.as_ref(),
            SessionKind::Connection { .. } => None,
        }
    }

    /// When a leased session was opened; `None`: not known, or the session is not leased.
    pub(in crate::ledger) fn opened(&self) -> Option<MonotonicMs> {
        match &self.kind {
            SessionKind::Leased { opened, .. } => *opened,
            SessionKind::Connection { .. } => None,
        }
    }

    pub(in crate::ledger) fn has_grant(&self, id: GrantId) -> bool {
        self.grants.get(id).is_some()
    }

    /// The number of its grants and waiters.
    pub(in crate::ledger) fn grant_count(&self) -> usize {
        self.grants.len()
    }

    pub(in crate::ledger) fn grants_newest_first(&self) -> impl Iterator<Item = GrantId> {
        self.grants.iter().rev().map(|(id, ())| id)
    }

    /// Its grants and waiters with higher ids than this one.
    pub(in crate::ledger) fn grants_after(&self, after: Option<GrantId>) -> impl Iterator<Item = GrantId> {
        self.grants.after(after).map(|(id, ())| id)
    }

    pub(in crate::ledger) fn log(&self) -> &RequestLog<CachedReply> {
        &self.log
    }

    pub(in crate::ledger) fn log_mut(&mut self) -> &mut RequestLog<CachedReply> {
        &mut self.log
    }

    /// Adds a waiting request whose answer goes to the connection, with the token by which the connection identifies it.
    pub(in crate::ledger) fn add_token(&mut self, token: Token, waiter: GrantId) {
        self.tokens.insert(token, waiter);
    }

    /// Removes the token of a waiter, unless another request has it now.
    pub(in crate::ledger) fn remove_token(&mut self, token: Token, waiter: GrantId) {
        if self.tokens.get(token) == Some(&waiter) {
            self.tokens.remove(token);
        }
    }

    /// The waiter with this token.
    pub(in crate::ledger) fn waiter_of(&self, token: Token) -> Option<GrantId> {
        self.tokens.get(token).copied()
    }

    pub(in crate::ledger) fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Takes the first of the waiters whose answers go to the connection.
    pub(in crate::ledger) fn pop_token(&mut self) -> Option<GrantId> {
        self.tokens.pop_first().map(|(_, waiter)| waiter)
    }

    /// Takes all waiters whose answers go to the connection, in the order of their ids.
    pub(in crate::ledger) fn take_tokens(&mut self) -> Vec<GrantId> {
        let mut waiters: Vec<_> =
            std::mem::take(&mut self.tokens).into_iter().map(|(_, waiter)| waiter).collect();
        waiters.sort_unstable();
        waiters
    }
}
