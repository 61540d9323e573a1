//! What [`Core`] does beyond the two documents: sessions, grants, queues, listings and watches. Each method locks the
//! ledger once; [`super::ledger`] has the rules.

use std::sync::Arc;
use std::task::Waker;

use super::invariant::lock;
use super::ledger::{
    Asked, GrantId, Lease, LedgerLimits, LedgerStats, Listed, Listing, Moment, Queueing, RequestIds, Scope,
    SessionKey, Waiting, Want, World,
};
use super::mailbox::{EventKind, Mailbox, Token};
use super::object::ObjectRef;
use super::visit::Visit;
use super::{Claim, Core, Namespace, Refusal, Session, SessionId, UnixSeconds};

impl Core {
    /// Sets the limits of sessions, grants, queues and watches; what is beyond a lowered limit stays.
    pub fn set_ledger_limits(&self, limits: LedgerLimits) {
        lock(&self.ledger).set_limits(limits);
    }

    /// Says what the ids of grants are above: so that they grow from one run of a server to the next.
    pub fn start_grants_after(&self, last_grant: u64) {
        lock(&self.ledger).start_after(last_grant);
    }

    /// Live figures of sessions, grants, queues and watches.
    pub fn ledger_stats(&self) -> LedgerStats {
        lock(&self.ledger).stats()
    }

    /// Takes up a connection, known by its own session: from now on it may ask for grants, and hears of them by its
    /// mailbox. A label, where there is one, is what listings call it from now on. Ended by [`Self::leave`].
    pub fn join(&self, connection: SessionId, label: Option<&[u8]>, mailbox: &Arc<Mailbox>) {
        lock(&self.ledger).join(connection, label, mailbox);
    }

    /// Lets a connection go that joined: what its own session holds is given back, step by step; a leased session
    /// lives on. Tells whether there is more to do.
    pub fn leave(&self, connection: SessionId, now: Moment) -> bool {
        lock(&self.ledger).leave(connection, self.world(now))
    }

    /// Makes a leased session and attaches the connection to it. Gives its number and its lease.
    pub fn open_leased(
        &self,
        connection: SessionId,
        key: SessionKey,
        ttl_ms: u32,
        label: &[u8],
        now: Moment,
    ) -> Result<(SessionId, Arc<Lease>), Refusal> {
        let session = self.next_session();
        let lease = lock(&self.ledger).open(session, connection, key, ttl_ms, label, now)?;
        Ok((session, lease))
    }

    /// Attaches a connection to a leased session; another that was attached is told and loses it.
    pub fn attach(
        &self,
        session: SessionId,
        connection: SessionId,
        key: &SessionKey,
        now: Moment,
    ) -> Result<Arc<Lease>, Refusal> {
        lock(&self.ledger).attach(session, connection, key, now)
    }

    /// The lease of the session that the connection is attached to, if it is to any.
    pub fn lease(&self, connection: SessionId) -> Option<Arc<Lease>> {
        lock(&self.ledger).lease(connection).ok()
    }

    /// Renews the lease of the session that the connection is attached to, and tells for how many milliseconds.
    pub fn keep_alive(&self, connection: SessionId, now: Moment) -> Result<u32, Refusal> {
        lock(&self.ledger).keep_alive(connection, now)
    }

    /// Ends the leased session that the connection is attached to.
    pub fn close_leased(&self, connection: SessionId, now: Moment) -> Result<(), Refusal> {
        lock(&self.ledger).close(connection, self.world(now))
    }

    /// Asks for a grant of one name or of several, all or nothing. No name may be wanted twice.
    pub fn acquire_grant(
        &self,
        connection: SessionId,
        ids: RequestIds,
        wants: &[Want<'_>],
        queueing: Queueing,
        token: Token,
        now: Moment,
    ) -> Asked {
        lock(&self.ledger).acquire(connection, ids, wants, queueing, token, self.world(now))
    }

    /// Gives back a grant of the connection's session.
    pub fn release_grant(
        &self,
        connection: SessionId,
        ids: RequestIds,
        grant: GrantId,
        now: Moment,
    ) -> Result<(), Refusal> {
        lock(&self.ledger).release(connection, ids, grant, self.world(now))
    }

    /// Ends the waiting of a request of the connection's session.
    pub fn cancel(&self, connection: SessionId, waiting: Waiting, now: Moment) -> Result<(), Refusal> {
        lock(&self.ledger).cancel(connection, waiting, self.world(now))
    }

    /// Whose a grant is, and for how many milliseconds its lease lasts; `None`: as long as the connection.
    pub fn verify(&self, grant: GrantId, now: Moment) -> Result<(SessionId, Option<u32>), Refusal> {
        lock(&self.ledger).verify(grant, now)
    }

    /// Takes a grant away after a grace.
    pub fn revoke_grant(
        &self,
        connection: SessionId,
        ids: RequestIds,
        grant: GrantId,
        grace_ms: u32,
        now: Moment,
    ) -> Result<(), Refusal> {
        lock(&self.ledger).revoke_grant(connection, ids, grant, grace_ms, self.world(now))
    }

    /// Takes a session away after a grace. A connection's own has to have joined; it is then closed.
    pub fn revoke_session(
        &self,
        connection: SessionId,
        ids: RequestIds,
        session: SessionId,
        grace_ms: u32,
        now: Moment,
    ) -> Result<(), Refusal> {
        lock(&self.ledger).revoke_session(connection, ids, session, grace_ms, self.world(now))
    }

    /// Does what is due at this time: waits, leases and graces that are over. In steps; tells whether there is more to
    /// do at once. To be called whenever something is due, and every [`super::TICK_MS`] in any case: a longer pause
    /// counts as time in which the server heard nobody, and is added to every lease.
    pub fn expire(&self, now: Moment) -> bool {
        lock(&self.ledger).expire(self.world(now))
    }

    /// When something is due next, in milliseconds of [`Moment::monotonic_ms`]. `alarm` is woken once when that comes
    /// to be earlier.
    pub fn next_due(&self, alarm: &Waker) -> Option<u64> {
        lock(&self.ledger).next_due(alarm)
    }

    /// Refuses new requests for grants, and answers those that wait, step by step; tells whether there is more to do.
    pub fn shut_down(&self, now: Moment) -> bool {
        lock(&self.ledger).shut_down(self.world(now))
    }

    /// Begins a listing of who holds a name, or of who waits for it.
    pub fn listing(&self, namespace: Namespace, name: &[u8], waiters: bool) -> Result<Listing, Refusal> {
        let exists = self.registry(namespace).find(name, |_| ());
        exists.map(|()| Listing::new(namespace, name, waiters)).ok_or(Refusal::NotFound)
    }

    /// The next entries of a listing; none at its end.
    pub fn list(&self, listing: &mut Listing) -> Vec<Listed> {
        let ledger = lock(&self.ledger);
        let (namespace, name) = listing.target();
        match self.registry(namespace).find(name, ObjectRef::clone) {
            Some(object) => ledger.list(listing, &object),
            None => Vec::new(),
        }
    }

    /// Begins to tell a connection what happens to names. The names that exist come first, by [`Self::show`].
    pub fn watch(
        &self,
        connection: SessionId,
        token: Token,
        namespace: Namespace,
        scope: Scope,
        now: Moment,
    ) -> Result<Tour, Refusal> {
        lock(&self.ledger).watch(connection, token, namespace, scope, self.world(now))?;
        Ok(Tour { connection, token, namespace, visit: Visit::default() })
    }

    /// Ends a watch.
    pub fn unwatch(&self, connection: SessionId, token: Token, now: Moment) -> Result<(), Refusal> {
        lock(&self.ledger).unwatch(connection, token, self.world(now))
    }

    /// Visits at most `names` names for a watch that begins. Tells whether there is more to do; while its reader has
    /// no room, nothing is done.
    pub fn show(&self, tour: &mut Tour, names: usize) -> bool {
        let registry = self.registry(tour.namespace);
        for _ in 0..names {
            let Some(object) = tour.visit.peek(registry) else {
                return lock(&self.ledger).go_live(tour.connection, tour.token);
            };
            let mut ledger = lock(&self.ledger);
            // It may have been collected since it was visited, and another made of its name.
            let Some(object) = registry.find(object.name(), ObjectRef::clone) else {
                tour.visit.advance();
                continue;
            };
            match ledger.show(tour.connection, tour.token, &object) {
                Some(true) => tour.visit.advance(),
                Some(false) => return true,
                None => return false,
            }
        }
        true
    }

    /// A plain Acquire of a name that is waited for or watched.
    #[cold]
    pub(super) fn acquire_supervised(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        session: &mut Session,
        now: UnixSeconds,
    ) -> Result<(), Refusal> {
        let ledger = lock(&self.ledger);
        let registry = self.registry(namespace);
        let found = registry.find(name, ObjectRef::clone);
        if found.is_some_and(|object| ledger.waiting(namespace, &object) > 0) {
            return Err(Refusal::NotAvailable);
        }
        let interval = self.interval(now);
        let done = registry.acquire_supervised(namespace, name, claim, session, interval);
        if let Some(object) = registry.find(name, ObjectRef::clone) {
            if done.is_ok() {
                let id = Some(session.id());
                ledger.tell_name(namespace, &object, EventKind::Granted, None, id, claim.resources());
            }
            ledger.let_go_unwatched(namespace, &object);
        }
        done
    }

    /// A plain Release of a name that is waited for or watched.
    #[cold]
    pub(super) fn release_supervised(
        &self,
        namespace: Namespace,
        name: &[u8],
        resources: u32,
        session: &mut Session,
        now: UnixSeconds,
    ) -> Result<(), Refusal> {
        let mut ledger = lock(&self.ledger);
        let registry = self.registry(namespace);
        let interval = self.interval(now);
        let found = registry.find(name, ObjectRef::clone);
        registry.release_supervised(namespace, name, resources, session, interval)?;
        if let Some(object) = found {
            ledger.after_release(namespace, &object, session.id(), resources, self.plain_world(now));
        }
        Ok(())
    }

    /// Gives back what a session that has ended holds of a name that is waited for or watched.
    #[cold]
    pub(super) fn release_all_supervised(&self, object: &ObjectRef, session: SessionId, now: UnixSeconds) {
        let mut ledger = lock(&self.ledger);
        let resources = object.release_all_supervised(session, self.interval(now));
        let namespace = object.namespace();
        ledger.after_release(namespace, object, session, resources, self.plain_world(now));
    }

    /// Checks the ledger's invariants, and that it agrees with the objects. For tests: it visits everything at once.
    pub fn check_ledger(&self) -> Result<(), String> {
        lock(&self.ledger).check(self.registries())
    }

    fn world(&self, now: Moment) -> World<'_> {
        World { registries: self.registries(), interval: self.interval(now.unix), now }
    }

    /// The world of a plain operation, which has only Unix time.
    fn plain_world(&self, now: UnixSeconds) -> World<'_> {
        self.world(Moment { monotonic_ms: 0, unix: now })
    }
}

/// The names that exist, shown to a watch that begins.
#[derive(Debug)]
pub struct Tour {
    connection: SessionId,
    token: Token,
    namespace: Namespace,
    visit: Visit,
}
