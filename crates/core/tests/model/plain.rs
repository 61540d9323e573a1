//! Sessions that hold many names by plain Acquires, and release them in any order.
//!
//! The model of the ledger checks what plain operations do with a name.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use proptest::prelude::*;
use signalbox_core::{Claim, Core, NameHasher};
use signalbox_model::Namespace;
use signalbox_model::UnixSeconds;

use crate::cases;

const INTERVAL_S: u32 = 10;

fn core() -> Core {
    Core::new(NonZeroU32::new(INTERVAL_S).unwrap(), NameHasher::with_seeds(1, 2, 3, 4))
}

proptest! {
    #![proptest_config(cases(1000))]

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
