//! The connection of a request of HTTP to the core, which is like any other, and its answers, which may have to wait for the store.
//!
//! Invariant: each request has a connection of its own to the core, so the answer that arrives is its own, and an administrator
//! who revokes that session ends one request at most.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::StatusCode;

use super::super::state::Server;
use super::answer::ApiError;
use signalbox_core::{Answer, Mailbox, Message, Session, Token};
use signalbox_model::{ConnectionId, Refusal, Status};

/// How long a change may wait for the store.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

pub(super) const NO_SUCH_SESSION: &str =
    "there is no such session, or no longer; read the list of sessions again";

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
