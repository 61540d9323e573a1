//! What a client keeps of its session: what it asked with which request id, and what it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use signalbox::core::Namespace;
use signalbox::protocol::{
    Extended, GrantId, Milliseconds, Queueing, RequestId, RequestIds, Revocation, SessionKey, Wait, Wanted,
    WantedNames,
};

use crate::line::{Asked, Line};
use crate::scene::{Key, Scene, key};
use crate::support::caller::on_wire;

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
    /// Where its answer is expected: under this opaque of this connection.
    pub expected: (SocketAddr, u32),
    pub is_canceled: bool,
    /// The status it was first answered, and the grant.
    pub answer: Option<(u8, u64)>,
}

/// A session of a client; leased where it has a key, else a connection's own.
pub struct Tenancy {
    scene: Arc<Scene>,
    pub session: u64,
    pub key: Option<SessionKey>,
    pub ttl_ms: u32,
    pub stops: u64,
    /// The connection that was last asked to be attached, and whether it was told that it is.
    pub line: SocketAddr,
    pub is_attached: bool,
    last_id: u64,
    floor: u64,
    pub requests: BTreeMap<u64, Request>,
    pub held: BTreeSet<u64>,
    pub released: BTreeSet<u64>,
}

impl Tenancy {
    pub fn new(scene: &Arc<Scene>, line: &Line, session: u64, lease: Option<(SessionKey, u32)>) -> Self {
        Self {
            scene: Arc::clone(scene),
            session,
            key: lease.map(|(key, _)| key),
            ttl_ms: lease.map_or(0, |(_, ttl_ms)| ttl_ms),
            stops: line.stops,
            line: line.local,
            is_attached: true,
            last_id: 0,
            floor: 1,
            requests: BTreeMap::new(),
            held: BTreeSet::new(),
            released: BTreeSet::new(),
        }
    }

    pub fn parts_of(parts: &[Part]) -> Vec<(Key, u64)> {
        parts.iter().map(|part| (key(part.namespace, &part.name), u64::from(part.resources))).collect()
    }

    pub fn unanswered(&self) -> Vec<u64> {
        let open = self.requests.iter().filter(|(_, request)| request.answer.is_none());
        open.map(|(id, _)| *id).collect()
    }

    /// Whether the server that it was made at is still there.
    pub fn is_of_this_server(&self) -> bool {
        self.scene.state().server_stops == self.stops
    }

    /// Appends a new request. Where answers may be forgotten, the server is told so.
    pub fn ask(&mut self, line: &mut Line, errand: Errand, epoch: u64, forgets: bool, bytes: &mut BytesMut) {
        self.last_id += 1;
        if forgets || self.last_id - self.floor > 200 {
            self.floor = self.unanswered().first().copied().unwrap_or(self.last_id);
            self.requests = self.requests.split_off(&self.floor);
        }
        match &errand {
            // Who gives something back does not rely on it any more.
            Errand::Release { grant } => {
                self.scene.state().claims.let_go(*grant);
                self.held.remove(grant);
                self.released.insert(*grant);
            }
            Errand::Revoke { what, grace_ms } => {
                let mut state = self.scene.state();
                let from_ms = state.now_ms + u64::from(*grace_ms);
                let (Revocation::Grant(GrantId(number)) | Revocation::Session(number)) = *what;
                state.claims.take(number, from_ms);
            }
            Errand::Acquire { .. } => {}
        }
        let request = Request {
            errand,
            first_sent_ms: self.scene.state().now_ms,
            expected: (line.local, 0),
            is_canceled: false,
            answer: None,
        };
        self.requests.insert(self.last_id, request);
        self.repeat(line, self.last_id, epoch, bytes);
    }

    /// Appends a request once more.
    pub fn repeat(&mut self, line: &mut Line, id: u64, epoch: u64, bytes: &mut BytesMut) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let ids = RequestIds { own: RequestId(id), lowest_unanswered: RequestId(self.floor) };
        let (mut list, mut wait) = (Vec::new(), None);
        let composed = match &request.errand {
            Errand::Acquire { parts, is_all, wait_ms, queue_max } => {
                wait = (*wait_ms > 0).then_some(*wait_ms);
                let queueing = Queueing { wait: Wait::UpTo(Milliseconds(*wait_ms)), queue_max: *queue_max };
                list.extend(parts.iter().map(|part| Wanted {
                    namespace: on_wire(part.namespace),
                    name: &part.name,
                    resources: part.resources,
                    maximum: part.maximum,
                }));
                if *is_all {
                    let wanted = WantedNames::new(&list).expect("few names, each once");
                    Extended::AcquireAll { ids, queueing, wanted }
                } else {
                    Extended::AcquireGrant { ids, wanted: list[0], queueing }
                }
            }
            Errand::Release { grant } => Extended::ReleaseGrant { ids, grant: GrantId(*grant) },
            Errand::Revoke { what, grace_ms } => {
                Extended::Revoke { ids, what: *what, grace: Milliseconds(*grace_ms) }
            }
        };
        let asked = Asked::Request { id, wait_ms: wait };
        request.expected = (line.local, line.compose(&composed, (asked, self.session, epoch), bytes));
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        if self.is_of_this_server() {
            self.scene.state().claims.let_session_go(self.session);
        }
    }
}
