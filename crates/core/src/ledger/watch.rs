//! Watch, Unwatch, and the events that are reported to watches.

use super::grants::Part;
use super::state::{Ledger, LedgerContext};
use super::watches::{Watch, WatchId};
use crate::clients::Counted;
use crate::mailbox::event_without_name;
use crate::object::ObjectRef;
use crate::outcome::Token;
use crate::state::Core;
use crate::time::Moment;
use crate::visit::Visit;
use signalbox_model::{ConnectionId, Event, EventKind, GrantId, Namespace, Refusal, Scope, SessionId};

/// The outcome of showing a name to a watch that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// The name was shown, or the watch does not cover it.
    Done,
    /// The reader has no room: the name has to be shown later.
    Full,
    /// The watch has ended.
    Ended,
}

/// The names that exist, to be shown to a watch that begins.
#[derive(Debug)]
pub struct WatchSnapshot {
    connection: ConnectionId,
    token: Token,
    namespace: Namespace,
    visit: Visit,
}

impl Core {
    /// Begins a watch of names (`docs/protocol.md`, "Watch"). The names that exist come first, by [`Self::show`].
    pub fn watch(
        &self,
        connection: ConnectionId,
        token: Token,
        namespace: Namespace,
        scope: Scope<&[u8]>,
        now: Moment,
    ) -> Result<WatchSnapshot, Refusal> {
        let ledger = &mut *self.ledger();
        ledger.sessions.check_not_ending(connection)?;
        let mailbox = ledger.sessions.mailbox(connection).cloned().ok_or(Refusal::NoSuchSession)?;
        ledger.check_memory(connection)?;
        ledger.check_watches(connection).inspect_err(|_| ledger.counts.limited += 1)?;
        let watch = Watch::new(namespace, scope, mailbox);
        ledger.clients.add(ledger.sessions.owner_of(connection), Counted::Watches, 1);
        ledger.add_bytes(connection.session(), watch.bytes());
        ledger.watches.insert((connection, token), watch);
        ledger.set_registry_watched(namespace, self.context(now.unix));
        Ok(WatchSnapshot { connection, token, namespace, visit: Visit::default() })
    }

    /// Shows at most `names` names to a watch that begins, and [`EventKind::Live`] after the last one. Returns whether there
    /// is more to do. While the reader has no room, nothing is done.
    pub fn show(&self, snapshot: &mut WatchSnapshot, names: usize) -> bool {
        let registry = self.registry(snapshot.namespace);
        for _ in 0..names {
            let Some(object) = snapshot.visit.peek(registry) else {
                return self.ledger().go_live(snapshot.connection, snapshot.token) == Shown::Full;
            };
            let ledger = self.ledger();
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

    /// Ends a watch (`docs/protocol.md`, "Unwatch").
    pub fn unwatch(&self, connection: ConnectionId, token: Token, now: Moment) -> Result<(), Refusal> {
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        let watch = ledger.remove_watch((connection, token)).ok_or(Refusal::NotFound)?;
        ledger.set_registry_watched(watch.namespace(), context);
        Ok(())
    }
}

impl Ledger {
    /// Ends all watches of a connection.
    pub(super) fn unwatch_all(&mut self, connection: ConnectionId, context: LedgerContext<'_>) {
        for id in self.watches.ids_of(connection) {
            if let Some(watch) = self.remove_watch(id) {
                self.set_registry_watched(watch.namespace(), context);
            }
        }
    }

    fn remove_watch(&mut self, id: WatchId) -> Option<Watch> {
        let watch = self.watches.remove(id)?;
        self.clients.subtract(self.sessions.owner_of(id.0), Counted::Watches, 1);
        self.subtract_bytes(id.0.session(), watch.bytes());
        Some(watch)
    }

    /// Reports a name that exists to a watch that begins. Later events of the name are reported from now on.
    fn show(&self, connection: ConnectionId, token: Token, object: &ObjectRef) -> Shown {
        let Some(watch) = self.watches.get((connection, token)) else { return Shown::Ended };
        if !watch.covers(object.name()) {
            return Shown::Done;
        }
        if !watch.has_room() {
            return Shown::Full;
        }
        object.set_tracking(|tracking| tracking.watched = true);
        let event = Event {
            kind: EventKind::Present,
            namespace: watch.namespace(),
            name: object.name().into(),
            grant: None,
            session: None,
            resources: 0,
            in_use: object.consumption(),
            waiting: self.waiting(watch.namespace(), object),
        };
        watch.send(token, event);
        Shown::Done
    }

    /// Reports to a watch that every name has been reported. `Full`: its reader has no room for that yet.
    fn go_live(&self, connection: ConnectionId, token: Token) -> Shown {
        let Some(watch) = self.watches.get((connection, token)) else { return Shown::Ended };
        if !watch.has_room() {
            return Shown::Full;
        }
        watch.send(token, event_without_name(EventKind::Live, 0));
        Shown::Done
    }

    /// Lets the registry of a namespace track new names while the namespace has a watch.
    fn set_registry_watched(&self, namespace: Namespace, context: LedgerContext<'_>) {
        context.registry(namespace).set_watched(self.watches.has_any_in(namespace));
    }
}

/// Informing this many watches is as much work as one name of a grant.
const WATCHES_OF_WORK: usize = 8;

impl Ledger {
    /// Publishes an event of a name to the watches that cover it.
    pub(crate) fn publish(
        &self,
        namespace: Namespace,
        object: &ObjectRef,
        kind: EventKind,
        grant: Option<GrantId>,
        session: Option<SessionId>,
        resources: u32,
    ) {
        if self.watches.is_empty() {
            return;
        }
        let mut event = None;
        for (token, watch) in self.watches.covering(namespace, object.name()) {
            let event = event.get_or_insert_with(|| Event {
                kind,
                namespace,
                name: object.name().into(),
                grant,
                session: session.map(SessionId::number),
                resources,
                in_use: object.consumption(),
                waiting: self.waiting(namespace, object),
            });
            watch.send(token, event.clone());
        }
    }

    /// Publishes an event of every name of a grant.
    pub(super) fn publish_grant(&self, id: GrantId, kind: EventKind) {
        if self.watches.is_empty() {
            return;
        }
        let grant = self.grants.existing(id);
        for part in grant.parts() {
            self.publish_part(id, grant.session, part, kind);
        }
    }

    /// Publishes an event of one name of a grant, unless the turn of that name has not come.
    pub(super) fn publish_part(&self, id: GrantId, session: SessionId, part: &Part, kind: EventKind) {
        if let Some((namespace, object)) = part.object() {
            self.publish(namespace, object, kind, Some(id), Some(session), part.claim.resources);
        }
    }

    /// The number of requests that wait for a name.
    pub(crate) fn waiting(&self, namespace: Namespace, object: &ObjectRef) -> u32 {
        // A waiter takes hundreds of bytes, so there are fewer than 2^32 of them.
        self.queues.waiting(namespace, object) as u32
    }

    /// The work of granting or releasing a grant, in names, including that of informing watches.
    pub(super) fn work_of(&self, id: GrantId) -> usize {
        let parts = self.grants.existing(id).parts();
        if self.watches.is_empty() {
            return parts.len();
        }
        let informed = |part: &Part| {
            part.object()
                .map_or(0, |(namespace, object)| self.watches.count_covering(namespace, object.name()))
        };
        parts.iter().map(|part| 1 + informed(part) / WATCHES_OF_WORK).sum()
    }

    /// Lets plain operations on a name bypass the ledger again if no watch covers it.
    pub(crate) fn untrack_unwatched(&self, namespace: Namespace, object: &ObjectRef) {
        if self.watches.covering(namespace, object.name()).next().is_none() {
            object.set_tracking(|tracking| tracking.watched = false);
        }
    }
}
