//! Forwards the bytes of a client to the leader and back, unchanged.
//!
//! Bytes are read into a buffer that all connections of a thread share, and written at once. Bytes that a side does not accept
//! yet are kept in a buffer of the connection, and nothing more is read from the other side until they are written. So an idle
//! connection has no buffer, and a slow side slows the other one down.

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

/// The largest number of bytes of one read.
const READ_BYTES_MAX: usize = 16 * 1024;

/// The number of reads in a turn, after which other connections of the thread run.
const TURN_READS: usize = 8;

/// How long a client may take to end its output after the leader has ended its own.
const LINGER: Duration = Duration::from_secs(2);

/// The reason why a relayed connection ended, unless both sides ended it in an orderly way.
#[derive(Debug, Error)]
pub(super) enum Broken {
    #[error("the connection of the client failed: {0}")]
    Client(io::Error),
    #[error("the connection to the leader failed: {0}")]
    Leader(io::Error),
    #[error("this leader no longer leads, or this node does not reach etcd")]
    TermOver,
}

/// One of the two directions of a connection.
struct Direction {
    /// Bytes that were read, and are not written yet.
    pending: BytesMut,
    progress: Progress,
    /// The errors of a failed read or write.
    of_read: fn(io::Error) -> Broken,
    of_write: fn(io::Error) -> Broken,
}

/// The state of the output of the side that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Open,
    /// It has ended its output, and the other side learns this after the last bytes.
    Ending,
    Ended,
}

/// The two directions of a connection.
struct Splice<C, L> {
    client: C,
    leader: L,
    to_leader: Direction,
    to_client: Direction,
}

/// Forwards until both sides have ended their output in an orderly way. If the connection ends otherwise, the sockets
/// are dropped; the caller must have set the option by which dropping the leader's socket resets the connection.
pub(super) async fn splice<C, L>(client: C, leader: L, relay: &Relay) -> Result<(), Broken>
where
    C: AsyncRead + AsyncWrite + Unpin,
    L: AsyncRead + AsyncWrite + Unpin,
{
    let to_leader = Direction::new(Broken::Client, Broken::Leader);
    let to_client = Direction::new(Broken::Leader, Broken::Client);
    let mut splice = Splice { client, leader, to_leader, to_client };
    let has_leader_ended = tokio::select! {
        biased;
        () = relay.term().over() => return Err(Broken::TermOver),
        ended = poll_fn(|context| splice.poll(relay, context)) => ended?,
    };
    if !has_leader_ended {
        return Ok(());
    }
    // Like the leader itself, the relay waits for its client for a limited time. The wait does not delay the next leader,
    // because it ends with the term.
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
    /// Forwards in both directions. Ready when the leader has ended its output; returns whether the client has not ended its
    /// own yet.
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

impl Direction {
    fn new(of_read: fn(io::Error) -> Broken, of_write: fn(io::Error) -> Broken) -> Self {
        Self { pending: BytesMut::new(), progress: Progress::Open, of_read, of_write }
    }

    /// Forwards available bytes. Ready when the side that is read has ended its output, and the other side was told.
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
            match self.progress {
                Progress::Ended => return Poll::Ready(Ok(())),
                Progress::Ending => {
                    ready!(Pin::new(&mut *to).poll_shutdown(context)).map_err(self.of_write)?;
                    self.progress = Progress::Ended;
                }
                Progress::Open => ready!(self.poll_forward(from, to, relay, context))?,
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes the pending bytes.
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

    /// Reads once, and writes the bytes or keeps them.
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
                self.progress = Progress::Ending;
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

    /// Writes once, unless the relay may no longer forward.
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
    use signalbox_cluster::keys::{RelayEndpoint, RelaySecret};
    use signalbox_cluster::leadership::RelayTarget;
    use signalbox_cluster::relays::Relays;
    use signalbox_cluster::timing::{BootTime, Fence};

    fn led(epoch: u32) -> RelayTarget {
        let address = ([10, 0, 0, 1], 1).into();
        let endpoint = RelayEndpoint { address, secret: RelaySecret("00".to_owned()) };
        RelayTarget { epoch_min: epoch, leader: Some((epoch, endpoint)), deadline: BootTime(Duration::MAX) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_keeps_its_output_open_delays_no_leader() {
        let relays = Relays::new(Fence::new(BootTime::default));
        relays.apply(led(1));
        let relay = relays.open(&relays.leader().unwrap()).unwrap();
        let (mut client, its_end) = duplex(64);
        let (leader, leaders_end) = duplex(64);
        let spliced = tokio::spawn(async move { splice(its_end, leaders_end, &relay).await });
        // The leader stops in order, and the client keeps its output open.
        drop(leader);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0, "the end is forwarded");
        assert_eq!(relays.report().connections, 1);
        let begun = Instant::now();
        relays.apply(led(2));
        assert!(matches!(spliced.await.unwrap(), Err(Broken::TermOver)));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(relays.report().closed_below, 2);
        drop(client);
    }
}
