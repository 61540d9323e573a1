//! What a worker does before it sleeps: after a run of many requests it lets other threads have its core once.
//!
//! A worker that sleeps with many clients at work is woken by the first request that comes, displaces whoever has the
//! core, which may be another worker or a client at work, and answers few requests at a time. If it gives way first it
//! comes back to many, and need not sleep. Measured, and held against threads that do not let go of a core again, in
//! `docs/decisions/0013-a-busy-worker-yields.md`.

use std::cell::{Cell, RefCell};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;

/// Reads between two sleeps from which on a worker gives way. With fewer, hardly anybody is at work just then, and the
/// next request is to be answered at once.
const MANY_READS: u32 = 16;

/// Longest that others usually have the core. Who has it for longer has work of his own, and may keep it until his time
/// slice ends (1.4 to 4 ms as Linux is configured), each time that he is let.
const LONG_ABSENCE: Duration = Duration::from_millis(1);

/// After a long absence the worker does not give way for as many times its length. With each further one that comes
/// before [`RECOVERY`] others the factor doubles, so work that never rests costs a worker a thousandth of its time.
const REST_FACTOR_MIN: u32 = 8;
const REST_FACTOR_MAX: u32 = 1024;
const RECOVERY: u32 = 32;

/// Longest rest: whatever kept the thread away, were it that the process was stopped for an hour, it tries again.
const REST_MAX: Duration = Duration::from_secs(10);

thread_local! {
    static READS: Cell<u32> = const { Cell::new(0) };
    static HABIT: RefCell<Habit> = const { RefCell::new(Habit::NEW) };
}

/// Counts a read of a connection that brought something.
pub(super) fn note_read() {
    READS.set(READS.get().wrapping_add(1));
}

/// Has the threads of a runtime give way before they sleep, where they had many reads.
pub(super) fn give_way_before_sleep(runtime: &mut Builder) -> &mut Builder {
    runtime.on_thread_park(|| {
        if READS.take() >= MANY_READS {
            HABIT.with_borrow_mut(Habit::give_way);
        }
    })
}

/// What a thread has learnt from giving way.
#[derive(Debug)]
struct Habit {
    /// The thread does not give way before this time.
    rests_until: Option<Instant>,
    rest_factor: u32,
    /// Absences since the last long one.
    recovered: u32,
}

impl Habit {
    const NEW: Self = Self { rests_until: None, rest_factor: REST_FACTOR_MIN, recovered: RECOVERY };

    fn give_way(&mut self) {
        let now = Instant::now();
        if !self.rests(now) {
            thread::yield_now();
            let back = Instant::now();
            self.note_absence(back, back - now);
        }
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Learns how long others had the core.
    fn note_absence(&mut self, back: Instant, absence: Duration) {
        if absence <= LONG_ABSENCE {
            self.recovered = self.recovered.saturating_add(1);
            return;
        }
        self.rest_factor = if self.recovered < RECOVERY {
            (self.rest_factor * 2).min(REST_FACTOR_MAX)
        } else {
            REST_FACTOR_MIN
        };
        self.recovered = 0;
        self.rests_until = Some(back + absence.saturating_mul(self.rest_factor).min(REST_MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::super::workers::Workers;
    use super::*;
    use crate::core::Namespace;

    /// A run of requests.
    const RUN: Duration = Duration::from_micros(50);

    const BRIEF: Duration = Duration::from_micros(100);

    /// Lets a busy thread work for a time, with the same absence whenever it gives way. Gives how often it had a run of
    /// requests, and how often it gave way.
    fn live(habit: &mut Habit, now: &mut Instant, time: Duration, absence: Duration) -> (u32, u32) {
        let (mut runs, mut absences) = (0, 0);
        let end = *now + time;
        while *now < end {
            *now += RUN;
            runs += 1;
            if !habit.rests(*now) {
                *now += absence;
                habit.note_absence(*now, absence);
                absences += 1;
            }
        }
        (runs, absences)
    }

    /// Tells whether a worker gave way when it slept after so many reads.
    async fn gives_way_after(worker: &tokio::runtime::Handle, reads: u32) -> bool {
        let slept = async move {
            HABIT.set(Habit::NEW);
            (0..reads).for_each(|_| note_read());
            tokio::time::sleep(Duration::from_millis(1)).await;
            HABIT.with_borrow(|habit| habit.recovered != Habit::NEW.recovered)
        };
        worker.spawn(slept).await.unwrap()
    }

    #[tokio::test]
    async fn a_worker_gives_way_after_many_reads_only() {
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let worker = workers.background(Namespace::Counters);
        for _ in 0..3 {
            assert!(gives_way_after(worker, MANY_READS).await);
            assert!(!gives_way_after(worker, MANY_READS - 1).await);
        }
    }

    #[test]
    fn a_thread_gives_way_each_time_to_those_who_are_brief() {
        let (mut habit, mut now) = (Habit::NEW, Instant::now());
        for absence in [BRIEF, LONG_ABSENCE] {
            let (runs, absences) = live(&mut habit, &mut now, Duration::from_secs(1), absence);
            assert_eq!(absences, runs);
        }
    }

    #[test]
    fn work_that_never_rests_takes_a_thousandth_of_the_time() {
        for slice in [LONG_ABSENCE + Duration::from_nanos(1), LONG_ABSENCE * 2, LONG_ABSENCE * 4] {
            let (mut habit, mut now) = (Habit::NEW, Instant::now());
            // Until it has learnt that.
            live(&mut habit, &mut now, slice * REST_FACTOR_MAX * 2, slice);
            let time = slice * REST_FACTOR_MAX * 20;
            let (_, absences) = live(&mut habit, &mut now, time, slice);
            assert!(absences > 0, "it tries again now and then");
            assert!(slice * absences <= time / 1000, "{slice:?}: {absences} times in {time:?}");
        }
    }

    #[test]
    fn a_long_absence_among_brief_ones_costs_little_rest() {
        let (mut habit, mut now) = (Habit::NEW, Instant::now());
        for _ in 0..100 {
            live(&mut habit, &mut now, (RUN + BRIEF) * RECOVERY, BRIEF);
            habit.note_absence(now, LONG_ABSENCE * 2);
            let rests_until = now + LONG_ABSENCE * 2 * REST_FACTOR_MIN;
            assert!(habit.rests(rests_until - RUN));
            assert!(!habit.rests(rests_until));
            now = rests_until;
        }
    }

    #[test]
    fn a_thread_that_was_stopped_tries_again() {
        let (mut habit, mut now) = (Habit::NEW, Instant::now());
        habit.note_absence(now, Duration::MAX);
        now += REST_MAX;
        assert!(!habit.rests(now));
    }
}
