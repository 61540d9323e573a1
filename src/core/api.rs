//! What [`Core`] does beyond the two documents: sessions, grants, queues, listings and watches. Each method locks the
//! ledger once; [`super::ledger`] has the rules.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use super::durable::Record;
use super::invariant::lock;
use super::ledger::{
    Batch, Call, Declare, Declared, DeclaredListing, GrantId, IfExists, Lease, LedgerLimits, LedgerStats,
    Listed, Listing, Moment, Opened, Outcome, Queueing, Removal, Resizing, Scope, SessionKey, Until,
    Verified, Waiting, Want, World,
};
use super::mailbox::{EventKind, Mailbox, Token};
use super::object::ObjectRef;
use super::sync::Ordering;
use super::visit::Visit;
use super::{Claim, Core, Namespace, Refusal, Session, SessionId, UnixSeconds};

/// Semaphores that the configuration declares which are taken on together.
const CONFIGURED_STEP: usize = 64;

impl Core {
    /// Sets the limits of sessions, grants, queues and watches; what is beyond a lowered limit stays.
    pub fn set_ledger_limits(&self, limits: LedgerLimits) {
        lock(&self.ledger).set_limits(limits);
    }

    /// Says what the ids of grants and generations are above: so that they grow from one run of a server to the next.
    pub fn start_ids_after(&self, last_id: u64) {
        lock(&self.ledger).start_after(last_id);
    }

    /// Says what the numbers of sessions are above.
    pub fn start_sessions_after(&self, last_session: u64) {
        self.last_session.fetch_max(last_session, Ordering::Relaxed);
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

    /// Makes a leased session and attaches the connection to it. Its number and time to live are in the answer.
    pub fn open_leased(
        &self,
        connection: SessionId,
        key: SessionKey,
        ttl_ms: u32,
        label: &[u8],
        token: Token,
        now: Moment,
    ) -> Outcome {
        let opened = Opened { session: self.next_session(), key, ttl_ms };
        lock(&self.ledger).open((connection, token), opened, label, self.world(now))
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
    pub fn close_leased(&self, connection: SessionId, token: Token, now: Moment) -> Outcome {
        lock(&self.ledger).close((connection, token), self.world(now))
    }

    /// Asks for a grant of one name or of several, all or nothing. No name may be wanted twice.
    pub fn acquire_grant(&self, call: Call, wants: &[Want<'_>], queueing: Queueing, now: Moment) -> Outcome {
        lock(&self.ledger).acquire(call, wants, queueing, self.world(now))
    }

    /// Gives back a grant of the connection's session.
    pub fn release_grant(&self, call: Call, grant: GrantId, now: Moment) -> Outcome {
        lock(&self.ledger).release(call, grant, self.world(now))
    }

    /// Ends the waiting of a request of the connection's session.
    pub fn cancel(&self, connection: SessionId, waiting: Waiting, now: Moment) -> Result<(), Refusal> {
        lock(&self.ledger).cancel(connection, waiting, self.world(now))
    }

    /// Whether a grant is held, whose it is, and how long its lease lasts.
    pub fn verify(&self, grant: GrantId, now: Moment) -> Result<Verified, Refusal> {
        lock(&self.ledger).verify(grant, now)
    }

    /// Takes a grant away after a grace.
    pub fn revoke_grant(&self, call: Call, grant: GrantId, grace_ms: u32, now: Moment) -> Outcome {
        lock(&self.ledger).revoke_grant(call, grant, grace_ms, self.world(now))
    }

    /// Takes a session away after a grace. A connection's own has to have joined; it is then closed.
    pub fn revoke_session(&self, call: Call, session: SessionId, grace_ms: u32, now: Moment) -> Outcome {
        lock(&self.ledger).revoke_session(call, session, grace_ms, self.world(now))
    }

    /// Declares semaphores, all or none of them. No name may be declared twice.
    pub fn declare(&self, call: Call, wanted: &[Declare<'_>], if_exists: IfExists, now: Moment) -> Outcome {
        lock(&self.ledger).declare(call, wanted, if_exists, self.world(now))
    }

    /// Changes the capacity of a declared semaphore, where its generation is the given one or none is given.
    pub fn resize(
        &self,
        call: Call,
        name: &[u8],
        resizing: Resizing,
        generation: Option<u64>,
        now: Moment,
    ) -> Outcome {
        lock(&self.ledger).resize(call, name, resizing, generation, self.world(now))
    }

    /// Removes a declared semaphore, where its generation is the given one or none is given.
    pub fn remove(
        &self,
        call: Call,
        name: &[u8],
        removal: Removal,
        generation: Option<u64>,
        now: Moment,
    ) -> Outcome {
        lock(&self.ledger).remove(call, name, removal, generation, self.world(now))
    }

    /// Waits until less of a name is in use, for `wait_ms` milliseconds at most.
    pub fn await_idle(
        &self,
        (connection, token): (SessionId, Token),
        (namespace, name): (Namespace, &[u8]),
        until: Until,
        wait_ms: u32,
        now: Moment,
    ) -> Outcome {
        let mut ledger = lock(&self.ledger);
        ledger.await_idle((connection, token), (namespace, name), until, wait_ms, self.world(now))
    }

    /// Begins a listing of the declared semaphores whose names start with these bytes.
    pub fn declared(&self, prefix: &[u8]) -> DeclaredListing {
        DeclaredListing::new(prefix)
    }

    /// The next declared semaphores of a listing; none at its end.
    pub fn list_declared(&self, listing: &mut DeclaredListing) -> Vec<Declared> {
        lock(&self.ledger).list_declared(listing)
    }

    /// Takes on what the configuration declares. Gives those that cannot be as it says, and why.
    pub fn declare_configured(&self, wanted: &[Declare<'_>], now: Moment) -> Vec<(Box<[u8]>, Refusal)> {
        let mut refused = Vec::new();
        for some in wanted.chunks(CONFIGURED_STEP) {
            let mut ledger = lock(&self.ledger);
            for declare in some {
                if let Err(refusal) = ledger.configure(declare, self.world(now)) {
                    refused.push((declare.name.into(), refusal));
                }
            }
        }
        let configured: BTreeSet<_> = wanted.iter().map(|declare| declare.name).collect();
        let mut last = None;
        loop {
            last = lock(&self.ledger).retire(&configured, last.as_ref(), self.world(now));
            if last.is_none() {
                return refused;
            }
        }
    }

    /// Takes semaphores that are removed at once from those who hold them, some a step; tells whether there is more to
    /// do. `mailbox_of` finds the connection that a session is the own one of: who holds by plain Acquires when the grace
    /// is over is disconnected.
    pub fn evict(&self, now: Moment, mailbox_of: impl Fn(SessionId) -> Option<Arc<Mailbox>>) -> bool {
        let mut ledger = lock(&self.ledger);
        let world = self.world(now);
        let Some(plain) = ledger.evict(world) else { return false };
        for session in plain {
            // One that is being closed already is not revoked once more.
            if let Some(mailbox) = mailbox_of(session).filter(|mailbox| !mailbox.is_closed()) {
                ledger.join(session, None, &mailbox);
                // One that ended meanwhile has nothing to lose.
                let _ = ledger.revoke_session_later(session, 0, world);
            }
        }
        true
    }

    /// Brings back a record that a store kept, before anything else is done. They come in the order of their keys, and
    /// leases begin anew now. An error says what does not fit what was brought back before.
    pub fn restore(&self, record: Record, now: Moment) -> Result<(), String> {
        let next_session = match &record {
            Record::Session(record) => record.session.number(),
            _ => 0,
        };
        self.start_sessions_after(next_session);
        lock(&self.ledger).restore(record, self.world(now))
    }

    /// Does what is due when everything was brought back, and keeps a journal of what is to be stored from now on;
    /// `taker` is woken when there is something to take.
    pub fn keep_journal(&self, taker: Waker, now: Moment) {
        let mut ledger = lock(&self.ledger);
        ledger.keep_journal(taker);
        ledger.end_restore(self.world(now));
    }

    /// Takes what is to be stored together; `None`: nothing, or the batch before it is not settled.
    pub fn take_batch(&self) -> Option<Batch> {
        lock(&self.ledger).take_batch()
    }

    /// Tells that a batch is stored, or could not be: who waits for that is answered, `step` of them at most, or what all
    /// asked for is taken back. Tells whether there is more to do.
    pub fn settle(&self, batch: &Batch, is_stored: bool, step: usize, now: Moment) -> bool {
        lock(&self.ledger).settle(batch.number, is_stored, step, self.world(now))
    }

    /// Whether everything is stored that is to be.
    pub fn is_stored(&self) -> bool {
        lock(&self.ledger).is_stored()
    }

    /// Whether answers for a connection wait for the store and for nothing else.
    pub fn is_storing_for(&self, mailbox: &Arc<Mailbox>) -> bool {
        lock(&self.ledger).is_storing_for(mailbox)
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
    ) -> Result<WatchSnapshot, Refusal> {
        lock(&self.ledger).watch(connection, token, namespace, scope, self.world(now))?;
        Ok(WatchSnapshot { connection, token, namespace, visit: Visit::default() })
    }

    /// Ends a watch.
    pub fn unwatch(&self, connection: SessionId, token: Token, now: Moment) -> Result<(), Refusal> {
        lock(&self.ledger).unwatch(connection, token, self.world(now))
    }

    /// Visits at most `names` names for a watch that begins. Tells whether there is more to do; while its reader has
    /// no room, nothing is done.
    pub fn show(&self, snapshot: &mut WatchSnapshot, names: usize) -> bool {
        let registry = self.registry(snapshot.namespace);
        for _ in 0..names {
            let Some(object) = snapshot.visit.peek(registry) else {
                return lock(&self.ledger).go_live(snapshot.connection, snapshot.token);
            };
            let mut ledger = lock(&self.ledger);
            // It may have been collected since it was visited, and another made of its name.
            let Some(object) = registry.find(object.name(), ObjectRef::clone) else {
                snapshot.visit.advance();
                continue;
            };
            match ledger.show(snapshot.connection, snapshot.token, &object) {
                Some(true) => snapshot.visit.advance(),
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
        session.note_supervised();
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
        session.note_supervised();
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
pub struct WatchSnapshot {
    connection: SessionId,
    token: Token,
    namespace: Namespace,
    visit: Visit,
}
