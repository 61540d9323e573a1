//! What is on its way to the store: changes that are to outlive the process, and what is to happen when they do.
//!
//! A change is made in the ledger at once and said here, in order. The store takes all that has come together, and tells
//! whether it is safe. Until then nobody is answered who asked for it. What could not be stored is taken back, newest
//! first: grants, sessions that were opened, changes of declared semaphores. What gave something back stands, and is tried
//! again with the next batch: a restart before that finds it held, which is safe.
//!
//! Without a store there is no journal, and everything is answered at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use super::declaration::{Before, Declaration};
use super::grant::Reply;
use super::{Answer, GrantId, Ledger, ObjectRef, Refusal, Remembered, SessionId, World};
use crate::core::durable::{Change, Key, Record};
use crate::core::mailbox::{EventKind, Mailbox};

/// Ids that are reserved at a time. The store is asked for more when half of them are left: more than can be given out while
/// a store fails. As ids go by the clock, these are a minute of it.
const MARK_STEP: u64 = 1 << 36;

/// Changes that belong together: a store keeps all of them, or none.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Which one.
    pub number: u64,
    /// The changes, in order.
    pub changes: Arc<Vec<Change>>,
}

#[derive(Debug)]
pub(super) struct Journal {
    /// Told when there is something to take.
    taker: Waker,
    number: u64,
    pending: Vec<Change>,
    pending_then: Vec<Then>,
    under_way: Option<(Batch, VecDeque<Then>)>,
    /// Answers that wait for the store, by session and request.
    storing: BTreeMap<(SessionId, u64), Storing>,
    /// No id above this one is given out, and whether a higher mark is on its way.
    pub(super) mark: u64,
    is_mark_asked: bool,
}

/// What happens when a batch is safe, or could not be stored.
#[derive(Debug)]
pub(super) enum Then {
    /// The request of a session is answered.
    Answer(SessionId, u64),
    /// Something was done that stands: who asked is told.
    Told(Reply),
    /// A session was opened.
    Opened(SessionId, Reply),
    /// A declared semaphore is as planned, or again as before.
    Declared { object: ObjectRef, before: Before, after: Box<Declaration>, evicts: bool },
    /// One is removed that the configuration took over meanwhile: from those who had it or waited for it, and no further.
    Dismissed { object: ObjectRef, before: Before, removal: Box<Declaration>, evicts: bool },
    /// Ids up to this one may be given out.
    Marked(u64),
}

/// An answer that waits for the store.
#[derive(Debug)]
pub(super) struct Storing {
    pub(super) outcome: Remembered,
    /// When the request or its last repetition came.
    pub(super) received_ms: u64,
    /// Nobody while the session has no connection.
    pub(super) reply: Option<Reply>,
}

impl Journal {
    pub(super) fn new(taker: Waker, last_id: u64) -> Self {
        Self {
            taker,
            number: 0,
            pending: Vec::new(),
            pending_then: Vec::new(),
            under_way: None,
            storing: BTreeMap::new(),
            mark: last_id,
            is_mark_asked: false,
        }
    }

    fn note(&mut self, change: Change) {
        self.pending.push(change);
        self.wake();
    }

    /// Has something happen when all that was noted so far is safe.
    pub(super) fn then(&mut self, then: Then) {
        self.pending_then.push(then);
        self.wake();
    }

    /// One that is under way is followed by the next without being told.
    fn wake(&self) {
        if self.under_way.is_none() {
            self.taker.wake_by_ref();
        }
    }

    pub(super) fn storing(&mut self, session: SessionId, request: u64) -> Option<&mut Storing> {
        self.storing.get_mut(&(session, request))
    }

    /// Answers of a session that wait for the store.
    pub(super) fn storing_of(&mut self, session: SessionId) -> impl Iterator<Item = &mut Storing> {
        self.storing.range_mut((session, 0)..=(session, u64::MAX)).map(|(_, storing)| storing)
    }

    fn is_storing_for(&self, mailbox: &Arc<Mailbox>) -> bool {
        let is_its = |reply: &Reply| Arc::ptr_eq(&reply.mailbox, mailbox);
        let waits = |then: &Then| match then {
            Then::Answer(session, request) => {
                let storing = self.storing.get(&(*session, *request));
                storing.and_then(|storing| storing.reply.as_ref()).is_some_and(is_its)
            }
            Then::Told(reply) | Then::Opened(_, reply) => is_its(reply),
            Then::Declared { .. } | Then::Dismissed { .. } | Then::Marked(_) => false,
        };
        self.then_all().any(waits)
    }

    /// All that is to happen, in order.
    fn then_all(&self) -> impl Iterator<Item = &Then> {
        self.under_way.iter().flat_map(|(_, then)| then).chain(&self.pending_then)
    }

    /// Whether everything that was noted is safe.
    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.pending_then.is_empty() && self.under_way.is_none()
    }

    /// Whether it is not stored yet what a declared semaphore is to become.
    pub(super) fn is_changing(&self, object: &ObjectRef) -> bool {
        self.then_all().any(|then| matches!(then, Then::Declared { object: other, .. } if other == object))
    }

    /// Leaves of what a declared semaphore was to become only what its removal takes from others: it became something else
    /// meanwhile, and for good.
    pub(super) fn supersede(&mut self, object: &ObjectRef) {
        let rest_of = |then| match then {
            Then::Declared { object: other, before, after, evicts } if other == *object => {
                after.removing.then_some(Then::Dismissed { object: other, before, removal: after, evicts })
            }
            then => Some(then),
        };
        if let Some((_, then)) = &mut self.under_way {
            *then = then.drain(..).filter_map(rest_of).collect();
        }
        self.pending_then = self.pending_then.drain(..).filter_map(rest_of).collect();
    }
}

impl Ledger {
    /// From now on, changes that are to outlive the process are kept for a store; `taker` is woken when there are some.
    pub(in crate::core) fn keep_journal(&mut self, taker: Waker) {
        self.journal = Some(Journal::new(taker, self.last_id));
        self.reserve_ids();
    }

    /// Takes what is to be stored together; `None`: nothing, or the batch before it is not settled.
    pub(in crate::core) fn take_batch(&mut self) -> Option<Batch> {
        let journal = self.journal.as_mut()?;
        if journal.under_way.is_some() || journal.is_idle() {
            return None;
        }
        journal.number += 1;
        let changes = Arc::new(std::mem::take(&mut journal.pending));
        let batch = Batch { number: journal.number, changes };
        journal.under_way = Some((batch.clone(), std::mem::take(&mut journal.pending_then).into()));
        Some(batch)
    }

    /// Whether everything is stored that is to be.
    pub(in crate::core) fn is_stored(&self) -> bool {
        self.journal.as_ref().is_none_or(Journal::is_idle)
    }

    /// Whether answers for a connection wait for the store and for nothing else.
    pub(in crate::core) fn is_storing_for(&self, mailbox: &Arc<Mailbox>) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_storing_for(mailbox))
    }

    /// Does what was to happen when the batch that is under way is safe, `step` of it at most, or takes back at once what
    /// could not be stored. Tells whether there is more to do.
    pub(in crate::core) fn settle(
        &mut self,
        number: u64,
        is_safe: bool,
        step: usize,
        world: World<'_>,
    ) -> bool {
        let Some(journal) = &mut self.journal else { return false };
        if journal.under_way.as_ref().is_none_or(|(batch, _)| batch.number != number) {
            return false;
        }
        if is_safe {
            for _ in 0..step {
                let Some(then) = self.next_under_way() else { break };
                self.stored(then, world);
            }
        }
        let Some(journal) = &mut self.journal else { return false };
        let is_more = |(_, then): &mut (Batch, VecDeque<Then>)| is_safe && !then.is_empty();
        if journal.under_way.as_mut().is_some_and(is_more) {
            return true;
        }
        if let Some((batch, then)) = journal.under_way.take().filter(|_| !is_safe) {
            self.take_back(&batch, then, world);
        }
        self.serve(world);
        if let Some(journal) = &self.journal
            && !journal.is_idle()
        {
            journal.wake();
        }
        false
    }

    fn next_under_way(&mut self) -> Option<Then> {
        let (_, then) = self.journal.as_mut()?.under_way.as_mut()?;
        then.pop_front()
    }

    fn stored(&mut self, then: Then, world: World<'_>) {
        match then {
            Then::Answer(session, request) => self.answer_stored(session, request, true, world),
            Then::Told(reply) => reply.answer(Ok(Answer::Done)),
            Then::Opened(session, reply) => reply.answer(self.opened(session).ok_or(Refusal::NoSuchSession)),
            Then::Declared { object, before, after, evicts } => {
                self.apply(&object, &before, &after, evicts, world);
            }
            Then::Dismissed { object, removal, evicts, .. } => {
                self.dismiss(&object, &removal, evicts, world);
            }
            Then::Marked(mark) => self.set_mark(mark),
        }
    }

    /// Takes back, newest first, what was to be stored with a batch and after it.
    fn take_back(&mut self, batch: &Batch, then: VecDeque<Then>, world: World<'_>) {
        let Some(journal) = &mut self.journal else { return };
        let later = std::mem::take(&mut journal.pending);
        let later_then = std::mem::take(&mut journal.pending_then);
        // On disk there may be what was before the batch or after it: the next one says of all that it touched what is
        // true now.
        let touched: BTreeSet<_> = batch.changes.iter().chain(&later).map(key_of).collect();
        let mut marked = None;
        // What comes to nothing now is not on disk when the next batch is, as the store promises. Said in it all the same,
        // it would grow with every request for as long as the store fails.
        let mut nothing = BTreeSet::new();
        for then in then.into_iter().chain(later_then).rev() {
            match then {
                Then::Answer(session, request) => {
                    nothing.extend(self.would_be_stored(session, request));
                    self.answer_stored(session, request, false, world);
                }
                // What was given back stands.
                Then::Told(_) => self.stored(then, world),
                Then::Opened(session, reply) => {
                    nothing.insert(Key::Session(session));
                    self.take_back_session(session, reply, world);
                }
                Then::Declared { object, before, after, .. } => {
                    self.take_back_declaration(&object, before, &after, world)
                }
                Then::Dismissed { object, before, .. } => self.take_back_dismissal(&object, &before),
                Then::Marked(mark) => marked = marked.max(Some(mark)),
            }
        }
        if let Some(journal) = &mut self.journal {
            // What taking back has noted is among what was touched.
            journal.pending.clear();
        }
        for key in touched.difference(&nothing) {
            let change = self.present(key.clone(), world);
            self.note(change);
        }
        if let Some(mark) = marked {
            self.note(Change::Put(Record::Mark(mark)));
            self.then(Then::Marked(mark));
        }
    }

    /// The key of what a request has brought that waits for the store.
    fn would_be_stored(&mut self, session: SessionId, request: u64) -> Option<Key> {
        match &self.journal.as_mut()?.storing(session, request)?.outcome {
            Remembered::Granted(granted) => Some(Key::Grant(granted.grant)),
            Remembered::Declared(_) => Some(Key::Answer(session, request)),
            _ => None,
        }
    }

    pub(super) fn note(&mut self, change: Change) {
        if let Some(journal) = &mut self.journal {
            journal.note(change);
        }
    }

    pub(super) fn then(&mut self, then: Then) {
        if let Some(journal) = &mut self.journal {
            journal.then(then);
        }
    }

    /// Whether what a session holds is to outlive the process.
    pub(super) fn is_durable(&self, session: SessionId) -> bool {
        self.journal.is_some() && self.lease_of(session).is_some()
    }

    /// The number of the next grant or generation.
    pub(super) fn next_id(&mut self) -> Result<u64, Refusal> {
        if let Some(journal) = &self.journal
            && self.last_id >= journal.mark
        {
            // Ids of another run could be given out again: only where the store fails and the clock was set back.
            return Err(Refusal::NotStored);
        }
        self.last_id += 1;
        self.reserve_ids();
        Ok(self.last_id)
    }

    fn reserve_ids(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        if !journal.is_mark_asked && journal.mark.saturating_sub(self.last_id) < MARK_STEP / 2 {
            journal.is_mark_asked = true;
            let mark = self.last_id + MARK_STEP;
            journal.note(Change::Put(Record::Mark(mark)));
            journal.then(Then::Marked(mark));
        }
    }

    fn set_mark(&mut self, mark: u64) {
        if let Some(journal) = &mut self.journal {
            journal.mark = mark;
            journal.is_mark_asked = false;
        }
    }

    /// Has the answer to a request wait for the store.
    pub(super) fn answer_when_stored(
        &mut self,
        session: SessionId,
        request: u64,
        received_ms: u64,
        outcome: Remembered,
        reply: Option<Reply>,
    ) {
        if self.is_durable(session)
            && let Some(record) = outcome.record(session, request)
        {
            self.note(Change::Put(Record::Answer(record)));
        }
        let Some(journal) = &mut self.journal else { return };
        journal.storing.insert((session, request), Storing { outcome, received_ms, reply });
        journal.then(Then::Answer(session, request));
        self.remember(session, request, Remembered::Storing);
    }

    fn answer_stored(&mut self, session: SessionId, request: u64, is_safe: bool, world: World<'_>) {
        let Some(journal) = &mut self.journal else { return };
        let Some(storing) = journal.storing.remove(&(session, request)) else { return };
        let outcome = match storing.outcome {
            Remembered::Granted(granted) if !is_safe => {
                self.give_back(granted.grant, EventKind::Released, world);
                Remembered::Done(Err(Refusal::NotStored))
            }
            Remembered::Declared(_) if !is_safe => Remembered::Done(Err(Refusal::NotStored)),
            outcome => outcome,
        };
        self.stats.not_stored += u64::from(matches!(outcome, Remembered::Done(Err(Refusal::NotStored))));
        self.remember(session, request, outcome.clone());
        let granted = if let Remembered::Granted(granted) = &outcome { Some(granted.grant) } else { None };
        if let Some(reply) = storing.reply {
            reply.answer(self.told(session, outcome, storing.received_ms));
        }
        // Who heard of it before he knew that he has it may not have known what was meant.
        if let Some(grant) = granted {
            self.notify_if_revoked(grant, world);
        }
    }

    /// Answers a request, whose grant is gone before it was stored.
    pub(super) fn fail_storing(
        &mut self,
        session: SessionId,
        request: u64,
        grant: GrantId,
        refusal: Refusal,
    ) {
        let Some(journal) = &mut self.journal else { return };
        let is_its = |storing: &Storing| matches!(&storing.outcome, Remembered::Granted(granted) if granted.grant == grant);
        if !journal.storing.get(&(session, request)).is_some_and(is_its) {
            return;
        }
        let Some(storing) = journal.storing.remove(&(session, request)) else { return };
        self.remember(session, request, Remembered::Done(Err(refusal)));
        if let Some(reply) = storing.reply {
            reply.answer(Err(refusal));
        }
    }

    /// Answers what a session that has ended was still to be answered.
    pub(super) fn fail_all_storing(&mut self, session: SessionId, refusal: Refusal) {
        let Some(journal) = &mut self.journal else { return };
        let requests: Vec<_> =
            journal.storing.range((session, 0)..=(session, u64::MAX)).map(|(key, _)| *key).collect();
        for key in requests {
            if let Some(Storing { reply: Some(reply), .. }) = journal.storing.remove(&key) {
                reply.answer(Err(refusal));
            }
        }
    }

    fn take_back_session(&mut self, session: SessionId, reply: Reply, world: World<'_>) {
        self.stats.not_stored += 1;
        reply.answer(Err(Refusal::NotStored));
        if self.end(session, EventKind::Released, Refusal::NoSuchSession, world) {
            self.end_session_at(world.now.monotonic_ms, session);
        }
    }
}

fn key_of(change: &Change) -> Key {
    match change {
        Change::Put(record) => record.key(),
        Change::Delete(key) => key.clone(),
    }
}
