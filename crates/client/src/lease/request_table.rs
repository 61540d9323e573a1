//! The requests of a session that the server has not answered, and its load, which limits them.
//!
//! Invariants:
//! - A request keeps its number until it is answered, so a repetition is the same request to the server.
//! - Requests are sent in the order of their numbers.
//! - A request is sent only while its number is at most [`WINDOW_MAX`] above that of the oldest unanswered one.
//! - `release_deadlines` has the releases whose caller waits, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::claim::AcquireSpec;
use super::clock::Moment;
use super::command::AcquireOutcome;
use super::request::{Operation, ReleaseCaller, Request, Transmission};
use signalbox_model::{Place, RequestId, RequestIds};

/// How far a request's number may be above that of the oldest unanswered one: servers remember only this many answers. Later
/// requests wait here. [`SessionLoad`] keeps a session below this limit
/// wherever a request may wait long.
const WINDOW_MAX: u64 = 1024;

#[derive(Debug, Default)]
pub(super) struct RequestTable {
    requests: BTreeMap<RequestId, Request>,
    /// Requests that have not been sent over the current connection.
    unsent: BTreeSet<RequestId>,
    /// Until when the callers of releases wait.
    release_deadlines: BTreeSet<(Moment, RequestId)>,
    /// The last number that was given to a request; numbers start at 1.
    last: u64,
}

impl RequestTable {
    /// Adds a request, under a new number.
    pub(super) fn add(&mut self, operation: Operation) {
        self.last += 1;
        let id = RequestId(self.last);
        if let Operation::Release { caller: Some(caller), .. } = &operation {
            self.release_deadlines.insert((caller.until, id));
        }
        self.requests.insert(id, Request { operation, transmission: Transmission::Unsent, place: None });
        self.unsent.insert(id);
    }

    /// Adds a removed request again, under its number.
    pub(super) fn put_back(&mut self, id: RequestId, request: Request) {
        self.requests.insert(id, request);
        self.unsent.insert(id);
    }

    /// The server has reported the place of a request in the queue.
    pub(super) fn set_place(&mut self, id: RequestId, place: Place) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.place = Some(place);
        }
    }

    /// The number of requests whose places the server has reported.
    pub(super) fn place_count(&self) -> u32 {
        self.requests.values().filter(|request| request.place.is_some()).count() as u32
    }

    /// The next operation to send, with its request ids and its place. From now on, its request counts as sent. `None` if all
    /// are sent or the window is full.
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
        let request = self.requests.remove(&id)?;
        if let Operation::Release { caller: Some(caller), .. } = &request.operation {
            self.release_deadlines.remove(&(caller.until, id));
        }
        Some(request)
    }

    /// The acquires whose callers have closed their channels.
    pub(super) fn abandoned_acquires(&self) -> Vec<RequestId> {
        let is_abandoned = |request: &Request| match &request.operation {
            Operation::Acquire { reply: Some(reply), .. } => reply.is_closed(),
            _ => false,
        };
        self.requests.iter().filter(|(_, request)| is_abandoned(request)).map(|(id, _)| *id).collect()
    }

    /// Cancels an acquire, and returns its reply channel: from now on no caller waits for it. A request that was never sent
    /// is removed; the [`Cancellation`] says whether the server has to cancel it.
    pub(super) fn cancel(
        &mut self,
        id: RequestId,
    ) -> (Option<oneshot::Sender<AcquireOutcome>>, Cancellation) {
        let Some(request) = self.requests.get_mut(&id) else { return (None, Cancellation::Removed) };
        let reply = match &mut request.operation {
            Operation::Acquire { reply, .. } => reply.take(),
            Operation::Release { .. } => None,
        };
        if request.transmission == Transmission::Unsent {
            self.remove(id);
            return (reply, Cancellation::Removed);
        }
        (reply, Cancellation::AtServer)
    }

    /// The acquires whose callers wait, in the order of their numbers.
    pub(super) fn waiting_acquires(&self) -> impl Iterator<Item = (RequestId, &AcquireSpec, Moment)> {
        self.requests.iter().filter_map(|(id, request)| match &request.operation {
            Operation::Acquire { spec, asked_at, reply: Some(_), .. } => Some((*id, &**spec, *asked_at)),
            _ => None,
        })
    }

    /// When the first caller of a release stops waiting; `None`: no caller waits.
    pub(super) fn release_deadline(&self) -> Option<Moment> {
        self.release_deadlines.first().map(|(until, _)| *until)
    }

    /// Takes the caller of a release whose deadline has passed. The request stays, and is repeated until it is answered.
    pub(super) fn take_overdue_release(&mut self, now: Moment) -> Option<ReleaseCaller> {
        self.release_deadline().filter(|until| now >= *until)?;
        let (_, id) = self.release_deadlines.pop_first()?;
        match &mut self.requests.get_mut(&id)?.operation {
            Operation::Release { caller, .. } => caller.take(),
            Operation::Acquire { .. } => None,
        }
    }

    /// Whether a request is an acquire that is not answered yet.
    pub(super) fn is_acquire(&self, id: RequestId) -> bool {
        let request = self.requests.get(&id);
        request.is_some_and(|request| matches!(request.operation, Operation::Acquire { .. }))
    }

    /// Whether the server has answered all requests.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The number of requests from the oldest unanswered one on, with the next new one.
    pub(super) fn window(&self) -> usize {
        usize::try_from(self.last + 1 - self.lowest_unanswered().0).unwrap_or(usize::MAX)
    }

    fn lowest_unanswered(&self) -> RequestId {
        self.requests.keys().next().copied().unwrap_or(RequestId(self.last + 1))
    }

    /// Takes out all operations, when the session has ended.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Operation> {
        self.unsent.clear();
        self.release_deadlines.clear();
        std::mem::take(&mut self.requests).into_values().map(|request| request.operation)
    }
}

/// Where a canceled acquire is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancellation {
    /// Nowhere: it was never sent.
    Removed,
    /// Perhaps at the server, which has to cancel it. If the server grants it before that, the grant is released.
    AtServer,
}

/// The number of requests and permits of a session from which on a client opens another session. A server remembers 1,024
/// answers from the oldest unanswered request on, so while one request waits long, the number of later ones is limited.
/// Concurrent acquires count once here before the driver receives them, and each needs two request numbers with its release:
/// so the limit is less than half of 1,024. The rest is a reserve for threads that check the load at the same time.
const LOAD_MAX: usize = 480;

/// The load of a session, shared by its users and its driver.
#[derive(Debug, Default)]
pub(super) struct SessionLoad {
    /// Acquires that wait, and permits: each needs one more request to release it.
    acquires_and_permits: AtomicUsize,
    /// Request numbers from the oldest unanswered request on.
    window: AtomicUsize,
    /// Whether the session is being handed over.
    is_isolated: AtomicBool,
}

impl SessionLoad {
    /// An acquire was started.
    pub(super) fn add(&self) {
        self.acquires_and_permits.fetch_add(1, Ordering::Relaxed);
    }

    /// An acquire failed, or a permit was released.
    pub(super) fn remove(&self) {
        self.acquires_and_permits.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set_window(&self, window: usize) {
        self.window.store(window, Ordering::Relaxed);
    }

    /// From now on, the session takes no acquire.
    pub(super) fn isolate(&self) {
        self.is_isolated.store(true, Ordering::Relaxed);
    }

    /// Whether the session can take another acquire.
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
    use signalbox_model::GrantId;

    fn release() -> Operation {
        Operation::Release { grant: GrantId(1), is_done: false, caller: None }
    }

    fn sent(table: &mut RequestTable) -> Vec<u64> {
        std::iter::from_fn(|| table.next_to_send().map(|(ids, ..)| ids.own.0)).collect()
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
