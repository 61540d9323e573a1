//! A busy worker yields its core once before it sleeps (`sched_yield`).
//!
//! While many clients are active, a worker that sleeps is woken by the first request, preempts the thread that runs on the
//! core (another worker or a client), and handles few requests at a time. If it yields first, it finds many requests
//! afterwards and need not sleep. `docs/decisions/0013-a-busy-worker-yields.md` has measurements, also beside threads
//! that do not give the core back.

use std::cell::{Cell, RefCell};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;

/// Reads between two sleeps from which on a worker yields. With fewer, few clients are active, and the next request should
/// be answered at once.
const MANY_READS: u32 = 16;

/// The longest time that other threads of this workload keep the core. A thread that keeps it longer does other work, and
/// may use up its time slice (1.4 to 4 ms in common configurations of Linux) each time that the worker yields.
const LONG_ABSENCE: Duration = Duration::from_millis(1);

/// After a long absence, the worker does not yield for this many times its length. The factor doubles with each further
/// long absence that comes before [`RECOVERY`] short ones, so a thread that never sleeps costs a worker a thousandth of its
/// time.
const BACKOFF_FACTOR_MIN: u32 = 8;
const BACKOFF_FACTOR_MAX: u32 = 1024;
const RECOVERY: u32 = 32;

/// The longest backoff, so that the worker tries again even after the process was stopped for an hour.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

thread_local! {
    static READS: Cell<u32> = const { Cell::new(0) };
    static POLICY: RefCell<YieldPolicy> = const { RefCell::new(YieldPolicy::NEW) };
}

/// Counts a read that brought bytes.
pub(super) fn count_read() {
    READS.set(READS.get().wrapping_add(1));
}

/// Makes the threads of a runtime yield before they sleep, if they had many reads.
pub(super) fn yield_before_sleep(runtime: &mut Builder) -> &mut Builder {
    runtime.on_thread_park(|| {
        if READS.take() >= MANY_READS {
            POLICY.with_borrow_mut(YieldPolicy::yield_core);
        }
    })
}

/// When a thread yields, by how long it was away before.
#[derive(Debug)]
struct YieldPolicy {
    /// The thread does not yield before this time.
    backoff_until: Option<Instant>,
    backoff_factor: u32,
    /// Short absences since the last long one.
    recovered: u32,
}

impl YieldPolicy {
    const NEW: Self = Self { backoff_until: None, backoff_factor: BACKOFF_FACTOR_MIN, recovered: RECOVERY };

    fn yield_core(&mut self) {
        let now = Instant::now();
        if !self.backs_off(now) {
            thread::yield_now();
            let back = Instant::now();
            self.record_absence(back, back - now);
        }
    }

    fn backs_off(&self, now: Instant) -> bool {
        self.backoff_until.is_some_and(|until| now < until)
    }

    /// Adapts to the time that other threads kept the core.
    fn record_absence(&mut self, back: Instant, absence: Duration) {
        if absence <= LONG_ABSENCE {
            self.recovered = self.recovered.saturating_add(1);
            return;
        }
        self.backoff_factor = if self.recovered < RECOVERY {
            (self.backoff_factor * 2).min(BACKOFF_FACTOR_MAX)
        } else {
            BACKOFF_FACTOR_MIN
        };
        self.recovered = 0;
        self.backoff_until = Some(back + absence.saturating_mul(self.backoff_factor).min(BACKOFF_MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::super::workers::Workers;
    use super::*;

    /// The time of a run of requests.
    const RUN: Duration = Duration::from_micros(50);

    const BRIEF: Duration = Duration::from_micros(100);

    /// Simulates a busy thread for a time, with the same absence whenever it yields. Returns how many runs of requests it
    /// had, and how often it yielded.
    fn simulate(
        policy: &mut YieldPolicy,
        now: &mut Instant,
        time: Duration,
        absence: Duration,
    ) -> (u32, u32) {
        let (mut runs, mut absences) = (0, 0);
        let end = *now + time;
        while *now < end {
            *now += RUN;
            runs += 1;
            if !policy.backs_off(*now) {
                *now += absence;
                policy.record_absence(*now, absence);
                absences += 1;
            }
        }
        (runs, absences)
    }

    /// Whether a worker yielded when it slept after so many reads.
    async fn yields_after(worker: &tokio::runtime::Handle, reads: u32) -> bool {
        let slept = async move {
            POLICY.set(YieldPolicy::NEW);
            (0..reads).for_each(|_| count_read());
            tokio::time::sleep(Duration::from_millis(1)).await;
            POLICY.with_borrow(|policy| policy.recovered != YieldPolicy::NEW.recovered)
        };
        worker.spawn(slept).await.unwrap()
    }

    #[tokio::test]
    async fn a_worker_yields_after_many_reads_only() {
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let worker = workers.background();
        for _ in 0..3 {
            assert!(yields_after(worker, MANY_READS).await);
            assert!(!yields_after(worker, MANY_READS - 1).await);
        }
    }

    #[test]
    fn a_thread_yields_each_time_if_absences_are_short() {
        let (mut policy, mut now) = (YieldPolicy::NEW, Instant::now());
        for absence in [BRIEF, LONG_ABSENCE] {
            let (runs, absences) = simulate(&mut policy, &mut now, Duration::from_secs(1), absence);
            assert_eq!(absences, runs);
        }
    }

    #[test]
    fn threads_that_never_sleep_cost_a_thousandth_of_the_time() {
        for slice in [LONG_ABSENCE + Duration::from_nanos(1), LONG_ABSENCE * 2, LONG_ABSENCE * 4] {
            let (mut policy, mut now) = (YieldPolicy::NEW, Instant::now());
            // Until the factor is at its maximum.
            simulate(&mut policy, &mut now, slice * BACKOFF_FACTOR_MAX * 2, slice);
            let time = slice * BACKOFF_FACTOR_MAX * 20;
            let (_, absences) = simulate(&mut policy, &mut now, time, slice);
            assert!(absences > 0, "it tries again from time to time");
            assert!(slice * absences <= time / 1000, "{slice:?}: {absences} times in {time:?}");
        }
    }

    #[test]
    fn a_long_absence_among_short_ones_causes_a_short_backoff() {
        let (mut policy, mut now) = (YieldPolicy::NEW, Instant::now());
        for _ in 0..100 {
            simulate(&mut policy, &mut now, (RUN + BRIEF) * RECOVERY, BRIEF);
            policy.record_absence(now, LONG_ABSENCE * 2);
            let backoff_until = now + LONG_ABSENCE * 2 * BACKOFF_FACTOR_MIN;
            assert!(policy.backs_off(backoff_until - RUN));
            assert!(!policy.backs_off(backoff_until));
            now = backoff_until;
        }
    }

    #[test]
    fn a_thread_that_was_stopped_tries_again() {
        let (mut policy, mut now) = (YieldPolicy::NEW, Instant::now());
        policy.record_absence(now, Duration::MAX);
        now += BACKOFF_MAX;
        assert!(!policy.backs_off(now));
    }
}
