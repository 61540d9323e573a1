//! The use of sessions, waiters, watches and memory by each client, and its share of them (`docs/semantics.md`, "Shares
//! of clients").
//!
//! A leased session, and what waits in it, counts against the shares of the client that attached to it last. As long as
//! no connection has attached to it since a restart, it counts against none.

use std::collections::{BTreeMap, BTreeSet};

use super::idle_waiters::IDLE_WAITER_BYTES;
use super::sessions::SessionState;
use super::state::{Ledger, LedgerLimits};
use super::watches::Watch;
use crate::clients::Counted;
use crate::limit::{ClientKey, check_limit};
use crate::state::Core;
use signalbox_model::{ConnectionId, GrantId, Limit, Refusal, SessionId};

impl Core {
    /// Returns whether the client of a connection has used up its share of sessions: the next session that it opens
    /// replaces one that it does not use, or is refused.
    pub fn has_reached_session_share(&self, connection: ConnectionId) -> bool {
        let ledger = &*self.ledger();
        ledger.check_sessions(ledger.sessions.owner_of(connection)).is_err()
    }
}

impl Ledger {
    /// Notes that a session that was detached or lost a grant may end to make room for another one, if nothing would be
    /// lost with it.
    pub(super) fn note_if_unused(&mut self, session: SessionId) {
        let state = self.sessions.existing(session);
        if state.is_unused() {
            self.clients.add_unused(state.owner(), session);
        }
    }

    /// Stops counting a session that is about to be removed.
    pub(super) fn uncount_session(&mut self, session: SessionId) {
        let state = self.sessions.existing(session);
        self.clients.subtract(state.owner(), Counted::Bytes, state.bytes());
        if state.lease().is_some() {
            self.clients.remove_unused(state.owner(), session);
            self.clients.subtract(state.owner(), Counted::Sessions, 1);
        }
    }

    /// Counts more memory for a session.
    pub(super) fn add_bytes(&mut self, session: SessionId, bytes: usize) {
        let state = self.sessions.existing_mut(session);
        state.add_bytes(bytes);
        self.clients.add(state.owner(), Counted::Bytes, bytes);
    }

    /// Counts less memory for a session.
    pub(super) fn subtract_bytes(&mut self, session: SessionId, bytes: usize) {
        let state = self.sessions.existing_mut(session);
        state.subtract_bytes(bytes);
        self.clients.subtract(state.owner(), Counted::Bytes, bytes);
    }

    /// Refuses a request that needs memory once there is too little, or once the client of its connection has used up
    /// its share.
    pub(super) fn check_memory(&mut self, connection: ConnectionId) -> Result<(), Refusal> {
        self.check_memory_uncounted(connection).inspect_err(|_| self.counts.limited += 1)
    }

    /// Like [`Self::check_memory`], for a request whose refusal the caller counts.
    pub(super) fn check_memory_uncounted(&self, connection: ConnectionId) -> Result<(), Refusal> {
        let own = self.clients.count(self.sessions.owner_of(connection), Counted::Bytes);
        let LedgerLimits { memory, client_share, .. } = self.limits;
        memory.check(client_share, own)
    }

    /// Counts a waiter that a session adds.
    pub(super) fn count_waiter(&mut self, session: SessionId) {
        self.clients.add(self.sessions.existing(session).owner(), Counted::Waiters, 1);
    }

    /// Stops counting a waiter of a session that is granted or refused.
    pub(super) fn uncount_waiter(&mut self, session: SessionId) {
        self.clients.subtract(self.sessions.existing(session).owner(), Counted::Waiters, 1);
    }

    /// Checks that a client may have one more leased session.
    pub(super) fn check_sessions(&self, client: Option<ClientKey>) -> Result<(), Refusal> {
        let (all, own) = (self.sessions.leased() as usize, self.clients.count(client, Counted::Sessions));
        check_limit(Limit::Sessions, (self.limits.sessions_max, self.limits.client_share), all, own)
    }

    /// Checks that a waiter may join a queue with this many waiters. The waiter is counted already.
    pub(super) fn check_queue(&self, id: GrantId, waiting: usize) -> Result<(), Refusal> {
        let client = self.sessions.existing(self.grants.existing(id).session).owner();
        let own = self.clients.count(client, Counted::Waiters).saturating_sub(1);
        // A repeated waiter was in the queue before the restart, and keeps its place.
        let own = if self.places.is_repeated(id) { 0 } else { own };
        check_limit(Limit::Waiters, (self.limits.waiters_max, self.limits.client_share), waiting, own)
    }

    /// Checks that a connection's AwaitIdle request may wait for a name for which this many others wait.
    pub(super) fn check_idle_queue(&self, connection: ConnectionId, waiting: usize) -> Result<(), Refusal> {
        let own = self.clients.count(self.sessions.owner_of(connection), Counted::Waiters);
        check_limit(Limit::Waiters, (self.limits.waiters_max, self.limits.client_share), waiting, own)
    }

    /// Checks that a connection may begin one more watch.
    pub(super) fn check_watches(&self, connection: ConnectionId) -> Result<(), Refusal> {
        let own = self.clients.count(self.sessions.owner_of(connection), Counted::Watches);
        let limit = (self.limits.watches_max, self.limits.client_share);
        check_limit(Limit::Watches, limit, self.watches.len(), own)
    }

    /// Checks that the counts are those of everything that clients have, and that `clients` lists every unused session.
    pub(super) fn check_clients(&self) -> Result<(), String> {
        let sessions = self.sessions.iter().map(|(session, state)| {
            let watches = self.watches.ids_of(session.connection()).len();
            let waiters = state.waiting() as usize + self.idle_waiters.count_of(session.connection());
            (state.owner(), [usize::from(state.lease().is_some()), waiters, watches, state.bytes()])
        });
        self.clients.check(sessions)?;
        self.check_bytes()?;
        let found: BTreeSet<_> = self.clients.unused().collect();
        let unused = |(session, state): (SessionId, &SessionState)| {
            state.is_unused().then_some((state.owner()?, session))
        };
        // `clients` may list others too: a request that detaches its own session has its reply cached afterwards, so the
        // session is in use again.
        let lost = self.sessions.iter().filter_map(unused).find(|unused| !found.contains(unused));
        lost.map_or(Ok(()), |(_, session)| Err(format!("session {session} is unused and not found")))
    }

    /// Checks that the memory of each session is the sum over its grants, watches, waiting requests and replies.
    fn check_bytes(&self) -> Result<(), String> {
        let mut grants = BTreeMap::<SessionId, usize>::new();
        for (_, grant) in self.grants.iter() {
            *grants.entry(grant.session).or_default() += grant.bytes();
        }
        for (session, state) in self.sessions.iter() {
            let connection = session.connection();
            let watches = self.watches.ids_of(connection).into_iter().filter_map(|id| self.watches.get(id));
            let idle_bytes = self.idle_waiters.count_of(connection) * IDLE_WAITER_BYTES;
            let expected = state.own_bytes()
                + grants.get(&session).copied().unwrap_or(0)
                + watches.map(Watch::bytes).sum::<usize>()
                + idle_bytes
                + state.log().counted_bytes();
            state.log().check()?;
            if expected != state.bytes() {
                return Err(format!(
                    "session {session} has {expected} bytes, and {} are counted",
                    state.bytes()
                ));
            }
        }
        Ok(())
    }
}
