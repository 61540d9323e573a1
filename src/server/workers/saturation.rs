//! Whether a worker is saturated: its thread uses nearly all of a core, so its connections wait for each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use tracing::warn;

use super::super::state::Server;

/// The time over which a worker's share of a core is measured. Shorter bursts are ordinary.
const PERIOD: Duration = Duration::from_secs(5);

/// From this share of a core on, a worker is saturated. The time that a thread waits for a core does not count: where cores
/// are lacking, another worker would wait too.
const SATURATED: f64 = 0.95;

/// It remains so down to this share, so that a load that varies a little is reported once.
const STILL_SATURATED: f64 = 0.8;

/// Watches the worker that runs this task, until it is aborted: counts it in [`Server::saturated_workers`] while it is
/// saturated, and logs that once until it recovers.
pub(in crate::server) async fn watch_saturation(server: Arc<Server>, worker: usize, workers: usize) {
    let mut was_saturated = false;
    let mut measured = (Instant::now(), cpu_time());
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = (Instant::now(), cpu_time());
        let share = (now.1 - measured.1).as_secs_f64() / (now.0 - measured.0).as_secs_f64();
        measured = now;
        let is_saturated = is_saturated(share, was_saturated);
        match (was_saturated, is_saturated) {
            (false, true) => {
                server.saturated_workers.fetch_add(1, Ordering::Relaxed);
                warn!(
                    worker,
                    workers,
                    "a worker thread is saturated, and its clients wait; if the machine has idle cores, set the key \
                     workers to a higher number and restart"
                );
            }
            (true, false) => {
                server.saturated_workers.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        was_saturated = is_saturated;
    }
}

/// The time that this thread has run on a core.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

fn is_saturated(share: f64, was_saturated: bool) -> bool {
    share >= if was_saturated { STILL_SATURATED } else { SATURATED }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_saturated_until_it_recovers() {
        let mut saturated = false;
        let shares = [0.5, 0.94, 0.95, 1.0, 0.8, 0.79, 0.94, 0.99];
        let course = shares.map(|share| {
            saturated = is_saturated(share, saturated);
            saturated
        });
        assert_eq!(course, [false, false, true, true, true, false, false, true]);
    }

    #[test]
    fn the_time_of_a_thread_grows_while_it_works() {
        let before = cpu_time();
        while cpu_time() < before + Duration::from_millis(1) {}
    }
}
