//! The sockets of a node that serves clients. They stop with the process, and check that a former leader sends nothing.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use signalbox::server::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

use super::process::{Process, Socket};

pub struct NodeListener {
    pub inner: TcpListener,
    pub process: Arc<Process>,
}

impl Listener for NodeListener {
    type Stream = NodeStream;

    async fn accept(&mut self) -> io::Result<(NodeStream, SocketAddr)> {
        let (inner, peer) = self.inner.accept().await?;
        self.process.awake().await;
        let socket = Arc::new(Mutex::new(Some(inner)));
        if !self.process.open(peer, &socket) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let process = Arc::clone(&self.process);
        process.event(format_args!("accepts {peer}"));
        Ok((NodeStream { socket, peer, process }, peer))
    }
}

/// The server's end of a connection.
pub struct NodeStream {
    socket: Socket,
    peer: SocketAddr,
    process: Arc<Process>,
}

impl NodeStream {
    /// Calls the socket if the process runs and has not ended.
    fn poll_socket<T>(
        &self,
        context: &mut Context<'_>,
        call: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.process.is_frozen_for(context.waker()) {
            return Poll::Pending;
        }
        let mut socket = self.socket.lock().expect("nothing panics while it has a socket");
        let socket = socket.as_mut().ok_or(io::ErrorKind::ConnectionAborted)?;
        call(Pin::new(socket), context)
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_socket(context, |socket, context| socket.poll_read(context, buffer))
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.poll_socket(context, |socket, context| socket.poll_write(context, bytes));
        if let Poll::Ready(Ok(1..)) = written {
            self.process.world.check_output(&self.process);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_socket(context, |socket, context| socket.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_socket(context, |socket, context| socket.poll_shutdown(context))
    }
}

impl Drop for NodeStream {
    fn drop(&mut self) {
        self.process.closed(self.peer);
    }
}
