//! The client: permits for programs on many machines that share limited resources.
//!
//! # First steps
//!
//! A [`Client`] connects once, and all tasks of a program share it. It returns [`Permit`]s: a permit holds resources
//! until it is dropped, which releases them.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use signalbox_client::Client;
//! use std::time::Duration;
//!
//! let client = Client::connect(&"lock.example.org".parse()?).await?;
//!
//! // One of three, after at most 30 s in the queue.
//! let permit = client.semaphore("deploys").capacity(3).timeout(Duration::from_secs(30)).acquire().await?;
//! // The work goes here.
//! permit.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A **semaphore** has a capacity, which the request that creates it sets. A **counter** counts the resources in use,
//! and each request gives its own maximum: `client.counter("tenant/7").maximum(8)`. [`Client::acquire_all`] acquires
//! several names as one, all or none, without deadlocks.
//!
//! # Losing a permit
//!
//! A permit has a lease. The client renews it in a separate thread, and keeps it during disconnects that are shorter
//! than the lease. A lease can still be lost, and the resources can then be granted to others. If the work must stop
//! then, run it in [`Permit::guard`]:
//!
//! ```no_run
//! # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
//! # async fn write_report(fence: u64) {}
//! let permit = client.semaphore("report").capacity(1).acquire().await?;
//! let fence = permit.id().0;
//! match permit.guard(write_report(fence)).await {
//!     Ok(()) => permit.release().await?,
//!     Err(lost) => eprintln!("stopped half-way: {lost}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Permit::id`] is a fencing token: it increases with each grant of a name. A store that refuses writes with a lower
//! token than it has seen is safe even from a program that was suspended for a minute. No client can guarantee this
//! alone (`docs/semantics.md`, "Fencing tokens").
//!
//! # When no server is reachable
//!
//! [`Acquire::acquire`] fails with [`ErrorKind::Unreachable`] after 10 s ([`Builder::unreachable_after`]), without a
//! permit: it fails closed. [`Acquire::acquire_or_proceed`] fails open, for work that is better done without a limit than not at
//! all.
//!
//! # Several addresses
//!
//! [`Builder::address`] adds the other nodes of a cluster. A host name with several IP addresses does the same: it is
//! resolved each time that the client connects, and the first address that answers is used.
//!
//! # TLS
//!
//! The cargo feature `tls` adds the transport `Tls`: `Client::builder(address).transport(Tls::load(&files)?)`. The
//! plain client uses its streams: `PlainClient::over(tls.connect(address, limit).await?)`.
//!
//! Files of certificates and of a [`Token`] may be replaced while a program runs: they are read again for each connection.
//!
//! # Forks
//!
//! A client belongs to the process that created it. In the child of a fork, each call fails at once with
//! [`ErrorKind::Forked`], and permits are lost ([`Lost::Forked`]), while the parent keeps them: create a client in the
//! child. The child keeps copies of all sockets until it ends or runs another program (`exec`). **What plain
//! connections hold** ([`PlainClient`]) is still released when the parent drops the connection. But if the parent ends
//! without dropping the connection, by a signal or [`std::process::exit`], the server releases what it holds only when
//! the child has closed its copy too. Permits of a [`Client`] end with their lease.
//!
//! # Recipes
//!
//! `docs/guide.md` has recipes for concurrency limits, leader election, several resources at once and fencing,
//! each with its behaviour on failure. `examples/` has complete programs: `leader`, `worker_pool` and `fenced_writer`.
//!
//! # Which client
//!
//! | | [`Client`] | [`PlainClient`] |
//! |---|---|---|
//! | servers | signalbox | all servers of yrmcds' counter and semaphore protocols |
//! | resources belong to | a leased session, which survives disconnects | the connection; its end releases them |
//! | waiting | in a fair queue | no |
//! | names | of both kinds, over either port | of the port's kind |
//! | returns | [`Permit`] | [`PlainPermit`] |
//!
//! [`blocking`] has the leased client for programs without an async runtime. [`Direct`] has the administrative
//! operations: it lists holders and waiters, watches names, revokes grants, and declares semaphores whose capacity an
//! administrator sets. [`sysv`] has System V semaphore sets, which are shared with programs that call `semop`.

#![warn(clippy::unwrap_used)]

/// Makes the text of a short example for `#[doc]`: these lines, in a function with these arguments.
macro_rules! example {
    ($arguments:literal, $($line:literal),+ $(,)?) => {
        concat!(
            "```no_run\n",
            "# use signalbox_client::*;\n",
            "# use std::time::Duration;\n",
            "# async fn example(", $arguments, ") -> Result<(), Box<dyn std::error::Error>> {\n",
            $($line, "\n",)+
            "# Ok(())\n",
            "# }\n",
            "```"
        )
    };
}

mod address;
pub mod blocking;
mod connection;
mod creator;
mod direct;
mod error;
mod lease;
mod plain;
#[doc(hidden)] // For the command line.
pub mod race;
mod reread;
mod series;
mod socket;
pub mod sysv;
#[cfg(feature = "tls")]
mod tls;
mod token;

use std::fmt;
use std::time::Duration;

pub use address::{Address, AddressError, COUNTER_PORT, SEMAPHORE_PORT};
pub use direct::Direct;
pub use error::{ConnectError, Disconnect, Error, ErrorKind, Lost, TlsFailure};
pub use lease::{
    Acquire, AcquireAll, Admission, BootClock, Builder, Claim, Client, Clock, Counter, Flight, HandedOver,
    Moment, Permit, Semaphore, Sleep, Tcp, Transport,
};
pub use plain::{PlainClient, PlainPermit};
pub use series::Series;
#[cfg(feature = "tls")]
pub use tls::{FileError, Tls, TlsFiles, TlsFilesError, TlsStream};

// The types that the methods of the client take or return.
#[doc(hidden)] // For the command line.
pub use signalbox_model::is_unsafe;
pub use signalbox_model::{
    AddressRange, Cancellation, Changed, Declaration, DeclaredEntry, DeclaredState, Event, EventKind,
    Generation, GraceLeft, GrantId, GrantState, HeldEntry, Idle, IfExists, Inspected, Limit, ListEntry,
    Milliseconds, Namespace, Operation, ReachedLimit, Removal, Resizing, Revocation, Scope, ServiceChange,
    SessionEntry, SessionId, SessionKey, SessionKind, Status, TokenRefusal, TtlLeft, VerifiedGrant,
};
pub use signalbox_protocol::{
    BodyError, ClaimsError, DeclarationError, DecodeError, DumpEntry, Features, HELD_SESSIONS_MAX,
    HelloAnswer, NAME_BYTES_MAX, Shares, Statistic, Wait,
};
pub use token::Token;

use signalbox_protocol::ResponseFrame;

/// The time limit of [`PlainClient::connect`].
///
/// ```
/// assert_eq!(signalbox_client::CONNECT_TIMEOUT.as_secs(), 5);
/// ```
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A number of resources of a counter or semaphore.
///
/// ```
/// use signalbox_client::Resources;
///
/// assert_eq!(Resources(7).to_string(), "7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resources(pub u32);

/// The maximum of a counter for one Acquire, or the capacity of a semaphore that Acquire creates (`counter.md` and
/// `semaphore.md`, "Acquire").
///
/// ```
/// use signalbox_client::Maximum;
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

/// Returns the name, or [`ErrorKind::NameLength`] if it is empty or longer than [`NAME_BYTES_MAX`] bytes.
#[doc(hidden)] // For the command line.
pub fn checked(name: &[u8]) -> Result<&[u8], Error> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(name),
        bytes => Err(ErrorKind::NameLength { bytes }.into()),
    }
}

/// Returns the response if its status is success, or the error.
fn success(frame: ResponseFrame) -> Result<ResponseFrame, Error> {
    match Status::from_code(frame.status) {
        Some(Status::NoError) => Ok(frame),
        Some(Status::LimitReached) => Err(ErrorKind::LimitReached { limit: frame.reached_limit() }.into()),
        Some(status @ Status::NotPermitted) => {
            Err(frame.token_refusal().map_or(ErrorKind::Status(status), ErrorKind::Token).into())
        }
        Some(Status::MaximumTooSmall) => {
            Err(ErrorKind::MaximumTooSmall { capacity: frame.capacity() }.into())
        }
        Some(status) => Err(ErrorKind::Status(status).into()),
        None => {
            let message = String::from_utf8_lossy(&frame.body).into_owned();
            Err(ErrorKind::UnknownStatus { code: frame.status, message }.into())
        }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
