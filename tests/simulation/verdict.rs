//! Whether an answer is possible, by what its client was answered before.
//!
//! A client knows until when its lease lasts at least, and which connection it attached last. So it knows when the server
//! must still have its session, and when it may be refused.

use signalbox::protocol::{EventKind, GrantId, Milliseconds, Notice, ResponseFrame, Status, TtlLeft};

use crate::claims::Claim;
use crate::line::{Asked, Awaited, Line};
use crate::scene::Scene;
use crate::support::OK;
use crate::tenancy::{Errand, NO_GRANT, Part, Request, Tenancy};

/// Which of a client's connections an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The one that was attached last.
    Newest,
    /// The one before that.
    Left,
}

/// What an answer says of the session.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// It was there when the request was received.
    Session,
    /// It is over.
    NoSession,
    /// Another connection of the client is attached to it.
    Detached,
    Nothing,
}

/// An answer, and what it answers.
pub struct Answer<'a> {
    pub opaque: u32,
    pub awaited: Awaited,
    pub frame: &'a ResponseFrame,
}

/// Takes an answer to what the client knows, or says what is wrong with it.
pub fn judge(
    scene: &Scene,
    tenancy: &mut Tenancy,
    (place, line): (Place, &mut Line),
    answer: &Answer<'_>,
) -> Result<Heard, String> {
    let heard = match answer.awaited.asked {
        Asked::Request { id, .. } => judge_request(scene, tenancy, (place, line), id, answer),
        Asked::Watch { .. } | Asked::Unwatch { .. } | Asked::Hello => judge_party(scene, line, answer),
        _ => judge_session(scene, tenancy, (place, line), answer),
    }?;
    match heard {
        Heard::Session if place == Place::Newest && line.is_attached => {
            tenancy.renew(answer.awaited.sent_ms, tenancy.ttl_ms);
        }
        // A connection that was left has lost its session; the client has not. But what was sent behind a refused
        // attachment is for the connection's own session, and nobody's concern.
        Heard::NoSession if place == Place::Left && !matches!(answer.awaited.asked, Asked::Attach) => {
            return Ok(Heard::Nothing);
        }
        Heard::NoSession if tenancy.may_be_over() => {}
        Heard::NoSession if tenancy.has_rival && line.is_attached => return Ok(Heard::Detached),
        Heard::NoSession => return Err("its session cannot be over".to_owned()),
        _ => {}
    }
    Ok(heard)
}

/// What a connection says and hears for itself.
fn judge_party(scene: &Scene, line: &mut Line, answer: &Answer<'_>) -> Result<Heard, String> {
    let Answer { opaque, awaited, frame } = answer;
    let is_ok = frame.status == OK;
    match awaited.asked {
        Asked::Hello if line.own.is_none() => {
            let hello = frame.hello().map_err(|_| "no Hello")?;
            line.own = Some(hello.session);
            let local = line.local;
            scene.with_claims(scene.life_of(local), |claims, _| claims.introduce(hello.session, local));
        }
        Asked::Hello => match frame.notice() {
            Ok(Some(Notice::ShuttingDown { .. })) | Err(_) => return Err("no notice to be had".to_owned()),
            Ok(_) => {}
        },
        Asked::Watch { number, is_live } => {
            if !is_ok {
                let is_right =
                    !line.says_hello && Status::from_code(frame.status) == Some(Status::NotPermitted);
                return is_right.then_some(Heard::Nothing).ok_or_else(|| "no watch".to_owned());
            }
            let event = frame.event().map_err(|_| "no event")?;
            let is_live_now = matches!(event.kind, EventKind::Live);
            if event.number != number + 1 || (is_live_now && is_live) {
                return Err("an event out of turn".to_owned());
            }
            if let Some(awaited) = line.awaited.get_mut(opaque) {
                awaited.asked = Asked::Watch { number: event.number, is_live: is_live || is_live_now };
            }
        }
        Asked::Unwatch { watch } => {
            line.awaited.remove(&watch);
            if !is_ok && Status::from_code(frame.status) != Some(Status::NotFound) {
                return Err("a watch that cannot be ended".to_owned());
            }
        }
        _ => unreachable!("the others are judged by those who know of sessions"),
    }
    Ok(Heard::Nothing)
}

/// Requests without an id that are about a session.
fn judge_session(
    scene: &Scene,
    tenancy: &mut Tenancy,
    (place, line): (Place, &mut Line),
    answer: &Answer<'_>,
) -> Result<Heard, String> {
    let Answer { awaited, frame, .. } = answer;
    let status = Status::from_code(frame.status);
    let is_ok = frame.status == OK;
    let is_leased = tenancy.is_leased();
    match awaited.asked {
        Asked::Outlived if status == Some(Status::NoSuchSession) => Ok(Heard::Nothing),
        Asked::Outlived => Err("another connection is attached".to_owned()),
        // Of a session that is not leased there is nothing to be told; where it is, this is its end.
        Asked::KeepAlive | Asked::Close if status == Some(Status::NoSuchSession) && !is_leased => {
            Ok(Heard::Nothing)
        }
        Asked::Attach | Asked::KeepAlive | Asked::Close | Asked::Cancel { .. }
            if status == Some(Status::NoSuchSession) =>
        {
            Ok(Heard::NoSession)
        }
        Asked::Attach => {
            if !is_ok || frame.ttl() != Ok(Milliseconds(tenancy.ttl_ms)) {
                return Err("not attached".to_owned());
            }
            line.is_attached = true;
            if place == Place::Newest {
                tenancy.attached();
            }
            Ok(Heard::Session)
        }
        Asked::KeepAlive => {
            let ttl = frame.ttl().map_err(|_| "no ttl")?;
            if !is_ok || !is_leased || ttl.0 > tenancy.ttl_ms {
                return Err("too long a lease".to_owned());
            }
            tenancy.renew(awaited.sent_ms, ttl.0);
            Ok(Heard::Session)
        }
        Asked::Close if is_ok && is_leased => Ok(Heard::Nothing),
        Asked::Cancel { id } if is_ok => {
            if let Some(request) = tenancy.requests.get_mut(&id) {
                request.is_surely_canceled = true;
                if request.answer.is_some_and(|(status, _)| status == OK) {
                    return Err("it was granted and did not wait".to_owned());
                }
            }
            Ok(Heard::Session)
        }
        Asked::Cancel { .. } if status == Some(Status::NotFound) => Ok(Heard::Session),
        Asked::Verify { .. } if is_ok => Ok(Heard::Nothing),
        Asked::Verify { grant } => {
            let is_believed =
                scene.with_claims(tenancy.life, |claims, now_ms| claims.is_believed(grant, now_ms));
            if status != Some(Status::NotAcquired) || is_believed.unwrap_or(false) {
                return Err("somebody relies on that grant".to_owned());
            }
            Ok(Heard::Nothing)
        }
        Asked::List { .. } if status == Some(Status::NotFound) => Ok(Heard::Nothing),
        Asked::List { is_quiet } if is_ok => {
            let entry = frame.list_entry().map_err(|_| "no entry")?;
            let Some(entry) = entry.filter(|entry| is_quiet && entry.session == tenancy.session) else {
                return Ok(Heard::Nothing);
            };
            if let Some(GrantId(grant)) = entry.grant
                && !tenancy.held.contains(&grant)
                && !tenancy.released.contains(&grant)
            {
                return Err("a grant that its holder was not told of".to_owned());
            }
            Ok(Heard::Nothing)
        }
        _ => Err("not to be expected".to_owned()),
    }
}

/// Requests that have an id.
fn judge_request(
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
    let mut grant = 0;
    if status == Status::NoError {
        if let Errand::Acquire { parts, is_all, .. } = &request.errand {
            let (told, ttl_left) = judge_granted(parts, *is_all, frame)?;
            grant = told;
            match ttl_left {
                _ if may_be_over => {}
                TtlLeft::For(Milliseconds(left_ms)) if tenancy.key.is_some() => {
                    let until_ms = awaited.sent_ms + u64::from(left_ms);
                    scene.with_claims(tenancy.life, |claims, _| claims.renew(tenancy.session, until_ms));
                }
                TtlLeft::Connection if tenancy.key.is_none() => {}
                _ => return Err("a lease of the wrong kind".to_owned()),
            }
            if request.is_surely_canceled {
                return Err("it does not wait any more".to_owned());
            }
            if request.answer.is_none() {
                if tenancy.released.contains(&grant) || !tenancy.held.insert(grant) {
                    return Err("the grant of another request".to_owned());
                }
                let connection = tenancy.key.is_none().then_some(line.local);
                let parts = Tenancy::parts_of(parts);
                if !tenancy.is_closed {
                    let claim = Claim { session: tenancy.session, connection, parts };
                    scene.claim(line.local, tenancy.life, grant, claim);
                }
            }
        }
    } else {
        let is_right = match &request.errand {
            Errand::Acquire { queue_max, .. } => {
                is_refused_rightly(scene, request, *queue_max, status, awaited)
            }
            Errand::Release { grant } => {
                let is_taken =
                    scene.with_claims(tenancy.life, |claims, now_ms| claims.is_taken(*grant, now_ms));
                let may_be_lost = *grant == NO_GRANT || is_taken.unwrap_or(true) || may_be_over;
                status == Status::NotAcquired && may_be_lost
            }
            Errand::Revoke { .. } => status == Status::NotAcquired,
        };
        if !is_right {
            return Err("not to be expected".to_owned());
        }
    }
    let answer = (frame.status, grant);
    if *request.answer.get_or_insert(answer) != answer {
        return Err(format!("it was answered {:x?} before", request.answer));
    }
    // One that was left may have asked when it was not attached any more.
    Ok(if place == Place::Newest { Heard::Session } else { Heard::Nothing })
}

/// Gives the grant, and how long its lease lasts.
fn judge_granted(parts: &[Part], is_all: bool, frame: &ResponseFrame) -> Result<(u64, TtlLeft), String> {
    let (grant, ttl_left, capacities) = if is_all {
        let granted = frame.all_granted().map_err(|_| "no grant")?;
        (granted.grant, granted.ttl_left, granted.capacities)
    } else {
        let granted = frame.granted().map_err(|_| "no grant")?;
        if granted.resources != parts[0].resources {
            return Err("not what was asked for".to_owned());
        }
        (granted.grant, granted.ttl_left, vec![granted.capacity])
    };
    let maxima: Vec<_> = parts.iter().map(|part| part.maximum).collect();
    if capacities != maxima {
        return Err("another capacity".to_owned());
    }
    Ok((grant.0, ttl_left))
}

fn is_refused_rightly(
    scene: &Scene,
    request: &Request,
    queue_max: Option<u32>,
    status: Status,
    awaited: &Awaited,
) -> bool {
    let Asked::Request { wait_ms, .. } = awaited.asked else { return false };
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
