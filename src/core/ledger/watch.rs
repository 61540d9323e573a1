//! Watches: connections that are told what happens to a name, or to all that start alike.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    EventKind, GrantId, Ledger, Mailbox, Message, Namespace, ObjectRef, Refusal, SessionId, remove_from,
};
use crate::core::ledger::World;
use crate::core::ledger::grant::Part;
use crate::core::mailbox::{Event, Token};

/// Which names a watch is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This one.
    Name(Box<[u8]>),
    /// All that start with these bytes.
    Prefix(Box<[u8]>),
}

/// Whose watch it is, and what his connection calls it.
type Watcher = (SessionId, Token);

/// Watches, found by what they are about: what happens to a name concerns few of them.
#[derive(Debug, Default)]
pub(super) struct Watches {
    all: BTreeMap<Watcher, Watch>,
    by_scope: [Scopes; Namespace::ALL.len()],
}

/// The watches of one namespace.
#[derive(Debug, Default)]
struct Scopes {
    names: BTreeMap<Box<[u8]>, BTreeSet<Watcher>>,
    /// By length.
    prefixes: BTreeMap<usize, BTreeMap<Box<[u8]>, BTreeSet<Watcher>>>,
}

#[derive(Debug)]
struct Watch {
    namespace: Namespace,
    scope: Scope,
    mailbox: Arc<Mailbox>,
}

impl Scope {
    fn covers(&self, name: &[u8]) -> bool {
        match self {
            Self::Name(own) => **own == *name,
            Self::Prefix(prefix) => name.starts_with(prefix),
        }
    }
}

impl Scopes {
    fn insert(&mut self, scope: &Scope, watcher: Watcher) {
        let watchers = match scope {
            Scope::Name(name) => self.names.entry(name.clone()).or_default(),
            Scope::Prefix(prefix) => {
                self.prefixes.entry(prefix.len()).or_default().entry(prefix.clone()).or_default()
            }
        };
        watchers.insert(watcher);
    }

    fn remove(&mut self, scope: &Scope, watcher: Watcher) {
        match scope {
            Scope::Name(name) => {
                remove_from(&mut self.names, name, &watcher);
            }
            Scope::Prefix(prefix) => {
                let Some(prefixes) = self.prefixes.get_mut(&prefix.len()) else { return };
                remove_from(prefixes, prefix, &watcher);
                if prefixes.is_empty() {
                    self.prefixes.remove(&prefix.len());
                }
            }
        }
    }

    fn of(&self, name: &[u8]) -> impl Iterator<Item = Watcher> {
        let prefixes = self.prefixes.range(..=name.len());
        let prefixes = prefixes.filter_map(|(length, prefixes)| prefixes.get(&name[..*length]));
        self.names.get(name).into_iter().chain(prefixes).flatten().copied()
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.prefixes.is_empty()
    }
}

impl Watches {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn insert(&mut self, watcher: Watcher, watch: Watch) {
        self.by_scope[watch.namespace as usize].insert(&watch.scope, watcher);
        self.all.insert(watcher, watch);
    }

    fn remove(&mut self, watcher: Watcher) -> Option<Watch> {
        let watch = self.all.remove(&watcher)?;
        self.by_scope[watch.namespace as usize].remove(&watch.scope, watcher);
        Some(watch)
    }

    fn of(&self, namespace: Namespace, name: &[u8]) -> impl Iterator<Item = (Token, &Watch)> {
        let watchers = self.by_scope[namespace as usize].of(name);
        watchers.filter_map(|watcher| Some((watcher.1, self.all.get(&watcher)?)))
    }

    /// How many watches are told what happens to a name.
    pub(super) fn count_of(&self, namespace: Namespace, name: &[u8]) -> usize {
        self.by_scope[namespace as usize].of(name).count()
    }

    /// Keeps the registries informed of whether there is a watch.
    fn tell_registry(&self, namespace: Namespace, world: World<'_>) {
        world.registries[namespace as usize].set_watched(!self.by_scope[namespace as usize].is_empty());
    }

    /// Ends all watches of a connection.
    pub(super) fn end_all_of(&mut self, connection: SessionId, world: World<'_>) {
        let of_connection = (connection, Token(0))..=(connection, Token(u64::MAX));
        let watchers: Vec<_> = self.all.range(of_connection).map(|(watcher, _)| *watcher).collect();
        for watcher in watchers {
            if let Some(watch) = self.remove(watcher) {
                self.tell_registry(watch.namespace, world);
            }
        }
    }

    /// Says what is wrong, if anything: each watch is found by what it is about, once.
    pub(super) fn check(&self) -> Result<(), String> {
        for ((session, token), watch) in &self.all {
            let (Scope::Name(name) | Scope::Prefix(name)) = &watch.scope;
            let scopes = &self.by_scope[watch.namespace as usize];
            if scopes.of(name).filter(|watcher| *watcher == (*session, *token)).count() != 1 {
                return Err(format!("watch {token:?} of session {session} is not told, or more than once"));
            }
        }
        let prefixes =
            |scopes: &Scopes| scopes.prefixes.values().flatten().map(|(_, all)| all.len()).sum::<usize>();
        let names = |scopes: &Scopes| scopes.names.values().map(BTreeSet::len).sum::<usize>();
        let found: usize = self.by_scope.iter().map(|scopes| names(scopes) + prefixes(scopes)).sum();
        if found == self.all.len() { Ok(()) } else { Err("a watch that has ended is still told".to_owned()) }
    }
}

impl Ledger {
    /// Begins to report to a connection what happens. The names that exist are reported by [`Ledger::show`].
    pub(in crate::core) fn watch(
        &mut self,
        connection: SessionId,
        token: Token,
        namespace: Namespace,
        scope: Scope,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        self.check_staying(connection)?;
        let mailbox = self.mailbox_of(connection).cloned().ok_or(Refusal::NoSuchSession)?;
        if self.watches.len() >= self.limits.watches_max {
            self.stats.limited += 1;
            return Err(Refusal::LimitReached);
        }
        let watch = Watch { namespace, scope, mailbox };
        self.watches.insert((connection, token), watch);
        self.watches.tell_registry(namespace, world);
        Ok(())
    }

    /// Ends a watch.
    pub(in crate::core) fn unwatch(
        &mut self,
        connection: SessionId,
        token: Token,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        let watch = self.watches.remove((connection, token)).ok_or(Refusal::NotFound)?;
        self.watches.tell_registry(watch.namespace, world);
        Ok(())
    }

    /// Reports a name that exists to a watch that has come to it, and what happens to it from then on. Tells whether
    /// the watch is still there and its reader keeps up.
    pub(in crate::core) fn show(
        &mut self,
        connection: SessionId,
        token: Token,
        object: &ObjectRef,
    ) -> Option<bool> {
        let watch = self.watches.all.get(&(connection, token))?;
        if !watch.scope.covers(object.name()) {
            return Some(true);
        }
        if !watch.mailbox.has_room() {
            return Some(false);
        }
        object.supervise(|supervision| supervision.watched = true);
        let event = Event {
            kind: EventKind::Present,
            namespace: watch.namespace,
            name: object.name().into(),
            grant: None,
            session: None,
            resources: 0,
            in_use: object.consumption(),
            waiting: self.waiting(watch.namespace, object) as u32,
        };
        watch.mailbox.put(Message::Event { token, event });
        Some(true)
    }

    /// Says that a watch was shown every name that existed. Tells whether it is still to be said, to a reader that has
    /// no room for it.
    pub(in crate::core) fn go_live(&self, connection: SessionId, token: Token) -> bool {
        let Some(watch) = self.watches.all.get(&(connection, token)) else { return false };
        let has_room = watch.mailbox.has_room();
        if has_room {
            watch.mailbox.put(Message::Event { token, event: Event::about_no_name(EventKind::Live, 0) });
        }
        !has_room
    }

    /// Tells the watches of a name what happened to it.
    pub(in crate::core) fn tell_name(
        &self,
        namespace: Namespace,
        object: &ObjectRef,
        kind: EventKind,
        grant: Option<GrantId>,
        session: Option<SessionId>,
        resources: u32,
    ) {
        if self.watches.len() == 0 {
            return;
        }
        let mut event = None;
        for (token, watch) in self.watches.of(namespace, object.name()) {
            let event = event.get_or_insert_with(|| Event {
                kind,
                namespace,
                name: object.name().into(),
                grant,
                session,
                resources,
                in_use: object.consumption(),
                waiting: self.waiting(namespace, object) as u32,
            });
            watch.mailbox.put(Message::Event { token, event: event.clone() });
        }
    }

    /// Tells of every name of a grant.
    pub(super) fn tell(&self, id: GrantId, kind: EventKind) {
        let Some(grant) = self.grants.get(&id).filter(|_| self.watches.len() > 0) else { return };
        for part in grant.parts() {
            self.tell_part(id, grant.session, part, kind);
        }
    }

    /// Tells of the name that a waiter waits for.
    pub(super) fn tell_awaited(&self, id: GrantId, kind: EventKind) {
        if let Some(grant) = self.grants.get(&id)
            && let Some(part) = grant.awaited()
        {
            self.tell_part(id, grant.session, part, kind);
        }
    }

    /// Tells of one name of a grant, unless its turn has not come.
    pub(super) fn tell_part(&self, id: GrantId, session: SessionId, part: &Part, kind: EventKind) {
        if let Some(object) = part.object() {
            self.tell_name(part.namespace, object, kind, Some(id), Some(session), part.claim.resources);
        }
    }

    /// Lets plain operations on a name by again where no watch is about it any more.
    pub(in crate::core) fn let_go_unwatched(&self, namespace: Namespace, object: &ObjectRef) {
        if self.watches.of(namespace, object.name()).next().is_none() {
            object.supervise(|supervision| supervision.watched = false);
        }
    }
}
