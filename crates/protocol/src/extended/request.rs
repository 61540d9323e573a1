//! Extended requests and their encoding (`docs/protocol.md`, "Extended operations").

use bytes::BufMut;

use super::claims::{
    self, Claims, FLAG_PLACE, FLAG_SHARED, FLAG_SLOT, flags_of, namespace_code, read_namespace,
};
use super::declarations::{put_declarations, read_declarations};
use super::features::{Credentials, Features, Queueing, Wait};
use super::{ExtendedOpcode, HELD_SESSIONS_MAX, checked_label};
use crate::header::{Header, Opaque};
use crate::layout::{Fields, Part, length_of};
use signalbox_model::{
    Cancellation, Claim, GrantId, Idle, Milliseconds, Namespace, Operation, Place, RequestId, RequestIds,
    Revocation, Scope, ServiceChange, SessionId, SessionKey, Status,
};

/// An extended request. Each variant has a section of the same name in `docs/protocol.md`. Sessions are identified by
/// their numbers; labels are up to [`LABEL_BYTES_MAX`](super::LABEL_BYTES_MAX) arbitrary bytes, and names are 1 to
/// 65535 arbitrary bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extended<'a> {
    /// "Hello".
    Hello {
        /// The client's version of the extended operations.
        version: u32,
        /// The label of the connection's session in listings.
        label: &'a [u8],
        /// The client's token.
        credentials: Credentials<'a>,
        /// The features that the client asks for: [`Features::PLACES`] or nothing.
        features: Features,
    },
    /// "OpenSession".
    OpenSession {
        /// The time to live of the session; `None`: the server's default.
        ttl: Option<Milliseconds>,
        /// The label of the session in listings.
        label: &'a [u8],
        /// The key of the session, which makes the request safe to repeat; `None`: the server generates one.
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
        /// How long to wait, and how long the queue may be.
        queueing: Queueing,
        /// The place that the request had before a restart, if it is repeated.
        place: Option<Place>,
        /// Whether the request is part of a single flight. If so, [`Claim::can_be_shared`] is true of the claim.
        is_shared: bool,
    },
    /// "ReleaseGrant".
    ReleaseGrant {
        /// The numbers of the request.
        ids: RequestIds,
        /// The grant to release.
        grant: GrantId,
        /// Whether the work of its single flight is done.
        is_done: bool,
    },
    /// "Cancel".
    Cancel(WaitingRequest),
    /// "AcquireAll".
    AcquireAll {
        /// The numbers of the request.
        ids: RequestIds,
        /// How long to wait, and how long the queue may be.
        queueing: Queueing,
        /// The resources to acquire.
        claims: Claims<'a>,
        /// The place that the request had before a restart, if it is repeated.
        place: Option<Place>,
    },
    /// "VerifyGrant".
    VerifyGrant {
        /// The grant to look up.
        grant: GrantId,
    },
    /// "MayAdminister".
    MayAdminister {
        /// The namespace of the name.
        namespace: Namespace,
        /// The name, which does not have to exist.
        name: &'a [u8],
    },
    /// "Holders".
    Holders {
        /// The namespace of the name.
        namespace: Namespace,
        /// The name whose holders are listed.
        name: &'a [u8],
    },
    /// "Waiters".
    Waiters {
        /// The namespace of the name.
        namespace: Namespace,
        /// The name whose waiters are listed.
        name: &'a [u8],
    },
    /// "Watch".
    Watch {
        /// The namespace of the names.
        namespace: Namespace,
        /// The names to watch.
        scope: Scope<&'a [u8]>,
    },
    /// "Unwatch".
    Unwatch {
        /// The opaque of the Watch to end.
        watch: Opaque,
    },
    /// "Inspect".
    Inspect {
        /// The namespace of the name; `None`: the server resolves the name.
        namespace: Option<Namespace>,
        /// The name.
        name: &'a [u8],
    },
    /// "Sessions".
    Sessions,
    /// "Held".
    Held {
        /// The sessions: 1 to [`HELD_SESSIONS_MAX`](super::HELD_SESSIONS_MAX).
        sessions: Vec<SessionId>,
    },
    /// "Export".
    Export,
    /// A change by an administrator. Its section has the name of the operation.
    Change {
        /// The numbers of the request. DeleteCounter, CancelWaiting, RevokeClient and RevokeIdentity have no numbers on
        /// the wire, because repeating them changes nothing more.
        ids: RequestIds,
        /// The change.
        operation: Operation<'a>,
    },
    /// "AwaitIdle".
    AwaitIdle {
        /// How long to wait.
        wait: Wait,
        /// What to wait for. Only semaphores have slots.
        until: Idle,
        /// The namespace of the name.
        namespace: Namespace,
        /// The name.
        name: &'a [u8],
    },
    /// "List".
    List {
        /// The prefix of the names to list; empty for all.
        prefix: &'a [u8],
    },
}

/// Identifies the request to cancel (`docs/protocol.md`, "Cancel").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingRequest {
    /// By its number within the session.
    Id(RequestId),
    /// By its opaque, on the same connection.
    Opaque(Opaque),
}

/// The bit of a Watch's flags: the name is a prefix.
const FLAG_PREFIX: u8 = 1;

/// The bit of a ReleaseGrant's flags: the work of its single flight is done.
const FLAG_DONE: u8 = 1;

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
                let ttl = Part::read(fields)?;
                let label = checked_label(fields.text()?)?;
                let key = if fields.is_empty() { None } else { Some(Part::read(fields)?) };
                Self::OpenSession { ttl, label, key }
            }
            ExtendedOpcode::AttachSession => {
                let (session, key) = (Part::read(fields)?, Part::read(fields)?);
                let repetitions = if fields.is_empty() { 0 } else { fields.u32()? };
                Self::AttachSession { session, key, repetitions }
            }
            ExtendedOpcode::KeepAlive => Self::KeepAlive,
            ExtendedOpcode::Where => Self::Where,
            ExtendedOpcode::CloseSession => Self::CloseSession,
            ExtendedOpcode::AcquireGrant => {
                let ids = Part::read(fields)?;
                let (resources, maximum) = (fields.u32()?, fields.u32()?);
                let queueing = Part::read(fields)?;
                let namespace = read_namespace(fields.u8()?)?;
                let flags = fields.u8()?;
                let name = fields.name()?;
                let slot = if flags & FLAG_SLOT != 0 { Some(fields.u16()?) } else { None };
                let place = read_place(flags, fields)?;
                let claim = Claim { namespace, name, resources, maximum, slot };
                claims::check(&claim).ok()?;
                let is_shared = flags & FLAG_SHARED != 0;
                if is_shared && !claim.can_be_shared() {
                    return None;
                }
                Self::AcquireGrant { ids, claim, queueing, place, is_shared }
            }
            ExtendedOpcode::ReleaseGrant => {
                let (ids, grant) = (Part::read(fields)?, Part::read(fields)?);
                let is_done = fields.u8().is_some_and(|flags| flags & FLAG_DONE != 0);
                Self::ReleaseGrant { ids, grant, is_done }
            }
            ExtendedOpcode::Cancel => Self::Cancel(match (fields.u64()?, fields.array()?) {
                (0, opaque) => WaitingRequest::Opaque(Opaque(opaque)),
                (id, _) => WaitingRequest::Id(RequestId(id)),
            }),
            ExtendedOpcode::AcquireAll => {
                let (ids, queueing) = (Part::read(fields)?, Part::read(fields)?);
                let (claims, flags) = Claims::read(fields)?;
                Self::AcquireAll { ids, queueing, claims, place: read_place(flags, fields)? }
            }
            ExtendedOpcode::VerifyGrant => Self::VerifyGrant { grant: Part::read(fields)? },
            ExtendedOpcode::MayAdminister => {
                let (namespace, name) = read_name(fields)?;
                Self::MayAdminister { namespace, name }
            }
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
            ExtendedOpcode::Unwatch => Self::Unwatch { watch: Part::read(fields)? },
            ExtendedOpcode::Inspect => {
                let namespace = read_namespace(fields.u8()?)?;
                fields.u8()?;
                Self::Inspect { namespace, name: fields.name()? }
            }
            ExtendedOpcode::Sessions => Self::Sessions,
            ExtendedOpcode::Held => {
                let count = fields.length()?;
                fields.u16()?;
                if !(1..=HELD_SESSIONS_MAX).contains(&count) {
                    return None;
                }
                let sessions = (0..count).map(|_| SessionId::from_number(fields.u64()?));
                Self::Held { sessions: sessions.collect::<Option<_>>()? }
            }
            ExtendedOpcode::Export => Self::Export,
            ExtendedOpcode::AwaitIdle => {
                let (wait, until) = (Part::read(fields)?, Part::read(fields)?);
                let (namespace, name) = read_name(fields)?;
                if let (Idle::Slot(_), Namespace::Counters) = (until, namespace) {
                    return None;
                }
                Self::AwaitIdle { wait, until, namespace, name }
            }
            ExtendedOpcode::List => Self::List { prefix: fields.text()? },
            ExtendedOpcode::Revoke
            | ExtendedOpcode::RevokeClient
            | ExtendedOpcode::RevokeIdentity
            | ExtendedOpcode::DeleteCounter
            | ExtendedOpcode::CancelWaiting
            | ExtendedOpcode::Declare
            | ExtendedOpcode::Resize
            | ExtendedOpcode::Remove
            | ExtendedOpcode::Pause
            | ExtendedOpcode::SetSlot => {
                let ids = if has_ids(opcode) { Part::read(fields)? } else { RequestIds::FIRST };
                Self::Change { ids, operation: read_operation(opcode, fields)? }
            }
        })
    }

    /// The opcode of the request.
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
            Self::MayAdminister { .. } => ExtendedOpcode::MayAdminister,
            Self::Holders { .. } => ExtendedOpcode::Holders,
            Self::Waiters { .. } => ExtendedOpcode::Waiters,
            Self::Watch { .. } => ExtendedOpcode::Watch,
            Self::Unwatch { .. } => ExtendedOpcode::Unwatch,
            Self::Inspect { .. } => ExtendedOpcode::Inspect,
            Self::Sessions => ExtendedOpcode::Sessions,
            Self::Held { .. } => ExtendedOpcode::Held,
            Self::Export => ExtendedOpcode::Export,
            Self::Change { operation, .. } => ExtendedOpcode::of(operation),
            Self::AwaitIdle { .. } => ExtendedOpcode::AwaitIdle,
            Self::List { .. } => ExtendedOpcode::List,
        }
    }

    /// Appends the encoded frame to `out`.
    ///
    /// # Panics
    /// If a name, label or credentials are longer than 65535 bytes, or there are more than 65535 sessions.
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
                ttl.compose(out);
                label.compose(out);
                if let Some(key) = key {
                    key.compose(out);
                }
            }
            Self::AttachSession { session, key, repetitions } => {
                session.compose(out);
                key.compose(out);
                if *repetitions > 0 {
                    out.put_u32(*repetitions);
                }
            }
            Self::KeepAlive | Self::CloseSession | Self::Sessions | Self::Export | Self::Where => {}
            Self::AcquireGrant { ids, claim, queueing, place, is_shared } => {
                ids.compose(out);
                out.put_u32(claim.resources);
                out.put_u32(claim.maximum);
                queueing.compose(out);
                let shared = if *is_shared { FLAG_SHARED } else { 0 };
                let flags = flags_of(claim) | place_flag(*place) | shared;
                put_name(claim.namespace, flags, claim.name, out);
                if let Some(slot) = claim.slot {
                    out.put_u16(slot);
                }
                if let Some(place) = place {
                    place.compose(out);
                }
            }
            Self::ReleaseGrant { ids, grant, is_done } => {
                ids.compose(out);
                grant.compose(out);
                if *is_done {
                    out.put_u8(FLAG_DONE);
                }
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
                ids.compose(out);
                queueing.compose(out);
                claims.compose(place_flag(*place), out);
                if let Some(place) = place {
                    place.compose(out);
                }
            }
            Self::VerifyGrant { grant } => grant.compose(out),
            Self::MayAdminister { namespace, name }
            | Self::Holders { namespace, name }
            | Self::Waiters { namespace, name } => {
                put_name(*namespace, 0, name, out);
            }
            Self::Inspect { namespace, name } => put_name(*namespace, 0, name, out),
            Self::Watch { namespace, scope } => {
                let (flags, name) = match scope {
                    Scope::Name(name) => (0, name),
                    Scope::Prefix(prefix) => (FLAG_PREFIX, prefix),
                };
                put_name(*namespace, flags, name, out);
            }
            Self::Unwatch { watch } => watch.compose(out),
            Self::AwaitIdle { wait, until, namespace, name } => {
                wait.compose(out);
                until.compose(out);
                put_name(*namespace, 0, name, out);
            }
            Self::List { prefix } => prefix.compose(out),
            Self::Held { sessions } => {
                out.put_u16(length_of(sessions));
                out.put_u16(0);
                sessions.iter().for_each(|session| out.put_u64(session.number()));
            }
            Self::Change { ids, operation } => {
                if has_ids(self.opcode()) {
                    ids.compose(out);
                }
                put_operation(operation, out);
            }
        }
    }
}

/// Decodes the place of a request, if the flags state one; an outer `None` if it is malformed.
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

/// Encodes a namespace (`None` for a name that the server resolves), a byte for flags, and a name.
fn put_name(namespace: impl Into<Option<Namespace>>, flags: u8, name: &[u8], out: &mut Vec<u8>) {
    out.put_u8(namespace_code(namespace.into()));
    out.put_u8(flags);
    name.compose(out);
}

/// Returns whether the body of an operation begins with request ids.
fn has_ids(opcode: ExtendedOpcode) -> bool {
    !matches!(
        opcode,
        ExtendedOpcode::DeleteCounter
            | ExtendedOpcode::CancelWaiting
            | ExtendedOpcode::RevokeClient
            | ExtendedOpcode::RevokeIdentity
    )
}

fn read_operation<'a>(opcode: ExtendedOpcode, fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    Some(match opcode {
        ExtendedOpcode::Declare => {
            Operation::Declare { if_exists: Part::read(fields)?, declarations: read_declarations(fields)? }
        }
        ExtendedOpcode::Resize => {
            let (expected, how) = (Part::read(fields)?, Part::read(fields)?);
            Operation::Resize { expected, how, name: fields.name()? }
        }
        ExtendedOpcode::Remove => {
            let (expected, how) = (Part::read(fields)?, Part::read(fields)?);
            Operation::Remove { expected, how, name: fields.name()? }
        }
        ExtendedOpcode::Pause | ExtendedOpcode::SetSlot => {
            let expected = Part::read(fields)?;
            let [code, _] = fields.array()?;
            let slot = fields.u16()?;
            let how = match (opcode, code) {
                (ExtendedOpcode::Pause, 0) => ServiceChange::Pause,
                (ExtendedOpcode::Pause, 1) => ServiceChange::Resume,
                (ExtendedOpcode::SetSlot, 0) => ServiceChange::SlotOut(slot),
                (ExtendedOpcode::SetSlot, 1) => ServiceChange::SlotIn(slot),
                _ => return None,
            };
            Operation::ChangeService { expected, how, name: fields.name()? }
        }
        ExtendedOpcode::DeleteCounter => Operation::DeleteCounter { name: fields.name()? },
        ExtendedOpcode::CancelWaiting => {
            let [kind, _, _, _] = fields.array()?;
            let number = fields.u64()?;
            Operation::Cancel(match kind {
                0 => Cancellation::Request(GrantId(number)),
                1 => Cancellation::Session(SessionId::from_number(number)?),
                _ => return None,
            })
        }
        ExtendedOpcode::Revoke => {
            let [kind, _, _, _] = fields.array()?;
            let (grace, number) = (Part::read(fields)?, fields.u64()?);
            let what = match kind {
                0 => Revocation::Grant(GrantId(number)),
                1 => Revocation::Session(SessionId::from_number(number)?),
                _ => return None,
            };
            Operation::Revoke { what, grace }
        }
        ExtendedOpcode::RevokeClient => {
            Operation::Revoke { grace: Part::read(fields)?, what: Revocation::Addresses(Part::read(fields)?) }
        }
        ExtendedOpcode::RevokeIdentity => {
            Operation::Revoke { grace: Part::read(fields)?, what: Revocation::Identity(fields.text()?) }
        }
        _ => return None,
    })
}

fn put_operation(operation: &Operation<'_>, out: &mut Vec<u8>) {
    match operation {
        Operation::Declare { if_exists, declarations } => {
            if_exists.compose(out);
            put_declarations(declarations, out);
        }
        Operation::Resize { name, how, expected } => {
            expected.compose(out);
            how.compose(out);
            name.compose(out);
        }
        Operation::Remove { name, how, expected } => {
            expected.compose(out);
            how.compose(out);
            name.compose(out);
        }
        Operation::ChangeService { name, how, expected } => {
            let (code, slot) = match *how {
                ServiceChange::Pause => (0, 0),
                ServiceChange::Resume => (1, 0),
                ServiceChange::SlotOut(slot) => (0, slot),
                ServiceChange::SlotIn(slot) => (1, slot),
            };
            expected.compose(out);
            out.put_slice(&[code, 0]);
            out.put_u16(slot);
            name.compose(out);
        }
        Operation::DeleteCounter { name } => name.compose(out),
        Operation::Cancel(what) => {
            let (kind, number) = match what {
                Cancellation::Request(id) => (0, id.0),
                Cancellation::Session(session) => (1, session.number()),
            };
            out.put_slice(&[kind, 0, 0, 0]);
            out.put_u64(number);
        }
        Operation::Revoke { what: Revocation::Addresses(addresses), grace } => {
            grace.compose(out);
            addresses.compose(out);
        }
        Operation::Revoke { what: Revocation::Identity(identity), grace } => {
            grace.compose(out);
            identity.compose(out);
        }
        Operation::Revoke { what: Revocation::Grant(GrantId(number)), grace } => {
            put_revocation(0, *number, *grace, out)
        }
        Operation::Revoke { what: Revocation::Session(session), grace } => {
            put_revocation(1, session.number(), *grace, out);
        }
    }
}

fn put_revocation(kind: u8, number: u64, grace: Milliseconds, out: &mut Vec<u8>) {
    out.put_slice(&[kind, 0, 0, 0]);
    grace.compose(out);
    out.put_u64(number);
}
