//! Explores races on one name (acquire, release, the end of a session, a sweep and a Dump, in every order that a
//! scheduler produces), and those of a connection that moves to another task while a message is sent to it. The code of the core
//! runs with the locks of shuttle (`crates/core/src/sync.rs` lists what that excludes).
//!
//! ```sh
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test --package signalbox-core --test races
//! ```
//!
//! `SIGNALBOX_RACES` sets the number of schedules for each scenario. They follow from a fixed seed, so a failure is
//! reproducible; shuttle prints its schedule, and reads another seed from `SHUTTLE_RANDOM_SEED`.

#![cfg(shuttle)]

use std::sync::Arc;
use std::task::Wake;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;
use signalbox_core::{Claim, Core, DumpItem, Limits, Mailbox, Message, NameHasher, RegistryStats, Session};
use signalbox_model::UnixSeconds;
use signalbox_model::{Namespace, Notice, Refusal};

/// The default number of schedules for a scenario, for each of two schedulers in each of two namespaces.
const SCHEDULES: usize = 1_000;

/// The most switches that the second scheduler makes while nothing blocks: few faults need more.
const SWITCHES_MAX: usize = 3;

const SEED: u64 = 20_261_121;

/// The time before the scenario starts.
const EARLY: UnixSeconds = UnixSeconds(1_000);

/// A time in a later interval, when an unchanged counter may be collected.
const NOW: UnixSeconds = UnixSeconds(2_000);

/// A time at which every name without holders may be collected.
const LATE: UnixSeconds = UnixSeconds(3_000);

const NAME: &[u8] = b"contended";

/// Runs a scenario in both namespaces under many schedules: half of them choose at random at every step, and half have
/// few switches at random positions.
fn explore(scenario: impl Fn(&Races) + Send + Sync + Copy + 'static) {
    let schedules = std::env::var("SIGNALBOX_RACES")
        .map_or(SCHEDULES, |text| text.parse().expect("SIGNALBOX_RACES is a number"));
    for namespace in Namespace::ALL {
        run(RandomScheduler::new_from_seed(SEED, schedules), namespace, scenario);
        run(PctScheduler::new_from_seed(SEED, SWITCHES_MAX, schedules), namespace, scenario);
    }
}

fn run(
    scheduler: impl Scheduler + 'static,
    namespace: Namespace,
    scenario: impl Fn(&Races) + Send + Sync + 'static,
) {
    shuttle::Runner::new(scheduler, shuttle::Config::default()).run(move || {
        let races = Races::new(namespace);
        scenario(&races);
        races.assert_accounting();
        races.assert_all_can_be_collected();
    });
}

/// A core and the namespace in which the scenario runs.
struct Races {
    core: Core,
    namespace: Namespace,
}

impl Races {
    fn new(namespace: Namespace) -> Self {
        let interval_s = 100.try_into().unwrap();
        Self { core: Core::new(interval_s, NameHasher::with_seeds(1, 2, 3, 4)), namespace }
    }

    fn acquire_at(
        &self,
        now: UnixSeconds,
        name: &[u8],
        session: &mut Session,
        maximum: u32,
    ) -> Result<(), Refusal> {
        let claim = Claim::new(1, maximum).unwrap();
        self.core.acquire(self.namespace, name, claim, session, now)
    }

    /// Acquires one resource of at most `maximum`.
    fn acquire(&self, session: &mut Session, maximum: u32) -> Result<(), Refusal> {
        self.acquire_at(NOW, NAME, session, maximum)
    }

    /// Releases one resource.
    fn release(&self, session: &mut Session) -> Result<(), Refusal> {
        self.core.release(self.namespace, NAME, 1, session, NOW)
    }

    /// A session that acquired one resource of at most `maximum` long ago.
    fn holder(&self, maximum: u32) -> Session {
        let mut session = self.core.open_session();
        self.acquire_at(EARLY, NAME, &mut session, maximum).unwrap();
        session
    }

    /// Leaves a name that exists and that a sweep would collect.
    fn leave_behind(&self, maximum: u32) {
        let mut session = self.holder(maximum);
        self.core.release(self.namespace, NAME, 1, &mut session, EARLY).unwrap();
    }

    fn end(&self, session: Session) {
        let mut ending = self.core.end_session(session);
        while ending.step(1, NOW) {}
    }

    fn sweep_at(&self, now: UnixSeconds) -> u64 {
        let mut sweep = self.core.sweep(self.namespace);
        while sweep.step(1, now) {}
        sweep.collected()
    }

    fn sweep(&self) -> u64 {
        self.sweep_at(NOW)
    }

    fn dump(&self) -> Vec<(Vec<u8>, DumpItem)> {
        let mut dump = self.core.dump(self.namespace);
        let mut entries = Vec::new();
        while let Some(entry) = dump.next(&self.core, NOW, |name, item| (name.to_vec(), item)) {
            entries.push(entry);
        }
        entries
    }

    fn stats(&self) -> RegistryStats {
        self.core.stats(self.namespace)
    }

    /// The consumption of the name; 0 if it does not exist.
    fn consumption(&self) -> u32 {
        let entries = self.dump();
        entries.iter().find(|(name, _)| name == NAME).map_or(0, |(_, item)| item.consumption)
    }

    /// Checks invariant 1, and that the statistics match a Dump. Valid when no operation is in progress.
    fn assert_accounting(&self) {
        let mut failures = Vec::new();
        let mut check = self.core.check(self.namespace);
        while check.step(1, &mut failures) {}
        assert_eq!(failures, []);
        let entries = self.dump();
        assert_eq!(entries.len() as u64, self.stats().objects, "{entries:?}");
    }

    /// Checks that every name without holders can be collected, and that no collected name is counted.
    fn assert_all_can_be_collected(&self) {
        let held = self.dump().iter().filter(|(_, item)| item.consumption > 0).count();
        self.sweep_at(LATE);
        assert_eq!(self.stats().objects, held as u64);
        assert_eq!(self.dump().len(), held);
    }
}

#[test]
fn a_name_that_is_swept_while_it_is_acquired_is_held_or_created_again() {
    explore(|races| {
        races.leave_behind(1);
        let mut session = races.core.open_session();
        thread::scope(|threads| {
            threads.spawn(|| assert_eq!(races.acquire(&mut session, 1), Ok(())));
            threads.spawn(|| races.sweep());
        });
        assert_eq!(races.consumption(), 1);
        assert_eq!(races.release(&mut session), Ok(()), "what was acquired is held");
        assert_eq!(races.consumption(), 0);
    });
}

#[test]
fn two_sessions_that_acquire_a_name_during_a_sweep_share_one_limit() {
    explore(|races| {
        races.leave_behind(1);
        let [mut one, mut two] = [races.core.open_session(), races.core.open_session()];
        let won = thread::scope(|threads| {
            let one = threads.spawn(|| races.acquire(&mut one, 1));
            let two = threads.spawn(|| races.acquire(&mut two, 1));
            threads.spawn(|| races.sweep());
            [one.join().unwrap(), two.join().unwrap()]
        });
        assert!(
            won == [Ok(()), Err(Refusal::NotAvailable)] || won == [Err(Refusal::NotAvailable), Ok(())],
            "{won:?}"
        );
        assert_eq!(races.consumption(), 1);
    });
}

#[test]
fn released_resources_can_be_acquired_by_another_session_during_a_sweep() {
    explore(|races| {
        let mut holder = races.holder(1);
        let mut next = races.core.open_session();
        let outcome = thread::scope(|threads| {
            let acquired = threads.spawn(|| {
                let outcome = races.acquire(&mut next, 1);
                (outcome, races.acquire(&mut next, 2))
            });
            threads.spawn(|| assert_eq!(races.release(&mut holder), Ok(())));
            threads.spawn(|| races.sweep());
            acquired.join().unwrap()
        });
        let held = [outcome.0, outcome.1].iter().filter(|outcome| outcome.is_ok()).count() as u32;
        assert_eq!(races.consumption(), held, "{outcome:?}");
        for _ in 0..held {
            assert_eq!(races.release(&mut next), Ok(()));
        }
        assert_eq!(races.consumption(), 0);
    });
}

#[test]
fn the_end_of_a_session_takes_nothing_from_another_session_that_releases() {
    explore(|races| {
        let [mut leaving, mut releasing, mut staying] = [races.holder(3), races.holder(3), races.holder(3)];
        races.acquire_at(EARLY, b"another", &mut leaving, 1).unwrap();
        thread::scope(|threads| {
            threads.spawn(move || races.end(leaving));
            threads.spawn(|| assert_eq!(races.release(&mut releasing), Ok(())));
            threads.spawn(|| races.sweep());
        });
        assert_eq!(races.consumption(), 1, "the remaining session keeps its holding");
        assert_eq!(races.release(&mut staying), Ok(()));
        assert_eq!(races.release(&mut releasing), Err(Refusal::NotAcquired));
    });
}

#[test]
fn resources_of_an_ended_session_can_be_acquired_during_a_sweep() {
    explore(|races| {
        let leaving = races.holder(1);
        let mut next = races.core.open_session();
        let acquired = thread::scope(|threads| {
            threads.spawn(move || races.end(leaving));
            let acquired = threads.spawn(|| races.acquire(&mut next, 1));
            threads.spawn(|| races.sweep());
            acquired.join().unwrap()
        });
        assert_eq!(races.consumption(), u32::from(acquired.is_ok()));
        if acquired.is_err() {
            assert_eq!(races.acquire(&mut next, 1), Ok(()), "the place of the ended session is free");
        }
    });
}

#[test]
fn a_dump_lists_a_held_name_once_and_within_its_limit() {
    explore(|races| {
        let [mut staying, mut leaving, mut next] =
            [races.holder(2), races.holder(2), races.core.open_session()];
        races.acquire_at(EARLY, b"another", &mut leaving, 1).unwrap();
        thread::scope(|threads| {
            threads.spawn(move || races.end(leaving));
            threads.spawn(|| {
                if races.acquire(&mut next, 2).is_ok() {
                    assert_eq!(races.release(&mut next), Ok(()));
                }
            });
            threads.spawn(|| races.sweep());
            let mut entries = races.dump();
            entries.sort_by(|one, other| one.0.cmp(&other.0));
            let names: Vec<_> = entries.iter().map(|(name, _)| &name[..]).collect();
            assert!(names == [&b"another"[..], NAME] || names == [NAME], "{entries:?}");
            for (name, item) in &entries {
                let (least, most) = if name == NAME { (1, 2) } else { (0, 1) };
                assert!((least..=most).contains(&item.consumption), "{entries:?}");
                assert!((item.consumption..=most).contains(&item.peak), "{entries:?}");
            }
        });
        assert_eq!(races.release(&mut staying), Ok(()));
        assert_eq!(races.consumption(), 0);
    });
}

fn limit_names(races: &Races, names_max: u64) {
    races.core.set_limits(races.namespace, Limits { names_max: Some(names_max) });
}

#[test]
fn one_of_two_names_created_for_one_place_is_refused() {
    explore(|races| {
        limit_names(races, 1);
        let [mut one, mut two] = [races.core.open_session(), races.core.open_session()];
        let made = thread::scope(|threads| {
            let one = threads.spawn(|| races.acquire_at(NOW, b"one", &mut one, 1));
            let two = threads.spawn(|| races.acquire_at(NOW, b"two", &mut two, 1));
            [one.join().unwrap(), two.join().unwrap()]
        });
        assert!(
            made == [Ok(()), Err(Refusal::TooManyNames)] || made == [Err(Refusal::TooManyNames), Ok(())],
            "{made:?}"
        );
        assert_eq!(races.stats().objects, 1);
    });
}

#[test]
fn two_sessions_that_create_one_name_need_one_place() {
    explore(|races| {
        limit_names(races, 1);
        let [mut one, mut two] = [races.core.open_session(), races.core.open_session()];
        thread::scope(|threads| {
            threads.spawn(|| assert_eq!(races.acquire(&mut one, 2), Ok(())));
            threads.spawn(|| assert_eq!(races.acquire(&mut two, 2), Ok(())));
        });
        assert_eq!(races.consumption(), 2);
    });
}

#[test]
fn a_session_that_finds_its_name_created_leaves_the_place_to_a_third() {
    explore(|races| {
        limit_names(races, 2);
        let [mut one, mut two, mut third] = [(); 3].map(|()| races.core.open_session());
        thread::scope(|threads| {
            threads.spawn(|| assert_eq!(races.acquire(&mut one, 2), Ok(())));
            threads.spawn(|| assert_eq!(races.acquire(&mut two, 2), Ok(())));
            threads.spawn(|| assert_eq!(races.acquire_at(NOW, b"third", &mut third, 1), Ok(())));
        });
        assert_eq!(races.stats().objects, 2);
    });
}

#[test]
fn a_swept_name_makes_room_for_another_and_its_memory_is_counted_once() {
    explore(|races| {
        limit_names(races, 1);
        races.leave_behind(1);
        let mut session = races.core.open_session();
        let made = thread::scope(|threads| {
            threads.spawn(|| races.sweep());
            threads.spawn(|| races.sweep());
            let made = threads.spawn(|| races.acquire_at(NOW, b"another", &mut session, 1));
            made.join().unwrap()
        });
        assert!(matches!(made, Ok(()) | Err(Refusal::TooManyNames)), "{made:?}");
        if made.is_err() {
            assert_eq!(
                races.acquire_at(NOW, b"another", &mut session, 1),
                Ok(()),
                "the swept name's place is free"
            );
        }
        assert_eq!(races.stats().objects, 1);
    });
}

/// A task of a connection, which only notes that it was woken.
#[derive(Default)]
struct Task(AtomicBool);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_message_reaches_a_connection_that_moves_to_another_task() {
    explore(|_| {
        let mailbox = Arc::new(Mailbox::default());
        let (first, second) = (Arc::new(Task::default()), Arc::new(Task::default()));
        mailbox.set_reader(&Arc::clone(&first).into());
        let has_message = thread::scope(|threads| {
            threads.spawn(|| mailbox.put(Message::Notice(Notice::ShuttingDown)));
            let reads = threads.spawn(|| {
                // The last turn of the first task, then the first turn of the second one.
                let found = mailbox.is_filled();
                mailbox.set_reader(&Arc::clone(&second).into());
                found || mailbox.is_filled()
            });
            reads.join().unwrap()
        });
        assert!(has_message || second.0.load(Ordering::SeqCst), "the second task sees it or is woken");
        assert_eq!(mailbox.take(), Some(Message::Notice(Notice::ShuttingDown)));
    });
}
