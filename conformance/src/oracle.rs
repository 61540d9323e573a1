//! Records when clients believed that they held a permit, and finds beliefs that were wrong.
//!
//! The suite does not know at which moment between a command and its answer a driver has asked its client. So a belief
//! is certain only from the answer to the acquire until the time at which the suite **sent** the last check that the
//! client affirmed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The belief of a client that it holds a permit.
#[derive(Clone, Debug)]
struct Belief {
    claims: Vec<(String, u64)>,
    who: String,
    from: Instant,
    until: Instant,
}

/// All beliefs about the names of one server, whose capacities do not change.
#[derive(Debug, Default)]
pub struct Oracle(Mutex<Vec<Belief>>);

pub type BeliefId = usize;

impl Oracle {
    fn beliefs(&self) -> MutexGuard<'_, Vec<Belief>> {
        self.0.lock().expect("no thread panics with the lock")
    }

    /// Records that a client holds, by its own report, one resource of each of these names; each has a maximum.
    pub fn begin(&self, who: String, claims: Vec<(String, u64)>) -> BeliefId {
        let now = Instant::now();
        let mut beliefs = self.beliefs();
        beliefs.push(Belief { claims, who, from: now, until: now });
        beliefs.len() - 1
    }

    /// Records that the client affirmed a check that was sent at this time.
    pub fn affirm(&self, belief: BeliefId, sent: Instant) {
        let belief = &mut self.beliefs()[belief];
        belief.until = belief.until.max(sent);
    }

    /// Fails if more clients believed at the same time that they held a name than it has resources.
    pub fn verdict(&self) -> Result<(), String> {
        let beliefs = self.beliefs();
        let mut names: BTreeMap<&str, (u64, Vec<&Belief>)> = BTreeMap::new();
        for belief in &*beliefs {
            for (name, capacity) in &belief.claims {
                names.entry(name).or_insert((*capacity, Vec::new())).1.push(belief);
            }
        }
        for (name, (capacity, beliefs)) in names {
            for belief in &beliefs {
                let at = belief.from;
                let also = beliefs.iter().filter(|other| other.from <= at && at < other.until);
                let believers: Vec<_> = also.map(|other| other.who.as_str()).collect();
                if believers.len() as u64 > capacity {
                    return Err(format!(
                        "{} clients believe at the same time that they hold {name:?}, of which there are {capacity}: {}",
                        believers.len(),
                        believers.join(", ")
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns how much earlier a lease must end for its client than at the server: 4 % of its time to live (docs/http.md).
pub fn margin(ttl: Duration) -> Duration {
    ttl / 25
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_beliefs_than_the_capacity_are_found() {
        for (capacity, is_right) in [(1, false), (2, true)] {
            let oracle = Oracle::default();
            let claims = vec![("a".to_owned(), capacity)];
            let first = oracle.begin("first".to_owned(), claims.clone());
            let second = oracle.begin("second".to_owned(), claims);
            let later = Instant::now() + Duration::from_secs(1);
            oracle.affirm(first, later);
            assert!(
                oracle.verdict().is_ok(),
                "the second is not certain to have begun before the first ended"
            );
            oracle.affirm(second, later);
            assert_eq!(oracle.verdict().is_ok(), is_right);
        }
    }

    #[test]
    fn beliefs_that_follow_each_other_are_right() {
        let oracle = Oracle::default();
        let first = oracle.begin("first".to_owned(), vec![("a".to_owned(), 1)]);
        oracle.affirm(first, Instant::now());
        std::thread::sleep(Duration::from_millis(1));
        let second = oracle.begin("second".to_owned(), vec![("a".to_owned(), 1)]);
        oracle.affirm(second, Instant::now() + Duration::from_secs(1));
        assert!(oracle.verdict().is_ok());
    }
}
