//! The history of grants: an entry when a grant is made, and one when it ends. They wait in memory until the server takes them.
//!
//! A durable grant is recorded when it is committed, so a crash never undoes a recorded grant. A grant that
//! ends before it is committed therefore has no entry.

use std::task::Waker;

use super::grants::Grant;
use super::state::{Ledger, LedgerContext};
use crate::history::{History, HistoryEvent, HistoryHead};
use crate::invariant::broken;
use crate::state::Core;
use signalbox_model::{EventKind, GrantEnd, GrantId, UnixMilliseconds};

impl Core {
    /// Records grants from now on. `clock` gives the time of each beginning and end, as whole seconds are too coarse;
    /// `taker` is woken when there is something to take.
    pub fn keep_history(&self, clock: impl Fn() -> UnixMilliseconds + Send + 'static, taker: Waker) {
        self.ledger().history = Some(History::new(clock, taker));
    }

    /// Replaces the contents of `entries` with all pending entries, which [`HistoryEntries`](crate::HistoryEntries)
    /// reads; the memory of `entries` is used for later ones. Returns the number of entries that were dropped since the
    /// start; those that were dropped since the previous call are newer than the returned ones.
    pub fn take_history(&self, entries: &mut Vec<u8>) -> u64 {
        entries.clear();
        let ledger = &mut *self.ledger();
        if let Some(history) = &mut ledger.history {
            history.take(entries);
        }
        ledger.counts.history_dropped
    }
}

impl Ledger {
    /// The present time, in whole seconds if there is no history.
    pub(super) fn now_ms(&self, context: LedgerContext<'_>) -> UnixMilliseconds {
        self.history.as_ref().map_or_else(|| context.now.into(), History::now_ms)
    }

    /// Records that a grant was made, unless that is recorded already.
    pub(super) fn record_grant(&mut self, id: GrantId) {
        let Some(mut history) = self.history.take() else { return };
        if let Some(waited_ms) = self.grants.existing_mut(id).take_unrecorded_wait_ms() {
            let grant = self.grants.existing(id);
            let event = HistoryEvent::Granted { waited_ms: waited_ms.into() };
            self.counts.history_dropped +=
                u64::from(!self.put(&mut history, id, grant, event, grant.since_ms()));
        }
        self.history = Some(history);
    }

    /// Records that a grant has ended, before what it held is released; `why` is the kind of the events of its end.
    pub(super) fn record_end(&mut self, id: GrantId, grant: &Grant, why: EventKind) {
        let Some(mut history) = self.history.take_if(|_| grant.is_recorded()) else { return };
        let time = history.now_ms();
        let state = self.sessions.existing(grant.session);
        let end = match why {
            EventKind::Expired => GrantEnd::Expired,
            EventKind::Revoked => GrantEnd::Revoked,
            // A client that releases a grant that is being revoked does so because of the revocation.
            _ if state.revoked().or(grant.revoked()).is_some() => GrantEnd::Revoked,
            _ if state.is_ending() && state.lease().is_none() => GrantEnd::Disconnected,
            _ => GrantEnd::Released,
        };
        let event = HistoryEvent::Ended { end, held_ms: grant.since_ms().until(time) };
        self.counts.history_dropped += u64::from(!self.put(&mut history, id, grant, event, time));
        self.history = Some(history);
    }

    /// Adds an entry. Returns whether there was room for it.
    fn put(
        &self,
        history: &mut History,
        id: GrantId,
        grant: &Grant,
        event: HistoryEvent,
        time: UnixMilliseconds,
    ) -> bool {
        let session = grant.session;
        let state = self.sessions.existing(session);
        let of_connection = match state.client() {
            Some(_) => None,
            None => self.sessions.mailbox(session.connection()).and_then(|mailbox| mailbox.client()),
        };
        let is_durable = self.journal.has_store() && state.lease().is_some();
        let head = HistoryHead { event, time, grant: id, session, is_durable };
        let parts = grant.parts().iter().map(|part| {
            let Some((namespace, object)) = part.object() else {
                broken(format_args!("grant {id} is held, so it has taken from all of its names"))
            };
            (namespace, object.name(), part.claim.resources, self.slots.of(object, id))
        });
        history.put(head, state.client().or(of_connection.as_ref()), state.label(), parts)
    }
}
