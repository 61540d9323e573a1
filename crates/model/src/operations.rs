//! The changes that administrators make, as data. The service ports and the HTTP API decode into an [`Operation`], the
//! client and the command line build one, and the server executes it. Its target and its description are defined here.

use std::fmt;
use std::net::SocketAddr;

use crate::text::{Quoted, about_all};
use crate::{
    AddressRange, Declaration, DeclaredState, Generation, GrantId, IfExists, Milliseconds, Namespace,
    Removal, Resizing, ServiceChange, SessionEntry, SessionId,
};

/// A change by an administrator. Each variant has a section in `docs/protocol.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Declares semaphores, all or none: at least one, with different names ("Declare").
    Declare {
        /// The effect on semaphores that are declared already.
        if_exists: IfExists,
        /// The semaphores to declare.
        declarations: Vec<Declaration<'a>>,
    },
    /// Changes the capacity of a declared semaphore ("Resize").
    Resize {
        /// The name of the semaphore.
        name: &'a [u8],
        /// The change of the capacity.
        how: Resizing,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
    },
    /// Removes a declared semaphore ("Remove").
    Remove {
        /// The name of the semaphore.
        name: &'a [u8],
        /// The effect if the semaphore is held.
        how: Removal,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
    },
    /// Takes a declared semaphore or a slot of it out of service, or puts it back ("Pause" and "SetSlot").
    ChangeService {
        /// The name of the semaphore.
        name: &'a [u8],
        /// The change.
        how: ServiceChange,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
    },
    /// Deletes a counter that is not in use ("DeleteCounter").
    DeleteCounter {
        /// The name of the counter.
        name: &'a [u8],
    },
    /// Removes waiting requests from their queues ("CancelWaiting").
    Cancel(Cancellation),
    /// Revokes what clients hold ("Revoke", "RevokeClient" and "RevokeIdentity").
    Revoke {
        /// The grant or the sessions to revoke.
        what: Revocation<'a>,
        /// The grace period, during which the holders keep what they hold.
        grace: Milliseconds,
    },
}

/// The waiting requests that an administrator cancels (`docs/protocol.md`, "CancelWaiting").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// The request that would get the grant with this id.
    Request(GrantId),
    /// All requests of this session.
    Session(SessionId),
}

/// The grant or the sessions that an administrator revokes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation<'a> {
    /// One grant.
    Grant(GrantId),
    /// A session, with all that it holds.
    Session(SessionId),
    /// The leased sessions of clients with these addresses.
    Addresses(AddressRange),
    /// The leased sessions of clients that have proven this identity, as Sessions lists it.
    Identity(&'a [u8]),
}

impl Revocation<'_> {
    /// Returns whether the revocation names this session or its client; always `false` for the revocation of a grant.
    pub fn is_about<T: AsRef<[u8]>>(&self, session: &SessionEntry<T>) -> bool {
        let address = || str::from_utf8(session.address.as_ref()).ok()?.parse::<SocketAddr>().ok();
        match self {
            Self::Grant(_) => false,
            Self::Session(id) => id.number() == session.session,
            Self::Addresses(range) => address().is_some_and(|address| range.contains(address.ip())),
            Self::Identity(identity) => session.identity.as_ref() == *identity,
        }
    }
}

/// The target of a request, on which its client needs a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// The whole server.
    Server,
    /// No particular name: a right on any name is sufficient.
    Anywhere,
    /// One name.
    Name(Namespace, &'a [u8]),
    /// The names that begin with these bytes.
    Prefix(Namespace, &'a [u8]),
    /// The System V semaphore sets.
    Sets,
}

impl<'a> Operation<'a> {
    /// The target of the operation; for a Declare of several semaphores, the first of them.
    pub fn target(&self) -> Target<'a> {
        match self {
            Self::Declare { declarations, .. } => declarations
                .first()
                .map_or(Target::Server, |first| Target::Name(Namespace::Semaphores, first.name)),
            Self::Resize { name, .. } | Self::Remove { name, .. } | Self::ChangeService { name, .. } => {
                Target::Name(Namespace::Semaphores, name)
            }
            Self::DeleteCounter { name } => Target::Name(Namespace::Counters, name),
            Self::Cancel(_) | Self::Revoke { .. } => Target::Server,
        }
    }

    /// One operation for each target: a Declare of each semaphore, or the operation itself.
    pub fn for_each_target(&self) -> Vec<Operation<'a>> {
        match self {
            Self::Declare { if_exists, declarations } => {
                let one =
                    |declaration| Self::Declare { if_exists: *if_exists, declarations: vec![declaration] };
                declarations.iter().copied().map(one).collect()
            }
            other => vec![other.clone()],
        }
    }
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server | Self::Anywhere => f.write_str("server"),
            Self::Name(namespace, name) => write!(f, "{} {}", namespace.noun(), Quoted(name)),
            Self::Prefix(namespace, prefix) => write!(f, "{} {}*", namespace.noun(), Quoted(prefix)),
            Self::Sets => f.write_str("semaphore sets"),
        }
    }
}

impl fmt::Display for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(id) => write!(f, "waiting request {id}"),
            Self::Session(session) => write!(f, "the waiting requests of session {session}"),
        }
    }
}

impl fmt::Display for Revocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grant(grant) => write!(f, "grant {grant}"),
            Self::Session(session) => write!(f, "session {session}"),
            Self::Addresses(addresses) => write!(f, "the leased sessions of {addresses}"),
            Self::Identity(identity) => write!(f, "the leased sessions of {}", Quoted(identity)),
        }
    }
}

/// The description of the operation, such as `resize semaphore "gpu" to 4`, for the log, the audit log and errors of
/// the client.
impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.target();
        match self {
            Self::Declare { if_exists, declarations } => match declarations[..] {
                [Declaration { capacity, numbered, .. }] => {
                    let slots = if numbered { " and numbered slots" } else { "" };
                    let if_exists = match if_exists {
                        IfExists::Fail => "",
                        IfExists::Keep => ", or keep it as it is",
                        IfExists::Set => ", or change it",
                    };
                    write!(f, "declare {target} with capacity {capacity}{slots}{if_exists}")
                }
                _ => {
                    let name =
                        |one: &Declaration<'_>| Target::Name(Namespace::Semaphores, one.name).to_string();
                    f.write_str(&about_all("declare", declarations.iter().map(name)))
                }
            },
            Self::Resize { how: Resizing::To(capacity), .. } => write!(f, "resize {target} to {capacity}"),
            Self::Resize { how: Resizing::GrowBy(more), .. } => write!(f, "resize {target} by +{more}"),
            Self::Resize { how: Resizing::ShrinkBy(less), .. } => write!(f, "resize {target} by -{less}"),
            Self::Remove { how: Removal::IfIdle, .. } => write!(f, "remove {target}"),
            Self::Remove { how: Removal::WithLastHolder, .. } => {
                write!(f, "remove {target} with its last holder")
            }
            Self::Remove { how: Removal::Now { grace }, .. } => {
                write!(f, "remove {target} now{}", Grace(*grace))
            }
            Self::ChangeService { how: ServiceChange::Pause, .. } => write!(f, "pause {target}"),
            Self::ChangeService { how: ServiceChange::Resume, .. } => write!(f, "resume {target}"),
            Self::ChangeService { how: ServiceChange::SlotOut(slot), .. } => {
                write!(f, "take slot {slot} of {target} out of service")
            }
            Self::ChangeService { how: ServiceChange::SlotIn(slot), .. } => {
                write!(f, "put slot {slot} of {target} back into service")
            }
            Self::DeleteCounter { .. } => write!(f, "delete {target}"),
            Self::Cancel(what) => write!(f, "cancel {what}"),
            Self::Revoke { what, grace } => write!(f, "revoke {what}{}", Grace(*grace)),
        }
    }
}

/// The text about a grace period after the description of an operation; empty if the period is 0.
struct Grace(Milliseconds);

impl fmt::Display for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            0 => Ok(()),
            ms => write!(f, " with a grace period of {} s", f64::from(ms) / 1000.0),
        }
    }
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The operation is done, and there is nothing else to report.
    Done,
    /// The states of the declared semaphores, in the order of the request.
    Declared(Vec<DeclaredState>),
    /// The number of sessions that were revoked, or of waiting requests that were canceled.
    Count(u64),
}

impl Changed {
    /// The states of the declared semaphores; none if the operation changes no declaration.
    pub fn states(&self) -> &[DeclaredState] {
        match self {
            Self::Declared(states) => states,
            Self::Done | Self::Count(_) => &[],
        }
    }
}
