//! Requests of HTTP to the core: each is made like that of any other connection, and its answer may have to wait for the store.
//!
//! Invariant: each request has a connection of its own to the core, so the answer that arrives is its own, and an administrator
//! who revokes that session ends one request at most.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::StatusCode;

use super::super::access::Ended;
use super::super::operations::Requested;
use super::super::state::Server;
use super::answer::ApiError;
use signalbox_core::{Answer, Call, Mailbox, Message, Outcome, Session, Token};
use signalbox_model::{ConnectionId, Operation, Refusal, RequestIds, Status};

/// How long a change may wait for the store.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

const NO_SUCH_SESSION: &str = "there is no such session, or no longer; read the list of sessions again";

/// A connection to the core for one request of HTTP, until it is dropped. Leased sessions outlive it.
pub(super) struct Requester<'a> {
    server: &'a Server,
    session: Session,
    mailbox: Arc<Mailbox>,
}

impl<'a> Requester<'a> {
    /// Opens a connection to the core, with this label in listings.
    pub(super) fn open(server: &'a Server, mailbox: Mailbox, label: Option<&[u8]>) -> Self {
        let (session, mailbox) = (server.core.open_session(), Arc::new(mailbox));
        server.core.join(session.id(), label, &mailbox);
        Self { server, session, mailbox }
    }

    pub(super) fn connection(&self) -> ConnectionId {
        self.session.id()
    }

    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for Requester<'_> {
    fn drop(&mut self) {
        // The connection itself holds nothing, so this is one step.
        while self.server.core.leave(self.session.id(), self.server.moment()) {}
    }
}

/// Makes a change, and waits for its answer.
pub(super) async fn request(
    server: &Server,
    mut requested: Requested,
    operation: &Operation<'_>,
) -> Result<Answer, ApiError> {
    let requester = Requester::open(server, Mailbox::default(), Some(b"http"));
    let token = Token(1);
    let call = Call { connection: requester.connection(), ids: RequestIds::FIRST, token };
    match requested.execute(server, call, operation, server.moment()) {
        Outcome::Answered(answer) => Ok(answer),
        Outcome::Refused(refusal) => Err(refused(operation, refusal)),
        Outcome::Waiting => {
            let answer = tokio::time::timeout(ANSWER_MAX, answer_to(requester.mailbox(), token)).await;
            requested.record(
                server,
                match &answer {
                    Ok(Ok(_)) => Ended::Done,
                    Ok(Err(refusal)) => Ended::Refused(refusal.status().name()),
                    Err(_) => Ended::Accepted,
                },
            );
            answer.map_err(|_| no_answer())?.map_err(|refusal| refused(operation, refusal))
        }
    }
}

/// Waits for the answer to a request. Messages about the session itself are dropped.
pub(super) async fn answer_to(mailbox: &Mailbox, wanted: Token) -> Result<Answer, Refusal> {
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

fn no_answer() -> ApiError {
    ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "no_answer",
        format!(
            "the change was not stored within {} s and may still be; check whether it was made before you repeat it",
            ANSWER_MAX.as_secs()
        ),
    )
}

/// The error for a refusal of the core. The general advice for a status is for clients that acquire; administrators need another
/// one in some cases.
fn refused(operation: &Operation<'_>, refusal: Refusal) -> ApiError {
    let (status, http) = (refusal.status(), status_of(refusal));
    let advice = match refusal {
        // The client may change it, but the configuration declares it.
        Refusal::NotPermitted => "the configuration declares it: change it there and send SIGHUP",
        Refusal::OutOfRange => {
            "the capacity would be below 0, or above the largest: 4294967295, and 65536 with slots; read it, and give one between"
        }
        Refusal::NotFound => match operation {
            Operation::Cancel(_) => "it does not wait, or no longer; read the queue of its name again",
            Operation::DeleteCounter { .. } => "it does not exist; read the list of names again",
            _ => "it is not declared; read the list of declared semaphores again",
        },
        Refusal::NotAcquired => {
            "it is not held: it was released or revoked, or has expired; read the holders again"
        }
        Refusal::NoSuchSession => NO_SUCH_SESSION,
        _ => status.advice(),
    };
    let code = if refusal == Refusal::NotPermitted { "configured" } else { status.name() };
    ApiError::new(http, code, format!("the server has refused to {operation}: {advice}"))
}

/// The error for a session that a request names.
pub(super) fn no_such_session() -> ApiError {
    let refusal = Refusal::NoSuchSession;
    ApiError::new(status_of(refusal), refusal.status().name(), NO_SUCH_SESSION)
}

/// The status of HTTP for a refusal of the core.
pub(super) fn status_of(refusal: Refusal) -> StatusCode {
    match refusal.status() {
        Status::NotFound | Status::NotAcquired | Status::NoSuchSession | Status::NoSuchSlot => {
            StatusCode::NOT_FOUND
        }
        Status::InvalidArguments => StatusCode::BAD_REQUEST,
        Status::OutOfMemory | Status::LimitReached | Status::NotStored | Status::ShuttingDown => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::CONFLICT,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::clock::Clock;
    use super::super::peer::Peer;
    use super::*;
    use crate::config::Config;
    use signalbox_core::NameHasher;
    use signalbox_model::{GrantId, Milliseconds, Revocation};

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
            (Refusal::Revoked, 409, "revoked"),
        ] {
            let what = Revocation::Grant(GrantId(7));
            let operation = Operation::Revoke { what, grace: Milliseconds(0) };
            let error = refused(&operation, refusal);
            assert_eq!((error.status.as_u16(), error.code), (status, code), "{refusal:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_is_not_stored_in_time_has_no_answer_and_is_accepted() {
        let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
        let file = tempfile::NamedTempFile::new().unwrap();
        server.audit.open(file.path().to_owned()).unwrap();
        // Nothing takes the steps of the revocation, so that no answer comes.
        let what = Revocation::Identity(b"token:web");
        let operation = Operation::Revoke { what, grace: Milliseconds(0) };
        let peer = Peer::of_test();
        let permissions = server.rules.access.permissions_of(&peer.client);
        let requested = Requested::new(&peer.client, &permissions, &operation);
        let error = request(&server, requested, &operation).await.unwrap_err();
        assert_eq!((error.status.as_u16(), error.code), (503, "no_answer"));
        let line = std::fs::read_to_string(file.path()).unwrap();
        assert!(line.contains(r#""outcome":"accepted""#), "{line}");
    }
}
