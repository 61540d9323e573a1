//! Extended requests, and the bytes that say them.

use bytes::{BufMut, BytesMut};

use super::{
    Claim, Claims, Declarations, ExtendedOpcode, Generation, GrantId, Idle, IfExists, Milliseconds,
    NO_NUMBER, Namespace, Removal, RequestId, RequestIds, Resizing, SessionKey, Wait, checked_label,
    length_of,
};
use crate::protocol::fields::Fields;
use crate::protocol::header::{Header, Opaque, REQUEST_MAGIC};
use crate::protocol::status::Status;

/// An extended request; `docs/protocol.md` has a section for each under its name. Sessions go by their numbers, labels
/// are up to [`LABEL_BYTES_MAX`](super::LABEL_BYTES_MAX) bytes, any bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended<'a> {
    /// "Hello".
    Hello {
        /// The version that the client speaks.
        version: u32,
        /// What the client is called where it is listed.
        label: &'a [u8],
        /// Has to be empty as long as servers have no credentials.
        credentials: &'a [u8],
    },
    /// "OpenSession".
    OpenSession {
        /// How long the session lives without a sign of life; `None`: what the server has by default.
        ttl: Option<Milliseconds>,
        /// What the session is called where it is listed.
        label: &'a [u8],
    },
    /// "AttachSession".
    AttachSession {
        /// The session's number.
        session: u64,
        /// The session's key.
        key: SessionKey,
    },
    /// "KeepAlive".
    KeepAlive,
    /// "CloseSession".
    CloseSession,
    /// "AcquireGrant".
    AcquireGrant {
        /// The request's place among those of its session.
        ids: RequestIds,
        /// What to take.
        claim: Claim<'a>,
        /// Whether to wait for it.
        queueing: Queueing,
    },
    /// "ReleaseGrant".
    ReleaseGrant {
        /// The request's place among those of its session.
        ids: RequestIds,
        /// What to give back.
        grant: GrantId,
    },
    /// "Cancel".
    Cancel(WaitingRequest),
    /// "AcquireAll".
    AcquireAll {
        /// The request's place among those of its session.
        ids: RequestIds,
        /// Whether to wait for it.
        queueing: Queueing,
        /// What to take.
        claims: Claims<'a>,
    },
    /// "VerifyGrant".
    VerifyGrant {
        /// The grant that may still be held.
        grant: GrantId,
    },
    /// "Holders".
    Holders {
        /// The kind of the name.
        namespace: Namespace,
        /// What is held.
        name: &'a [u8],
    },
    /// "Waiters".
    Waiters {
        /// The kind of the name.
        namespace: Namespace,
        /// What is waited for.
        name: &'a [u8],
    },
    /// "Watch".
    Watch {
        /// The kind of the names.
        namespace: Namespace,
        /// Which names to report on.
        scope: Scope<'a>,
    },
    /// "Unwatch".
    Unwatch {
        /// The opaque of the Watch to end.
        watch: Opaque,
    },
    /// "Revoke".
    Revoke {
        /// The request's place among those of its session.
        ids: RequestIds,
        /// What to take away.
        what: Revocation,
        /// How long the holder keeps it after it was told.
        grace: Milliseconds,
    },
    /// "Declare".
    Declare {
        /// The request's place among those of its session.
        ids: RequestIds,
        /// What becomes of those that exist.
        if_exists: IfExists,
        /// What to make.
        declarations: Declarations<'a>,
    },
    /// "Resize".
    Resize {
        /// The request's place among those of its session.
        ids: RequestIds,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
        /// What becomes of the capacity.
        how: Resizing,
        /// The semaphore.
        name: &'a [u8],
    },
    /// "Remove".
    Remove {
        /// The request's place among those of its session.
        ids: RequestIds,
        /// The generation that the semaphore must have; `None`: any.
        expected: Option<Generation>,
        /// What becomes of those who hold it.
        how: Removal,
        /// The semaphore.
        name: &'a [u8],
    },
    /// "AwaitIdle".
    AwaitIdle {
        /// How long it waits.
        wait: Wait,
        /// For what; a slot is a semaphore's.
        until: Idle,
        /// The kind of the name.
        namespace: Namespace,
        /// Whose resources are to be idle.
        name: &'a [u8],
    },
    /// "List".
    List {
        /// The bytes that the names of the listed semaphores start with; where there are none, every one is listed.
        prefix: &'a [u8],
    },
}

/// Whether and where a request waits that cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// How long it waits.
    pub wait: Wait,
    /// It joins a queue only while fewer than this many wait there; `None`: any queue.
    pub queue_max: Option<u32>,
}

impl Queueing {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (wait, queue_max) = (Wait::from_wire(fields.u32()?), fields.u32()?);
        Some(Self { wait, queue_max: (queue_max != NO_NUMBER).then_some(queue_max) })
    }

    fn compose(self, out: &mut BytesMut) {
        out.put_u32(self.wait.to_wire());
        out.put_u32(self.queue_max.unwrap_or(NO_NUMBER));
    }
}

/// How Cancel names the request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingRequest {
    /// By the number that it has within the session.
    Id(RequestId),
    /// By the opaque that it waits under, on the same connection.
    Opaque(Opaque),
}

/// Which names a Watch reports on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// This one; at least a byte.
    Name(&'a [u8]),
    /// All that start with these bytes: where there are none, every name.
    Prefix(&'a [u8]),
}

/// The bit of a Watch's flags that says that its name is a prefix.
const FLAG_PREFIX: u8 = 1;

/// What Revoke takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// One grant.
    Grant(GrantId),
    /// A session, by its number, with all that it holds.
    Session(u64),
}

impl<'a> Extended<'a> {
    /// Reads the body of a request; where it breaks a rule of the operation, gives the status to answer with.
    pub(in crate::protocol) fn parse(opcode: ExtendedOpcode, body: &'a [u8]) -> Result<Self, Status> {
        match Self::read(opcode, &mut Fields::new(body)) {
            Some(Self::Hello { credentials: [_, ..], .. }) => Err(Status::NotPermitted),
            request => request.ok_or(Status::InvalidArguments),
        }
    }

    fn read(opcode: ExtendedOpcode, fields: &mut Fields<'a>) -> Option<Self> {
        Some(match opcode {
            ExtendedOpcode::Hello => {
                let version = fields.u32()?;
                let (label_bytes, credentials_bytes) = (fields.length()?, fields.length()?);
                let label = checked_label(fields.bytes(label_bytes)?)?;
                Self::Hello { version, label, credentials: fields.bytes(credentials_bytes)? }
            }
            ExtendedOpcode::OpenSession => {
                let ttl = fields.u32()?;
                let ttl = (ttl != 0).then_some(Milliseconds(ttl));
                Self::OpenSession { ttl, label: checked_label(fields.text()?)? }
            }
            ExtendedOpcode::AttachSession => {
                Self::AttachSession { session: fields.u64()?, key: SessionKey(fields.array()?) }
            }
            ExtendedOpcode::KeepAlive => Self::KeepAlive,
            ExtendedOpcode::CloseSession => Self::CloseSession,
            ExtendedOpcode::AcquireGrant => {
                let ids = RequestIds::read(fields)?;
                let (resources, maximum) = (fields.u32()?, fields.u32()?);
                let queueing = Queueing::read(fields)?;
                let (namespace, name) = read_name(fields)?;
                let claim = Claim { namespace, name, resources, maximum };
                claim.check().ok()?;
                Self::AcquireGrant { ids, claim, queueing }
            }
            ExtendedOpcode::ReleaseGrant => {
                Self::ReleaseGrant { ids: RequestIds::read(fields)?, grant: GrantId(fields.u64()?) }
            }
            ExtendedOpcode::Cancel => Self::Cancel(match (fields.u64()?, fields.array()?) {
                (0, opaque) => WaitingRequest::Opaque(Opaque(opaque)),
                (id, _) => WaitingRequest::Id(RequestId(id)),
            }),
            ExtendedOpcode::AcquireAll => Self::AcquireAll {
                ids: RequestIds::read(fields)?,
                queueing: Queueing::read(fields)?,
                claims: Claims::read(fields)?,
            },
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
        })
    }

    /// The operation that the request asks for.
    pub fn opcode(&self) -> ExtendedOpcode {
        match self {
            Self::Hello { .. } => ExtendedOpcode::Hello,
            Self::OpenSession { .. } => ExtendedOpcode::OpenSession,
            Self::AttachSession { .. } => ExtendedOpcode::AttachSession,
            Self::KeepAlive => ExtendedOpcode::KeepAlive,
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
            Self::Declare { .. } => ExtendedOpcode::Declare,
            Self::Resize { .. } => ExtendedOpcode::Resize,
            Self::Remove { .. } => ExtendedOpcode::Remove,
            Self::AwaitIdle { .. } => ExtendedOpcode::AwaitIdle,
            Self::List { .. } => ExtendedOpcode::List,
        }
    }

    /// Appends the request's frame to `out`.
    ///
    /// # Panics
    /// Where a name, label or credentials are longer than 65535 bytes: their length would not fit the wire.
    pub fn compose(&self, opaque: Opaque, out: &mut BytesMut) {
        let header =
            Header { magic: REQUEST_MAGIC, opcode: self.opcode().code(), status: 0, body_bytes: 0, opaque };
        header.compose_before(out, |out| self.compose_body(out));
    }

    fn compose_body(&self, out: &mut BytesMut) {
        match self {
            Self::Hello { version, label, credentials } => {
                out.put_u32(*version);
                out.put_u16(length_of(label));
                out.put_u16(length_of(credentials));
                out.put_slice(label);
                out.put_slice(credentials);
            }
            Self::OpenSession { ttl, label } => {
                out.put_u32(ttl.map_or(0, |ttl| ttl.0));
                put_text(label, out);
            }
            Self::AttachSession { session, key } => {
                out.put_u64(*session);
                out.put_slice(&key.0);
            }
            Self::KeepAlive | Self::CloseSession => {}
            Self::AcquireGrant { ids, claim, queueing } => {
                put_ids(*ids, out);
                out.put_u32(claim.resources);
                out.put_u32(claim.maximum);
                queueing.compose(out);
                put_name(claim.namespace, 0, claim.name, out);
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
            Self::AcquireAll { ids, queueing, claims } => {
                put_ids(*ids, out);
                queueing.compose(out);
                claims.compose(out);
            }
            Self::VerifyGrant { grant } => out.put_u64(grant.0),
            Self::Holders { namespace, name } | Self::Waiters { namespace, name } => {
                put_name(*namespace, 0, name, out);
            }
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
        }
    }
}

/// A namespace, a reserved byte and a name.
fn read_name<'a>(fields: &mut Fields<'a>) -> Option<(Namespace, &'a [u8])> {
    let namespace = Namespace::from_code(fields.u8()?)?;
    fields.u8()?;
    Some((namespace, fields.name()?))
}

/// A namespace, a byte of flags or a reserved one, and a name.
fn put_name(namespace: Namespace, flags: u8, name: &[u8], out: &mut BytesMut) {
    out.put_u8(namespace.code());
    out.put_u8(flags);
    put_text(name, out);
}

fn put_text(text: &[u8], out: &mut BytesMut) {
    out.put_u16(length_of(text));
    out.put_slice(text);
}

fn put_ids(ids: RequestIds, out: &mut BytesMut) {
    out.put_u64(ids.own.0);
    out.put_u64(ids.lowest_unanswered.0);
}
