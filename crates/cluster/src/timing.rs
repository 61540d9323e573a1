//! The times of a cluster. All of them derive from the renew deadline, which every node has to have in common.
//!
//! A leader stops [`Timing::renew_deadline`] after it sent its last successful renewal, by its own clock. Another node
//! takes over [`Timing::lease_duration`] after it saw that renewal, by its own clock. The second is a tenth longer, so two
//! clocks may differ in rate by 5 % with a margin; tests let them differ by 8 %.

use std::time::Duration;

/// The times of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    renew_deadline: Duration,
}

impl Timing {
    /// The shortest renew deadline. An etcd that elects a leader answers nobody for up to 1.9 s.
    pub const RENEW_DEADLINE_MIN: Duration = Duration::from_secs(2);
    /// The longest renew deadline.
    pub const RENEW_DEADLINE_MAX: Duration = Duration::from_secs(60);
    /// Those of the longest renew deadline.
    pub const LONGEST: Self = Self { renew_deadline: Self::RENEW_DEADLINE_MAX };

    /// The times that derive from a renew deadline; `None` if that is too short or too long.
    pub fn new(renew_deadline: Duration) -> Option<Self> {
        let range = Self::RENEW_DEADLINE_MIN..=Self::RENEW_DEADLINE_MAX;
        range.contains(&renew_deadline).then_some(Self { renew_deadline })
    }

    /// How long a leader may serve after it sent its last successful renewal.
    pub fn renew_deadline(self) -> Duration {
        self.renew_deadline
    }

    /// The time between two renewals.
    pub fn retry_period(self) -> Duration {
        (self.renew_deadline / 6).max(Duration::from_millis(250))
    }

    /// The time between two looks of a standby at the leader. It adds to how long clients wait after an orderly stop.
    pub fn look_period(self) -> Duration {
        self.retry_period() / 2
    }

    /// The time between two looks of a standby that suspects the leader to have failed.
    pub fn hurried_period(self) -> Duration {
        self.retry_period() / 10
    }

    /// The longest time that one call to etcd may take. A request that an etcd member lost is sent to another one in time
    /// for the renew deadline.
    pub fn request_timeout(self) -> Duration {
        (self.renew_deadline / 5).min(Duration::from_millis(500))
    }

    /// How long a call to a healthy etcd takes at most.
    pub fn round_trip_max(self) -> Duration {
        self.renew_deadline / 20
    }

    /// How long a node waits after it saw the leader's last renewal, before it takes over.
    pub fn lease_duration(self) -> Duration {
        self.renew_deadline + self.renew_deadline / 10 + Duration::from_millis(100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn all_times_derive_from_the_renew_deadline() {
        let timing = Timing::new(3000 * MS).unwrap();
        assert_eq!((timing.renew_deadline(), timing.lease_duration()), (3000 * MS, 3400 * MS));
        assert_eq!((timing.retry_period(), timing.look_period()), (500 * MS, 250 * MS));
        assert_eq!((timing.hurried_period(), timing.request_timeout()), (50 * MS, 500 * MS));
        assert_eq!(timing.round_trip_max(), 150 * MS);
        let shortest = Timing::new(2000 * MS).unwrap();
        assert_eq!((shortest.lease_duration(), shortest.request_timeout()), (2300 * MS, 400 * MS));
        assert_eq!(Timing::LONGEST.request_timeout(), 500 * MS);
    }

    #[test]
    fn a_renew_deadline_has_limits() {
        let is_permitted = |ms| Timing::new(ms * MS).is_some();
        assert!(!is_permitted(1999) && is_permitted(2000));
        assert!(is_permitted(60_000) && !is_permitted(60_001));
    }
}
