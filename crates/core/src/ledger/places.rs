//! Places in queues that survive a restart.
//!
//! A waiting request has a place: the id by which its queues order it, which is the id that its grant will have. A
//! client that was told the place, with a proof, presents both when it repeats the request after a restart, and the
//! request waits at its place again. The proof is a keyed hash of the place, the session, the request and what was
//! requested, so a client can neither choose a place nor use one for another request. The key is a record of the store.
//!
//! After a start with sessions to come back, a reconnect window is open. While it is open, a name whose head was
//! repeated grants nothing, because requests that were before that head may still come. It ends with its time, or when
//! every session that was restored has attached and has repeated as many requests as it announced, or has ended. The
//! states of a restored session in the window:
//!
//! | state | next |
//! |---|---|
//! | away | it attaches and announces `n` repetitions: returning if `n > 0`, else back; or it ends: back |
//! | returning, `n` left | it repeats a request with a place, valid or not: one less, and back after the last; it attaches again: as from away; or it ends: back |
//! | back | |
//!
//! Invariants: a repeated place is at most `earlier`, and all ids of this run are above it, so a queue whose head was not
//! repeated has no repeated waiter; while the window is open, `held_back` has each name whose head was repeated.
//!
//! A grant of a repeated waiter gets a new id: younger ids may have been granted since its place was given out. So does
//! a waiter that such a grant has overtaken in ids. So the ids of grants of a name grow (`docs/semantics.md`, "Fencing
//! tokens").

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::num::NonZeroU32;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::backlog::NameRef;
use super::grants::{Grant, Part};
use super::removal::SEMAPHORES;
use super::state::Ledger;
use crate::outcome::Call;
use crate::time::{Due, MonotonicMs};
use signalbox_model::{GrantId, Namespace, Place, PlaceKey, PlaceProof, Refusal, SessionId};

#[derive(Debug, Default)]
pub(super) struct Places {
    /// `None`: no place is told, because none would survive.
    key: Option<PlaceKey>,
    /// All ids of earlier runs are at most this one, and all ids of this run are above it.
    earlier: GrantId,
    /// How long the window is open after a start, at most.
    window_ms: u32,
    window: Option<Window>,
    /// Whether a waiter of this run was repeated: only then do ids of grants need a comparison.
    has_repeated: bool,
}

/// The purpose of a keyed hash. No hash of these is ever shown to a client, as proofs of places are, and a message of a proof is
/// longer than that of the key of a session.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// The key of a session.
    Session = 0xfe,
    /// The digest of a request.
    Request = 0xff,
}

/// The time after a start in which requests are repeated.
#[derive(Debug)]
struct Window {
    end: MonotonicMs,
    /// The sessions that are not back.
    awaited: BTreeMap<SessionId, Awaited>,
    /// Names whose heads were repeated. They are served when the window ends.
    held_back: Vec<NameRef>,
}

/// A session that is not back.
#[derive(Debug)]
enum Awaited {
    /// It has not attached.
    Away,
    /// It has attached, and this many repetitions are missing.
    Returning(NonZeroU32),
}

impl Places {
    pub(super) fn set_window_ms(&mut self, window_ms: u32) {
        self.window_ms = window_ms;
    }

    /// Sets the key. Returns whether there was none.
    pub(super) fn set_key_once(&mut self, key: PlaceKey) -> bool {
        let is_first = self.key.is_none();
        self.key.get_or_insert(key);
        is_first
    }

    /// Everything is restored, with these sessions; the longest of them lives for `ttl_max_ms`. Opens the window, and
    /// returns when it ends; `None`: there is none.
    pub(super) fn open_window(
        &mut self,
        earlier: GrantId,
        sessions: impl Iterator<Item = SessionId>,
        ttl_max_ms: u32,
        now: MonotonicMs,
    ) -> Option<MonotonicMs> {
        self.earlier = earlier;
        let awaited: BTreeMap<_, _> = sessions.map(|session| (session, Awaited::Away)).collect();
        let window_ms = self.window_ms.min(ttl_max_ms);
        // Without a key, no place was told.
        if self.key.is_none() || awaited.is_empty() || window_ms == 0 {
            return None;
        }
        let end = now.after(window_ms);
        self.window = Some(Window { end, awaited, held_back: Vec::new() });
        Some(end)
    }

    /// When the window ends; `None`: it is not open.
    pub(super) fn window_end(&self) -> Option<MonotonicMs> {
        self.window.as_ref().map(|window| window.end)
    }

    /// Whether no session is missing in an open window.
    pub(super) fn is_complete(&self) -> bool {
        self.window.as_ref().is_some_and(|window| window.awaited.is_empty())
    }

    /// Ends the window. Returns the names to serve.
    pub(super) fn close_window(&mut self) -> Vec<NameRef> {
        self.window.take().map_or_else(Vec::new, |window| window.held_back)
    }

    /// A session has attached, and will repeat this many requests with their places.
    pub(super) fn attached(&mut self, session: SessionId, repetitions: u32) {
        let Some(window) = &mut self.window else { return };
        // A session of this run is not awaited.
        let Some(state) = window.awaited.get_mut(&session) else { return };
        match NonZeroU32::new(repetitions) {
            Some(missing) => *state = Awaited::Returning(missing),
            None => _ = window.awaited.remove(&session),
        }
    }

    /// A session has repeated a request.
    pub(super) fn repeated(&mut self, session: SessionId) {
        let Some(window) = &mut self.window else { return };
        if let Some(Awaited::Returning(missing)) = window.awaited.get_mut(&session) {
            match NonZeroU32::new(missing.get() - 1) {
                Some(fewer) => *missing = fewer,
                None => _ = window.awaited.remove(&session),
            }
        }
    }

    /// A session has ended.
    pub(super) fn ended(&mut self, session: SessionId) {
        if let Some(window) = &mut self.window {
            window.awaited.remove(&session);
        }
    }

    /// Whether a waiter has a place of an earlier run.
    pub(super) fn is_repeated(&self, place: GrantId) -> bool {
        place <= self.earlier
    }

    /// Whether a waiter with this place is granted nothing for now.
    pub(super) fn is_held_back(&self, place: GrantId) -> bool {
        self.window.is_some() && self.is_repeated(place)
    }

    /// A waiter that is held back has joined the queue of this name.
    pub(super) fn hold_back(&mut self, name: NameRef) {
        if let Some(window) = &mut self.window {
            window.held_back.push(name);
        }
    }

    /// Whether a name is served when the window ends.
    pub(super) fn will_serve(&self, name: &NameRef) -> bool {
        let is_it = |other: &NameRef| other.namespace == name.namespace && other.object == name.object;
        self.window.as_ref().is_some_and(|window| window.held_back.iter().any(is_it))
    }

    /// A waiter was repeated.
    pub(super) fn note_repetition(&mut self) {
        self.has_repeated = true;
    }

    /// Whether a waiter was ever repeated in this run.
    pub(super) fn has_repeated(&self) -> bool {
        self.has_repeated
    }

    /// 128 bits that only this store's servers can compute from a text; `None`: there is no key.
    pub(super) fn keyed_hash(&self, purpose: Purpose, text: &[u8]) -> Option<[u8; 16]> {
        let mut hasher = SipHasher24::new_with_key(&self.key?.0);
        hasher.write(&[purpose as u8]);
        hasher.write(text);
        Some(hasher.finish128().as_bytes())
    }

    /// The proof of a waiter's place; `None`: there is no key.
    fn proof(
        &self,
        place: GrantId,
        grant: &Grant,
        namespace_of: impl Fn(&Part) -> Namespace,
    ) -> Option<PlaceProof> {
        let mut hasher = SipHasher24::new_with_key(&self.key?.0);
        let Grant { session, request, .. } = grant;
        for number in [place.0, session.number(), request.0, grant.parts().len() as u64] {
            hasher.write(&number.to_be_bytes());
        }
        // The maximum may become the capacity of the semaphore while the request waits, so it is not covered.
        for part in grant.parts() {
            let name = part.name();
            let slot = part.slot.map_or(u32::MAX, u32::from);
            for number in [name.len() as u32, namespace_of(part) as u32, part.claim.resources, slot] {
                hasher.write(&number.to_be_bytes());
            }
            hasher.write(name);
        }
        Some(PlaceProof(hasher.finish128().as_bytes()))
    }
}

impl Ledger {
    /// The place of a request that waits, for its client; `None`: it does not wait, or would not survive a restart.
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

    /// The proof of a waiter's place. It covers the kind of each name; of one whose turn has not come, as it is resolved now.
    fn place_proof(&self, place: GrantId, grant: &Grant) -> Option<PlaceProof> {
        self.places.proof(place, grant, |part| self.namespace_of(part))
    }

    /// The place that a new waiter may have because its client presents it; `None`: it is not proven, so it counts as if
    /// it had not been presented.
    pub(super) fn proven_place(&mut self, presented: Option<Place>, grant: &Grant) -> Option<GrantId> {
        let Place { id, proof } = presented?;
        let is_proven = self.is_durable(grant.session)
            && self.places.is_repeated(id)
            && self.place_proof(id, grant).is_some_and(|own| own == proof);
        // A place is of one request, which waits once. If a semaphore was removed since, the wait is over with it.
        let is_free = self.grants.get(id).is_none() && !self.waits_for_removed(id, grant);
        let place = (is_proven && is_free).then_some(id);
        if place.is_some() {
            self.places.note_repetition();
        }
        place
    }

    /// Whether a semaphore that a request wants was removed, and declared again, since the request got this place.
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

    /// A leased session has attached, and will repeat this many requests with their places.
    pub(super) fn session_attached(&mut self, session: SessionId, repetitions: u32) {
        self.places.attached(session, repetitions);
        self.end_window_if_complete();
    }

    /// A session has ended.
    pub(super) fn session_ended(&mut self, session: SessionId) {
        self.places.ended(session);
        self.end_window_if_complete();
    }

    /// Ends the window when its time has come.
    pub(super) fn expire_window(&mut self, now: MonotonicMs) {
        if self.places.window_end().is_some_and(|end| end <= now) {
            self.end_window();
        }
    }

    pub(super) fn end_window_if_complete(&mut self) -> bool {
        let is_complete = self.places.is_complete();
        if is_complete {
            self.end_window();
        }
        is_complete
    }

    /// Puts the queues that were held back into the backlog.
    fn end_window(&mut self) {
        for NameRef { namespace, object } in self.places.close_window() {
            self.backlog.serve_later(namespace, &object);
        }
        self.alarm.ring(Due::Now);
    }

    /// The id of the grant of a waiter that has everything. See the top of this file.
    pub(super) fn grant_id(&mut self, place: GrantId) -> Result<GrantId, Refusal> {
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

    /// Gives a grant that has just been granted another id than its place.
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
