//! Single flights, as their clients see them: when a release with `done` may have been carried out.
//!
//! A request may be answered `Done` only if such a release may have been carried out after the request was first sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::scene::{Key, Scene};

/// The releases with `done`, by their grants.
#[derive(Default)]
pub struct Flights(BTreeMap<u64, Flight>);

struct Flight {
    name: Key,
    /// The connections over which its release may still arrive.
    via: BTreeSet<SocketAddr>,
    /// Its release may have been carried out until then.
    until_ms: u64,
}

impl Flights {
    /// A client begins to release a grant with `done`, and repeats that until it is answered.
    pub fn begin(&mut self, grant: u64, name: Key) {
        self.0.insert(grant, Flight { name, via: BTreeSet::new(), until_ms: u64::MAX });
    }

    /// A release is not carried out after this time.
    pub fn end(&mut self, grant: u64, until_ms: u64) {
        if let Some(flight) = self.0.get_mut(&grant) {
            flight.via.clear();
            flight.until_ms = until_ms;
        }
    }

    /// A client sends a release with `done` over a connection, for the first time or again.
    pub fn send(&mut self, grant: u64, name: Option<Key>, via: SocketAddr, now_ms: u64) {
        if let Some(name) = name {
            self.0.entry(grant).or_insert_with(|| Flight { name, via: BTreeSet::new(), until_ms: now_ms });
        }
        if let Some(flight) = self.0.get_mut(&grant) {
            flight.via.insert(via);
        }
    }

    /// The server executes nothing more from these connections.
    pub fn close(&mut self, is_closed: impl Fn(&SocketAddr) -> bool, now_ms: u64) {
        for flight in self.0.values_mut() {
            let before = flight.via.len();
            flight.via.retain(|via| !is_closed(via));
            if flight.via.len() < before {
                flight.until_ms = flight.until_ms.max(now_ms);
            }
        }
    }

    /// Whether a release of this name may have been carried out since.
    pub fn may_be_done(&self, name: &Key, since_ms: u64) -> bool {
        let mut own = self.0.values().filter(|flight| flight.name == *name);
        own.any(|flight| !flight.via.is_empty() || flight.until_ms >= since_ms)
    }
}

/// A release with `done` by the product's client. It may be carried out until it is answered, or, if this is dropped without an
/// answer, for a time to live after that.
pub struct DoneRelease<'a> {
    scene: &'a Scene,
    grant: u64,
    late_ms: u64,
}

impl<'a> DoneRelease<'a> {
    pub fn begin(scene: &'a Scene, grant: u64, name: Key, ttl_ms: u64) -> Self {
        scene.state().flights.begin(grant, name);
        Self { scene, grant, late_ms: ttl_ms }
    }

    pub fn answered(mut self) {
        self.late_ms = 0;
    }
}

impl Drop for DoneRelease<'_> {
    fn drop(&mut self) {
        let mut state = self.scene.state();
        let until_ms = state.now_ms + self.late_ms;
        state.flights.end(self.grant, until_ms);
    }
}
