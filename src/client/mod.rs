//! The async client: one connection to a server, shared by any number of tasks.
//!
//! Requests are pipelined and answers matched by their opaque, so a task that waits long keeps nobody else waiting.
//! Works with every server of yrmcds' counter or semaphore protocol (`counter.md`, `semaphore.md`); which of the two
//! a connection speaks of is decided by its port.
//!
//! What is acquired belongs to the connection: it is given back by [`Client::release`] or when the connection ends,
//! which is when the last [`Client`] and [`Dump`] of it is dropped, when the server goes away, or when this process
//! dies. [`Client::closed`] tells a holder that it holds nothing any more.
//!
//! A call's future may be dropped at any time. That breaks nothing for others, but it takes nothing back either: a
//! request that was queued is carried out, and what a dropped [`Client::acquire`] was granted stays with the
//! connection until it is released or the connection ends. A dropped Acquire whose outcome matters is therefore best
//! followed by dropping the client.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use signalbox::client::{Client, Maximum, Resources};
//!
//! let client = Client::connect(&"lock.example.org".parse()?).await?;
//! client.acquire(b"backup", Resources(1), Maximum(1)).await?;
//! // The work goes here.
//! client.release(b"backup", Resources(1)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Left to callers: how long to wait for an answer, and what to do when the connection is lost. Left to later
//! versions: sessions that outlive a connection.

mod address;
mod connection;
mod dump;
mod error;
pub mod load;
mod socket;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

pub use address::{Address, AddressError, COUNTER_PORT, SEMAPHORE_PORT};
pub use dump::Dump;
pub use error::{ConnectError, Error, Loss};

/// What answers and limits consist of is the wire's to say; callers of the client need no more of it than this.
pub use crate::protocol::{BodyError, DecodeError, DumpEntry, NAME_BYTES_MAX, Statistic, Status};

use crate::protocol::{Request, ResponseFrame};
use connection::Connection;

/// How long [`Client::connect`] tries.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An amount of what a counter or semaphore hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resources(pub u32);

/// How many resources there are altogether: of a counter for one Acquire, of a semaphore when Acquire creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Maximum(pub u32);

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Maximum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A connection to a server. Clones share it; it is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
}

impl Client {
    /// Connects within [`CONNECT_TIMEOUT`]. An address without a port means that of the counters; see
    /// [`Address::or_port`].
    ///
    /// A server that vanishes without a word is noticed about 30 seconds later.
    pub async fn connect(address: &Address) -> Result<Self, ConnectError> {
        Self::connect_within(address, CONNECT_TIMEOUT).await
    }

    /// As [`Client::connect`], within `limit`.
    pub async fn connect_within(address: &Address, limit: Duration) -> Result<Self, ConnectError> {
        Ok(Self::over(socket::connect(address, limit).await?))
    }

    /// Speaks over a stream that is connected already: another transport, or a simulated network.
    ///
    /// # Panics
    /// Outside a tokio runtime; a task of it serves the connection.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self { connection: Arc::new(Connection::over(stream)) }
    }

    /// Asks for a sign of life (`counter.md`, "Noop").
    pub async fn noop(&self) -> Result<(), Error> {
        self.ask(Request::Noop).await?;
        Ok(())
    }

    /// A counter's consumption, or what is left of a semaphore (`counter.md` and `semaphore.md`, "Get").
    pub async fn get(&self, name: &[u8]) -> Result<Resources, Error> {
        let frame = self.ask(Request::Get { name: checked(name)? }).await?;
        Ok(Resources(frame.resources()?))
    }

    /// Takes resources, at once or not at all (`counter.md` and `semaphore.md`, "Acquire"); gives what was taken.
    ///
    /// `maximum` is a counter's for this request, or the capacity of a semaphore that this request creates.
    pub async fn acquire(
        &self,
        name: &[u8],
        resources: Resources,
        maximum: Maximum,
    ) -> Result<Resources, Error> {
        let name = checked(name)?;
        let request = Request::Acquire { name, resources: resources.0, maximum: maximum.0 };
        let frame = self.ask(request).await?;
        Ok(Resources(frame.resources()?))
    }

    /// Gives back resources that this connection acquired (`counter.md` and `semaphore.md`, "Release").
    pub async fn release(&self, name: &[u8], resources: Resources) -> Result<(), Error> {
        self.ask(Request::Release { name: checked(name)?, resources: resources.0 }).await?;
        Ok(())
    }

    /// The server's statistics, in its order (`counter.md`, "Stats").
    pub async fn stats(&self) -> Result<Vec<Statistic>, Error> {
        Ok(self.ask(Request::Stats).await?.statistics()?)
    }

    /// Lists every name (`counter.md`, "Dump"). It is no picture of one moment: names come and go meanwhile.
    pub async fn dump(&self) -> Result<Dump, Error> {
        let series = self.connection.ask_for_series(Request::Dump).await?;
        Ok(Dump::new(self.clone(), series))
    }

    /// Resolves when the connection is gone, and with it all that it held.
    pub async fn closed(&self) -> Loss {
        self.connection.ended().await
    }

    async fn ask(&self, request: Request<'_>) -> Result<ResponseFrame, Error> {
        let answer = self.connection.ask(request).await?;
        success(answer.await.map_err(|_| self.connection.loss())?)
    }
}

/// The name, where it fits the wire.
fn checked(name: &[u8]) -> Result<&[u8], Error> {
    match name.len() {
        0 => Err(Error::NameEmpty),
        1..=NAME_BYTES_MAX => Ok(name),
        bytes => Err(Error::NameTooLong { bytes }),
    }
}

/// The response, where it reports success.
fn success(frame: ResponseFrame) -> Result<ResponseFrame, Error> {
    match Status::from_code(frame.status) {
        Some(Status::NoError) => Ok(frame),
        Some(status) => Err(Error::Status(status)),
        None => Err(Error::UnknownStatus {
            code: frame.status,
            message: String::from_utf8_lossy(&frame.body).into_owned(),
        }),
    }
}
