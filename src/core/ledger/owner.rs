//! The owners of grants: leased sessions, and the own sessions of connections that said Hello.

use std::sync::Arc;

use super::grant::{Grant, Part, Reply};
use super::{GrantId, Granted};
use crate::core::durable::{AnswerRecord, DeclaredState};
use crate::core::mailbox::{EventKind, Mailbox, Token};
use crate::core::ring_map::RingMap;
use crate::core::sync::{AtomicU64, Ordering};
use crate::core::{Refusal, SessionId};

/// How far requests of a session may be above the lowest that the client calls unanswered; whose answers are
/// remembered.
pub const REQUESTS_MAX: u64 = 1024;

/// The secret of a leased session. Never shown.
#[derive(Clone, Copy)]
pub struct SessionKey(pub [u8; 16]);

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKey")
    }
}

impl SessionKey {
    /// Takes the same time wherever the keys differ.
    fn is(&self, other: &Self) -> bool {
        let differences = self.0.iter().zip(&other.0).fold(0, |sum, (one, other)| sum | (one ^ other));
        std::hint::black_box(differences) == 0
    }
}

/// The number of a request within its session, and the lowest that the client has no answer to yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestIds {
    /// The request's own.
    pub own: u64,
    /// The lowest unanswered.
    pub lowest_unanswered: u64,
}

/// When a leased session was last heard of. Shared with the connection that hears it, so that hearing costs no lock.
#[derive(Debug)]
pub struct Lease {
    heard_ms: AtomicU64,
    ttl_ms: u32,
}

impl Lease {
    pub(super) fn new(ttl_ms: u32, now_ms: u64) -> Self {
        Self { heard_ms: AtomicU64::new(now_ms), ttl_ms }
    }

    /// Renews the lease: something was received at this time.
    #[inline]
    pub fn renew(&self, now_ms: u64) {
        self.heard_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// The session's time to live in milliseconds.
    pub fn ttl_ms(&self) -> u32 {
        self.ttl_ms
    }

    /// When the session was last heard of.
    pub(super) fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(super) struct Owner {
    pub(super) kind: OwnerKind,
    pub(super) label: Box<[u8]>,
    /// All that it holds or waits for, by id, so that its end gives back the newest first.
    pub(super) grants: RingMap<GrantId, ()>,
    pub(super) requests: Requests,
    /// Those that wait and are to be answered, by what the connection calls them.
    pub(super) tokens: RingMap<Token, GrantId>,
    /// When it is taken away.
    pub(super) revoked_ms: Option<u64>,
    /// Where it stands among those that may end.
    pub(super) due_ms: Option<u64>,
    /// Why it ends, as watchers and those who wait are told: it takes nothing more, and what it has is given back step
    /// by step.
    pub(super) ending: Option<(EventKind, Refusal)>,
    /// Who closed it, and is told when all of that is stored.
    pub(super) told_at_end: Option<Reply>,
}

#[derive(Debug)]
pub(super) enum OwnerKind {
    /// A connection's own session.
    Own { mailbox: Arc<Mailbox>, attachment: Attachment },
    Leased {
        key: SessionKey,
        lease: Arc<Lease>,
        /// The own session of the connection that is attached.
        connection: Option<SessionId>,
    },
}

/// Which session the requests of a connection are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// The connection's own.
    None,
    To(SessionId),
    /// One that ended or is attached elsewhere: what a client means for it must not go to another.
    Lost,
}

impl Owner {
    pub(super) fn own(mailbox: Arc<Mailbox>) -> Self {
        Self::new(OwnerKind::Own { mailbox, attachment: Attachment::None }, &[])
    }

    pub(super) fn leased(
        key: SessionKey,
        lease: Arc<Lease>,
        connection: Option<SessionId>,
        label: &[u8],
    ) -> Self {
        Self::new(OwnerKind::Leased { key, lease, connection }, label)
    }

    fn new(kind: OwnerKind, label: &[u8]) -> Self {
        Self {
            kind,
            label: label.into(),
            grants: RingMap::default(),
            requests: Requests::default(),
            tokens: RingMap::default(),
            revoked_ms: None,
            due_ms: None,
            ending: None,
            told_at_end: None,
        }
    }

    /// Whether the key opens this session.
    pub(super) fn opens_with(&self, candidate: &SessionKey) -> bool {
        matches!(&self.kind, OwnerKind::Leased { key, .. } if key.is(candidate)) && self.ending.is_none()
    }

    /// Forgets what the connection called a request that was answered.
    pub(super) fn forget_token(&mut self, token: Token, grant: GrantId) {
        if self.tokens.get(token) == Some(&grant) {
            self.tokens.remove(token);
        }
    }
}

/// What came of the last requests, so that a repeated one changes nothing (invariant 7).
#[derive(Debug, Default)]
pub(super) struct Requests {
    floor: u64,
    /// By number.
    answers: RingMap<u64, Remembered>,
}

#[derive(Clone, Debug)]
pub(super) enum Remembered {
    /// It waits, under this id.
    Waiting(GrantId),
    Granted(Box<RememberedGrant>),
    /// It is done, and not stored yet.
    Storing,
    Done(Result<(), Refusal>),
    /// Declared semaphores are as it asked for. Boxed twice, since a box of a slice would make the answers to all other
    /// requests larger by a half.
    Declared(Box<Box<[DeclaredState]>>),
}

const _: () = assert!(size_of::<Remembered>() <= 16);

impl Remembered {
    /// Declared semaphores are as it asked for.
    pub(super) fn settled(settled: impl Into<Box<[DeclaredState]>>) -> Self {
        Self::Declared(Box::new(settled.into()))
    }

    /// The answer to a request as it is to be kept; `None`: it is not.
    pub(super) fn record(&self, session: SessionId, request: u64) -> Option<AnswerRecord> {
        let Self::Declared(answer) = self else { return None };
        Some(AnswerRecord { session, request, answer: answer.as_ref().clone() })
    }

    /// Whether a store may have this answer, or is about to get it.
    fn may_be_stored(&self) -> bool {
        matches!(self, Self::Declared(_) | Self::Storing)
    }
}

#[derive(Clone, Debug)]
pub(super) struct RememberedGrant {
    pub(super) grant: GrantId,
    pub(super) resources: u64,
    pub(super) capacities: Box<[u32]>,
    pub(super) slots: Box<[Box<[u16]>]>,
}

impl RememberedGrant {
    /// What was granted; `slots` gives the numbers of one of its names.
    pub(super) fn of<'a>(id: GrantId, grant: &Grant, slots: impl Fn(&Part) -> &'a [u16]) -> Self {
        let count = grant.parts().len();
        let mut capacities = vec![0; count].into_boxed_slice();
        let mut numbers: Box<[Box<[u16]>]> = Box::default();
        for part in grant.parts() {
            capacities[usize::from(part.place)] = part.claim.maximum;
            let slots = slots(part);
            if !slots.is_empty() {
                if numbers.is_empty() {
                    numbers = vec![Box::default(); count].into_boxed_slice();
                }
                numbers[usize::from(part.place)] = slots.into();
            }
        }
        let resources = grant.parts().iter().map(|part| u64::from(part.claim.resources)).sum();
        Self { grant: id, resources, capacities, slots: numbers }
    }

    pub(super) fn told(self, ttl_left_ms: Option<u32>) -> Granted {
        let Self { grant, resources, capacities, slots } = self;
        Granted { grant, resources, capacities, slots, ttl_left_ms }
    }
}

impl Requests {
    /// Looks a request up. `None` is one that was never seen. Changes that are remembered no more are added to
    /// `forgotten`.
    pub(super) fn find(
        &mut self,
        ids: RequestIds,
        forgotten: &mut Vec<u64>,
    ) -> Result<Option<&Remembered>, Refusal> {
        if ids.own < self.floor.max(ids.lowest_unanswered) || ids.lowest_unanswered == 0 {
            return Err(Refusal::StaleRequest);
        }
        self.floor = self.floor.max(ids.lowest_unanswered);
        while let Some((id, what)) = self.answers.pop_first_below(self.floor) {
            if what.may_be_stored() {
                forgotten.push(id);
            }
        }
        if ids.own - self.floor > REQUESTS_MAX {
            return Err(Refusal::LimitReached);
        }
        Ok(self.get(ids.own))
    }

    pub(super) fn get(&self, request: u64) -> Option<&Remembered> {
        self.answers.get(request)
    }

    /// Remembers what came of a request, unless the client needs it no more.
    pub(super) fn remember(&mut self, request: u64, what: Remembered) {
        if request >= self.floor {
            self.answers.insert(request, what);
        }
    }

    /// How many are remembered.
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    /// The numbers of changes that a store may have the answers to.
    pub(super) fn stored(&self) -> impl Iterator<Item = u64> {
        self.answers.iter().filter(|(_, what)| what.may_be_stored()).map(|(request, _)| request)
    }

    /// The id of the waiter of a request that waits.
    pub(super) fn waiting(&self, request: u64) -> Option<GrantId> {
        match self.get(request)? {
            Remembered::Waiting(grant) => Some(*grant),
            _ => None,
        }
    }
}
