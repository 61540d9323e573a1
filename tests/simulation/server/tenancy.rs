//! What a client keeps of its session: what it asked with which request id, and what it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use signalbox::core::Namespace;
use signalbox::protocol::{
    Claim, Claims, Extended, GrantId, Milliseconds, Queueing, RequestId, RequestIds, Revocation, SessionKey,
    Wait,
};

use super::line::{Line, Outcome};
use crate::scene::{Key, Scene, key};
use crate::support::caller::on_wire;

/// A grant that nobody has.
pub const NO_GRANT: u64 = 1 << 60;

/// How many requests a client keeps the answers of.
const ANSWERS_MAX: u64 = 200;

#[derive(Clone)]
pub struct Part {
    pub namespace: Namespace,
    pub name: Vec<u8>,
    pub resources: u32,
    pub maximum: u32,
}

/// A request that has an id.
#[derive(Clone)]
pub enum Errand {
    /// Several parts are an AcquireAll, and one may be.
    Acquire {
        parts: Vec<Part>,
        is_all: bool,
        wait_ms: u32,
        queue_max: Option<u32>,
    },
    Release {
        grant: u64,
    },
    Revoke {
        what: Revocation,
        grace_ms: u32,
    },
}

pub struct Request {
    pub errand: Errand,
    pub first_sent_ms: u64,
    /// The life of the server in which it was sent first.
    pub first_life: u64,
    /// Set for a release of what its client was told of, and may rely on to be there.
    pub is_sure: bool,
    /// Where it was sent last: under this opaque of this connection.
    pub newest: (SocketAddr, u32),
    /// Set when the client has asked for the end of its waiting.
    pub is_canceled: bool,
    /// Set when the server has said that it does not wait any more.
    pub is_surely_canceled: bool,
    /// What it was first answered.
    pub answer: Option<Answered>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub status: u8,
    pub grant: u64,
    /// The numbers of its slots, in the order of the request.
    pub slots: Vec<Vec<u16>>,
    /// The life of the server that gave this answer.
    pub life: u64,
}

/// A session of a client; leased where it has a key, else a connection's own.
pub struct Tenancy {
    scene: Arc<Scene>,
    pub session: u64,
    pub key: Option<SessionKey>,
    pub ttl_ms: u32,
    /// The life of the server that it is asked in.
    pub life: u64,
    /// Set when the client has asked for its end.
    pub is_closed: bool,
    is_attaching: bool,
    /// Set when a connection was given up before it was told that it is attached: its request may still be on the way,
    /// and attach that connection after any later one.
    pub has_rival: bool,
    /// What could not be stored last, so that it must not have it.
    pub not_stored: Option<Part>,
    pub not_stored_life: Option<u64>,
    /// Set when it may have something all the same that could not be stored, since the server was started again.
    pub is_haunted: bool,
    last_id: u64,
    floor: u64,
    pub requests: BTreeMap<u64, Request>,
    pub held: BTreeSet<u64>,
    pub released: BTreeSet<u64>,
}

impl Tenancy {
    /// The session that a connection was just told of.
    pub fn new(scene: &Arc<Scene>, line: &Line, session: u64, lease: Option<(SessionKey, u32)>) -> Self {
        Self {
            scene: Arc::clone(scene),
            session,
            key: lease.map(|(key, _)| key),
            ttl_ms: lease.map_or(0, |(_, ttl_ms)| ttl_ms),
            life: scene.life_of(line.local),
            is_closed: false,
            is_attaching: false,
            has_rival: false,
            not_stored: None,
            not_stored_life: None,
            is_haunted: false,
            last_id: 0,
            floor: 1,
            requests: BTreeMap::new(),
            held: BTreeSet::new(),
            released: BTreeSet::new(),
        }
    }

    pub fn is_leased(&self) -> bool {
        self.key.is_some()
    }

    pub fn parts_of(parts: &[Part]) -> Vec<(Key, u64)> {
        parts.iter().map(|part| (key(part.namespace, &part.name), u64::from(part.resources))).collect()
    }

    pub fn unanswered(&self) -> Vec<u64> {
        let open = self.requests.iter().filter(|(_, request)| request.answer.is_none());
        open.map(|(id, _)| *id).collect()
    }

    /// Requests that were granted what is still held.
    pub fn granted(&self) -> impl Iterator<Item = u64> {
        let is_held = |request: &Request| {
            request.answer.as_ref().is_some_and(|answer| self.held.contains(&answer.grant))
        };
        self.requests.iter().filter(move |(_, request)| is_held(request)).map(|(id, _)| *id)
    }

    /// Whether the session may have ended, by all that is known of it.
    pub fn may_be_over(&self) -> bool {
        let may_be_over = self.scene.with_claims(self.life, |claims, now_ms| {
            claims.is_taken(self.session, now_ms)
                || self.is_leased() && claims.lease_ends_ms(self.session) <= now_ms
        });
        self.is_closed || may_be_over.unwrap_or(true)
    }

    /// Notes that the server has heard of the session, which gives it so much time from then on.
    pub fn renew(&self, sent_ms: u64, ttl_ms: u32) {
        if self.is_leased() && !self.is_closed {
            let until_ms = sent_ms + u64::from(ttl_ms);
            self.scene.with_claims(self.life, |claims, _| claims.renew(self.session, until_ms, self.ttl_ms));
        }
    }

    /// A connection to that life of the server asks to be attached. A server that was started again knows nothing of
    /// who waited or was canceled.
    pub fn attaches(&mut self, life: u64) {
        if let Some(disk) = self.scene.disk.as_ref().filter(|_| life != self.life) {
            self.is_haunted |= self.not_stored_life == Some(self.life) && disk.is_doubtful(self.life);
            self.life = life;
            for request in self.requests.values_mut() {
                request.is_canceled = false;
                request.is_surely_canceled = false;
            }
        }
        self.has_rival |= self.is_attaching;
        self.is_attaching = true;
    }

    /// The connection that asked last is told that it is attached.
    pub fn attached(&mut self) {
        self.is_attaching = false;
    }

    /// Asks for its end, and so relies on nothing of it any more.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.scene.with_claims(self.life, |claims, _| claims.let_session_go(self.session));
    }

    /// Appends a new request. Where answers may be forgotten, the server is told so.
    pub fn ask(&mut self, line: &mut Line, errand: Errand, forgets: bool, bytes: &mut BytesMut) {
        self.last_id += 1;
        if forgets || self.last_id - self.floor > ANSWERS_MAX {
            self.floor = self.unanswered().first().copied().unwrap_or(self.last_id);
            self.requests = self.requests.split_off(&self.floor);
        }
        let mut is_sure = false;
        match &errand {
            // Who gives something back does not rely on it any more.
            Errand::Release { grant } => {
                let was_claimed = self.scene.with_claims(self.life, |claims, _| claims.let_go(*grant));
                is_sure = was_claimed.unwrap_or(false);
                self.held.remove(grant);
                self.released.insert(*grant);
            }
            Errand::Revoke { what, grace_ms } => {
                let (Revocation::Grant(GrantId(number)) | Revocation::Session(number)) = *what;
                self.scene.with_claims(self.life, |claims, now_ms| {
                    claims.take(number, now_ms + u64::from(*grace_ms));
                });
            }
            Errand::Acquire { .. } => {}
        }
        let request = Request {
            errand,
            first_sent_ms: self.scene.state().now_ms,
            first_life: self.life,
            is_sure,
            newest: (line.local, 0),
            is_canceled: false,
            is_surely_canceled: false,
            answer: None,
        };
        self.requests.insert(self.last_id, request);
        self.repeat(line, self.last_id, bytes);
    }

    /// Appends a request once more.
    pub fn repeat(&mut self, line: &mut Line, id: u64, bytes: &mut BytesMut) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let ids = RequestIds { own: RequestId(id), lowest_unanswered: RequestId(self.floor) };
        let (mut list, mut wait) = (Vec::new(), None);
        let composed = match &request.errand {
            Errand::Acquire { parts, is_all, wait_ms, queue_max } => {
                wait = (*wait_ms > 0).then_some(*wait_ms);
                let queueing = Queueing { wait: Wait::UpTo(Milliseconds(*wait_ms)), queue_max: *queue_max };
                list.extend(parts.iter().map(|part| Claim {
                    namespace: on_wire(part.namespace),
                    name: &part.name,
                    resources: part.resources,
                    maximum: part.maximum,
                }));
                if *is_all {
                    let claims = Claims::new(&list).expect("few names, each once");
                    Extended::AcquireAll { ids, queueing, claims }
                } else {
                    Extended::AcquireGrant { ids, claim: list[0], queueing }
                }
            }
            Errand::Release { grant } => Extended::ReleaseGrant { ids, grant: GrantId(*grant) },
            Errand::Revoke { what, grace_ms } => {
                Extended::Revoke { ids, what: *what, grace: Milliseconds(*grace_ms) }
            }
        };
        let asked = Outcome::Request { id, wait_ms: wait };
        request.newest = (line.local, line.compose(&composed, asked, bytes));
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        self.scene.with_claims(self.life, |claims, _| claims.let_session_go(self.session));
    }
}
