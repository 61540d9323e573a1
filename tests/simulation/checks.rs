//! What must hold after every step of the simulation, and what at rest.

use std::collections::BTreeMap;

use signalbox::core::{DumpItem, Namespace, UnixSeconds};
use signalbox::server::Server;

use crate::scene::{Key, Scene, key};

/// Capacities of semaphores, as they were seen after the step before.
#[derive(Default)]
pub struct Checks {
    capacities: BTreeMap<Key, u64>,
    /// Names that were ever made. While that stands, no semaphore has been made anew.
    semaphores_made: u64,
}

impl Checks {
    /// Looks at the server if it was given something to do since it was last looked at.
    pub fn after_step(&mut self, scene: &Scene) {
        let (server, believed) = {
            let mut state = scene.state();
            if !std::mem::take(&mut state.is_touched) {
                return;
            }
            let Some(server) = state.server.clone() else { return };
            (server, state.believed().clone())
        };
        if let Err(what) = self.check(&server, &believed) {
            scene.fail(what);
        }
    }

    fn check(&mut self, server: &Server, believed: &BTreeMap<Key, u64>) -> Result<(), String> {
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

fn dump(server: &Server, namespace: Namespace) -> Vec<(Vec<u8>, DumpItem)> {
    let mut dump = server.core().dump(namespace);
    // Peaks are compared with consumptions only, and are not below them at any time.
    let next = || dump.next(server.core(), UnixSeconds(0), |name, item| (name.to_vec(), item));
    std::iter::from_fn(next).collect()
}

/// Nobody is connected: is anything consumed by who is gone?
pub fn at_rest(server: &Server) -> Result<(), String> {
    check_books(server)?;
    for namespace in Namespace::ALL {
        for (name, item) in dump(server, namespace) {
            if item.consumption > 0 {
                return Err(format!("{} is consumed by nobody: {item:?}", name.escape_ascii()));
            }
        }
    }
    Ok(())
}

/// Whether every name was collected, and its memory is off the books.
pub fn is_empty(server: &Server) -> bool {
    let stats = Namespace::ALL.map(|namespace| server.core().stats(namespace));
    stats.iter().all(|stats| stats.objects == 0 && stats.used_memory == 0)
}
