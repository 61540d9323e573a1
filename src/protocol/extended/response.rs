//! Answers to extended requests, and the bytes that say them.

use bytes::{BufMut, Bytes, BytesMut};

use super::declared::{put_declared_states, read_declared_states};
use super::{
    DeclaredEntry, DeclaredState, Event, Features, GrantId, GrantState, Milliseconds, Notice, SessionKey,
    TtlLeft, length_of,
};
use crate::protocol::fields::Fields;
use crate::protocol::header::{Header, Opaque, RESPONSE_MAGIC};
use crate::protocol::response::{BodyError, Response, ResponseFrame};
use crate::protocol::status::Status;

/// One response to an extended request, or what the server sends unasked. `docs/protocol.md` has the fields of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendedResponse<'a> {
    /// A response as the documents have it too: success without a body, which also ends a listing, or a failure.
    Plain(Response<'a>),
    /// The answer to Hello.
    Hello(HelloAnswer),
    /// The answer to OpenSession.
    Opened(OpenedSession),
    /// The answer to AttachSession and KeepAlive: how long the lease lasts from now.
    Ttl(Milliseconds),
    /// The answer to AcquireGrant.
    Granted(Granted<&'a [u16]>),
    /// The answer to AcquireAll.
    AllGranted(AllGranted<&'a [u32], &'a [&'a [u16]]>),
    /// The answer to VerifyGrant.
    Verified(VerifiedGrant),
    /// One holder of Holders or one waiter of Waiters.
    Entry(ListEntry<&'a [u8], &'a [u16]>),
    /// The answer to Declare: each semaphore in the order of the request.
    Declared(&'a [DeclaredState]),
    /// The answer to Resize.
    Resized(DeclaredState),
    /// The answer to AwaitIdle: the resources that are in use.
    InUse(u32),
    /// One semaphore of List.
    DeclaredEntry(DeclaredEntry<&'a [u8]>),
    /// What a Watch reports, under the Watch's opaque.
    Event(Event<&'a [u8]>),
    /// What the server tells a client that said Hello, under the Hello's opcode and opaque.
    Notice(Notice),
}

impl ExtendedResponse<'_> {
    /// Appends the response's frame to `out`, as the answer to a request with this opcode and opaque.
    ///
    /// # Panics
    /// Where a name, label or address is longer than 65535 bytes, or there are more capacities, or slots of a name, than
    /// that, or a semaphore's label is longer than 255 bytes.
    pub fn compose(&self, opcode: u8, opaque: Opaque, out: &mut BytesMut) {
        if let Self::Plain(response) = self {
            return response.compose(opcode, opaque, out);
        }
        let status = Status::NoError.code();
        let header = Header { magic: RESPONSE_MAGIC, opcode, status, body_bytes: 0, opaque };
        header.compose_before(out, |out| match self {
            Self::Plain(_) => unreachable!("composed above"),
            Self::Hello(answer) => answer.compose(out),
            Self::Opened(opened) => {
                out.put_u64(opened.session);
                out.put_slice(&opened.key.0);
                out.put_u32(opened.ttl.0);
            }
            Self::Ttl(ttl) => out.put_u32(ttl.0),
            Self::Granted(granted) => granted.compose(out),
            Self::AllGranted(granted) => granted.compose(out),
            Self::Verified(verified) => {
                out.put_u64(verified.session);
                out.put_u32(verified.ttl_left.to_wire());
                out.put_slice(&[verified.state.code(), 0, 0, 0]);
            }
            Self::Entry(entry) => entry.compose(out),
            Self::Declared(rows) => put_declared_states(rows, out),
            Self::Resized(settled) => settled.compose(out),
            Self::InUse(resources) => out.put_u32(*resources),
            Self::DeclaredEntry(entry) => entry.compose(out),
            Self::Event(event) => event.compose(out),
            Self::Notice(notice) => notice.compose(out),
        });
    }
}

/// What a server says of itself and of the connection ("Hello").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloAnswer {
    /// The version that the server speaks.
    pub version: u32,
    /// What the server can do.
    pub features: Features,
    /// The number of the connection's own session.
    pub session: u64,
    /// The longest that a request may wait.
    pub wait_max: Milliseconds,
    /// How long requests wait that leave it to the server.
    pub wait_default: Milliseconds,
    /// The shortest time to live of a leased session.
    pub ttl_min: Milliseconds,
    /// The longest time to live of a leased session.
    pub ttl_max: Milliseconds,
    /// Most names of one AcquireAll.
    pub names_max: u32,
    /// Most requests of a session whose answers are remembered.
    pub requests_max: u32,
}

impl HelloAnswer {
    fn compose(&self, out: &mut BytesMut) {
        out.put_u32(self.version);
        out.put_u32(self.features.0);
        out.put_u64(self.session);
        for span in [self.wait_max, self.wait_default, self.ttl_min, self.ttl_max] {
            out.put_u32(span.0);
        }
        out.put_u32(self.names_max);
        out.put_u32(self.requests_max);
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            version: fields.u32()?,
            features: Features(fields.u32()?),
            session: fields.u64()?,
            wait_max: Milliseconds(fields.u32()?),
            wait_default: Milliseconds(fields.u32()?),
            ttl_min: Milliseconds(fields.u32()?),
            ttl_max: Milliseconds(fields.u32()?),
            names_max: fields.u32()?,
            requests_max: fields.u32()?,
        })
    }
}

/// A leased session that was made ("OpenSession").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedSession {
    /// The session's number, which everybody may know.
    pub session: u64,
    /// The session's key, which is to be kept secret.
    pub key: SessionKey,
    /// How long the session lives without a sign of life.
    pub ttl: Milliseconds,
}

/// Resources of one name that were granted ("AcquireGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<S> {
    /// The grant's number.
    pub grant: GrantId,
    /// What was taken: as many as were asked for.
    pub resources: u32,
    /// The semaphore's capacity as it is, or the counter's maximum of the request.
    pub capacity: u32,
    /// How long the grant lasts without renewal.
    pub ttl_left: TtlLeft,
    /// The slots that were taken, from 0 and ascending; none where the resources have no numbers.
    pub slots: S,
}

impl Granted<&[u16]> {
    fn compose(&self, out: &mut BytesMut) {
        out.put_u64(self.grant.0);
        out.put_u32(self.resources);
        out.put_u32(self.capacity);
        out.put_u32(self.ttl_left.to_wire());
        out.put_u16(count_of(self.slots));
        out.put_u16(0);
        put_slots(self.slots, out);
    }
}

impl Granted<Vec<u16>> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let grant = GrantId(fields.u64()?);
        let (resources, capacity) = (fields.u32()?, fields.u32()?);
        let ttl_left = TtlLeft::from_wire(fields.u32()?);
        let mut slots = Vec::new();
        if !fields.is_empty() {
            let count = fields.length()?;
            fields.u16()?;
            slots = read_slots(count, fields)?;
        }
        Some(Self { grant, resources, capacity, ttl_left, slots })
    }
}

/// Resources of several names that were granted as one ("AcquireAll").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllGranted<C, S> {
    /// The grant's number.
    pub grant: GrantId,
    /// How long the grant lasts without renewal.
    pub ttl_left: TtlLeft,
    /// What [`Granted::capacity`] is, of each name in the order of the request.
    pub capacities: C,
    /// What [`Granted::slots`] is, likewise; names that a list to be composed does not reach have none.
    pub slots: S,
}

impl AllGranted<&[u32], &[&[u16]]> {
    fn compose(&self, out: &mut BytesMut) {
        out.put_u64(self.grant.0);
        out.put_u32(self.ttl_left.to_wire());
        out.put_u16(u16::try_from(self.capacities.len()).expect("a request has few names"));
        out.put_u16(0);
        self.capacities.iter().for_each(|capacity| out.put_u32(*capacity));
        for name in 0..self.capacities.len() {
            out.put_u16(self.slots.get(name).map_or(0, |slots| count_of(slots)));
        }
        self.slots.iter().take(self.capacities.len()).for_each(|slots| put_slots(slots, out));
    }
}

impl AllGranted<Vec<u32>, Vec<Vec<u16>>> {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let grant = GrantId(fields.u64()?);
        let ttl_left = TtlLeft::from_wire(fields.u32()?);
        let count = fields.length()?;
        fields.u16()?;
        let (capacities, _) = fields.bytes(4 * count)?.as_chunks();
        let capacities = capacities.iter().map(|capacity| u32::from_be_bytes(*capacity)).collect();
        let slots = if fields.is_empty() {
            vec![Vec::new(); count]
        } else {
            let (counts, _) = fields.bytes(2 * count)?.as_chunks();
            let counts = counts.iter().map(|count| usize::from(u16::from_be_bytes(*count)));
            counts.map(|count| read_slots(count, fields)).collect::<Option<_>>()?
        };
        Some(Self { grant, ttl_left, capacities, slots })
    }
}

/// How many slots there are, as it stands on the wire.
fn count_of(slots: &[u16]) -> u16 {
    u16::try_from(slots.len()).expect("a grant has at most 1,024 slots")
}

fn put_slots(slots: &[u16], out: &mut BytesMut) {
    slots.iter().for_each(|slot| out.put_u16(*slot));
}

fn read_slots(count: usize, fields: &mut Fields<'_>) -> Option<Vec<u16>> {
    let (slots, _) = fields.bytes(2 * count)?.as_chunks();
    Some(slots.iter().map(|slot| u16::from_be_bytes(*slot)).collect())
}

/// A grant that is held ("VerifyGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedGrant {
    /// The number of the session that holds it.
    pub session: u64,
    /// How long the grant lasts without renewal.
    pub ttl_left: TtlLeft,
    /// Whether it is to stay so.
    pub state: GrantState,
}

impl VerifiedGrant {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (session, ttl_left) = (fields.u64()?, TtlLeft::from_wire(fields.u32()?));
        let mut state = GrantState::Held;
        if !fields.is_empty() {
            let [code, _, _, _] = fields.array()?;
            state = GrantState::from_code(code)?;
        }
        Some(Self { session, ttl_left, state })
    }
}

/// One who holds a name or waits for it ("Holders" and "Waiters").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry<T, S> {
    /// The grant, or what will be it; `None`: taken by plain Acquires.
    pub grant: Option<GrantId>,
    /// The number of the session.
    pub session: u64,
    /// Since when, in seconds since the Unix epoch; `None`: not known.
    pub since: Option<u64>,
    /// How many are held or waited for.
    pub resources: u32,
    /// The place in the queue, from 1; 0 for a holder.
    pub position: u32,
    /// What the client calls itself or its session; any bytes, maybe none.
    pub label: T,
    /// From where it is connected, as text; empty where it is not.
    pub address: T,
    /// The slots that are held, from 0 and ascending; none for a waiter, and where the resources have no numbers.
    pub slots: S,
}

impl ListEntry<&[u8], &[u16]> {
    fn compose(&self, out: &mut BytesMut) {
        out.put_u64(GrantId::to_wire(self.grant));
        out.put_u64(self.session);
        out.put_u64(self.since.unwrap_or(0));
        out.put_u32(self.resources);
        out.put_u32(self.position);
        out.put_u16(length_of(self.label));
        out.put_u16(length_of(self.address));
        out.put_slice(self.label);
        out.put_slice(self.address);
        out.put_u16(count_of(self.slots));
        put_slots(self.slots, out);
    }
}

impl ListEntry<Bytes, Vec<u16>> {
    fn read(body: &Bytes) -> Option<Self> {
        let mut fields = Fields::new(body);
        let grant = GrantId::from_wire(fields.u64()?);
        let session = fields.u64()?;
        let since = Some(fields.u64()?).filter(|seconds| *seconds != 0);
        let (resources, position) = (fields.u32()?, fields.u32()?);
        let (label_bytes, address_bytes) = (fields.length()?, fields.length()?);
        let label = body.slice_ref(fields.bytes(label_bytes)?);
        let address = body.slice_ref(fields.bytes(address_bytes)?);
        let mut slots = Vec::new();
        if !fields.is_empty() {
            let count = fields.length()?;
            slots = read_slots(count, &mut fields)?;
        }
        Some(Self { grant, session, since, resources, position, label, address, slots })
    }
}

/// What the bodies of extended responses carry. Each fails where the body is not one of its operation.
impl ResponseFrame {
    /// The answer to Hello: the first response under the Hello's opaque. Those after it are notices.
    pub fn hello(&self) -> Result<HelloAnswer, BodyError> {
        HelloAnswer::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// The session that OpenSession made.
    pub fn opened(&self) -> Result<OpenedSession, BodyError> {
        let read = |fields: &mut Fields<'_>| {
            Some(OpenedSession {
                session: fields.u64()?,
                key: SessionKey(fields.array()?),
                ttl: Milliseconds(fields.u32()?),
            })
        };
        read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// How long the lease lasts that AttachSession or KeepAlive renewed.
    pub fn ttl(&self) -> Result<Milliseconds, BodyError> {
        Fields::new(&self.body).u32().map(Milliseconds).ok_or(BodyError)
    }

    /// The grant that AcquireGrant brought.
    pub fn granted(&self) -> Result<Granted<Vec<u16>>, BodyError> {
        Granted::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// The grant that AcquireAll brought.
    pub fn all_granted(&self) -> Result<AllGranted<Vec<u32>, Vec<Vec<u16>>>, BodyError> {
        AllGranted::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// The grant that VerifyGrant found held.
    pub fn verified(&self) -> Result<VerifiedGrant, BodyError> {
        VerifiedGrant::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// The entry that one response of Holders or Waiters carries; `None` at the end of the list.
    pub fn list_entry(&self) -> Result<Option<ListEntry<Bytes, Vec<u16>>>, BodyError> {
        if self.body.is_empty() {
            return Ok(None);
        }
        ListEntry::read(&self.body).map(Some).ok_or(BodyError)
    }

    /// What the semaphores came to be that Declare is about, in the order of the request.
    pub fn declared(&self) -> Result<Vec<DeclaredState>, BodyError> {
        read_declared_states(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// What the semaphore came to be that Resize is about.
    pub fn resized(&self) -> Result<DeclaredState, BodyError> {
        DeclaredState::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// The resources that are in use as AwaitIdle ends.
    pub fn in_use(&self) -> Result<u32, BodyError> {
        Fields::new(&self.body).u32().ok_or(BodyError)
    }

    /// The semaphore that one response of List carries; `None` at the end of the list.
    pub fn declared_entry(&self) -> Result<Option<DeclaredEntry<Bytes>>, BodyError> {
        if self.body.is_empty() {
            return Ok(None);
        }
        DeclaredEntry::read(&self.body).map(Some).ok_or(BodyError)
    }

    /// The event that one response of a Watch carries.
    pub fn event(&self) -> Result<Event<Bytes>, BodyError> {
        Event::read(&self.body).ok_or(BodyError)
    }

    /// The notice that a response under a Hello's opaque carries, unless it is the first, which answers the Hello.
    /// `None` where it is of a kind that this program does not know and may ignore.
    pub fn notice(&self) -> Result<Option<Notice>, BodyError> {
        Notice::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }
}
