//! The client's transport over the simulated network, which also inspects the frames.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use signalbox_client::{Address, ConnectError, Transport};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use turmoil::net::TcpStream;

use super::expectations::{ClientInfo, Expectations};
use crate::frames::{Frame, Frames};
use crate::network;

/// How long after the end of a stream delayed bytes arrive.
const DELAY: Duration = Duration::from_secs(3);

const OPEN_SESSION: u8 = 0x21;
const ATTACH_SESSION: u8 = 0x22;
const REQUESTS: std::ops::RangeInclusive<u8> = 0x30..=0x33;

/// Connections of one client.
#[derive(Clone)]
pub struct Simulated {
    pub expectations: Arc<Expectations>,
    pub info: ClientInfo,
}

impl Transport for Simulated {
    type Stream = WatchedStream;

    async fn connect(&self, address: Address, limit: Duration) -> Result<WatchedStream, ConnectError> {
        let inner = network::connect(&address, limit).await?;
        let local = inner.local_addr().expect("a simulated stream knows its address");
        self.expectations.scene.event(self.info.client, format_args!("connects as {local}"));
        self.expectations.scene.opened(local, self.info.machine);
        Ok(WatchedStream {
            inner: Some(inner),
            local,
            delayed: Vec::new(),
            of: self.clone(),
            sent: Frames::default(),
            received: Frames::default(),
            answers: 0,
        })
    }
}

/// A stream that inspects the frames that pass.
pub struct WatchedStream {
    inner: Option<TcpStream>,
    local: SocketAddr,
    /// Bytes that were written and stay in the machine until some time after the stream is closed, as if
    /// retransmissions failed.
    delayed: Vec<u8>,
    of: Simulated,
    sent: Frames,
    received: Frames,
    /// How many frames were received.
    answers: usize,
}

impl WatchedStream {
    fn inner(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.inner.as_mut().expect("it is taken when this is dropped"))
    }

    fn inspect_sent(&mut self, bytes: &[u8]) {
        let Simulated { expectations, info } = &self.of;
        for Frame { opcode, .. } in self.sent.take(bytes) {
            match opcode {
                OPEN_SESSION => expectations.opens_session(*info),
                ATTACH_SESSION => expectations.scene.event(info.client, format_args!("attaches")),
                // The answers to Hello and to the opening or attachment of a session come first: before them, the
                // server could take a request for one of the connection session.
                _ if REQUESTS.contains(&opcode) && self.answers < 2 => {
                    expectations.scene.fail(format!(
                        "{info:?} sends a request before it knows for which session the connection acts"
                    ));
                }
                _ => {}
            }
        }
    }

    fn inspect_received(&mut self, bytes: &[u8]) {
        for Frame { opcode, status, .. } in self.received.take(bytes) {
            self.answers += 1;
            if opcode == OPEN_SESSION && status == 0 {
                self.of.expectations.session_opened(self.of.info);
            }
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.inner().poll_read(context, buffer))?;
        self.inspect_received(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let is_attachment =
            Frames::default().take(bytes).last().is_some_and(|frame| frame.opcode == ATTACH_SESSION);
        if !self.delayed.is_empty() || is_attachment && self.of.expectations.is_next_attachment_delayed() {
            self.delayed.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(self.inner().poll_write(context, bytes))?;
        self.inspect_sent(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.delayed.is_empty() {
            // The end of the stream comes after what is delayed.
            return Poll::Ready(Ok(()));
        }
        self.inner().poll_shutdown(context)
    }
}

impl Drop for WatchedStream {
    fn drop(&mut self) {
        self.of.expectations.scene.closed(self.local);
        if let Some(mut inner) = self.inner.take().filter(|_| !self.delayed.is_empty()) {
            let delayed = std::mem::take(&mut self.delayed);
            tokio::spawn(async move {
                tokio::time::sleep(DELAY).await;
                let _ = inner.write_all(&delayed).await;
            });
        }
    }
}
