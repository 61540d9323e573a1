//! How a client gets a connection: over TCP, or whatever else carries bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::client::connection::Connection;
use crate::client::{Address, ConnectError, socket};

/// Makes streams to servers. [`Tcp`] is the usual one; a tunnel or a simulated network can be another.
///
/// ```no_run
/// use signalbox::client::{Address, ConnectError, Transport};
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tokio::net::UnixStream;
///
/// /// Reaches a server through a tunnel whose end is a socket of this machine.
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
    /// What bytes go over.
    type Stream: AsyncRead + AsyncWrite + Send + 'static;

    /// Connects within `limit`.
    fn connect(
        &self,
        address: Address,
        limit: Duration,
    ) -> impl Future<Output = Result<Self::Stream, ConnectError>> + Send;
}

/// TCP, set up so that a server that vanished is noticed within 30 seconds.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox::client::{Client, Tcp};
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
}

/// What comes of a [`Dial`].
pub(in crate::client) type Dialing = Pin<Box<dyn Future<Output = Result<Connection, ConnectError>> + Send>>;

/// A transport whose streams are made into connections, so that nothing else depends on its type. The task that
/// serves a connection belongs to the runtime in which it was dialed.
pub(in crate::client) type Dial = Arc<dyn Fn(Address, Duration) -> Dialing + Send + Sync>;

pub(super) fn dial_over(transport: impl Transport) -> Dial {
    let transport = Arc::new(transport);
    Arc::new(move |address, limit| {
        let transport = Arc::clone(&transport);
        Box::pin(async move { Ok(Connection::over(transport.connect(address, limit).await?)) })
    })
}
