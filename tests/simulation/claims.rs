//! What clients of the extended operations believe: which grants they hold, and how long their leases last.
//!
//! A client measures its lease itself, from the sending of the last request that was answered. A grant whose lease is
//! not over by that measure must be held at the server, whatever was cut meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;

use signalbox::core::{GrantId, Moment, MonotonicMs, Refusal, UnixSeconds, Verified};
use signalbox::server::Server;

use crate::scene::Key;

/// How long after its end a grant may still be held: what runs at that moment must have its turn first.
const LATE_MS_MAX: u64 = 50;

/// A grant that a client was told of.
pub struct Claim {
    pub session: u64,
    /// Set for a grant of a connection's own session, which ends with it.
    pub connection: Option<SocketAddr>,
    pub parts: Vec<(Key, u64)>,
    /// The numbers that it has of names whose resources have some.
    pub slots: Vec<(Key, Vec<u16>)>,
}

/// Until when a client relies on a session, and the time to live that it has.
#[derive(Default)]
struct Lease {
    until_ms: u64,
    ttl_ms: u64,
}

#[derive(Default)]
pub struct Claims {
    grants: BTreeMap<u64, Claim>,
    /// Until when the leases last of which clients know.
    leases: BTreeMap<u64, Lease>,
    /// The own sessions of connections that know theirs.
    connections: BTreeMap<u64, SocketAddr>,
    /// Grants and sessions that somebody asked to revoke, and from when on nobody may rely on them. The numbers of
    /// grants are far above those of sessions.
    taken: BTreeMap<u64, u64>,
    /// All grants that clients were told of, until the server holds them no more.
    seen: BTreeSet<u64>,
    /// All sessions that clients were told of.
    met: BTreeSet<u64>,
    /// The greatest grant that a client was told of, and what that was when the server was started.
    greatest: u64,
    greatest_before: u64,
    /// Grants that leases are free of for good, and when their clients heard so.
    returned: BTreeMap<u64, u64>,
}

impl Claims {
    pub fn renew(&mut self, session: u64, until_ms: u64, ttl_ms: u32) {
        let lease = self.leases.entry(session).or_default();
        lease.until_ms = until_ms.max(lease.until_ms);
        lease.ttl_ms = u64::from(ttl_ms);
    }

    pub fn claim(&mut self, grant: u64, claim: Claim) {
        self.seen.insert(grant);
        self.greatest = grant.max(self.greatest);
        self.grants.insert(grant, claim);
    }

    /// A client relies on a grant no more. Tells whether it did.
    pub fn let_go(&mut self, grant: u64) -> bool {
        self.grants.remove(&grant).is_some()
    }

    /// The client of a session relies on it no more.
    pub fn let_session_go(&mut self, session: u64) {
        self.leases.remove(&session);
        self.grants.retain(|_, claim| claim.session != session);
    }

    pub fn let_connection_go(&mut self, connection: SocketAddr) {
        self.connections.retain(|_, own| *own != connection);
        self.grants.retain(|_, claim| claim.connection != Some(connection));
    }

    pub fn let_connections_go(&mut self) {
        self.connections.clear();
        self.grants.retain(|_, claim| claim.connection.is_none());
    }

    /// A client is told of a session that was made for it. Tells whether there was none of that number before.
    pub fn meet(&mut self, session: u64) -> bool {
        self.met.insert(session)
    }

    /// Leases are free of these grants, and stay so.
    pub fn give_back(&mut self, grants: impl IntoIterator<Item = u64>, now_ms: u64) {
        self.returned.extend(grants.into_iter().map(|grant| (grant, now_ms)));
    }

    /// The server stopped and is started again, on a disk that was `behind` since then. Leases that were not over have
    /// all their time again. Of those that were, who knows what is there.
    pub fn go_on(
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
        let is_kept = |session: &u64| leases.get(session).is_some_and(|lease| lease.until_ms > stopped_ms);
        self.grants.retain(|_, claim| is_kept(&claim.session));
        self.greatest_before = self.greatest;
        self.returned.retain(|_, heard_ms| behind_since_ms.is_none_or(|since_ms| *heard_ms < since_ms));
        let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
        let mut returned = self.returned.keys();
        match returned.find(|grant| server.core().verify(GrantId(**grant), now).is_ok()) {
            Some(grant) => Err(format!("grant {grant} is held again, though its return was acknowledged")),
            None => Ok(()),
        }
    }

    /// Whether a grant was given by the server since it was started, as far as its number tells.
    pub fn is_of_now(&self, grant: u64) -> bool {
        grant > self.greatest_before
    }

    pub fn introduce(&mut self, session: u64, connection: SocketAddr) {
        self.connections.insert(session, connection);
    }

    /// Somebody asks for the end of a grant or a session.
    pub fn take(&mut self, number: u64, from_ms: u64) {
        let known_ms = self.taken.entry(number).or_insert(from_ms);
        *known_ms = from_ms.min(*known_ms);
    }

    /// Whether a grant or a session may have been taken away.
    pub fn is_taken(&self, number: u64, now_ms: u64) -> bool {
        self.taken.get(&number).is_some_and(|from_ms| *from_ms <= now_ms)
    }

    pub fn grants(&self) -> Vec<u64> {
        self.grants.keys().copied().collect()
    }

    /// Sessions of all kinds that clients know of.
    pub fn sessions(&self) -> Vec<u64> {
        self.leases.keys().chain(self.connections.keys()).copied().collect()
    }

    /// Until when a session may be relied on.
    pub fn lease_ends_ms(&self, session: u64) -> u64 {
        let taken_ms = self.taken.get(&session).copied().unwrap_or(u64::MAX);
        self.leases.get(&session).map_or(0, |lease| lease.until_ms).min(taken_ms)
    }

    /// Whether the client of a grant relies on it.
    pub fn is_believed(&self, grant: u64, now_ms: u64) -> bool {
        self.grants.get(&grant).is_some_and(|claim| {
            let lease_ms = match claim.connection {
                Some(_) => self.taken.get(&claim.session).copied().unwrap_or(u64::MAX),
                None => self.lease_ends_ms(claim.session),
            };
            self.taken.get(&grant).copied().unwrap_or(u64::MAX).min(lease_ms) > now_ms
        })
    }

    /// Compares what is believed with what the server holds, and gives what is believed of each name.
    pub fn check(
        &mut self,
        server: &Server,
        now_ms: u64,
        started_ms: u64,
    ) -> Result<BTreeMap<Key, u64>, String> {
        let late_ms = (now_ms - started_ms).saturating_sub(LATE_MS_MAX);
        let moment = Moment { monotonic: MonotonicMs(late_ms), unix: UnixSeconds(0) };
        let mut believed = BTreeMap::new();
        let mut slots = BTreeSet::new();
        let mut gone = Vec::new();
        for grant in &self.seen {
            let held = server.core().verify(GrantId(*grant), moment);
            if let Ok(Verified { session, ttl_left_ms: Some(0), .. }) = held {
                return Err(format!("grant {grant} of {session:?} is held though its time is over"));
            }
            if held.is_ok() && self.returned.contains_key(grant) {
                return Err(format!("grant {grant} is held, though its return was acknowledged"));
            }
            if held == Err(Refusal::NotAcquired) {
                gone.push(*grant);
            }
            if !self.is_believed(*grant, now_ms) {
                continue;
            }
            let claim = &self.grants[grant];
            if !held.as_ref().is_ok_and(|verified| verified.session.number() == claim.session) {
                return Err(format!(
                    "session {} relies on grant {grant} until {} ms, of which the server says {held:?}",
                    claim.session,
                    self.lease_ends_ms(claim.session)
                ));
            }
            for (key, resources) in &claim.parts {
                *believed.entry(key.clone()).or_insert(0) += resources;
            }
            for (key, numbers) in &claim.slots {
                if let Some(number) = numbers.iter().find(|number| !slots.insert((key, **number))) {
                    let name = key.1.escape_ascii();
                    return Err(format!("slot {number} of {name} is that of grant {grant} and of another"));
                }
            }
        }
        for grant in gone {
            self.seen.remove(&grant);
        }
        Ok(believed)
    }
}
