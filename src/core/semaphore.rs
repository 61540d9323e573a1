//! The state of a semaphore in addition to its consumption: its capacity, its peak (`semaphore.md`, "Acquire") and its
//! lifecycle.

/// The capacity of one semaphore, set by the Acquire that created it or by its declaration, and its peak usage.
#[derive(Debug)]
pub(super) struct Semaphore {
    /// The most that may be in use now; 0 while the semaphore is being removed.
    pub(super) capacity: u32,
    pub(super) peak: u32,
    pub(super) lifecycle: Lifecycle,
}

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

impl Semaphore {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, peak: 0, lifecycle: Lifecycle::Implicit }
    }

    /// Records that the consumption rose or fell to `after`.
    pub(super) fn note(&mut self, after: u32) {
        self.peak = self.peak.max(after);
    }

    /// The available resources: 0 if the consumption is above the capacity (invariant 1).
    pub(super) fn available(&self, consumption: u32) -> u32 {
        self.capacity.saturating_sub(consumption)
    }
}
