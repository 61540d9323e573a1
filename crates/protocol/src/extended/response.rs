//! Responses to extended requests and their encoding (`docs/protocol.md`, "Extended operations").

use bytes::{BufMut, Bytes};

use super::entries::{
    put_declared_entry, put_event, put_held_entry, put_list_entry, put_session_entry, put_slots,
    read_declared_entry, read_event, read_held_entry, read_list_entry, read_session_entry, read_slots,
};
use super::features::Features;
use super::notice::{End, Moved, ReceivedNotice, Whereabouts, put_notice, read_notice};
use crate::header::{Header, Opaque};
use crate::layout::{Fields, Part, length_of, parts_in_order};
use crate::response::{BodyError, Response, ResponseFrame};
use signalbox_model::{
    Changed, DeclaredEntry, DeclaredState, Event, GrantId, HeldEntry, Inspected, ListEntry, Milliseconds,
    Namespace, Notice, Operation, Place, ReachedLimit, Refusal, Revocation, SessionEntry, SessionKey, Status,
    TokenRefusal, TtlLeft, VerifiedGrant,
};

/// One response to an extended request, an event or a notice (`docs/protocol.md`, the section of each operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendedResponse<'a> {
    /// A response of yrmcds' protocols: success without a body, which also ends a listing, or a failure.
    Plain(Response<'a>),
    /// A refusal with its status. The text states the limit of `Limit reached`, the capacity of `Maximum too small`,
    /// and why a token is not accepted.
    Refused(Refusal),
    /// The response to Hello.
    Hello(HelloAnswer),
    /// The response to OpenSession.
    Opened(OpenedSession),
    /// The response to AttachSession and KeepAlive: the duration of the renewed lease.
    Ttl(Milliseconds),
    /// The first response to an AcquireGrant or AcquireAll that waits, for clients that ask for it: the status `Queued`.
    Queued(Place),
    /// The response to AcquireGrant.
    Granted(Granted<&'a [u16]>),
    /// The response to AcquireAll.
    AllGranted(AllGranted<&'a [u32], &'a [&'a [u16]]>),
    /// The response to VerifyGrant.
    Verified(VerifiedGrant),
    /// The response to Inspect.
    Inspected(Inspected),
    /// One entry of the response to Holders or Waiters.
    Entry(ListEntry<&'a [u8], &'a [u16]>),
    /// One entry of the response to Sessions.
    SessionEntry(SessionEntry<&'a [u8]>),
    /// One entry of the response to Held.
    HeldEntry(HeldEntry<&'a [u8], &'a [u16]>),
    /// The response to RevokeClient, RevokeIdentity and CancelWaiting: the number of revoked sessions or canceled
    /// requests.
    Count(u64),
    /// A part of the response to Export; not empty.
    ExportPart(&'a [u8]),
    /// The response to Declare: the state of each semaphore, in the order of the request.
    Declared(&'a [DeclaredState]),
    /// The response to Resize, Pause and SetSlot.
    Resized(DeclaredState),
    /// The response to AwaitIdle: the number of resources in use.
    InUse(u32),
    /// One entry of the response to List.
    DeclaredEntry(DeclaredEntry<&'a [u8], &'a [u16]>),
    /// An event of a Watch, under the Watch's opaque. Events are numbered from 1, without gaps.
    Event(u64, Event<&'a [u8]>),
    /// A notice, under the opcode and opaque of Hello.
    Notice(Notice<End, Moved<&'a [String]>>),
    /// The response to Where.
    Where(Whereabouts<&'a [String]>),
}

impl ExtendedResponse<'_> {
    /// Appends the encoded frame to `out`, as the response to a request with this opcode and opaque.
    ///
    /// # Panics
    /// If a name, label or address is longer than 65535 bytes, there are more than 65535 capacities or slots of a name,
    /// or a semaphore's label is longer than 255 bytes.
    pub fn compose(&self, opcode: u8, opaque: Opaque, out: &mut Vec<u8>) {
        if let Self::Plain(response) = self {
            return response.compose(opcode, opaque, out);
        }
        let status = match self {
            Self::Refused(refusal) => refusal.status(),
            Self::Queued(_) => Status::Queued,
            _ => Status::NoError,
        };
        Header::response(opcode, status, opaque).compose_before(out, |out| match self {
            Self::Plain(_) => unreachable!("composed above"),
            Self::Refused(refusal) => out.put_slice(refusal.to_string().as_bytes()),
            Self::Hello(answer) => answer.compose(out),
            Self::Opened(opened) => opened.compose(out),
            Self::Ttl(ttl) => out.put_u32(ttl.0),
            Self::Queued(place) => place.compose(out),
            Self::Granted(granted) => granted.compose(out),
            Self::AllGranted(granted) => granted.compose(out),
            Self::Verified(verified) => verified.compose(out),
            Self::Inspected(inspected) => inspected.compose(out),
            Self::Entry(entry) => put_list_entry(entry, out),
            Self::SessionEntry(entry) => put_session_entry(entry, out),
            Self::HeldEntry(held) => put_held_entry(held, out),
            Self::Count(count) => out.put_u64(*count),
            Self::ExportPart(part) => out.put_slice(part),
            Self::Declared(rows) => {
                out.put_u16(length_of(rows));
                out.put_u16(0);
                rows.iter().for_each(|row| row.compose(out));
            }
            Self::Resized(state) => state.compose(out),
            Self::InUse(resources) => out.put_u32(*resources),
            Self::DeclaredEntry(entry) => put_declared_entry(entry, out),
            Self::Event(number, event) => put_event(*number, event, out),
            Self::Notice(notice) => put_notice(notice, out),
            Self::Where(whereabouts) => whereabouts.compose(out),
        });
    }
}

/// The version, features and limits of a server (`docs/protocol.md`, "Hello").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloAnswer {
    /// The server's version of the extended operations.
    pub version: u32,
    /// The features of the server.
    pub features: Features,
    /// The number of the connection session.
    pub session: u64,
    /// The longest that a request may wait.
    pub wait_max: Milliseconds,
    /// How long a request waits by default.
    pub wait_default: Milliseconds,
    /// The shortest time to live of a leased session.
    pub ttl_min: Milliseconds,
    /// The longest time to live of a leased session.
    pub ttl_max: Milliseconds,
    /// The most names of one AcquireAll.
    pub names_max: u32,
    /// The most requests of a session whose replies are cached.
    pub requests_max: u32,
    /// The namespace of plain requests to this port.
    pub port: Namespace,
    /// The shares of one client, which apply to a resource once half of it is in use.
    pub shares: Shares,
}

parts_in_order! {
    HelloAnswer {
        version, features, session, wait_max, wait_default, ttl_min, ttl_max, names_max, requests_max, port, shares
    }
    OpenedSession { session, key, ttl }
    Shares { connections, sessions, waiters, watches, memory }
}

/// The shares of one client (`docs/protocol.md`, "Shares of clients").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Connections to this port.
    pub connections: u32,
    /// Leased sessions.
    pub sessions: u32,
    /// Requests that wait.
    pub waiters: u32,
    /// Watches.
    pub watches: u32,
    /// Memory, in bytes.
    pub memory: u64,
}

/// A leased session that was opened (`docs/protocol.md`, "OpenSession").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedSession {
    /// The session's number, which is public.
    pub session: u64,
    /// The session's key. Keep it secret.
    pub key: SessionKey,
    /// How long the session lives without a renewal.
    pub ttl: Milliseconds,
}

/// The grant of one name (`docs/protocol.md`, "AcquireGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<S> {
    /// The id of the grant.
    pub grant: GrantId,
    /// The number of resources, as requested.
    pub resources: u32,
    /// The semaphore's actual capacity, or the counter's maximum as requested.
    pub capacity: u32,
    /// How long the grant is held without a renewal.
    pub ttl_left: TtlLeft,
    /// The numbers of the slots, counted from 0, ascending; empty if the resources have no numbers.
    pub slots: S,
}

impl Granted<&[u16]> {
    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u64(self.grant.0);
        out.put_u32(self.resources);
        out.put_u32(self.capacity);
        self.ttl_left.compose(out);
        out.put_u16(length_of(self.slots));
        out.put_u16(0);
        put_slots(self.slots, out);
    }
}

impl Granted<Vec<u16>> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let grant = GrantId(fields.u64()?);
        let (resources, capacity) = (fields.u32()?, fields.u32()?);
        let ttl_left = Part::read(fields)?;
        let count = fields.length()?;
        fields.u16()?;
        let slots = read_slots(count, fields)?;
        Some(Self { grant, resources, capacity, ttl_left, slots })
    }
}

/// The grant of several names (`docs/protocol.md`, "AcquireAll").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllGranted<C, S> {
    /// The id of the grant.
    pub grant: GrantId,
    /// How long the grant is held without a renewal.
    pub ttl_left: TtlLeft,
    /// [`Granted::capacity`] of each name, in the order of the request.
    pub capacities: C,
    /// [`Granted::slots`] of each name, in the order of the request. A list to be encoded may be shorter: the other
    /// names have no slots.
    pub slots: S,
}

impl AllGranted<&[u32], &[&[u16]]> {
    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u64(self.grant.0);
        self.ttl_left.compose(out);
        out.put_u16(length_of(self.capacities));
        out.put_u16(0);
        self.capacities.iter().for_each(|capacity| out.put_u32(*capacity));
        for name in 0..self.capacities.len() {
            out.put_u16(self.slots.get(name).map_or(0, |slots| length_of(slots)));
        }
        self.slots.iter().take(self.capacities.len()).for_each(|slots| put_slots(slots, out));
    }
}

impl AllGranted<Vec<u32>, Vec<Vec<u16>>> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let grant = GrantId(fields.u64()?);
        let ttl_left = Part::read(fields)?;
        let count = fields.length()?;
        fields.u16()?;
        let (capacities, _) = fields.bytes(4 * count)?.as_chunks();
        let capacities = capacities.iter().map(|capacity| u32::from_be_bytes(*capacity)).collect();
        let (counts, _) = fields.bytes(2 * count)?.as_chunks();
        let counts = counts.iter().map(|count| usize::from(u16::from_be_bytes(*count)));
        let slots = counts.map(|count| read_slots(count, fields)).collect::<Option<_>>()?;
        Some(Self { grant, ttl_left, capacities, slots })
    }
}

/// Decodes the bodies of extended responses (`docs/protocol.md`, the section of each operation). Each method fails with
/// [`BodyError`] if the body is malformed.
impl ResponseFrame {
    /// The response to Hello: the first response under the Hello's opaque. The later ones are notices.
    pub fn hello(&self) -> Result<HelloAnswer, BodyError> {
        self.part()
    }

    /// The response to OpenSession.
    pub fn opened(&self) -> Result<OpenedSession, BodyError> {
        self.part()
    }

    /// The response to AttachSession or KeepAlive: the duration of the renewed lease.
    pub fn ttl(&self) -> Result<Milliseconds, BodyError> {
        self.part()
    }

    /// The first response to an AcquireGrant or AcquireAll that waits: the status `Queued`.
    pub fn queued(&self) -> Result<Place, BodyError> {
        self.part()
    }

    /// The response to AcquireGrant.
    pub fn granted(&self) -> Result<Granted<Vec<u16>>, BodyError> {
        Granted::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// The response to AcquireAll.
    pub fn all_granted(&self) -> Result<AllGranted<Vec<u32>, Vec<Vec<u16>>>, BodyError> {
        AllGranted::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// The response to VerifyGrant.
    pub fn verified(&self) -> Result<VerifiedGrant, BodyError> {
        self.part()
    }

    /// The response to Inspect.
    pub fn inspected(&self) -> Result<Inspected, BodyError> {
        self.part()
    }

    /// One response to Holders or Waiters; `None` at the end of the list.
    pub fn list_entry(&self) -> Result<Option<ListEntry<Bytes, Vec<u16>>>, BodyError> {
        self.entry(read_list_entry)
    }

    /// One response to Sessions; `None` at the end of the list.
    pub fn session_entry(&self) -> Result<Option<SessionEntry<Bytes>>, BodyError> {
        self.entry(read_session_entry)
    }

    /// One response to Held; `None` at the end of the list.
    pub fn held_entry(&self) -> Result<Option<HeldEntry<Bytes, Vec<u16>>>, BodyError> {
        self.entry(read_held_entry)
    }

    /// The response to an operation of an administrator.
    pub fn changed(&self, operation: &Operation<'_>) -> Result<Changed, BodyError> {
        let read = |mut fields: Fields<'_>| {
            Some(match operation {
                Operation::Declare { .. } => {
                    let count = fields.length()?;
                    fields.u16()?;
                    Changed::Declared((0..count).map(|_| Part::read(&mut fields)).collect::<Option<_>>()?)
                }
                Operation::Resize { .. } | Operation::ChangeService { .. } => {
                    Changed::Declared(vec![Part::read(&mut fields)?])
                }
                Operation::Cancel(_)
                | Operation::Revoke { what: Revocation::Addresses(_) | Revocation::Identity(_), .. } => {
                    Changed::Count(fields.u64()?)
                }
                Operation::Remove { .. } | Operation::DeleteCounter { .. } | Operation::Revoke { .. } => {
                    Changed::Done
                }
            })
        };
        read(Fields::new(&self.body)).ok_or(BodyError)
    }

    /// One response to Export; `None` at the end of the export.
    pub fn export_part(&self) -> Result<Option<Bytes>, BodyError> {
        Ok((!self.body.is_empty()).then(|| self.body.clone()))
    }

    /// The limit of a response with the status [`Status::LimitReached`]; `None` if the server does not state it, or
    /// states one that this client does not know.
    pub fn reached_limit(&self) -> Option<ReachedLimit> {
        ReachedLimit::read(str::from_utf8(&self.body).ok()?)
    }

    /// The reason why the server does not accept the token, in a response with the status [`Status::NotPermitted`];
    /// `None` if it states no such reason.
    pub fn token_refusal(&self) -> Option<TokenRefusal> {
        TokenRefusal::read(str::from_utf8(&self.body).ok()?)
    }

    /// The capacity in a response with the status [`Status::MaximumTooSmall`]; `None` if it states no capacity.
    pub fn capacity(&self) -> Option<u32> {
        Refusal::read_capacity(str::from_utf8(&self.body).ok()?)
    }

    /// The response to AwaitIdle: the number of resources in use.
    pub fn in_use(&self) -> Result<u32, BodyError> {
        self.part()
    }

    /// One response to List; `None` at the end of the list.
    pub fn declared_entry(&self) -> Result<Option<DeclaredEntry<Bytes>>, BodyError> {
        self.entry(read_declared_entry)
    }

    /// One event of a Watch, with its number.
    pub fn event(&self) -> Result<(u64, Event<Bytes>), BodyError> {
        read_event(&self.body).ok_or(BodyError)
    }

    /// The response to Where.
    pub fn whereabouts(&self) -> Result<Whereabouts<Vec<String>>, BodyError> {
        Whereabouts::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// A notice: any response under a Hello's opaque except the first, which answers the Hello. `None` if its kind is
    /// unknown; ignore it then.
    pub fn notice(&self) -> Result<Option<ReceivedNotice>, BodyError> {
        read_notice(&mut Fields::new(&self.body)).ok_or(BodyError)
    }
}
