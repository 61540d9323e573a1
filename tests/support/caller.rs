//! A client of the extended operations: it sends exactly the requests of the test, and nothing by itself.

use signalbox_model::{
    AS_DECLARED, Changed, Claim, Declaration, DeclaredEntry, DeclaredState, GrantId, IfExists, Milliseconds,
    Namespace, Operation, RequestId, RequestIds, Resizing, Revocation,
};
use signalbox_protocol::{
    Credentials, Extended, Features, Granted, HelloAnswer, Opaque, OpenedSession, Queueing, ResponseFrame,
    Wait,
};

use super::{Answer, OK, Wire};

/// A connection that uses the extended operations.
pub struct Caller {
    pub wire: Wire,
    opaque: u32,
    request: u64,
}

/// Waits as long as the server allows.
pub const LONG: Queueing = Queueing { wait: Wait::ServerDefault, queue_max: None };

/// Does not wait.
pub const NOW: Queueing = Queueing { wait: Wait::NotAtAll, queue_max: None };

pub fn for_ms(span_ms: u32) -> Queueing {
    Queueing { wait: Wait::UpTo(Milliseconds(span_ms)), queue_max: None }
}

/// One of at most `maximum` of a counter.
pub fn one_of(maximum: u32, name: &[u8]) -> Claim<'_> {
    Claim { namespace: Some(Namespace::Counters), name, resources: 1, maximum, slot: None }
}

/// One of a name whose namespace the server finds out.
pub fn limit(maximum: u32, name: &[u8]) -> Claim<'_> {
    Claim { namespace: None, name, resources: 1, maximum, slot: None }
}

/// This number of resources of a declared semaphore.
pub fn semaphore(resources: u32, name: &[u8]) -> Claim<'_> {
    Claim { namespace: Some(Namespace::Semaphores), name, resources, maximum: AS_DECLARED, slot: None }
}

pub fn counted(name: &[u8], capacity: u32) -> Declaration<'_> {
    Declaration { name, capacity, numbered: false, label: b"" }
}

pub fn numbered(name: &[u8], capacity: u32) -> Declaration<'_> {
    Declaration { name, capacity, numbered: true, label: b"" }
}

pub fn declaring<'a>(if_exists: IfExists, list: &[Declaration<'a>]) -> Operation<'a> {
    Operation::Declare { if_exists, declarations: list.to_vec() }
}

pub fn declare(caller: &mut Caller, if_exists: IfExists, list: &[Declaration<'_>]) -> ResponseFrame {
    caller.change(declaring(if_exists, list))
}

/// Declares a semaphore, which must not be declared yet.
#[track_caller]
pub fn declare_new(caller: &mut Caller, declaration: Declaration<'_>) -> DeclaredState {
    let answer = declare(caller, IfExists::Fail, &[declaration]);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.declared()[0]
}

/// The declared semaphores whose names begin with this prefix.
pub fn list(caller: &mut Caller, prefix: &[u8]) -> Vec<DeclaredEntry<bytes::Bytes>> {
    let opaque = caller.send(&Extended::List { prefix });
    std::iter::from_fn(|| caller.answer(opaque).declared_entry().unwrap()).collect()
}

/// Reads the answers to changes.
pub trait Changes {
    /// The states in the answer to a Declare.
    fn declared(&self) -> Vec<DeclaredState>;
    /// The state in the answer to a Resize, Pause or SetSlot.
    fn resized(&self) -> DeclaredState;
    /// The number in the answer to a RevokeClient or RevokeIdentity.
    fn revoked(&self) -> u64;
}

impl Changes for ResponseFrame {
    fn declared(&self) -> Vec<DeclaredState> {
        let declare = Operation::Declare { if_exists: IfExists::Fail, declarations: Vec::new() };
        self.changed(&declare).unwrap().states().to_vec()
    }

    fn resized(&self) -> DeclaredState {
        let resize = Operation::Resize { name: b"", how: Resizing::To(0), expected: None };
        self.changed(&resize).unwrap().states()[0]
    }

    fn revoked(&self) -> u64 {
        let revoke = Operation::Revoke { what: Revocation::Identity(b""), grace: Milliseconds(0) };
        match self.changed(&revoke).unwrap() {
            Changed::Count(count) => count,
            other => panic!("{other:?}"),
        }
    }
}

impl Caller {
    pub fn new(wire: Wire) -> Self {
        Self { wire, opaque: 0x1000_0000, request: 0 }
    }

    /// Sends a request and returns its opaque.
    pub fn send(&mut self, request: &Extended<'_>) -> Opaque {
        self.opaque += 1;
        let opaque = Opaque(self.opaque.to_be_bytes());
        let mut bytes = Vec::new();
        request.compose(opaque, &mut bytes);
        self.wire.send(&bytes);
        opaque
    }

    /// The next response.
    pub fn next(&mut self) -> ResponseFrame {
        let Answer { opcode, status, opaque, body, .. } = self.wire.answer();
        ResponseFrame { opcode, status, opaque: Opaque(opaque), body: body.into() }
    }

    /// The next response, which must be to this request.
    pub fn answer(&mut self, opaque: Opaque) -> ResponseFrame {
        let answer = self.next();
        assert_eq!(answer.opaque, opaque, "{answer:?}");
        answer
    }

    /// Sends a request and returns its answer, which must be the next response.
    pub fn ask(&mut self, request: &Extended<'_>) -> ResponseFrame {
        let opaque = self.send(request);
        self.answer(opaque)
    }

    /// Requests a change under new ids, without waiting for the answer.
    pub fn begin(&mut self, operation: Operation<'_>) -> Opaque {
        let ids = self.ids();
        self.send(&Extended::Change { ids, operation })
    }

    /// Requests a change under new ids.
    pub fn change(&mut self, operation: Operation<'_>) -> ResponseFrame {
        let opaque = self.begin(operation);
        self.answer(opaque)
    }

    /// Sends a Hello that requests these features.
    pub fn introduce(&mut self, label: &str, features: Features) -> HelloAnswer {
        let (label, credentials) = (label.as_bytes(), Credentials(&[]));
        self.ask(&Extended::Hello { version: 1, label, credentials, features }).hello().unwrap()
    }

    pub fn hello(&mut self, label: &str) -> u64 {
        self.introduce(label, Features::default()).session
    }

    pub fn open(&mut self, ttl_ms: u32) -> OpenedSession {
        self.ask(&Extended::OpenSession { ttl: Some(Milliseconds(ttl_ms)), label: b"leased", key: None })
            .opened()
            .unwrap()
    }

    pub fn attach(&mut self, session: OpenedSession) -> u8 {
        self.ask(&Extended::AttachSession { session: session.session, key: session.key, repetitions: 0 })
            .status
    }

    /// The ids of a new request; none of the earlier answers is acknowledged.
    pub fn ids(&mut self) -> RequestIds {
        self.request += 1;
        RequestIds { own: RequestId(self.request), lowest_unanswered: RequestId(1) }
    }

    /// Requests a grant without waiting for the answer.
    pub fn want(&mut self, claim: Claim<'_>, queueing: Queueing) -> Opaque {
        let ids = self.ids();
        self.send(&Extended::AcquireGrant { ids, claim, queueing, place: None, is_shared: false })
    }

    /// Requests a grant, which must be granted at once.
    pub fn take(&mut self, claim: Claim<'_>) -> Granted<Vec<u16>> {
        let opaque = self.want(claim, NOW);
        let answer = self.answer(opaque);
        assert_eq!(answer.status, OK, "{answer:?}");
        answer.granted().unwrap()
    }

    pub fn give_back(&mut self, grant: GrantId) -> u8 {
        let ids = self.ids();
        self.ask(&Extended::ReleaseGrant { ids, grant, is_done: false }).status
    }

    /// A round trip: when it returns, every earlier request has been executed.
    pub fn sync(&mut self) {
        assert_eq!(self.wire.ask(super::NOOP, &[]).status, OK);
    }
}
