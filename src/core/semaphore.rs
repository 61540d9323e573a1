//! What a semaphore remembers beside its consumption: its capacity, its peak (`semaphore.md`, "Acquire"), and whether
//! somebody declared it.

/// The capacity of one semaphore, fixed by the Acquire that made it or by who declared it, and the most that was ever
/// in use at once.
#[derive(Debug)]
pub(super) struct Semaphore {
    /// What may be in use now: 0 while it is being removed.
    pub(super) capacity: u32,
    pub(super) peak: u32,
    pub(super) standing: Standing,
}

/// Whose a semaphore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// An Acquire made it, and it is gone when nobody holds it.
    Made,
    /// Somebody declared it: it stays until it is removed.
    Declared,
    /// The same, and its resources have numbers.
    Numbered,
    /// Its removal was asked for and is not stored yet: it grants nothing, and refuses nobody who waits.
    Closing,
    /// It is gone with its last holder.
    Removing,
}

impl Semaphore {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, peak: 0, standing: Standing::Made }
    }

    /// Notes that the consumption rose or fell to `after`.
    pub(super) fn note(&mut self, after: u32) {
        self.peak = self.peak.max(after);
    }

    /// What is left. A consumption above the capacity leaves nothing (invariant 1).
    pub(super) fn available(&self, consumption: u32) -> u32 {
        self.capacity.saturating_sub(consumption)
    }
}
