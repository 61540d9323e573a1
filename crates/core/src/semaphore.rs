//! The state of a semaphore in addition to its consumption: its capacity, its peak (`semaphore.md`, "Acquire") and its
//! lifecycle.

use crate::invariant::invariant;

/// The most slots of a semaphore: they are numbered 0 to 65,535.
pub const SLOTS_MAX: u32 = 1 << 16;

/// The capacity of one semaphore, set by the Acquire that created it or by its declaration, and its peak usage.
#[derive(Debug)]
pub(super) struct Semaphore {
    /// The most that may be in use; 0 while the semaphore is being removed.
    pub(super) capacity: u32,
    pub(super) peak: u32,
    /// The part of the capacity that is not granted for now.
    pub(super) withheld: Withheld,
    pub(super) lifecycle: Lifecycle,
}

/// The part of a capacity that is not granted for now: all of it, or a number of slots. It has three bytes, since a
/// fourth would make every object larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Withheld([u8; 3]);

const _: () = assert!(size_of::<Semaphore>() <= 12);

/// How a semaphore came to exist, and whether it is being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// An Acquire created it. It is collected when nothing refers to it.
    Implicit,
    /// An administrator declared it. It stays until it is removed.
    Declared,
    /// Declared, and its resources are numbered slots.
    Numbered,
    /// Its removal was requested and is not stored yet. It grants nothing, and its waiters keep waiting.
    Closing,
    /// It is removed when its last holder has left. It grants nothing, and its waiters are refused.
    Removing,
}

impl Withheld {
    pub(super) const NOTHING: Self = Self([0; 3]);
    /// The semaphore is paused.
    pub(super) const ALL: Self = Self([u8::MAX; 3]);

    /// This many slots, which are out of service and not held.
    pub(super) fn slots(count: u32) -> Self {
        invariant!(count <= 1 << 16, "a semaphore has at most 2^16 slots");
        let [_, bytes @ ..] = count.to_be_bytes();
        Self(bytes)
    }

    fn count(self) -> u32 {
        let [high, middle, low] = self.0;
        u32::from_be_bytes([0, high, middle, low])
    }
}

impl Semaphore {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, peak: 0, withheld: Withheld::NOTHING, lifecycle: Lifecycle::Implicit }
    }

    /// The most that may be in use now.
    #[inline(always)]
    pub(super) fn usable(&self) -> u32 {
        match self.withheld {
            Withheld::NOTHING => self.capacity,
            Withheld::ALL => 0,
            slots => self.capacity.saturating_sub(slots.count()),
        }
    }

    /// Records that the consumption rose or fell to `after`.
    pub(super) fn note(&mut self, after: u32) {
        self.peak = self.peak.max(after);
    }

    /// The available resources: 0 if the consumption is above what may be in use (invariant 1).
    pub(super) fn available(&self, consumption: u32) -> u32 {
        self.usable().saturating_sub(consumption)
    }
}
