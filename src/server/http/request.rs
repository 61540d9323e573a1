//! A request that was checked, authorized and read, and its connection to the core. For the core, this is a connection like
//! any other, so an answer that has to wait for the store arrives later, as a message.
//!
//! Invariant: no two requests share a connection to the core, so each receives only its own answers, and an administrator
//! who revokes the session of such a connection ends at most one request.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::StatusCode;

use super::super::state::Server;
use super::access::{Peer, Permissions, Right, refuse};
use super::answer::ApiError;
use super::connections::OpenConnection;
use super::query::Parameters;
use super::shared::Stage;
use signalbox_core::{Answer, Mailbox, Message, Session, Token};
use signalbox_model::{ConnectionId, Refusal, Status, Target};

pub(super) struct Context {
    pub(super) permissions: Permissions,
    /// The token that the request shows; `None`: it shows none.
    pub(super) token: Option<Box<[u8]>>,
    pub(super) peer: Peer,
    /// The connection that has received the request.
    pub(super) connection: Arc<OpenConnection>,
    pub(super) parameters: Parameters,
}

impl Context {
    pub(super) fn server(&self) -> Result<Arc<Server>, ApiError> {
        self.connection.shared.server()
    }

    /// Returns the server, for a request that reads `target`. Fails if its client may not, or if the request has an unknown
    /// parameter: one that was not taken.
    pub(super) fn reads(&self, target: Target<'_>) -> Result<Arc<Server>, ApiError> {
        let server = self.server()?;
        self.check_read(target)?;
        self.parameters.end()?;
        Ok(server)
    }

    /// Returns the server, if it serves clients: one that is being stopped makes no changes.
    pub(super) fn serving(&self) -> Result<Arc<Server>, ApiError> {
        match self.connection.shared.stage() {
            Stage::Serving(server) => Ok(server),
            _ => Err(ApiError::no_server()),
        }
    }

    /// Refuses the request if its client may not read `target`.
    pub(super) fn check_read(&self, target: Target<'_>) -> Result<(), ApiError> {
        if self.permissions.may(Right::Read, target) { Ok(()) } else { Err(self.refuse(Right::Read, target)) }
    }

    /// Returns the error for a client that lacks a right, and counts and logs the refusal.
    pub(super) fn refuse(&self, right: Right, target: Target<'_>) -> ApiError {
        refuse(&self.connection.shared.rules.access, &self.peer, &self.permissions, right, target)
    }
}

/// The longest time that an answer may wait for the store.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

pub(super) const NO_SUCH_SESSION: &str =
    "the session does not exist, or has ended; read the list of sessions again";

/// A connection to the core for one HTTP request, until it is dropped. Leased sessions outlive it.
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

/// Returns the error for a request that names a session that does not exist.
pub(super) fn no_such_session() -> ApiError {
    let refusal = Refusal::NoSuchSession;
    ApiError::new(status_of(refusal), refusal.status().name(), NO_SUCH_SESSION)
}

/// Returns the HTTP status for a refusal of the core.
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
