//! Forwards the bytes of a client to the leader and back, as they are.
//!
//! Bytes are read into a buffer that all connections of a thread share, and written at once; what a side does not take
//! waits in a buffer of the connection, and until then nothing more is read from the other side. So an idle connection has
//! no buffer, and a slow side slows the other one down.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::poll_read_buf;

use super::super::buffers::Buffers;
use signalbox_cluster::relays::Relay;

/// Most bytes of one read.
const READ_BYTES_MAX: usize = 16 * 1024;

/// Reads of a turn, after which other connections of the thread run.
const TURN_READS: usize = 8;

/// How long a client may take to end its part after the leader has ended its own.
const LINGER: Duration = Duration::from_secs(2);

/// Why a relayed connection is over, other than by the orderly ends of both sides.
#[derive(Debug, Error)]
pub(super) enum Broken {
    #[error("the client is lost: {0}")]
    Client(io::Error),
    #[error("the leader is lost: {0}")]
    Leader(io::Error),
    #[error("this leader leads no more, or this node does not reach etcd")]
    TermOver,
}

/// One of the two directions of a connection.
struct Way {
    /// Bytes that were read, and are not written yet.
    pending: BytesMut,
    part: Part,
    /// What a failed read or write means.
    of_read: fn(io::Error) -> Broken,
    of_write: fn(io::Error) -> Broken,
}

/// The part of the side that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Open,
    /// It has ended its part, and the other side is to learn of it behind the last bytes.
    Ending,
    Ended,
}

/// The two directions of a connection.
struct Splice<C, L> {
    client: C,
    leader: L,
    to_leader: Way,
    to_client: Way,
}

/// Forwards until both sides have ended their parts, in order. Otherwise the sockets are dropped: the caller has set that
/// of the leader so that it is reset then.
pub(super) async fn splice<C, L>(client: C, leader: L, relay: &Relay) -> Result<(), Broken>
where
    C: AsyncRead + AsyncWrite + Unpin,
    L: AsyncRead + AsyncWrite + Unpin,
{
    let to_leader = Way::new(Broken::Client, Broken::Leader);
    let to_client = Way::new(Broken::Leader, Broken::Client);
    let mut splice = Splice { client, leader, to_leader, to_client };
    let has_leader_ended = tokio::select! {
        biased;
        () = relay.term().over() => return Err(Broken::TermOver),
        ended = poll_fn(|context| splice.poll(relay, context)) => ended?,
    };
    if !has_leader_ended {
        return Ok(());
    }
    // As the leader itself would do, the relay does not wait for ever for a client that it has answered; and the next leader
    // does not wait for it at all.
    relay.ended_by_leader();
    let rest = poll_fn(|context| splice.poll_to_leader(relay, context));
    tokio::select! {
        biased;
        () = relay.term().over() => Err(Broken::TermOver),
        ended = tokio::time::timeout(LINGER, rest) => ended.unwrap_or(Ok(())),
    }
}

impl<C, L> Splice<C, L>
where
    C: AsyncRead + AsyncWrite + Unpin,
    L: AsyncRead + AsyncWrite + Unpin,
{
    /// Ready when both sides have ended their parts: false; or when the leader alone has: true.
    fn poll(&mut self, relay: &Relay, context: &mut Context<'_>) -> Poll<Result<bool, Broken>> {
        let to_leader = self.poll_to_leader(relay, context)?;
        let Self { client, leader, to_client, .. } = self;
        ready!(to_client.poll(leader, client, relay, context))?;
        Poll::Ready(Ok(to_leader.is_pending()))
    }

    fn poll_to_leader(&mut self, relay: &Relay, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let Self { client, leader, to_leader, .. } = self;
        to_leader.poll(client, leader, relay, context)
    }
}

impl Way {
    fn new(of_read: fn(io::Error) -> Broken, of_write: fn(io::Error) -> Broken) -> Self {
        Self { pending: BytesMut::new(), part: Part::Open, of_read, of_write }
    }

    /// Forwards what there is. Ready when the side that is read has ended its part, and the other side has been told.
    fn poll<R, W>(
        &mut self,
        from: &mut R,
        to: &mut W,
        relay: &Relay,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..TURN_READS {
            ready!(self.poll_flush(to, relay, context))?;
            match self.part {
                Part::Ended => return Poll::Ready(Ok(())),
                Part::Ending => {
                    ready!(Pin::new(&mut *to).poll_shutdown(context)).map_err(self.of_write)?;
                    self.part = Part::Ended;
                }
                Part::Open => ready!(self.poll_forward(from, to, relay, context))?,
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what waits.
    fn poll_flush<W>(
        &mut self,
        to: &mut W,
        relay: &Relay,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>>
    where
        W: AsyncWrite + Unpin,
    {
        while !self.pending.is_empty() {
            let written = ready!(self.poll_write(to, &self.pending, relay, context))?;
            self.pending.advance(written);
            if self.pending.is_empty() {
                self.pending = BytesMut::new();
            }
        }
        Pin::new(to).poll_flush(context).map_err(self.of_write)
    }

    /// Reads once, and writes what was read or keeps it.
    fn poll_forward<R, W>(
        &mut self,
        from: &mut R,
        to: &mut W,
        relay: &Relay,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        Buffers::with(|buffers| {
            let shared = &mut buffers.input;
            shared.reserve(READ_BYTES_MAX);
            if ready!(poll_read_buf(Pin::new(from), context, shared)).map_err(self.of_read)? == 0 {
                self.part = Part::Ending;
                return Poll::Ready(Ok(()));
            }
            let written = match self.poll_write(to, shared, relay, context)? {
                Poll::Ready(written) => written,
                Poll::Pending => 0,
            };
            self.pending.extend_from_slice(&shared[written..]);
            Poll::Ready(Ok(()))
        })
    }
    /// Writes once, unless nothing may be forwarded any more.
    fn poll_write<W>(
        &self,
        to: &mut W,
        bytes: &[u8],
        relay: &Relay,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, Broken>>
    where
        W: AsyncWrite + Unpin,
    {
        if !relay.may_forward() {
            return Poll::Ready(Err(Broken::TermOver));
        }
        match ready!(Pin::new(to).poll_write(context, bytes)) {
            Ok(0) => Poll::Ready(Err((self.of_write)(io::ErrorKind::WriteZero.into()))),
            Ok(written) => Poll::Ready(Ok(written)),
            Err(error) => Poll::Ready(Err((self.of_write)(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::time::Instant;

    use super::*;
    use signalbox_cluster::clock::BootTime;
    use signalbox_cluster::fence::Fence;
    use signalbox_cluster::keys::{RelayEndpoint, RelaySecret};
    use signalbox_cluster::leadership::Relaying;
    use signalbox_cluster::relays::Relays;

    fn led(epoch: u32) -> Relaying {
        let address = ([10, 0, 0, 1], 1).into();
        let endpoint = RelayEndpoint { address, secret: RelaySecret("00".to_owned()) };
        Relaying { epoch_min: epoch, leader: Some((epoch, endpoint)), deadline: BootTime(Duration::MAX) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_been_told_of_the_end_delays_no_leader() {
        let relays = Relays::new(Fence::new(BootTime::default));
        relays.apply(led(1));
        let relay = relays.enter(&relays.leader().unwrap()).unwrap();
        let (mut client, its_end) = duplex(64);
        let (leader, leaders_end) = duplex(64);
        let spliced = tokio::spawn(async move { splice(its_end, leaders_end, &relay).await });
        // The leader stops in order, and the client keeps its part open.
        drop(leader);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0, "the client is told");
        assert_eq!(relays.relayed().connections, 1);
        let begun = Instant::now();
        relays.apply(led(2));
        assert!(matches!(spliced.await.unwrap(), Err(Broken::TermOver)));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(relays.relayed().closed_below, 2);
        drop(client);
    }
}
