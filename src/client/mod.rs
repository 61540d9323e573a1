//! The client: permits for a program that shares resources with others on many machines.
//!
//! # First steps
//!
//! A [`Client`] connects once and is shared by all tasks of a program. What it hands out are [`Permit`]s: whoever has
//! one holds the resources, whoever drops it gives them back.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use signalbox::client::Client;
//! use std::time::Duration;
//!
//! let client = Client::connect(&"lock.example.org".parse()?).await?;
//!
//! // One of three, after waiting in the queue for half a minute at most.
//! let permit = client.semaphore("deploys").capacity(3).timeout(Duration::from_secs(30)).acquire().await?;
//! // The work goes here.
//! permit.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A **semaphore** has a capacity, which the request that makes it sets. A **counter** counts what is in use, and every
//! request says up to how many it may come: `client.counter("tenant/7").maximum(8)`. Several names are had together,
//! all or none and without deadlocks, by [`Client::acquire_all`].
//!
//! # Losing a permit
//!
//! What is held is leased: the client renews the lease from a thread of its own, and survives cuts of the network that
//! are shorter than it. But a lease can be lost, and then others may hold the same. A program that must not go on then
//! lets its work be guarded:
//!
//! ```no_run
//! # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
//! # async fn write_report(fence: u64) {}
//! let permit = client.semaphore("report").capacity(1).acquire().await?;
//! let fence = permit.id().0;
//! match permit.guard(write_report(fence)).await {
//!     Ok(()) => permit.release().await?,
//!     Err(lost) => eprintln!("given up half-way: {lost}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The number of the grant grows with each grant of a name. A store that refuses writes with a lower number than it has
//! seen is safe even from a program that was stopped for a minute and did not notice; no client alone can be
//! (`docs/semantics.md`, "Fencing tokens").
//!
//! # When no server answers
//!
//! [`Acquire::acquire`] fails with [`Error::Unreachable`] after a while, and there is no permit: it fails closed. Where
//! it is better to work without a limit than not to work, [`Acquire::acquire_or_proceed`] says so in its name and in its
//! type.
//!
//! # Recipes
//!
//! `docs/guide.md` shows budgets, leaders, several resources at once and fencing, with what happens in failure.
//! `examples/` has whole programs: `leader`, `worker_pool` and `fenced_writer`.
//!
//! # Which client
//!
//! | | [`Client`] | [`PlainClient`] |
//! |---|---|---|
//! | servers | signalbox | every server of yrmcds' protocols |
//! | what is held belongs to | a leased session, which survives cuts | the connection, and ends with it |
//! | waits | in a fair queue | never |
//! | names | of both kinds, over either port | of the port |
//! | gives | [`Permit`] | [`PlainPermit`] |
//!
//! [`blocking`] has the leased one for programs without an executor. [`Direct`] has the operations that are for
//! people: who holds, who waits, what happens, to take something away, and to declare semaphores whose capacity an
//! administrator sets.

mod address;
pub mod blocking;
mod connection;
mod declared;
mod direct;
mod error;
mod lease;
pub mod load;
mod plain;
mod plain_permit;
mod series;
mod socket;

use std::fmt;
use std::time::Duration;

pub use address::{Address, AddressError, COUNTER_PORT, SEMAPHORE_PORT};
pub use direct::Direct;
pub use error::{ConnectError, Error, Loss, Lost};
pub use lease::{
    Acquire, AcquireAll, Admission, BootClock, Builder, Claim, Client, Clock, Counter, HandedOver, Moment,
    Permit, Semaphore, Sleep, Tcp, Transport,
};
pub use plain::PlainClient;
pub use plain_permit::PlainPermit;
pub use series::{Declared, Dump, Listing, Series, Watch};

/// What answers and limits consist of is the wire's to say; callers of the client need no more of it than this.
pub use crate::protocol::{
    BodyError, Declaration, DeclarationError, DeclaredEntry, DeclaredState, DecodeError, DumpEntry, Event,
    EventKind, Features, Generation, GrantId, HelloAnswer, Idle, IfExists, ListEntry, Milliseconds,
    NAME_BYTES_MAX, Namespace, Removal, Resizing, Revocation, Scope, SessionKey, Standing, Statistic, Status,
    TtlLeft, VerifiedGrant, Wait, WantedError,
};

use crate::protocol::ResponseFrame;

/// How long [`PlainClient::connect`] tries.
///
/// ```
/// assert_eq!(signalbox::client::CONNECT_TIMEOUT.as_secs(), 5);
/// ```
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An amount of what a counter or semaphore hands out.
///
/// ```
/// use signalbox::client::Resources;
///
/// assert_eq!(Resources(7).to_string(), "7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resources(pub u32);

/// How many resources there are altogether: of a counter for one Acquire, of a semaphore when Acquire creates it.
///
/// ```
/// use signalbox::client::Maximum;
///
/// assert!(Maximum(7) < Maximum(8));
/// ```
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
