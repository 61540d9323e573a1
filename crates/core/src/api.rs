//! The operations of [`Core`] beyond the two documents that combine the ledger with the names, the numbers of sessions or
//! the semaphore sets. Those of the ledger alone are beside their rules, in [`super::ledger`]. Each method of [`Core`]
//! holds the ledger's lock once, which is one step.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use crate::claim::Claim;
use crate::ids::Token;
use crate::journal::Step;
use crate::ledger::{
    DeclaredListing, Lease, Ledger, LedgerContext, Listed, Listing, ListingKind, Queueing, Shown, Want,
};
use crate::object::{Availability, DumpItem, ObjectRef};
use crate::outcome::{Call, Outcome};
use crate::session::Session;
use crate::state::Core;
use crate::sync::Ordering;
use crate::time::{Due, Moment};
use crate::visit::Visit;
use signalbox_model::{
    ConnectionId, Declaration, EventKind, Inspected, Namespace, Notice, Place, Refusal, Scope, SessionId,
    SessionKey, UnixSeconds,
};

/// Semaphores of the configuration that are declared in one step.
const CONFIGURED_STEP: usize = 64;

/// Limits and figures.
impl Core {
    /// Sets what the numbers of sessions are above.
    pub fn start_sessions_after(&self, last_session: u64) {
        self.last_session.fetch_max(last_session, Ordering::Relaxed);
    }
}

/// Connections and sessions.
impl Core {
    /// Attaches a connection to a leased session, and renews its lease. Another connection that was attached is informed and
    /// loses it.
    pub fn attach(
        &self,
        session: SessionId,
        connection: ConnectionId,
        key: &SessionKey,
        now: Moment,
    ) -> Result<Arc<Lease>, Refusal> {
        let lease = self.attach_to_repeat(session, connection, key, 0)?;
        lease.renew(now.monotonic);
        Ok(lease)
    }

    /// As [`Self::attach`], by a client that will repeat so many requests with their places. The caller renews the lease.
    pub fn attach_to_repeat(
        &self,
        session: SessionId,
        connection: ConnectionId,
        key: &SessionKey,
        repetitions: u32,
    ) -> Result<Arc<Lease>, Refusal> {
        self.ledger().attach(session, connection, key, repetitions)
    }

    /// The client of a connection has proven another identity: what it is attached to is listed and revoked under that.
    pub fn note_client(&self, connection: ConnectionId) {
        self.ledger().note_client(connection);
        self.sysv().note_client(connection);
    }

    /// The lease of the session that the connection is attached to, if there is one.
    pub fn lease(&self, connection: ConnectionId) -> Option<Arc<Lease>> {
        self.ledger().lease(connection).ok()
    }
}

/// Grants.
impl Core {
    /// Asks for a grant of one name or of several, all or nothing. No name may be wanted twice.
    pub fn acquire_grant(&self, call: Call, wants: &[Want<'_>], queueing: Queueing, now: Moment) -> Outcome {
        self.ledger().acquire(call, wants, queueing, None, now.monotonic, self.context(now.unix))
    }

    /// As [`Self::acquire_grant`]. If the request waits, its place is returned too, unless it would not survive a restart.
    /// A request that is repeated after a restart presents the place that it was told before, and waits there again; if the
    /// proof is wrong, the request counts as one that presents none.
    pub fn acquire_grant_at(
        &self,
        call: Call,
        wants: &[Want<'_>],
        queueing: Queueing,
        presented: Option<Place>,
        now: Moment,
    ) -> (Outcome, Option<Place>) {
        let (mut ledger, context) = (self.ledger(), self.context(now.unix));
        let outcome = ledger.acquire(call, wants, queueing, presented, now.monotonic, context);
        let place = if outcome == Outcome::Waiting { ledger.place(call) } else { None };
        if presented.is_some() {
            ledger.count_repetition(call.connection, context);
        }
        (outcome, place)
    }
}

/// Declared semaphores.
impl Core {
    /// Begins a listing of the declared semaphores whose names start with these bytes.
    pub fn declared(&self, prefix: &[u8]) -> DeclaredListing {
        DeclaredListing::new(prefix)
    }

    /// Declares the semaphores of the configuration, and removes those that it declared before. Returns those that it
    /// cannot apply, with the reason.
    pub fn declare_configured(&self, wanted: &[Declaration<'_>], now: Moment) -> Vec<(Box<[u8]>, Refusal)> {
        let context = self.context(now.unix);
        let mut refused = Vec::new();
        for some in wanted.chunks(CONFIGURED_STEP) {
            let mut ledger = self.ledger();
            for declare in some {
                if let Err(refusal) = ledger.configure(declare, now.monotonic, context) {
                    refused.push((declare.name.into(), refusal));
                }
            }
        }
        let configured: BTreeSet<_> = wanted.iter().map(|declare| declare.name).collect();
        let mut last = None;
        loop {
            let next = self.ledger().remove_unconfigured(&configured, last.as_ref(), now.monotonic, context);
            let Some(next) = next else { return refused };
            last = Some(next);
        }
    }
}

/// Deadlines and evictions.
impl Core {
    /// Takes a step of what is due: waits, leases and grace periods that are over. Returns whether there is more to do at
    /// once. To be called whenever something is due, and every [`TICK_MS`](super::TICK_MS) in any case: a longer pause
    /// counts as time in which the server could receive nothing, and extends every lease.
    pub fn expire(&self, now: Moment) -> bool {
        // Both, each time.
        self.sysv().expire(now) | self.ledger().expire(now.monotonic, self.context(now.unix))
    }

    /// When something is due next. `sleeper` is woken once if something comes due earlier.
    pub fn next_due(&self, sleeper: &Waker) -> Option<Due> {
        let ledger = self.ledger().next_due(sleeper);
        ledger.into_iter().chain(self.sysv().next_due(sleeper)).min()
    }

    /// Tells all clients that said Hello that another node of the cluster is going to lead.
    pub fn announce_move(&self) {
        self.ledger().announce(Notice::Moved(()));
    }

    /// Refuses new requests for grants, and answers those that wait, in steps. Returns whether there is more to do.
    pub fn shut_down(&self, now: Moment) -> bool {
        self.sysv().shut_down(now) | self.ledger().shut_down(self.context(now.unix))
    }
}

/// Listings and watches.
impl Core {
    /// The usage of a name, its capacity and the length of its queue.
    pub fn inspect(&self, namespace: Namespace, name: &[u8], now: Moment) -> Result<Inspected, Refusal> {
        let ledger = self.ledger();
        let found = self.registry(namespace).find(name, ObjectRef::clone);
        let object = found.ok_or(Refusal::NotFound)?;
        let (DumpItem { consumption, peak }, availability) = object.usage(self.interval(now.unix));
        let waiting = ledger.waiting(namespace, &object);
        let Availability { capacity, available } =
            availability.unwrap_or(Availability { capacity: 0, available: 0 });
        Ok(Inspected { in_use: consumption, peak, waiting, capacity, available })
    }

    /// Deletes a counter that is not held and that no request waits for, with the peak of its interval.
    pub(super) fn delete_counter(&self, name: &[u8]) -> Result<(), Refusal> {
        let ledger = self.ledger();
        let deleted = self.registry(Namespace::Counters).delete_unused(name)?;
        ledger.publish(Namespace::Counters, &deleted, EventKind::Removed, None, None, 0);
        Ok(())
    }

    /// Begins a listing of the holders or waiters of a name.
    pub fn listing(&self, namespace: Namespace, name: &[u8], kind: ListingKind) -> Result<Listing, Refusal> {
        let exists = self.registry(namespace).find(name, |_| ());
        exists.map(|()| Listing::new(namespace, name, kind)).ok_or(Refusal::NotFound)
    }

    /// The next entries of a listing, each with the connection of its session; none at its end. Their addresses are empty.
    pub fn list(&self, listing: &mut Listing) -> Vec<Listed> {
        let ledger = self.ledger();
        let (namespace, name) = listing.name();
        match self.registry(namespace).find(name, ObjectRef::clone) {
            Some(object) => ledger.list(listing, &object),
            None => Vec::new(),
        }
    }

    /// Begins a watch of names. The names that exist come first, by [`Self::show`].
    pub fn watch(
        &self,
        connection: ConnectionId,
        token: Token,
        namespace: Namespace,
        scope: Scope<&[u8]>,
        now: Moment,
    ) -> Result<WatchSnapshot, Refusal> {
        self.ledger().watch(connection, token, namespace, scope, self.context(now.unix))?;
        Ok(WatchSnapshot { connection, token, namespace, visit: Visit::default() })
    }

    /// Shows at most `names` names to a watch that begins. Returns whether there is more to do. While the reader has no
    /// room, nothing is done.
    pub fn show(&self, snapshot: &mut WatchSnapshot, names: usize) -> bool {
        let registry = self.registry(snapshot.namespace);
        for _ in 0..names {
            let Some(object) = snapshot.visit.peek(registry) else {
                return self.ledger().go_live(snapshot.connection, snapshot.token) == Shown::Full;
            };
            let mut ledger = self.ledger();
            // The object may have been collected since it was visited, and another one created under its name.
            let Some(object) = registry.find(object.name(), ObjectRef::clone) else {
                snapshot.visit.advance();
                continue;
            };
            match ledger.show(snapshot.connection, snapshot.token, &object) {
                Shown::Done => snapshot.visit.advance(),
                Shown::Full => return true,
                Shown::Ended => return false,
            }
        }
        true
    }
}

/// Plain operations on tracked names.
impl Core {
    /// A plain Acquire of a tracked name.
    #[cold]
    pub(super) fn acquire_tracked(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        session: &mut Session,
        now: UnixSeconds,
    ) -> Result<(), Refusal> {
        session.note_tracked();
        let ledger = self.ledger();
        let registry = self.registry(namespace);
        let found = registry.find(name, ObjectRef::clone);
        // It must not overtake the queue.
        if found.is_some_and(|object| ledger.waiting(namespace, &object) > 0) {
            return Err(Refusal::NotAvailable);
        }
        let done = registry.acquire_tracked(namespace, name, claim, session, self.interval(now));
        if let Some(object) = registry.find(name, ObjectRef::clone) {
            if done.is_ok() {
                let id = Some(session.id().session());
                ledger.publish(namespace, &object, EventKind::Granted, None, id, claim.resources());
            }
            ledger.untrack_unwatched(namespace, &object);
        }
        done
    }

    /// A plain Release of a tracked name.
    #[cold]
    pub(super) fn release_tracked(
        &self,
        namespace: Namespace,
        name: &[u8],
        resources: u32,
        session: &mut Session,
        now: UnixSeconds,
    ) -> Result<(), Refusal> {
        session.note_tracked();
        let mut ledger = self.ledger();
        let registry = self.registry(namespace);
        let found = registry.find(name, ObjectRef::clone);
        registry.release_tracked(namespace, name, resources, session, self.interval(now))?;
        if let Some(object) = found {
            self.after_release(&mut ledger, namespace, &object, session.id(), resources, now);
        }
        Ok(())
    }

    /// Releases what a connection that has ended holds of a tracked name.
    #[cold]
    pub(super) fn release_all_tracked(&self, object: &ObjectRef, holder: ConnectionId, now: UnixSeconds) {
        let mut ledger = self.ledger();
        let resources = object.release_all_tracked(holder, self.interval(now));
        self.after_release(&mut ledger, object.namespace(), object, holder, resources, now);
    }

    fn after_release(
        &self,
        ledger: &mut Ledger,
        namespace: Namespace,
        object: &ObjectRef,
        holder: ConnectionId,
        resources: u32,
        now: UnixSeconds,
    ) {
        ledger.released_plainly(namespace, object, holder.session(), resources);
        ledger.run_backlog(self.context(now));
        ledger.untrack_unwatched(namespace, object);
    }

    pub(super) fn ledger(&self) -> Step<'_, Ledger> {
        Step::begin(&self.ledger)
    }

    pub(super) fn context(&self, now: UnixSeconds) -> LedgerContext<'_> {
        LedgerContext { registries: self.registries(), interval: self.interval(now), now }
    }
}

/// The names that exist, to be shown to a watch that begins.
#[derive(Debug)]
pub struct WatchSnapshot {
    connection: ConnectionId,
    token: Token,
    namespace: Namespace,
    visit: Visit,
}
