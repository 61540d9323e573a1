//! The only source of randomness in a simulation: a generator whose numbers all follow from the seed.

/// SplitMix64 by Steele, Lea and Flood: small, and good enough to choose faults.
pub struct Random(u64);

impl Random {
    /// An independent generator for one of several parts of a seed.
    pub fn of(seed: u64, part: u64) -> Self {
        let mut random = Self(seed ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn between_u32(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.between(low.into(), high.into())).expect("the bounds are of 32 bits")
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// One of several things, with a probability proportional to its weight.
    pub fn weighted<T: Copy>(&mut self, weights: &[(T, u64)]) -> T {
        let sum: u64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut left = self.next() % sum;
        for (thing, weight) in weights {
            if left < *weight {
                return *thing;
            }
            left -= weight;
        }
        unreachable!("the remainder is below the sum of the weights")
    }
}
