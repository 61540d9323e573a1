//! What clients believe that they hold, compared with the store and with the node that leads.
//!
//! Checked after each step: a permit that its client believes in is in the store, and known to the node that serves; all of
//! a name together are not more than its capacity, and no slot is believed in twice. Checked when it happens: a permit has
//! a higher id than all that were granted before it was asked for; a released one is gone from the store, and no later
//! node restores it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use signalbox::server::Server;
use signalbox_client::Permit;
use signalbox_core::{Key, Moment, MonotonicMs};
use signalbox_model::GrantId;
use signalbox_model::UnixSeconds;

use super::etcd::Etcd;
use super::revocations::{Disturbances, Revocations};
use crate::client::expectations;
use crate::scene::Scene;

/// A declared semaphore with numbered slots.
#[derive(Clone, Debug)]
pub struct Resource {
    pub name: Vec<u8>,
    pub capacity: u32,
}

/// A permit, until its application releases it.
pub type Cell = Mutex<Option<Permit>>;

struct Belief {
    client: usize,
    resource: usize,
    grant: u64,
    slots: Vec<u16>,
    cell: Weak<Cell>,
}

#[derive(Default)]
struct State {
    beliefs: Vec<Belief>,
    /// By resource: when permits were granted, each with the highest id until then.
    granted: BTreeMap<usize, Vec<(u64, u64)>>,
    /// Grants whose release was acknowledged.
    released: BTreeSet<u64>,
    /// Whether the declarations were acknowledged.
    is_declared: bool,
}

pub struct Beliefs {
    scene: Arc<Scene>,
    pub resources: Vec<Resource>,
    state: Mutex<State>,
}

impl Beliefs {
    pub fn new(scene: Arc<Scene>, resources: Vec<Resource>) -> Self {
        Self { scene, resources, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes beliefs")
    }

    /// An administrator was told that all resources are declared.
    pub fn declared(&self) {
        self.state().is_declared = true;
    }

    pub fn is_declared(&self) -> bool {
        self.state().is_declared
    }

    /// A client has a permit that it asked for at this time.
    pub fn hold(
        &self,
        client: usize,
        resource: usize,
        permit: Permit,
        asked_ms: u64,
    ) -> Result<Arc<Cell>, String> {
        let (grant, now_ms) = (permit.id().0, self.scene.state().now_ms);
        let slots = permit.slots().to_vec();
        let cell = Arc::new(Mutex::new(Some(permit)));
        let mut state = self.state();
        let granted = state.granted.entry(resource).or_default();
        let before = granted.partition_point(|(at_ms, _)| *at_ms < asked_ms);
        let highest = before.checked_sub(1).map(|last| granted[last]);
        let last = granted.last().map_or(0, |(_, id)| *id);
        granted.push((now_ms, last.max(grant)));
        state.beliefs.push(Belief { client, resource, grant, slots, cell: Arc::downgrade(&cell) });
        match highest {
            Some((at_ms, id)) if id >= grant => Err(format!(
                "client {client} asked at {asked_ms} ms and has grant {grant}, but grant {id} already existed at {at_ms} ms"
            )),
            _ => Ok(cell),
        }
    }

    /// A client was told that its release took effect: it is stored, unless etcd refuses commits.
    pub fn released(&self, grant: u64, etcd: &Etcd, now_ms: u64) -> Result<(), String> {
        let is_stored = !etcd.has(&Key::Grant(GrantId(grant)));
        if is_stored {
            self.state().released.insert(grant);
        } else if !etcd.has_refused_since(now_ms) {
            return Err(format!("grant {grant} is stored, although its release was acknowledged"));
        }
        Ok(())
    }

    /// Checks a node that has taken over.
    pub fn check_restored(&self, server: &Server) -> Result<(), String> {
        match self.state().released.iter().find(|grant| is_held(server, **grant)) {
            Some(grant) => Err(format!("grant {grant} is held again, although its release was acknowledged")),
            None => Ok(()),
        }
    }

    /// The grants that clients have.
    pub fn grants(&self) -> Vec<u64> {
        self.state().beliefs.iter().map(|belief| belief.grant).collect()
    }

    /// Compares the beliefs with the store, and with the server that serves, if there is one.
    pub fn check(
        &self,
        etcd: &Etcd,
        server: Option<&Server>,
        revocations: &Revocations,
        disturbances: Disturbances,
    ) -> Result<(), String> {
        let mut state = self.state();
        state.beliefs.retain(|belief| belief.cell.upgrade().is_some_and(|cell| has_permit(&cell)));
        let mut slots = BTreeMap::new();
        let mut sums = BTreeMap::new();
        for belief in &state.beliefs {
            let Belief { client, resource, grant, cell, .. } = belief;
            if cell.upgrade().is_some_and(|cell| is_lost_by_revocation(&cell)) {
                revocations.check_loss(*grant)?;
            }
            if !belief.is_held() {
                continue;
            }
            let Resource { name, capacity } = &self.resources[*resource];
            let is_known =
                etcd.has(&Key::Grant(GrantId(*grant))) && server.is_none_or(|server| is_held(server, *grant));
            if !is_known && revocations.excuses(*grant, disturbances) {
                continue;
            }
            if !etcd.has(&Key::Grant(GrantId(*grant))) {
                return Err(format!("client {client} believes in grant {grant}, which is not stored"));
            }
            if server.is_some_and(|server| !is_held(server, *grant)) {
                return Err(format!(
                    "client {client} believes in grant {grant}, which the leader does not know"
                ));
            }
            for slot in &belief.slots {
                if let Some(other) = slots.insert((resource, *slot), grant) {
                    return Err(format!(
                        "slot {slot} of {} belongs to grants {other} and {grant}",
                        name.escape_ascii()
                    ));
                }
            }
            let sum = sums.entry(resource).or_insert(0);
            *sum += belief.slots.len();
            if *sum > *capacity as usize {
                return Err(format!(
                    "clients believe that they hold {sum} of {}, whose capacity is {capacity}",
                    name.escape_ascii()
                ));
            }
        }
        if state.is_declared {
            let mut names = self.resources.iter().map(|resource| &resource.name);
            if let Some(name) = names.find(|name| !etcd.has(&Key::Declaration(name.as_slice().into()))) {
                return Err(format!("{} was declared, but is not stored", name.escape_ascii()));
            }
        }
        Ok(())
    }
}

impl Belief {
    /// Whether its client believes that it holds it, by its own clock.
    fn is_held(&self) -> bool {
        self.cell.upgrade().is_some_and(|cell| is_believed(&cell))
    }
}

/// Whether the client believes that it holds this permit.
pub fn is_believed(cell: &Cell) -> bool {
    cell.lock().expect("nothing panics while it has a permit").as_ref().is_some_and(Permit::is_held)
}

fn is_lost_by_revocation(cell: &Cell) -> bool {
    let permit = cell.lock().expect("nothing panics while it has a permit");
    permit.as_ref().is_some_and(expectations::is_lost_by_revocation)
}

fn has_permit(cell: &Cell) -> bool {
    cell.lock().expect("nothing panics while it has a permit").is_some()
}

pub fn is_held(server: &Server, grant: u64) -> bool {
    server.core().verify(GrantId(grant), Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) }).is_ok()
}
