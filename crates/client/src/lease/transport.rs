//! How a client connects to a server: over TCP, or another transport.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::connection::Connection;
use crate::race::{Accepted, Stage};
use crate::{Address, ConnectError, Error, socket};

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

    /// Resolves the host of an address. Returns an address for each IP address of the host ([`Address::resolved_to`]),
    /// at least one. A client resolves each time that it connects, and tries all of them. By default, this returns the
    /// given address, which [`Self::connect`] interprets.
    ///
    /// # Errors
    /// [`ConnectError::Resolve`], or another error that describes the failure.
    fn resolve(&self, address: Address) -> impl Future<Output = Result<Vec<Address>, ConnectError>> + Send {
        ready(Ok(vec![address]))
    }

    /// Connects to an address that [`Self::resolve`] has returned, or, for a host name, to any address of the host.
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`] after `limit`, or another error that describes the failure.
    fn connect(
        &self,
        address: Address,
        limit: Duration,
    ) -> impl Future<Output = Result<Self::Stream, ConnectError>> + Send;

    /// Connects like [`Self::connect`], for a client that tries several addresses. If more steps follow after the
    /// server has accepted the connection, such as a handshake, this calls `accepted` before them: the client then
    /// waits longer before it also tries another address. By default, no steps follow, and `accepted` is not called.
    fn connect_in_steps(
        &self,
        address: Address,
        limit: Duration,
        accepted: impl FnOnce() + Send,
    ) -> impl Future<Output = Result<Self::Stream, ConnectError>> + Send {
        drop(accepted);
        self.connect(address, limit)
    }

    /// Returns the address of the server if others may read what is sent over this stream. No token is then sent over
    /// it, unless [`Token::over_plain`](crate::Token::over_plain) allows that. `None`, the default: what is sent is
    /// encrypted, or does not leave the machine.
    fn in_clear(&self, _stream: &Self::Stream) -> Option<SocketAddr> {
        None
    }
}

/// TCP with keepalive: the failure of a server's host is detected within 30 s.
///
#[doc = example!("", r#"let client = Client::builder("lock.example.org".parse()?).transport(Tcp).connect().await?;"#)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Transport for Tcp {
    type Stream = TcpStream;

    async fn resolve(&self, address: Address) -> Result<Vec<Address>, ConnectError> {
        socket::resolve(address).await
    }

    async fn connect(&self, address: Address, limit: Duration) -> Result<TcpStream, ConnectError> {
        socket::connect(&address, limit).await
    }

    fn in_clear(&self, stream: &TcpStream) -> Option<SocketAddr> {
        socket::in_clear(stream)
    }
}

/// A [`Transport`] as a trait object. The task that serves a connection belongs to the runtime in which it is opened.
pub(crate) trait Dial: Send + Sync {
    /// Calls [`Transport::resolve`], unless the address is resolved.
    fn resolve(self: Arc<Self>, address: Address) -> Stage<Vec<Address>, Error>;

    /// Calls [`Transport::connect_in_steps`].
    fn connect(
        self: Arc<Self>,
        address: Address,
        limit: Duration,
        accepted: Accepted,
    ) -> Stage<Connection, Error>;
}

impl<T: Transport> Dial for T {
    fn resolve(self: Arc<Self>, address: Address) -> Stage<Vec<Address>, Error> {
        Box::pin(async move {
            if address.resolved().is_some() {
                return Ok(vec![address]);
            }
            let resolved = Transport::resolve(&*self, address.clone()).await?;
            Ok(if resolved.is_empty() { vec![address] } else { resolved })
        })
    }

    fn connect(
        self: Arc<Self>,
        address: Address,
        limit: Duration,
        accepted: Accepted,
    ) -> Stage<Connection, Error> {
        Box::pin(async move {
            let stream = self.connect_in_steps(address, limit, || accepted.note()).await?;
            let in_clear = self.in_clear(&stream);
            Ok(Connection::over(stream, in_clear))
        })
    }
}
