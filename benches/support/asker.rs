//! Connections that request grants and wait for them.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use signalbox_model::{Claim, Milliseconds, Namespace, Operation, RequestId, RequestIds, Revocation};
use signalbox_protocol::{Extended, Opaque, Queueing, Request, Wait};

use super::answers::Answers;

/// Such a connection. It sends its requests together, when it waits for answers.
pub struct Asker {
    stream: TcpStream,
    answers: Answers,
    out: Vec<u8>,
}

impl Asker {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        let answers = Answers::of(stream.try_clone().expect("a socket has two ends"));
        Self { stream, answers, out: Vec::new() }
    }

    /// Opens a leased session and attaches to it.
    pub fn open_session(&mut self, ttl_ms: u32) {
        let request = Extended::OpenSession { ttl: Some(Milliseconds(ttl_ms)), label: b"", key: None };
        request.compose(Opaque([0; 4]), &mut self.out);
    }

    /// Acquires one resource of a semaphore that has one. No other request may wait under this opaque.
    pub fn acquire(&mut self, ids: RequestIds, opaque: u32, name: &[u8], wait: Wait) {
        let claim =
            Claim { namespace: Some(Namespace::Semaphores), name, resources: 1, maximum: 1, slot: None };
        let queueing = Queueing { wait, queue_max: None };
        let request = Extended::AcquireGrant { ids, claim, queueing, place: None, is_shared: false };
        request.compose(Opaque(opaque.to_be_bytes()), &mut self.out);
    }

    /// Acquires one resource of a counter.
    pub fn hold_counter(&mut self, name: &[u8]) {
        Request::Acquire { name, resources: 1, maximum: 1 }.compose(Opaque([0; 4]), &mut self.out);
        self.answers(1);
    }

    /// Adds a request whose answer shows that all requests before it were received.
    pub fn noop(&mut self) {
        Request::Noop.compose(Opaque([0; 4]), &mut self.out);
    }

    /// Revokes what holders have, after this grace period.
    pub fn revoke(&mut self, ids: RequestIds, what: Revocation<'_>, grace: Milliseconds) {
        let operation = Operation::Revoke { what, grace };
        Extended::Change { ids, operation }.compose(Opaque([0; 4]), &mut self.out);
    }

    /// Sends the requests added so far.
    pub fn send(&mut self) {
        self.stream.write_all(&self.out).expect("the server reads");
        self.out.clear();
    }

    /// Sends the requests added so far, and waits for this many answers.
    pub fn answers(&mut self, answers: u32) {
        self.send();
        (0..answers).for_each(|_| {
            self.answers.skip();
        });
    }
}

/// The ids of a request of which those from another on have no answer yet.
pub fn ids(own: u32, lowest_unanswered: u32) -> RequestIds {
    let [own, lowest_unanswered] = [own, lowest_unanswered].map(|number| RequestId(number.into()));
    RequestIds { own, lowest_unanswered }
}
