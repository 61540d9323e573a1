//! The outbound part of a connection: the responses that the peer has not taken yet.
//!
//! The thread lends the buffer. A connection keeps it only while output waits.

use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::super::buffers::Buffers;
use super::super::metrics::Traffic;
use super::activity::End;

/// Output that may wait for the peer before nothing more is read from it.
pub(super) const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// The same, while the server has too little memory.
const OUTPUT_BYTES_MIN: usize = 4 * 1024;

#[derive(Default)]
pub(super) struct Outbound {
    buffer: Vec<u8>,
    /// How many bytes at its start the peer has taken.
    written: usize,
    /// The output has not been offered to the peer: it is sent in the next turn.
    deferred: bool,
    /// The stream may have output that it has accepted and not sent, as one over TLS does.
    is_unflushed: bool,
}

impl Outbound {
    /// Takes a buffer of the thread, unless the connection has one.
    pub(super) fn borrow_buffer(&mut self, buffers: &mut Buffers) {
        if self.buffer.capacity() == 0 {
            self.buffer = buffers.lend();
        }
    }

    /// Returns the buffer to the thread, unless output waits in it.
    pub(super) fn return_buffer(&mut self, buffers: &mut Buffers) {
        if self.buffer.is_empty() {
            buffers.take_back(mem::take(&mut self.buffer));
        }
    }

    /// Where responses are appended.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Whether too much output waits to read more.
    pub(super) fn is_full(&self, is_memory_exhausted: bool) -> bool {
        self.buffer.len() - self.written
            > if is_memory_exhausted { OUTPUT_BYTES_MIN } else { OUTPUT_BYTES_MAX }
    }

    /// Whether output waits that the peer did not take when it was offered.
    pub(super) fn is_blocked(&self) -> bool {
        !self.deferred && (!self.buffer.is_empty() || self.is_unflushed)
    }

    /// Whether the stream has accepted output that it may not have sent.
    pub(super) fn is_unflushed(&self) -> bool {
        self.is_unflushed
    }

    /// Leaves the output to the next turn.
    pub(super) fn defer(&mut self) {
        self.deferred = true;
    }

    /// Writes the output. Pending while the peer does not take all of it.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        traffic: &Traffic,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), End>> {
        self.deferred = false;
        while !self.buffer.is_empty() {
            let Poll::Ready(written) =
                Pin::new(&mut *stream).poll_write(context, &self.buffer[self.written..])
            else {
                return Poll::Pending;
            };
            let written = written.map_err(End::Io)?;
            if written == 0 {
                return Poll::Ready(Err(End::Io(io::ErrorKind::WriteZero.into())));
            }
            traffic.note_sent(written);
            self.is_unflushed = true;
            self.written += written;
            if 2 * self.written >= self.buffer.len() {
                // What is left moves to the start, which is no more than was written: mostly nothing.
                self.buffer.drain(..mem::take(&mut self.written));
            }
        }
        if self.is_unflushed {
            ready!(Pin::new(stream).poll_flush(context)).map_err(End::Io)?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}
