//! Why a load cannot be put on a server, or not to its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::client::{ConnectError, DecodeError, Loss};

/// Why a run ended early. What it held is given back when its connections are closed.
#[derive(Clone, Debug, Error)]
pub enum LoadError {
    /// A connection was not made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// One of many connections was not made.
    #[error(
        "{made} connections to {address} were made, but no more ({source}); ask for fewer, or raise the limits"
    )]
    TooManyConnections {
        /// Connections that were made before.
        made: usize,
        /// Where to.
        address: SocketAddr,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// A connection ended.
    #[error(
        "a connection was lost ({0}); see the server's log, and whether its limit of connections was reached"
    )]
    Lost(#[from] Loss),
    /// Requests were not answered.
    #[error("{connections} connections got no answer within {} s; check the server", .waited.as_secs_f64())]
    Silent {
        /// Connections with requests on their way.
        connections: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// An answer is not that to the oldest request on its way.
    #[error(
        "the server answered request {found} where {expected} was the oldest; it does not keep the order"
    )]
    OutOfOrder {
        /// The number that the answer bears.
        found: u32,
        /// The number of the oldest request.
        expected: u32,
    },
    /// The server speaks something else.
    #[error("the server answered {found:?}, which is no answer of its protocol")]
    NotUnderstood {
        /// What came, shortened.
        found: String,
    },
    /// The operating system refuses to poll.
    #[error("cannot wait for sockets ({0}); check the limits of this process")]
    Poll(Arc<io::Error>),
}

impl From<DecodeError> for LoadError {
    fn from(error: DecodeError) -> Self {
        Self::Lost(error.into())
    }
}
