//! A session of a client, as its users see it: where to send what they want, and what they may believe of it.
//!
//! The session itself is kept by its driver, a task of its own. It lasts for as long as somebody has its lane: a client
//! that would use it, an acquire that waits, a permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::claim::Terms;
use super::clock::Moment;
use super::driver::Driver;
use super::permit::Permit;
use super::settings::Settings;
use super::standing::Lease;
use crate::client::{Error, Loss};
use crate::protocol::{GrantId, OpenedSession};

/// Requests and permits of a lane from which on a client uses another one. A server remembers 1,024 answers from the
/// oldest unanswered request on, so while one waits long, only so many others can come and go. Acquires of one moment
/// count once here before the driver hears of them, and each takes two numbers, with its release: so it is less than
/// half of those. The rest is for threads that look at the same time.
const LOAD_MAX: usize = 480;

/// What a driver is told.
#[derive(Debug)]
pub(super) enum Command {
    /// Tells once whether there is a session.
    Ready(oneshot::Sender<Result<(), Error>>),
    Acquire {
        ticket: u64,
        asked_at: Moment,
        terms: Arc<Terms>,
        reply: oneshot::Sender<Outcome>,
    },
    /// Whoever asked under the ticket has gone.
    Abandon {
        ticket: u64,
    },
    Release {
        grant: GrantId,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    },
    /// Tells the session, for who hands it over.
    HandOver(oneshot::Sender<Result<OpenedSession, Error>>),
    /// Stops keeping the session, which goes on at the server. A command of its own, as who asked for the session may
    /// have gone before the answer: then nobody would ever give back what it holds.
    LetGo,
    /// Ends the session with all that it holds.
    Close(oneshot::Sender<()>),
}

/// How an acquire ended.
pub(super) type Outcome = Result<Permit, Failure>;

/// Why an acquire has no permit.
#[derive(Debug)]
pub(super) enum Failure {
    /// For good.
    Final(Error),
    /// The session ended, which took the place in the queue with it; another session can ask anew.
    SessionEnded,
}

#[derive(Debug)]
pub(super) struct Lane {
    commands: mpsc::UnboundedSender<Command>,
    lease: Arc<Lease>,
    tickets: AtomicU64,
}

impl Lane {
    /// A lane and what is to be run for it. One in the place of another whose session was lost begins with a pause, so
    /// that no server's answers make a client open sessions as fast as they end.
    pub(super) fn new(settings: &Settings, after: Option<&Self>) -> (Arc<Self>, Driver) {
        let (sender, commands) = mpsc::unbounded_channel();
        let lease = Arc::new(Lease::new(Arc::clone(&settings.clock)));
        let lane = Arc::new(Self { commands: sender, lease: Arc::clone(&lease), tickets: AtomicU64::new(0) });
        let follows_a_loss = after.is_some_and(|lane| lane.lease.until().is_none());
        let driver = Driver::new(settings.clone(), Arc::downgrade(&lane), lease, commands, follows_a_loss);
        (lane, driver)
    }

    /// Whether another acquire should go here.
    pub(super) fn has_room(&self) -> bool {
        let load = self.lease.load.load(Ordering::Relaxed) + self.lease.window.load(Ordering::Relaxed);
        !self.commands.is_closed() && self.lease.until().is_some() && load < LOAD_MAX
    }

    /// Asks for a permit. The request is withdrawn when what this gives is dropped.
    pub(super) fn ask(self: &Arc<Self>, terms: &Arc<Terms>, asked_at: Moment) -> Asked {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let (reply, outcome) = oneshot::channel();
        self.lease.load.fetch_add(1, Ordering::Relaxed);
        self.tell(Command::Acquire { ticket, asked_at, terms: Arc::clone(terms), reply });
        Asked { lane: Arc::clone(self), ticket, outcome }
    }

    /// Where the driver has ended, so has the session, and everybody who waits for a reply learns it by its end.
    pub(super) fn tell(&self, command: Command) {
        drop(self.commands.send(command));
    }
}

/// An acquire on its way.
#[derive(Debug)]
pub(super) struct Asked {
    lane: Arc<Lane>,
    ticket: u64,
    outcome: oneshot::Receiver<Outcome>,
}

impl Asked {
    pub(super) async fn outcome(&mut self) -> Outcome {
        match (&mut self.outcome).await.unwrap_or(Err(Failure::SessionEnded)) {
            Err(Failure::SessionEnded) if self.lane.lease.is_abandoned.load(Ordering::Acquire) => {
                Err(Failure::Final(Loss::Stopped.into()))
            }
            outcome => outcome,
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // A permit that is in the channel already is dropped with it, and so given back. The driver does not mind
        // being told of what has ended.
        self.lane.tell(Command::Abandon { ticket: self.ticket });
    }
}
