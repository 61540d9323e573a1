//! The replies to the last requests of a session or process, so that a repeated request changes nothing (invariant 7).

use std::collections::BTreeMap;

use super::ids::{RequestId, RequestIds};
use super::ring_map::RingMap;
use super::{Limit, LimitKind, Refusal};

/// How far the requests of a session may be above the lowest unanswered one; their replies are cached.
pub const REQUESTS_MAX: u64 = 1024;

/// The cached replies of one session or process.
#[derive(Debug)]
pub(super) struct RequestLog<R> {
    /// The client has the answers to all lower requests, except those that are late.
    floor: u64,
    replies: RingMap<RequestId, R>,
    /// Replies to lower requests that the client may repeat nevertheless: it cannot wait for them to raise the floor.
    late: BTreeMap<RequestId, R>,
}

impl<R> Default for RequestLog<R> {
    fn default() -> Self {
        Self { floor: 0, replies: RingMap::default(), late: BTreeMap::new() }
    }
}

impl<R> RequestLog<R> {
    /// Looks a request up; `None`: it was never seen. Calls `forget` with each reply that the client does not need any
    /// more. A reply for which `is_late` is true when the floor passes it stays, until many others have come after it.
    pub(super) fn find(
        &mut self,
        ids: RequestIds,
        is_late: impl Fn(&R) -> bool,
        mut forget: impl FnMut(RequestId, R),
    ) -> Result<Option<&R>, Refusal> {
        let (own, lowest) = (ids.own.0, ids.lowest_unanswered.0);
        if self.late.contains_key(&ids.own) {
            return Ok(self.get(ids.own));
        }
        if own < self.floor.max(lowest) || lowest == 0 {
            return Err(Refusal::StaleRequest);
        }
        self.floor = self.floor.max(lowest);
        while let Some((id, reply)) = self.replies.pop_first_below(RequestId(self.floor)) {
            if !is_late(&reply) {
                forget(id, reply);
                continue;
            }
            self.late.insert(id, reply);
            if self.late.len() as u64 > REQUESTS_MAX {
                let answered = self.late.iter().find(|(_, reply)| !is_late(reply)).map(|(id, _)| *id);
                if let Some((id, reply)) = answered.and_then(|id| self.late.remove_entry(&id)) {
                    forget(id, reply);
                }
            }
        }
        if own - self.floor > REQUESTS_MAX {
            return Err(Limit::reached(LimitKind::Requests, REQUESTS_MAX as usize));
        }
        Ok(self.get(ids.own))
    }

    pub(super) fn get(&self, request: RequestId) -> Option<&R> {
        self.replies.get(request).or_else(|| self.late.get(&request))
    }

    /// Caches a reply, unless the client has it already.
    pub(super) fn insert(&mut self, request: RequestId, reply: R) {
        if request.0 >= self.floor {
            self.replies.insert(request, reply);
        } else if let Some(late) = self.late.get_mut(&request) {
            *late = reply;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.replies.len() + self.late.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &R)> {
        self.replies.iter().chain(self.late.iter().map(|(id, reply)| (*id, reply)))
    }
}
