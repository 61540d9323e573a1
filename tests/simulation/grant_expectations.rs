//! What clients of the extended operations expect the server to hold: their grants, and the ends of their leases.
//!
//! A client measures its lease itself, from the time at which it sent the last request that was answered. Invariant:
//! the server holds a grant whose lease has not ended by that measure, whatever was disconnected in the meantime.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;

use signalbox::server::Server;
use signalbox_core::{Moment, MonotonicMs};
use signalbox_model::{GrantId, Refusal};
use signalbox_model::{Milliseconds, TtlLeft, UnixSeconds, VerifiedGrant};

use crate::scene::Key;

/// How long after the end of its lease a grant may still be held: a running task has to finish first.
const LATE_MS_MAX: u64 = 50;

/// A grant that a client received.
pub struct ExpectedGrant {
    pub session: u64,
    /// Set for a grant of a connection session, which ends with the connection.
    pub connection: Option<SocketAddr>,
    pub parts: Vec<(Key, u64)>,
    /// Its slots, for names with numbered resources.
    pub slots: Vec<(Key, Vec<u16>)>,
    /// It is one of a single flight.
    pub is_shared: bool,
}

/// The time until which a client counts on a session, and the session's time to live.
#[derive(Default)]
struct Lease {
    until_ms: u64,
    ttl_ms: u64,
}

#[derive(Default)]
pub struct GrantExpectations {
    grants: BTreeMap<u64, ExpectedGrant>,
    /// The leases that clients know, by session.
    leases: BTreeMap<u64, Lease>,
    /// Connection sessions that their clients know.
    connections: BTreeMap<u64, SocketAddr>,
    /// Grants and sessions that a client asked to revoke, and the time from which no client may count on them. Grant
    /// ids are far above session numbers.
    revoked: BTreeMap<u64, u64>,
    /// All grants that clients received, until the server no longer holds them.
    received: BTreeSet<u64>,
    /// All sessions that clients received.
    sessions_received: BTreeSet<u64>,
    /// The greatest grant id that a client received, and its value when the server was started.
    greatest: u64,
    greatest_before: u64,
    /// Grants whose release was acknowledged, and when the client received that.
    released: BTreeMap<u64, u64>,
}

impl GrantExpectations {
    pub fn renew(&mut self, session: u64, until_ms: u64, ttl_ms: u32) {
        let lease = self.leases.entry(session).or_default();
        lease.until_ms = until_ms.max(lease.until_ms);
        lease.ttl_ms = u64::from(ttl_ms);
    }

    pub fn expect_grant(&mut self, grant: u64, expected: ExpectedGrant) {
        self.received.insert(grant);
        self.greatest = grant.max(self.greatest);
        self.grants.insert(grant, expected);
    }

    /// A client no longer counts on a grant. Returns whether it did before.
    pub fn drop_grant(&mut self, grant: u64) -> bool {
        self.grants.remove(&grant).is_some()
    }

    /// The client of a session no longer counts on it.
    pub fn drop_session(&mut self, session: u64) {
        self.leases.remove(&session);
        self.grants.retain(|_, expected| expected.session != session);
    }

    pub fn drop_connection(&mut self, connection: SocketAddr) {
        self.connections.retain(|_, other| *other != connection);
        self.grants.retain(|_, expected| expected.connection != Some(connection));
    }

    pub fn drop_connections(&mut self) {
        self.connections.clear();
        self.grants.retain(|_, expected| expected.connection.is_none());
    }

    /// A client received a new session. Returns whether its number is new.
    pub fn add_session(&mut self, session: u64) -> bool {
        self.sessions_received.insert(session)
    }

    /// The release of these grants was acknowledged; it is final.
    pub fn acknowledge_release(&mut self, grants: impl IntoIterator<Item = u64>, now_ms: u64) {
        self.released.extend(grants.into_iter().map(|grant| (grant, now_ms)));
    }

    /// The server stopped and was started again, on a disk that could store nothing since `behind_since_ms`. Leases
    /// that had not ended last their full time to live again; the state of the others is unknown.
    pub fn restart(
        &mut self,
        server: &Server,
        stop_and_start_ms: Range<u64>,
        behind_since_ms: Option<u64>,
    ) -> Result<(), String> {
        let Range { start: stopped_ms, end: started_ms } = stop_and_start_ms;
        for lease in self.leases.values_mut().filter(|lease| lease.until_ms > stopped_ms) {
            lease.until_ms = lease.until_ms.max(started_ms + lease.ttl_ms);
        }
        let leases = &self.leases;
        let is_stored = |session: &u64| leases.get(session).is_some_and(|lease| lease.until_ms > stopped_ms);
        self.grants.retain(|_, expected| is_stored(&expected.session));
        self.greatest_before = self.greatest;
        self.released.retain(|_, released_ms| behind_since_ms.is_none_or(|since_ms| *released_ms < since_ms));
        let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
        let mut released = self.released.keys();
        match released.find(|grant| server.core().verify(GrantId(**grant), now).is_ok()) {
            Some(grant) => Err(format!("grant {grant} is held again, although its release was acknowledged")),
            None => Ok(()),
        }
    }

    /// Whether the server gave this grant since its start, by its id.
    pub fn is_since_start(&self, grant: u64) -> bool {
        grant > self.greatest_before
    }

    pub fn add_connection_session(&mut self, session: u64, connection: SocketAddr) {
        self.connections.insert(session, connection);
    }

    /// A client asks to revoke a grant or a session.
    pub fn revoke(&mut self, number: u64, from_ms: u64) {
        let known_ms = self.revoked.entry(number).or_insert(from_ms);
        *known_ms = from_ms.min(*known_ms);
    }

    /// Whether a grant or a session may have been revoked.
    pub fn is_revoked(&self, number: u64, now_ms: u64) -> bool {
        self.revoked.get(&number).is_some_and(|from_ms| *from_ms <= now_ms)
    }

    pub fn grants(&self) -> Vec<u64> {
        self.grants.keys().copied().collect()
    }

    /// Sessions of all kinds that clients know.
    pub fn sessions(&self) -> Vec<u64> {
        self.leases.keys().chain(self.connections.keys()).copied().collect()
    }

    /// Until when a client may count on a session.
    pub fn lease_ends_ms(&self, session: u64) -> u64 {
        let revoked_ms = self.revoked.get(&session).copied().unwrap_or(u64::MAX);
        self.leases.get(&session).map_or(0, |lease| lease.until_ms).min(revoked_ms)
    }

    /// Whether the client of a grant counts on it.
    pub fn is_expected(&self, grant: u64, now_ms: u64) -> bool {
        self.grants.get(&grant).is_some_and(|expected| {
            let lease_ms = match expected.connection {
                Some(_) => self.revoked.get(&expected.session).copied().unwrap_or(u64::MAX),
                None => self.lease_ends_ms(expected.session),
            };
            self.revoked.get(&grant).copied().unwrap_or(u64::MAX).min(lease_ms) > now_ms
        })
    }

    /// Compares the expectations with what the server holds. Returns the expected resources by name.
    pub fn check(
        &mut self,
        server: &Server,
        now_ms: u64,
        started_ms: u64,
    ) -> Result<BTreeMap<Key, u64>, String> {
        let late_ms = (now_ms - started_ms).saturating_sub(LATE_MS_MAX);
        let moment = Moment { monotonic: MonotonicMs(late_ms), unix: UnixSeconds(0) };
        let mut expected_totals = BTreeMap::new();
        let (mut slots, mut workers) = (BTreeSet::new(), BTreeMap::new());
        let mut gone = Vec::new();
        for grant in &self.received {
            let held = server.core().verify(GrantId(*grant), moment);
            if let Ok(VerifiedGrant { session, ttl_left: TtlLeft::For(Milliseconds(0)), .. }) = held {
                return Err(format!("grant {grant} of {session:?} is held although its lease has ended"));
            }
            if held.is_ok() && self.released.contains_key(grant) {
                return Err(format!("grant {grant} is held, although its release was acknowledged"));
            }
            if held == Err(Refusal::NotAcquired) {
                gone.push(*grant);
            }
            if !self.is_expected(*grant, now_ms) {
                continue;
            }
            let expected = &self.grants[grant];
            if !held.as_ref().is_ok_and(|verified| verified.session == expected.session) {
                return Err(format!(
                    "session {} counts on grant {grant} until {} ms, but the server answers {held:?}",
                    expected.session,
                    self.lease_ends_ms(expected.session)
                ));
            }
            for (key, resources) in &expected.parts {
                *expected_totals.entry(key.clone()).or_insert(0) += resources;
            }
            for (key, _) in expected.parts.iter().filter(|_| expected.is_shared) {
                if let Some(other) = workers.insert(key, grant) {
                    let name = key.1.escape_ascii();
                    return Err(format!("grants {other} and {grant} both do the work of {name}"));
                }
            }
            for (key, numbers) in &expected.slots {
                if let Some(number) = numbers.iter().find(|number| !slots.insert((key, **number))) {
                    let name = key.1.escape_ascii();
                    return Err(format!(
                        "slot {number} of {name} belongs to grant {grant} and to another grant"
                    ));
                }
            }
        }
        for grant in gone {
            self.received.remove(&grant);
        }
        Ok(expected_totals)
    }
}
