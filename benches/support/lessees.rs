//! Clients with leased sessions, which take and give back grants of their own names, one after the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mio::{Events, Interest, Poll, Token};
use signalbox_model::{Claim, GrantId, Milliseconds, Namespace, RequestId, RequestIds};
use signalbox_protocol::{Extended, ExtendedOpcode, Opaque, Queueing, ResponseCodec, ResponseFrame, Wait};

/// Pairs of a grant and its release per second. All clients from one thread, which costs least of the processors that the
/// server needs too. `first` is the number of the first client: those of a run before may still hold their names.
pub fn pairs_per_s(address: SocketAddr, first: usize, sessions: usize, time: Duration) -> f64 {
    let numbers = first..first + sessions;
    let mut lessees: Vec<_> = numbers.map(|number| Lessee::enter(address, number)).collect();
    let mut poll = Poll::new().expect("the system has a poll");
    // Kept, as they are what is polled.
    let _polled: Vec<_> =
        lessees.iter().enumerate().map(|(index, lessee)| lessee.watch(&poll, index)).collect();
    let mut events = Events::with_capacity(1024);
    let (start, mut pairs) = (Instant::now(), 0);
    lessees.iter_mut().for_each(Lessee::acquire);
    while start.elapsed() < time {
        poll.poll(&mut events, Some(time)).expect("the system polls");
        for event in &events {
            pairs += lessees[event.token().0].go_on();
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
    /// Connects and opens a session.
    pub fn enter(address: SocketAddr, number: usize) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("a socket of TCP");
        let mut lessee =
            Self { stream, received: BytesMut::new(), name: format!("bench-{number:08}"), request: 0 };
        lessee.ask(&Extended::OpenSession { ttl: Some(Milliseconds(60_000)), label: b"bench", key: None });
        lessee
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
    fn go_on(&mut self) -> u32 {
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
                    self.release(frame.granted().expect("nobody else wants it").grant);
                } else {
                    assert_eq!(frame.status, 0, "a grant that is held is given back");
                    pairs += 1;
                    self.acquire();
                }
            }
        }
    }

    fn acquire(&mut self) {
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
        self.send(&Extended::AcquireGrant { ids, claim, queueing, place: None, is_shared: false });
    }

    fn release(&mut self, grant: GrantId) {
        let ids = self.ids();
        self.send(&Extended::ReleaseGrant { ids, grant, is_done: false });
    }

    fn ids(&mut self) -> RequestIds {
        self.request += 1;
        RequestIds { own: RequestId(self.request), lowest_unanswered: RequestId(self.request) }
    }

    /// Takes a grant and waits for it; `false`: the connection ended.
    pub fn takes(&mut self) -> bool {
        self.acquire();
        self.answer().status == 0
    }

    fn ask(&mut self, request: &Extended<'_>) -> ResponseFrame {
        self.send(request);
        self.answer()
    }

    /// Few bytes, for which there is always room.
    fn send(&mut self, request: &Extended<'_>) {
        let mut bytes = Vec::new();
        request.compose(Opaque([0; 4]), &mut bytes);
        self.stream.write_all(&bytes).expect("the server reads");
    }

    fn answer(&mut self) -> ResponseFrame {
        loop {
            if let Some(frame) = ResponseCodec.decode(&mut self.received).expect("a response") {
                return frame;
            }
            let mut some = [0; 4096];
            let count = self.stream.read(&mut some).expect("the server answers");
            assert!(count > 0, "the server closed the connection");
            self.received.extend_from_slice(&some[..count]);
        }
    }
}
