//! Refusals of requests: one table of codes, texts and advice, and the limits that a refusal names.

use std::fmt;

use crate::codes;

/// Defines the statuses: for each, its code on the wire, its text in responses, its code in the HTTP API, and the
/// advice for people.
macro_rules! statuses {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $message:literal, $name:literal, $advice:literal;)*) => {
        codes! {
            /// The result of a request (`counter.md`, "Response status"; the statuses of this server alone:
            /// `docs/protocol.md`, "Statuses").
            pub enum Status: u8 {
                $($(#[$doc])* $variant = $code,)*
            }
        }

        impl Status {
            /// The body of an error response with this status: byte for byte the text of yrmcds, if yrmcds has the
            /// status. Empty for [`Self::NoError`].
            pub fn message(self) -> &'static str {
                match self {
                    $(Self::$variant => $message,)*
                }
            }

            /// The code of an error with this status in the HTTP API.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The state and the advice: the end of a message that begins with the request.
            pub fn advice(self) -> &'static str {
                match self {
                    $(Self::$variant => $advice,)*
                }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    NoError = 0x00, "", "no_error", "the server reports success";
    /// The name does not exist.
    NotFound = 0x01, "Not found", "not_found",
        "the name does not exist: it is not declared, and no client uses it; declare it, or request it with a maximum";
    /// The request breaks a rule of its operation and can never succeed.
    InvalidArguments = 0x04, "Invalid arguments", "bad_request",
        "the server refused the arguments; request at least 1 resource and at most the capacity or maximum";
    /// The resources are in use, or the name has fewer than the request asks for. The same request may succeed later.
    ResourceNotAvailable = 0x21, "Resource not available", "not_available",
        "the requested resources are in use; try again later, or wait for them in the queue";
    /// The connection or session holds fewer resources than the request releases, or does not hold the grant.
    NotAcquired = 0x22, "Not acquired", "no_such_grant",
        "more resources were to be released than are held; release at most what was acquired";
    /// The request waited until its timeout and was not granted.
    TimedOut = 0x23, "Timed out", "timed_out",
        "the requested resources stayed in use until the timeout; try again, or use a longer timeout";
    /// The queue already has as many requests as the request accepts before it.
    QueueFull = 0x24, "Queue full", "queue_full",
        "the queue for the requested resources is full; try again later, or accept a longer queue";
    /// Cancel, or the end of the session, removed the request from the queue.
    Canceled = 0x25, "Canceled", "canceled",
        "the request was canceled while it waited, and nothing was acquired";
    /// An administrator revoked the grant or the session.
    Revoked = 0x26, "Revoked", "revoked", "an administrator revoked the grant or session; stop the work";
    /// The name was removed while the request waited for it.
    Removed = 0x27, "Removed", "removed",
        "an administrator removed the name; use another name, or declare it again";
    /// No leased session with this number and key exists, or the connection is not attached to one.
    NoSuchSession = 0x28, "No such session", "no_such_session",
        "the session does not exist, or has ended; open another session";
    /// The semaphore to be declared exists already.
    AlreadyExists = 0x29, "Already exists", "already_exists",
        "the semaphore is declared already; keep it, or set it to the new declaration";
    /// The semaphore was changed since the generation that the request expects.
    GenerationDiffers = 0x2a, "Generation differs", "generation_differs",
        "the semaphore was changed since its generation was read; read it again, then repeat the change";
    /// The semaphore is held, and the request only removes an idle one.
    InUse = 0x2b, "In use", "in_use",
        "the name is in use; wait until all holders have released it, revoke their grants, or choose another way of removal";
    /// The resources of the name are not numbered slots, or no slot has this number.
    NoSuchSlot = 0x2c, "No such slot", "no_such_slot",
        "the semaphore has no such slot; its capacity is smaller, or its resources are not numbered slots: list the declared \
         semaphores";
    /// The request waits at this place; its answer comes later. Only clients that ask for places get it.
    Queued = 0x2d, "Queued", "queued", "the request waits in the queue; its answer follows";
    /// The server has resolved the name to a declared semaphore with a larger capacity than the request's maximum.
    MaximumTooSmall = 0x2e, "Maximum too small", "maximum_too_small",
        "the name is a declared semaphore with a larger capacity than the requested maximum; omit the maximum, or resize the \
         semaphore";
    /// A semaphore cannot be declared while sessions hold or wait for the counter of the same name.
    CounterInUse = 0x2f, "Counter in use", "counter_in_use",
        "clients hold or wait for the counter of this name, which its declaration would divide from later clients; wait until \
         it is idle, or revoke its grants";
    /// The holder has done the work of the single flight in which the request waited.
    Done = 0x30, "Done", "done",
        "another client did the work while the request waited; use its result";
    /// The server does not know the opcode.
    UnknownCommand = 0x81, "Unknown command", "unknown_command",
        "the server does not support this operation; use a signalbox server that does";
    /// The namespace has as many names as its limit allows, or the server has no memory left for a plain request.
    OutOfMemory = 0x82, "OutOfMemory", "limit_reached",
        "the server has no memory or no room for another name; look at its memory (`memory_max`) and its limit of names \
         (`max_names`)";
    /// The server does not permit the operation to this client.
    NotPermitted = 0x83, "Not permitted", "not_permitted",
        "the server does not permit this operation to this client; use a token that has the right and is accepted, or an \
         address that is permitted";
    /// The server is shutting down and grants nothing more.
    ShuttingDown = 0x84, "Shutting down", "not_serving",
        "the server is shutting down; try again after its restart";
    /// A limit of the server is reached, such as that of sessions, waiting requests or memory ([`Limit`]).
    LimitReached = 0x85, "Limit reached", "limit_reached",
        "a limit of the server is reached; close or finish something first";
    /// The change could not be written to durable storage.
    NotStored = 0x86, "Not stored", "not_stored",
        "the server cannot write to its disk; a change of a declared semaphore may take effect when it can, so list it \
         then; repeat anything else later";
    /// The server accepts no requests without TLS from this client.
    TlsRequired = 0x87, "TLS required", "tls_required",
        "the server accepts only connections over TLS; connect with TLS (on the command line, --tls)";
    /// The stored records could not be read to their end.
    ExportFailed = 0x88, "Export failed", "export_failed",
        "the export is incomplete: the server could not read its records, or the client took them too slowly; the \
         server's log has the reason";
}

/// The reason why a request was refused. A refused request has changed nothing, except that a change may take effect in
/// spite of [`Self::NotStored`] (`docs/semantics.md`, "What a restart keeps").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such name.
    NotFound,
    /// The resources are in use, or the name has fewer than the request asks for.
    NotAvailable,
    /// The session holds fewer resources than the request releases, or does not hold the grant.
    NotAcquired,
    /// The namespace has as many names as its limit allows.
    TooManyNames,
    /// The request's timeout has passed.
    TimedOut,
    /// The queue already has as many requests as the request accepts before it.
    QueueFull,
    /// The request was canceled, or its owner ended the session.
    Canceled,
    /// The grant or the session was revoked.
    Revoked,
    /// There is no such session, or the connection is no longer attached to it.
    NoSuchSession,
    /// This limit of the server is reached.
    LimitReached(ReachedLimit),
    /// The request's number is below the lowest number that its client reported as unanswered, or another request has
    /// used it.
    StaleRequest,
    /// The server is shutting down.
    ShuttingDown,
    /// The semaphore was removed, or is being removed.
    Removed,
    /// The semaphore is declared already.
    AlreadyExists,
    /// The semaphore was changed since its generation was read.
    GenerationDiffers,
    /// The semaphore is held.
    InUse,
    /// The configuration declares the semaphore, so no request may change it; or the client may not acquire the name in
    /// the namespace to which the server has resolved it.
    NotPermitted,
    /// The client has sent a token that the server does not accept.
    Token(TokenRefusal),
    /// The name is a declared semaphore with this capacity, which is above the request's maximum.
    MaximumTooSmall(u32),
    /// The semaphore cannot be declared: sessions hold or wait for the counter with its name.
    CounterInUse,
    /// A number is outside its range.
    OutOfRange,
    /// The semaphore has no slot with this number.
    NoSuchSlot,
    /// The change could not be written to durable storage.
    NotStored,
    /// The holder has released its grant with `done` while the shared request waited.
    Done,
    /// A grant that no shared request has acquired cannot be released with `done`.
    NotShared,
}

/// The text before the capacity in a response.
const CAPACITY: &str = ": capacity=";

/// The text of the response.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LimitReached(limit) => limit.fmt(f),
            Self::Token(refusal) => write!(f, "{}: {refusal}", self.status().message()),
            Self::MaximumTooSmall(capacity) => write!(f, "{}{CAPACITY}{capacity}", self.status().message()),
            _ => f.write_str(self.status().message()),
        }
    }
}

impl Refusal {
    /// Reads the capacity in the text of a response with the status [`Status::MaximumTooSmall`]; `None` if there is none.
    pub fn read_capacity(text: &str) -> Option<u32> {
        text.split_once(CAPACITY)?.1.parse().ok()
    }

    /// The status of the response.
    pub fn status(self) -> Status {
        match self {
            Self::NotFound => Status::NotFound,
            Self::NotAvailable => Status::ResourceNotAvailable,
            Self::NotAcquired => Status::NotAcquired,
            Self::TooManyNames => Status::OutOfMemory,
            Self::TimedOut => Status::TimedOut,
            Self::QueueFull => Status::QueueFull,
            Self::Canceled => Status::Canceled,
            Self::Revoked => Status::Revoked,
            Self::NoSuchSession => Status::NoSuchSession,
            Self::LimitReached(_) => Status::LimitReached,
            Self::StaleRequest | Self::OutOfRange | Self::NotShared => Status::InvalidArguments,
            Self::ShuttingDown => Status::ShuttingDown,
            Self::Removed => Status::Removed,
            Self::AlreadyExists => Status::AlreadyExists,
            Self::GenerationDiffers => Status::GenerationDiffers,
            Self::InUse => Status::InUse,
            Self::NotPermitted | Self::Token(_) => Status::NotPermitted,
            Self::MaximumTooSmall(_) => Status::MaximumTooSmall,
            Self::CounterInUse => Status::CounterInUse,
            Self::NoSuchSlot => Status::NoSuchSlot,
            Self::NotStored => Status::NotStored,
            Self::Done => Status::Done,
        }
    }
}

/// The reason why a server does not accept a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    /// The server accepts no tokens.
    NoTokens,
    /// The client may not send it without TLS.
    OverPlain,
    /// The text is not a token.
    Malformed,
    /// The server does not know it, or it was revoked.
    Unknown,
    /// Its validity has ended.
    Expired,
}

/// The sentence in the response, the log and the messages of clients.
impl fmt::Display for TokenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTokens => "the server has no tokens (access.tokens)",
            Self::OverPlain => {
                "the token is sent without TLS from another machine; use TLS, or set access.tokens_over_plain"
            }
            Self::Malformed => "the token does not have the form of one",
            Self::Unknown => "the token is unknown or was revoked",
            Self::Expired => "the token has expired",
        })
    }
}

impl TokenRefusal {
    /// The advice on what to do.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Expired => "make another one with \"signalbox token rotate\", and use that",
            _ => "use a token that \"signalbox token create\" has made",
        }
    }

    const ALL: [Self; 5] = [Self::NoTokens, Self::OverPlain, Self::Malformed, Self::Unknown, Self::Expired];

    /// Reads the text of a response with the status [`Status::NotPermitted`]; `None` if it is not about a token, or has
    /// an unknown reason.
    pub fn read(text: &str) -> Option<Self> {
        let reason = text.strip_prefix(Status::NotPermitted.message())?.strip_prefix(": ")?;
        Self::ALL.into_iter().find(|refusal| refusal.to_string() == reason)
    }
}

/// A quantity that a server limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The leased sessions of the server.
    Sessions,
    /// The grants and waiting requests of a session, and the AwaitIdle requests of a connection.
    Grants,
    /// The requests that wait for a name, and the AwaitIdle requests for it.
    Waiters,
    /// The Watches of the server.
    Watches,
    /// The exports that are read at once.
    Exports,
    /// The distance of a request id from the lowest unanswered one.
    Requests,
    /// The memory of the server, in bytes.
    Memory,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 7] = [
        Self::Sessions,
        Self::Grants,
        Self::Waiters,
        Self::Watches,
        Self::Exports,
        Self::Requests,
        Self::Memory,
    ];

    /// The key of the limit in the server's configuration. [`Self::Exports`] and [`Self::Requests`] cannot be configured.
    pub fn key(self) -> &'static str {
        match self {
            Self::Sessions => "session.max_sessions",
            Self::Grants => "session.max_grants",
            Self::Waiters => "session.max_waiters",
            Self::Watches => "session.max_watches",
            Self::Exports => "exports_max",
            Self::Requests => "requests_max",
            Self::Memory => "memory_max",
        }
    }
}

/// A limit that a request would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReachedLimit {
    /// The limit.
    pub limit: Limit,
    /// The value of the limit when it refused the request; for memory, in bytes.
    pub max: u64,
    /// Whether it is the share of this client; otherwise it is the limit of all clients together.
    pub is_share: bool,
}

/// The text after the value if it is the share of a client.
const SHARE: &str = ", the share of a client";

/// The text of the response: that of the status, the key and the value of the limit, and whether the value is a share.
/// The limit is a part of the text (`docs/protocol.md`, "Limit reached"), so that clients that do not know the limit can
/// show it too.
impl fmt::Display for ReachedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = if self.is_share { SHARE } else { "" };
        write!(f, "{}: {}={}{share}", Status::LimitReached.message(), self.limit.key(), self.max)
    }
}

impl ReachedLimit {
    /// Reads the text of a response; `None` if it names no limit, or an unknown one.
    pub fn read(text: &str) -> Option<Self> {
        let limit = text.strip_prefix(Status::LimitReached.message())?.strip_prefix(": ")?;
        let (key, rest) = limit.split_once('=')?;
        let digits = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
        // A later server may add something else after the value.
        let (max, what) = rest.split_at(digits);
        let limit = Limit::ALL.into_iter().find(|limit| limit.key() == key)?;
        Some(Self { limit, max: max.parse().ok()?, is_share: what == SHARE })
    }
}
