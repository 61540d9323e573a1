//! How much work connections make, and which of them move to another worker.
//!
//! Work is counted in units, by connection and by worker. A tenth of a second is a tick: the load of a connection is what
//! it made in the last tick that is over. When connections have to move, the worker's gauge has an [`Offer`]: each
//! connection that fits into it moves at its next turn.

use std::mem;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::WorkerIndex;

/// Units of work of a read with its part of the writing: it costs about as much as so many requests.
const READ_UNITS: u32 = 16;

/// The work that a connection has made.
#[derive(Debug, Default)]
pub(in crate::server) struct ConnectionLoad {
    /// Reads and requests that no worker has counted yet.
    reads: u32,
    requests: u32,
    /// The tick of `current`.
    tick: u32,
    current: u32,
    /// Of the tick before.
    previous: u32,
}

/// The work of a worker's connections, and the offer to them.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    /// Units since the start. Only the worker's own thread adds to this and to the requests.
    units: AtomicU64,
    /// Executed requests since the start.
    requests: AtomicU64,
    /// An [`Offer`].
    offer: AtomicU64,
    /// The current tick.
    tick: AtomicU32,
}

/// Room on another worker for connections of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) to: WorkerIndex,
    pub(super) room: Room,
}

/// How much an offer has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Connections that together made so many units in the last tick.
    Units(u32),
    /// All connections, now and later: the worker is retired.
    All,
}

impl ConnectionLoad {
    /// Counts a read that brought bytes.
    pub(in crate::server) fn count_read(&mut self) {
        self.reads = self.reads.saturating_add(1);
    }

    /// Counts executed requests.
    pub(in crate::server) fn count_requests(&mut self, requests: usize) {
        self.requests = self.requests.saturating_add(u32::try_from(requests).unwrap_or(u32::MAX));
    }

    /// Adds what is not counted yet to a tick. Returns it in units and in requests.
    fn count(&mut self, tick: u32) -> (u32, u32) {
        if tick != self.tick {
            self.previous = if tick == self.tick.wrapping_add(1) { self.current } else { 0 };
            (self.tick, self.current) = (tick, 0);
        }
        let requests = mem::take(&mut self.requests);
        let units = mem::take(&mut self.reads).saturating_mul(READ_UNITS).saturating_add(requests);
        self.current = self.current.saturating_add(units);
        (units, requests)
    }

    /// The units by which it fills an offer. A connection that was idle may be busy from now on: it counts for a read.
    fn weight(&self) -> u32 {
        self.previous.max(self.current).max(READ_UNITS)
    }
}

impl Gauge {
    /// Counts the work of a connection, and returns the worker that it has to move to, if there is one.
    #[inline]
    pub(super) fn count(&self, load: &mut ConnectionLoad) -> Option<WorkerIndex> {
        let (units, requests) = load.count(self.tick.load(Ordering::Relaxed));
        // No other thread writes them, so nothing is lost in between.
        self.units.store(self.units() + u64::from(units), Ordering::Relaxed);
        self.requests.store(self.requests() + u64::from(requests), Ordering::Relaxed);
        let offer = self.offer.load(Ordering::Relaxed);
        if offer == Offer::NONE { None } else { self.accept_offer(load.weight()) }
    }

    /// Units since the start.
    pub(super) fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Executed requests since the start.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Begins a tick.
    pub(super) fn begin_tick(&self, tick: u32) {
        self.tick.store(tick, Ordering::Relaxed);
    }

    /// Replaces the offer.
    pub(super) fn set_offer(&self, offer: Option<Offer>) {
        self.offer.store(offer.map_or(Offer::NONE, Offer::encode), Ordering::Relaxed);
    }

    #[cold]
    fn accept_offer(&self, weight: u32) -> Option<WorkerIndex> {
        let mut to = None;
        let accept = |number| {
            let (taken, left) = Offer::decode(number)?.accept(weight)?;
            to = Some(taken);
            Some(left.map_or(Offer::NONE, Offer::encode))
        };
        // A failure means that the connection does not fit.
        let _ = self.offer.fetch_update(Ordering::Relaxed, Ordering::Relaxed, accept);
        to
    }
}

impl Offer {
    const NONE: u64 = 0;

    /// What a connection of this weight does with the offer: where it moves, and what is left of the offer. `None`: it is
    /// too large for what is left.
    fn accept(self, weight: u32) -> Option<(WorkerIndex, Option<Self>)> {
        let left = match self.room {
            Room::All => Some(self),
            // Half as much as fits too much is better than nothing: two connections of nearly the same load are separated.
            Room::Units(units) if weight <= units.saturating_add(units / 2) => {
                let left = units.saturating_sub(weight);
                (left > 0).then_some(Self { to: self.to, room: Room::Units(left) })
            }
            Room::Units(_) => return None,
        };
        Some((self.to, left))
    }

    /// In one number: the worker in the upper half, the room in the lower one.
    fn encode(self) -> u64 {
        let room = match self.room {
            Room::Units(units) => units.min(u32::MAX - 1),
            Room::All => u32::MAX,
        };
        (u64::from(self.to.0) + 1) << 32 | u64::from(room)
    }

    fn decode(number: u64) -> Option<Self> {
        let to = WorkerIndex(u32::try_from(number >> 32).ok()?.checked_sub(1)?);
        let room = match number as u32 {
            u32::MAX => Room::All,
            units => Room::Units(units),
        };
        Some(Self { to, room })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_used_up_by_what_fits() {
        let gauge = Gauge::default();
        let offer = Offer { to: WorkerIndex(3), room: Room::Units(100) };
        gauge.set_offer(Some(offer));
        assert_eq!(gauge.accept_offer(151), None, "too large");
        assert_eq!(gauge.accept_offer(60), Some(WorkerIndex(3)));
        assert_eq!(gauge.accept_offer(61), None, "too large for what is left");
        assert_eq!(gauge.accept_offer(50), Some(WorkerIndex(3)));
        assert_eq!(gauge.accept_offer(1), None, "it is used up");
    }

    #[test]
    fn an_offer_to_all_stays() {
        let gauge = Gauge::default();
        gauge.set_offer(Some(Offer { to: WorkerIndex(0), room: Room::All }));
        for _ in 0..3 {
            assert_eq!(gauge.accept_offer(u32::MAX), Some(WorkerIndex(0)));
        }
        gauge.set_offer(None);
        assert_eq!(gauge.accept_offer(1), None);
    }

    #[test]
    fn the_load_of_a_connection_is_that_of_the_tick_before() {
        let (gauge, mut load) = (Gauge::default(), ConnectionLoad::default());
        load.count_requests(200);
        gauge.count(&mut load);
        assert_eq!((gauge.units(), load.weight()), (200, 200));
        gauge.begin_tick(1);
        load.count_read();
        gauge.count(&mut load);
        assert_eq!((gauge.units(), load.weight()), (200 + u64::from(READ_UNITS), 200));
        gauge.begin_tick(3);
        gauge.count(&mut load);
        assert_eq!(load.weight(), READ_UNITS, "it was idle for a whole tick");
    }
}
