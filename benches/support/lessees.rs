//! Clients with leased sessions, which take and give back grants of their own names, one after the other.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mio::{Events, Interest, Poll, Token};
use signalbox_model::{Claim, GrantId, Milliseconds, Namespace, RequestId, RequestIds};
use signalbox_protocol::{Extended, ExtendedOpcode, Opaque, Queueing, ResponseCodec, ResponseFrame, Wait};

/// Pairs of a grant and its release per second. All clients run on one thread, which leaves the most CPU to the server.
/// `first` is the number of the first client: those of an earlier run may still hold their names.
pub fn pairs_per_s(address: SocketAddr, first: usize, sessions: usize, time: Duration) -> f64 {
    let numbers = first..first + sessions;
    let mut lessees: Vec<_> =
        numbers.map(|number| Lessee::enter(address, number).expect("the server serves")).collect();
    let mut poll = Poll::new().expect("the system has a poll");
    // Kept, as they are what is polled.
    let _polled: Vec<_> =
        lessees.iter().enumerate().map(|(index, lessee)| lessee.watch(&poll, index)).collect();
    let mut events = Events::with_capacity(1024);
    let (start, mut pairs) = (Instant::now(), 0);
    lessees.iter_mut().for_each(|lessee| lessee.acquire().expect("the server reads"));
    while start.elapsed() < time {
        poll.poll(&mut events, Some(time)).expect("the system polls");
        for event in &events {
            pairs += lessees[event.token().0].advance();
        }
    }
    f64::from(pairs) / time.as_secs_f64()
}

/// A client with a leased session.
pub struct Lessee {
    stream: TcpStream,
    received: BytesMut,
    name: String,
    request: u64,
}

impl Lessee {
    /// Connects and opens a session. Fails if there is no connection, or if it is closed.
    pub fn enter(address: SocketAddr, number: usize) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut lessee =
            Self { stream, received: BytesMut::new(), name: format!("bench-{number:08}"), request: 0 };
        lessee.ask(&Extended::OpenSession { ttl: Some(Milliseconds(60_000)), label: b"bench", key: None })?;
        Ok(lessee)
    }

    /// Registers the client for readiness to read.
    fn watch(&self, poll: &Poll, index: usize) -> mio::net::TcpStream {
        self.stream.set_nonblocking(true).expect("a socket of TCP");
        let mut polled =
            mio::net::TcpStream::from_std(self.stream.try_clone().expect("a file descriptor is left"));
        poll.registry().register(&mut polled, Token(index), Interest::READABLE).expect("the system polls");
        polled
    }

    /// Processes the received answers, and sends the next request for each. Returns the number of pairs completed.
    fn advance(&mut self) -> u32 {
        let mut pairs = 0;
        let mut some = [0; 4096];
        loop {
            match self.stream.read(&mut some) {
                Ok(0) => panic!("the server closed the connection"),
                Ok(count) => self.received.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return pairs,
                Err(error) => panic!("the server answers: {error}"),
            }
            while let Some(frame) = ResponseCodec.decode(&mut self.received).expect("a response") {
                if frame.opcode == ExtendedOpcode::AcquireGrant.code() {
                    let grant = frame.granted().expect("no other client wants it").grant;
                    self.release(grant).expect("the server reads");
                } else {
                    assert_eq!(frame.status, 0, "a grant that is held is given back");
                    pairs += 1;
                    self.acquire().expect("the server reads");
                }
            }
        }
    }

    fn acquire(&mut self) -> io::Result<()> {
        let ids = self.ids();
        let queueing = Queueing { wait: Wait::NotAtAll, queue_max: None };
        let name = self.name.clone();
        let claim = Claim {
            namespace: Some(Namespace::Semaphores),
            name: name.as_bytes(),
            resources: 1,
            maximum: 1,
            slot: None,
        };
        self.send(&Extended::AcquireGrant { ids, claim, queueing, place: None, is_shared: false })
    }

    fn release(&mut self, grant: GrantId) -> io::Result<()> {
        let ids = self.ids();
        self.send(&Extended::ReleaseGrant { ids, grant, is_done: false })
    }

    fn ids(&mut self) -> RequestIds {
        self.request += 1;
        RequestIds { own: RequestId(self.request), lowest_unanswered: RequestId(self.request) }
    }

    /// Asks for a grant; `false`: it is refused. Fails if the connection is closed.
    pub fn takes(&mut self) -> io::Result<bool> {
        self.acquire()?;
        Ok(self.answer()?.status == 0)
    }

    fn ask(&mut self, request: &Extended<'_>) -> io::Result<ResponseFrame> {
        self.send(request)?;
        self.answer()
    }

    /// Few bytes, for which there is always room.
    fn send(&mut self, request: &Extended<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        request.compose(Opaque([0; 4]), &mut bytes);
        self.stream.write_all(&bytes)
    }

    fn answer(&mut self) -> io::Result<ResponseFrame> {
        loop {
            if let Some(frame) = ResponseCodec.decode(&mut self.received).expect("a response") {
                return Ok(frame);
            }
            let mut some = [0; 4096];
            let count = self.stream.read(&mut some)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.received.extend_from_slice(&some[..count]);
        }
    }
}
