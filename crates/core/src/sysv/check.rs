//! The invariants of sets and processes, for tests and simulation.

use std::collections::BTreeMap;

use super::set::Set;
use super::state::Sysv;
use super::values::VALUE_MAX;
use super::waiters::WaitsFor;
use crate::state::Core;
use signalbox_model::sysv::{Order, SetId};

/// The number of sets of one step of a check.
const STEP_SETS: usize = 16;

/// The progress of a check of all sets.
#[derive(Debug, Default)]
pub struct SetCheck {
    last: Option<SetId>,
    checked: u64,
    failures: Vec<String>,
}

impl SetCheck {
    /// The number of sets that were checked.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// The violations, one sentence for each set with a violation.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Core {
    /// Checks the invariants of sets and processes. For tests: it visits everything at once.
    pub fn check_sysv(&self) -> Result<(), String> {
        let sysv = &*self.sysv();
        sysv.processes.check()?;
        let semaphores: usize = sysv.sets.iter().map(|(_, set)| set.values.count()).sum();
        if semaphores as u64 != sysv.sets.semaphores() {
            return Err(format!("{semaphores} semaphores are counted as {}", sysv.sets.semaphores()));
        }
        for (id, set) in sysv.sets.iter() {
            sysv.check_set(id, set)?;
        }
        for (process, state) in sysv.processes.iter() {
            for set in state.adjusts.values() {
                if !sysv.sets.get(*set).is_some_and(|set| set.values.has_adjustments_of(process)) {
                    return Err(format!("process {process} has no adjustments of set {set}"));
                }
            }
        }
        let waiters = || sysv.sets.iter().flat_map(|(_, set)| set.waiters.iter());
        let mut waiting_bytes = BTreeMap::<_, usize>::new();
        for (_, waiter) in waiters() {
            *waiting_bytes.entry(waiter.process).or_default() += waiter.bytes();
        }
        for (id, process) in sysv.processes.iter() {
            process.check_bytes(waiting_bytes.get(&id).copied().unwrap_or(0))?;
        }
        let timeouts = waiters().filter(|(_, waiter)| waiter.deadline.is_some()).count();
        if timeouts != sysv.timeouts.len() {
            return Err(format!("{timeouts} calls time out, {} are known", sysv.timeouts.len()));
        }
        Ok(())
    }

    /// Runs a step of the check. Returns whether there is more to do.
    pub fn check_sets(&self, check: &mut SetCheck) -> bool {
        let sysv = &*self.sysv();
        let sets: Vec<_> = sysv.sets.after(check.last).take(STEP_SETS).collect();
        for (id, set) in &sets {
            check.failures.extend(sysv.check_set(*id, set).err());
            check.last = Some(*id);
        }
        check.checked += sets.len() as u64;
        sets.len() == STEP_SETS
    }
}

impl Sysv {
    fn check_set(&self, id: SetId, set: &Set) -> Result<(), String> {
        if set.is_durable && !self.journal.has_store() {
            return Err(format!("set {id} is durable, but there is no store"));
        }
        if set.values.iter().any(|value| value > VALUE_MAX) {
            return Err(format!("a value of set {id} is above {VALUE_MAX}"));
        }
        set.waiters.check()?;
        for (waiter_id, waiter) in set.waiters.iter() {
            let process = self.processes.get(waiter.process);
            if process.and_then(|process| process.waiting().get(&waiter.request)) != Some(&(id, waiter_id)) {
                return Err(format!("a waiting call of set {id} belongs to no process"));
            }
            let (waits_for, need) = waiter.waits_for();
            let is_possible = match waits_for {
                // In a set that keeps the order of arrival, a call that is possible may have to wait for earlier ones.
                WaitsFor::Growth(_) if set.order == Order::Fifo => false,
                WaitsFor::Growth(number) => set.values.value(number) >= need,
                WaitsFor::Value(number, _) | WaitsFor::Zero(number) | WaitsFor::ManyZero(number) => {
                    set.values.value(number) == need
                }
            };
            if is_possible {
                return Err(format!("a call of set {id} waits although it may be possible"));
            }
        }
        if set.is_durable {
            for (process, _) in set.values.adjusting() {
                if self.processes.get(process).is_some_and(|process| !process.is_stored) {
                    return Err(format!(
                        "process {process} has adjustments of durable set {id}, and is not stored"
                    ));
                }
            }
        }
        for process in set.values.adjusters() {
            let is_known = self.processes.get(process).is_some_and(|process| process.turn_of(id).is_some());
            if !is_known {
                return Err(format!("set {id} has adjustments of process {process}, which has none"));
            }
        }
        Ok(())
    }
}
