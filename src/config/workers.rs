//! The key `workers`.

use std::fmt;
use std::num::NonZeroUsize;

/// How many threads serve connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerCount {
    /// Half of the cores, at least 1 and at most 4: clients on the same machine need cores too, and one thread answers
    /// some hundred thousand requests a second.
    #[default]
    HalfOfTheCores,
    /// The same, but no more than this: `workers` of a yrmcds.conf, which is 10 in the stock file because yrmcds' workers
    /// wait for their clients.
    AtMost(NonZeroUsize),
    /// This number.
    Exactly(NonZeroUsize),
}

impl WorkerCount {
    /// The number of threads on a machine with so many cores.
    pub fn threads(self, cores: usize) -> NonZeroUsize {
        let half = NonZeroUsize::new((cores / 2).clamp(1, 4)).expect("it is at least 1");
        match self {
            Self::HalfOfTheCores => half,
            Self::AtMost(most) => half.min(most),
            Self::Exactly(count) => count,
        }
    }

    /// What the same number in a yrmcds.conf means.
    pub(super) fn of_yrmcds(self) -> Self {
        match self {
            Self::Exactly(count) => Self::AtMost(count),
            other => other,
        }
    }
}

/// The value of the key; nothing if it is not set.
impl fmt::Display for WorkerCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HalfOfTheCores => Ok(()),
            Self::AtMost(count) | Self::Exactly(count) => count.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_half_as_many_workers_as_cores_and_at_most_four_unless_a_number_is_set() {
        let set = |count| WorkerCount::Exactly(NonZeroUsize::new(count).unwrap());
        for (count, cores, threads) in [
            (WorkerCount::HalfOfTheCores, 0, 1),
            (WorkerCount::HalfOfTheCores, 1, 1),
            (WorkerCount::HalfOfTheCores, 3, 1),
            (WorkerCount::HalfOfTheCores, 4, 2),
            (WorkerCount::HalfOfTheCores, 64, 4),
            (set(10).of_yrmcds(), 2, 1),
            (set(10).of_yrmcds(), 64, 4),
            (set(3).of_yrmcds(), 64, 3),
            (set(10), 2, 10),
        ] {
            assert_eq!(count.threads(cores).get(), threads, "{count:?} on {cores} cores");
        }
    }
}
