//! Revocations that an administrator requests, while nodes change.
//!
//! Checked when a node has taken over: it knows each revocation that was acknowledged, with the grace period that was requested.
//! Checked after each step: no holder loses what is revoked before its grace period ends, and no node frees it before, also
//! if another node takes over in between; a holder that was told stops before the server frees the resources; and a
//! revocation that was acknowledged takes effect, at whichever node serves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::server::Server;
use signalbox_core::{ClaimListing, Moment, MonotonicMs};
use signalbox_model::{
    ConnectionId, GraceLeft, GrantId, Milliseconds, SessionId, TtlLeft, UnixSeconds, VerifiedGrant,
};

use super::beliefs::is_held;
use super::etcd::Etcd;
use crate::network::STEP;
use crate::scene::Scene;

/// The longest time for which a message is in flight, including the work on its arrival, while no message is held back.
const TRAVEL_MS_MAX: u64 = 1000;

/// The longest time to live of a session.
pub const TTL_MS_MAX: u64 = 25_000;

/// How long after a disturbance a holder may take to attach its session again, and the leader to free what is revoked.
const RECOVER_MS_MAX: u64 = 10_000;

/// The clocks of holders and the margin of their leases differ from true time by at most 1/`INACCURACY` of a period.
const INACCURACY: u64 = 20;

/// The longest time until a notice reaches its holder, after a message from there: two messages, and one to spare.
const TELL_MS_MAX: u64 = 3 * TRAVEL_MS_MAX;

#[derive(Clone, Debug)]
struct Revocation {
    /// When it was first requested.
    requested_ms: u64,
    /// The grace periods of all requests.
    graces_ms: Vec<u64>,
    /// Whether a node was seen to know it, and the earliest end that it may have there. With several requests, that is the
    /// least one of all. Each node that takes over counts anew.
    is_known: bool,
    end_ms: u64,
    /// The same, as the holder knows it.
    known_end_ms: u64,
    /// Whether the holder was told.
    is_told: bool,
    /// What the node has received from the holder since it knows the revocation.
    contact: Option<Contact>,
    /// When an answer confirmed it.
    acknowledged_ms: Option<u64>,
    /// When the grant was first seen to be gone from the store or from the node that serves.
    freed_ms: Option<u64>,
    /// Whether its holder was seen to have lost it.
    is_lost: bool,
}

/// The connection to a holder.
#[derive(Clone, Copy, Debug)]
struct Contact {
    connection: ConnectionId,
    lease: TtlLeft,
    /// When a request over it was first seen to renew the lease.
    renewed_ms: Option<u64>,
}

/// What can delay a revocation.
#[derive(Clone, Copy, Debug)]
pub struct Disturbances {
    pub now_ms: u64,
    /// The last time at which no node served, or a fault was not repaired.
    pub any_ms: u64,
}

#[derive(Default)]
struct State {
    /// By grant.
    revocations: BTreeMap<u64, Revocation>,
    /// The times in which messages of clients were held back or lost.
    delays: Vec<(u64, u64)>,
    /// How many had a grace period that ran when a node took over.
    restored: u64,
}

pub struct Revocations {
    scene: Arc<Scene>,
    state: Mutex<State>,
}

impl Revocations {
    pub fn new(scene: Arc<Scene>) -> Self {
        Self { scene, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes revocations")
    }

    /// An administrator is about to request a revocation.
    pub fn request(&self, grant: u64, grace_ms: u64) {
        let requested_ms = self.scene.state().now_ms;
        let end_ms = requested_ms + grace_ms;
        let mut state = self.state();
        let revocation = state.revocations.entry(grant).or_insert(Revocation {
            requested_ms,
            graces_ms: Vec::new(),
            is_known: false,
            end_ms,
            known_end_ms: end_ms,
            is_told: false,
            contact: None,
            acknowledged_ms: None,
            freed_ms: None,
            is_lost: false,
        });
        revocation.graces_ms.push(grace_ms);
        revocation.end_ms = revocation.end_ms.min(end_ms);
        revocation.known_end_ms = revocation.known_end_ms.min(end_ms);
        revocation.is_told = false;
    }

    /// The administrator was told that a revocation took effect: it is stored, unless etcd refuses commits.
    pub fn acknowledge(&self, grant: u64, etcd: &Etcd) {
        let now_ms = self.scene.state().now_ms;
        if let Some(revocation) =
            self.state().revocations.get_mut(&grant).filter(|it| !etcd.has_refused_since(it.requested_ms))
        {
            revocation.acknowledged_ms = Some(now_ms);
        }
    }

    pub fn is_requested(&self, grant: u64) -> bool {
        self.state().revocations.contains_key(&grant)
    }

    /// In this step, messages of clients may be held back or lost.
    pub fn note_delay(&self) {
        let now_ms = self.scene.state().now_ms;
        let mut state = self.state();
        match state.delays.last_mut() {
            Some((_, until_ms)) if *until_ms >= now_ms => *until_ms = now_ms + STEP.as_millis() as u64,
            _ => state.delays.push((now_ms, now_ms + STEP.as_millis() as u64)),
        }
    }

    /// How many were acknowledged, how many told the holder that it has lost the grant, and how many were restored while their
    /// grace period ran.
    pub fn counts(&self) -> (u64, u64, u64) {
        let state = self.state();
        let count =
            |of: fn(&Revocation) -> bool| state.revocations.values().filter(|it| of(it)).count() as u64;
        (count(|it| it.acknowledged_ms.is_some()), count(|it| it.is_lost), state.restored)
    }

    /// A node has restored the records. Each grace period continues with what was left when it was stored: it was stored when
    /// it was requested.
    pub fn check_restored(&self, server: &Server) -> Result<(), String> {
        let now_ms = self.scene.state().now_ms;
        let State { revocations, restored, .. } = &mut *self.state();
        for (grant, revocation) in revocations {
            (revocation.contact, revocation.freed_ms) = (None, None);
            let Some(VerifiedGrant { grace_left, .. }) = verified(server, *grant) else { continue };
            match grace_left {
                GraceLeft::For(Milliseconds(left_ms)) if revocation.graces_ms.contains(&left_ms.into()) => {
                    revocation.is_known = true;
                    // Another request may still arrive.
                    if revocation.graces_ms.len() == 1 {
                        revocation.end_ms = now_ms + u64::from(left_ms);
                    }
                    *restored += 1;
                }
                GraceLeft::NotRevoked if revocation.acknowledged_ms.is_none() => {}
                other => return Err(format!("grant {grant} has {other:?}: {revocation:?}")),
            }
        }
        Ok(())
    }

    /// Whether a revocation explains that a client believes in a grant that the store or the serving node does not have.
    pub fn excuses(&self, grant: u64, disturbances: Disturbances) -> bool {
        let Disturbances { now_ms, any_ms } = disturbances;
        let mut state = self.state();
        let Some(revocation) = state.revocations.get_mut(&grant) else { return false };
        let freed_ms = *revocation.freed_ms.get_or_insert(now_ms);
        if freed_ms < revocation.end_ms || revocation.is_told {
            return false;
        }
        if any_ms + RECOVER_MS_MAX < revocation.requested_ms {
            let is_short = revocation.graces_ms.iter().any(|grace_ms| *grace_ms < TRAVEL_MS_MAX);
            return is_short && now_ms < freed_ms + TRAVEL_MS_MAX;
        }
        now_ms < any_ms.max(freed_ms) + TTL_MS_MAX
    }

    /// The holder has lost a grant, because of a revocation.
    pub fn check_loss(&self, grant: u64) -> Result<(), String> {
        let now_ms = self.scene.state().now_ms;
        let State { revocations, delays, .. } = &mut *self.state();
        let Some(revocation) = revocations.get_mut(&grant) else {
            return Err(format!("grant {grant} is lost by a revocation that no administrator requested"));
        };
        if std::mem::replace(&mut revocation.is_lost, true) {
            return Ok(());
        }
        // The holder counts from its last request, a quarter of the time to live ago at most, and that may have been delayed.
        let since_ms = revocation.requested_ms.saturating_sub(TTL_MS_MAX);
        let delayed_ms: u64 = delays
            .iter()
            .map(|(from_ms, until_ms)| until_ms.min(&now_ms).saturating_sub(*from_ms.max(&since_ms)))
            .sum();
        let travel_ms = TRAVEL_MS_MAX + delayed_ms;
        let known_ms = revocation.known_end_ms - revocation.requested_ms;
        let early_ms = travel_ms + (TTL_MS_MAX / 4 + travel_ms + known_ms) / INACCURACY;
        let is_in_time = now_ms + early_ms >= revocation.known_end_ms;
        is_in_time
            .then_some(())
            .ok_or_else(|| format!("grant {grant} is lost before its grace period ends: {revocation:?}"))
    }

    /// Checks that acknowledged revocations take effect, and notes which holders are told.
    pub fn check(&self, server: &Server, disturbances: Disturbances) -> Result<(), String> {
        let Disturbances { now_ms, any_ms } = disturbances;
        let State { revocations, delays, .. } = &mut *self.state();
        let is_delayed = delays.last().is_some_and(|(_, until_ms)| *until_ms >= now_ms);
        for (grant, revocation) in revocations {
            revocation.update(*grant, server, is_delayed, now_ms);
            let Some(acknowledged_ms) = revocation.acknowledged_ms else { continue };
            // Which of several requests was acknowledged is not known.
            let grace_ms = revocation.graces_ms.iter().max().copied().unwrap_or_default();
            let until_ms = acknowledged_ms.max(any_ms) + grace_ms + RECOVER_MS_MAX;
            if now_ms > until_ms && is_held(server, *grant) {
                return Err(format!("grant {grant} is still held: {revocation:?}"));
            }
        }
        Ok(())
    }
}

impl Revocation {
    /// Updates whether the holder was told. After a request of it, the node reaches it over the same connection.
    fn update(&mut self, grant: u64, server: &Server, is_delayed: bool, now_ms: u64) {
        // Which of several requests the node has received is not known.
        let [grace_ms] = self.graces_ms[..] else { return };
        let is_told = self.is_told && self.known_end_ms == self.end_ms;
        let Some(session) = revoked_session(server, grant).filter(|_| !is_told) else { return };
        if !std::mem::replace(&mut self.is_known, true) {
            // The node has received it in this step.
            self.end_ms = self.end_ms.max(now_ms - STEP.as_millis() as u64 + grace_ms);
        }
        let present = connection(server, session).filter(|_| !is_delayed);
        self.contact = present.map(|(connection, lease)| match self.contact {
            Some(contact) if contact.connection == connection => {
                let is_renewed = contact.lease != lease;
                let renewed_ms = contact.renewed_ms.or(is_renewed.then_some(now_ms));
                Contact { renewed_ms, ..contact }
            }
            _ => Contact { connection, lease, renewed_ms: None },
        });
        if self
            .contact
            .and_then(|contact| contact.renewed_ms)
            .is_some_and(|at_ms| now_ms > at_ms + TELL_MS_MAX)
        {
            (self.is_told, self.known_end_ms) = (true, self.end_ms);
        }
    }
}

/// The times count from the start of the server.
const START: Moment = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };

fn verified(server: &Server, grant: u64) -> Option<VerifiedGrant> {
    server.core().verify(GrantId(grant), START).ok()
}

/// The session of a grant that the node knows to be revoked.
fn revoked_session(server: &Server, grant: u64) -> Option<u64> {
    let revoked = verified(server, grant).filter(|verified| verified.grace_left != GraceLeft::NotRevoked)?;
    Some(revoked.session)
}

/// The connection of a session that holds something, if it has one, and the end of its lease.
fn connection(server: &Server, session: u64) -> Option<(ConnectionId, TtlLeft)> {
    let core = server.core();
    let mut claims = ClaimListing::of(SessionId::from_number(session).into_iter().collect());
    let connection = core.list_claims(&mut claims).into_iter().find_map(|claimed| claimed.listed.1)?;
    let mut sessions = core.sessions();
    let mut listed = core.list_sessions(&mut sessions, |_| Vec::new(), START).into_iter();
    Some((connection, listed.find(|listed| listed.session == session)?.ttl_left))
}
