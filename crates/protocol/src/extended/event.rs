//! What the server sends without a request: the events of a Watch, and notices.

use bytes::{BufMut, Bytes};

use super::{GrantId, Milliseconds, Namespace, length_of};
use crate::Opaque;
use crate::fields::Fields;

/// An event of a name (`docs/protocol.md`, "Watch").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<N> {
    /// The number of the event within its Watch, from 1 and without gaps.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
    /// The kind of the name.
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

/// The kind of an event (`docs/protocol.md`, "Watch").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The state of a name when the Watch began.
    Present,
    /// All existing names were reported; the following events are changes. Without a name.
    Live,
    /// The reader was too slow, and events were dropped here. Without a name.
    Missed,
    /// Resources were granted or acquired.
    Granted,
    /// Resources were released.
    Released,
    /// A request joined the queue.
    Queued,
    /// A request left the queue without a grant: it timed out, was canceled or refused.
    Left,
    /// The lease of the session expired, which released what it held.
    Expired,
    /// An administrator revoked the grant.
    Revoked,
    /// The capacity of the semaphore changed.
    Resized,
    /// The name was removed.
    Removed,
    /// The semaphore was paused.
    Paused,
    /// The semaphore is not paused any more.
    Resumed,
    /// A slot of the semaphore was taken out of service.
    SlotOut,
    /// A slot of the semaphore was put back into service.
    SlotIn,
    /// An unknown kind, with its code. Ignore it.
    Other(u8),
}

impl EventKind {
    /// The kind with this code.
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Present,
            1 => Self::Live,
            2 => Self::Missed,
            3 => Self::Granted,
            4 => Self::Released,
            5 => Self::Queued,
            6 => Self::Left,
            7 => Self::Expired,
            8 => Self::Revoked,
            9 => Self::Resized,
            10 => Self::Removed,
            11 => Self::Paused,
            12 => Self::Resumed,
            13 => Self::SlotOut,
            14 => Self::SlotIn,
            other => Self::Other(other),
        }
    }

    /// The code of the kind on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Present => 0,
            Self::Live => 1,
            Self::Missed => 2,
            Self::Granted => 3,
            Self::Released => 4,
            Self::Queued => 5,
            Self::Left => 6,
            Self::Expired => 7,
            Self::Revoked => 8,
            Self::Resized => 9,
            Self::Removed => 10,
            Self::Paused => 11,
            Self::Resumed => 12,
            Self::SlotOut => 13,
            Self::SlotIn => 14,
            Self::Other(code) => code,
        }
    }
}

impl Event<&[u8]> {
    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        out.put_u64(self.number);
        out.put_u8(self.kind.code());
        out.put_u8(self.namespace.code());
        out.put_u16(length_of(self.name));
        out.put_u64(GrantId::to_wire(self.grant));
        out.put_u64(self.session.unwrap_or(0));
        out.put_u32(self.resources);
        out.put_u32(self.in_use);
        out.put_u32(self.waiting);
        out.put_slice(self.name);
    }
}

impl Event<Bytes> {
    pub(super) fn read(body: &Bytes) -> Option<Self> {
        let mut fields = Fields::new(body);
        let number = fields.u64()?;
        let kind = EventKind::from_code(fields.u8()?);
        let namespace = Namespace::from_code(fields.u8()?)?;
        let name_bytes = fields.length()?;
        Some(Self {
            number,
            kind,
            namespace,
            grant: GrantId::from_wire(fields.u64()?),
            session: Some(fields.u64()?).filter(|number| *number != 0),
            resources: fields.u32()?,
            in_use: fields.u32()?,
            waiting: fields.u32()?,
            name: body.slice_ref(fields.bytes(name_bytes)?),
        })
    }
}

/// A notice to a client that sent Hello (`docs/protocol.md`, "Notices").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A grant of the attached session is being revoked.
    GrantRevoked {
        /// The grant.
        grant: GrantId,
        /// When it is taken away.
        end: End,
    },
    /// The attached session is being revoked, with all that it holds.
    SessionRevoked {
        /// The number of the session.
        session: u64,
        /// When it is taken away.
        end: End,
    },
    /// Another connection attached the session; this connection has only its connection session left.
    AttachedElsewhere {
        /// The number of the session that was detached.
        session: u64,
    },
    /// The server is shutting down.
    ShuttingDown,
    /// Another node of the cluster is going to lead. [`ResponseFrame::moved`](crate::ResponseFrame::moved) has
    /// where clients reach it.
    Moved {
        /// The epoch that ends.
        epoch: u32,
    },
}

/// When a grant or a session ends that is being revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// A request of the same connection.
    pub request: Opaque,
    /// So long after the server received the request.
    pub after: Milliseconds,
}

impl Notice {
    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        let (kind, number, end) = match *self {
            Self::GrantRevoked { grant, end } => (1, grant.0, Some(end)),
            Self::SessionRevoked { session, end } => (2, session, Some(end)),
            Self::AttachedElsewhere { session } => (3, session, None),
            Self::ShuttingDown => (4, 0, None),
            Self::Moved { epoch } => (5, epoch.into(), None),
        };
        out.put_slice(&[kind, 0, 0, 0]);
        out.put_u64(number);
        if let Some(End { request, after }) = end {
            out.put_slice(&request.0);
            out.put_u32(after.0);
        }
    }

    /// Decodes a notice; `Some(None)` if the kind is unknown, `None` if the body is malformed.
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Option<Self>> {
        let [kind, _, _, _] = fields.array()?;
        let number = fields.u64()?;
        let mut end = || Some(End { request: Opaque(fields.array()?), after: Milliseconds(fields.u32()?) });
        Some(match kind {
            1 => Some(Self::GrantRevoked { grant: GrantId(number), end: end()? }),
            2 => Some(Self::SessionRevoked { session: number, end: end()? }),
            3 => Some(Self::AttachedElsewhere { session: number }),
            4 => Some(Self::ShuttingDown),
            5 => Some(Self::Moved { epoch: u32::try_from(number).ok()? }),
            _ => None,
        })
    }
}
