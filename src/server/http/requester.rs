//! Changes that the API makes: each is a request to the core like that of any other connection, and its answer may have to
//! wait for the store.
//!
//! Invariant: each change has a connection of its own to the core, so the answer that comes is its own, and an administrator
//! who revokes that session ends one change at most.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::StatusCode;

use super::super::dispatch::status_of;
use super::super::state::Server;
use super::answer::ApiError;
use signalbox_core::{
    Answer, Call, Mailbox, Message, Moment, Outcome, Refusal, RequestId, RequestIds, Session, Token,
};

/// How long a change may wait for the store.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A connection to the core, until it is dropped.
struct Line<'a> {
    server: &'a Server,
    session: Session,
    mailbox: Arc<Mailbox>,
}

impl<'a> Line<'a> {
    fn open(server: &'a Server) -> Self {
        let (session, mailbox) = (server.core.open_session(), Arc::new(Mailbox::default()));
        server.core.join(session.id(), Some(b"http"), &mailbox);
        Self { server, session, mailbox }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        // It holds nothing, so this is one step.
        while self.server.core.leave(self.session.id(), self.server.moment()) {}
    }
}

/// Makes a change, and waits for its answer.
pub(super) async fn request(
    server: &Server,
    ask: impl FnOnce(Call, Moment) -> Outcome,
) -> Result<Answer, ApiError> {
    let line = Line::open(server);
    let (own, token) = (RequestId(1), Token(1));
    let ids = RequestIds { own, lowest_unanswered: own };
    let call = Call { connection: line.session.id(), ids, token };
    match ask(call, server.moment()) {
        Outcome::Answered(answer) => Ok(answer),
        Outcome::Refused(refusal) => Err(refused(refusal)),
        Outcome::Waiting => {
            let answer = tokio::time::timeout(ANSWER_MAX, answer_to(&line.mailbox, token)).await;
            answer.map_err(|_| no_answer())?.map_err(refused)
        }
    }
}

/// Waits for the answer to a request. Messages about the session itself are dropped.
async fn answer_to(mailbox: &Mailbox, wanted: Token) -> Result<Answer, Refusal> {
    poll_fn(|context| {
        mailbox.set_reader(context.waker());
        while let Some(message) = mailbox.take() {
            if let Message::Answer { token, outcome } = message
                && token == wanted
            {
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    })
    .await
}

/// The code of the error for a change whose answer does not come in time.
pub(super) const NO_ANSWER: &str = "no_answer";

fn no_answer() -> ApiError {
    ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        NO_ANSWER,
        format!(
            "the change was not stored within {} s and may still be; look whether it was made before it is repeated",
            ANSWER_MAX.as_secs()
        ),
    )
}

/// The error for a refusal of the core.
pub(super) fn refused(refusal: Refusal) -> ApiError {
    let (status, code) = match refusal {
        Refusal::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        Refusal::NotAcquired => (StatusCode::NOT_FOUND, "no_such_grant"),
        Refusal::NoSuchSession => (StatusCode::NOT_FOUND, "no_such_session"),
        Refusal::NoSuchSlot => (StatusCode::NOT_FOUND, "no_such_slot"),
        Refusal::AlreadyExists => (StatusCode::CONFLICT, "already_exists"),
        Refusal::GenerationDiffers => (StatusCode::CONFLICT, "generation_differs"),
        Refusal::InUse => (StatusCode::CONFLICT, "in_use"),
        Refusal::Removed => (StatusCode::CONFLICT, "removed"),
        Refusal::NotPermitted => (StatusCode::CONFLICT, "configured"),
        Refusal::OutOfRange | Refusal::StaleRequest => (StatusCode::BAD_REQUEST, "bad_request"),
        Refusal::TooManyNames | Refusal::LimitReached(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "limit_reached")
        }
        Refusal::NotStored => (StatusCode::SERVICE_UNAVAILABLE, "not_stored"),
        Refusal::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "not_serving"),
        Refusal::NotAvailable
        | Refusal::TimedOut
        | Refusal::QueueFull
        | Refusal::Canceled
        | Refusal::Revoked => (StatusCode::CONFLICT, "refused"),
    };
    let advice = match code {
        "generation_differs" => "; read it again, and repeat the change if it is still wanted",
        "configured" => "; the configuration declares it: change it there and send SIGHUP",
        "in_use" => "; wait until nothing holds it, or revoke its grants",
        "not_stored" => "; the change was rolled back: look at the disk or at etcd",
        "limit_reached" => "; raise the limit, or remove what is not needed",
        _ => "",
    };
    ApiError::new(
        status,
        code,
        format!("the server has refused the change: {}{advice}", status_of(refusal).message()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::clock::Clock;
    use super::*;
    use crate::config::Config;
    use signalbox_core::NameHasher;

    #[test]
    fn each_refusal_has_its_status_and_code() {
        for (refusal, status, code) in [
            (Refusal::NotFound, 404, "not_found"),
            (Refusal::NotAcquired, 404, "no_such_grant"),
            (Refusal::NoSuchSession, 404, "no_such_session"),
            (Refusal::NoSuchSlot, 404, "no_such_slot"),
            (Refusal::AlreadyExists, 409, "already_exists"),
            (Refusal::GenerationDiffers, 409, "generation_differs"),
            (Refusal::InUse, 409, "in_use"),
            (Refusal::Removed, 409, "removed"),
            (Refusal::NotPermitted, 409, "configured"),
            (Refusal::OutOfRange, 400, "bad_request"),
            (Refusal::TooManyNames, 503, "limit_reached"),
            (Refusal::NotStored, 503, "not_stored"),
            (Refusal::ShuttingDown, 503, "not_serving"),
            (Refusal::Revoked, 409, "refused"),
        ] {
            let error = refused(refusal);
            assert_eq!((error.status.as_u16(), error.code), (status, code), "{refusal:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_is_not_stored_in_time_has_no_answer() {
        let server = Server::new(&Config::without_file(), Clock::system(), NameHasher::new());
        let error = request(&server, |_, _| Outcome::Waiting).await.unwrap_err();
        assert_eq!((error.status.as_u16(), error.code), (503, NO_ANSWER));
    }
}
