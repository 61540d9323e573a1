//! The replies to the last requests of a session or process, so that a repeated request changes nothing (invariant 7).

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::limit::limit_reached;
use crate::ring_map::RingMap;
use signalbox_model::Limit;
use signalbox_model::{Refusal, RequestId, RequestIds};

/// How far the number of a request may be above the lowest unanswered one of its session. The replies in this range are
/// cached.
pub const REQUESTS_MAX: u64 = 1024;

/// The size of an entry of a log, in bytes: its share of a buffer that may be half empty.
const ENTRY_BYTES: usize = 48;

/// The granularity with which the memory of a log is counted, in bytes, so that few requests change the count.
const COUNTED_STEP: usize = 1024;

/// A reply that is cached.
pub(super) trait Reply {
    /// The memory that it takes besides its entry, in bytes.
    fn bytes(&self) -> usize;

    /// Returns whether the request is not answered yet, although a client may raise the lowest unanswered request past
    /// it.
    fn is_late(&self) -> bool {
        false
    }
}

/// The cached replies of one session or process.
#[derive(Debug)]
pub(super) struct RequestLog<R> {
    /// The client has the answers to all lower requests, except those that are late.
    floor: u64,
    replies: RingMap<RequestId, R>,
    /// Replies to lower requests that the client may still repeat: it cannot wait for them before it raises the floor.
    late: BTreeMap<RequestId, R>,
    /// The requests in `late` that are answered now.
    answered: BTreeSet<RequestId>,
    /// The memory of all replies, in bytes.
    bytes: usize,
}

impl<R> Default for RequestLog<R> {
    fn default() -> Self {
        Self {
            floor: 0,
            replies: RingMap::default(),
            late: BTreeMap::new(),
            answered: BTreeSet::new(),
            bytes: 0,
        }
    }
}

impl<R: Reply> RequestLog<R> {
    /// Finds the reply to a request; `None`: the request was never seen. Calls `forget` with each reply that the client
    /// no longer needs. A reply that is late when the floor passes it stays. Once there are more than [`REQUESTS_MAX`]
    /// of these, the oldest one that is answered is forgotten.
    pub(super) fn find(
        &mut self,
        ids: RequestIds,
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
            if !reply.is_late() {
                self.bytes -= entry_bytes(&reply);
                forget(id, reply);
                continue;
            }
            self.late.insert(id, reply);
            if self.late.len() as u64 > REQUESTS_MAX {
                let answered = self.answered.pop_first();
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
            if !reply.is_late() {
                self.answered.insert(request);
            }
            Some(mem::replace(late, reply))
        } else {
            return;
        };
        self.bytes = self.bytes + bytes - before.as_ref().map_or(0, entry_bytes);
    }

    /// The bytes that the replies count against the memory share of their client.
    pub(super) fn counted_bytes(&self) -> usize {
        self.bytes - self.bytes % COUNTED_STEP
    }

    /// Checks the sum of the memory of all replies.
    pub(super) fn check(&self) -> Result<(), String> {
        let expected: usize = self.iter().map(|(_, reply)| entry_bytes(reply)).sum();
        if expected != self.bytes {
            return Err(format!("replies take {expected} bytes, and {} are counted", self.bytes));
        }
        let answered = self.late.iter().filter(|(_, reply)| !reply.is_late()).map(|(id, _)| id);
        if !answered.eq(&self.answered) {
            return Err("the late requests that are answered are not those that are noted".to_owned());
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static ASKED: Cell<usize> = const { Cell::new(0) };
    }

    struct Call {
        waits: bool,
    }

    impl Reply for Call {
        fn bytes(&self) -> usize {
            0
        }

        fn is_late(&self) -> bool {
            ASKED.set(ASKED.get() + 1);
            self.waits
        }
    }

    /// A log of calls that wait, each of which was made with a higher floor than the previous one.
    fn log_of_late(calls: u64) -> RequestLog<Call> {
        let mut log = RequestLog::default();
        for id in 1..=calls {
            look_up(&mut log, id);
            log.insert(RequestId(id), Call { waits: true });
        }
        log
    }

    /// Looks for a request that is the lowest unanswered one. Returns what is forgotten.
    fn look_up(log: &mut RequestLog<Call>, id: u64) -> Vec<u64> {
        let mut forgotten = Vec::new();
        let ids = RequestIds { own: RequestId(id), lowest_unanswered: RequestId(id) };
        assert!(log.find(ids, |id, _| forgotten.push(id.0)).unwrap().is_none());
        forgotten
    }

    #[test]
    fn the_first_of_many_late_requests_that_is_answered_is_forgotten_first() {
        let calls = 2 * REQUESTS_MAX;
        let mut log = log_of_late(calls);
        for answered in [7, 5] {
            log.insert(RequestId(answered), Call { waits: false });
        }
        assert_eq!(look_up(&mut log, calls + 1), [5]);
        log.insert(RequestId(calls + 1), Call { waits: true });
        assert_eq!(look_up(&mut log, calls + 2), [7]);
        assert!(log.get(RequestId(1)).is_some() && log.get(RequestId(calls)).is_some());
        assert_eq!(log.check(), Ok(()));
    }

    #[test]
    fn a_request_looks_at_no_late_ones_of_before() {
        let calls = 4 * REQUESTS_MAX;
        ASKED.set(0);
        log_of_late(calls);
        assert!(ASKED.get() as u64 <= 4 * calls, "{} were looked at", ASKED.get());
    }
}
