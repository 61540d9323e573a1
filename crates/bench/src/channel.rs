//! One connection of a generator: its requests in flight, the names that it holds, its buffers, and its socket, with or without
//! TLS.
//!
//! Invariant: `in_flight` has the requests that were composed and not answered, the oldest first.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::Duration;

use bytes::BytesMut;
use mio::net::TcpStream;
use rustls::{ClientConnection, Stream, StreamOwned};

use super::dialect::{Answer, Dialect, Request, Sequence};
use super::error::LoadError;
use super::record::Operation;
use signalbox_client::{Address, Disconnect, Tls};

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) operation: Operation,
    pub(super) name: u32,
    /// When its latency began, in nanoseconds since the start of the run.
    pub(super) since_ns: u64,
    /// Whether it is a release after the end of the run.
    pub(super) is_at_end: bool,
}

#[derive(Debug)]
pub(super) struct Channel {
    stream: Socket,
    outgoing: Vec<u8>,
    received: BytesMut,
    in_flight: VecDeque<Sent>,
    next: u32,
    /// Names that were acquired and for which no release was composed yet.
    pub(super) held: Vec<u32>,
    /// At a fixed rate: the times at which unsent requests became due, in nanoseconds since the start.
    pub(super) due_ns: VecDeque<u64>,
}

impl Channel {
    pub(super) fn over(stream: Socket) -> Self {
        Self {
            stream,
            outgoing: Vec::new(),
            received: BytesMut::new(),
            in_flight: VecDeque::new(),
            next: 0,
            held: Vec::new(),
            due_ns: VecDeque::new(),
        }
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        self.stream.stream()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Composes a request; [`Channel::flush`] writes it.
    pub(super) fn compose(&mut self, dialect: &impl Dialect, request: Request<'_>, sent: Sent) {
        dialect.compose(Sequence(self.next), request, &mut self.outgoing);
        self.next = self.next.wrapping_add(1);
        self.in_flight.push_back(sent);
    }

    /// Writes the composed requests, with one call if the socket accepts them; the rest waits until it is writable.
    pub(super) fn flush(&mut self) -> Result<(), LoadError> {
        loop {
            if self.outgoing.is_empty() && !self.stream.has_unsent() {
                return Ok(());
            }
            match self.stream.write(&self.outgoing) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads all bytes that have arrived, through `scratch`. Without TLS, a read that does not fill `scratch` has emptied
    /// the socket.
    pub(super) fn receive(&mut self, scratch: &mut [u8]) -> Result<(), LoadError> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(Disconnect::ClosedByServer.into()),
                Ok(read) => {
                    self.received.extend_from_slice(&scratch[..read]);
                    if read < scratch.len() && self.stream.is_plain() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes the next response from the received bytes, with its request; `None` if it is incomplete. Fails if it does not
    /// answer the oldest request.
    pub(super) fn next_answer(
        &mut self,
        dialect: &impl Dialect,
    ) -> Result<Option<(Sent, Answer)>, LoadError> {
        if self.received.is_empty() {
            return Ok(None);
        }
        let Some(answer) = dialect.parse(&mut self.received)? else { return Ok(None) };
        let in_flight = u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX);
        let oldest = self.next.wrapping_sub(in_flight);
        let found = answer.sequence.map_or(oldest, |sequence| sequence.0);
        match self.in_flight.pop_front() {
            Some(sent) if found == oldest => Ok(Some((sent, answer))),
            _ => Err(LoadError::OutOfOrder { found, expected: oldest }),
        }
    }
}

/// The size of a read in bytes: more than the answer to the first request.
const ANSWER_BYTES: usize = 1024;

/// Sends the first request, and waits for its answer.
fn introduce(
    stream: &mut (impl Read + Write),
    hello: &[u8],
    dialect: &impl Dialect,
) -> Result<(), LoadError> {
    stream.write_all(hello)?;
    stream.flush()?;
    let mut received = BytesMut::new();
    loop {
        if let Some(answer) = dialect.parse(&mut received)? {
            return if answer.is_welcome() { Ok(()) } else { Err(LoadError::TokenRefused) };
        }
        let mut some = [0; ANSWER_BYTES];
        match stream.read(&mut some)? {
            0 => return Err(Disconnect::ClosedByServer.into()),
            read => received.extend_from_slice(&some[..read]),
        }
    }
}

/// A socket that does not block.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    /// Prepares a connection: completes the TLS handshake, if it uses TLS, and sends the first request of the dialect, if
    /// there is one. Waits up to `timeout` for its answer.
    pub(super) fn open(
        mut stream: std::net::TcpStream,
        tls: Option<&(Tls, Address)>,
        dialect: &impl Dialect,
        timeout: Duration,
    ) -> Result<Self, LoadError> {
        let mut tls = match tls {
            Some((tls, address)) => {
                let mut connection = tls.connection(address)?;
                while connection.is_handshaking() {
                    connection.complete_io(&mut stream)?;
                }
                Some(connection)
            }
            None => None,
        };
        let mut hello = Vec::new();
        dialect.introduce(&mut hello);
        if !hello.is_empty() {
            stream.set_read_timeout(Some(timeout))?;
            let introduced = match &mut tls {
                Some(connection) => introduce(&mut Stream::new(connection, &mut stream), &hello, dialect),
                None => introduce(&mut stream, &hello, dialect),
            };
            introduced.map_err(|error| match error {
                LoadError::Lost(Disconnect::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    LoadError::Silent { connections: 1, waited: timeout }
                }
                other => other,
            })?;
        }
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream);
        Ok(match tls {
            Some(connection) => Self::Tls(Box::new(StreamOwned::new(connection, stream))),
            None => Self::Plain(stream),
        })
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &mut stream.sock,
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Returns whether there are TLS records that the socket has not accepted yet.
    pub(super) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.conn.wants_write(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
