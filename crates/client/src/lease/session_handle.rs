//! A handle to a session, for its users: the client that starts acquires in it, acquires that wait, and permits.
//!
//! The driver keeps the session for as long as there is a handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::claim::AcquireSpec;
use super::clock::{Clock, Moment};
use super::command::{AcquireOutcome, Command, Ticket};
use super::executor::Executor;
use super::session_load::SessionLoad;
use super::validity::LeaseValidity;

#[derive(Debug)]
pub(super) struct SessionHandle {
    commands: mpsc::UnboundedSender<Command>,
    lease: Arc<LeaseValidity>,
    load: Arc<SessionLoad>,
    last_ticket: AtomicU64,
    /// The last field: when the last user of the client drops it, the driver knows by the end of `commands` that it has to
    /// close the session.
    _executor: Executor,
}

/// The driver's side of a handle.
pub(super) struct SessionParts {
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) lease: Arc<LeaseValidity>,
    pub(super) load: Arc<SessionLoad>,
}

impl SessionHandle {
    /// A handle to a new session, and the parts that its driver shares with it.
    pub(super) fn new(clock: Arc<dyn Clock>, executor: Executor) -> (Self, SessionParts) {
        let (sender, commands) = mpsc::unbounded_channel();
        let lease = Arc::new(LeaseValidity::pending(clock));
        let load = Arc::new(SessionLoad::default());
        let parts = SessionParts { commands, lease: Arc::clone(&lease), load: Arc::clone(&load) };
        let last_ticket = AtomicU64::new(0);
        (Self { commands: sender, lease, load, last_ticket, _executor: executor }, parts)
    }

    /// Whether the next acquire can use this session.
    pub(super) fn has_room(&self) -> bool {
        !self.commands.is_closed() && !self.lease.is_over() && self.load.has_room()
    }

    /// Whether the driver was dropped with its runtime.
    pub(super) fn is_abandoned(&self) -> bool {
        self.lease.is_abandoned()
    }

    /// Starts an acquire; the driver replies once with its outcome.
    pub(super) fn acquire(
        &self,
        spec: Arc<AcquireSpec>,
        asked_at: Moment,
        reply: oneshot::Sender<AcquireOutcome>,
    ) -> Ticket {
        let ticket = Ticket(self.last_ticket.fetch_add(1, Ordering::Relaxed));
        self.load.add();
        self.send(Command::Acquire { ticket, asked_at, spec, reply });
        ticket
    }

    /// Sends a command to the driver. If the driver has ended, or belongs to the parent of this fork, the command is dropped, and
    /// with it the reply channel, which informs the caller.
    pub(super) fn send(&self, command: Command) {
        if self.lease.maker().is_this_process() {
            drop(self.commands.send(command));
        }
    }
}

/// In a fork, the end of the channel must not wake the driver, which is the parent's.
impl Drop for SessionHandle {
    fn drop(&mut self) {
        if !self.lease.maker().is_this_process() {
            std::mem::forget(self.commands.clone());
        }
    }
}
