//! The errors of the client. Each message says what was requested, what the state is, and what to do about it.
//!
//! All errors can be cloned, because the end of one connection is reported to all callers that wait on it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::race::Reason;
use signalbox_model::sysv::Errno;
use signalbox_model::{Limit, Namespace, ReachedLimit, Status, Target, TokenRefusal};
use signalbox_protocol::{BodyError, ClaimsError, DeclarationError, DecodeError, NAME_BYTES_MAX};

/// Why a request failed, and what was requested.
///
/// [`Error::kind`] returns the reason; [`Error::status`], [`Error::errno`] and [`Error::lost`] are short forms of it.
/// The text of the error begins with what was requested.
///
/// ```no_run
/// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
/// use signalbox_client::{ErrorKind, Status};
///
/// match client.counter("tenant/7").maximum(8).try_acquire().await {
///     Ok(permit) => permit.release().await?,
///     Err(error) => match error.kind() {
///         ErrorKind::Status(Status::ResourceNotAvailable) => println!("busy"),
///         ErrorKind::Unreachable { .. } => println!("no server"),
///         _ => return Err(error),
///     },
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    /// What was requested, such as `acquire 1 of semaphore "gpu"`; `None`: a request without a name, such as
    /// connecting.
    requested: Option<Arc<str>>,
}

impl Error {
    /// Returns why the request failed.
    ///
    #[doc = example!(
        "error: Error",
        "let is_temporary = matches!(error.kind(), ErrorKind::Unreachable { .. } | ErrorKind::ConnectionLost(_));",
    )]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns the status with which the server refused the request; `None` if it did not refuse it, or if this client
    /// does not know the status.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::Status;
    ///
    /// match client.counter("tenant/7").maximum(8).try_acquire().await {
    ///     Err(error) if error.status() == Some(Status::ResourceNotAvailable) => println!("busy"),
    ///     result => drop(result?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn status(&self) -> Option<Status> {
        match self.kind {
            ErrorKind::Status(status) => Some(status),
            ErrorKind::LimitReached { .. } => Some(Status::LimitReached),
            ErrorKind::Token(_) => Some(Status::NotPermitted),
            ErrorKind::MaximumTooSmall { .. } => Some(Status::MaximumTooSmall),
            _ => None,
        }
    }

    /// Returns the error of a System V call; `None` if the failure has another reason.
    ///
    /// ```no_run
    /// # async fn example(process: signalbox_client::sysv::Process) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::sysv::Errno;
    ///
    /// match process.find(0x2a).await {
    ///     Err(error) if error.errno() == Some(Errno::NoEnt) => println!("no such set"),
    ///     result => drop(result?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn errno(&self) -> Option<Errno> {
        match self.kind {
            ErrorKind::Errno(errno) => Some(errno),
            _ => None,
        }
    }

    /// Returns why the permit was lost; `None` if the failure has another reason.
    ///
    #[doc = example!(
        "permit: Permit",
        "let released = permit.release().await;",
        "let was_revoked = released.is_err_and(|error| error.lost() == Some(Lost::Revoked));",
    )]
    pub fn lost(&self) -> Option<Lost> {
        match self.kind {
            ErrorKind::Lost(lost) => Some(lost),
            _ => None,
        }
    }

    /// Returns whether the request was refused: by a server or by the client itself, whose `TimedOut` counts as a
    /// refusal. Other errors mean that no request was sent, or that
    /// no usable answer was received.
    ///
    /// ```
    /// use signalbox_client::{Error, ErrorKind, Status};
    ///
    /// assert!(Error::from(ErrorKind::Status(Status::QueueFull)).is_refusal());
    /// assert!(!Error::from(ErrorKind::NoCapacity).is_refusal());
    /// ```
    pub fn is_refusal(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Status(_)
                | ErrorKind::LimitReached { .. }
                | ErrorKind::Token(_)
                | ErrorKind::MaximumTooSmall { .. }
                | ErrorKind::UnknownStatus { .. }
                | ErrorKind::Errno(_)
        )
    }

    /// Adds what was requested to the error.
    pub(super) fn with_request(self, requested: impl Into<Arc<str>>) -> Self {
        Self { requested: Some(requested.into()), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.requested {
            Some(requested) => write!(f, "cannot {requested}: {}", self.kind),
            None => self.kind.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.kind)
    }
}

impl From<Disconnect> for ErrorKind {
    /// If TLS fails, the connection was never open: the server has executed nothing.
    fn from(disconnect: Disconnect) -> Self {
        match disconnect {
            Disconnect::Tls(error) => Self::Connect(error),
            Disconnect::Forked => Self::Forked,
            disconnect => Self::ConnectionLost(disconnect),
        }
    }
}

impl From<Errno> for ErrorKind {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl<T: Into<ErrorKind>> From<T> for Error {
    fn from(kind: T) -> Self {
        Self { kind: kind.into(), requested: None }
    }
}

/// Why a request failed. The text does not name what was requested; that of [`Error`](struct@Error) does.
///
/// ```no_run
/// # fn example(error: signalbox_client::Error) {
/// use signalbox_client::{ErrorKind, Status};
///
/// match error.kind() {
///     ErrorKind::Status(Status::TimedOut) => println!("try again"),
///     kind => println!("{kind}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server refused the request (`docs/protocol.md`, "Statuses"). The client itself reports `TimedOut` if the timeout
    /// of an acquire ends during a disconnect.
    #[error("{}", .0.advice())]
    Status(Status),
    /// The server refused the request with the status `Limit reached`.
    #[error("{}", limit_advice(*.limit))]
    LimitReached {
        /// The limit; `None` if the server does not name it.
        limit: Option<ReachedLimit>,
    },
    /// The server does not accept the token: the status `Not permitted`.
    #[error("the client may not do this: {0}; {advice}", advice = .0.advice())]
    Token(TokenRefusal),
    /// The name is a declared semaphore with a larger capacity than the maximum that the request gives: the status `Maximum
    /// too small`.
    #[error("{}", too_small(*.capacity))]
    MaximumTooSmall {
        /// The capacity; `None` if the server does not name it.
        capacity: Option<u32>,
    },
    /// The server refused the request with a status that this client does not know.
    #[error(
        "the server refused the request with the unknown status {code:#04x} ({message:?}); update the client to the \
        version of the server"
    )]
    UnknownStatus {
        /// The status byte of the response.
        code: u8,
        /// The text of the response.
        message: String,
    },
    /// A call on a System V semaphore set failed, with this error of `semget`, `semop` or `semctl`.
    #[error("{} ({})", errno_advice(*.0), .0)]
    Errno(Errno),
    /// The connection ended before the answer was received. The server may have executed the request. What the
    /// connection held is released.
    #[error("{}", lost_connection(.0))]
    ConnectionLost(#[source] Disconnect),
    /// This process is a fork of the one that has made the client. No request was sent.
    #[error(
        "this process is a fork of the one that has made the client, and cannot use it; make a client after the fork"
    )]
    Forked,
    /// The body of the response does not have the format of the request's operation.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// No connection could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No server was reachable within [`Builder::unreachable_after`]. Nothing is held.
    ///
    /// [`Builder::unreachable_after`]: super::Builder::unreachable_after
    #[error(
        "no server was reachable for {} s, nothing was acquired; check the servers and the network (last attempt: \
        {last})", seconds(*.within)
    )]
    Unreachable {
        /// The time for which the client tried.
        within: Duration,
        /// The error of the last attempt.
        last: Arc<Error>,
    },
    /// No server has answered a release in time. The client repeats it until it is answered or the lease ends.
    #[error(
        "no server has answered within {} s; the client keeps trying, and the resources are released when the lease ends at \
        the latest", seconds(*.within)
    )]
    Unanswered {
        /// The time for which the caller waited.
        within: Duration,
    },
    /// The permit is already lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The claims break a rule of the protocol. No request was sent.
    #[error(transparent)]
    Claims(#[from] ClaimsError),
    /// A capacity or maximum of 0 was requested. No request was sent.
    #[error("the capacity or maximum is 0; give 1 or more, or none for a limit that is declared")]
    NoCapacity,
    /// The declarations break a rule of the protocol. No request was sent.
    #[error(transparent)]
    Declarations(#[from] DeclarationError),
    /// The name is empty or too long. No request was sent.
    #[error("the name has {bytes} bytes; use a name of 1 to {NAME_BYTES_MAX} bytes")]
    NameLength {
        /// The length of the name in bytes.
        bytes: usize,
    },
}

/// Why a permit was lost.
///
/// ```no_run
/// # async fn example(permit: signalbox_client::Permit) {
/// use signalbox_client::Lost;
///
/// match permit.lost().await {
///     Lost::Revoked => println!("an administrator revoked it"),
///     other => println!("{other}"),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Lost {
    /// The session no longer exists: its lease expired, or a server without a data directory was restarted.
    #[error("the lease expired, and the resources may be granted to others; stop the work")]
    Expired,
    /// An administrator revoked the permit or its session.
    #[error("an administrator revoked the permit; stop the work")]
    Revoked,
    /// No server was reachable until the end of the lease.
    #[error(
        "the lease could not be renewed because no server was reachable, and the resources may be granted to others; \
        stop the work"
    )]
    Unreachable,
    /// The lease could not be renewed: a server is reachable, but refuses this client or is not trusted. The log
    /// (`tracing`) has the reason.
    #[error(
        "the lease could not be renewed because the server refused this client or is not trusted (the log has the reason), \
        and the resources may be granted to others; stop the work"
    )]
    Refused,
    /// Another client with the key of the session attached to it; or this client handed the session over
    /// with another permit ([`Permit::hand_over`](super::Permit::hand_over)).
    #[error("another client took over the session; stop the work")]
    TakenOver,
    /// The client was closed, or the runtime or thread that renews the lease has ended.
    #[error("the client was closed or its runtime was shut down, so the lease is not renewed; stop the work")]
    Stopped,
    /// This process is a fork. The permit belongs to the process that acquired it.
    #[error(
        "this process is a fork of the one that holds the permit; stop the work here, and acquire with a client that was made \
        after the fork"
    )]
    Forked,
}

/// Why a connection ended.
///
/// ```no_run
/// # async fn example(client: signalbox_client::PlainClient) {
/// use signalbox_client::Disconnect;
///
/// if let Disconnect::ClosedByServer = client.closed().await {
///     println!("the server was stopped or restarted");
/// }
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Disconnect {
    /// The server closed the connection.
    #[error("the server closed it")]
    ClosedByServer,
    /// The operating system reported a failure, for example that the server's host does not answer.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// The server sent bytes that are not a response.
    #[error("{0}")]
    Protocol(Arc<DecodeError>),
    /// TLS failed, such as when the server refused the certificate of this client.
    #[error("{0}")]
    Tls(ConnectError),
    /// The runtime of the connection was shut down.
    #[error("the program's runtime was shut down")]
    Stopped,
    /// This process is a fork of the one that made the connection.
    #[error("this process is a fork of the one that has made the client")]
    Forked,
}

impl From<io::Error> for Disconnect {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|error| error.downcast_ref::<ConnectError>()) {
            Some(error) => Self::Tls(error.clone()),
            None => Self::Io(Arc::new(error)),
        }
    }
}

impl From<DecodeError> for Disconnect {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Io(error) => error.into(),
            other => Self::Protocol(Arc::new(other)),
        }
    }
}

/// Why a connection could not be opened.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox_client::{ConnectError, PlainClient};
///
/// let address = "lock.example.org".parse()?;
/// if let Err(ConnectError::Resolve { host, .. }) = PlainClient::connect(&address).await {
///     println!("check the spelling of {host}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host name could not be resolved.
    #[error("cannot resolve the host {host:?} ({source}); check the name of the server")]
    Resolve {
        /// The host, as it was given.
        host: String,
        /// The error of the resolver.
        source: Arc<io::Error>,
    },
    /// The connection was refused, or could not be opened for another reason.
    #[error("cannot connect to {address} ({source}); check the address, and that the server is running")]
    Refused {
        /// The address that was tried; the last one that failed if the host has several addresses.
        address: SocketAddr,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The thread that renews leases could not be started.
    #[error("cannot start the thread that renews leases ({source}); raise the limits of this process")]
    Thread {
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The server did not answer in time.
    #[error("no answer from {address:?} within {} s; check the address and the network", seconds(*.limit))]
    TimedOut {
        /// The address, as it was given.
        address: String,
        /// The time limit.
        limit: Duration,
    },
    /// The server is on another machine, and what is sent to it is not encrypted, so the token was not sent.
    #[error(
        "the token is not sent to {address} without TLS, where others may read it; use TLS (--tls), or allow it \
         (--token-over-plain, Token::over_plain)"
    )]
    TokenInClear {
        /// The address of the server.
        address: SocketAddr,
    },
    /// The server was reached, but TLS failed.
    #[error("no connection to {address} over TLS: {failure}")]
    Tls {
        /// The address, as it was given.
        address: String,
        /// The reason.
        failure: TlsFailure,
    },
}

impl Reason for ConnectError {
    fn is_of_server(&self) -> bool {
        match self {
            Self::Tls { failure, .. } => failure.is_final(),
            Self::TokenInClear { .. } => true,
            Self::Resolve { .. } | Self::Refused { .. } | Self::Thread { .. } | Self::TimedOut { .. } => {
                false
            }
        }
    }
}

/// A server that is shutting down counts as unreachable.
impl Reason for Error {
    fn is_of_server(&self) -> bool {
        match self.kind() {
            ErrorKind::Connect(error) => error.is_of_server(),
            _ => self.is_refusal() && self.status() != Some(Status::ShuttingDown),
        }
    }
}

/// Why TLS failed.
///
/// ```no_run
/// # fn example(error: signalbox_client::ConnectError) {
/// use signalbox_client::{ConnectError, TlsFailure};
///
/// if let ConnectError::Tls { failure: TlsFailure::NotTrusted(_), .. } = error {
///     println!("check the file with the certificates of authorities");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TlsFailure {
    /// The server answered without TLS.
    #[error("the server does not use TLS on this port; connect without TLS, or configure it there")]
    NotTls,
    /// The server closed the connection during the handshake.
    #[error(
        "the server closed the connection during the handshake; check that it uses TLS, and its log and its limit of \
         connections"
    )]
    Closed,
    /// The certificate of the server is unusable, or was not signed by an authority that the client trusts.
    #[error(
        "the certificate of the server is not trusted ({0}); check that the server is the right one, and that the file \
         with the certificates of authorities (on the command line, --ca) has the one that signed it"
    )]
    NotTrusted(String),
    /// The certificate of the server has expired.
    #[error(
        "the certificate of the server has expired; renew it there (in a cluster, on the node that leads), and check the clock of \
         this machine"
    )]
    Expired,
    /// The certificate of the server is not valid yet.
    #[error("the certificate of the server is not valid yet; check the clocks of both machines")]
    NotValidYet,
    /// The certificate of the server is for other hosts.
    #[error(
        "the certificate of the server does not name this host; connect to a name or an IP address that it has as a \
         subject alternative name"
    )]
    WrongName,
    /// The server requires a certificate of the client.
    #[error(
        "the server requires a certificate of the client; give one (on the command line, --cert and --cert-key)"
    )]
    CertificateRequired,
    /// The server refused the certificate of the client.
    #[error(
        "the server refused the certificate of the client ({0}); use one that is valid and signed by an authority that \
         the server trusts"
    )]
    CertificateRefused(String),
    /// Another failure.
    #[error("{0}")]
    Other(String),
}

impl TlsFailure {
    /// Returns whether another attempt would fail too, because the certificates or the configuration cause the failure.
    /// The other failures may be faults of the network, or come from a server that is being stopped.
    fn is_final(&self) -> bool {
        !matches!(self, Self::Closed | Self::Other(_))
    }
}

/// Returns a time in seconds, rounded to milliseconds: a measured time has more digits than a reader needs.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Returns the state and the advice for a connection that was lost.
fn lost_connection(disconnect: &Disconnect) -> String {
    match disconnect {
        Disconnect::Protocol(error) if matches!(**error, DecodeError::Http) => error.to_string(),
        _ => format!(
            "the connection was lost ({disconnect}); connect again and check whether the request was executed"
        ),
    }
}

/// Returns the state and the advice for a request whose maximum is below the capacity of the declared semaphore.
fn too_small(capacity: Option<u32>) -> String {
    let Some(capacity) = capacity else { return Status::MaximumTooSmall.advice().to_owned() };
    format!(
        "the name is a declared semaphore with the capacity {capacity}, more than the requested maximum; omit the maximum, or \
         resize the semaphore"
    )
}

/// Returns the state and the advice for a limit that is reached. `None`: the server did not say which.
fn limit_advice(reached: Option<ReachedLimit>) -> String {
    let Some(ReachedLimit { limit, max, is_share }) = reached else {
        return "a limit of sessions, requests or watches is reached; close or finish some first".to_owned();
    };
    let (state, what_to_do) = match limit {
        Limit::Sessions => ("the server has no room for another session", "close a session"),
        Limit::Grants => {
            ("the session has no room for another grant or waiting request", "release a grant of it")
        }
        Limit::Waiters => ("no further request may wait for this name", "try again later"),
        Limit::Watches => ("the server has no room for another watch", "end a watch"),
        Limit::Memory => ("the server has no memory left for further requests", "try again later"),
        Limit::Exports => {
            return format!("{max} exports are read at the moment; try again later");
        }
        // No key of the configuration changes this limit: the client has to be corrected.
        Limit::Requests => {
            return format!(
                "the request is more than {max} above the oldest unanswered request of its session; wait for the \
                responses to earlier requests"
            );
        }
    };
    if is_share {
        return format!(
            "this client has used up its share of what the server has room for ({key} = {max} for each client); {what_to_do}, or \
             raise client_share or {key} in the server's configuration",
            key = limit.key()
        );
    }
    format!(
        "{state} ({key} = {max}); {what_to_do}, or raise {key} in the server's configuration",
        key = limit.key()
    )
}

/// Returns the state or the advice for a System V call that failed.
fn errno_advice(errno: Errno) -> &'static str {
    match errno {
        Errno::Perm => "only its owner, its creator and user 0 may change or remove it",
        Errno::NoEnt => "there is no such set; check the key, or create the set",
        Errno::Intr => "the call was canceled before it had an effect",
        Errno::Io => "the set is durable, and the server cannot store the change; see the server's log",
        Errno::TooBig => "the call has too many operations; a call has 500 at most",
        Errno::Again => "the call would have to wait, or has waited as long as it may; try again later",
        Errno::NoMem => "a limit of the server is reached; try again later",
        Errno::Access => "the mode of the set does not permit it; call as its owner, or as user 0",
        Errno::Exist => "a set has this key already; find it, or remove it first",
        Errno::Inval => {
            "the set does not exist, or an argument is outside its range; list the sets, and check the arguments"
        }
        Errno::FBig => "the set has no semaphore with such a number; use a lower one",
        Errno::NoSpc => {
            "the server's limit of sets or semaphores is reached; remove sets, or raise sysv.max_sets or \
             sysv.max_semaphores in its configuration"
        }
        Errno::Range => "a value would leave the range of 0 to 32767; change it by less",
        Errno::IdRm => "the set was removed while the call waited; create it again",
    }
}

/// Describes a request about one name, for an error.
pub(super) fn about(operation: &str, namespace: Namespace, name: &[u8]) -> String {
    format!("{operation} {}", Target::Name(namespace, name))
}

/// Makes a call, and adds the request to its error.
pub(super) async fn requesting<T>(
    requested: impl FnOnce() -> String,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    call.await.map_err(|error| error.with_request(requested()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_time_has_three_decimals_at_most() {
        let within = Duration::from_nanos(30_012_128_148);
        let last = ConnectError::TimedOut { address: "a".to_owned(), limit: within };
        let error = ErrorKind::Unreachable { within, last: Arc::new(last.into()) }.to_string();
        assert_eq!(error.matches(" 30.012 s").count(), 2, "{error}");
    }
}
