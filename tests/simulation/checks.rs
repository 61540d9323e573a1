//! The invariants after every step of the simulation, and those at rest.

use std::collections::BTreeMap;

use signalbox::server::Server;
use signalbox_core::{DumpItem, LedgerStats, Record};
use signalbox_model::Namespace;
use signalbox_model::UnixSeconds;

use crate::disk::Disk;
use crate::order::Order;
use crate::scene::{Key, Scene, Shared, key};

/// The capacities of semaphores after the previous step.
#[derive(Default)]
pub struct Checks {
    capacities: BTreeMap<Key, u64>,
    /// The number of names that were ever created. While it stays the same, no semaphore was created again.
    semaphores_made: u64,
    ledger: LedgerStats,
    order: Order,
}

impl Checks {
    /// Checks the server if it was given work since the last check.
    pub fn after_step(&mut self, scene: &Scene) {
        let mut state = scene.state();
        let Some(server) = state.server.clone() else { return };
        let is_touched = std::mem::take(&mut state.is_touched);
        let (now_ms, started_ms) = (state.now_ms, state.server_started_ms);
        let checked = state.grant_expectations.check(&server, now_ms, started_ms).and_then(|mut expected| {
            // Timers do their work without input.
            let ledger = server.core().ledger_stats();
            if !is_touched && ledger == self.ledger {
                return Ok(());
            }
            self.ledger = ledger;
            for (key, resources) in state.expected_totals() {
                *expected.entry(key.clone()).or_insert(0) += resources;
            }
            check_capacities(&scene.shared, &expected)?;
            server.core().check_ledger()?;
            self.order.check(&server, scene.shared.iter().map(|shared| &shared.name))?;
            self.check(&server, &expected)
        });
        drop(state);
        if let Err(what) = checked {
            scene.fail(what);
        }
    }

    fn check(&mut self, server: &Server, expected: &BTreeMap<Key, u64>) -> Result<(), String> {
        check_accounting(server)?;
        let mut consumptions = BTreeMap::new();
        let made = server.core().stats(Namespace::Semaphores).total_objects;
        let capacities_before = std::mem::take(&mut self.capacities);
        for namespace in Namespace::ALL {
            for (name, item) in dump(server, namespace) {
                if item.peak < item.consumption {
                    return Err(format!(
                        "{} has a peak below its consumption: {item:?}",
                        name.escape_ascii()
                    ));
                }
                consumptions.insert(key(namespace, &name), u64::from(item.consumption));
                if namespace == Namespace::Semaphores {
                    let left = server.core().value(namespace, &name).unwrap_or(0);
                    self.capacities
                        .insert(key(namespace, &name), u64::from(item.consumption) + u64::from(left));
                }
            }
        }
        if made == self.semaphores_made {
            for (key, capacity) in &self.capacities {
                if capacities_before.get(key).is_some_and(|before| before != capacity) {
                    let before = capacities_before[key];
                    return Err(format!(
                        "the capacity of {} changed from {before} to {capacity}",
                        key.1.escape_ascii()
                    ));
                }
            }
        }
        self.semaphores_made = made;
        for (key, resources) in expected {
            let consumption = consumptions.get(key).copied().unwrap_or(0);
            if *resources > consumption {
                let name = key.1.escape_ascii();
                return Err(format!(
                    "clients hold {resources} of {name}, but the server counts {consumption}"
                ));
            }
        }
        Ok(())
    }

    /// Forgets the state of a server that has ended.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Invariant 1 of `docs/design.md`.
fn check_accounting(server: &Server) -> Result<(), String> {
    let mut failures = Vec::new();
    for namespace in Namespace::ALL {
        let mut check = server.core().check(namespace);
        while check.step(1000, &mut failures) {}
    }
    failures.is_empty().then_some(()).ok_or_else(|| format!("the accounting is inconsistent: {failures:?}"))
}

/// Checks that clients expect to hold no more than exists, independent of the server's accounting.
fn check_capacities(shared: &[Shared], expected: &BTreeMap<Key, u64>) -> Result<(), String> {
    for Shared { name, capacity } in shared {
        for namespace in Namespace::ALL {
            let resources = expected.get(&key(namespace, name)).copied().unwrap_or(0);
            if resources > u64::from(*capacity) {
                return Err(format!(
                    "clients hold {resources} of {}, whose capacity is {capacity}",
                    name.escape_ascii()
                ));
            }
        }
    }
    Ok(())
}

fn dump(server: &Server, namespace: Namespace) -> Vec<(Vec<u8>, DumpItem)> {
    let mut dump = server.core().dump(namespace);
    // Peaks are only compared with consumptions, which they are never below.
    let next = || dump.next(server.core(), UnixSeconds(0), |name, item| (name.to_vec(), item));
    std::iter::from_fn(next).collect()
}

/// Whether every session, grant, waiter and watch has ended.
pub fn has_no_sessions(server: &Server) -> bool {
    let LedgerStats { sessions, grants, waiters, watches, .. } = server.core().ledger_stats();
    (sessions, grants, waiters, watches) == (0, 0, 0, 0)
}

/// Checks that nothing is consumed while no client is connected.
pub fn at_rest(server: &Server) -> Result<(), String> {
    check_accounting(server)?;
    server.core().check_ledger()?;
    for namespace in Namespace::ALL {
        for (name, item) in dump(server, namespace) {
            if item.consumption > 0 {
                return Err(format!(
                    "{} is consumed, but no client is connected: {item:?}",
                    name.escape_ascii()
                ));
            }
        }
    }
    Ok(())
}

/// Whether every undeclared name was collected, and only marks, the key of places and declarations are stored.
pub fn is_empty(server: &Server, disk: Option<&Disk>) -> bool {
    let numbered = disk.map_or(0, |disk| disk.numbered);
    let is_kept =
        |record: &Record| !matches!(record, Record::Mark(_) | Record::PlaceKey(_) | Record::Declaration(_));
    Namespace::ALL.iter().all(|namespace| {
        let declared = if *namespace == Namespace::Semaphores { numbered } else { 0 };
        server.core().stats(*namespace).objects == declared as u64
    }) && !disk.is_some_and(|disk| disk.memory.records().iter().any(is_kept))
}
