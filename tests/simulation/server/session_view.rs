//! What a client knows of its session: its requests by id, with their answers, and the grants that it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use signalbox_model::{
    Claim, GrantId, Milliseconds, Namespace, Operation as Change, RequestId, RequestIds, Revocation,
    SessionKey,
};
use signalbox_protocol::{Claims, Extended, Queueing, Wait};

use super::session_connection::{RequestKind, SessionConnection};
use crate::scene::{Key, Scene, key};

/// An id that no grant has.
pub const NO_GRANT: u64 = 1 << 60;

/// The number of requests whose answers a client keeps.
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
pub enum Operation {
    /// An AcquireAll if `is_all` is set, else an Acquire of one part.
    Acquire {
        parts: Vec<Part>,
        is_all: bool,
        /// It is one of a single flight.
        is_shared: bool,
        wait_ms: u32,
        queue_max: Option<u32>,
    },
    Release {
        grant: u64,
        is_done: bool,
    },
    Revoke {
        what: Revocation<'static>,
        grace_ms: u32,
    },
}

pub struct Request {
    pub operation: Operation,
    pub first_sent_ms: u64,
    /// The life of the server in which it was first sent.
    pub first_life: u64,
    /// Set for the release of a grant that its client may count on.
    pub is_sure: bool,
    /// Where it was last sent: the connection and the opaque.
    pub newest: (SocketAddr, u32),
    /// Set when the client has canceled its wait.
    pub is_canceled: bool,
    /// Set when the server has confirmed the cancellation.
    pub is_surely_canceled: bool,
    /// Its first answer.
    pub answer: Option<RecordedAnswer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAnswer {
    pub status: u8,
    pub grant: u64,
    /// Its slots, in the order of the request.
    pub slots: Vec<Vec<u16>>,
    /// The life of the server that gave this answer.
    pub life: u64,
}

/// A session of a client; leased if it has a key, else a connection session.
pub struct SessionView {
    scene: Arc<Scene>,
    pub session: u64,
    pub key: Option<SessionKey>,
    pub ttl_ms: u32,
    /// The life of the server that the client talks to.
    pub life: u64,
    /// Set when the client has closed it.
    pub is_closed: bool,
    is_attaching: bool,
    /// Set when the client gave up a connection before its attachment was confirmed: that request may still be in
    /// flight, and attach the connection after any later one.
    pub has_late_attachment: bool,
    /// The part of the last request that could not be stored, which the session must not hold.
    pub not_stored: Option<Part>,
    pub not_stored_life: Option<u64>,
    /// Set when the session may hold what could not be stored, because the server was restarted.
    pub may_hold_unstored: bool,
    last_id: u64,
    floor: u64,
    pub requests: BTreeMap<u64, Request>,
    pub held: BTreeSet<u64>,
    pub released: BTreeSet<u64>,
}

impl SessionView {
    /// A session that a connection just received.
    pub fn new(
        scene: &Arc<Scene>,
        connection: &SessionConnection,
        session: u64,
        lease: Option<(SessionKey, u32)>,
    ) -> Self {
        Self {
            scene: Arc::clone(scene),
            session,
            key: lease.map(|(key, _)| key),
            ttl_ms: lease.map_or(0, |(_, ttl_ms)| ttl_ms),
            life: scene.life_of(connection.local),
            is_closed: false,
            is_attaching: false,
            has_late_attachment: false,
            not_stored: None,
            not_stored_life: None,
            may_hold_unstored: false,
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

    /// The requests whose grants are still held.
    pub fn granted(&self) -> impl Iterator<Item = u64> {
        let is_held = |request: &Request| {
            request.answer.as_ref().is_some_and(|answer| self.held.contains(&answer.grant))
        };
        self.requests.iter().filter(move |(_, request)| is_held(request)).map(|(id, _)| *id)
    }

    /// The name of a grant of a single flight.
    pub fn shared_key(&self, grant: u64) -> Option<Key> {
        let is_its = |request: &&Request| request.answer.as_ref().is_some_and(|answer| answer.grant == grant);
        match &self.requests.values().find(is_its)?.operation {
            Operation::Acquire { parts, is_shared: true, .. } => {
                Some(key(parts[0].namespace, &parts[0].name))
            }
            _ => None,
        }
    }

    /// Whether the session may have ended, as far as the client knows.
    pub fn may_be_over(&self) -> bool {
        let may_be_over = self.scene.with_expectations(self.life, |expectations, now_ms| {
            expectations.is_revoked(self.session, now_ms)
                || self.is_leased() && expectations.lease_ends_ms(self.session) <= now_ms
        });
        self.is_closed || may_be_over.unwrap_or(true)
    }

    /// Records that the server renewed the session, for this time to live from the sending of the request.
    pub fn renew(&self, sent_ms: u64, ttl_ms: u32) {
        if self.is_leased() && !self.is_closed {
            let until_ms = sent_ms + u64::from(ttl_ms);
            self.scene.with_expectations(self.life, |expectations, _| {
                expectations.renew(self.session, until_ms, self.ttl_ms)
            });
        }
    }

    /// A connection to this life of the server requests an attachment. A restarted server has no record of waits or
    /// cancellations.
    pub fn attaches(&mut self, life: u64) {
        if let Some(disk) = self.scene.disk.as_ref().filter(|_| life != self.life) {
            self.may_hold_unstored |= self.not_stored_life == Some(self.life) && disk.is_doubtful(self.life);
            self.life = life;
            for request in self.requests.values_mut() {
                request.is_canceled = false;
                request.is_surely_canceled = false;
            }
        }
        self.has_late_attachment |= self.is_attaching;
        self.is_attaching = true;
    }

    /// The attachment of the newest connection was confirmed.
    pub fn attached(&mut self) {
        self.is_attaching = false;
    }

    /// The client closes the session, and no longer counts on it.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.scene.with_expectations(self.life, |expectations, _| expectations.drop_session(self.session));
    }

    /// Appends a new request. If answers may be forgotten, the request informs the server.
    pub fn ask(
        &mut self,
        connection: &mut SessionConnection,
        operation: Operation,
        forgets: bool,
        bytes: &mut Vec<u8>,
    ) {
        self.last_id += 1;
        if let Operation::Release { grant, is_done: true } = &operation {
            self.send_done(connection, *grant, self.shared_key(*grant));
        }
        if forgets || self.last_id - self.floor > ANSWERS_MAX {
            self.floor = self.unanswered().first().copied().unwrap_or(self.last_id);
            self.requests = self.requests.split_off(&self.floor);
        }
        let mut is_sure = false;
        match &operation {
            // A client that releases a grant no longer counts on it.
            Operation::Release { grant, .. } => {
                let was_expected = self
                    .scene
                    .with_expectations(self.life, |expectations, _| expectations.drop_grant(*grant));
                is_sure = was_expected.unwrap_or(false);
                self.held.remove(grant);
                self.released.insert(*grant);
            }
            Operation::Revoke { what, grace_ms } => {
                let number = match what {
                    Revocation::Grant(grant) => grant.0,
                    Revocation::Session(session) => session.number(),
                    other => panic!("not revoked here: {other}"),
                };
                self.scene.with_expectations(self.life, |expectations, now_ms| {
                    expectations.revoke(number, now_ms + u64::from(*grace_ms));
                });
            }
            Operation::Acquire { .. } => {}
        }
        let request = Request {
            operation,
            first_sent_ms: self.scene.state().now_ms,
            first_life: self.life,
            is_sure,
            newest: (connection.local, 0),
            is_canceled: false,
            is_surely_canceled: false,
            answer: None,
        };
        self.requests.insert(self.last_id, request);
        self.repeat(connection, self.last_id, bytes);
    }

    /// A release with `done` is sent over a connection, for the first time if the name is given.
    fn send_done(&self, connection: &SessionConnection, grant: u64, name: Option<Key>) {
        let mut state = self.scene.state();
        let now_ms = state.now_ms;
        if state.may_execute(connection.local) {
            state.flights.send(grant, name, connection.local, now_ms);
        }
    }

    /// Appends a request again.
    pub fn repeat(&mut self, connection: &mut SessionConnection, id: u64, bytes: &mut Vec<u8>) {
        let request = self.requests.get(&id);
        // This run of the server has not answered it.
        let unanswered =
            request.filter(|request| request.answer.as_ref().is_none_or(|answer| answer.life != self.life));
        if let Some(Request { operation: Operation::Release { grant, is_done: true }, .. }) = unanswered {
            self.send_done(connection, *grant, None);
        }
        let Some(request) = self.requests.get_mut(&id) else { return };
        let ids = RequestIds { own: RequestId(id), lowest_unanswered: RequestId(self.floor) };
        let (mut list, mut wait) = (Vec::new(), None);
        let composed = match &request.operation {
            Operation::Acquire { parts, is_all, is_shared, wait_ms, queue_max } => {
                wait = (*wait_ms > 0).then_some(*wait_ms);
                let queueing = Queueing { wait: Wait::UpTo(Milliseconds(*wait_ms)), queue_max: *queue_max };
                list.extend(parts.iter().map(|part| Claim {
                    namespace: Some(part.namespace),
                    name: &part.name,
                    resources: part.resources,
                    maximum: part.maximum,
                    slot: None,
                }));
                if *is_all {
                    let claims = Claims::new(&list).expect("few names, each once");
                    Extended::AcquireAll { ids, queueing, claims, place: None }
                } else {
                    Extended::AcquireGrant {
                        ids,
                        claim: list[0],
                        queueing,
                        place: None,
                        is_shared: *is_shared,
                    }
                }
            }
            Operation::Release { grant, is_done } => {
                Extended::ReleaseGrant { ids, grant: GrantId(*grant), is_done: *is_done }
            }
            Operation::Revoke { what, grace_ms } => {
                let (what, grace) = (*what, Milliseconds(*grace_ms));
                Extended::Change { ids, operation: Change::Revoke { what, grace } }
            }
        };
        let kind = RequestKind::Request { id, wait_ms: wait };
        request.newest = (connection.local, connection.compose(&composed, kind, bytes));
    }
}

impl Drop for SessionView {
    fn drop(&mut self) {
        self.scene.with_expectations(self.life, |expectations, _| expectations.drop_session(self.session));
    }
}
