//! The stream of a connection over TLS.
//!
//! Between two turns, a connection has buffers of its own only for an incomplete record and for output that its client has
//! not taken. A session can leave its socket, so a connection moves between threads as a plain one does.
//!
//! Invariants: records are sent in the order in which they were encrypted. Output counts as written when the socket has
//! taken all of its records: what the connection sees as written is never waiting here. The end of the input is a
//! close_notify; a socket that ends without one was cut off, which is an error.

use std::cell::RefCell;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::records::{self, Progress};

/// The longest record: a header, 16 KiB and what the encryption may add (RFC 8446, 5.2).
const RECORD_BYTES_MAX: usize = 5 + 16 * 1024 + 256;

/// Most bytes that are encrypted at once: what a connection sends in one system call.
const WRITE_BYTES_MAX: usize = 64 * 1024;

/// What encryption adds to a record: a header, the type and the tag.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;

/// The buffers that the connections over TLS of a thread share.
struct Buffers {
    /// Records that were received: the start of one, and those of one read.
    received: Vec<u8>,
    /// Records to send.
    records: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
        received: vec![0; 2 * RECORD_BYTES_MAX],
        records: vec![0; WRITE_BYTES_MAX + (WRITE_BYTES_MAX / (16 * 1024)) * RECORD_OVERHEAD],
    });
}

/// The state of TLS, which moves with its connection.
pub(in crate::server) struct TlsSession {
    pub(super) connection: UnbufferedServerConnection,
    /// The start of a record whose rest has not been received, and the start of a message in records before it.
    pub(super) received: BytesMut,
    /// How long that record may take. The timer belongs to the runtime of a thread.
    record_time: Duration,
    record_timer: Option<Pin<Box<Sleep>>>,
    /// Decrypted bytes for which the reader had no room.
    pub(super) decrypted: BytesMut,
    pub(super) is_closed_by_peer: bool,
    /// Records that the socket has not taken.
    pub(super) unsent: BytesMut,
    /// How many of the writer's bytes are in `unsent`. They count as written when it is empty.
    unconfirmed: usize,
    is_closed: bool,
}

/// A connection over TLS, after its handshake.
pub(in crate::server) struct TlsStream<S> {
    io: S,
    session: Box<TlsSession>,
}

impl TlsSession {
    pub(super) fn new(
        config: Arc<ServerConfig>,
        received: BytesMut,
        record_time: Duration,
    ) -> Result<Box<Self>, rustls::Error> {
        Ok(Box::new(Self {
            connection: UnbufferedServerConnection::new(config)?,
            received,
            record_time,
            record_timer: None,
            decrypted: BytesMut::new(),
            is_closed_by_peer: false,
            unsent: BytesMut::new(),
            unconfirmed: 0,
            is_closed: false,
        }))
    }

    /// Hands over decrypted bytes that are left. Returns whether there were any.
    fn deliver(&mut self, reader: &mut ReadBuf<'_>) -> bool {
        let bytes = self.decrypted.len().min(reader.remaining());
        reader.put_slice(&self.decrypted[..bytes]);
        self.decrypted.advance(bytes);
        if self.decrypted.is_empty() {
            self.decrypted = BytesMut::new();
        }
        bytes > 0
    }

    /// Reads once, and decrypts what is complete.
    fn poll_receive<S: AsyncRead + Unpin>(
        &mut self,
        io: &mut S,
        buffer: &mut [u8],
        reader: &mut ReadBuf<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let start = self.received.len();
        buffer[..start].copy_from_slice(&self.received);
        let mut read = ReadBuf::new(&mut buffer[start..]);
        if Pin::new(io).poll_read(context, &mut read)?.is_pending() {
            return self.poll_record_timer(context).map(Err);
        }
        let read = read.filled().len();
        if read == 0 {
            let message = "the client ended the connection without close_notify";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, message)));
        }
        let received = &mut buffer[..start + read];
        self.received = BytesMut::new();
        let (processed, progress) = self.process(received, reader);
        self.received.extend_from_slice(&received[processed..]);
        if processed > 0 {
            self.record_timer = None;
        }
        self.is_closed_by_peer = progress? == Progress::Closed;
        if self.received.len() > RECORD_BYTES_MAX {
            let message = "a message of TLS is longer than any that is expected";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        Poll::Ready(Ok(()))
    }

    fn process(&mut self, received: &mut [u8], reader: &mut ReadBuf<'_>) -> (usize, io::Result<Progress>) {
        let mut out = Vec::new();
        let (processed, progress) = records::process(&mut self.connection, received, &mut out, |plain| {
            let (fits, rest) = plain.split_at(plain.len().min(reader.remaining()));
            reader.put_slice(fits);
            self.decrypted.extend_from_slice(rest);
        });
        self.unsent.extend_from_slice(&out);
        (processed, progress.map_err(io::Error::other))
    }

    /// Ready when the rest of a record has taken too long: the start of it must not be kept for ever.
    fn poll_record_timer(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.received.is_empty() {
            return Poll::Pending;
        }
        let time = self.record_time;
        let timer = self.record_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        let late = || io::Error::new(io::ErrorKind::TimedOut, "a started record was not completed in time");
        timer.as_mut().poll(context).map(|()| late())
    }

    /// Sends the records that wait.
    fn poll_unsent<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let sent = ready!(Pin::new(&mut *io).poll_write(context, &self.unsent))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.advance(sent);
        }
        self.unsent = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// Encrypts bytes, and sends as much as the socket takes. The rest waits.
    fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        plain: &[u8],
        buffer: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let length = records::encrypt(&mut self.connection, &mut self.received, plain, buffer)
            .map_err(io::Error::other)?;
        let sent = match Pin::new(&mut *io).poll_write(context, &buffer[..length])? {
            Poll::Ready(sent) if sent == length => return Poll::Ready(Ok(plain.len())),
            Poll::Ready(sent) => sent,
            Poll::Pending => 0,
        };
        self.unsent.extend_from_slice(&buffer[sent..length]);
        self.unconfirmed = plain.len();
        ready!(self.poll_unsent(io, context))?;
        Poll::Ready(Ok(mem::take(&mut self.unconfirmed)))
    }
}

impl<S> TlsStream<S> {
    pub(in crate::server) fn new(io: S, session: Box<TlsSession>) -> Self {
        Self { io, session }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        reader: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, session } = self.get_mut();
        if session.deliver(reader) {
            return Poll::Ready(Ok(()));
        }
        let before = reader.filled().len();
        while reader.filled().len() == before && !session.is_closed_by_peer {
            let received = BUFFERS
                .with_borrow_mut(|buffers| session.poll_receive(io, &mut buffers.received, reader, context));
            if let Err(error) = ready!(received) {
                // The alert, if there is one, as far as the socket takes it.
                let _ = session.poll_unsent(io, context);
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    /// Until it is ready, each call must be with the same bytes at the start.
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, plain: &[u8]) -> Poll<io::Result<usize>> {
        let Self { io, session } = self.get_mut();
        ready!(session.poll_unsent(io, context))?;
        if session.unconfirmed > 0 {
            return Poll::Ready(Ok(mem::take(&mut session.unconfirmed)));
        }
        let plain = &plain[..plain.len().min(WRITE_BYTES_MAX)];
        BUFFERS.with_borrow_mut(|buffers| session.poll_send(io, plain, &mut buffers.records, context))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, session } = self.get_mut();
        session.poll_unsent(io, context)
    }

    /// Sends close_notify, unless output waits: then that was cut off, and the client has to notice it.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, session } = self.get_mut();
        if session.unconfirmed == 0 {
            // An answer to an update of keys, perhaps.
            let _ = session.poll_unsent(io, context)?;
        }
        if session.unsent.is_empty() && !mem::replace(&mut session.is_closed, true) {
            let mut alert = Vec::new();
            if let Ok(length) =
                records::close_notify(&mut session.connection, &mut session.received, &mut alert)
            {
                // A socket that takes no 24 bytes has a client that does not read.
                let _ = Pin::new(&mut *io).poll_write(context, &alert[..length])?;
            }
        }
        Pin::new(io).poll_shutdown(context)
    }
}
