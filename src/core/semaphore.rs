//! What a semaphore remembers beside its consumption: its capacity, and its peak (`semaphore.md`, "Acquire").

/// The capacity of one semaphore, fixed by the Acquire that made it, and the most that was ever in use at once.
#[derive(Debug)]
pub(super) struct Semaphore {
    pub(super) capacity: u32,
    pub(super) peak: u32,
}

impl Semaphore {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, peak: 0 }
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
