//! Grants, and the waiters that they come from: one thing, with one id, in two phases.

use std::fmt;
use std::sync::Arc;

use super::Answer;
use crate::core::mailbox::{Mailbox, Message, Token};
use crate::core::object::ObjectRef;
use crate::core::{Claim, Namespace, Refusal, SessionId, UnixSeconds};

/// The number of a grant, and of the waiter that it comes from. It is never used again, and grows within a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a request wants of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want<'a> {
    /// The kind of the name.
    pub namespace: Namespace,
    /// The name's bytes.
    pub name: &'a [u8],
    /// How much of it.
    pub claim: Claim,
}

/// Whether a request waits for what it cannot have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// How long it waits, in milliseconds; 0 is not at all.
    pub wait_ms: u32,
    /// It joins a queue only while fewer than this many wait there.
    pub queue_max: u32,
}

/// What a request was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The grant's id.
    pub grant: GrantId,
    /// How many resources, of all names together.
    pub resources: u64,
    /// What the resources were taken from, in the order of the request: a semaphore's capacity, or the maximum that
    /// the request gave.
    pub capacities: Box<[u32]>,
    /// The numbers of the slots that were taken, from the lowest, in the order of the request; none at all where no
    /// semaphore has numbered ones.
    pub slots: Box<[Box<[u16]>]>,
    /// How long the session's lease lasts, in milliseconds from the receipt of the request; `None`: as long as the
    /// connection.
    pub ttl_left_ms: Option<u32>,
}

/// A grant that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Whose it is.
    pub session: SessionId,
    /// How long its lease lasts, in milliseconds; `None`: as long as the connection.
    pub ttl_left_ms: Option<u32>,
    /// Whether it is on its way out: it is being revoked, or its semaphore shrank below its slot, is being removed, or was
    /// removed and declared anew.
    pub is_retiring: bool,
}

/// A grant, or a waiter.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) session: SessionId,
    pub(super) request: u64,
    pub(super) parts: Parts,
    pub(super) phase: Phase,
}

const _: () =
    assert!(size_of::<Grant>() <= 88, "with the allocator's eight bytes a grant fills a chunk of 96");

/// Nearly every grant is of one name, whose part needs no allocation.
#[derive(Debug)]
pub(super) enum Parts {
    One(Part),
    /// By namespace and name.
    Many(Box<[Part]>),
}

/// One name of a grant.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) target: Target,
    pub(super) namespace: Namespace,
    /// The place in the request.
    pub(super) place: u8,
    pub(super) claim: Claim,
}

/// What a part is taken from.
#[derive(Debug)]
pub(super) enum Target {
    /// Its turn has not come: the object need not exist.
    Later(Box<[u8]>),
    /// It waits there, or was taken from there.
    Now(ObjectRef),
}

#[derive(Debug)]
pub(super) enum Phase {
    Waiting {
        until_ms: u64,
        /// When the request or its last repetition came, from which the answer's time to live counts.
        received_ms: u64,
        since: Since,
        /// How many of the parts were taken, in their order.
        taken: u8,
        /// Who is to be answered; nobody while the session has no connection, or the answer is still to be given in
        /// turn.
        reply: Option<Reply>,
    },
    Held {
        since: Since,
        /// When it is taken away.
        revoked_ms: Option<u64>,
    },
}

/// A time in half of the space: seconds since the Unix epoch until the year 2106, which then it stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since(u32);

impl From<UnixSeconds> for Since {
    fn from(time: UnixSeconds) -> Self {
        Self(u32::try_from(time.0).unwrap_or(u32::MAX))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) token: Token,
}

impl Reply {
    /// Answers the request.
    pub(super) fn answer(self, outcome: Result<Answer, Refusal>) {
        self.mailbox.put(Message::Answer { token: self.token, outcome });
    }
}

impl Grant {
    pub(super) fn parts(&self) -> &[Part] {
        match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }

    pub(super) fn parts_mut(&mut self) -> &mut [Part] {
        match &mut self.parts {
            Parts::One(part) => std::slice::from_mut(part),
            Parts::Many(parts) => parts,
        }
    }

    /// How many of the parts were taken, in their order.
    pub(super) fn taken(&self) -> usize {
        match self.phase {
            Phase::Waiting { taken, .. } => taken.into(),
            Phase::Held { .. } => self.parts().len(),
        }
    }

    /// The part that is waited for; `None` where all are taken.
    pub(super) fn awaited(&self) -> Option<&Part> {
        self.parts().get(self.taken())
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    pub(super) fn since(&self) -> UnixSeconds {
        match self.phase {
            Phase::Waiting { since, .. } | Phase::Held { since, .. } => UnixSeconds(since.0.into()),
        }
    }
}

impl Parts {
    /// Those of a grant that is held, in the order in which they were taken; at least one.
    pub(super) fn taken(mut parts: Vec<Part>) -> Self {
        match parts.len() {
            1 => Self::One(parts.remove(0)),
            _ => Self::Many(parts.into()),
        }
    }

    pub(super) fn of(wants: &[Want<'_>]) -> Self {
        let part = |(place, want): (usize, &Want<'_>)| Part {
            target: Target::Later(want.name.into()),
            namespace: want.namespace,
            place: place as u8,
            claim: want.claim,
        };
        if let [want] = wants {
            return Self::One(part((0, want)));
        }
        let mut order: Vec<_> = wants.iter().enumerate().collect();
        order.sort_unstable_by_key(|(_, want)| (want.namespace, want.name));
        Self::Many(order.into_iter().map(part).collect())
    }
}

impl Part {
    /// The object; there is one from when the part is waited for.
    pub(super) fn object(&self) -> Option<&ObjectRef> {
        match &self.target {
            Target::Later(_) => None,
            Target::Now(object) => Some(object),
        }
    }
}
