//! Commands to the driver of a session, and their outcomes.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::claim::AcquireSpec;
use super::clock::Moment;
use super::validity::PermitValidity;
use crate::Error;
use signalbox_model::GrantId;
use signalbox_protocol::{AllGranted, OpenedSession};

/// What a driver is asked to do.
#[derive(Debug)]
pub(super) enum Command {
    /// Replies once the session is open, or every address has failed.
    AwaitOpen(oneshot::Sender<Result<(), Error>>),
    Acquire {
        asked_at: Moment,
        spec: Arc<AcquireSpec>,
        reply: oneshot::Sender<AcquireOutcome>,
    },
    /// A caller has closed its channel: it no longer waits for its acquire.
    CancelAcquires,
    Release {
        grant: GrantId,
        /// The work of its single flight is done.
        is_done: bool,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    },
    /// For a permit that is handed over: no further acquire uses the session, and those that wait end with
    /// [`AcquireFailure::SessionEnded`]. Replies with the session's number and key when no request is left at the server.
    Isolate(oneshot::Sender<Result<OpenedSession, Error>>),
    /// Stops renewing the session, which continues at the server. This is separate from [`Self::Isolate`], because the
    /// caller may be gone when that is answered: nothing would ever release what the session holds.
    StopRenewing,
    /// Closes the session, which releases all that it holds. The reply is the end of the channel.
    Close(oneshot::Sender<()>),
}

/// How an acquire ended.
pub(super) type AcquireOutcome = Result<HeldGrant, AcquireFailure>;

/// A grant of the server. The receiver of the reply has to make it a permit or release it.
#[derive(Debug)]
pub(super) struct HeldGrant {
    pub(super) granted: AllGranted<Vec<u32>, Vec<Vec<u16>>>,
    pub(super) validity: Arc<PermitValidity>,
}

/// Why an acquire has no grant.
#[derive(Debug)]
pub(super) enum AcquireFailure {
    /// The acquire failed.
    Final(Error),
    /// The session ended, and the place in the queue with it. The acquire can be repeated in another session.
    SessionEnded {
        /// Since when no connection of it was stable; when it ended, if one was. `None`: the session has not known the acquire.
        down_since: Option<Moment>,
    },
}
