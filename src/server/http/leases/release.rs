//! Release: ends a lease, and remembers its key.

use hyper::StatusCode;
use serde::Serialize;
use tokio::time::timeout;

use super::super::answer::{Answer, ApiError, Json};
use super::super::request::{ANSWER_MAX, Context, Requester, answer_to};
use super::waiting::mailbox;
use super::{TOKEN, key};
use signalbox_core::Outcome;
use signalbox_model::Refusal;

#[derive(Serialize)]
struct Done {}

/// Releases a lease; `done` says that the work of its single flight is done. Succeeds without a right, and even if there is
/// no such lease, so that a client can always repeat the request.
pub(in super::super) async fn release(mut context: Context) -> Answer {
    let key = key(&context.parameters.text("key")?.unwrap_or_default())?;
    let is_done = context.parameters.flag("done")?;
    context.parameters.end()?;
    let server = context.serving()?;
    let requester = Requester::open(&server, mailbox(&context), None);
    let closed = {
        // Locked during both steps, so that no acquire between them begins a lease.
        let mut released = context.connection.shared.leases.released();
        let closed = server.core.close_keyed(requester.connection(), TOKEN, &key, is_done, server.moment());
        if closed != Outcome::Refused(Refusal::NotShared) {
            released.remember(&key, context.peer.client.address.key(), server.rules.shares.share());
        }
        closed
    };
    match closed {
        Outcome::Refused(Refusal::NotShared) => {
            return Err(ApiError::new(
                StatusCode::CONFLICT,
                "not_shared",
                "the lease was not acquired with \"share\", and is still held; release it without \"done\"",
            ));
        }
        Outcome::Waiting => {
            // A release is final, stored or not.
            let _ = timeout(ANSWER_MAX, answer_to(requester.mailbox(), TOKEN)).await;
        }
        Outcome::Answered(_) | Outcome::Refused(_) => {}
    }
    Json::of(&Done {})
}
