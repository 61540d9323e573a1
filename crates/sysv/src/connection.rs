//! One connection: sends a request and waits for its response.
//!
//! A connection has one request in flight, and perhaps a Cancel and a Noop. Its first error ends it, because a frame
//! may have been sent or received only in part. All responses are read before a request is finished, because a socket
//! that is closed with unread bytes is reset, and the server would treat that as a lost connection instead of the end
//! of the process. A connection to a server that is silent is reset on purpose: the process has not ended.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use nix::poll::PollFlags;
use signalbox_protocol::{Extended, Opaque, Request, ResponseCodec, ResponseFrame, WaitingRequest};

use crate::servers::{Place, Servers};
use crate::signals::{Shield, Woken};
use crate::socket::{Identity, Socket};

/// The initial size of a buffer in bytes. A request with 500 operations fits without a further allocation.
const REQUEST_BYTES: usize = 4096;

/// The longest wait for an address to accept a connection. Signals are blocked meanwhile.
const CONNECT_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    place: Place,
    /// The token that was shown over it.
    pub token: Option<&'static [u8]>,
    /// The process that opened it. A child of a fork must not use it.
    pid: u32,
    opaque: u32,
    buffers: Buffers,
}

#[derive(Debug)]
struct Buffers {
    input: BytesMut,
    output: Vec<u8>,
    /// The encoded operations of a request.
    rows: Vec<u8>,
}

/// The reason why there is no response.
#[derive(Debug)]
pub enum Lost {
    /// The program has closed the descriptor; nothing was sent.
    Closed,
    /// The connection broke; the server may have executed the request.
    Broken(io::Error),
    /// This is the child of a fork that a signal handler made during the call.
    Forked,
}

/// How a call waits for its response.
pub struct Wait<'a> {
    pub shield: &'a Shield,
    /// When the response is overdue; `None`: the request may wait forever.
    pub until: Option<Instant>,
    /// The longest time for a response that the server does not delay.
    pub limit: Duration,
    /// The silence after which the server is asked for a sign of life, which may take as long; `None`: it is not asked.
    pub silence: Option<Duration>,
    /// Whether a caught signal cancels the request.
    pub cancels: bool,
    /// Whether a signal was caught, before the request or since.
    pub is_caught: bool,
}

impl Wait<'_> {
    /// The time at which a silence that begins now is too long.
    fn silent_until(&self) -> Option<Instant> {
        self.silence.map(|silence| Instant::now() + silence)
    }
}

/// The result of waiting for bytes.
enum Received {
    /// There are further bytes.
    Bytes,
    /// There are none yet, or a signal was caught.
    Nothing,
    /// The server has been silent for as long as it may.
    Silence,
}

impl Connection {
    /// Connects to the first address that accepts a connection. Only a refusal is certain to be quick: another failure
    /// ends the attempt, so that signals are unblocked before the next address is tried.
    pub fn open(servers: &Servers, timeout: Duration) -> io::Result<Self> {
        let mut refusal = io::ErrorKind::ConnectionRefused.into();
        for place in servers.in_turn() {
            let place = place.map_err(|unresolved| {
                servers.begin_behind_host(&unresolved);
                unresolved.error
            })?;
            let limit = servers.share_of(timeout, place).min(CONNECT_MAX);
            match Socket::connect(place.address, limit, timeout) {
                Ok(socket) => return Ok(Self::over(socket, place)),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => refusal = error,
                Err(error) => {
                    servers.begin_behind(place);
                    return Err(error);
                }
            }
        }
        Err(refusal)
    }

    fn over(socket: Socket, place: Place) -> Self {
        let room = || Vec::with_capacity(REQUEST_BYTES);
        let buffers = Buffers { input: BytesMut::with_capacity(REQUEST_BYTES), output: room(), rows: room() };
        Self { socket, place, token: None, pid: std::process::id(), opaque: 0, buffers }
    }

    /// The address that it was opened to, among those of the servers.
    pub fn place(&self) -> Place {
        self.place
    }

    pub fn peer(&self) -> SocketAddr {
        self.place.address
    }

    pub fn identity(&self) -> Identity {
        self.socket.identity()
    }

    /// Sends the request that `compose` appends, and waits for its response. `compose` also gets a buffer for rows.
    pub fn exchange(
        &mut self,
        wait: &mut Wait<'_>,
        compose: impl FnOnce(&mut Vec<u8>, Opaque, &mut Vec<u8>),
    ) -> Result<ResponseFrame, Lost> {
        let response = self.try_exchange(wait, compose);
        if let Err(Lost::Broken(_)) = response {
            self.socket.reset_when_closed();
        }
        response
    }

    fn try_exchange(
        &mut self,
        wait: &mut Wait<'_>,
        compose: impl FnOnce(&mut Vec<u8>, Opaque, &mut Vec<u8>),
    ) -> Result<ResponseFrame, Lost> {
        if !self.socket.identity().is_open() {
            return Err(Lost::Closed);
        }
        let opaque = self.next_opaque();
        self.buffers.output.clear();
        compose(&mut self.buffers.rows, opaque, &mut self.buffers.output);
        let (mut cancel, mut probe) = (None, None);
        let mut response = None;
        let mut is_first = true;
        let mut silent_until = wait.silent_until();
        self.send(wait)?;
        loop {
            if wait.is_caught && wait.cancels && cancel.is_none() {
                wait.cancels = false;
                wait.until = Some(Instant::now() + wait.limit);
                self.buffers.output.clear();
                let own = self.next_opaque();
                Extended::Cancel(WaitingRequest::Opaque(opaque)).compose(own, &mut self.buffers.output);
                cancel = Some(own);
                self.send(wait)?;
            }
            while let Some(frame) = ResponseCodec.decode(&mut self.buffers.input).map_err(broken)? {
                if frame.opaque == opaque {
                    response = Some(frame);
                } else {
                    cancel.take_if(|cancel| *cancel == frame.opaque);
                    probe.take_if(|probe| *probe == frame.opaque);
                }
            }
            if cancel.is_none()
                && probe.is_none()
                && let Some(response) = response.take()
            {
                return Ok(response);
            }
            match self.receive(is_first, silent_until, wait)? {
                Received::Bytes => silent_until = wait.silent_until(),
                Received::Nothing => {}
                Received::Silence if probe.is_some() => return Err(overdue()),
                Received::Silence => {
                    silent_until = wait.silent_until();
                    self.buffers.output.clear();
                    let own = self.next_opaque();
                    Request::Noop.compose(own, &mut self.buffers.output);
                    probe = Some(own);
                    self.send(wait)?;
                }
            }
            is_first = false;
        }
    }

    fn next_opaque(&mut self) -> Opaque {
        self.opaque = self.opaque.wrapping_add(1);
        Opaque(self.opaque.to_be_bytes())
    }

    /// Sends all output. A signal meanwhile has the same effect as one afterwards.
    fn send(&mut self, wait: &mut Wait<'_>) -> Result<(), Lost> {
        let mut sent = 0;
        let mut until = None;
        while sent < self.buffers.output.len() {
            match self.socket.send(&self.buffers.output[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    until = until.or_else(|| Some(Instant::now() + wait.limit));
                    match wait.shield.wait(self.socket.as_fd(), PollFlags::POLLOUT, until) {
                        Woken::Ready => {}
                        Woken::TimeUp => return Err(overdue()),
                        Woken::Signal => self.note_signal(wait)?,
                    }
                }
                Err(error) => return Err(Lost::Broken(error)),
            }
        }
        Ok(())
    }

    /// Receives the next bytes. Signals are unblocked from the second attempt on.
    fn receive(
        &mut self,
        is_first: bool,
        silent_until: Option<Instant>,
        wait: &mut Wait<'_>,
    ) -> Result<Received, Lost> {
        let received = if is_first {
            self.socket.receive_promptly(&mut self.buffers.input)
        } else {
            let until = [wait.until, silent_until].into_iter().flatten().min();
            match wait.shield.wait(self.socket.as_fd(), PollFlags::POLLIN, until) {
                Woken::Signal => return self.note_signal(wait).map(|()| Received::Nothing),
                Woken::TimeUp if until == wait.until => return Err(overdue()),
                Woken::TimeUp => return Ok(Received::Silence),
                Woken::Ready => self.socket.receive(&mut self.buffers.input),
            }
        };
        match received {
            Ok(0) => Err(Lost::Broken(io::ErrorKind::ConnectionAborted.into())),
            Ok(_) => Ok(Received::Bytes),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(Received::Nothing),
                _ => Err(Lost::Broken(error)),
            },
        }
    }

    /// Notes that a signal handler has run. Fails in the child of a fork that the handler made.
    fn note_signal(&self, wait: &mut Wait<'_>) -> Result<(), Lost> {
        wait.is_caught = true;
        if std::process::id() == self.pid { Ok(()) } else { Err(Lost::Forked) }
    }
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Lost {
    Lost::Broken(io::Error::new(io::ErrorKind::InvalidData, error))
}

fn overdue() -> Lost {
    Lost::Broken(io::ErrorKind::TimedOut.into())
}
