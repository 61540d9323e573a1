//! The records of a store, at the start. They come in the order of their keys: sets, processes, adjustments, results.
//!
//! A process ends after its time to live, unless a connection attaches to it again. No call waits: clients repeat their calls.

use super::durable::{AdjustmentsRecord, ProcessRecord, ResultRecord, SetRecord, SysvKey, SysvRecord};
use super::processes::{Done, Process, Reply};
use super::set::{SEMAPHORES_MAX, Set};
use super::state::Sysv;
use super::values::VALUE_MAX;
use crate::time::{Moment, MonotonicMs};
use signalbox_model::sysv::IPC_PRIVATE;

impl Sysv {
    /// Restores a record. An error describes a contradiction between records.
    pub(crate) fn restore(&mut self, record: SysvRecord, now: Moment) -> Result<(), String> {
        match record {
            SysvRecord::Set(record) => self.restore_set(&record),
            SysvRecord::Process(record) => self.restore_process(record, now),
            SysvRecord::Adjustments(record) => self.restore_adjustments(record),
            SysvRecord::Result(record) => self.restore_result(record),
        }
    }

    /// Begins to serve what was restored `late_ms` milliseconds ago: processes end later by that time.
    pub(crate) fn begin_serving(&mut self, late_ms: u64) {
        let deadlines: Vec<_> =
            self.processes.iter().filter_map(|(id, process)| Some((id, process.deadline()?))).collect();
        for (id, deadline) in deadlines {
            self.processes.set_deadline(id, MonotonicMs(deadline.0 + late_ms));
        }
    }

    fn restore_set(&mut self, record: &SetRecord) -> Result<(), String> {
        let set = record.set;
        let count = record.semaphores.len();
        if count == 0 || count > SEMAPHORES_MAX as usize {
            return Err(format!("semaphore set {set} has {count} semaphores"));
        }
        if record.semaphores.iter().any(|semaphore| semaphore.value > VALUE_MAX) {
            return Err(format!("semaphore set {set} has a value above {VALUE_MAX}"));
        }
        if record.key != IPC_PRIVATE
            && let Some(other) = self.sets.by_key(record.key)
        {
            return Err(format!("semaphore sets {other} and {set} have the same key"));
        }
        self.sets.insert_as(set, Set::restore(record));
        Ok(())
    }

    fn restore_process(&mut self, record: ProcessRecord, now: Moment) -> Result<(), String> {
        let ProcessRecord { process, ttl_ms, is_ending, .. } = record;
        let mut restored = Process::new(record);
        restored.is_stored = true;
        self.processes.start_after(process.0);
        self.processes.insert(process, restored);
        let lives_on_ms = if is_ending { 0 } else { ttl_ms };
        self.processes.set_deadline(process, now.monotonic.after(lives_on_ms));
        Ok(())
    }

    fn restore_adjustments(&mut self, record: AdjustmentsRecord) -> Result<(), String> {
        let AdjustmentsRecord { process, set: id, turn, clearances, adjustments } = record;
        let owner = self.processes.get_mut(process);
        let owner = owner.ok_or_else(|| {
            format!("adjustments of semaphore set {id} belong to process {process}, which does not exist")
        })?;
        let Some(set) = self.sets.get_mut(id) else {
            // The set was removed, and the server ended before the deletion of these adjustments was stored.
            self.left_over.push(SysvKey::Adjustments(process, id));
            return Ok(());
        };
        if set.values.count() != adjustments.len() {
            return Err(format!(
                "process {process} has adjustments of semaphore set {id}, which has another number of semaphores"
            ));
        }
        if owner.adjusts.insert(turn, id).is_some() {
            return Err(format!(
                "process {process} has adjustments of two semaphore sets with number {turn}"
            ));
        }
        set.values.restore_adjustments(process, adjustments, clearances);
        Ok(())
    }

    fn restore_result(&mut self, record: ResultRecord) -> Result<(), String> {
        let ResultRecord { process, request, answer } = record;
        if self.processes.get(process).is_none() {
            return Err(format!("a result belongs to process {process}, which does not exist"));
        }
        let done = Done { result: Ok(answer.into()), is_stored: true };
        self.cache(process, request, Reply::Done(done));
        Ok(())
    }
}
