//! The names of a load, and their distribution.

use fastrand::Rng;

/// How often each name is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// All names equally often.
    Uniform,
    /// The n-th name in proportion to 1/n: a few names are popular, as in many real loads.
    Zipf,
    /// Always the same name.
    One,
}

/// Names of equal length, in one piece of memory.
#[derive(Clone, Debug)]
pub struct Names {
    bytes: Vec<u8>,
    name_bytes: usize,
    count: u32,
    /// For the Zipf distribution: for each name, the share of draws that select it or a name before it. Otherwise empty.
    cumulative: Vec<f64>,
}

/// The prefix of all names, which identifies them on a server with other names.
const PREFIX: &[u8] = b"bench-";

impl Names {
    /// The minimum length of each name, in bytes, if there are `count` names.
    pub fn bytes_min(count: u32) -> usize {
        PREFIX.len() + count.saturating_sub(1).to_string().len()
    }

    /// Returns `count` names, such as `bench-0000000042`, but at least one, and only one for [`Distribution::One`]. Each has
    /// `name_bytes` bytes, or [`Names::bytes_min`] if that is more.
    pub fn new(count: u32, name_bytes: usize, distribution: Distribution) -> Self {
        let count = if distribution == Distribution::One { 1 } else { count.max(1) };
        let digits = name_bytes.max(Self::bytes_min(count)) - PREFIX.len();
        let mut bytes = Vec::with_capacity(count as usize * (PREFIX.len() + digits));
        for index in 0..count {
            bytes.extend_from_slice(PREFIX);
            bytes.extend_from_slice(format!("{index:0digits$}").as_bytes());
        }
        let cumulative = if distribution == Distribution::Zipf { zipf(count) } else { Vec::new() };
        Self { bytes, name_bytes: PREFIX.len() + digits, count, cumulative }
    }

    /// The number of names.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The name at an index.
    #[inline]
    pub fn name(&self, index: u32) -> &[u8] {
        let start = index as usize * self.name_bytes;
        &self.bytes[start..start + self.name_bytes]
    }

    /// Draws a name by the distribution, and returns its index.
    #[inline]
    pub fn draw(&self, random: &mut Rng) -> u32 {
        if self.cumulative.is_empty() {
            return random.u32(..self.count);
        }
        let share = random.f64();
        let index = self.cumulative.partition_point(|upper| *upper <= share);
        u32::try_from(index).unwrap_or(u32::MAX).min(self.count - 1)
    }
}

fn zipf(count: u32) -> Vec<f64> {
    let mut sum = 0.0;
    let sums = (1..=count).map(|rank| {
        sum += 1.0 / f64::from(rank);
        sum
    });
    let mut shares: Vec<f64> = sums.collect();
    shares.iter_mut().for_each(|share| *share /= sum);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_long_as_asked_for_and_differ() {
        let names = Names::new(1000, 16, Distribution::Uniform);
        assert_eq!(names.name(42), b"bench-0000000042");
        assert_eq!(names.name(999), b"bench-0000000999");
        assert_eq!(Names::new(1000, 9, Distribution::Uniform).name(999), b"bench-999");
        assert_eq!(Names::bytes_min(1000), 9);
    }

    #[test]
    fn zipf_draws_the_first_name_as_often_as_its_share() {
        let names = Names::new(100, 16, Distribution::Zipf);
        let mut random = Rng::with_seed(7);
        let mut drawn = [0u32; 100];
        for _ in 0..100_000 {
            drawn[names.draw(&mut random) as usize] += 1;
        }
        // The sum of 1/n to 100 is 5.187.
        assert!((18_500..20_000).contains(&drawn[0]), "{drawn:?}");
        assert!((9_000..10_300).contains(&drawn[1]), "{drawn:?}");
        assert!(drawn.iter().all(|times| *times > 0), "{drawn:?}");
    }

    #[test]
    fn one_is_always_the_same_and_uniform_reaches_all() {
        let mut random = Rng::with_seed(7);
        let one = Names::new(100, 16, Distribution::One);
        assert!((0..1000).all(|_| one.draw(&mut random) == 0));
        let uniform = Names::new(10, 16, Distribution::Uniform);
        let mut drawn = [0u32; 10];
        (0..10_000).for_each(|_| drawn[uniform.draw(&mut random) as usize] += 1);
        assert!(drawn.iter().all(|times| (850..1150).contains(times)), "{drawn:?}");
    }
}
