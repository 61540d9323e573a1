//! Checks answers to requests with an id, against what the client was answered before.
//!
//! Such an answer never changes. After a restart of the server, this holds only for a grant that is still held.

use signalbox_model::{Milliseconds, Status, TtlLeft};
use signalbox_protocol::ResponseFrame;

use super::answers::{Answer, SessionEvidence, Via, is_not_stored};
use super::session_connection::{PendingRequest, RequestKind, SessionConnection};
use super::session_view::{Operation, Part, RecordedAnswer, Request, SessionView};
use crate::grant_expectations::{ExpectedGrant, GrantExpectations};
use crate::scene::{Scene, key};

/// Checks the answer to a request with an id, and records it.
pub fn check_request_answer(
    scene: &Scene,
    view: &mut SessionView,
    (via, connection): (Via, &SessionConnection),
    id: u64,
    answer: &Answer<'_>,
) -> Result<SessionEvidence, String> {
    let Answer { opaque, pending, frame } = answer;
    let may_be_over = view.may_be_over();
    // The client forgot the request after another answer to it.
    let Some(request) = view.requests.get_mut(&id) else { return Ok(SessionEvidence::Unknown) };
    let status = Status::from_code(frame.status).ok_or("an unknown status")?;
    let is_newest = request.newest == (connection.local, *opaque);
    match status {
        Status::NoSuchSession if matches!(request.operation, Operation::Revoke { .. }) => {
            // The missing session may be its own or the one to be revoked. The client cannot know, so it does not
            // repeat the request.
            view.requests.remove(&id);
            return Ok(SessionEvidence::Unknown);
        }
        Status::NoSuchSession => return Ok(SessionEvidence::Ended),
        // A later copy of the request has taken over its wait, and is answered instead.
        Status::Canceled if !is_newest => return Ok(SessionEvidence::Unknown),
        Status::Revoked => return Ok(SessionEvidence::Ended),
        Status::Canceled if view.has_late_attachment && !request.is_canceled => {
            return Ok(SessionEvidence::Unknown);
        }
        Status::Canceled if may_be_over && !request.is_canceled => return Ok(SessionEvidence::Ended),
        _ => {}
    }
    let is_expected = |grant| {
        let is_expected =
            |expectations: &mut GrantExpectations, now_ms| expectations.is_expected(grant, now_ms);
        scene.with_expectations(view.life, is_expected).unwrap_or(true)
    };
    // A restarted server remembers what is held. Other requests are made again.
    let is_forgotten = |answer: &mut RecordedAnswer| answer.life != view.life && !is_expected(answer.grant);
    let forgotten = request.answer.take_if(is_forgotten);
    let (mut grant, mut slots) = (0, Vec::new());
    if status == Status::NoError {
        if let Operation::Release { grant, .. } = &request.operation {
            let mut state = scene.state();
            let now_ms = state.now_ms;
            state.flights.end(*grant, now_ms);
            drop(state);
            if view.key.is_some() {
                scene.acknowledge_release(view.life, [*grant]);
            }
        }
        if let Operation::Acquire { parts, is_all, is_shared, .. } = &request.operation {
            let granted = check_granted(scene, parts, *is_all, frame)?;
            (grant, slots) = (granted.grant, granted.slots);
            match granted.ttl_left {
                _ if may_be_over => {}
                TtlLeft::For(Milliseconds(left_ms)) if view.key.is_some() => {
                    let until_ms = pending.sent_ms + u64::from(left_ms);
                    scene.with_expectations(view.life, |expectations, _| {
                        expectations.renew(view.session, until_ms, view.ttl_ms);
                    });
                }
                TtlLeft::Connection if view.key.is_none() => {}
                _ => return Err("a lease of the wrong kind".to_owned()),
            }
            if request.is_surely_canceled {
                return Err("it was granted after its cancellation was confirmed".to_owned());
            }
            let is_known = forgotten.is_some_and(|answer| answer.grant == grant);
            if request.answer.is_none() && !is_known {
                if request.first_life == view.life && scene.predates_start(view.life, grant) {
                    return Err("a grant id from before the restart of the server".to_owned());
                }
                if view.released.contains(&grant) || !view.held.insert(grant) {
                    return Err("the grant of another request".to_owned());
                }
                let owner = view.key.is_none().then_some(connection.local);
                let parts = SessionView::parts_of(parts);
                if !view.is_closed {
                    let slots = parts.iter().map(|(key, _)| key.clone()).zip(slots.iter().cloned()).collect();
                    let (session, is_shared) = (view.session, *is_shared);
                    let expected = ExpectedGrant { session, connection: owner, parts, slots, is_shared };
                    scene.expect_grant(connection.local, view.life, grant, expected);
                }
            }
        }
    } else {
        let is_right = match &request.operation {
            Operation::Acquire { parts, queue_max, .. } => {
                let is_not_stored = view.key.is_some() && is_not_stored(scene, frame, request.first_sent_ms);
                if is_not_stored {
                    view.not_stored = parts.first().cloned();
                    view.not_stored_life = Some(view.life);
                }
                is_not_stored || may_be_refused(scene, request, *queue_max, status, pending)
            }
            Operation::Release { grant, .. } => {
                let is_revoked = scene.with_expectations(view.life, |expectations, now_ms| {
                    expectations.is_revoked(*grant, now_ms)
                });
                // Releases are not remembered, and the previous server may have carried out one that is repeated.
                let may_be_done = !request.is_sure || request.first_life != view.life;
                let may_be_lost = may_be_done || is_revoked.unwrap_or(true) || may_be_over;
                status == Status::NotAcquired && may_be_lost
            }
            Operation::Revoke { .. } => status == Status::NotAcquired,
        };
        if !is_right {
            return Err("an unexpected status".to_owned());
        }
    }
    let answer = RecordedAnswer { status: frame.status, grant, slots, life: view.life };
    let first = request.answer.get_or_insert_with(|| answer.clone());
    first.life = view.life;
    if *first != answer {
        return Err(format!("it was answered differently before: {first:x?}"));
    }
    // The request on the previous connection may have arrived when that was no longer attached.
    Ok(if via == Via::Newest { SessionEvidence::Alive } else { SessionEvidence::Unknown })
}

/// The grant in an answer.
struct Granted {
    grant: u64,
    ttl_left: TtlLeft,
    slots: Vec<Vec<u16>>,
}

fn check_granted(
    scene: &Scene,
    parts: &[Part],
    is_all: bool,
    frame: &ResponseFrame,
) -> Result<Granted, String> {
    let (answered, capacities) = if is_all {
        let granted = frame.all_granted().map_err(|_| "no grant")?;
        let answered = Granted { grant: granted.grant.0, ttl_left: granted.ttl_left, slots: granted.slots };
        (answered, granted.capacities)
    } else {
        let granted = frame.granted().map_err(|_| "no grant")?;
        if granted.resources != parts[0].resources {
            return Err("not the requested resources".to_owned());
        }
        let answered =
            Granted { grant: granted.grant.0, ttl_left: granted.ttl_left, slots: vec![granted.slots] };
        (answered, vec![granted.capacity])
    };
    let maxima: Vec<_> = parts.iter().map(|part| part.maximum).collect();
    if capacities != maxima {
        return Err("another capacity".to_owned());
    }
    for (place, part) in parts.iter().enumerate() {
        let slots = answered.slots.get(place).map_or(&[][..], Vec::as_slice);
        let is_numbered = scene.is_numbered(&key(part.namespace, &part.name));
        let expected = if is_numbered { part.resources as usize } else { 0 };
        if slots.len() != expected || slots.iter().any(|slot| u32::from(*slot) >= part.maximum) {
            return Err("not the requested slots".to_owned());
        }
    }
    Ok(answered)
}

fn may_be_refused(
    scene: &Scene,
    request: &Request,
    queue_max: Option<u32>,
    status: Status,
    pending: &PendingRequest,
) -> bool {
    let RequestKind::Request { wait_ms, .. } = pending.kind else { return false };
    let is_patient = wait_ms.is_some();
    match status {
        Status::ResourceNotAvailable => !is_patient,
        Status::TimedOut => {
            let until_ms = request.first_sent_ms + u64::from(wait_ms.unwrap_or(0));
            is_patient && scene.state().now_ms >= until_ms && !request.is_surely_canceled
        }
        Status::QueueFull => queue_max.is_some(),
        Status::Canceled => request.is_canceled,
        Status::Done => {
            let Operation::Acquire { parts, is_shared: true, .. } = &request.operation else { return false };
            let key = key(parts[0].namespace, &parts[0].name);
            is_patient && scene.state().flights.may_be_done(&key, request.first_sent_ms)
        }
        _ => false,
    }
}
