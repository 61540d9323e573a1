//! The commands to the driver of a session, the requests with ids that it makes of them and keeps until the server has
//! answered, and the load of the session, which limits how many acquires use it.
//!
//! Invariants:
//! - A request keeps its id until it is answered, so a repetition is the same request to the server.
//! - Requests are sent in the order of their ids.
//! - A request is sent only while its id is at most [`WINDOW_MAX`] above that of the oldest unanswered one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::claim::AcquireSpec;
use super::clock::Moment;
use super::grants::PermitValidity;
use super::link::{SessionConnection, Tag};
use crate::{Disconnect, Error, Lost, success};
use signalbox_model::{GrantId, Place, RequestId, RequestIds, Status};
use signalbox_protocol::{
    AllGranted, Claims, Extended, Granted, OpenedSession, Queueing, ResponseFrame, Wait,
};

/// A command to a driver.
#[derive(Debug)]
pub(super) enum Command {
    /// Replies once the session is open, or every address has failed.
    AwaitOpen(oneshot::Sender<Result<(), Error>>),
    Acquire {
        asked_at: Moment,
        spec: Arc<AcquireSpec>,
        reply: oneshot::Sender<AcquireOutcome>,
    },
    /// Cancels the acquires whose callers have closed their channels.
    CancelAcquires,
    Release {
        grant: GrantId,
        /// Whether the work of its single flight is done.
        is_done: bool,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    },
    /// Prepares the session to be handed over: it takes no further acquires, and waiting ones end with
    /// [`AcquireFailure::SessionEnded`]. Replies with the session's number and key when the server has answered all
    /// requests.
    Isolate(oneshot::Sender<Result<OpenedSession, Error>>),
    /// Stops renewing the session, which continues at the server. This is separate from [`Self::Isolate`], whose caller
    /// may be gone before the answer: then nothing else would release what the session holds.
    StopRenewing,
    /// Closes the session, which releases all that it holds, and then closes the channel without a value.
    Close(oneshot::Sender<()>),
}

/// How an acquire ended.
pub(super) type AcquireOutcome = Result<HeldGrant, AcquireFailure>;

/// A grant of the server. Its receiver has to make it a permit or release it.
#[derive(Debug)]
pub(super) struct HeldGrant {
    pub(super) granted: AllGranted<Vec<u32>, Vec<Vec<u16>>>,
    pub(super) validity: Arc<PermitValidity>,
}

/// Why an acquire was not granted.
#[derive(Debug)]
pub(super) enum AcquireFailure {
    /// It failed, and is not repeated.
    Final(Error),
    /// Its session ended, and its place in the queue is lost. It can be repeated in another session.
    SessionEnded {
        /// The time since which the session had no stable connection, or the end of the session if it had one. `None`:
        /// its driver never received the acquire.
        down_since: Option<Moment>,
    },
}

/// A request that the server has not answered.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) transmission: Transmission,
    /// The place in the queue that the server has reported. After a restart of the server, the repeated request
    /// presents it.
    pub(super) place: Option<Place>,
}

/// How often a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmission {
    /// Not yet, so the server cannot know of it.
    Unsent,
    Sent,
    /// Over several connections, so its answer may describe an earlier state.
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
        /// Whether the work of its single flight is done.
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
    /// Returns whether this is an acquire without a waiting caller. It is repeated only to learn whether it was
    /// granted.
    pub(super) fn is_canceled(&self) -> bool {
        matches!(self, Self::Acquire { reply: None, .. })
    }

    /// Sends the request with its reported place. Fails if the connection has ended.
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

/// Reads the answer to a release. `NotAcquired` means that the grant was revoked. For a repeated release it may also
/// mean that the first one succeeded, because a restarted server restores grants, but not the answers to releases.
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

/// Reads the answer to an acquire.
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

/// How far a request's id may be above that of the oldest unanswered one: servers remember only this many answers.
/// Later requests wait in the table. [`SessionLoad`] keeps sessions below this limit, because a request may wait long.
const WINDOW_MAX: u64 = 1024;

#[derive(Debug, Default)]
pub(super) struct RequestTable {
    requests: BTreeMap<RequestId, Request>,
    /// Requests that have not been sent over the current connection.
    unsent: BTreeSet<RequestId>,
    /// The last id that was given to a request. Ids start at 1.
    last: u64,
}

impl RequestTable {
    /// Adds a request under a new id.
    pub(super) fn add(&mut self, operation: Operation) {
        self.last += 1;
        let id = RequestId(self.last);
        self.requests.insert(id, Request { operation, transmission: Transmission::Unsent, place: None });
        self.unsent.insert(id);
    }

    /// Adds a removed request again, under its id.
    pub(super) fn put_back(&mut self, id: RequestId, request: Request) {
        self.requests.insert(id, request);
        self.unsent.insert(id);
    }

    /// Notes the place of a request in the queue, which the server has reported.
    pub(super) fn set_place(&mut self, id: RequestId, place: Place) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.place = Some(place);
        }
    }

    /// Returns the number of requests whose places the server has reported.
    pub(super) fn place_count(&self) -> u32 {
        self.requests.values().filter(|request| request.place.is_some()).count() as u32
    }

    /// Returns the next operation to send, with its request ids and its place, and counts it as sent. `None` if all are
    /// sent or the window is full.
    pub(super) fn next_to_send(&mut self) -> Option<(RequestIds, &Operation, Option<Place>)> {
        let own = *self.unsent.first()?;
        let lowest_unanswered = self.lowest_unanswered();
        if own.0 - lowest_unanswered.0 > WINDOW_MAX {
            return None;
        }
        self.unsent.remove(&own);
        let request = self.requests.get_mut(&own).expect("an unsent request is in the table");
        request.transmission = match request.transmission {
            Transmission::Unsent => Transmission::Sent,
            Transmission::Sent | Transmission::Repeated => Transmission::Repeated,
        };
        Some((RequestIds { own, lowest_unanswered }, &request.operation, request.place))
    }

    /// Marks all requests to be sent again, over a new connection.
    pub(super) fn resend_all(&mut self) {
        self.unsent = self.requests.keys().copied().collect();
    }

    /// Removes a request that was answered.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Request> {
        self.unsent.remove(&id);
        self.requests.remove(&id)
    }

    /// Returns the acquires whose callers have closed their channels.
    pub(super) fn abandoned_acquires(&self) -> Vec<RequestId> {
        let is_abandoned = |request: &Request| match &request.operation {
            Operation::Acquire { reply: Some(reply), .. } => reply.is_closed(),
            _ => false,
        };
        self.requests.iter().filter(|(_, request)| is_abandoned(request)).map(|(id, _)| *id).collect()
    }

    /// Cancels an acquire: its reply channel is removed, so that a grant is released. Returns the channel, and whether
    /// the server has to cancel the request too. A request that was never sent is removed.
    pub(super) fn cancel(&mut self, id: RequestId) -> (Option<oneshot::Sender<AcquireOutcome>>, bool) {
        let Some(request) = self.requests.get_mut(&id) else { return (None, false) };
        let reply = match &mut request.operation {
            Operation::Acquire { reply, .. } => reply.take(),
            Operation::Release { .. } => None,
        };
        let was_sent = request.transmission != Transmission::Unsent;
        if !was_sent {
            self.remove(id);
        }
        (reply, was_sent)
    }

    /// Returns the acquires whose callers wait, in the order of their ids.
    pub(super) fn waiting_acquires(&self) -> impl Iterator<Item = (RequestId, &AcquireSpec, Moment)> {
        self.requests.iter().filter_map(|(id, request)| match &request.operation {
            Operation::Acquire { spec, asked_at, reply: Some(_), .. } => Some((*id, &**spec, *asked_at)),
            _ => None,
        })
    }

    /// Returns when the first caller of a release stops waiting; `None`: no caller waits. All wait equally long, so it
    /// is the one with the lowest id.
    pub(super) fn release_deadline(&self) -> Option<Moment> {
        self.requests.values().find_map(|request| match &request.operation {
            Operation::Release { caller: Some(caller), .. } => Some(caller.until),
            _ => None,
        })
    }

    /// Takes the caller of a release whose deadline has passed. The request stays, and is repeated until it is answered.
    pub(super) fn take_overdue_release(&mut self, now: Moment) -> Option<ReleaseCaller> {
        self.requests.values_mut().find_map(|request| match &mut request.operation {
            Operation::Release { caller, .. } => caller.take_if(|caller| now >= caller.until),
            Operation::Acquire { .. } => None,
        })
    }

    /// Returns whether a request is an acquire that is not answered yet.
    pub(super) fn is_acquire(&self, id: RequestId) -> bool {
        let request = self.requests.get(&id);
        request.is_some_and(|request| matches!(request.operation, Operation::Acquire { .. }))
    }

    /// Returns whether the server has answered all requests.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the number of ids from the oldest unanswered request to the next new one.
    pub(super) fn window(&self) -> usize {
        usize::try_from(self.last + 1 - self.lowest_unanswered().0).unwrap_or(usize::MAX)
    }

    fn lowest_unanswered(&self) -> RequestId {
        self.requests.keys().next().copied().unwrap_or(RequestId(self.last + 1))
    }

    /// Removes and returns all operations, when the session has ended.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Operation> {
        self.unsent.clear();
        std::mem::take(&mut self.requests).into_values().map(|request| request.operation)
    }
}

/// The load at which a client opens another session. A server remembers 1,024 answers from the oldest unanswered
/// request on ([`WINDOW_MAX`]), so while one request waits long, the number of later ones is limited. An acquire that
/// the driver has not received yet counts as one, but needs two request ids, one of them for its release; so the limit
/// is less than half of 1,024. The rest is a reserve for threads that check the load at the same time.
const LOAD_MAX: usize = 480;

/// The load of a session, shared by its users and its driver.
#[derive(Debug, Default)]
pub(super) struct SessionLoad {
    /// The number of waiting acquires and permits, each of which needs one more request for its release.
    acquires_and_permits: AtomicUsize,
    /// The result of [`RequestTable::window`].
    window: AtomicUsize,
    /// Whether the session is being handed over.
    is_isolated: AtomicBool,
}

impl SessionLoad {
    /// Adds an acquire that was started.
    pub(super) fn add(&self) {
        self.acquires_and_permits.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes an acquire that failed or a permit that was released.
    pub(super) fn remove(&self) {
        self.acquires_and_permits.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set_window(&self, window: usize) {
        self.window.store(window, Ordering::Relaxed);
    }

    /// Closes the session to further acquires.
    pub(super) fn isolate(&self) {
        self.is_isolated.store(true, Ordering::Relaxed);
    }

    /// Returns whether the session can take another acquire.
    pub(super) fn has_room(&self) -> bool {
        if self.is_isolated.load(Ordering::Relaxed) {
            return false;
        }
        let acquires_and_permits = self.acquires_and_permits.load(Ordering::Relaxed);
        acquires_and_permits + self.window.load(Ordering::Relaxed) < LOAD_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use signalbox_model::GrantId;
    use signalbox_protocol::{ExtendedOpcode, Opaque};

    fn release() -> Operation {
        Operation::Release { grant: GrantId(1), is_done: false, caller: None }
    }

    fn sent(table: &mut RequestTable) -> Vec<u64> {
        std::iter::from_fn(|| table.next_to_send().map(|(ids, ..)| ids.own.0)).collect()
    }

    #[test]
    fn a_release_that_was_sent_before_may_have_succeeded_then() {
        let status = Status::NotAcquired.code();
        let (opcode, opaque, body) = (ExtendedOpcode::ReleaseGrant.code(), Opaque([0; 4]), Bytes::new());
        let frame = ResponseFrame { opcode, status, opaque, body };
        assert!(read_released(&frame, true).is_ok());
        assert_eq!(read_released(&frame, false).unwrap_err().lost(), Some(Lost::Revoked));
    }

    /// Servers refuse a request whose number is more than 1024 above the oldest unanswered one (`docs/protocol.md`,
    /// "Request ids").
    #[test]
    fn requests_beyond_the_window_wait_until_the_oldest_is_answered() {
        let mut table = RequestTable::default();
        (0..1030).for_each(|_| table.add(release()));
        assert_eq!(sent(&mut table), (1..=1025).collect::<Vec<_>>());
        assert_eq!(table.window(), 1030);
        table.remove(RequestId(2));
        assert!(sent(&mut table).is_empty(), "the oldest is still unanswered");
        table.remove(RequestId(1));
        assert_eq!(sent(&mut table), [1026, 1027]);
    }

    #[test]
    fn a_request_keeps_its_number_and_counts_as_repeated_when_it_is_sent_again() {
        let mut table = RequestTable::default();
        table.add(release());
        assert_eq!(sent(&mut table), [1]);
        table.resend_all();
        assert_eq!(sent(&mut table), [1]);
        assert_eq!(table.remove(RequestId(1)).unwrap().transmission, Transmission::Repeated);
        table.add(release());
        assert_eq!(sent(&mut table), [2]);
    }
}
