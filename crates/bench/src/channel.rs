//! One connection of a generator: its requests in flight, the names that it holds, and its buffers.
//!
//! Invariant: `in_flight` has the requests that were composed and not answered, the oldest first.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use bytes::BytesMut;
use mio::net::TcpStream;

use super::dialect::{Answer, Dialect, Request, Sequence};
use super::error::LoadError;
use super::record::Operation;
use super::socket::Socket;
use signalbox_client::Disconnect;

/// A request that was composed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) operation: Operation,
    pub(super) name: u32,
    /// When its latency began, in nanoseconds since the start of the run.
    pub(super) since_ns: u64,
    /// Whether it is a release after the end of the run.
    pub(super) is_at_end: bool,
}

/// A connection and its requests.
#[derive(Debug)]
pub(super) struct Channel {
    stream: Socket,
    outgoing: Vec<u8>,
    received: BytesMut,
    in_flight: VecDeque<Sent>,
    next: u32,
    /// Names that were acquired and for which no release was composed yet.
    pub(super) held: Vec<u32>,
    /// At a fixed rate: when the requests were due that could not be sent yet, in nanoseconds since the start.
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
                Err(error) => return Err(Disconnect::from(error).into()),
            }
        }
    }

    /// Reads all received bytes, through `scratch`. A plain read that does not fill it has emptied the socket.
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
                Err(error) => return Err(Disconnect::from(error).into()),
            }
        }
    }

    /// The next response in the received bytes, with its request.
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
