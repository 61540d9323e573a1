//! Watches: a connection learns what happens to a name, or to all names with a prefix.

use super::state::{Ledger, LedgerContext};
use super::watches::{Watch, WatchId};
use crate::clients::Counted;
use crate::ids::Token;
use crate::mailbox::event_without_name;
use crate::object::ObjectRef;
use crate::state::Core;
use crate::time::Moment;
use signalbox_model::{ConnectionId, Event, EventKind, Namespace, Refusal, Scope};

/// What came of showing a name to a watch that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The name was shown, or the watch does not cover it.
    Done,
    /// The reader has no room: the name has to be shown later.
    Full,
    /// The watch has ended.
    Ended,
}

impl Core {
    /// Ends a watch (`docs/protocol.md`, "Unwatch").
    pub fn unwatch(&self, connection: ConnectionId, token: Token, now: Moment) -> Result<(), Refusal> {
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        let watch = ledger.remove_watch((connection, token)).ok_or(Refusal::NotFound)?;
        ledger.update_registry(watch.namespace(), context);
        Ok(())
    }
}

impl Ledger {
    /// Begins a watch (`docs/protocol.md`, "Watch"). The names that exist are reported by [`Ledger::show`].
    pub(crate) fn watch(
        &mut self,
        connection: ConnectionId,
        token: Token,
        namespace: Namespace,
        scope: Scope<&[u8]>,
        context: LedgerContext<'_>,
    ) -> Result<(), Refusal> {
        self.sessions.check_staying(connection)?;
        let mailbox = self.sessions.mailbox(connection).cloned().ok_or(Refusal::NoSuchSession)?;
        self.check_memory(connection)?;
        self.check_watches(connection).inspect_err(|_| self.counts.limited += 1)?;
        let watch = Watch::new(namespace, scope, mailbox);
        self.clients.add(self.sessions.owner_of(connection), Counted::Watches, 1);
        self.add_bytes(connection.session(), watch.bytes());
        self.watches.insert((connection, token), watch);
        self.update_registry(namespace, context);
        Ok(())
    }

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
    pub(crate) fn show(&mut self, connection: ConnectionId, token: Token, object: &ObjectRef) -> Shown {
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
    pub(crate) fn go_live(&self, connection: ConnectionId, token: Token) -> Shown {
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
