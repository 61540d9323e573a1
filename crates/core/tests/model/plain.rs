//! Compares the core with a model of the two documents: random histories, and the complete state is compared after each
//! step.
//!
//! The model is written from `counter.md` and `semaphore.md` and is slow and simple on purpose: it keeps every change
//! of a name, and derives from them what the documents say. `PROPTEST_CASES=1500000 cargo test --release --test
//! model plain::` runs it for an hour; a failure prints the shortest history that shows it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use proptest::prelude::*;
use signalbox_core::{Claim, Core, NameHasher, Namespace, Refusal, Session, UnixSeconds};

use crate::cases;

const INTERVAL_S: u32 = 10;
const SESSIONS: usize = 4;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"a name that is too long to live inside its object", b"\0\xff"];

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        on: Place,
        resources: u32,
        maximum: u32,
    },
    Release {
        on: Place,
        resources: u32,
    },
    Get {
        on: Place,
    },
    EndSession {
        session: usize,
        names_per_step: usize,
    },
    Sweep {
        namespace: Namespace,
        names_per_step: usize,
    },
    /// Seconds by which the clock is set forward or back.
    Clock {
        by: i64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Place {
    namespace: Namespace,
    name: usize,
    session: usize,
}

impl Step {
    /// The namespaces that the step can change. The other one was compared after its last change.
    fn touches(&self) -> &'static [Namespace] {
        match self {
            Self::Acquire { on: Place { namespace, .. }, .. }
            | Self::Release { on: Place { namespace, .. }, .. }
            | Self::Get { on: Place { namespace, .. } }
            | Self::Sweep { namespace, .. } => match namespace {
                Namespace::Counters => &[Namespace::Counters],
                Namespace::Semaphores => &[Namespace::Semaphores],
            },
            Self::EndSession { .. } | Self::Clock { .. } => &Namespace::ALL,
        }
    }
}

// The model, in the terms of the documents.

#[derive(Default)]
struct Model {
    objects: BTreeMap<(usize, usize), Object>,
}

struct Object {
    /// Only a semaphore has one.
    capacity: Option<u64>,
    holdings: BTreeMap<usize, u64>,
    /// Every change: its interval, and the consumption before and after it.
    changes: Vec<(u64, u64, u64)>,
}

impl Object {
    fn consumption(&self) -> u64 {
        self.holdings.values().sum()
    }

    /// "Value", as Get returns it.
    fn value(&self) -> u64 {
        self.capacity.map_or(self.consumption(), |capacity| capacity - self.consumption())
    }

    fn change(&mut self, session: usize, holding: u64, interval: u64) {
        let before = self.consumption();
        self.holdings.insert(session, holding);
        self.holdings.retain(|_, holding| *holding > 0);
        self.changes.push((interval, before, self.consumption()));
    }

    /// "The maximum consumption of resources in the interval": the consumption at the beginning of the interval
    /// and after every change since. A semaphore has one interval, its lifetime.
    fn peak(&self, interval: u64) -> u64 {
        let Some((last, ..)) = self.changes.last() else { return 0 };
        let is_semaphore = self.capacity.is_some();
        if *last < interval && !is_semaphore {
            return self.consumption();
        }
        let mut first = self.changes.len() - 1;
        while first > 0 && (is_semaphore || self.changes[first - 1].0 >= self.changes[first].0) {
            first -= 1;
        }
        self.changes[first..].iter().map(|(_, before, after)| *before.max(after)).max().unwrap_or(0)
    }

    fn is_collectable(&self, interval: u64) -> bool {
        let is_over = self.changes.last().is_none_or(|(last, ..)| *last < interval);
        self.consumption() == 0 && (self.capacity.is_some() || is_over)
    }
}

impl Model {
    fn acquire(
        &mut self,
        on: Place,
        resources: u32,
        maximum: u32,
        interval: u64,
    ) -> Option<Result<(), Refusal>> {
        let (resources, maximum) = (u64::from(resources), u64::from(maximum));
        if resources == 0 || maximum < resources {
            return None;
        }
        let object = self.objects.entry(on.key()).or_insert_with(|| Object {
            capacity: (on.namespace == Namespace::Semaphores).then_some(maximum),
            holdings: BTreeMap::new(),
            changes: Vec::new(),
        });
        if object.consumption() + resources > object.capacity.unwrap_or(maximum) {
            return Some(Err(Refusal::NotAvailable));
        }
        let held = object.holdings.get(&on.session).copied().unwrap_or(0);
        object.change(on.session, held + resources, interval);
        Some(Ok(()))
    }

    fn release(&mut self, on: Place, resources: u32, interval: u64) -> Result<(), Refusal> {
        let object = self.objects.get_mut(&on.key()).ok_or(Refusal::NotFound)?;
        let held = object.holdings.get(&on.session).copied().unwrap_or(0);
        let left = held.checked_sub(resources.into()).ok_or(Refusal::NotAcquired)?;
        if resources > 0 {
            object.change(on.session, left, interval);
        }
        Ok(())
    }

    fn end_session(&mut self, session: usize, interval: u64) {
        for object in self.objects.values_mut().filter(|object| object.holdings.contains_key(&session)) {
            object.change(session, 0, interval);
        }
    }

    fn sweep(&mut self, namespace: Namespace, interval: u64) {
        self.objects.retain(|(n, _), object| *n != namespace as usize || !object.is_collectable(interval));
    }
}

impl Place {
    fn key(self) -> (usize, usize) {
        (self.namespace as usize, self.name)
    }
}

// The comparison.

fn core() -> Core {
    Core::new(NonZeroU32::new(INTERVAL_S).unwrap(), NameHasher::with_seeds(1, 2, 3, 4))
}

struct Pair {
    model: Model,
    core: Core,
    sessions: Vec<Session>,
    now: u64,
}

impl Pair {
    fn new() -> Self {
        let core = core();
        let sessions = (0..SESSIONS).map(|_| core.open_session()).collect();
        Self { model: Model::default(), core, sessions, now: 1_000_000 }
    }

    fn interval(&self) -> u64 {
        self.now / u64::from(INTERVAL_S)
    }

    fn take(&mut self, step: &Step) {
        let (now, interval) = (UnixSeconds(self.now), self.interval());
        match *step {
            Step::Acquire { on, resources, maximum } => {
                let expected = self.model.acquire(on, resources, maximum, interval);
                let session = &mut self.sessions[on.session];
                let found = Claim::new(resources, maximum)
                    .map(|claim| self.core.acquire(on.namespace, NAMES[on.name], claim, session, now));
                assert_eq!(found, expected);
            }
            Step::Release { on, resources } => {
                let expected = self.model.release(on, resources, interval);
                let session = &mut self.sessions[on.session];
                assert_eq!(
                    self.core.release(on.namespace, NAMES[on.name], resources, session, now),
                    expected
                );
            }
            Step::Get { on } => {
                let expected = self.model.objects.get(&on.key()).map(Object::value).ok_or(Refusal::NotFound);
                let found = self.core.value(on.namespace, NAMES[on.name]).map(u64::from);
                assert_eq!(found, expected);
            }
            Step::EndSession { session, names_per_step } => {
                self.model.end_session(session, interval);
                let ended = std::mem::replace(&mut self.sessions[session], self.core.open_session());
                let mut ending = self.core.end_session(ended);
                while ending.step(names_per_step, now) {}
            }
            Step::Sweep { namespace, names_per_step } => {
                self.model.sweep(namespace, interval);
                let mut sweep = self.core.sweep(namespace);
                while sweep.step(names_per_step, now) {}
            }
            Step::Clock { by } => self.now = self.now.saturating_add_signed(by),
        }
    }

    /// A Dump shows exactly the state of the model, and the accounting of the core is consistent.
    fn compare(&self, namespaces: &[Namespace]) {
        for namespace in namespaces.iter().copied() {
            let mut dump = self.core.dump(namespace);
            let mut found = BTreeMap::new();
            while let Some((name, item)) =
                dump.next(&self.core, UnixSeconds(self.now), |name, item| (name.to_vec(), item))
            {
                let numbers = (u64::from(item.consumption), u64::from(item.peak));
                assert_eq!(found.insert(name, numbers), None, "a name is listed once");
            }
            let objects = self.model.objects.iter().filter(|((n, _), _)| *n == namespace as usize);
            let expected: BTreeMap<_, _> = objects
                .map(|((_, name), object)| {
                    (NAMES[*name].to_vec(), (object.consumption(), object.peak(self.interval())))
                })
                .collect();
            assert_eq!(found, expected, "{namespace:?}");
            assert_eq!(self.core.stats(namespace).objects, expected.len() as u64);
            let mut failures = Vec::new();
            let mut check = self.core.check(namespace);
            while check.step(1, &mut failures) {}
            assert_eq!(failures, []);
        }
    }
}

fn places() -> impl Strategy<Value = Place> {
    let namespaces = prop_oneof![Just(Namespace::Counters), Just(Namespace::Semaphores)];
    (namespaces, 0..NAMES.len(), 0..SESSIONS).prop_map(|(namespace, name, session)| Place {
        namespace,
        name,
        session,
    })
}

fn amounts() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 0..8u32,
        1 => Just(u32::MAX - 1),
        1 => Just(u32::MAX),
        1 => Just(u32::MAX / 2),
        1 => any::<u32>(),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![0..12i64, -12..0i64, Just(1), Just(10), Just(-10)];
    prop_oneof![
        8 => (places(), amounts(), amounts())
            .prop_map(|(on, resources, maximum)| Step::Acquire { on, resources, maximum }),
        // Claims that a semaphore or counter of moderate size can grant.
        8 => (places(), 1..4u32, 4..9u32)
            .prop_map(|(on, resources, maximum)| Step::Acquire { on, resources, maximum }),
        8 => (places(), prop_oneof![4 => 0..5u32, 1 => amounts()])
            .prop_map(|(on, resources)| Step::Release { on, resources }),
        2 => places().prop_map(|on| Step::Get { on }),
        2 => (0..SESSIONS, 1..5usize)
            .prop_map(|(session, names_per_step)| Step::EndSession { session, names_per_step }),
        2 => (prop_oneof![Just(Namespace::Counters), Just(Namespace::Semaphores)], 1..5usize)
            .prop_map(|(namespace, names_per_step)| Step::Sweep { namespace, names_per_step }),
        3 => clock.prop_map(|by| Step::Clock { by }),
    ]
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn the_core_matches_the_model(history in prop::collection::vec(steps(), 1..80)) {
        let mut pair = Pair::new();
        for step in &history {
            pair.take(step);
            pair.compare(step.touches());
        }
        // Ended sessions consume nothing.
        for session in 0..SESSIONS {
            pair.take(&Step::EndSession { session, names_per_step: 2 });
        }
        pair.take(&Step::Clock { by: 1000 });
        for namespace in Namespace::ALL {
            pair.take(&Step::Sweep { namespace, names_per_step: 3 });
            prop_assert_eq!(pair.core.stats(namespace).objects, 0);
        }
        pair.compare(&Namespace::ALL);
    }

    // A session indexes the handles of 64 names of each kind by their hashes; here it holds more names.
    #[test]
    fn a_session_of_many_names_releases_what_it_acquired(
        history in prop::collection::vec((any::<bool>(), 0..100usize, 1..4u32, 0..3u32), 1..400),
    ) {
        let core = core();
        let mut session = core.open_session();
        let now = UnixSeconds(1_000_000);
        let mut held = BTreeMap::new();
        for (is_counter, number, resources, choice) in history {
            let namespace = if is_counter { Namespace::Counters } else { Namespace::Semaphores };
            let holding = held.entry((is_counter, number)).or_insert(0);
            let name = format!("name {number}");
            let name = name.as_bytes();
            if choice > 0 {
                let claim = Claim::new(resources, u32::MAX).unwrap();
                prop_assert_eq!(core.acquire(namespace, name, claim, &mut session, now), Ok(()));
                *holding += resources;
            } else if *holding >= resources {
                prop_assert_eq!(core.release(namespace, name, resources, &mut session, now), Ok(()));
                *holding -= resources;
            } else {
                prop_assert!(core.release(namespace, name, resources, &mut session, now).is_err());
            }
            let in_use = if is_counter { *holding } else { u32::MAX - *holding };
            if let Ok(value) = core.value(namespace, name) {
                prop_assert_eq!(value, in_use);
            } else {
                prop_assert_eq!(*holding, 0);
            }
        }
        let mut ending = core.end_session(session);
        while ending.step(7, now) {}
        for namespace in Namespace::ALL {
            let mut sweep = core.sweep(namespace);
            while sweep.step(7, UnixSeconds(now.0 + 2 * u64::from(INTERVAL_S))) {}
            prop_assert_eq!(core.stats(namespace).objects, 0, "no name is held");
        }
    }
}

/// A session frees the memory for its handles if it had room for a thousand and holds nothing.
#[test]
fn a_session_that_held_thousands_of_names_works_after_any_order_of_releases() {
    let core = core();
    let mut session = core.open_session();
    let (now, claim) = (UnixSeconds(1_000_000), Claim::new(1, 1).unwrap());
    let names: Vec<_> = (0..3000_u32).map(u32::to_be_bytes).collect();
    let first_to_last = (0..names.len()).collect::<Vec<_>>();
    let last_to_first = first_to_last.iter().rev().copied().collect();
    let evens_first =
        first_to_last.iter().map(|i| 2 * i % names.len() + usize::from(*i >= names.len() / 2)).collect();
    for order in [first_to_last, last_to_first, evens_first] {
        for name in &names {
            assert_eq!(core.acquire(Namespace::Counters, name, claim, &mut session, now), Ok(()));
        }
        for i in order {
            assert_eq!(core.release(Namespace::Counters, &names[i], 1, &mut session, now), Ok(()));
            assert_eq!(core.value(Namespace::Counters, &names[i]), Ok(0));
        }
    }
}
