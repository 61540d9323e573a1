//! The sockets of a node. They stop with the process, and check that a former leader sends nothing, and that nothing is
//! relayed between a former leader and its clients.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use signalbox::server::{Listener, RelayNetwork, SameThread};
use signalbox_protocol::relay::{CHALLENGE_BYTES, VERDICT_BYTES};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

use super::process::{Ends, Process, Socket};

pub struct NodeListener {
    pub inner: TcpListener,
    pub process: Arc<Process>,
    /// Whether other nodes connect to it to relay their clients.
    pub is_for_relays: bool,
}

impl Listener for NodeListener {
    type Stream = NodeStream;

    async fn accept(&mut self) -> io::Result<(NodeStream, SocketAddr)> {
        let (inner, peer) = self.inner.accept().await?;
        let process = &self.process;
        let mut stream = NodeStream::new(inner, process)?;
        process.awake().await;
        if self.is_for_relays {
            stream.introduction_bytes = CHALLENGE_BYTES + VERDICT_BYTES;
            if let Some(epoch) = process.leading() {
                process.world.accepted_relay(peer, epoch);
            }
        }
        process.event(format_args!("accepts {peer}"));
        Ok((stream, peer))
    }
}

tokio::task_local! {
    /// The number of the client that a task relays.
    static RELAYED: u64;
}

/// The network of a node, for its relays. It does not reset connections: simulated ones that are dropped end gracefully.
pub struct NodeNetwork {
    process: Arc<Process>,
}

impl NodeNetwork {
    pub fn of(process: &Arc<Process>) -> Self {
        Self { process: Arc::clone(process) }
    }
}

impl RelayNetwork for NodeNetwork {
    type Stream = NodeStream;
    type Listener = NodeListener;
    type Spawner = SameThread;

    fn spawner(&self) -> &SameThread {
        &SameThread
    }

    fn run<F>(&self, mut client: NodeStream, task: impl FnOnce(NodeStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let process = Arc::clone(&self.process);
        let number = process.begin_relay();
        client.relayed = Some(number);
        tokio::spawn(RELAYED.scope(number, async move {
            task(client).await;
            process.end_relay(number);
        }));
    }

    async fn connect(&self, leader: SocketAddr, _: Duration) -> io::Result<NodeStream> {
        let inner = TcpStream::connect(leader).await?;
        let mut stream = NodeStream::new(inner, &self.process)?;
        self.process.awake().await;
        let number = RELAYED.get();
        stream.relayed = Some(number);
        self.process.relay_by(number, Some(stream.ends.1));
        Ok(stream)
    }

    async fn first_byte(_: &NodeStream) -> io::Result<Option<u8>> {
        unreachable!("nodes do not encrypt what clients send");
    }
}

/// A node's end of a connection.
pub struct NodeStream {
    socket: Socket,
    ends: Ends,
    process: Arc<Process>,
    /// The number of the client whose bytes are relayed.
    relayed: Option<u64>,
    /// The bytes that a leader still has to send to introduce itself to a relay, before any output for a client. It may send
    /// them after its term, since a relay forwards none of them to the client.
    introduction_bytes: usize,
}

impl NodeStream {
    /// Must be called as soon as the socket exists, even in a frozen process, so that the end of the process closes this
    /// socket too.
    fn new(inner: TcpStream, process: &Arc<Process>) -> io::Result<Self> {
        let ends = (inner.peer_addr()?, inner.local_addr()?);
        let socket = Arc::new(Mutex::new(Some(inner)));
        if !process.open(ends, &socket) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(Self { socket, ends, process: Arc::clone(process), relayed: None, introduction_bytes: 0 })
    }

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
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_socket(context, |socket, context| socket.poll_write(context, bytes));
        if let Poll::Ready(Ok(count @ 1..)) = written {
            if self.introduction_bytes > 0 {
                self.introduction_bytes = self.introduction_bytes.saturating_sub(count);
                return written;
            }
            let process = &self.process;
            match self.relayed.and_then(|number| process.relayed_by(number)) {
                Some(leader) => process.world.check_relayed(process, leader),
                None => process.world.check_output(process),
            }
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
        self.process.closed(self.ends);
        if let Some(number) = self.relayed
            && self.process.relayed_by(number) == Some(self.ends.1)
        {
            self.process.relay_by(number, None);
        }
    }
}
