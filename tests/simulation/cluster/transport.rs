//! The client's transport over the simulated network. It notes which places in queues the client is told.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use signalbox_client::{Address, ConnectError, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::TcpStream;

use super::world::World;
use crate::frames::Frames;
use crate::network;

/// The status of a response that has the place of a waiting request.
const QUEUED: u8 = 0x2d;

pub struct Simulated(pub Arc<World>);

pub struct WatchedStream {
    inner: TcpStream,
    received: Frames,
    world: Arc<World>,
}

impl Transport for Simulated {
    type Stream = WatchedStream;

    async fn connect(&self, address: Address, limit: Duration) -> Result<WatchedStream, ConnectError> {
        let inner = network::connect(&address, limit).await?;
        Ok(WatchedStream { inner, received: Frames::default(), world: Arc::clone(&self.0) })
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        for frame in self.received.take(&buffer.filled()[before..]) {
            if frame.status == QUEUED {
                let place = frame.body[..8].try_into().expect("a place begins with an id");
                self.world.queues.told(u64::from_be_bytes(place));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
