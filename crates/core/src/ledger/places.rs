//! Places in queues that survive a restart.
//!
//! A waiting request has a place: the id by which its queues order it. Its grant gets the same id, with the exceptions
//! below. A client that was told the place, with a proof, presents both when it repeats the request after a restart, and the
//! request waits at its place again. The proof is a keyed hash of the place, the session, the request and what was
//! requested, so a client can neither choose a place nor use one for another request. The key is a record of the store.
//!
//! After a start that has restored sessions, a reconnect window is open. While it is open, a name whose head was
//! repeated grants nothing, because requests that were before that head may still come. The window ends when its time is
//! over, or when every restored session has attached and has repeated as many requests as it announced, or has ended. The
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
//! The grant of a repeated waiter gets a new id, because higher ids may have been granted since its place was given
//! out. So does the grant of a waiter whose id is lower than such a new id. Therefore, the ids of the grants of a name
//! grow (`docs/semantics.md`, "Fencing tokens").

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::num::NonZeroU32;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::backlog::NameRef;
use super::grants::{Grant, Part};
use crate::time::MonotonicMs;
use signalbox_model::{GrantId, Namespace, PlaceKey, PlaceProof, SessionId};

#[derive(Debug, Default)]
pub(super) struct Places {
    /// `None`: clients are not told their places, which would not survive a restart.
    key: Option<PlaceKey>,
    /// All ids of earlier runs are at most this one, and all ids of this run are above it.
    earlier: GrantId,
    /// The longest time for which the window is open after a start, in milliseconds; 0: it does not open.
    window_ms: u32,
    window: Option<Window>,
    /// Whether a waiter of this run has a place of an earlier run: only then can a grant get an id that is not its place.
    has_repeated: bool,
}

/// The purpose of a keyed hash that is not a proof of a place. A client cannot present one as a proof: these hashes
/// are never shown to a client, and the input of a proof is longer than that of a session's key.
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

    /// Sets the key, unless one is set. Returns whether it was set.
    pub(super) fn set_key_once(&mut self, key: PlaceKey) -> bool {
        let is_first = self.key.is_none();
        self.key.get_or_insert(key);
        is_first
    }

    /// Opens the window after everything is restored, with these sessions, whose longest time to live is `ttl_max_ms`. Returns
    /// when the window ends; `None`: it does not open.
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
        // Without a key, no client was told a place.
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

    /// Returns whether the window is open and every session is back.
    pub(super) fn is_complete(&self) -> bool {
        self.window.as_ref().is_some_and(|window| window.awaited.is_empty())
    }

    /// Ends the window. Returns the names to serve.
    pub(super) fn close_window(&mut self) -> Vec<NameRef> {
        self.window.take().map_or_else(Vec::new, |window| window.held_back)
    }

    /// Notes that a session has attached, and will repeat this many requests with their places.
    pub(super) fn attached(&mut self, session: SessionId, repetitions: u32) {
        let Some(window) = &mut self.window else { return };
        // A session of this run is not awaited.
        let Some(state) = window.awaited.get_mut(&session) else { return };
        match NonZeroU32::new(repetitions) {
            Some(missing) => *state = Awaited::Returning(missing),
            None => _ = window.awaited.remove(&session),
        }
    }

    /// Notes that a session has repeated one of the requests that it announced.
    pub(super) fn repeated(&mut self, session: SessionId) {
        let Some(window) = &mut self.window else { return };
        if let Some(Awaited::Returning(missing)) = window.awaited.get_mut(&session) {
            match NonZeroU32::new(missing.get() - 1) {
                Some(fewer) => *missing = fewer,
                None => _ = window.awaited.remove(&session),
            }
        }
    }

    /// Notes that a session has ended.
    pub(super) fn ended(&mut self, session: SessionId) {
        if let Some(window) = &mut self.window {
            window.awaited.remove(&session);
        }
    }

    /// Returns whether a waiter has a place of an earlier run.
    pub(super) fn is_repeated(&self, place: GrantId) -> bool {
        place <= self.earlier
    }

    /// Returns whether a waiter with this place is granted nothing for now.
    pub(super) fn is_held_back(&self, place: GrantId) -> bool {
        self.window.is_some() && self.is_repeated(place)
    }

    /// Notes that a waiter that is held back has joined the queue of this name.
    pub(super) fn hold_back(&mut self, name: NameRef) {
        if let Some(window) = &mut self.window {
            window.held_back.push(name);
        }
    }

    /// Returns whether a name is served when the window ends.
    pub(super) fn will_serve(&self, name: &NameRef) -> bool {
        let is_same = |other: &NameRef| other.namespace == name.namespace && other.object == name.object;
        self.window.as_ref().is_some_and(|window| window.held_back.iter().any(is_same))
    }

    /// Notes that a waiter has a place of an earlier run.
    pub(super) fn note_repetition(&mut self) {
        self.has_repeated = true;
    }

    pub(super) fn has_repeated(&self) -> bool {
        self.has_repeated
    }

    /// Returns the keyed hash of a text. Only servers with this store can compute it. `None`: there is no key.
    pub(super) fn keyed_hash(&self, purpose: Purpose, text: &[u8]) -> Option<[u8; 16]> {
        let mut hasher = SipHasher24::new_with_key(&self.key?.0);
        hasher.write(&[purpose as u8]);
        hasher.write(text);
        Some(hasher.finish128().as_bytes())
    }

    /// The proof of a waiter's place; `None`: there is no key.
    pub(super) fn proof(
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
