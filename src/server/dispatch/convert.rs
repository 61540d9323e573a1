//! Conversions between the types of the core and those of the protocol. `*_of` converts from the protocol, `*_on_wire`
//! to it.

use std::num::NonZeroU32;

use signalbox_core::{
    Availability, Caller, Claim, Declare, Declared, DeclaredState, Errno, Event, EventKind, GrantId,
    IfExists, Inspected, Limit, LimitKind, Listed, ListedId, ListedSession, ListedSet, ListedUser,
    MonotonicMs, Namespace, Notice, Operation, Order, Origin, Ownership, Place, PlaceProof, Refusal, Removal,
    RequestId, RequestIds, Resizing, Scope, ServiceChange, SetStat, Token, Until, UserRole, Want,
};
use signalbox_protocol::{
    self as wire, AS_DECLARED, Generation, IPC_NOWAIT, Milliseconds, Opaque, SEM_UNDO, Status,
};

/// The status that stands for a refusal.
pub(in crate::server) fn status_of(refusal: Refusal) -> Status {
    match refusal {
        Refusal::NotFound => Status::NotFound,
        Refusal::NotAvailable => Status::ResourceNotAvailable,
        Refusal::NotAcquired => Status::NotAcquired,
        Refusal::TooManyNames => Status::OutOfMemory,
        Refusal::TimedOut => Status::TimedOut,
        Refusal::QueueFull => Status::QueueFull,
        Refusal::Canceled => Status::Canceled,
        Refusal::Revoked => Status::Revoked,
        Refusal::NoSuchSession => Status::NoSuchSession,
        Refusal::LimitReached(_) => Status::LimitReached,
        Refusal::StaleRequest | Refusal::OutOfRange => Status::InvalidArguments,
        Refusal::ShuttingDown => Status::ShuttingDown,
        Refusal::Removed => Status::Removed,
        Refusal::AlreadyExists => Status::AlreadyExists,
        Refusal::GenerationDiffers => Status::GenerationDiffers,
        Refusal::InUse => Status::InUse,
        Refusal::NoSuchSlot => Status::NoSuchSlot,
        Refusal::NotPermitted => Status::NotPermitted,
        Refusal::NotStored => Status::NotStored,
    }
}

pub(super) fn limit_on_wire(limit: Limit) -> wire::ReachedLimit {
    let Limit { kind, max, is_share } = limit;
    let limit = match kind {
        LimitKind::Sessions => wire::Limit::Sessions,
        LimitKind::Grants => wire::Limit::Grants,
        LimitKind::Waiters => wire::Limit::Waiters,
        LimitKind::Watches => wire::Limit::Watches,
        LimitKind::Requests => wire::Limit::Requests,
        LimitKind::Memory => wire::Limit::Memory,
    };
    wire::ReachedLimit { limit, max, is_share }
}

pub(in crate::server) fn namespace_of(namespace: wire::Namespace) -> Namespace {
    match namespace {
        wire::Namespace::Counters => Namespace::Counters,
        wire::Namespace::Semaphores => Namespace::Semaphores,
    }
}

pub(in crate::server) fn namespace_on_wire(namespace: Namespace) -> wire::Namespace {
    match namespace {
        Namespace::Counters => wire::Namespace::Counters,
        Namespace::Semaphores => wire::Namespace::Semaphores,
    }
}

/// A counter has no capacity of its own, so its capacity and what is available of it are 0 on the wire.
pub(in crate::server) fn inspected_on_wire(inspected: Inspected) -> wire::Inspected {
    let Inspected { in_use, peak, waiting, availability } = inspected;
    let Availability { capacity, available } =
        availability.unwrap_or(Availability { capacity: 0, available: 0 });
    wire::Inspected { in_use, peak, waiting, capacity, available }
}

/// The core identifies a connection's requests and watches by the opaque that the client chose.
pub(super) fn token_of(opaque: Opaque) -> Token {
    Token(u32::from_be_bytes(opaque.0).into())
}

pub(super) fn opaque_of(token: Token) -> Opaque {
    let [_, _, _, _, opaque @ ..] = token.0.to_be_bytes();
    Opaque(opaque)
}

pub(super) fn ids_of(ids: wire::RequestIds) -> RequestIds {
    RequestIds { own: RequestId(ids.own.0), lowest_unanswered: RequestId(ids.lowest_unanswered.0) }
}

pub(super) fn want_of(requested: wire::Claim<'_>) -> Result<Want<'_>, Status> {
    let claim = match (requested.namespace, requested.maximum) {
        (wire::Namespace::Semaphores, AS_DECLARED) => {
            NonZeroU32::new(requested.resources).map(Claim::of_existing)
        }
        // Only a declared semaphore has slots, so none is created.
        (wire::Namespace::Semaphores, _) if requested.slot.is_some() => {
            NonZeroU32::new(requested.resources).map(Claim::of_existing)
        }
        _ => Claim::new(requested.resources, requested.maximum),
    };
    let claim = claim.ok_or(Status::InvalidArguments)?;
    let (namespace, slot) = (namespace_of(requested.namespace), requested.slot);
    Ok(Want { namespace, name: requested.name, claim, slot })
}

pub(super) fn scope_of(scope: wire::Scope<'_>) -> Scope {
    match scope {
        wire::Scope::Name(name) => Scope::Name(name.into()),
        wire::Scope::Prefix(prefix) => Scope::Prefix(prefix.into()),
    }
}

pub(super) fn grant_on_wire(grant: GrantId) -> wire::GrantId {
    wire::GrantId(grant.0)
}

pub(super) fn place_of(place: wire::Place) -> Place {
    Place { id: GrantId(place.id.0), proof: PlaceProof(place.proof) }
}

pub(super) fn place_on_wire(place: Place) -> wire::Place {
    wire::Place { id: grant_on_wire(place.id), proof: place.proof.0 }
}

pub(super) fn ttl_left_on_wire(ttl_left_ms: Option<u32>) -> wire::TtlLeft {
    ttl_left_ms.map_or(wire::TtlLeft::Connection, |left_ms| wire::TtlLeft::For(Milliseconds(left_ms)))
}

pub(in crate::server) fn entry_on_wire<'a>(
    listed: &'a Listed,
    address: &'a [u8],
) -> wire::ListEntry<&'a [u8], &'a [u16]> {
    wire::ListEntry {
        grant: listed.grant.map(grant_on_wire),
        session: listed.session.number(),
        since: listed.since.map(|since| since.0),
        resources: listed.resources,
        position: listed.position,
        label: &listed.label,
        address,
        slots: &listed.slots,
    }
}

/// An age of more than a century is shown as that.
pub(in crate::server) fn session_on_wire<'a>(
    listed: &'a ListedSession,
    address: &'a [u8],
) -> wire::SessionEntry<&'a [u8]> {
    let (kind, session) = match listed.id {
        ListedId::Leased(session) => (wire::SessionKind::Leased, session.number()),
        ListedId::Connection(connection) => (wire::SessionKind::Connection, connection.number()),
        ListedId::Process(process) => (wire::SessionKind::Process, process.number()),
    };
    let identity = listed.client.as_ref().and_then(|client| client.identity.as_deref());
    wire::SessionEntry {
        kind,
        session,
        attached: listed.is_attached,
        age_s: listed.age_ms.map(|age_ms| u32::try_from(age_ms / 1000).unwrap_or(u32::MAX - 1)),
        grants: listed.grants,
        waiting: listed.waiting,
        ttl_left: ttl_left_on_wire(listed.ttl_left_ms),
        label: &listed.label,
        address,
        identity: identity.map_or(&[], str::as_bytes),
    }
}

pub(super) fn declare_of(declaration: wire::Declaration<'_>) -> Declare<'_> {
    let wire::Declaration { name, capacity, numbered, label } = declaration;
    Declare { name, capacity, numbered, label }
}

pub(super) fn if_exists_of(if_exists: wire::IfExists) -> IfExists {
    match if_exists {
        wire::IfExists::Fail => IfExists::Fail,
        wire::IfExists::Keep => IfExists::Keep,
        wire::IfExists::Set => IfExists::Set,
    }
}

pub(super) fn resizing_of(resizing: wire::Resizing) -> Resizing {
    match resizing {
        wire::Resizing::To(capacity) => Resizing::To(capacity),
        wire::Resizing::GrowBy(by) => Resizing::Grow(by),
        wire::Resizing::ShrinkBy(by) => Resizing::Shrink(by),
    }
}

pub(super) fn removal_of(removal: wire::Removal) -> Removal {
    match removal {
        wire::Removal::IfIdle => Removal::IfIdle,
        wire::Removal::WithLastHolder => Removal::WithLastHolder,
        wire::Removal::Now { grace } => Removal::Now { grace_ms: grace.0 },
    }
}

pub(super) fn pausing_of(pausing: wire::Pausing) -> ServiceChange {
    match pausing {
        wire::Pausing::Pause => ServiceChange::Pause,
        wire::Pausing::Resume => ServiceChange::Resume,
    }
}

pub(super) fn slot_change_of(change: wire::SlotChange) -> ServiceChange {
    match change {
        wire::SlotChange::Out(slot) => ServiceChange::SlotOut(slot),
        wire::SlotChange::In(slot) => ServiceChange::SlotIn(slot),
    }
}

pub(super) fn until_of(idle: wire::Idle) -> Until {
    match idle {
        wire::Idle::Level(level) => Until::Level(level),
        wire::Idle::Slot(slot) => Until::Slot(slot),
    }
}

pub(super) fn declared_state_on_wire(state: &DeclaredState) -> wire::DeclaredState {
    let DeclaredState { generation, capacity, in_use } = *state;
    wire::DeclaredState { generation: Generation(generation), capacity, in_use }
}

pub(in crate::server) fn declared_on_wire(declared: &Declared) -> wire::DeclaredEntry<&[u8], &[u16]> {
    let record = &declared.record;
    wire::DeclaredEntry {
        generation: Generation(record.generation),
        capacity: record.capacity,
        in_use: declared.in_use,
        waiting: declared.waiting,
        numbered: record.numbered,
        removing: record.removing,
        configured: record.origin == Origin::Configuration,
        paused: record.service.paused,
        name: &record.name,
        label: &record.label,
        slots_out: &record.service.slots_out,
    }
}

pub(super) fn event_on_wire(event: &Event, number: u64) -> wire::Event<&[u8]> {
    wire::Event {
        number,
        kind: match event.kind {
            EventKind::Present => wire::EventKind::Present,
            EventKind::Live => wire::EventKind::Live,
            EventKind::Missed => wire::EventKind::Missed,
            EventKind::Granted => wire::EventKind::Granted,
            EventKind::Released => wire::EventKind::Released,
            EventKind::Queued => wire::EventKind::Queued,
            EventKind::Left => wire::EventKind::Left,
            EventKind::Expired => wire::EventKind::Expired,
            EventKind::Revoked => wire::EventKind::Revoked,
            EventKind::Resized => wire::EventKind::Resized,
            EventKind::Removed => wire::EventKind::Removed,
            EventKind::Paused => wire::EventKind::Paused,
            EventKind::Resumed => wire::EventKind::Resumed,
            EventKind::SlotOut => wire::EventKind::SlotOut,
            EventKind::SlotIn => wire::EventKind::SlotIn,
        },
        namespace: namespace_on_wire(event.namespace),
        grant: event.grant.map(grant_on_wire),
        session: event.session.map(|session| session.number()),
        resources: event.resources,
        in_use: event.in_use,
        waiting: event.waiting,
        name: &event.name,
    }
}

/// A notice to a connection from which this request came last; `None`: it is [`Notice::Moved`], which needs more than the
/// core knows.
pub(super) fn notice_on_wire(
    notice: Notice,
    (request, received): (Opaque, MonotonicMs),
) -> Option<wire::Notice> {
    let end = |at| wire::End { request, after: Milliseconds(received.until(at)) };
    Some(match notice {
        Notice::GrantRevoked { grant, at } => {
            wire::Notice::GrantRevoked { grant: grant_on_wire(grant), end: end(at) }
        }
        Notice::SessionRevoked { session, at } => {
            wire::Notice::SessionRevoked { session: session.number(), end: end(at) }
        }
        Notice::AttachedElsewhere { session } => {
            wire::Notice::AttachedElsewhere { session: session.number() }
        }
        Notice::ShuttingDown => wire::Notice::ShuttingDown,
        Notice::Moved => return None,
    })
}

pub(super) fn caller_of(caller: wire::Caller) -> Caller {
    Caller { uid: caller.uid, gid: caller.gid }
}

pub(super) fn operation_of(operation: wire::Operation) -> Operation {
    let wire::Operation { number, change, flags } = operation;
    Operation { number, change, is_nowait: flags & IPC_NOWAIT != 0, is_undone: flags & SEM_UNDO != 0 }
}

fn operation_on_wire(operation: &Operation) -> wire::Operation {
    let Operation { number, change, is_nowait, is_undone } = *operation;
    let flags = if is_nowait { IPC_NOWAIT } else { 0 } | if is_undone { SEM_UNDO } else { 0 };
    wire::Operation { number, change, flags }
}

pub(super) fn stat_on_wire(stat: &SetStat) -> wire::SetStat {
    let SetStat { key, ownership, creator_uid, creator_gid, operated_at, changed_at, count } = *stat;
    let Ownership { uid, gid, mode } = ownership;
    let operated_at = operated_at.map_or(0, |at| at.0);
    wire::SetStat {
        key,
        uid,
        gid,
        creator_uid,
        creator_gid,
        mode,
        operated_at,
        changed_at: changed_at.0,
        count,
    }
}

pub(in crate::server) fn listed_set_on_wire(listed: &ListedSet) -> wire::ListedSet {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    wire::ListedSet {
        set: listed.set.number(),
        stat: stat_on_wire(&listed.stat),
        waiting: count(listed.waiting),
        adjusting: count(listed.adjusting),
        is_durable: listed.is_durable,
        is_fifo: listed.order == Order::Fifo,
    }
}

pub(in crate::server) fn listed_user_on_wire(listed: &ListedUser) -> wire::ListedUser {
    let role = match listed.role {
        UserRole::Adjusts => wire::UserRole::Adjusts,
        UserRole::Waits => wire::UserRole::Waits,
    };
    wire::ListedUser {
        role,
        process: listed.process.number(),
        pid: listed.pid,
        uid: listed.uid,
        label: listed.label.clone(),
        operations: listed.operations.iter().map(operation_on_wire).collect(),
    }
}

pub(super) fn errno_on_wire(errno: Errno) -> wire::Errno {
    match errno {
        Errno::Perm => wire::Errno::Perm,
        Errno::NoEnt => wire::Errno::NoEnt,
        Errno::Intr => wire::Errno::Intr,
        Errno::Io => wire::Errno::Io,
        Errno::TooBig => wire::Errno::TooBig,
        Errno::Again => wire::Errno::Again,
        Errno::NoMem => wire::Errno::NoMem,
        Errno::Access => wire::Errno::Access,
        Errno::Exist => wire::Errno::Exist,
        Errno::Inval => wire::Errno::Inval,
        Errno::FBig => wire::Errno::FBig,
        Errno::NoSpc => wire::Errno::NoSpc,
        Errno::Range => wire::Errno::Range,
        Errno::IdRm => wire::Errno::IdRm,
    }
}
