//! A connection whose output has to be taken in time, and to which nothing is written past the deadline of a leader.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connections::OpenConnection;
use super::shared::Shared;

/// How long a client may take to receive an answer, once it takes less than there is.
pub(super) const TAKE_MAX: Duration = Duration::from_secs(30);

/// A stream that fails when output has waited for [`TAKE_MAX`]. The time runs from the first write that has to wait until
/// everything is sent: a client that takes a byte now and then gains nothing.
pub(super) struct Bounded<S> {
    io: S,
    shared: Arc<Shared>,
    /// Where what is received counts; `None`: it is of another node.
    connection: Option<Arc<OpenConnection>>,
    /// Runs while output waits.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    pub(super) fn new(io: S, shared: Arc<Shared>, connection: Option<Arc<OpenConnection>>) -> Self {
        Self { io, shared, connection, limit: None }
    }

    /// Fails past the deadline of a leader: another may have granted what an answer says that its client holds.
    fn check_fence(&self) -> io::Result<()> {
        if self.shared.is_fenced() {
            Err(io::Error::other("this node no longer leads the cluster"))
        } else {
            Ok(())
        }
    }

    /// The outcome of a write: an error if it has waited for too long.
    fn limited<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            let limit = self.limit.get_or_insert_with(|| Box::pin(tokio::time::sleep(TAKE_MAX)));
            if limit.as_mut().poll(context).is_ready() {
                let message = "the client has not taken its answer in time";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
            }
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if let Some(connection) = &self.connection
            && connection.input.poll_received(connection, buffer.filled().len() - before, context).is_ready()
        {
            return Poll::Ready(Err(io::Error::other("its request has to make room for others")));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_fence()?;
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.limited(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_fence()?;
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.limited(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_fence()?;
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        if flushed.is_ready() {
            self.limit = None;
        }
        self.limited(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.io).poll_shutdown(context);
        self.limited(closed, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::config::Config;

    #[tokio::test(start_paused = true)]
    async fn each_answer_has_its_own_time() {
        let (near, mut far) = duplex(10);
        let mut bounded = Bounded::new(near, Arc::new(Shared::of_test(&Config::default())), None);
        for _ in 0..3 {
            let reading = async {
                tokio::time::sleep(TAKE_MAX - Duration::from_secs(1)).await;
                far.read_exact(&mut [0; 20]).await.unwrap();
            };
            let writing = async {
                bounded.write_all(&[0; 20]).await.unwrap();
                bounded.flush().await.unwrap();
            };
            tokio::join!(reading, writing);
        }
    }
}
