//! Which right each operation needs, and on what: the one table of access control.
//!
//! Operations that release are always permitted: Release, ReleaseGrant, Cancel, CloseSession, Unwatch, and the end of a
//! connection or a process. No client is prevented from releasing what others wait for.

use super::super::access::{Right, Standing};
use signalbox_model::{Claim, Namespace, Scope, Target};
use signalbox_protocol::{Extended, Request, SysvRequest};

/// A right that a request needs on a target.
pub(super) type Needed<'a> = (Right, Target<'a>);

/// Returns the right that a plain request needs, if any.
pub(super) fn needed_for_plain<'a>(request: &Request<'a>, namespace: Namespace) -> Option<Needed<'a>> {
    match *request {
        Request::Noop | Request::Release { .. } => None,
        Request::Get { name } => Some((Right::Read, Target::Name(namespace, name))),
        Request::Acquire { name, .. } => Some((Right::Acquire, Target::Name(namespace, name))),
        Request::Stats => Some((Right::Read, Target::Server)),
        Request::Dump => Some((Right::Read, Target::Prefix(namespace, b""))),
    }
}

/// Returns the right that an extended request needs and the client lacks.
pub(super) fn missing<'a>(standing: &Standing, request: &Extended<'a>) -> Option<Needed<'a>> {
    let lacks = |needed: &Needed<'_>| !standing.may(needed.0, needed.1);
    match *request {
        Extended::AcquireGrant { claim, .. } => missing_for(standing, &claim),
        Extended::AcquireAll { ref claims, .. } => {
            claims.iter().find_map(|claim| missing_for(standing, claim))
        }
        ref request => needed(request).filter(lacks),
    }
}

/// Returns the right that an extended request needs; if it has several names, on the first of them.
pub(super) fn needed<'a>(request: &Extended<'a>) -> Option<Needed<'a>> {
    let read = |namespace, name| Some((Right::Read, Target::Name(namespace, name)));
    match *request {
        Extended::Hello { .. }
        | Extended::CloseSession
        | Extended::ReleaseGrant { .. }
        | Extended::Cancel(_)
        | Extended::Unwatch { .. } => None,
        // The operation knows its targets; `Requested::permitted` checks them.
        Extended::Change { .. } => None,
        // Keeping a session alive needs the same right as opening it.
        Extended::OpenSession { .. }
        | Extended::AttachSession { .. }
        | Extended::KeepAlive
        | Extended::Where => Some((Right::Acquire, Target::Anywhere)),
        Extended::AcquireGrant { claim, .. } => Some(of_claim(&claim)),
        Extended::AcquireAll { ref claims, .. } => claims.first().map(of_claim),
        // The request has no name. The core checks the right to read those of the grant.
        Extended::VerifyGrant { .. } => Some((Right::Read, Target::Anywhere)),
        Extended::MayAdminister { namespace, name } => {
            Some((Right::Administer, Target::Name(namespace, name)))
        }
        // Checked again when the name is resolved.
        Extended::Inspect { namespace: None, .. } => None,
        Extended::Inspect { namespace: Some(namespace), name }
        | Extended::Holders { namespace, name }
        | Extended::Waiters { namespace, name }
        | Extended::AwaitIdle { namespace, name, .. } => read(namespace, name),
        Extended::Watch { namespace, scope: Scope::Name(name) } => read(namespace, name),
        Extended::Watch { namespace, scope: Scope::Prefix(prefix) } => {
            Some((Right::Read, Target::Prefix(namespace, prefix)))
        }
        Extended::List { prefix } => Some((Right::Read, Target::Prefix(Namespace::Semaphores, prefix))),
        // Sessions have grants of all names.
        Extended::Sessions | Extended::Held { .. } => Some((Right::Read, Target::Server)),
        Extended::Export => Some((Right::Administer, Target::Server)),
    }
}

/// Returns the right that a request on semaphore sets needs. Within that, the owners and modes of the sets decide.
pub(super) fn needed_for_sysv(request: &SysvRequest<'_>) -> Option<Needed<'static>> {
    let right = match request {
        // It belongs to the end of a process, which is always permitted.
        SysvRequest::KeepProcess { .. } => return None,
        SysvRequest::OpenProcess { .. }
        | SysvRequest::AttachProcess { .. }
        | SysvRequest::SemGet { .. }
        | SysvRequest::SemOp { .. } => Right::Acquire,
        SysvRequest::SemCtl { command, .. } if command.is_change() => Right::Acquire,
        SysvRequest::SemCtl { .. } | SysvRequest::ListSets | SysvRequest::ListUsers { .. } => Right::Read,
    };
    Some((right, Target::Sets))
}

fn of_claim<'a>(claim: &Claim<'a>) -> Needed<'a> {
    // The server resolves a name to a declared semaphore first.
    let namespace = claim.namespace.unwrap_or(Namespace::Semaphores);
    (Right::Acquire, Target::Name(namespace, claim.name))
}

/// Returns the right that a claim needs and the client lacks. If the server resolves the name and the client may
/// acquire it as one kind, nothing is missing here: the core determines the kind, and refuses the other one.
fn missing_for<'a>(standing: &Standing, claim: &Claim<'a>) -> Option<Needed<'a>> {
    let may = |namespace| standing.may(Right::Acquire, Target::Name(namespace, claim.name));
    if Namespace::one_or_all(claim.namespace).any(may) { None } else { Some(of_claim(claim)) }
}
