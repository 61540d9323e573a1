//! The replies to the last requests of a session or process, so that a repeated request changes nothing (invariant 7).

use std::collections::BTreeMap;
use std::mem;

use crate::limit::limit_reached;
use crate::ring_map::RingMap;
use signalbox_model::Limit;
use signalbox_model::{Refusal, RequestId, RequestIds};

/// How far the requests of a session may be above the lowest unanswered one; their replies are cached.
pub const REQUESTS_MAX: u64 = 1024;

/// What an entry of a log takes, in bytes: its share of a buffer that may be half empty.
const ENTRY_BYTES: usize = 48;

/// The memory of a log is counted in such steps, in bytes, so that few requests change the count.
const COUNTED_STEP: usize = 1024;

/// A reply that is cached.
pub(super) trait Reply {
    /// What it takes of the memory beside its entry, in bytes.
    fn bytes(&self) -> usize;
}

/// The cached replies of one session or process.
#[derive(Debug)]
pub(super) struct RequestLog<R> {
    /// The client has the answers to all lower requests, except those that are late.
    floor: u64,
    replies: RingMap<RequestId, R>,
    /// Replies to lower requests that the client may repeat nevertheless: it cannot wait for them to raise the floor.
    late: BTreeMap<RequestId, R>,
    /// What all of them take of the memory.
    bytes: usize,
}

impl<R> Default for RequestLog<R> {
    fn default() -> Self {
        Self { floor: 0, replies: RingMap::default(), late: BTreeMap::new(), bytes: 0 }
    }
}

impl<R: Reply> RequestLog<R> {
    /// Looks a request up; `None`: it was never seen. Calls `forget` with each reply that the client no longer
    /// needs. A reply for which `is_late` is true when the floor passes it stays, until many others have come after it.
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
                self.bytes -= entry_bytes(&reply);
                forget(id, reply);
                continue;
            }
            self.late.insert(id, reply);
            if self.late.len() as u64 > REQUESTS_MAX {
                let answered = self.late.iter().find(|(_, reply)| !is_late(reply)).map(|(id, _)| *id);
                if let Some((id, reply)) = answered.and_then(|id| self.late.remove_entry(&id)) {
                    self.bytes -= entry_bytes(&reply);
                    forget(id, reply);
                }
            }
        }
        self.replies.shrink();
        if own - self.floor > REQUESTS_MAX {
            return Err(limit_reached(Limit::Requests, REQUESTS_MAX as usize));
        }
        Ok(self.get(ids.own))
    }

    pub(super) fn get(&self, request: RequestId) -> Option<&R> {
        self.replies.get(request).or_else(|| self.late.get(&request))
    }

    /// Caches a reply, unless the client has it already.
    pub(super) fn insert(&mut self, request: RequestId, reply: R) {
        let bytes = entry_bytes(&reply);
        let before = if request.0 >= self.floor {
            self.replies.insert(request, reply)
        } else if let Some(late) = self.late.get_mut(&request) {
            Some(mem::replace(late, reply))
        } else {
            return;
        };
        self.bytes = self.bytes + bytes - before.as_ref().map_or(0, entry_bytes);
    }

    /// What the replies count for in the memory of their client, in bytes.
    pub(super) fn counted_bytes(&self) -> usize {
        self.bytes - self.bytes % COUNTED_STEP
    }

    /// Checks the sum of the memory of all replies.
    pub(super) fn check(&self) -> Result<(), String> {
        let expected: usize = self.iter().map(|(_, reply)| entry_bytes(reply)).sum();
        if expected == self.bytes {
            return Ok(());
        }
        Err(format!("replies take {expected} bytes, and {} are counted", self.bytes))
    }

    pub(super) fn len(&self) -> usize {
        self.replies.len() + self.late.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &R)> {
        self.replies.iter().chain(self.late.iter().map(|(id, reply)| (*id, reply)))
    }
}

fn entry_bytes<R: Reply>(reply: &R) -> usize {
    ENTRY_BYTES + reply.bytes()
}
