//! A handle to a session, for its users: the client that starts acquires in it, acquires that wait, and permits.
//!
//! The driver keeps the session for as long as there is a handle. The [`SessionLoad`], which both share, decides when a client
//! opens another session.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::claim::AcquireSpec;
use super::clock::Moment;
use super::command::{AcquireOutcome, Command};
use super::driver::{Driver, Losses};
use super::executor::Executor;
use super::request_table::SessionLoad;
use super::settings::Settings;
use super::validity::LeaseValidity;

#[derive(Debug)]
pub(super) struct SessionHandle {
    commands: mpsc::UnboundedSender<Command>,
    lease: Arc<LeaseValidity>,
    load: Arc<SessionLoad>,
    /// The last field: when the last user of the client drops it, the driver knows by the end of `commands` that it has to
    /// close the session.
    _executor: Executor,
}

impl SessionHandle {
    /// Starts the driver of a new session.
    pub(super) fn open(settings: Settings, executor: &Executor, losses: Losses, replaces_lost: bool) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let lease = Arc::new(LeaseValidity::pending(Arc::clone(&settings.clock)));
        let load = Arc::new(SessionLoad::default());
        let shared = (Arc::clone(&lease), Arc::clone(&load));
        executor.spawn(Driver::new(settings, shared.0, shared.1, received, losses, replaces_lost).run());
        Self { commands, lease, load, _executor: executor.clone() }
    }

    /// Whether the next acquire can use this session.
    pub(super) fn has_room(&self) -> bool {
        !self.commands.is_closed() && !self.lease.is_over() && self.load.has_room()
    }

    /// Whether the driver was dropped with its runtime.
    pub(super) fn is_abandoned(&self) -> bool {
        self.lease.is_abandoned()
    }

    /// Starts an acquire, and returns where the driver sends its outcome.
    pub(super) fn acquire(
        &self,
        spec: Arc<AcquireSpec>,
        asked_at: Moment,
    ) -> oneshot::Receiver<AcquireOutcome> {
        let (reply, outcome) = oneshot::channel();
        self.load.add();
        self.send(Command::Acquire { asked_at, spec, reply });
        outcome
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
