//! Connections of clients that one node of a cluster relays to the node that leads.
//!
//! `outgoing` is the part of a node that does not lead: it accepts clients, opens a connection to the leader for each, and
//! `splice` forwards the bytes of both unchanged, TLS included. `incoming` is the part of the leader: it reads which client a
//! connection is for, and serves it like any other; `unproven` bounds those that are not known to come from a node. `proof` is how
//! the two nodes authenticate each other (`docs/protocol.md`, "Relayed connections").
//!
//! Invariants (`docs/decisions/0028`):
//! - C5: nothing is forwarded after the term of a relay is over (`cluster::relays`).
//! - C7: a client's connection has one connection to the leader, and neither outlives the other.
//! - The leader sees the orderly end of a connection only if the client has ended its own. A relay that fails, or loses the
//!   client, resets the connection.

mod incoming;
mod outgoing;
pub(super) mod proof;
mod splice;
mod unproven;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::listener::{Listener, prepare_connection};
use super::workers::{Spawn, Workers};
pub use incoming::{Incoming, IsNode, ServeRequests, Served, Trust, serve_relays};
pub use outgoing::{Outgoing, RelayAuthority, relay_port};

/// The sockets and tasks of relays: those of the system, or simulated ones.
pub trait RelayNetwork: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static;
    /// A source of connections.
    type Listener: Listener<Stream = Self::Stream>;
    /// Serves connections on this node.
    type Spawner: Spawn<Self::Stream> + Sync;

    /// Returns the spawner for the connections that other nodes relay to this one, and for those of its own clients that
    /// waited until it led.
    fn spawner(&self) -> &Self::Spawner;

    /// Starts a task that relays a client.
    fn run<F>(&self, client: Self::Stream, task: impl FnOnce(Self::Stream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send;

    /// Connects to the leader. Only an end of output tells the leader that the client has ended in an orderly way;
    /// dropping the connection does not.
    fn connect(
        &self,
        leader: SocketAddr,
        peer_timeout: Duration,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Peeks at the first byte of a client; `None`: the client has ended its connection without sending one.
    fn first_byte(client: &Self::Stream) -> impl Future<Output = io::Result<Option<u8>>> + Send;
}

impl RelayNetwork for Workers {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Spawner = Self;

    fn spawner(&self) -> &Self {
        self
    }

    fn run<F>(&self, client: TcpStream, task: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        Self::run(self, client, task);
    }

    async fn connect(&self, leader: SocketAddr, peer_timeout: Duration) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(leader).await?;
        prepare_connection(&stream, peer_timeout)?;
        // Only an end of output that `splice` sends is an orderly end of the client. Everything else that closes the socket
        // resets the connection, also the end of this process.
        stream.set_zero_linger()?;
        Ok(stream)
    }

    async fn first_byte(client: &TcpStream) -> io::Result<Option<u8>> {
        let mut byte = [0];
        Ok(if client.peek(&mut byte).await? == 0 { None } else { Some(byte[0]) })
    }
}
