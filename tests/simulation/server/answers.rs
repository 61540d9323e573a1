//! Checks whether an answer is possible, given the answers that the client received before.
//!
//! A client knows until when its lease lasts at least, and which connection it attached last. So it knows when the
//! server must still have its session, and when the server may refuse a request.

use signalbox_model::{EventKind, GrantId, Milliseconds, Notice, Status};
use signalbox_protocol::ResponseFrame;

use super::request_answers::check_request_answer;
use super::session_connection::{PendingRequest, RequestKind, SessionConnection};
use super::session_view::{RecordedAnswer, SessionView};
use crate::scene::Scene;
use crate::support::OK;

/// The connection of a client over which a request or an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The one that was attached last.
    Newest,
    /// The one before it.
    Previous,
}

/// What an answer shows about the session.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEvidence {
    /// It existed when the request was received.
    Alive,
    /// It has ended.
    Ended,
    /// Another connection of the client is attached to it.
    Detached,
    Unknown,
}

/// An answer, and the request that it answers.
pub struct Answer<'a> {
    pub opaque: u32,
    pub pending: PendingRequest,
    pub frame: &'a ResponseFrame,
}

/// Applies an answer to what the client knows, or returns why it is impossible.
pub fn check(
    scene: &Scene,
    view: &mut SessionView,
    (via, connection): (Via, &mut SessionConnection),
    answer: &Answer<'_>,
) -> Result<SessionEvidence, String> {
    let evidence = match answer.pending.kind {
        RequestKind::Request { id, .. } => check_request_answer(scene, view, (via, connection), id, answer),
        RequestKind::Watch { .. } | RequestKind::Unwatch { .. } | RequestKind::Hello => {
            check_connection_answer(scene, connection, answer)
        }
        _ => check_session_answer(scene, view, (via, connection), answer),
    }?;
    match evidence {
        SessionEvidence::Alive if via == Via::Newest && connection.is_attached => {
            view.renew(answer.pending.sent_ms, view.ttl_ms);
        }
        // A previous connection has lost its session, but the client has not. What was sent after a refused attachment
        // was for the connection session, and has no meaning here.
        SessionEvidence::Ended
            if via == Via::Previous && !matches!(answer.pending.kind, RequestKind::Attach) =>
        {
            return Ok(SessionEvidence::Unknown);
        }
        SessionEvidence::Ended if view.may_be_over() => {}
        SessionEvidence::Ended if view.has_late_attachment && connection.is_attached => {
            return Ok(SessionEvidence::Detached);
        }
        SessionEvidence::Ended => return Err("its session cannot have ended".to_owned()),
        _ => {}
    }
    Ok(evidence)
}

/// Answers about the connection itself.
fn check_connection_answer(
    scene: &Scene,
    connection: &mut SessionConnection,
    answer: &Answer<'_>,
) -> Result<SessionEvidence, String> {
    let Answer { opaque, pending, frame } = answer;
    let is_ok = frame.status == OK;
    match pending.kind {
        RequestKind::Hello if connection.connection_session.is_none() => {
            let hello = frame.hello().map_err(|_| "no Hello")?;
            connection.connection_session = Some(hello.session);
            let local = connection.local;
            scene.add_session(connection.life(), hello.session)?;
            scene.with_expectations(scene.life_of(local), |expectations, _| {
                expectations.add_connection_session(hello.session, local)
            });
        }
        RequestKind::Hello => match frame.notice() {
            Ok(Some(Notice::ShuttingDown)) | Err(_) => return Err("an unexpected notice".to_owned()),
            Ok(_) => {}
        },
        RequestKind::Watch { number, is_live } => {
            if !is_ok {
                let is_right =
                    !connection.says_hello && Status::from_code(frame.status) == Some(Status::NotPermitted);
                return is_right.then_some(SessionEvidence::Unknown).ok_or_else(|| "no watch".to_owned());
            }
            let (number_now, event) = frame.event().map_err(|_| "no event")?;
            let is_live_now = matches!(event.kind, EventKind::Live);
            if number_now != number + 1 || (is_live_now && is_live) {
                return Err("an event out of order".to_owned());
            }
            if let Some(pending) = connection.pending.get_mut(opaque) {
                pending.kind = RequestKind::Watch { number: number_now, is_live: is_live || is_live_now };
            }
        }
        RequestKind::Unwatch { watch } => {
            connection.pending.remove(&watch);
            if !is_ok && Status::from_code(frame.status) != Some(Status::NotFound) {
                return Err("a watch that could not be ended".to_owned());
            }
        }
        _ => unreachable!("the caller passes only requests about the connection"),
    }
    Ok(SessionEvidence::Unknown)
}

/// Answers to requests without an id about a session.
fn check_session_answer(
    scene: &Scene,
    view: &mut SessionView,
    (via, connection): (Via, &mut SessionConnection),
    answer: &Answer<'_>,
) -> Result<SessionEvidence, String> {
    let Answer { pending, frame, .. } = answer;
    let status = Status::from_code(frame.status);
    let is_ok = frame.status == OK;
    let is_leased = view.is_leased();
    match pending.kind {
        RequestKind::StaleKeepAlive if status == Some(Status::NoSuchSession) => Ok(SessionEvidence::Unknown),
        RequestKind::StaleKeepAlive => Err("another connection is attached".to_owned()),
        // A connection session has no lease to renew or close; for a leased session, this status is its end.
        RequestKind::KeepAlive | RequestKind::Close
            if status == Some(Status::NoSuchSession) && !is_leased =>
        {
            Ok(SessionEvidence::Unknown)
        }
        RequestKind::Attach | RequestKind::KeepAlive | RequestKind::Close | RequestKind::Cancel { .. }
            if status == Some(Status::NoSuchSession) =>
        {
            Ok(SessionEvidence::Ended)
        }
        RequestKind::Attach => {
            if !is_ok || frame.ttl() != Ok(Milliseconds(view.ttl_ms)) {
                return Err("not attached".to_owned());
            }
            connection.is_attached = true;
            if via == Via::Newest {
                view.attached();
            }
            Ok(SessionEvidence::Alive)
        }
        RequestKind::KeepAlive => {
            let ttl = frame.ttl().map_err(|_| "no ttl")?;
            if !is_ok || !is_leased || ttl.0 > view.ttl_ms {
                return Err("too long a lease".to_owned());
            }
            view.renew(pending.sent_ms, ttl.0);
            Ok(SessionEvidence::Alive)
        }
        RequestKind::Close if is_ok && is_leased => {
            scene.acknowledge_release(view.life, std::mem::take(&mut view.held));
            Ok(SessionEvidence::Unknown)
        }
        RequestKind::Cancel { id } if is_ok => {
            if let Some(request) = view.requests.get_mut(&id) {
                request.is_surely_canceled = true;
                let is_granted = |answer: &RecordedAnswer| answer.status == OK && answer.life == view.life;
                if request.answer.as_ref().is_some_and(is_granted) {
                    return Err("a granted request was canceled".to_owned());
                }
            }
            Ok(SessionEvidence::Alive)
        }
        RequestKind::Cancel { .. } if status == Some(Status::NotFound) => Ok(SessionEvidence::Alive),
        RequestKind::Verify { .. } if is_ok => Ok(SessionEvidence::Unknown),
        RequestKind::Verify { grant } => {
            let is_expected = scene
                .with_expectations(view.life, |expectations, now_ms| expectations.is_expected(grant, now_ms));
            if status != Some(Status::NotAcquired) || is_expected.unwrap_or(false) {
                return Err("a client counts on that grant".to_owned());
            }
            Ok(SessionEvidence::Unknown)
        }
        RequestKind::List { .. } if status == Some(Status::NotFound) => Ok(SessionEvidence::Unknown),
        RequestKind::List { is_quiet } if is_ok => {
            let entry = frame.list_entry().map_err(|_| "no entry")?;
            let Some(entry) = entry.filter(|entry| is_quiet && entry.session == view.session) else {
                return Ok(SessionEvidence::Unknown);
            };
            if let Some(GrantId(grant)) = entry.grant
                && !view.may_hold_unstored
                && !view.held.contains(&grant)
                && !view.released.contains(&grant)
            {
                return Err("a grant that its holder did not receive".to_owned());
            }
            Ok(SessionEvidence::Unknown)
        }
        _ => Err("an unexpected status".to_owned()),
    }
}

/// Whether the answer reports that a change could not be stored, and a write did fail since then.
pub fn is_not_stored(scene: &Scene, frame: &ResponseFrame, sent_ms: u64) -> bool {
    let has_failed = scene.disk.as_ref().is_some_and(|disk| disk.has_failed_since(sent_ms));
    Status::from_code(frame.status) == Some(Status::NotStored) && has_failed
}
