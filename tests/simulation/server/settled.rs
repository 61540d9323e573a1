//! Whether an answer to a request with an id is possible, by what its client was answered before.
//!
//! Such an answer stays what it was; but of a server that was started again, only that of a grant which is still held.

use signalbox::protocol::{Milliseconds, ResponseFrame, Status, TtlLeft};

use super::line::{Awaited, Line, Outcome};
use super::tenancy::{Answered, Errand, Part, Request, Tenancy};
use super::verdict::{Answer, Heard, Place, is_not_stored};
use crate::claims::{Claim, Claims};
use crate::scene::{Scene, key};

/// Requests that have an id.
pub fn judge_request(
    scene: &Scene,
    tenancy: &mut Tenancy,
    (place, line): (Place, &Line),
    id: u64,
    answer: &Answer<'_>,
) -> Result<Heard, String> {
    let Answer { opaque, awaited, frame } = answer;
    let may_be_over = tenancy.may_be_over();
    // Forgotten, as it was answered elsewhere.
    let Some(request) = tenancy.requests.get_mut(&id) else { return Ok(Heard::Nothing) };
    let status = Status::from_code(frame.status).ok_or("an unknown status")?;
    let is_newest = request.newest == (line.local, *opaque);
    match status {
        Status::NoSuchSession if matches!(request.errand, Errand::Revoke { .. }) => {
            // Its own session or the one to be revoked: there is no telling, so it is not asked again.
            tenancy.requests.remove(&id);
            return Ok(Heard::Nothing);
        }
        Status::NoSuchSession => return Ok(Heard::NoSession),
        // What was sent later has taken its waiting over, and is answered instead.
        Status::Canceled if !is_newest => return Ok(Heard::Nothing),
        Status::Revoked => return Ok(Heard::NoSession),
        Status::Canceled if tenancy.has_rival && !request.is_canceled => return Ok(Heard::Nothing),
        Status::Canceled if may_be_over && !request.is_canceled => return Ok(Heard::NoSession),
        _ => {}
    }
    let is_believed = |grant| {
        let is_believed = |claims: &mut Claims, now_ms| claims.is_believed(grant, now_ms);
        scene.with_claims(tenancy.life, is_believed).unwrap_or(true)
    };
    // A server that was started again remembers what is held. The rest is asked anew.
    let is_forgotten = |answer: &mut Answered| answer.life != tenancy.life && !is_believed(answer.grant);
    let forgotten = request.answer.take_if(is_forgotten);
    let (mut grant, mut slots) = (0, Vec::new());
    if status == Status::NoError {
        if let Errand::Release { grant } = &request.errand
            && tenancy.key.is_some()
        {
            scene.give_back(tenancy.life, [*grant]);
        }
        if let Errand::Acquire { parts, is_all, .. } = &request.errand {
            let granted = judge_granted(scene, parts, *is_all, frame)?;
            (grant, slots) = (granted.grant, granted.slots);
            match granted.ttl_left {
                _ if may_be_over => {}
                TtlLeft::For(Milliseconds(left_ms)) if tenancy.key.is_some() => {
                    let until_ms = awaited.sent_ms + u64::from(left_ms);
                    scene.with_claims(tenancy.life, |claims, _| {
                        claims.renew(tenancy.session, until_ms, tenancy.ttl_ms);
                    });
                }
                TtlLeft::Connection if tenancy.key.is_none() => {}
                _ => return Err("a lease of the wrong kind".to_owned()),
            }
            if request.is_surely_canceled {
                return Err("it does not wait any more".to_owned());
            }
            let is_known = forgotten.is_some_and(|answer| answer.grant == grant);
            if request.answer.is_none() && !is_known {
                if request.first_life == tenancy.life && scene.is_of_before(tenancy.life, grant) {
                    return Err("a number from before the server was started again".to_owned());
                }
                if tenancy.released.contains(&grant) || !tenancy.held.insert(grant) {
                    return Err("the grant of another request".to_owned());
                }
                let connection = tenancy.key.is_none().then_some(line.local);
                let parts = Tenancy::parts_of(parts);
                if !tenancy.is_closed {
                    let slots = parts.iter().map(|(key, _)| key.clone()).zip(slots.iter().cloned()).collect();
                    let claim = Claim { session: tenancy.session, connection, parts, slots };
                    scene.claim(line.local, tenancy.life, grant, claim);
                }
            }
        }
    } else {
        let is_right = match &request.errand {
            Errand::Acquire { parts, queue_max, .. } => {
                let is_not_stored =
                    tenancy.key.is_some() && is_not_stored(scene, frame, request.first_sent_ms);
                if is_not_stored {
                    tenancy.not_stored = parts.first().cloned();
                    tenancy.not_stored_life = Some(tenancy.life);
                }
                is_not_stored || is_refused_rightly(scene, request, *queue_max, status, awaited)
            }
            Errand::Release { grant } => {
                let is_taken =
                    scene.with_claims(tenancy.life, |claims, now_ms| claims.is_taken(*grant, now_ms));
                // A release is not remembered; and one that is repeated may have been done by the server of before.
                let may_be_done = !request.is_sure || request.first_life != tenancy.life;
                let may_be_lost = may_be_done || is_taken.unwrap_or(true) || may_be_over;
                status == Status::NotAcquired && may_be_lost
            }
            Errand::Revoke { .. } => status == Status::NotAcquired,
        };
        if !is_right {
            return Err("not to be expected".to_owned());
        }
    }
    let answer = Answered { status: frame.status, grant, slots, life: tenancy.life };
    let first = request.answer.get_or_insert_with(|| answer.clone());
    first.life = tenancy.life;
    if *first != answer {
        return Err(format!("it was answered {first:x?} before"));
    }
    // One that was left may have asked when it was not attached any more.
    Ok(if place == Place::Newest { Heard::Session } else { Heard::Nothing })
}

/// What a request was granted.
struct Told {
    grant: u64,
    ttl_left: TtlLeft,
    slots: Vec<Vec<u16>>,
}

fn judge_granted(scene: &Scene, parts: &[Part], is_all: bool, frame: &ResponseFrame) -> Result<Told, String> {
    let (told, capacities) = if is_all {
        let granted = frame.all_granted().map_err(|_| "no grant")?;
        let told = Told { grant: granted.grant.0, ttl_left: granted.ttl_left, slots: granted.slots };
        (told, granted.capacities)
    } else {
        let granted = frame.granted().map_err(|_| "no grant")?;
        if granted.resources != parts[0].resources {
            return Err("not what was asked for".to_owned());
        }
        let told = Told { grant: granted.grant.0, ttl_left: granted.ttl_left, slots: vec![granted.slots] };
        (told, vec![granted.capacity])
    };
    let maxima: Vec<_> = parts.iter().map(|part| part.maximum).collect();
    if capacities != maxima {
        return Err("another capacity".to_owned());
    }
    for (place, part) in parts.iter().enumerate() {
        let slots = told.slots.get(place).map_or(&[][..], Vec::as_slice);
        let is_numbered = scene.is_numbered(&key(part.namespace, &part.name));
        let expected = if is_numbered { part.resources as usize } else { 0 };
        if slots.len() != expected || slots.iter().any(|slot| u32::from(*slot) >= part.maximum) {
            return Err("not the slots that were asked for".to_owned());
        }
    }
    Ok(told)
}

fn is_refused_rightly(
    scene: &Scene,
    request: &Request,
    queue_max: Option<u32>,
    status: Status,
    awaited: &Awaited,
) -> bool {
    let Outcome::Request { wait_ms, .. } = awaited.asked else { return false };
    let is_patient = wait_ms.is_some();
    match status {
        Status::ResourceNotAvailable => !is_patient,
        Status::TimedOut => {
            let until_ms = request.first_sent_ms + u64::from(wait_ms.unwrap_or(0));
            is_patient && scene.state().now_ms >= until_ms && !request.is_surely_canceled
        }
        Status::QueueFull => queue_max.is_some(),
        Status::Canceled => request.is_canceled,
        _ => false,
    }
}
