//! Extended requests and their encoding (`docs/protocol.md`, "Extended operations").

use bytes::BufMut;

use super::claims::{FLAG_PLACE, FLAG_SLOT, flags_of};
use super::{
    AddressRange, Claim, Claims, Credentials, Declarations, ExtendedOpcode, Features, Generation, GrantId,
    Idle, IfExists, Milliseconds, NO_NUMBER, Namespace, Pausing, Place, Removal, RequestId, RequestIds,
    Resizing, SessionKey, SlotChange, Wait, checked_label, length_of,
};
use crate::fields::Fields;
use crate::header::{Header, Opaque};
use crate::status::Status;

/// An extended request. Each variant has a section of the same name in `docs/protocol.md`. Sessions are identified by
/// their numbers; labels are up to [`LABEL_BYTES_MAX`](super::LABEL_BYTES_MAX) arbitrary bytes, names are 1 to 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended<'a> {
    /// "Hello".
    Hello {
        /// The client's version of the extended operations.
        version: u32,
        /// The label of the connection's session in listings.
        label: &'a [u8],
        /// The client's token; empty: it shows none.
        credentials: Credentials<'a>,
        /// What the client wants of the server: [`Features::PLACES`] or nothing.
        features: Features,
    },
    /// "OpenSession".
    OpenSession {
        /// The time to live of the session; `None`: the server's default.
        ttl: Option<Milliseconds>,
        /// The label of the session in listings.
        label: &'a [u8],
        /// The key of the session, which makes the request safe to repeat; `None`: the server makes one.
        key: Option<SessionKey>,
    },
    /// "AttachSession".
    AttachSession {
        /// The session's number.
        session: u64,
        /// The session's key.
        key: SessionKey,
        /// How many requests the client will repeat with their places.
        repetitions: u32,
    },
    /// "KeepAlive".
    KeepAlive,
    /// "Where".
    Where,
    /// "CloseSession".
    CloseSession,
    /// "AcquireGrant".
    AcquireGrant {
        /// The numbers of the request.
        ids: RequestIds,
        /// The resources to acquire.
        claim: Claim<'a>,
        /// How long to wait, and in how long a queue.
        queueing: Queueing,
        /// The place that the request was told before a restart.
        place: Option<Place>,
    },
    /// "ReleaseGrant".
    ReleaseGrant {
        /// The numbers of the request.
        ids: RequestIds,
        /// The grant to release.
        grant: GrantId,
    },
    /// "Cancel".
    Cancel(WaitingRequest),
    /// "AcquireAll".
    AcquireAll {
        /// The numbers of the request.
        ids: RequestIds,
        /// How long to wait, and in how long a queue.
        queueing: Queueing,
        /// The resources to acquire.
        claims: Claims<'a>,
        /// The place that the request was told before a restart.
        place: Option<Place>,
    },
    /// "VerifyGrant".
    VerifyGrant {
        /// The grant to look up.
        grant: GrantId,
    },
    /// "Holders".
    Holders {
        /// The kind of the name.
        namespace: Namespace,
        /// The name whose holders are listed.
        name: &'a [u8],
    },
    /// "Waiters".
    Waiters {
        /// The kind of the name.
        namespace: Namespace,
        /// The name whose waiters are listed.
        name: &'a [u8],
    },
    /// "Watch".
    Watch {
        /// The kind of the names.
        namespace: Namespace,
        /// The names to watch.
        scope: Scope<'a>,
    },
    /// "Unwatch".
    Unwatch {
        /// The opaque of the Watch to end.
        watch: Opaque,
    },
    /// "Revoke".
    Revoke {
        /// The numbers of the request.
        ids: RequestIds,
        /// The grant or session to revoke.
        what: Revocation,
        /// The grace period, during which the holder keeps it.
        grace: Milliseconds,
    },
    /// "Inspect".
    Inspect {
        /// The kind of the name.
        namespace: Namespace,
        /// The name.
        name: &'a [u8],
    },
    /// "DeleteCounter".
    DeleteCounter {
        /// The name of the counter.
        name: &'a [u8],
    },
    /// "Sessions".
    Sessions,
    /// "RevokeClient".
    RevokeClient {
        /// The addresses of the clients whose leased sessions are revoked.
        clients: AddressRange,
        /// The grace period, during which the holders keep what they hold.
        grace: Milliseconds,
    },
    /// "RevokeIdentity".
    RevokeIdentity {
        /// The identity of the clients whose leased sessions are revoked, as Sessions lists it.
        identity: &'a [u8],
        /// The grace period, during which the holders keep what they hold.
        grace: Milliseconds,
    },
    /// "Export".
    Export,
    /// "Declare".
    Declare {
        /// The numbers of the request.
        ids: RequestIds,
        /// What happens to semaphores that are declared already.
        if_exists: IfExists,
        /// The semaphores to declare.
        declarations: Declarations<'a>,
    },
    /// "Resize".
    Resize {
        /// The numbers of the request.
        ids: RequestIds,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
        /// The change of the capacity.
        how: Resizing,
        /// The name of the semaphore.
        name: &'a [u8],
    },
    /// "Remove".
    Remove {
        /// The numbers of the request.
        ids: RequestIds,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
        /// What happens if the semaphore is held.
        how: Removal,
        /// The name of the semaphore.
        name: &'a [u8],
    },
    /// "AwaitIdle".
    AwaitIdle {
        /// How long to wait.
        wait: Wait,
        /// What to wait for. Only semaphores have slots.
        until: Idle,
        /// The kind of the name.
        namespace: Namespace,
        /// The name.
        name: &'a [u8],
    },
    /// "List".
    List {
        /// The prefix of the names to list; empty for all.
        prefix: &'a [u8],
    },
    /// "Pause".
    Pause {
        /// The numbers of the request.
        ids: RequestIds,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
        /// Whether the semaphore is paused or resumed.
        how: Pausing,
        /// The name of the semaphore.
        name: &'a [u8],
    },
    /// "SetSlot".
    SetSlot {
        /// The numbers of the request.
        ids: RequestIds,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
        /// The slot, and whether it is taken out of service or put back.
        how: SlotChange,
        /// The name of the semaphore.
        name: &'a [u8],
    },
}

/// How a request waits that cannot be granted at once (`docs/protocol.md`, "AcquireGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// How long it waits.
    pub wait: Wait,
    /// The request joins a queue only if fewer than this many requests wait in it; `None`: no limit.
    pub queue_max: Option<u32>,
}

impl Queueing {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (wait, queue_max) = (Wait::from_wire(fields.u32()?), fields.u32()?);
        Some(Self { wait, queue_max: (queue_max != NO_NUMBER).then_some(queue_max) })
    }

    fn compose(self, out: &mut Vec<u8>) {
        out.put_u32(self.wait.to_wire());
        out.put_u32(self.queue_max.unwrap_or(NO_NUMBER));
    }
}

/// Identifies the request to cancel (`docs/protocol.md`, "Cancel").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingRequest {
    /// By its number within the session.
    Id(RequestId),
    /// By its opaque, on the same connection.
    Opaque(Opaque),
}

/// The names of a Watch (`docs/protocol.md`, "Watch").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// One name; at least one byte.
    Name(&'a [u8]),
    /// All names with this prefix; all names if it is empty.
    Prefix(&'a [u8]),
}

/// The bit of a Watch's flags for a prefix.
const FLAG_PREFIX: u8 = 1;

/// What Revoke revokes (`docs/protocol.md`, "Revoke").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// One grant.
    Grant(GrantId),
    /// The session with this number, with all that it holds.
    Session(u64),
}

impl<'a> Extended<'a> {
    /// Decodes the body of a request. If it breaks a rule of the operation, the error is the status of the response.
    pub(crate) fn parse(opcode: ExtendedOpcode, body: &'a [u8]) -> Result<Self, Status> {
        Self::read(opcode, &mut Fields::new(body)).ok_or(Status::InvalidArguments)
    }

    fn read(opcode: ExtendedOpcode, fields: &mut Fields<'a>) -> Option<Self> {
        Some(match opcode {
            ExtendedOpcode::Hello => {
                let version = fields.u32()?;
                let (label_bytes, credentials_bytes) = (fields.length()?, fields.length()?);
                let label = checked_label(fields.bytes(label_bytes)?)?;
                let credentials = Credentials(fields.bytes(credentials_bytes)?);
                let features = if fields.is_empty() { 0 } else { fields.u32()? };
                Self::Hello { version, label, credentials, features: Features(features) }
            }
            ExtendedOpcode::OpenSession => {
                let ttl = fields.u32()?;
                let ttl = (ttl != 0).then_some(Milliseconds(ttl));
                let label = checked_label(fields.text()?)?;
                let key = if fields.is_empty() { None } else { Some(SessionKey(fields.array()?)) };
                Self::OpenSession { ttl, label, key }
            }
            ExtendedOpcode::AttachSession => {
                let (session, key) = (fields.u64()?, SessionKey(fields.array()?));
                let repetitions = if fields.is_empty() { 0 } else { fields.u32()? };
                Self::AttachSession { session, key, repetitions }
            }
            ExtendedOpcode::KeepAlive => Self::KeepAlive,
            ExtendedOpcode::Where => Self::Where,
            ExtendedOpcode::CloseSession => Self::CloseSession,
            ExtendedOpcode::AcquireGrant => {
                let ids = RequestIds::read(fields)?;
                let (resources, maximum) = (fields.u32()?, fields.u32()?);
                let queueing = Queueing::read(fields)?;
                let namespace = Namespace::from_code(fields.u8()?)?;
                let flags = fields.u8()?;
                let name = fields.name()?;
                let slot = if flags & FLAG_SLOT != 0 { Some(fields.u16()?) } else { None };
                let place = read_place(flags, fields)?;
                let claim = Claim { namespace, name, resources, maximum, slot };
                claim.check().ok()?;
                Self::AcquireGrant { ids, claim, queueing, place }
            }
            ExtendedOpcode::ReleaseGrant => {
                Self::ReleaseGrant { ids: RequestIds::read(fields)?, grant: GrantId(fields.u64()?) }
            }
            ExtendedOpcode::Cancel => Self::Cancel(match (fields.u64()?, fields.array()?) {
                (0, opaque) => WaitingRequest::Opaque(Opaque(opaque)),
                (id, _) => WaitingRequest::Id(RequestId(id)),
            }),
            ExtendedOpcode::AcquireAll => {
                let (ids, queueing) = (RequestIds::read(fields)?, Queueing::read(fields)?);
                let (claims, flags) = Claims::read(fields)?;
                Self::AcquireAll { ids, queueing, claims, place: read_place(flags, fields)? }
            }
            ExtendedOpcode::VerifyGrant => Self::VerifyGrant { grant: GrantId(fields.u64()?) },
            ExtendedOpcode::Holders => {
                let (namespace, name) = read_name(fields)?;
                Self::Holders { namespace, name }
            }
            ExtendedOpcode::Waiters => {
                let (namespace, name) = read_name(fields)?;
                Self::Waiters { namespace, name }
            }
            ExtendedOpcode::Watch => {
                let namespace = Namespace::from_code(fields.u8()?)?;
                let is_prefix = fields.u8()? & FLAG_PREFIX != 0;
                let scope =
                    if is_prefix { Scope::Prefix(fields.text()?) } else { Scope::Name(fields.name()?) };
                Self::Watch { namespace, scope }
            }
            ExtendedOpcode::Unwatch => Self::Unwatch { watch: Opaque(fields.array()?) },
            ExtendedOpcode::Revoke => {
                let ids = RequestIds::read(fields)?;
                let [kind, _, _, _] = fields.array()?;
                let grace = Milliseconds(fields.u32()?);
                let number = fields.u64()?;
                let what = match kind {
                    0 => Revocation::Grant(GrantId(number)),
                    1 => Revocation::Session(number),
                    _ => return None,
                };
                Self::Revoke { ids, what, grace }
            }
            ExtendedOpcode::Inspect => {
                let (namespace, name) = read_name(fields)?;
                Self::Inspect { namespace, name }
            }
            ExtendedOpcode::DeleteCounter => Self::DeleteCounter { name: fields.name()? },
            ExtendedOpcode::Sessions => Self::Sessions,
            ExtendedOpcode::RevokeClient => Self::RevokeClient {
                grace: Milliseconds(fields.u32()?),
                clients: AddressRange::read(fields)?,
            },
            ExtendedOpcode::RevokeIdentity => {
                let grace = Milliseconds(fields.u32()?);
                Self::RevokeIdentity { identity: fields.text()?, grace }
            }
            ExtendedOpcode::Export => Self::Export,
            ExtendedOpcode::Declare => Self::Declare {
                ids: RequestIds::read(fields)?,
                if_exists: IfExists::read(fields)?,
                declarations: Declarations::read(fields)?,
            },
            ExtendedOpcode::Resize => Self::Resize {
                ids: RequestIds::read(fields)?,
                expected: Generation::from_wire(fields.u64()?),
                how: Resizing::read(fields)?,
                name: fields.name()?,
            },
            ExtendedOpcode::Remove => Self::Remove {
                ids: RequestIds::read(fields)?,
                expected: Generation::from_wire(fields.u64()?),
                how: Removal::read(fields)?,
                name: fields.name()?,
            },
            ExtendedOpcode::AwaitIdle => {
                let wait = Wait::from_wire(fields.u32()?);
                let until = Idle::read(fields)?;
                let (namespace, name) = read_name(fields)?;
                if let (Idle::Slot(_), Namespace::Counters) = (until, namespace) {
                    return None;
                }
                Self::AwaitIdle { wait, until, namespace, name }
            }
            ExtendedOpcode::List => Self::List { prefix: fields.text()? },
            ExtendedOpcode::Pause => Self::Pause {
                ids: RequestIds::read(fields)?,
                expected: Generation::from_wire(fields.u64()?),
                how: Pausing::read(fields)?,
                name: fields.name()?,
            },
            ExtendedOpcode::SetSlot => Self::SetSlot {
                ids: RequestIds::read(fields)?,
                expected: Generation::from_wire(fields.u64()?),
                how: SlotChange::read(fields)?,
                name: fields.name()?,
            },
        })
    }

    /// The operation of the request.
    pub fn opcode(&self) -> ExtendedOpcode {
        match self {
            Self::Hello { .. } => ExtendedOpcode::Hello,
            Self::OpenSession { .. } => ExtendedOpcode::OpenSession,
            Self::AttachSession { .. } => ExtendedOpcode::AttachSession,
            Self::KeepAlive => ExtendedOpcode::KeepAlive,
            Self::Where => ExtendedOpcode::Where,
            Self::CloseSession => ExtendedOpcode::CloseSession,
            Self::AcquireGrant { .. } => ExtendedOpcode::AcquireGrant,
            Self::ReleaseGrant { .. } => ExtendedOpcode::ReleaseGrant,
            Self::Cancel(_) => ExtendedOpcode::Cancel,
            Self::AcquireAll { .. } => ExtendedOpcode::AcquireAll,
            Self::VerifyGrant { .. } => ExtendedOpcode::VerifyGrant,
            Self::Holders { .. } => ExtendedOpcode::Holders,
            Self::Waiters { .. } => ExtendedOpcode::Waiters,
            Self::Watch { .. } => ExtendedOpcode::Watch,
            Self::Unwatch { .. } => ExtendedOpcode::Unwatch,
            Self::Revoke { .. } => ExtendedOpcode::Revoke,
            Self::Inspect { .. } => ExtendedOpcode::Inspect,
            Self::DeleteCounter { .. } => ExtendedOpcode::DeleteCounter,
            Self::Sessions => ExtendedOpcode::Sessions,
            Self::RevokeClient { .. } => ExtendedOpcode::RevokeClient,
            Self::RevokeIdentity { .. } => ExtendedOpcode::RevokeIdentity,
            Self::Export => ExtendedOpcode::Export,
            Self::Declare { .. } => ExtendedOpcode::Declare,
            Self::Resize { .. } => ExtendedOpcode::Resize,
            Self::Remove { .. } => ExtendedOpcode::Remove,
            Self::AwaitIdle { .. } => ExtendedOpcode::AwaitIdle,
            Self::List { .. } => ExtendedOpcode::List,
            Self::Pause { .. } => ExtendedOpcode::Pause,
            Self::SetSlot { .. } => ExtendedOpcode::SetSlot,
        }
    }

    /// Appends the encoded frame to `out`.
    ///
    /// # Panics
    /// If a name, label or credentials are longer than 65535 bytes.
    pub fn compose(&self, opaque: Opaque, out: &mut Vec<u8>) {
        Header::request(self.opcode().code(), opaque).compose_before(out, |out| self.compose_body(out));
    }

    fn compose_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version, label, credentials, features } => {
                out.put_u32(*version);
                out.put_u16(length_of(label));
                out.put_u16(length_of(credentials.0));
                out.put_slice(label);
                out.put_slice(credentials.0);
                if *features != Features::default() {
                    out.put_u32(features.0);
                }
            }
            Self::OpenSession { ttl, label, key } => {
                out.put_u32(ttl.map_or(0, |ttl| ttl.0));
                put_text(label, out);
                if let Some(SessionKey(key)) = key {
                    out.put_slice(key);
                }
            }
            Self::AttachSession { session, key, repetitions } => {
                out.put_u64(*session);
                out.put_slice(&key.0);
                if *repetitions > 0 {
                    out.put_u32(*repetitions);
                }
            }
            Self::KeepAlive | Self::CloseSession | Self::Sessions | Self::Export | Self::Where => {}
            Self::AcquireGrant { ids, claim, queueing, place } => {
                put_ids(*ids, out);
                out.put_u32(claim.resources);
                out.put_u32(claim.maximum);
                queueing.compose(out);
                let flags = flags_of(claim) | place_flag(*place);
                put_name(claim.namespace, flags, claim.name, out);
                if let Some(slot) = claim.slot {
                    out.put_u16(slot);
                }
                if let Some(place) = place {
                    place.compose(out);
                }
            }
            Self::ReleaseGrant { ids, grant } => {
                put_ids(*ids, out);
                out.put_u64(grant.0);
            }
            Self::Cancel(waiting) => {
                let (id, opaque) = match waiting {
                    WaitingRequest::Id(id) => (id.0, [0; 4]),
                    WaitingRequest::Opaque(opaque) => (0, opaque.0),
                };
                out.put_u64(id);
                out.put_slice(&opaque);
            }
            Self::AcquireAll { ids, queueing, claims, place } => {
                put_ids(*ids, out);
                queueing.compose(out);
                claims.compose(place_flag(*place), out);
                if let Some(place) = place {
                    place.compose(out);
                }
            }
            Self::VerifyGrant { grant } => out.put_u64(grant.0),
            Self::Holders { namespace, name }
            | Self::Waiters { namespace, name }
            | Self::Inspect { namespace, name } => {
                put_name(*namespace, 0, name, out);
            }
            Self::DeleteCounter { name } => put_text(name, out),
            Self::Watch { namespace, scope } => {
                let (flags, name) = match scope {
                    Scope::Name(name) => (0, name),
                    Scope::Prefix(prefix) => (FLAG_PREFIX, prefix),
                };
                put_name(*namespace, flags, name, out);
            }
            Self::Unwatch { watch } => out.put_slice(&watch.0),
            Self::Revoke { ids, what, grace } => {
                let (kind, number) = match what {
                    Revocation::Grant(grant) => (0, grant.0),
                    Revocation::Session(session) => (1, *session),
                };
                put_ids(*ids, out);
                out.put_slice(&[kind, 0, 0, 0]);
                out.put_u32(grace.0);
                out.put_u64(number);
            }
            Self::RevokeClient { clients, grace } => {
                out.put_u32(grace.0);
                clients.compose(out);
            }
            Self::RevokeIdentity { identity, grace } => {
                out.put_u32(grace.0);
                put_text(identity, out);
            }
            Self::Declare { ids, if_exists, declarations } => {
                put_ids(*ids, out);
                if_exists.compose(out);
                declarations.compose(out);
            }
            Self::Resize { ids, expected, how, name } => {
                put_ids(*ids, out);
                out.put_u64(Generation::to_wire(*expected));
                how.compose(out);
                put_text(name, out);
            }
            Self::Remove { ids, expected, how, name } => {
                put_ids(*ids, out);
                out.put_u64(Generation::to_wire(*expected));
                how.compose(out);
                put_text(name, out);
            }
            Self::AwaitIdle { wait, until, namespace, name } => {
                out.put_u32(wait.to_wire());
                until.compose(out);
                put_name(*namespace, 0, name, out);
            }
            Self::List { prefix } => put_text(prefix, out),
            Self::Pause { ids, expected, how, name } => {
                put_ids(*ids, out);
                out.put_u64(Generation::to_wire(*expected));
                how.compose(out);
                put_text(name, out);
            }
            Self::SetSlot { ids, expected, how, name } => {
                put_ids(*ids, out);
                out.put_u64(Generation::to_wire(*expected));
                how.compose(out);
                put_text(name, out);
            }
        }
    }
}

/// Decodes the place of a request with these flags, if it has one.
fn read_place(flags: u8, fields: &mut Fields<'_>) -> Option<Option<Place>> {
    if flags & FLAG_PLACE == 0 { Some(None) } else { Place::read(fields).map(Some) }
}

fn place_flag(place: Option<Place>) -> u8 {
    if place.is_some() { FLAG_PLACE } else { 0 }
}

/// Decodes a namespace, a reserved byte and a name.
fn read_name<'a>(fields: &mut Fields<'a>) -> Option<(Namespace, &'a [u8])> {
    let namespace = Namespace::from_code(fields.u8()?)?;
    fields.u8()?;
    Some((namespace, fields.name()?))
}

/// Encodes a namespace, a byte that has flags or is reserved, and a name.
fn put_name(namespace: Namespace, flags: u8, name: &[u8], out: &mut Vec<u8>) {
    out.put_u8(namespace.code());
    out.put_u8(flags);
    put_text(name, out);
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    out.put_u16(length_of(text));
    out.put_slice(text);
}

fn put_ids(ids: RequestIds, out: &mut Vec<u8>) {
    out.put_u64(ids.own.0);
    out.put_u64(ids.lowest_unanswered.0);
}
