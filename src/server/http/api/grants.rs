//! The state of a grant, for stores that check fencing tokens.

use hyper::StatusCode;
use serde::Serialize;

use super::super::access::Right;
use super::super::answer::{Answer, ApiError, Json};
use super::super::request::Context;
use signalbox_model::{GraceLeft, GrantId, GrantState, Milliseconds, Target, TtlLeft};

/// A grant that is held. Its times count from when the server received the request.
#[derive(Serialize)]
struct Verified {
    grant: String,
    session: String,
    state: &'static str,
    /// `None`: the grant lasts as long as a connection.
    ttl_left_ms: Option<u32>,
    /// `None`: it is not being revoked.
    grace_left_ms: Option<u32>,
}

pub(in super::super) async fn grant(mut context: Context) -> Answer {
    let number = context.parameters.number("grant", 0..=u64::MAX)?;
    let number =
        number.ok_or_else(|| ApiError::bad_request("\"grant\" is missing; give the id of a grant"))?;
    context.parameters.end()?;
    context.check_read(Target::Anywhere)?;
    let server = context.server()?;
    // An HTTP request has no session of its own, so one is opened.
    let connection = server.core.open_session().id();
    let may_read =
        |namespace, name: &[u8]| context.permissions.may(Right::Read, Target::Name(namespace, name));
    let verified = server.core.verify_for(connection, may_read, GrantId(number), server.moment());
    let verified = verified.map_err(|refusal| {
        let message =
            format!("grant {number} is not held: it was released, revoked or has expired; refuse its holder");
        ApiError::new(StatusCode::NOT_FOUND, refusal.status().name(), message)
    })?;
    Json::of(&Verified {
        grant: number.to_string(),
        session: verified.session.to_string(),
        state: match verified.state {
            GrantState::Held => "held",
            GrantState::Retiring => "retiring",
        },
        ttl_left_ms: match verified.ttl_left {
            TtlLeft::Connection => None,
            TtlLeft::For(Milliseconds(left)) => Some(left),
        },
        grace_left_ms: match verified.grace_left {
            GraceLeft::NotRevoked => None,
            GraceLeft::For(Milliseconds(left)) => Some(left),
        },
    })
}
