//! The replies to the last requests of a session or process, so that a repeated request changes nothing (invariant 7).

use super::ids::{RequestId, RequestIds};
use super::ring_map::RingMap;
use super::{Limit, LimitKind, Refusal};

/// How far the requests of a session may be above the lowest unanswered one; their replies are cached.
pub const REQUESTS_MAX: u64 = 1024;

/// The cached replies of one session or process.
#[derive(Debug)]
pub(super) struct RequestLog<R> {
    /// The client has the answers to all lower requests.
    floor: u64,
    replies: RingMap<RequestId, R>,
}

impl<R> Default for RequestLog<R> {
    fn default() -> Self {
        Self { floor: 0, replies: RingMap::default() }
    }
}

impl<R> RequestLog<R> {
    /// Looks a request up; `None`: it was never seen. Calls `forget` with each reply that the client does not need any
    /// more.
    pub(super) fn find(
        &mut self,
        ids: RequestIds,
        mut forget: impl FnMut(RequestId, R),
    ) -> Result<Option<&R>, Refusal> {
        let (own, lowest) = (ids.own.0, ids.lowest_unanswered.0);
        if own < self.floor.max(lowest) || lowest == 0 {
            return Err(Refusal::StaleRequest);
        }
        self.floor = self.floor.max(lowest);
        while let Some((id, reply)) = self.replies.pop_first_below(RequestId(self.floor)) {
            forget(id, reply);
        }
        if own - self.floor > REQUESTS_MAX {
            return Err(Limit::reached(LimitKind::Requests, REQUESTS_MAX as usize));
        }
        Ok(self.get(ids.own))
    }

    pub(super) fn get(&self, request: RequestId) -> Option<&R> {
        self.replies.get(request)
    }

    /// Caches a reply, unless the client has it already.
    pub(super) fn insert(&mut self, request: RequestId, reply: R) {
        if request.0 >= self.floor {
            self.replies.insert(request, reply);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &R)> {
        self.replies.iter()
    }
}
