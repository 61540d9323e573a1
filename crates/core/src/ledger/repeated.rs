//! Waiters that are repeated after a restart: their places and the proofs, the reconnect window, and the new ids of
//! their grants. `places` has the rules.

use super::backlog::NameRef;
use super::grants::Grant;
use super::removal::SEMAPHORES;
use super::state::Ledger;
use crate::outcome::Call;
use crate::time::{Due, MonotonicMs};
use signalbox_model::{GrantId, Place, PlaceProof, Refusal, SessionId};

impl Ledger {
    /// The place of a request that waits, for its client; `None`: the request does not wait, or its place would not survive a
    /// restart.
    pub(super) fn place(&self, call: Call) -> Option<Place> {
        let session = self.sessions.acting(call.connection).ok()?;
        self.place_of(session, self.sessions.existing(session).log().waiting(call.ids.own)?)
    }

    /// The place of a waiter of a session; `None`: it would not survive a restart.
    pub(super) fn place_of(&self, session: SessionId, id: GrantId) -> Option<Place> {
        let is_durable = self.is_durable(session);
        let proof = is_durable.then(|| self.place_proof(id, self.grants.existing(id))).flatten()?;
        Some(Place { id, proof })
    }

    /// The proof of a waiter's place. It covers the namespace of each name, as resolved now if the turn of the name has
    /// not come.
    fn place_proof(&self, place: GrantId, grant: &Grant) -> Option<PlaceProof> {
        self.places.proof(place, grant, |part| self.namespace_of(part))
    }

    /// The place that a new waiter gets because its client presents it; `None`: the place is not valid, and the waiter
    /// gets a new one.
    pub(super) fn proven_place(&mut self, presented: Option<Place>, grant: &Grant) -> Option<GrantId> {
        let Place { id, proof } = presented?;
        let is_proven = self.is_durable(grant.session)
            && self.places.is_repeated(id)
            && self.place_proof(id, grant).is_some_and(|own| own == proof);
        // A place belongs to one waiter. If the semaphore was removed since, the removal has ended the wait.
        let is_free = self.grants.get(id).is_none() && !self.waits_for_removed(id, grant);
        let place = (is_proven && is_free).then_some(id);
        if place.is_some() {
            self.places.note_repetition();
        }
        place
    }

    /// Returns whether a semaphore of a request was removed and declared again since the request got this place.
    fn waits_for_removed(&self, place: GrantId, grant: &Grant) -> bool {
        grant.parts().iter().any(|part| {
            self.namespace_of(part) == SEMAPHORES && self.declarations.is_declared_after(part.name(), place)
        })
    }

    /// Opens the reconnect window, after everything was restored.
    pub(super) fn open_reconnect_window(&mut self, now: MonotonicMs) {
        let leased = || self.sessions.iter().filter_map(|(id, state)| Some((id, state.lease()?.1.ttl_ms())));
        let ttl_max_ms = leased().map(|(_, ttl_ms)| ttl_ms).max().unwrap_or(0);
        let sessions: Vec<_> = leased().map(|(session, _)| session).collect();
        let earlier = GrantId(self.ids.last());
        if let Some(end) = self.places.open_window(earlier, sessions.into_iter(), ttl_max_ms, now) {
            self.alarm.ring(Due::At(end));
        }
    }

    /// Ends the window when its time has come.
    pub(super) fn expire_window(&mut self, now: MonotonicMs) {
        if self.places.window_end().is_some_and(|end| end <= now) {
            self.end_window();
        }
    }

    /// Ends the window if every session is back. Returns whether it did.
    pub(super) fn end_window_if_complete(&mut self) -> bool {
        let is_complete = self.places.is_complete();
        if is_complete {
            self.end_window();
        }
        is_complete
    }

    /// Ends the window: the queues that were held back go into the backlog.
    fn end_window(&mut self) {
        for NameRef { namespace, object } in self.places.close_window() {
            self.backlog.serve_later(namespace, &object);
        }
        self.alarm.ring(Due::Now);
    }

    /// Returns the id for the grant of a waiter that has everything: its place, or a new id if the place could be lower
    /// than the id of an earlier grant (see the head of `places`).
    pub(super) fn choose_grant_id(&mut self, place: GrantId) -> Result<GrantId, Refusal> {
        if !self.places.has_repeated() {
            return Ok(place);
        }
        let is_overtaken = self.places.is_repeated(place)
            || self.grants.existing(place).parts().iter().any(|part| {
                part.object().is_some_and(|(namespace, object)| {
                    self.queues.renumbered_up_to(namespace, object) > place
                })
            });
        if is_overtaken { self.next_id().map(GrantId) } else { Ok(place) }
    }

    /// Changes the id of a new grant from its place to this one.
    pub(super) fn renumber(&mut self, place: GrantId, id: GrantId) {
        self.grants.renumber(place, id);
        let grant = self.grants.existing(id);
        for part in grant.parts() {
            if let Some((namespace, object)) = part.object() {
                self.queues.renumber(namespace, object, place, id);
                self.slots.renumber(object, place, id);
            }
        }
        let state = self.sessions.existing_mut(grant.session);
        state.remove_grant(place);
        state.add_grant(id);
    }
}
