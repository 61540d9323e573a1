//! An acquire that waits for its outcome.
//!
//! Invariant: a grant is never leaked. It becomes a [`Permit`], or it is released when the acquire is dropped.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::claim::AcquireSpec;
use super::clock::Moment;
use super::command::{AcquireFailure, AcquireOutcome, Command, Ticket};
use super::permit::Permit;
use super::session_handle::SessionHandle;
use crate::Disconnect;

#[derive(Debug)]
pub(super) struct PendingAcquire {
    session: Arc<SessionHandle>,
    spec: Arc<AcquireSpec>,
    ticket: Ticket,
    outcome: oneshot::Receiver<AcquireOutcome>,
}

impl PendingAcquire {
    /// Starts an acquire in a session. It is canceled when the result is dropped.
    pub(super) fn start(session: Arc<SessionHandle>, spec: Arc<AcquireSpec>, asked_at: Moment) -> Self {
        let (reply, outcome) = oneshot::channel();
        let ticket = session.acquire(Arc::clone(&spec), asked_at, reply);
        Self { session, spec, ticket, outcome }
    }

    /// Waits for the outcome.
    pub(super) async fn outcome(mut self) -> Result<Permit, AcquireFailure> {
        match (&mut self.outcome).await.unwrap_or(Err(AcquireFailure::SessionEnded { down_since: None })) {
            Ok(grant) => Ok(Permit::new(Arc::clone(&self.session), grant, Arc::clone(&self.spec))),
            Err(AcquireFailure::SessionEnded { .. }) if self.session.is_abandoned() => {
                Err(AcquireFailure::Final(Disconnect::Stopped.into()))
            }
            Err(failure) => Err(failure),
        }
    }
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        // Closing the channel first means that the driver either has sent the grant or finds the caller gone.
        self.outcome.close();
        if let Ok(Ok(grant)) = self.outcome.try_recv() {
            self.session.send(Command::Release { grant: grant.id, is_done: false, reply: None });
        }
        // The driver ignores this if the acquire has ended.
        self.session.send(Command::CancelAcquire { ticket: self.ticket });
    }
}
