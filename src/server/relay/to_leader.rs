//! A connection to the leader that carries requests of many clients.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::splice::Broken;
use signalbox_cluster::relays::{Relay, RelayTerm};

/// A connection to the leader: a plain one, or one over TLS that this node has begun.
pub(super) type Leader<S> = Either<S, Box<TlsStream<S>>>;

/// A connection to the leader over which nothing is read or written past the term. It counts as relayed until it is dropped.
pub(in crate::server) struct ToLeader<S> {
    // Dropped first: a new leader waits until the relay is, too.
    leader: Leader<S>,
    relay: Relay,
}

impl<S> ToLeader<S> {
    pub(super) fn new(relay: Relay, leader: Leader<S>) -> Self {
        Self { leader, relay }
    }

    /// The term, after which the connection must be closed.
    pub(in crate::server) fn term(&self) -> Arc<RelayTerm> {
        Arc::clone(self.relay.term())
    }

    /// Whether this node has begun TLS, and has proven so to the leader.
    pub(in crate::server) fn is_encrypted(&self) -> bool {
        matches!(self.leader, Either::Right(_))
    }

    fn check_term(&self) -> io::Result<()> {
        if self.relay.may_forward() { Ok(()) } else { Err(io::Error::other(Broken::TermOver)) }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ToLeader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_term()?;
        Pin::new(&mut self.leader).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ToLeader<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_term()?;
        Pin::new(&mut self.leader).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_term()?;
        Pin::new(&mut self.leader).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.leader).poll_shutdown(context)
    }
}
