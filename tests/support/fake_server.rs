//! A server that the test controls: it receives requests one by one, and the test decides when, in which order and with
//! what they are answered, and when the connection is closed.
//!
//! It knows the wire format but not the rules of counters; every wait has a bound.

#![allow(dead_code, reason = "each test file that includes this uses a part of it")]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use signalbox_model::Status;
use signalbox_protocol::{DumpEntry, Opaque, Request, RequestCodec, Response, ResponseFrame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::PATIENCE;

/// The opcode of Hello. It is answered `Unknown command`, as by yrmcdsd.
const HELLO: u8 = 0x20;

/// A connection counts as stuck if its peer reads nothing for this long.
const STUCK: Duration = Duration::from_millis(300);

/// Waits for an expected event, and fails the test if it does not happen.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// A listener on a free port of the loopback interface.
pub(crate) struct FakeServer {
    listener: TcpListener,
}

impl FakeServer {
    pub(crate) async fn bind() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) async fn accept(&self) -> Peer {
        let (stream, _) = soon("a connection", self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Peer { stream, buffer: BytesMut::new(), received: Vec::new() }
    }
}

/// The server's end of one connection. Dropping it closes the connection.
pub(crate) struct Peer {
    stream: TcpStream,
    buffer: BytesMut,
    /// Received requests that the test has not taken yet, the next one last.
    received: Vec<Received>,
}

/// A request with the data that is needed to answer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) opcode: u8,
    pub(crate) opaque: Opaque,
    pub(crate) asked: OwnedRequest,
}

/// [`Request`] without its borrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnedRequest {
    Noop,
    Get { name: Vec<u8> },
    Acquire { name: Vec<u8>, resources: u32, maximum: u32 },
    Release { name: Vec<u8>, resources: u32 },
    Stats,
    Dump,
}

impl From<Request<'_>> for OwnedRequest {
    fn from(request: Request<'_>) -> Self {
        match request {
            Request::Noop => Self::Noop,
            Request::Get { name } => Self::Get { name: name.to_vec() },
            Request::Acquire { name, resources, maximum } => {
                Self::Acquire { name: name.to_vec(), resources, maximum }
            }
            Request::Release { name, resources } => Self::Release { name: name.to_vec(), resources },
            Request::Stats => Self::Stats,
            Request::Dump => Self::Dump,
        }
    }
}

impl Peer {
    /// The next request; `None` if the client closed the connection.
    pub(crate) async fn next(&mut self) -> Option<Received> {
        soon("a request", self.receive()).await
    }

    async fn receive(&mut self) -> Option<Received> {
        loop {
            if let Some(request) = self.received.pop() {
                return Some(request);
            }
            let mut hellos = Vec::new();
            if let Some(mut frames) = RequestCodec::default().decode(&mut self.buffer).unwrap() {
                while let Some(frame) = frames.next() {
                    if frame.opcode() == HELLO {
                        hellos.push(frame.opaque());
                        continue;
                    }
                    let asked = OwnedRequest::from(frame.parse().expect("the client sends valid requests"));
                    self.received.push(Received { opcode: frame.opcode(), opaque: frame.opaque(), asked });
                }
                self.received.reverse();
                for opaque in hellos {
                    let mut out = Vec::new();
                    Response::Failed(Status::UnknownCommand).compose(HELLO, opaque, &mut out);
                    self.send(&out).await;
                }
                continue;
            }
            // A reset is a closed connection, too: the client may leave answers unread.
            if self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The requests that arrived together with the last one, in their order.
    pub(crate) fn received_already(&mut self) -> Vec<Received> {
        self.received.drain(..).rev().collect()
    }

    /// The next request, which must be this one.
    pub(crate) async fn expect(&mut self, asked: OwnedRequest) -> Received {
        let received = self.next().await.expect("the client closed the connection instead of asking");
        assert_eq!(received.asked, asked);
        received
    }

    pub(crate) async fn answer(&mut self, to: &Received, response: Response<'_>) {
        let mut out = Vec::new();
        response.compose(to.opcode, to.opaque, &mut out);
        self.send(&out).await;
    }

    /// Answers with the names, all with the same figures, and the end of the series.
    pub(crate) async fn answer_dump(&mut self, to: &Received, names: &[&[u8]]) {
        for name in names {
            self.answer(to, Response::Entry(DumpEntry { consumption: 3, peak: 7, name })).await;
        }
        self.answer(to, Response::Done).await;
    }

    /// Answers with a status and a body that no current server sends.
    pub(crate) async fn answer_raw(&mut self, to: &Received, status: u8, body: &'static [u8]) {
        let frame =
            ResponseFrame { opcode: to.opcode, status, opaque: to.opaque, body: Bytes::from_static(body) };
        let mut out = Vec::new();
        frame.compose(&mut out);
        self.send(&out).await;
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        soon("the client to read", self.stream.write_all(bytes)).await.unwrap();
    }

    /// Sends the bytes repeatedly until the client reads nothing for [`STUCK`]; returns the unsent rest of them. `None`
    /// if they were sent that many times.
    pub(crate) async fn send_until_stuck(&mut self, bytes: &[u8], times_max: usize) -> Option<Vec<u8>> {
        for _ in 0..times_max {
            let mut unsent = bytes;
            while !unsent.is_empty() {
                let write = tokio::time::timeout(STUCK, self.stream.write(unsent)).await;
                match write {
                    Ok(written) => unsent = &unsent[written.unwrap()..],
                    Err(_) => return Some(unsent.to_vec()),
                }
            }
        }
        None
    }

    /// Answers an Acquire, which must come next, with success.
    pub(crate) async fn grant(&mut self, name: &[u8], resources: u32, maximum: u32) {
        let asked = OwnedRequest::Acquire { name: name.to_vec(), resources, maximum };
        let received = self.expect(asked).await;
        self.answer(&received, Response::Resources(resources)).await;
    }

    /// Answers an Acquire, which must come next, with a status.
    pub(crate) async fn refuse(&mut self, status: Status) {
        let received = self.next().await.expect("an Acquire");
        assert!(matches!(received.asked, OwnedRequest::Acquire { .. }), "{received:?}");
        self.answer(&received, Response::Failed(status)).await;
    }

    /// Waits until the client closes the connection; it must not send another request.
    pub(crate) async fn closed(mut self) {
        assert_eq!(self.next().await, None);
    }
}
