//! The errors of the load generator.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use signalbox_client::{ConnectError, DecodeError, Disconnect};

/// An error that ended a run early. What the run held is released when its connections are closed.
#[derive(Clone, Debug, Error)]
pub enum LoadError {
    /// No connection could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// One of several connections could not be opened.
    #[error(
        "only {made} connections to {address} could be opened ({source}); use fewer, or raise the limits"
    )]
    TooManyConnections {
        /// The number of connections that were opened before it.
        made: usize,
        /// The address of the server.
        address: SocketAddr,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The server does not accept the token.
    #[error("the server no longer accepts the token; check that it was not revoked and has not expired")]
    TokenRefused,
    /// A connection ended.
    #[error("a connection was lost ({0}); check the server's log and its limit of connections")]
    Lost(#[from] Disconnect),
    /// Requests were not answered.
    #[error("{connections} connections received no answer within {} s; check the server", .waited.as_secs_f64())]
    Silent {
        /// The number of connections with requests in flight.
        connections: usize,
        /// The time limit.
        waited: Duration,
    },
    /// A response does not belong to the oldest request in flight.
    #[error("the server answered request {found} before request {expected}; check that it answers in order")]
    OutOfOrder {
        /// The number in the response.
        found: u32,
        /// The number of the oldest request.
        expected: u32,
    },
    /// The server uses another protocol.
    #[error("the server answered {found:?}, which is not an answer of its protocol")]
    NotUnderstood {
        /// The response, shortened.
        found: String,
    },
    /// The operating system refused to poll.
    #[error("cannot wait for sockets ({0}); check the limits of this process")]
    Poll(Arc<io::Error>),
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.into())
    }
}

impl From<DecodeError> for LoadError {
    fn from(error: DecodeError) -> Self {
        Self::Lost(error.into())
    }
}
