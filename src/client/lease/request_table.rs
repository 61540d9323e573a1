//! A session's requests and grants, without anything that sends or waits.
//!
//! Invariants:
//! - A request stays under its number until its answer came, so a repetition is the same request.
//! - Numbers grow in the order in which requests are sent.
//! - A grant that nobody has a permit for is being given back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::claim::Terms;
use super::clock::Moment;
use super::lane::Outcome;
use super::standing::Standing;
use crate::client::Error;
use crate::protocol::{GrantId, RequestId, RequestIds};

/// How far a request's number may be above the oldest unanswered one before it has to wait here. Servers remember as
/// many answers, and `lane` keeps below it wherever something waits long.
const WINDOW_MAX: u64 = 1024;

/// A request that the server has not answered yet.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) what: What,
    /// Whether the server may have it.
    pub(super) was_sent: bool,
    /// Whether it was sent more than once, so that its answer may be old.
    pub(super) is_repeated: bool,
}

#[derive(Debug)]
pub(super) enum What {
    Acquire {
        ticket: u64,
        terms: Arc<Terms>,
        asked_at: Moment,
        /// `None` where who asked has gone or was answered: what is granted is given back.
        reply: Option<oneshot::Sender<Outcome>>,
    },
    Release {
        grant: GrantId,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    },
}

#[derive(Debug, Default)]
pub(super) struct Book {
    requests: BTreeMap<u64, Request>,
    /// Those to be sent over the present connection.
    unsent: BTreeSet<u64>,
    /// Acquires that somebody waits for, by their tickets.
    tickets: HashMap<u64, u64>,
    last: u64,
    pub(super) grants: HashMap<GrantId, Arc<Standing>>,
}

impl Book {
    /// Takes up a request under a number of its own.
    pub(super) fn add(&mut self, what: What) -> u64 {
        self.last += 1;
        if let What::Acquire { ticket, .. } = what {
            self.tickets.insert(ticket, self.last);
        }
        self.requests.insert(self.last, Request { what, was_sent: false, is_repeated: false });
        self.unsent.insert(self.last);
        self.last
    }

    /// The request is answered, or forgotten because the server cannot have it.
    pub(super) fn remove(&mut self, id: u64) -> Option<Request> {
        self.unsent.remove(&id);
        let request = self.requests.remove(&id)?;
        if let What::Acquire { ticket, .. } = request.what {
            self.tickets.remove(&ticket);
        }
        Some(request)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Request> {
        self.requests.get(&id)
    }

    /// The acquire that somebody waits for under the ticket.
    pub(super) fn ticket(&self, ticket: u64) -> Option<u64> {
        self.tickets.get(&ticket).copied()
    }

    /// Gives the reply of an acquire away: from here on nobody waits for it.
    pub(super) fn take_reply(&mut self, id: u64) -> Option<oneshot::Sender<Outcome>> {
        match &mut self.requests.get_mut(&id)?.what {
            What::Acquire { ticket, reply, .. } => {
                self.tickets.remove(ticket);
                reply.take()
            }
            What::Release { .. } => None,
        }
    }

    /// Everything is to be sent again, over a new connection.
    pub(super) fn send_again(&mut self) {
        self.unsent = self.requests.keys().copied().collect();
    }

    /// The next request to send, with its numbers.
    pub(super) fn next_unsent(&mut self) -> Option<(RequestIds, &mut Request)> {
        let own = *self.unsent.first()?;
        let lowest = self.lowest();
        if own - lowest > WINDOW_MAX {
            return None;
        }
        self.unsent.remove(&own);
        let ids = RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest) };
        Some((ids, self.requests.get_mut(&own).expect("what is unsent is in the book")))
    }

    /// Numbers from the oldest unanswered request on.
    pub(super) fn window(&self) -> usize {
        usize::try_from(self.last + 1 - self.lowest()).unwrap_or(usize::MAX)
    }

    fn lowest(&self) -> u64 {
        self.requests.keys().next().copied().unwrap_or(self.last + 1)
    }

    /// The acquires that somebody waits for, oldest first.
    pub(super) fn waited_for(&self) -> impl Iterator<Item = (u64, &Terms, Moment)> {
        self.requests.iter().filter_map(|(id, request)| match &request.what {
            What::Acquire { terms, asked_at, reply: Some(_), .. } => Some((*id, &**terms, *asked_at)),
            _ => None,
        })
    }

    /// Takes everything out, for a session that has ended.
    pub(super) fn drain(&mut self) -> (Vec<Request>, Vec<Arc<Standing>>) {
        self.unsent.clear();
        self.tickets.clear();
        let requests = std::mem::take(&mut self.requests).into_values().collect();
        let grants = std::mem::take(&mut self.grants).into_values().collect();
        (requests, grants)
    }
}
