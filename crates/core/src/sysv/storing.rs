//! Stores the changes of durable sets.
//!
//! A call changes a set in memory at once, and adds the records of what it has changed to the journal. Its result is held
//! until they are stored, and so are the results of later calls on durable sets, because they may depend on the change.
//!
//! If a batch cannot be committed, it stays in the journal and is taken again, until it is stored: nothing is rolled
//! back, and no client is told of a result before that. Meanwhile, new calls on durable sets fail with EIO.

use std::mem;
use std::task::Waker;

use super::answers::send;
use super::durable::{AdjustmentsRecord, ProcessRecord, ResultRecord, StoredAnswer, SysvKey, SysvRecord};
use super::processes::{Done, Held, Reply};
use super::state::Sysv;
use crate::durable::{Change, Key, Record};
use crate::journal::Journaled;
use crate::mailbox::ReplyTo;
use signalbox_model::RequestId;
use signalbox_model::sysv::{ProcessId, SetId};

impl Sysv {
    /// Keeps a journal of the changes of durable sets for a store from now on; `taker` is woken when there are some.
    pub(crate) fn keep_journal(&mut self, taker: Waker) {
        self.journal.keep_for(taker);
        for key in mem::take(&mut self.left_over) {
            self.delete_alone(key);
        }
    }

    /// Sends at most `step` of the results that waited for a batch, which is stored. Returns whether there is more to
    /// do.
    pub(crate) fn stored(&mut self, step: usize) -> bool {
        self.complete_batch(step, Self::send_held)
    }

    /// Holds the result of a call until everything so far is stored. Requires a store.
    pub(super) fn hold(
        &mut self,
        process: ProcessId,
        request: RequestId,
        done: Done,
        reply_to: Option<ReplyTo>,
    ) {
        if done.is_stored {
            self.store_result(process, request, &done);
        }
        self.cache(process, request, Reply::Storing(done, reply_to));
        self.journal.on_commit(Held { process, request });
    }

    fn send_held(&mut self, Held { process, request }: Held) {
        // The process may have ended, or its client may no longer need the result.
        let Some(acting) = self.processes.get(process) else { return };
        let Some(Reply::Storing(done, reply_to)) = acting.log.get(request).cloned() else { return };
        let result = done.result.clone();
        self.cache(process, request, Reply::Done(done));
        send(reply_to, result);
    }
}

/// Records. `store_set`, `store_adjustments` and `store_undone` do nothing for a set that is not durable, and `forget_stored`
/// does nothing for a process that has used no durable set.
impl Sysv {
    /// Returns whether a new set with this key is durable.
    pub(super) fn makes_durable(&self, key: i32) -> bool {
        self.journal.has_store() && self.rules.is_durable(key)
    }

    pub(super) fn is_durable(&self, set: SetId) -> bool {
        self.sets.get(set).is_some_and(|set| set.is_durable)
    }

    /// Returns whether the result of a call depends on a durable set if its client names this set. A set that does not
    /// exist may have been a durable one whose removal is not stored yet.
    pub(super) fn is_named_durable(&self, set: SetId) -> bool {
        self.sets.get(set).is_none_or(|set| set.is_durable) && self.journal.has_store()
    }

    pub(super) fn store_set(&mut self, id: SetId) {
        if let Some(set) = self.sets.get(id).filter(|set| set.is_durable) {
            let record = set.record(id);
            self.store(SysvRecord::Set(record));
        }
    }

    /// Stores the adjustments that a process has of a set.
    pub(super) fn store_adjustments(&mut self, process: ProcessId, id: SetId) {
        let Some(set) = self.sets.get(id).filter(|set| set.is_durable) else { return };
        let turn = self.processes.get(process).and_then(|process| process.turn_of(id));
        let Some((turn, adjustments)) = turn.zip(set.values.adjustments_of(process)) else { return };
        let (clearances, adjustments) = (set.values.clearances(), adjustments.into());
        let record = AdjustmentsRecord { process, set: id, turn, clearances, adjustments };
        self.store_process(process);
        self.store(SysvRecord::Adjustments(record));
    }

    /// Stores a process, unless the store has it.
    pub(super) fn store_process(&mut self, process: ProcessId) {
        if self.processes.get(process).is_some_and(|process| !process.is_stored) {
            self.store_process_as(process, false);
        }
    }

    fn store_process_as(&mut self, id: ProcessId, is_ending: bool) {
        let Some(process) = self.processes.get_mut(id) else { return };
        process.is_stored = true;
        let record = ProcessRecord { is_ending, ..process.record.clone() };
        self.store(SysvRecord::Process(record));
    }

    /// Stores the result of a call that has changed a durable set, and deletes the results that the client no longer
    /// needs.
    fn store_result(&mut self, process: ProcessId, request: RequestId, done: &Done) {
        let Some(answer) = done.result.as_ref().ok().and_then(StoredAnswer::of) else { return };
        self.store_process(process);
        let acting = self.processes.get_mut(process);
        let forgotten = acting.map(|acting| std::mem::take(&mut acting.forgotten)).unwrap_or_default();
        for request in forgotten {
            self.delete(SysvKey::Result(process, request));
        }
        self.store(SysvRecord::Result(ResultRecord { process, request, answer }));
    }

    /// Stores that a process that is ending no longer has adjustments of a set, because they were applied. `is_last`: it
    /// has no adjustments of other sets either; otherwise, its record says from now on that its end has begun.
    pub(super) fn store_undone(&mut self, process: ProcessId, id: SetId, is_last: bool) {
        if !self.is_durable(id) {
            return;
        }
        if self.processes.get(process).is_some_and(|process| process.is_stored) {
            self.delete(SysvKey::Adjustments(process, id));
            if !is_last {
                self.store_process_as(process, true);
            }
        }
    }

    /// Deletes the records of a process that has no adjustments.
    pub(super) fn forget_stored(&mut self, process: ProcessId) {
        let Some(ending) = self.processes.get(process).filter(|process| process.is_stored) else { return };
        let is_stored = |reply: &Reply| match reply {
            Reply::Storing(done, _) | Reply::Done(done) => done.is_stored,
            Reply::Waiting(..) => false,
        };
        let cached = ending.log.iter().filter(|(_, reply)| is_stored(reply)).map(|(request, _)| request);
        let requests: Vec<_> = cached.chain(ending.forgotten.iter().copied()).collect();
        for request in requests {
            self.delete(SysvKey::Result(process, request));
        }
        self.delete(SysvKey::Process(process));
    }

    fn store(&mut self, record: SysvRecord) {
        self.journal.add(Change::Put(Record::Sysv(record)));
    }

    /// Deletes a record that belongs to no other change, so that the unit may end after it.
    pub(super) fn delete_alone(&mut self, key: SysvKey) {
        self.delete(key);
        if self.journal.is_unit_large() {
            self.journal.end_unit();
        }
    }

    pub(super) fn delete(&mut self, key: SysvKey) {
        self.journal.add(Change::Delete(Key::Sysv(key)));
    }
}
