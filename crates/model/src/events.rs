//! Messages that the server sends without a request: the events of a Watch, and notices.

use crate::{GrantId, Namespace};

/// An event of a name (`docs/protocol.md`, "Watch").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<N> {
    /// The kind of the event.
    pub kind: EventKind,
    /// The namespace of the name.
    pub namespace: Namespace,
    /// The grant; `None` for resources of plain Acquires, and for events without a grant.
    pub grant: Option<GrantId>,
    /// The number of the session; `None` for events without a session.
    pub session: Option<u64>,
    /// The number of resources of the event; for [`EventKind::Missed`], the number of dropped events; for
    /// [`EventKind::SlotOut`] and [`EventKind::SlotIn`], the number of the slot.
    pub resources: u32,
    /// The resources of the name that are in use after the event.
    pub in_use: u32,
    /// The number of requests that wait for the name after the event.
    pub waiting: u32,
    /// The bytes of the name; empty for events without a name.
    pub name: N,
}

impl<N: AsRef<[u8]>> Event<N> {
    /// The same event with a borrowed name.
    pub fn borrowed(&self) -> Event<&[u8]> {
        let Self { kind, namespace, grant, session, resources, in_use, waiting, .. } = *self;
        Event { kind, namespace, grant, session, resources, in_use, waiting, name: self.name.as_ref() }
    }
}

/// Defines the kinds of events, each with its code.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// The kind of an event (`docs/protocol.md`, "Watch").
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EventKind {
            $($(#[$doc])* $variant,)*
            /// An unknown kind, with its code. Ignore it.
            Other(u8),
        }

        impl EventKind {
            /// The kind with this code.
            pub fn from_code(code: u8) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    other => Self::Other(other),
                }
            }

            /// The kind in one word; `None` for an unknown one.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($name),)*
                    Self::Other(_) => None,
                }
            }

            /// The code of the kind on the wire.
            pub fn code(self) -> u8 {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(code) => code,
                }
            }
        }
    };
}

kinds! {
    /// The state of a name when the Watch began.
    Present = 0, "present";
    /// All existing names were reported; the following events are changes. Without a name.
    Live = 1, "live";
    /// The reader was too slow, and events were dropped here. Without a name.
    Missed = 2, "missed";
    /// Resources were granted or acquired.
    Granted = 3, "granted";
    /// Resources were released.
    Released = 4, "released";
    /// A request joined the queue.
    Queued = 5, "queued";
    /// A request left the queue without a grant: it timed out, was canceled or refused.
    Left = 6, "left";
    /// The lease of the session expired, which released what it held.
    Expired = 7, "expired";
    /// An administrator revoked the grant.
    Revoked = 8, "revoked";
    /// The capacity of the semaphore changed; the event's number of resources is the new capacity.
    Resized = 9, "resized";
    /// The name was removed.
    Removed = 10, "removed";
    /// The semaphore was paused.
    Paused = 11, "paused";
    /// The semaphore was resumed.
    Resumed = 12, "resumed";
    /// A slot of the semaphore was taken out of service.
    SlotOut = 13, "slot-out";
    /// A slot of the semaphore was put back into service.
    SlotIn = 14, "slot-in";
    /// The semaphore was declared; the event's number of resources is its capacity.
    Declared = 15, "declared";
}

/// A notice to a connection (`docs/protocol.md`, "Notices"). `E` is the type of the time at which a grant or a session
/// ends, and `M` that of the node that is about to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<E, M = ()> {
    /// A grant of the attached session is being revoked.
    GrantRevoked {
        /// The grant.
        grant: GrantId,
        /// When the holder loses it.
        end: E,
    },
    /// The attached session is being revoked, with all that it holds.
    SessionRevoked {
        /// The number of the session.
        session: u64,
        /// When it ends.
        end: E,
    },
    /// Another connection was attached to the session; this connection has only its own session left.
    AttachedElsewhere {
        /// The number of the session that was detached.
        session: u64,
    },
    /// The server is shutting down.
    ShuttingDown,
    /// Another node of the cluster is about to lead.
    Moved(M),
}

/// The reason for which a grant ended, in the history of grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "views", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum GrantEnd {
    /// Its client released it, or closed its session.
    Released,
    /// The connection that it belonged to ended.
    Disconnected,
    /// The lease of its session expired.
    Expired,
    /// An administrator revoked it or its session, or removed its semaphore. The reason is the same if the client
    /// released the grant within the grace period.
    Revoked,
}

impl GrantEnd {
    /// All reasons, in the order of the variants, which the history of the core stores as numbers.
    pub const ALL: [Self; 4] = [Self::Released, Self::Disconnected, Self::Expired, Self::Revoked];

    /// The reason in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Disconnected => "disconnected",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}
