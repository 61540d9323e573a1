//! Acquire: the first request with a key begins a lease, and a repetition of that request renews it.

use std::mem;

use hyper::StatusCode;

use super::super::super::state::Server;
use super::super::access::Right;
use super::super::answer::{Answer, ApiError, Json, RETRY_S};
use super::super::request::{Context, Requester, status_of};
use super::claims::Wanted;
use super::view::View;
use super::waiting::{Parking, Woken, mailbox};
use super::{TOKEN, end_lost, key, poll_ms};
use signalbox_core::{KeyedLease, KeyedRefusal, KeyedRequest, KeyedState, Kind, MonotonicMs, Want};
use signalbox_model::{LeaseKey, Milliseconds, Namespace, Quoted, Refusal, Target};

pub(in super::super) async fn acquire(mut context: Context) -> Answer {
    let answer = acquire_uncounted(&mut context).await;
    context.connection.shared.leases.note(answer)
}

async fn acquire_uncounted(context: &mut Context) -> Answer {
    let server = context.serving()?;
    let Begun { key, requester, received, poll_ms } = begin(context, &server)?;
    let requesters = [(key, requester)];
    let [(key, _)] = &requesters;
    let (mut parking, mut is_over) = (None, poll_ms == 0);
    loop {
        let lease = server.core.keyed_lease(key, received);
        let Some(lease) = lease else {
            let is_released = context.connection.shared.leases.released().contains(key);
            return Err(if is_released { released() } else { refused(&server, Refusal::Revoked, &[]) });
        };
        match lease.state {
            KeyedState::Over(refusal) => {
                end_lost(&server, key, refusal);
                return Err(refused(&server, refusal, &[]));
            }
            KeyedState::Held { .. } | KeyedState::Done => return Json::of(&View::of(Some(lease))),
            KeyedState::Queued { .. } if is_over => {
                return Json::with(StatusCode::ACCEPTED, &View::of(Some(lease)));
            }
            // The store has not written the lease in time, so the client has to repeat the request.
            KeyedState::Storing if is_over && parking.is_some() => {
                return Json::with(StatusCode::ACCEPTED, &View::of(Some(lease)));
            }
            KeyedState::Queued { .. } | KeyedState::Storing => {}
        }
        // Even a request that does not wait for its grant waits while its lease is being stored.
        let poll_ms = if is_over { u32::MAX } else { poll_ms };
        // Uses the time to live of the lease and not that of the request, because the limits may have changed since then.
        let parking = parking.get_or_insert_with(|| Parking::begin(context, &server, poll_ms, lease.ttl_ms));
        let woken = parking.wait(&requesters).await.inspect_err(|error| {
            if error.status == StatusCode::FORBIDDEN {
                leave_queue(&server, &requesters[0]);
            }
        })?;
        is_over |= woken == Woken::ToAnswer;
    }
}

/// A request that the core has accepted.
struct Begun<'a> {
    key: LeaseKey,
    requester: Requester<'a>,
    received: MonotonicMs,
    poll_ms: u32,
}

/// Asks the core for the grant. The claims are dropped afterwards, so that a request that waits takes little memory.
fn begin<'a>(context: &mut Context, server: &'a Server) -> Result<Begun<'a>, ApiError> {
    let mut parameters = mem::take(&mut context.parameters);
    let (key, poll_ms) = (key(&parameters.text("key")?.unwrap_or_default())?, poll_ms(&mut parameters)?);
    let wanted = Wanted::of(&mut parameters)?;
    parameters.end()?;
    let (text, wants) = (wanted.text(), wanted.wants(&context.permissions)?);
    // A client that may acquire only one kind of the name passes this check: the core resolves the kind, and refuses the
    // other one.
    let is_missing = |want: &&Want<'_>| matches!(want.kind, Kind::Resolved(kinds) if kinds.is_none());
    if let Some(want) = wants.iter().find(is_missing) {
        let target = Target::Name(Namespace::Counters, want.name);
        return Err(context.refuse(Right::Acquire, target));
    }
    if poll_ms > 0 && !context.connection.use_for_leases() {
        return Err(ApiError::busy());
    }
    let ttl_ms = server.config().session.ttl_ms(wanted.ttl_ms.map(Milliseconds));
    let request = KeyedRequest {
        key: &key,
        text: &text,
        ttl_ms,
        label: &wanted.label,
        wants: &wants,
        queueing: wanted.queueing(server),
        place: wanted.place,
    };
    let requester = Requester::open(server, mailbox(context), None);
    let received = server.moment();
    let asked = {
        // Locked until the core has the request, so that a release comes either before or after it.
        let keys = context.connection.shared.leases.released();
        if keys.contains(&key) {
            return Err(released());
        }
        server.core.acquire_keyed(requester.connection(), TOKEN, request, received)
    };
    match asked {
        Ok(()) => Ok(Begun { key, requester, received: received.monotonic, poll_ms }),
        Err(KeyedRefusal::Refused(Refusal::NotPermitted)) => {
            Err(context.refuse(Right::Acquire, Target::Anywhere))
        }
        Err(KeyedRefusal::Refused(refusal)) => Err(refused(server, refusal, &wants)),
        Err(KeyedRefusal::DifferentRequest | KeyedRefusal::NotPermitted) => Err(different()),
    }
}

/// Removes a request from the queue, because its client may no longer acquire its names, as on the service ports.
fn leave_queue(server: &Server, (key, requester): &(LeaseKey, Requester<'_>)) {
    let now = server.moment();
    let is_queued = |lease: &KeyedLease| matches!(lease.state, KeyedState::Queued { .. });
    if server.core.keyed_lease(key, now.monotonic).as_ref().is_some_and(is_queued) {
        // The answer is not awaited, because nothing depends on it.
        server.core.close_keyed(requester.connection(), TOKEN, key, false, now);
    }
}

fn different() -> ApiError {
    ApiError::new(
        StatusCode::CONFLICT,
        "different_request",
        "another request was made with this key; repeat that one, or draw a new key",
    )
}

fn released() -> ApiError {
    ApiError::new(StatusCode::GONE, "released", "the key was released; draw a new key for a new lease")
}

/// Returns the error for a refusal by the core. `wants` is empty for a request that has waited.
fn refused(server: &Server, refusal: Refusal, wants: &[Want<'_>]) -> ApiError {
    let (status, http) = (refusal.status(), status_of(refusal));
    let error = match refusal {
        Refusal::NotAvailable => not_available(server, wants),
        _ => {
            let advice = match refusal {
                Refusal::NotFound => {
                    "a name is not declared, so it needs a \"maximum\" and has no \"slot\"; declare it, or change the claim"
                }
                _ => status.advice(),
            };
            ApiError::new(
                http,
                status.name(),
                format!("the server has refused the request: {refusal}; {advice}"),
            )
        }
    };
    if http == StatusCode::SERVICE_UNAVAILABLE { error.retry_after(RETRY_S) } else { error }
}

/// Returns the error for resources that are not available: they are in use, more are requested than the capacity, or
/// nothing is granted for now.
fn not_available(server: &Server, wants: &[Want<'_>]) -> ApiError {
    let declared =
        wants.iter().filter_map(|want| Some((want, server.core.declared_semaphore(want.name)?.record)));
    let (mut too_much, mut is_paused) = (None, false);
    for (want, record) in declared {
        let (requested, capacity) = (want.claim.resources(), record.capacity);
        if requested > capacity {
            too_much = Some(format!(
                "{requested} of {} are requested, and its capacity is {capacity}",
                Quoted(want.name)
            ));
        }
        is_paused |= record.service.paused;
    }
    // A request that has waited is refused in this way only if it can no longer be granted.
    if wants.is_empty() {
        too_much = Some("more resources are requested than the semaphore has".to_owned());
    }
    let (code, message) = match too_much {
        Some(too_much) => ("too_much", format!("{too_much}; request fewer, or have it resized")),
        None if is_paused => (
            "paused",
            "the semaphore is paused and grants nothing for now; try again later, or wait with \"wait_ms\""
                .to_owned(),
        ),
        None => (
            "busy",
            "the requested resources are in use; try again later with a new key, or wait with \"wait_ms\""
                .to_owned(),
        ),
    };
    ApiError::new(StatusCode::CONFLICT, code, message)
}
