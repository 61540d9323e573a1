//! The numbered requests of a session, and their form on the wire.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::claim::AcquireSpec;
use super::clock::Moment;
use super::command::AcquireOutcome;
use super::link::{SessionConnection, Tag};
use crate::{Disconnect, Error, Lost, success};
use signalbox_model::{GrantId, Place, RequestIds, Status};
use signalbox_protocol::{AllGranted, Claims, Extended, Granted, Queueing, ResponseFrame, Wait};

/// A request that the server has not answered.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) transmission: Transmission,
    /// The place in the queue that the server has reported; a repetition presents it after a restart of the server.
    pub(super) place: Option<Place>,
}

/// How often a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmission {
    /// The server cannot know of it.
    Unsent,
    Sent,
    /// It was sent over several connections, so its answer may describe an earlier state.
    Repeated,
}

#[derive(Debug)]
pub(super) enum Operation {
    Acquire {
        spec: Arc<AcquireSpec>,
        asked_at: Moment,
        /// `None` once the caller is gone or was answered. A grant is then released.
        reply: Option<oneshot::Sender<AcquireOutcome>>,
    },
    Release {
        grant: GrantId,
        /// The work of its single flight is done.
        is_done: bool,
        /// `None`: no caller waits, or it was answered.
        caller: Option<ReleaseCaller>,
    },
}

/// The caller of a release, which waits for its answer.
#[derive(Debug)]
pub(super) struct ReleaseCaller {
    /// When it stops waiting.
    pub(super) until: Moment,
    pub(super) reply: oneshot::Sender<Result<(), Error>>,
}

impl Operation {
    /// Whether this is an acquire without a waiting caller. It is repeated only to learn whether it was granted.
    pub(super) fn is_canceled(&self) -> bool {
        matches!(self, Self::Acquire { reply: None, .. })
    }

    /// Sends the request at this moment, with its reported place. Fails if the connection has ended.
    pub(super) fn post(
        &self,
        connection: &mut SessionConnection,
        ids: RequestIds,
        place: Option<Place>,
        now: Moment,
    ) -> Result<(), Disconnect> {
        let tag = Tag::Request { id: ids.own, sent: now };
        match self {
            Self::Release { grant, is_done, .. } => {
                connection.post(Extended::ReleaseGrant { ids, grant: *grant, is_done: *is_done }, tag)
            }
            Self::Acquire { spec, .. } => {
                let queueing = if self.is_canceled() {
                    Queueing { wait: Wait::NotAtAll, queue_max: None }
                } else {
                    spec.queueing(now)
                };
                match spec.wire_claims().as_slice() {
                    [claim] => {
                        let is_shared = spec.is_shared;
                        let request =
                            Extended::AcquireGrant { ids, claim: *claim, queueing, place, is_shared };
                        connection.post(request, tag)
                    }
                    several => {
                        let claims = Claims::new(several).expect("`acquire` has checked the claims");
                        let place = place.filter(|_| claims.has_room_for_place());
                        connection.post(Extended::AcquireAll { ids, queueing, claims, place }, tag)
                    }
                }
            }
        }
    }
}

/// The answer to a release. If it was sent before, `NotAcquired` may mean that the first one succeeded: a restarted
/// server restores grants, but not the answers to releases.
pub(super) fn read_released(frame: &ResponseFrame, is_repeated: bool) -> Result<(), Error> {
    match success(frame.clone()) {
        Err(error) if error.status() == Some(Status::NotAcquired) => {
            if is_repeated {
                Ok(())
            } else {
                Err(Lost::Revoked.into())
            }
        }
        result => result.map(drop),
    }
}

/// The answer to an acquire.
pub(super) fn read_granted(
    frame: &ResponseFrame,
    spec: &AcquireSpec,
) -> Result<AllGranted<Vec<u32>, Vec<Vec<u16>>>, Error> {
    let frame = success(frame.clone())?;
    if let [_] = spec.claims[..] {
        let Granted { grant, ttl_left, capacity, slots, .. } = frame.granted()?;
        return Ok(AllGranted { grant, ttl_left, capacities: vec![capacity], slots: vec![slots] });
    }
    Ok(frame.all_granted()?)
}
