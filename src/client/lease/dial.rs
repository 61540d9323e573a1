//! How a client gets a connection: over TCP, or whatever else carries bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::client::connection::Connection;
use crate::client::{Address, ConnectError, socket};

/// Makes streams to servers. [`Tcp`] is the usual one; a tunnel or a simulated network can be another.
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
