//! Watches: connections that are told what happens to a name, or to all that start alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{EventKind, GrantId, Ledger, Letter, Mailbox, Namespace, ObjectRef, Refusal, SessionId};
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

#[derive(Debug, Default)]
pub(super) struct Watches(BTreeMap<(SessionId, Token), Watch>);

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

impl Watches {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn of<'a>(&'a self, namespace: Namespace, name: &'a [u8]) -> impl Iterator<Item = (Token, &'a Watch)> {
        let covers = move |watch: &Watch| watch.namespace == namespace && watch.scope.covers(name);
        self.0.iter().filter(move |(_, watch)| covers(watch)).map(|((_, token), watch)| (*token, watch))
    }

    /// Keeps the registries informed of whether there is a watch.
    fn tell_registry(&self, namespace: Namespace, world: World<'_>) {
        let is_any = self.0.values().any(|watch| watch.namespace == namespace);
        world.registries[namespace as usize].set_watched(is_any);
    }

    /// Ends all watches of a connection.
    pub(super) fn end_all_of(&mut self, connection: SessionId, world: World<'_>) {
        self.0.retain(|(watcher, _), _| *watcher != connection);
        for namespace in Namespace::ALL {
            self.tell_registry(namespace, world);
        }
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
        let mailbox = self.mailbox_of(connection).cloned().ok_or(Refusal::NoSuchSession)?;
        if self.watches.len() >= self.limits.watches_max {
            self.stats.limited += 1;
            return Err(Refusal::LimitReached);
        }
        let watch = Watch { namespace, scope, mailbox };
        self.watches.0.insert((connection, token), watch);
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
        let watch = self.watches.0.remove(&(connection, token)).ok_or(Refusal::NotFound)?;
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
        let watch = self.watches.0.get(&(connection, token))?;
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
        watch.mailbox.put(Letter::Event { token, event });
        Some(true)
    }

    /// Says that a watch was shown every name that existed. Tells whether it is still to be said, to a reader that has
    /// no room for it.
    pub(in crate::core) fn go_live(&self, connection: SessionId, token: Token) -> bool {
        let Some(watch) = self.watches.0.get(&(connection, token)) else { return false };
        let has_room = watch.mailbox.has_room();
        if has_room {
            watch.mailbox.put(Letter::Event { token, event: Event::about_no_name(EventKind::Live, 0) });
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
            watch.mailbox.put(Letter::Event { token, event: event.clone() });
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
