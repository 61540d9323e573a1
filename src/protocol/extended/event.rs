//! What the server sends unasked: the events of a Watch, and notices.

use bytes::{BufMut, Bytes, BytesMut};

use super::{GrantId, Milliseconds, Namespace, length_of};
use crate::protocol::fields::Fields;

/// Something that happened to a name ("Watch").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<N> {
    /// The event's place among those of its Watch, from 1 and without gaps.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
    /// The kind of the name.
    pub namespace: Namespace,
    /// The grant that it happened to; `None`: resources taken by plain Acquires, or nobody's.
    pub grant: Option<GrantId>,
    /// The number of the session that it happened to; `None`: nobody's.
    pub session: Option<u64>,
    /// How many resources it was about; of [`EventKind::Missed`]: how many events.
    pub resources: u32,
    /// Resources of the name in use since.
    pub in_use: u32,
    /// Requests that wait for the name since.
    pub waiting: u32,
    /// The name's bytes; none for events that are about no name.
    pub name: N,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A name as it was when the Watch began.
    Present,
    /// Every name that existed was reported; what comes now happens now. It has no name.
    Live,
    /// The reader was too slow, and events were dropped here. It has no name.
    Missed,
    /// Resources were granted or taken.
    Granted,
    /// Resources were given back.
    Released,
    /// A request started to wait.
    Queued,
    /// A request stopped waiting without a grant: it timed out, was canceled or refused.
    Left,
    /// The lease of the session ended, and with it what it held.
    Expired,
    /// An administrator took away what was held.
    Revoked,
    /// The capacity of the semaphore changed.
    Resized,
    /// The name does not exist any more.
    Removed,
    /// A kind that this program does not know, with its code; to be ignored.
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
            other => Self::Other(other),
        }
    }

    /// The byte that stands for the kind on the wire.
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
            Self::Other(code) => code,
        }
    }
}

impl Event<&[u8]> {
    pub(super) fn compose(&self, out: &mut BytesMut) {
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

/// What the server has to tell a client that said Hello ("Notices").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A grant of the connection's session is taken away.
    GrantRevoked {
        /// Which one.
        grant: GrantId,
        /// How long it is still held from now.
        grace: Milliseconds,
    },
    /// The connection's session is taken away, with all that it holds.
    SessionRevoked {
        /// Its number.
        session: u64,
        /// How long it still lasts from now.
        grace: Milliseconds,
    },
    /// Another connection attached to the session; this one has only its own session left.
    AttachedElsewhere {
        /// The number of the session that is gone from here.
        session: u64,
    },
    /// The server is being stopped.
    ShuttingDown {
        /// How long it still answers from now.
        grace: Milliseconds,
    },
}

impl Notice {
    pub(super) fn compose(&self, out: &mut BytesMut) {
        let (kind, grace, number) = match *self {
            Self::GrantRevoked { grant, grace } => (1, grace.0, grant.0),
            Self::SessionRevoked { session, grace } => (2, grace.0, session),
            Self::AttachedElsewhere { session } => (3, 0, session),
            Self::ShuttingDown { grace } => (4, grace.0, 0),
        };
        out.put_slice(&[kind, 0, 0, 0]);
        out.put_u32(grace);
        out.put_u64(number);
    }

    /// `Some(None)` where the body is whole and the kind not known.
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Option<Self>> {
        let [kind, _, _, _] = fields.array()?;
        let grace = Milliseconds(fields.u32()?);
        let number = fields.u64()?;
        Some(match kind {
            1 => Some(Self::GrantRevoked { grant: GrantId(number), grace }),
            2 => Some(Self::SessionRevoked { session: number, grace }),
            3 => Some(Self::AttachedElsewhere { session: number }),
            4 => Some(Self::ShuttingDown { grace }),
            _ => None,
        })
    }
}
