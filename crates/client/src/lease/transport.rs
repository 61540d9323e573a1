//! How a client connects to a server: over TCP, or another transport.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::connection::Connection;
use crate::race::Accepted;
use crate::{Address, ConnectError, socket};

/// Opens byte streams to servers. [`Tcp`] is the default; a tunnel or a simulated network can be another.
///
/// ```no_run
/// use signalbox_client::{Address, ConnectError, Transport};
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tokio::net::UnixStream;
///
/// /// Connects through a tunnel that ends in a local socket.
/// struct Tunnel;
///
/// impl Transport for Tunnel {
///     type Stream = UnixStream;
///
///     async fn connect(&self, address: Address, limit: Duration) -> Result<UnixStream, ConnectError> {
///         let connecting = UnixStream::connect("/run/tunnel");
///         let address = address.to_string();
///         let Ok(result) = tokio::time::timeout(limit, connecting).await else {
///             return Err(ConnectError::TimedOut { address, limit });
///         };
///         result.map_err(|error| ConnectError::Resolve { host: address, source: Arc::new(error) })
///     }
/// }
/// ```
pub trait Transport: Send + Sync + 'static {
    /// The byte stream of a connection.
    type Stream: AsyncRead + AsyncWrite + Send + 'static;

    /// Connects to an address.
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`] after `limit`, or another error that describes the failure.
    fn connect(
        &self,
        address: Address,
        limit: Duration,
    ) -> impl Future<Output = Result<Self::Stream, ConnectError>> + Send;

    /// As [`Self::connect`], for a client of several addresses: `accepted` is called as soon as the server has accepted the
    /// connection, if more follows, such as a handshake. The client then waits longer before it tries another address
    /// beside this one. By default, nothing follows.
    fn connect_in_steps(
        &self,
        address: Address,
        limit: Duration,
        accepted: impl FnOnce() + Send,
    ) -> impl Future<Output = Result<Self::Stream, ConnectError>> + Send {
        drop(accepted);
        self.connect(address, limit)
    }

    /// The address of the server if others may read what is sent over a connection to it, so that no token is shown there;
    /// `None`: what is sent is encrypted, or does not leave the machine, which is the default.
    fn in_clear(&self, _stream: &Self::Stream) -> Option<SocketAddr> {
        None
    }
}

/// TCP with keepalive: the failure of a server's host is detected within 30 s.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox_client::{Client, Tcp};
///
/// let client = Client::builder("lock.example.org".parse()?).transport(Tcp).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Transport for Tcp {
    type Stream = TcpStream;

    async fn connect(&self, address: Address, limit: Duration) -> Result<TcpStream, ConnectError> {
        socket::connect(&address, limit).await
    }

    fn in_clear(&self, stream: &TcpStream) -> Option<SocketAddr> {
        socket::in_clear(stream)
    }
}

/// The future that a [`Dial`] returns.
pub(crate) type Dialing = Pin<Box<dyn Future<Output = Result<Connection, ConnectError>> + Send>>;

/// A transport as a function, so that nothing else depends on its type. The task that serves the connection belongs to
/// the runtime in which the function is called.
pub(crate) type Dial = Arc<dyn Fn(Address, Duration, Accepted) -> Dialing + Send + Sync>;

pub(super) fn dial_over(transport: impl Transport) -> Dial {
    let transport = Arc::new(transport);
    Arc::new(move |address, limit, accepted| {
        let transport = Arc::clone(&transport);
        Box::pin(async move {
            let stream = transport.connect_in_steps(address, limit, || accepted.note()).await?;
            let in_clear = transport.in_clear(&stream);
            Ok(Connection::over(stream, in_clear))
        })
    })
}
