//! Revocations that an administrator requests, while nodes change.
//!
//! Checked after each step: no holder loses what is revoked before its grace period ends, also if another node takes over in
//! between; a holder that can be told stops before the server frees the resources; and a revocation that was acknowledged takes
//! effect, at whichever node serves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::server::Server;

use super::beliefs::is_held;
use super::etcd::Etcd;
use crate::scene::Scene;

/// How long a message is in flight at most, including the work on its arrival, while no message is held back.
const TRAVEL_MS_MAX: u64 = 1000;

/// The longest time to live of a session.
pub const TTL_MS_MAX: u64 = 25_000;

/// How long after a disturbance a holder may take to attach its session again, and the leader to free what is revoked.
const RECOVER_MS_MAX: u64 = 10_000;

/// The clocks of holders and the margin of their leases differ from true time by so much of a time, at most.
const INACCURACY: u64 = 20;

#[derive(Clone, Copy, Debug)]
struct Revocation {
    /// When it was first requested, and the least end of all requests.
    requested_ms: u64,
    end_ms: u64,
    /// The shortest grace period of all requests.
    grace_ms: u64,
    /// The time by which an answer said that it stands.
    acknowledged_ms: Option<u64>,
    /// When the grant was first seen to be gone from the store or from the node that serves.
    freed_ms: Option<u64>,
    /// Whether its holder was seen to have lost it.
    is_lost: bool,
}

/// What can delay a revocation.
#[derive(Clone, Copy, Debug)]
pub struct Disturbances {
    pub now_ms: u64,
    /// When no node served last, or any fault was not repaired.
    pub any_ms: u64,
    /// When messages of clients were last held back or lost.
    pub messages_ms: u64,
}

pub struct Revocations {
    scene: Arc<Scene>,
    /// By grant.
    all: Mutex<BTreeMap<u64, Revocation>>,
}

impl Revocations {
    pub fn new(scene: Arc<Scene>) -> Self {
        Self { scene, all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Revocation>> {
        self.all.lock().expect("nothing panics while it changes revocations")
    }

    /// An administrator is about to request it.
    pub fn request(&self, grant: u64, grace_ms: u64) {
        let requested_ms = self.scene.state().now_ms;
        let end_ms = requested_ms + grace_ms;
        let mut all = self.all();
        let revocation = all.entry(grant).or_insert(Revocation {
            requested_ms,
            end_ms,
            grace_ms,
            acknowledged_ms: None,
            freed_ms: None,
            is_lost: false,
        });
        revocation.end_ms = revocation.end_ms.min(end_ms);
        revocation.grace_ms = revocation.grace_ms.min(grace_ms);
    }

    /// The administrator was told that it stands: it is stored, unless etcd refuses commits.
    pub fn acknowledge(&self, grant: u64, etcd: &Etcd) {
        let now_ms = self.scene.state().now_ms;
        if let Some(revocation) =
            self.all().get_mut(&grant).filter(|it| !etcd.has_refused_since(it.requested_ms))
        {
            revocation.acknowledged_ms = Some(now_ms);
        }
    }

    pub fn is_requested(&self, grant: u64) -> bool {
        self.all().contains_key(&grant)
    }

    /// How many were acknowledged, and how many told the holder.
    pub fn counts(&self) -> (u64, u64) {
        let all = self.all();
        let count = |of: fn(&Revocation) -> bool| all.values().filter(|it| of(it)).count() as u64;
        (count(|it| it.acknowledged_ms.is_some()), count(|it| it.is_lost))
    }

    /// A client believes in a grant that the store or the node that serves does not have. Whether it could not know.
    pub fn excuses(&self, grant: u64, disturbances: Disturbances) -> bool {
        let Disturbances { now_ms, any_ms, .. } = disturbances;
        let mut all = self.all();
        let Some(revocation) = all.get_mut(&grant) else { return false };
        let freed_ms = *revocation.freed_ms.get_or_insert(now_ms);
        if any_ms + RECOVER_MS_MAX < revocation.requested_ms {
            return revocation.grace_ms < TRAVEL_MS_MAX && now_ms < freed_ms + TRAVEL_MS_MAX;
        }
        now_ms < any_ms.max(freed_ms) + TTL_MS_MAX
    }

    /// The holder has lost a grant, because of a revocation.
    pub fn check_loss(&self, grant: u64, disturbances: Disturbances) -> Result<(), String> {
        let Disturbances { now_ms, messages_ms, .. } = disturbances;
        let mut all = self.all();
        let Some(revocation) = all.get_mut(&grant) else {
            return Err(format!("grant {grant} is lost by a revocation that nobody requested"));
        };
        if std::mem::replace(&mut revocation.is_lost, true) {
            return Ok(());
        }
        // The holder counts from its last request, a quarter of the time to live ago at most.
        let age_ms = TTL_MS_MAX / 4 + TRAVEL_MS_MAX;
        let grace_ms = revocation.end_ms - revocation.requested_ms;
        let early_ms = TRAVEL_MS_MAX + (age_ms + grace_ms) / INACCURACY;
        let was_in_time =
            messages_ms + TTL_MS_MAX >= revocation.requested_ms || now_ms + early_ms >= revocation.end_ms;
        was_in_time
            .then_some(())
            .ok_or_else(|| format!("grant {grant} is lost before its grace period: {revocation:?}"))
    }

    /// What was acknowledged takes effect.
    pub fn check(&self, server: &Server, disturbances: Disturbances) -> Result<(), String> {
        let Disturbances { now_ms, any_ms, .. } = disturbances;
        for (grant, revocation) in &*self.all() {
            let Some(acknowledged_ms) = revocation.acknowledged_ms else { continue };
            let grace_ms = revocation.end_ms - revocation.requested_ms;
            let until_ms = acknowledged_ms.max(any_ms) + grace_ms + RECOVER_MS_MAX;
            if now_ms > until_ms && is_held(server, *grant) {
                return Err(format!("grant {grant} is still held: {revocation:?}"));
            }
        }
        Ok(())
    }
}
