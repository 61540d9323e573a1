//! Watches: a connection learns what happens to a name, or to all names with a prefix. Watches are found by the names that they
//! cover, as an event concerns few of them.
//!
//! Invariant: a watch is found under its scope exactly once, until it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::grants::Part;
use super::sets::remove_from;
use super::state::{Ledger, LedgerContext};
use crate::clients::Counted;
use crate::mailbox::{Mailbox, Message, event_without_name};
use crate::object::ObjectRef;
use crate::outcome::Token;
use crate::state::Core;
use crate::time::Moment;
use crate::visit::Visit;
use signalbox_model::{ConnectionId, Event, EventKind, GrantId, Namespace, Refusal, Scope, SessionId};

/// A watch, by its connection and the connection's name for it.
pub(super) type WatchId = (ConnectionId, Token);

#[derive(Debug, Default)]
pub(super) struct Watches {
    all: BTreeMap<WatchId, Watch>,
    by_scope: [Scopes; Namespace::ALL.len()],
}

#[derive(Debug)]
pub(super) struct Watch {
    namespace: Namespace,
    scope: Scope<Box<[u8]>>,
    mailbox: Arc<Mailbox>,
}

/// A watch with its entries in the tables, rounded up.
const WATCH_BYTES: usize = 512;

/// The watches of one namespace.
#[derive(Debug, Default)]
struct Scopes {
    names: BTreeMap<Box<[u8]>, BTreeSet<WatchId>>,
    /// By length.
    prefixes: BTreeMap<usize, BTreeMap<Box<[u8]>, BTreeSet<WatchId>>>,
}

impl Watch {
    pub(super) fn new(namespace: Namespace, scope: Scope<&[u8]>, mailbox: Arc<Mailbox>) -> Self {
        let scope = match scope {
            Scope::Name(name) => Scope::Name(name.into()),
            Scope::Prefix(prefix) => Scope::Prefix(prefix.into()),
        };
        Self { namespace, scope, mailbox }
    }

    pub(super) fn namespace(&self) -> Namespace {
        self.namespace
    }

    pub(super) fn covers(&self, name: &[u8]) -> bool {
        self.scope.contains(name)
    }

    /// What it counts for in the memory of its client, in bytes: its entries in the tables, and its name in two of them.
    pub(super) fn bytes(&self) -> usize {
        let (Scope::Name(name) | Scope::Prefix(name)) = &self.scope;
        WATCH_BYTES + 2 * name.len()
    }

    /// Whether the reader keeps up, so that one more event would be kept.
    pub(super) fn has_room(&self) -> bool {
        self.mailbox.has_room()
    }

    pub(super) fn send(&self, token: Token, event: Event<Box<[u8]>>) {
        self.mailbox.put(Message::Event { token, event });
    }
}

impl Scopes {
    fn insert(&mut self, scope: &Scope<Box<[u8]>>, id: WatchId) {
        let ids = match scope {
            Scope::Name(name) => self.names.entry(name.clone()).or_default(),
            Scope::Prefix(prefix) => {
                self.prefixes.entry(prefix.len()).or_default().entry(prefix.clone()).or_default()
            }
        };
        ids.insert(id);
    }

    fn remove(&mut self, scope: &Scope<Box<[u8]>>, id: WatchId) {
        match scope {
            Scope::Name(name) => {
                remove_from(&mut self.names, name, &id);
            }
            Scope::Prefix(prefix) => {
                // No watch has a prefix of this length.
                let Some(prefixes) = self.prefixes.get_mut(&prefix.len()) else { return };
                remove_from(prefixes, prefix, &id);
                if prefixes.is_empty() {
                    self.prefixes.remove(&prefix.len());
                }
            }
        }
    }

    fn covering(&self, name: &[u8]) -> impl Iterator<Item = WatchId> {
        let prefixes = self.prefixes.range(..=name.len());
        let prefixes = prefixes.filter_map(|(length, prefixes)| prefixes.get(&name[..*length]));
        self.names.get(name).into_iter().chain(prefixes).flatten().copied()
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.prefixes.is_empty()
    }

    fn len(&self) -> usize {
        let prefixes = self.prefixes.values().flat_map(BTreeMap::values);
        self.names.values().chain(prefixes).map(BTreeSet::len).sum()
    }
}

impl Watches {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn insert(&mut self, id: WatchId, watch: Watch) {
        self.by_scope[watch.namespace as usize].insert(&watch.scope, id);
        self.all.insert(id, watch);
    }

    pub(super) fn remove(&mut self, id: WatchId) -> Option<Watch> {
        let watch = self.all.remove(&id)?;
        self.by_scope[watch.namespace as usize].remove(&watch.scope, id);
        Some(watch)
    }

    pub(super) fn get(&self, id: WatchId) -> Option<&Watch> {
        self.all.get(&id)
    }

    /// The watches of a connection.
    pub(super) fn ids_of(&self, connection: ConnectionId) -> Vec<WatchId> {
        let ids = (connection, Token(0))..=(connection, Token(u64::MAX));
        self.all.range(ids).map(|(id, _)| *id).collect()
    }

    /// The watches that cover a name.
    pub(super) fn covering(
        &self,
        namespace: Namespace,
        name: &[u8],
    ) -> impl Iterator<Item = (Token, &Watch)> {
        let ids = self.by_scope[namespace as usize].covering(name);
        ids.filter_map(|id| Some((id.1, self.all.get(&id)?)))
    }

    /// How many watches cover a name.
    pub(super) fn count_covering(&self, namespace: Namespace, name: &[u8]) -> usize {
        self.by_scope[namespace as usize].covering(name).count()
    }

    pub(super) fn has_any_in(&self, namespace: Namespace) -> bool {
        !self.by_scope[namespace as usize].is_empty()
    }

    /// Describes the invariant that does not hold, if there is one.
    pub(super) fn check(&self) -> Result<(), String> {
        for (id, watch) in &self.all {
            let (Scope::Name(name) | Scope::Prefix(name)) = &watch.scope;
            let scopes = &self.by_scope[watch.namespace as usize];
            if scopes.covering(name).filter(|other| other == id).count() != 1 {
                return Err(format!("watch {id:?} is not found under its scope exactly once"));
            }
        }
        let found: usize = self.by_scope.iter().map(Scopes::len).sum();
        if found == self.all.len() { Ok(()) } else { Err("a watch that has ended is still found".to_owned()) }
    }
}

/// What came of showing a name to a watch that begins.
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
        ledger.update_registry(namespace, self.context(now.unix));
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
        ledger.update_registry(watch.namespace(), context);
        Ok(())
    }
}

impl Ledger {
    /// Ends all watches of a connection.
    pub(super) fn unwatch_all(&mut self, connection: ConnectionId, context: LedgerContext<'_>) {
        for id in self.watches.ids_of(connection) {
            if let Some(watch) = self.remove_watch(id) {
                self.update_registry(watch.namespace(), context);
            }
        }
    }

    fn remove_watch(&mut self, id: WatchId) -> Option<Watch> {
        let watch = self.watches.remove(id)?;
        self.clients.subtract(self.sessions.owner_of(id.0), Counted::Watches, 1);
        self.subtract_bytes(id.0.session(), watch.bytes());
        Some(watch)
    }

    /// Reports a name that exists to a watch that begins, and has later events reported.
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

    /// New names are tracked as long as there is a watch.
    fn update_registry(&self, namespace: Namespace, context: LedgerContext<'_>) {
        context.registry(namespace).set_watched(self.watches.has_any_in(namespace));
    }
}

/// Watches that are informed for as much work as a name of a grant is.
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

    /// How many requests wait for a name.
    pub(crate) fn waiting(&self, namespace: Namespace, object: &ObjectRef) -> u32 {
        // A waiter takes more than a byte, so there are less than 2^32 of them.
        self.queues.waiting(namespace, object) as u32
    }

    /// The work of granting or releasing a grant, in names. To inform many watches is work as well.
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

    /// Plain operations on a name bypass the ledger again if no watch covers it.
    pub(crate) fn untrack_unwatched(&self, namespace: Namespace, object: &ObjectRef) {
        if self.watches.covering(namespace, object.name()).next().is_none() {
            object.set_tracking(|tracking| tracking.watched = false);
        }
    }
}
