//! What must hold after every step of the simulation, and what at rest.

use std::collections::BTreeMap;

use signalbox::core::{DumpItem, LedgerStats, Namespace, Record, UnixSeconds};
use signalbox::server::Server;

use crate::disk::Disk;
use crate::order::Order;
use crate::scene::{Key, Scene, Shared, key};

/// Capacities of semaphores, as they were seen after the step before.
#[derive(Default)]
pub struct Checks {
    capacities: BTreeMap<Key, u64>,
    /// Names that were ever made. While that stands, no semaphore has been made anew.
    semaphores_made: u64,
    ledger: LedgerStats,
    order: Order,
}

impl Checks {
    /// Looks at the server if it was given something to do since it was last looked at.
    pub fn after_step(&mut self, scene: &Scene) {
        let mut state = scene.state();
        let Some(server) = state.server.clone() else { return };
        let is_touched = std::mem::take(&mut state.is_touched);
        let (now_ms, started_ms) = (state.now_ms, state.server_started_ms);
        let checked = state.claims.check(&server, now_ms, started_ms).and_then(|mut believed| {
            // What is due is done without being asked.
            let ledger = server.core().ledger_stats();
            if !is_touched && ledger == self.ledger {
                return Ok(());
            }
            self.ledger = ledger;
            for (key, resources) in state.believed() {
                *believed.entry(key.clone()).or_insert(0) += resources;
            }
            check_capacities(&scene.shared, &believed)?;
            server.core().check_ledger()?;
            let shared = scene.shared.iter().map(|shared| &shared.name);
            self.order.check(&server, shared.chain(&scene.declared))?;
            self.check(&server, &believed, &scene.declared)
        });
        drop(state);
        if let Err(what) = checked {
            scene.fail(what);
        }
    }

    /// `declared` are those whose capacities may change.
    fn check(
        &mut self,
        server: &Server,
        believed: &BTreeMap<Key, u64>,
        declared: &[Vec<u8>],
    ) -> Result<(), String> {
        check_books(server)?;
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
                if namespace == Namespace::Semaphores && !declared.contains(&name) {
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
        for (key, resources) in believed {
            let consumption = consumptions.get(key).copied().unwrap_or(0);
            if *resources > consumption {
                let name = key.1.escape_ascii();
                return Err(format!(
                    "clients hold {resources} of {name}, and the server knows of {consumption}"
                ));
            }
        }
        Ok(())
    }

    /// The server of before is gone, and all that it knew.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Invariant 1 of `docs/design.md`.
fn check_books(server: &Server) -> Result<(), String> {
    let mut failures = Vec::new();
    for namespace in Namespace::ALL {
        let mut check = server.core().check(namespace);
        while check.step(1000, &mut failures) {}
    }
    failures.is_empty().then_some(()).ok_or_else(|| format!("the books do not add up: {failures:?}"))
}

/// Whether clients believe to hold no more than there is, whatever the server's books say.
fn check_capacities(shared: &[Shared], believed: &BTreeMap<Key, u64>) -> Result<(), String> {
    for Shared { name, capacity } in shared {
        for namespace in Namespace::ALL {
            let resources = believed.get(&key(namespace, name)).copied().unwrap_or(0);
            if resources > u64::from(*capacity) {
                return Err(format!(
                    "clients hold {resources} of {}, of which there are {capacity}",
                    name.escape_ascii()
                ));
            }
        }
    }
    Ok(())
}

fn dump(server: &Server, namespace: Namespace) -> Vec<(Vec<u8>, DumpItem)> {
    let mut dump = server.core().dump(namespace);
    // Peaks are compared with consumptions only, and are not below them at any time.
    let next = || dump.next(server.core(), UnixSeconds(0), |name, item| (name.to_vec(), item));
    std::iter::from_fn(next).collect()
}

/// Whether every session, grant, waiter and watch has ended.
pub fn has_no_sessions(server: &Server) -> bool {
    let LedgerStats { sessions, grants, waiters, watches, .. } = server.core().ledger_stats();
    (sessions, grants, waiters, watches) == (0, 0, 0, 0)
}

/// Nobody is connected: is anything consumed by who is gone?
pub fn at_rest(server: &Server) -> Result<(), String> {
    check_books(server)?;
    server.core().check_ledger()?;
    for namespace in Namespace::ALL {
        for (name, item) in dump(server, namespace) {
            if item.consumption > 0 {
                return Err(format!("{} is consumed by nobody: {item:?}", name.escape_ascii()));
            }
        }
    }
    Ok(())
}

/// Whether every name was collected that is not declared, with its memory off the books; and nothing is kept but those
/// that are.
pub fn is_empty(server: &Server, disk: Option<&Disk>) -> bool {
    let numbered = disk.map_or(0, |disk| disk.numbered);
    let is_kept = |record: &Record| !matches!(record, Record::Mark(_) | Record::Declaration(_));
    Namespace::ALL.iter().all(|namespace| {
        let stats = server.core().stats(*namespace);
        let declared = if *namespace == Namespace::Semaphores { numbered } else { 0 };
        stats.objects == declared as u64 && (declared > 0 || stats.used_memory == 0)
    }) && !disk.is_some_and(|disk| disk.memory.records().iter().any(is_kept))
}
