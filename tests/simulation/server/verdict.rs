//! Whether an answer is possible, by what its client was answered before.
//!
//! A client knows until when its lease lasts at least, and which connection it attached last. So it knows when the server
//! must still have its session, and when it may be refused.

use signalbox::protocol::{EventKind, GrantId, Milliseconds, Notice, ResponseFrame, Status};

use super::line::{Awaited, Line, Outcome};
use super::settled::judge_request;
use super::tenancy::{Answered, Tenancy};
use crate::scene::Scene;
use crate::support::OK;

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
        Outcome::Request { id, .. } => judge_request(scene, tenancy, (place, line), id, answer),
        Outcome::Watch { .. } | Outcome::Unwatch { .. } | Outcome::Hello => judge_party(scene, line, answer),
        _ => judge_session(scene, tenancy, (place, line), answer),
    }?;
    match heard {
        Heard::Session if place == Place::Newest && line.is_attached => {
            tenancy.renew(answer.awaited.sent_ms, tenancy.ttl_ms);
        }
        // A connection that was left has lost its session; the client has not. But what was sent behind a refused
        // attachment is for the connection's own session, and nobody's concern.
        Heard::NoSession if place == Place::Left && !matches!(answer.awaited.asked, Outcome::Attach) => {
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
        Outcome::Hello if line.own.is_none() => {
            let hello = frame.hello().map_err(|_| "no Hello")?;
            line.own = Some(hello.session);
            let local = line.local;
            scene.meet(line.life(), hello.session)?;
            scene.with_claims(scene.life_of(local), |claims, _| claims.introduce(hello.session, local));
        }
        Outcome::Hello => match frame.notice() {
            Ok(Some(Notice::ShuttingDown { .. })) | Err(_) => return Err("no notice to be had".to_owned()),
            Ok(_) => {}
        },
        Outcome::Watch { number, is_live } => {
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
                awaited.asked = Outcome::Watch { number: event.number, is_live: is_live || is_live_now };
            }
        }
        Outcome::Unwatch { watch } => {
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
        Outcome::Outlived if status == Some(Status::NoSuchSession) => Ok(Heard::Nothing),
        Outcome::Outlived => Err("another connection is attached".to_owned()),
        // Of a session that is not leased there is nothing to be told; where it is, this is its end.
        Outcome::KeepAlive | Outcome::Close if status == Some(Status::NoSuchSession) && !is_leased => {
            Ok(Heard::Nothing)
        }
        Outcome::Attach | Outcome::KeepAlive | Outcome::Close | Outcome::Cancel { .. }
            if status == Some(Status::NoSuchSession) =>
        {
            Ok(Heard::NoSession)
        }
        Outcome::Attach => {
            if !is_ok || frame.ttl() != Ok(Milliseconds(tenancy.ttl_ms)) {
                return Err("not attached".to_owned());
            }
            line.is_attached = true;
            if place == Place::Newest {
                tenancy.attached();
            }
            Ok(Heard::Session)
        }
        Outcome::KeepAlive => {
            let ttl = frame.ttl().map_err(|_| "no ttl")?;
            if !is_ok || !is_leased || ttl.0 > tenancy.ttl_ms {
                return Err("too long a lease".to_owned());
            }
            tenancy.renew(awaited.sent_ms, ttl.0);
            Ok(Heard::Session)
        }
        Outcome::Close if is_ok && is_leased => {
            scene.give_back(tenancy.life, std::mem::take(&mut tenancy.held));
            Ok(Heard::Nothing)
        }
        Outcome::Cancel { id } if is_ok => {
            if let Some(request) = tenancy.requests.get_mut(&id) {
                request.is_surely_canceled = true;
                let is_granted = |answer: &Answered| answer.status == OK && answer.life == tenancy.life;
                if request.answer.as_ref().is_some_and(is_granted) {
                    return Err("it was granted and did not wait".to_owned());
                }
            }
            Ok(Heard::Session)
        }
        Outcome::Cancel { .. } if status == Some(Status::NotFound) => Ok(Heard::Session),
        Outcome::Verify { .. } if is_ok => Ok(Heard::Nothing),
        Outcome::Verify { grant } => {
            let is_believed =
                scene.with_claims(tenancy.life, |claims, now_ms| claims.is_believed(grant, now_ms));
            if status != Some(Status::NotAcquired) || is_believed.unwrap_or(false) {
                return Err("somebody relies on that grant".to_owned());
            }
            Ok(Heard::Nothing)
        }
        Outcome::List { .. } if status == Some(Status::NotFound) => Ok(Heard::Nothing),
        Outcome::List { is_quiet } if is_ok => {
            let entry = frame.list_entry().map_err(|_| "no entry")?;
            let Some(entry) = entry.filter(|entry| is_quiet && entry.session == tenancy.session) else {
                return Ok(Heard::Nothing);
            };
            if let Some(GrantId(grant)) = entry.grant
                && !tenancy.is_haunted
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

/// Whether it is said, and true, that something could not be stored which was asked for then.
pub fn is_not_stored(scene: &Scene, frame: &ResponseFrame, sent_ms: u64) -> bool {
    let has_failed = scene.disk.as_ref().is_some_and(|disk| disk.has_failed_since(sent_ms));
    Status::from_code(frame.status) == Some(Status::NotStored) && has_failed
}
