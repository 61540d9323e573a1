//! The values of a set's semaphores, the adjustments of processes, and how a list of operations changes both.
//!
//! Invariants: a value is 0 to 32767; an adjustment is -32768 to 32767; a list that is not performed changes nothing.

use std::collections::BTreeMap;

use super::durable::SemaphoreRecord;
use signalbox_model::sysv::{Errno, Operation, ProcessId};

/// The highest value of a semaphore (SEMVMX).
pub(super) const VALUE_MAX: u16 = 32767;

/// The outcome of a list of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Performed,
    /// The list has to wait until the operation at this index, the first that is not possible now, is possible.
    Blocked(usize),
    Failed(Errno),
}

/// The semaphores of a set, and the adjustments of processes.
#[derive(Debug)]
pub(super) struct Values {
    semaphores: Box<[SemaphoreRecord]>,
    /// For each process that used SEM_UNDO, what its end adds to each value.
    adjustments: BTreeMap<ProcessId, Box<[i16]>>,
    /// The number of clearances (SETVAL and SETALL). Each semaphore has the number of its last one, so that a
    /// clearance changes no records of adjustments.
    clearances: u64,
    /// How many calls of [`Self::perform`] there were.
    #[cfg(test)]
    pub(super) performed: usize,
}

impl Values {
    /// This many semaphores with the value 0.
    pub(super) fn new(count: u32) -> Self {
        Self::of(vec![SemaphoreRecord::default(); count as usize].into())
    }

    /// The semaphores of a record.
    pub(super) fn restore(semaphores: &[SemaphoreRecord]) -> Self {
        let clearances = semaphores.iter().map(|semaphore| semaphore.cleared).max().unwrap_or(0);
        Self { clearances, ..Self::of(semaphores.into()) }
    }

    fn of(semaphores: Box<[SemaphoreRecord]>) -> Self {
        Self {
            semaphores,
            adjustments: BTreeMap::new(),
            clearances: 0,
            #[cfg(test)]
            performed: 0,
        }
    }

    /// Gives a process the adjustments of a record that was written after this number of clearances.
    pub(super) fn restore_adjustments(
        &mut self,
        process: ProcessId,
        mut adjustments: Box<[i16]>,
        clearances: u64,
    ) {
        self.clearances = self.clearances.max(clearances);
        for (adjustment, semaphore) in adjustments.iter_mut().zip(&self.semaphores) {
            if semaphore.cleared > clearances {
                *adjustment = 0;
            }
        }
        self.adjustments.insert(process, adjustments);
    }

    pub(super) fn records(&self) -> &[SemaphoreRecord] {
        &self.semaphores
    }

    pub(super) fn clearances(&self) -> u64 {
        self.clearances
    }

    /// The adjustments of a process, even if all are 0.
    pub(super) fn adjustments_of(&self, process: ProcessId) -> Option<&[i16]> {
        self.adjustments.get(&process).map(|adjustments| &adjustments[..])
    }

    pub(super) fn count(&self) -> usize {
        self.semaphores.len()
    }

    pub(super) fn get(&self, number: usize) -> Option<&SemaphoreRecord> {
        self.semaphores.get(number)
    }

    pub(super) fn value(&self, number: u16) -> u16 {
        self.semaphores[usize::from(number)].value
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        self.semaphores.iter().map(|semaphore| semaphore.value)
    }

    /// Returns whether the process has adjustments of the set, even if all are 0.
    pub(super) fn has_adjustments_of(&self, process: ProcessId) -> bool {
        self.adjustments.contains_key(&process)
    }

    /// Adds adjustments of the process, all 0, unless it has adjustments of the set. Returns whether they are new.
    pub(super) fn adjust_for(&mut self, process: ProcessId) -> bool {
        let count = self.count();
        let mut is_new = false;
        self.adjustments.entry(process).or_insert_with(|| {
            is_new = true;
            vec![0; count].into()
        });
        is_new
    }

    /// Performs the operations in their order, or none of them. The caller has checked that all their semaphores exist,
    /// and has added adjustments of the process if its end undoes an operation. Nothing can be taken from semaphores that
    /// are `reserved`.
    pub(super) fn perform(
        &mut self,
        process: ProcessId,
        pid: u32,
        operations: &[Operation],
        reserved: impl Fn(u16) -> bool,
    ) -> Verdict {
        #[cfg(test)]
        {
            self.performed += 1;
        }
        // Adjustments change only if the end of the process undoes an operation.
        let undoes = undoes(operations);
        let mut adjustments = if undoes { self.adjustments.get_mut(&process) } else { None };
        for (index, operation) in operations.iter().enumerate() {
            if let Some(failed) =
                perform_one(&mut self.semaphores, adjustments.as_deref_mut(), operation, index, &reserved)
            {
                for done in operations[..index].iter().rev() {
                    let value = &mut self.semaphores[usize::from(done.number)].value;
                    *value = value.wrapping_sub_signed(done.change);
                    if let (true, Some(adjustments)) = (done.is_undone(), adjustments.as_deref_mut()) {
                        adjustments[usize::from(done.number)] += done.change;
                    }
                }
                return failed;
            }
        }
        for operation in operations {
            self.semaphores[usize::from(operation.number)].pid = pid;
        }
        Verdict::Performed
    }

    /// Sets a value, which clears the adjustments of all processes for the semaphore.
    pub(super) fn set(&mut self, number: usize, value: u16, pid: u32) {
        self.clearances += 1;
        self.semaphores[number] = SemaphoreRecord { value, pid, cleared: self.clearances };
        for adjustments in self.adjustments.values_mut() {
            adjustments[number] = 0;
        }
    }

    /// Sets all values, which clears all adjustments.
    pub(super) fn set_all(&mut self, values: &[u16], pid: u32) {
        self.clearances += 1;
        for (semaphore, value) in self.semaphores.iter_mut().zip(values) {
            *semaphore = SemaphoreRecord { value: *value, pid, cleared: self.clearances };
        }
        for adjustments in self.adjustments.values_mut() {
            adjustments.fill(0);
        }
    }

    /// Applies the adjustments of a process that ends. The result is clipped to the range of values.
    pub(super) fn undo(&mut self, process: ProcessId, pid: u32) {
        let Some(adjustments) = self.adjustments.remove(&process) else { return };
        for (semaphore, adjustment) in self.semaphores.iter_mut().zip(adjustments) {
            if adjustment != 0 {
                let value = i32::from(semaphore.value) + i32::from(adjustment);
                semaphore.value = value.clamp(0, i32::from(VALUE_MAX)) as u16;
                semaphore.pid = pid;
            }
        }
    }

    /// The processes with an adjustment that is not 0, and their adjustments by semaphore.
    pub(super) fn adjusting(&self) -> impl Iterator<Item = (ProcessId, impl Iterator<Item = (u16, i16)>)> {
        let is_used = |adjustments: &[i16]| adjustments.iter().any(|adjustment| *adjustment != 0);
        self.adjustments.iter().filter(move |(_, adjustments)| is_used(adjustments)).map(
            |(process, adjustments)| {
                let numbered = (0..).zip(adjustments.iter().copied());
                (*process, numbered.filter(|(_, adjustment)| *adjustment != 0))
            },
        )
    }

    /// The processes that have adjustments, even if all are 0.
    pub(super) fn adjusters(&self) -> impl Iterator<Item = ProcessId> {
        self.adjustments.keys().copied()
    }
}

/// Returns whether an operation of a list alters a value. A list that alters nothing only waits until values are 0.
pub(super) fn alters(operations: &[Operation]) -> bool {
    operations.iter().any(|operation| operation.change != 0)
}

/// Returns whether the end of the process undoes an operation of a list.
pub(super) fn undoes(operations: &[Operation]) -> bool {
    operations.iter().any(|operation| operation.is_undone())
}

/// Performs one operation, or returns why it cannot be performed; then nothing has changed.
fn perform_one(
    semaphores: &mut [SemaphoreRecord],
    adjustments: Option<&mut Box<[i16]>>,
    operation: &Operation,
    index: usize,
    reserved: impl Fn(u16) -> bool,
) -> Option<Verdict> {
    let Operation { number, change, .. } = *operation;
    let is_reserved = change < 0 && reserved(number);
    let number = usize::from(number);
    let value = i32::from(semaphores[number].value);
    let result = value + i32::from(change);
    if result < 0 || (change == 0 && value != 0) || is_reserved {
        return Some(if operation.is_nowait() {
            Verdict::Failed(Errno::Again)
        } else {
            Verdict::Blocked(index)
        });
    }
    if result > i32::from(VALUE_MAX) {
        return Some(Verdict::Failed(Errno::Range));
    }
    if let (true, Some(adjustments)) = (operation.is_undone(), adjustments) {
        let adjusted = i16::try_from(i32::from(adjustments[number]) - i32::from(change));
        let Ok(adjusted) = adjusted else { return Some(Verdict::Failed(Errno::Range)) };
        adjustments[number] = adjusted;
    }
    semaphores[number].value = result as u16;
    None
}
