//! The two kinds of names.

/// The two kinds of names; the same bytes may name one object in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// `counter.md`: a consumption; the maximum comes with each Acquire.
    Counters,
    /// `semaphore.md`: a capacity, fixed by the Acquire that creates the semaphore, and the resources available of it.
    Semaphores,
}

impl Namespace {
    /// Both, in the order of their default ports.
    pub const ALL: [Self; 2] = [Self::Counters, Self::Semaphores];
}
