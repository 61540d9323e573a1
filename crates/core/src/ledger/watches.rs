//! Watches: a connection learns what happens to a name, or to all names with a prefix. Watches are found by the names that they
//! cover, as an event concerns few of them.
//!
//! Invariant: a watch is found under its scope exactly once, until it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::sets::remove_from;
use crate::mailbox::{Mailbox, Message};
use crate::outcome::Token;
use signalbox_model::{ConnectionId, Event, Namespace, Scope};

/// A watch, by its connection and the token with which the connection identifies it.
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

/// The size of a watch with its entries in the tables, in bytes, rounded up.
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

    /// The bytes that it counts against the memory share of its client: its entries in the tables, and its name in two of them.
    pub(super) fn bytes(&self) -> usize {
        let (Scope::Name(name) | Scope::Prefix(name)) = &self.scope;
        WATCH_BYTES + 2 * name.len()
    }

    /// Returns whether there is room for one more event, because the reader keeps up.
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

    /// The number of watches that cover a name.
    pub(super) fn count_covering(&self, namespace: Namespace, name: &[u8]) -> usize {
        self.by_scope[namespace as usize].covering(name).count()
    }

    pub(super) fn has_any_in(&self, namespace: Namespace) -> bool {
        !self.by_scope[namespace as usize].is_empty()
    }

    /// Fails with a description of an invariant that does not hold.
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
