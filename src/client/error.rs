//! What can go wrong between a program and its server, as sentences that say what to do about it.
//!
//! Every error can be cloned: one lost connection is told to all who waited on it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::protocol::{BodyError, ClaimsError, DeclarationError, DecodeError, NAME_BYTES_MAX, Status};

/// Why a request has no answer that could be used.
///
/// ```no_run
/// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::{Error, Status};
///
/// match client.counter("tenant/7").maximum(8).try_acquire().await {
///     Ok(permit) => permit.release().await?,
///     Err(Error::Status(Status::ResourceNotAvailable)) => println!("busy"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused the request.
    #[error("{}", advice(*.0))]
    Status(Status),
    /// The server refused the request in words that this client does not know.
    #[error(
        "the server answered with the status {code:#04x} ({message:?}), which this client does not know; \
        use a client that is as new as the server"
    )]
    UnknownStatus {
        /// The status byte.
        code: u8,
        /// The text that came with it.
        message: String,
    },
    /// The connection ended before the answer came. Whether the request was carried out is not known, and whatever
    /// the connection held is given back.
    #[error("the connection was lost ({0}); connect again once the server answers")]
    ConnectionLost(#[from] Loss),
    /// The answer does not fit the request.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No server was reached in the time that the client allows for it ([`Builder::unreachable_after`]), so nobody
    /// knows whether there is something to be had. Nothing is held.
    ///
    /// [`Builder::unreachable_after`]: super::Builder::unreachable_after
    #[error("no server was reached within {} s; the last try: {last}", .within.as_secs_f64())]
    Unreachable {
        /// How long was tried.
        within: Duration,
        /// What the last try came to.
        last: Arc<Error>,
    },
    /// What was held is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// What is asked for at once breaks a rule; nothing was sent.
    #[error(transparent)]
    Claims(#[from] ClaimsError),
    /// What is to be declared breaks a rule; nothing was sent.
    #[error(transparent)]
    Declarations(#[from] DeclarationError),
    /// The name is empty; nothing was sent.
    #[error("the name is empty; give a name of at least one byte")]
    NameEmpty,
    /// The name does not fit the wire; nothing was sent.
    #[error("the name has {bytes} bytes; give a name of at most {NAME_BYTES_MAX}")]
    NameTooLong {
        /// Length of the name in bytes.
        bytes: usize,
    },
}

impl Error {
    /// Whether the server was there and said no. The others say that nobody was asked or nobody answered.
    ///
    /// ```
    /// use signalbox::client::{Error, Status};
    ///
    /// assert!(Error::Status(Status::QueueFull).is_refusal());
    /// assert!(!Error::NameEmpty.is_refusal());
    /// ```
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Status(_) | Self::UnknownStatus { .. })
    }
}

/// Why a permit is not good any more.
///
/// ```no_run
/// # async fn example(permit: signalbox::client::Permit) {
/// use signalbox::client::Lost;
///
/// match permit.lost().await {
///     Lost::Revoked => println!("an administrator wants it back"),
///     other => println!("{other}"),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Lost {
    /// The server says that the session is gone: its lease ended, or the server was started anew.
    #[error("the lease has ended, and others may hold what was held; stop the work")]
    Expired,
    /// An administrator took it away.
    #[error("an administrator took away what was held; stop the work")]
    Revoked,
    /// No server could be reached for as long as the lease lasts.
    #[error("no server could be reached to renew the lease; others may hold what was held, so stop the work")]
    Unreachable,
    /// Somebody else who has its key took over the session.
    #[error("another client took over the session; stop the work")]
    TakenOver,
    /// The program's runtime, or the thread that renews leases, has ended.
    #[error("nothing renews the lease any more, as the program's runtime was shut down; stop the work")]
    Stopped,
}

/// The server's status as a sentence.
fn advice(status: Status) -> &'static str {
    match status {
        Status::NoError => "the server reports success",
        Status::NotFound => "there is no such name; it is made by the first Acquire",
        Status::InvalidArguments => {
            "the server finds the arguments invalid; ask for at least 1 and at most as many resources as the maximum"
        }
        Status::ResourceNotAvailable => "the resources are in use; try again later",
        Status::NotAcquired => {
            "this connection holds fewer resources than that; release at most what it acquired"
        }
        Status::TimedOut => "the resources stayed in use while the request waited; wait longer or try again",
        Status::QueueFull => {
            "too many wait for the resources already; try again later or accept a longer queue"
        }
        Status::Canceled => "the waiting was canceled, and nothing was taken",
        Status::Revoked => "an administrator took away what was held; stop using it",
        Status::Removed => "the name was removed by an administrator; ask for another",
        Status::NoSuchSession => "there is no such session, or not any more; open another",
        Status::AlreadyExists => "there is such a semaphore already; keep it, or set it to what is wanted",
        Status::GenerationDiffers => "the semaphore was changed meanwhile; look at it again, then decide",
        Status::InUse => "the semaphore is held; wait until nobody holds it, or remove it in another way",
        Status::UnknownCommand => "the server does not know this operation; use a server that has it",
        Status::OutOfMemory => "the server has no room for another name; try again later or raise its limit",
        Status::NotPermitted => "the server does not let this client do that; ask from an address that may",
        Status::ShuttingDown => "the server is being stopped; try again once it is back",
        Status::LimitReached => "a limit of the server is reached; close or finish something first",
        Status::NotStored => "the server could not write it to its disk and took it back; try again later",
    }
}

/// Why a connection ended.
///
/// ```no_run
/// # async fn example(client: signalbox::client::PlainClient) {
/// use signalbox::client::Loss;
///
/// if let Loss::ClosedByServer = client.closed().await {
///     println!("the server was stopped, or started anew");
/// }
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Loss {
    /// The server closed it.
    #[error("the server closed it")]
    ClosedByServer,
    /// The operating system reports a failure; also what becomes of a server that vanished.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// The server sent what is no response.
    #[error("{0}")]
    Protocol(Arc<DecodeError>),
    /// The runtime that served it was shut down.
    #[error("the program's runtime was shut down")]
    Stopped,
}

impl From<io::Error> for Loss {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<DecodeError> for Loss {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Io(error) => error.into(),
            other => Self::Protocol(Arc::new(other)),
        }
    }
}

/// Why there is no connection.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox::client::{ConnectError, PlainClient};
///
/// let address = "lock.example.org".parse()?;
/// if let Err(ConnectError::Resolve { host, .. }) = PlainClient::connect(&address).await {
///     println!("is {host} spelt like that?");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host's name leads to no address.
    #[error("no address is known for the host {host:?} ({source}); check the name of the server")]
    Resolve {
        /// The host as it was given.
        host: String,
        /// What the resolver said.
        source: Arc<io::Error>,
    },
    /// Nothing at the address accepts the connection. Where a host has several addresses, this is the last tried.
    #[error("cannot connect to {address} ({source}); check the address and that the server runs")]
    Refused {
        /// The address that was tried.
        address: SocketAddr,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The thread that renews leases cannot be started.
    #[error("cannot start the thread that renews leases ({source}); raise the limits of this process")]
    Thread {
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// Nothing answered in time.
    #[error("{address} does not answer within {} s; check the address and the network", .limit.as_secs_f64())]
    TimedOut {
        /// The address as it was given.
        address: String,
        /// How long was waited.
        limit: Duration,
    },
}
