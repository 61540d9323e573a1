//! The table of access control: the right that each request needs, and the target on which it needs it.
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
        // The operation states its targets; `Requested::permitted` checks them.
        Extended::Change { .. } => None,
        // Keeping a session alive needs the same right as opening it.
        Extended::OpenSession { .. }
        | Extended::AttachSession { .. }
        | Extended::KeepAlive
        | Extended::Where => Some((Right::Acquire, Target::Anywhere)),
        Extended::AcquireGrant { claim, .. } => Some(of_claim(&claim)),
        Extended::AcquireAll { ref claims, .. } => claims.first().map(of_claim),
        // The request has no name. The core checks the right to read the names of the grant.
        Extended::VerifyGrant { .. } => Some((Right::Read, Target::Anywhere)),
        Extended::MayAdminister { namespace, name } => {
            Some((Right::Administer, Target::Name(namespace, name)))
        }
        // The right is checked once the name is resolved.
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
        // Sessions may have grants of any name.
        Extended::Sessions | Extended::Held { .. } => Some((Right::Read, Target::Server)),
        Extended::Export => Some((Right::Administer, Target::Server)),
    }
}

/// Returns the right that a request on semaphore sets needs. The owners and modes of the sets restrict it further.
pub(super) fn needed_for_sysv(request: &SysvRequest<'_>) -> Option<Needed<'static>> {
    let right = match request {
        // The request belongs to the end of a process, which is always permitted.
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
    // If the server resolves the name, it looks for a declared semaphore first.
    let namespace = claim.namespace.unwrap_or(Namespace::Semaphores);
    (Right::Acquire, Target::Name(namespace, claim.name))
}

/// Returns the right that a claim needs and the client lacks. If the server resolves the name and the client may
/// acquire it as one kind, nothing is missing here: the core determines the kind, and refuses the other one.
fn missing_for<'a>(standing: &Standing, claim: &Claim<'a>) -> Option<Needed<'a>> {
    let may = |namespace| standing.may(Right::Acquire, Target::Name(namespace, claim.name));
    if Namespace::one_or_all(claim.namespace).any(may) { None } else { Some(of_claim(claim)) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::access::Access;
    use super::super::super::client_address::{Client, ClientAddress};
    use super::super::super::clock::Clock;
    use super::*;
    use crate::config::Config;
    use signalbox_model::sysv::{Caller, ProcessId, SetCommand, SetId};
    use signalbox_model::{GrantId, Idle, Milliseconds, RequestIds, SessionId, SessionKey};
    use signalbox_protocol::{Claims, Opaque, Operations, Queueing, Wait, WaitingRequest};

    /// A client with these rights.
    fn standing(rights: &str) -> Standing {
        let mut config = Config::default();
        config.access.anonymous = Some(rights.parse().unwrap());
        let address = ClientAddress::of_peer(([192, 0, 2, 7], 1).into());
        let client = Client { address, certificate: Arc::default() };
        Standing::of(&Access::of(&config, Clock::system()), &client)
    }

    const QUEUEING: Queueing = Queueing { wait: Wait::NotAtAll, queue_max: None };

    #[test]
    fn a_client_that_is_limited_to_names_asks_for_these_and_for_nothing_that_shows_others() {
        let (own, other) = (&b"web/1"[..], &b"web"[..]);
        let namespace = Namespace::Semaphores;
        let key = SessionKey([0; 16]);
        let claim = |name| Claim { namespace: Some(namespace), name, resources: 1, maximum: 1, slot: None };
        let grant = |name| Extended::AcquireGrant {
            ids: RequestIds::FIRST,
            claim: claim(name),
            queueing: QUEUEING,
            place: None,
            is_shared: false,
        };
        let all = |names: [&'static [u8]; 2]| Extended::AcquireAll {
            ids: RequestIds::FIRST,
            queueing: QUEUEING,
            claims: Claims::new(&names.map(claim)).unwrap(),
            place: None,
        };
        let wait =
            |name| Extended::AwaitIdle { wait: Wait::NotAtAll, until: Idle::Level(0), namespace, name };
        let watch = |scope| Extended::Watch { namespace, scope };
        // The right that a request needs; empty: none. And whether a client has it on its names.
        for (request, right, is_permitted) in [
            (Extended::OpenSession { ttl: None, label: b"", key: None }, "acquire", true),
            (Extended::AttachSession { session: 1, key, repetitions: 0 }, "acquire", true),
            (Extended::KeepAlive, "acquire", true),
            (Extended::Where, "acquire", true),
            (grant(own), "acquire", true),
            (grant(other), "acquire", false),
            (all([own, b"web/2"]), "acquire", true),
            (all([own, other]), "acquire", false),
            (all([other, own]), "acquire", false),
            (Extended::VerifyGrant { grant: GrantId(1) }, "read", true),
            (Extended::MayAdminister { namespace, name: own }, "administer", true),
            (Extended::MayAdminister { namespace, name: other }, "administer", false),
            (Extended::Inspect { namespace: Some(namespace), name: own }, "read", true),
            (Extended::Inspect { namespace: Some(namespace), name: other }, "read", false),
            (Extended::Holders { namespace, name: own }, "read", true),
            (Extended::Holders { namespace, name: other }, "read", false),
            (Extended::Waiters { namespace, name: own }, "read", true),
            (Extended::Waiters { namespace, name: other }, "read", false),
            (wait(own), "read", true),
            (wait(other), "read", false),
            (watch(Scope::Name(own)), "read", true),
            (watch(Scope::Name(other)), "read", false),
            (watch(Scope::Prefix(b"web/")), "read", true),
            (watch(Scope::Prefix(other)), "read", false),
            (Extended::List { prefix: b"web/" }, "read", true),
            (Extended::List { prefix: b"" }, "read", false),
            (Extended::Sessions, "read", false),
            (Extended::Held { sessions: vec![SessionId::new(1)] }, "read", false),
            (Extended::Export, "administer", false),
            (Extended::CloseSession, "", true),
            (Extended::ReleaseGrant { ids: RequestIds::FIRST, grant: GrantId(1), is_done: false }, "", true),
            (Extended::Cancel(WaitingRequest::Opaque(Opaque([0; 4]))), "", true),
            (Extended::Unwatch { watch: Opaque([0; 4]) }, "", true),
        ] {
            for of_client in ["read", "acquire", "administer"] {
                let missing = missing(&standing(&format!("{of_client} limit:web/")), &request);
                let expected = is_permitted && (right.is_empty() || right == of_client);
                assert_eq!(missing.is_none(), expected, "{request:?} with {of_client}: {missing:?}");
                let missing = super::missing(&standing(of_client), &request);
                assert_eq!(
                    missing.is_none(),
                    right.is_empty() || right == of_client,
                    "{request:?}: {missing:?}"
                );
            }
        }
        for (request, right, is_permitted) in [
            (Request::Noop, "", true),
            (Request::Release { name: other, resources: 1 }, "", true),
            (Request::Get { name: own }, "read", true),
            (Request::Get { name: other }, "read", false),
            (Request::Acquire { name: own, resources: 1, maximum: 1 }, "acquire", true),
            (Request::Acquire { name: other, resources: 1, maximum: 1 }, "acquire", false),
            (Request::Stats, "read", false),
            (Request::Dump, "read", false),
        ] {
            for of_client in ["read", "acquire"] {
                let may = |rights: &str| {
                    let standing = standing(rights);
                    needed_for_plain(&request, namespace)
                        .is_none_or(|(right, target)| standing.may(right, target))
                };
                let has_right = right.is_empty() || right == of_client;
                assert_eq!(may(&format!("{of_client} limit:web/")), has_right && is_permitted, "{request:?}");
                assert_eq!(may(of_client), has_right, "{request:?} with {of_client}");
            }
        }
    }

    #[test]
    fn calls_on_semaphore_sets_need_a_right_on_them() {
        let (ids, caller, set) = (RequestIds::FIRST, Caller { uid: 1, gid: 1 }, SetId(1));
        let command = |command| SysvRequest::SemCtl { ids, caller, set, command };
        let open = SysvRequest::OpenProcess { ttl: None, pid: 1, caller, groups: Vec::new(), label: b"" };
        for (request, right) in [
            (open, "acquire"),
            (SysvRequest::AttachProcess { process: ProcessId(1), key: SessionKey([0; 16]) }, "acquire"),
            (SysvRequest::KeepProcess { grace: Milliseconds(1) }, ""),
            (SysvRequest::SemGet { ids, caller, key: 1, count: 1, flags: 0 }, "acquire"),
            (
                SysvRequest::SemOp { ids, caller, set, wait_ms: 0, operations: Operations::default() },
                "acquire",
            ),
            (command(SetCommand::Remove), "acquire"),
            (command(SetCommand::SetValue(0, 1)), "acquire"),
            (command(SetCommand::SetAll(Box::new([1]))), "acquire"),
            (command(SetCommand::GetValue(0)), "read"),
            (command(SetCommand::Stat), "read"),
            (SysvRequest::ListSets, "read"),
            (SysvRequest::ListUsers { set }, "read"),
        ] {
            for of_client in ["read", "acquire", "administer"] {
                for (area, is_of_sets) in [(" sysv", true), ("", true), (" limit", false)] {
                    let standing = standing(&format!("{of_client}{area}"));
                    let needed = needed_for_sysv(&request);
                    let may = needed.is_none_or(|(right, target)| standing.may(right, target));
                    let expected = right.is_empty() || right == of_client && is_of_sets;
                    assert_eq!(may, expected, "{request:?} with {of_client}{area}");
                }
            }
        }
    }
}
