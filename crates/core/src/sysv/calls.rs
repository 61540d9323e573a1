//! The calls of programs: `semget`, `semop`, `semctl`.

use std::sync::Arc;

use super::answers::{SysvCall, SysvOutcome};
use super::processes::Reply;
use super::set::{ALTER, READ, SEMAPHORES_MAX, Set};
use super::state::Sysv;
use super::values::{VALUE_MAX, Verdict, alters, undoes};
use super::waiters::{WAITING_OPERATIONS_MAX, Waiter};
use crate::limit::{check_limit, limit_reached};
use crate::outcome::Token;
use crate::state::Core;
use crate::time::{Due, Moment};
use signalbox_model::sysv::{
    Caller, Errno, IPC_CREAT, IPC_EXCL, IPC_PRIVATE, OPERATIONS_MAX, Operation, ProcessId, SetAnswer,
    SetCommand, SetId,
};
use signalbox_model::{ConnectionId, Limit, Refusal};

/// The reason why a call does not wait.
enum NotWaiting {
    Errno(Errno),
    /// A limit is reached: the call fails with ENOMEM.
    Limit(Refusal),
}

impl From<Errno> for NotWaiting {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

fn checked_value(value: i32) -> Result<u16, Errno> {
    u16::try_from(value).ok().filter(|value| *value <= VALUE_MAX).ok_or(Errno::Range)
}

impl Core {
    /// Finds or creates a set: `semget`. The flags are [`IPC_CREAT`], [`IPC_EXCL`] and the nine bits of the mode.
    pub fn sem_get(&self, call: SysvCall, key: i32, count: u32, flags: u32, now: Moment) -> SysvOutcome {
        let sysv = &mut *self.sysv();
        let present = sysv.sets.by_key(key).filter(|_| key != IPC_PRIVATE);
        let is_durable = match present {
            Some(id) => sysv.is_durable(id),
            None => sysv.makes_durable(key),
        };
        sysv.once(call, is_durable, |sysv, process| {
            if count > SEMAPHORES_MAX {
                return Err(Errno::Inval);
            }
            let Some(id) = present else {
                if key != IPC_PRIVATE && flags & IPC_CREAT == 0 {
                    return Err(Errno::NoEnt);
                }
                let id = sysv.create(call.caller, key, count, flags, now)?;
                sysv.store_set(id);
                return Ok((SetAnswer::Set(id, count), is_durable));
            };
            if flags & IPC_CREAT != 0 && flags & IPC_EXCL != 0 {
                return Err(Errno::Exist);
            }
            let set = sysv.sets.get(id).ok_or(Errno::NoEnt)?;
            let has = set.values.count() as u32;
            if count > has {
                return Err(Errno::Inval);
            }
            set.check_access(call.caller, sysv.groups_of(process), flags)?;
            Ok((SetAnswer::Set(id, has), false))
        })
    }

    /// Performs operations, all or none: `semop` and `semtimedop`. The call waits for `wait_ms` milliseconds at most;
    /// `None`: forever. If a limit prevents the wait, the call fails with ENOMEM, and the second value says which limit.
    pub fn sem_op(
        &self,
        call: SysvCall,
        set: SetId,
        operations: &[Operation],
        wait_ms: Option<u32>,
        now: Moment,
    ) -> (SysvOutcome, Option<Refusal>) {
        let sysv = &mut *self.sysv();
        let is_durable = sysv.is_named_durable(set);
        let waits = |sysv: &mut Sysv, set, waiter_id| {
            sysv.redirect(call, set, waiter_id);
            SysvOutcome::Waiting
        };
        let process = match sysv.first_time(call, is_durable, waits) {
            Ok(process) => process,
            Err(outcome) => return (outcome, None),
        };
        let mut limit = None;
        let result = match sysv.start(call, process, set, operations, now) {
            Err(errno) => Err(errno),
            Ok(Verdict::Performed) => {
                let outcome = sysv.settle(call, process, is_durable, Ok((SetAnswer::Done, is_durable)));
                sysv.complete_after(set, Some(operations), now);
                return (outcome, None);
            }
            Ok(Verdict::Failed(errno)) => Err(errno),
            Ok(Verdict::Blocked(blocking)) => {
                match sysv.wait(call, (set, process), operations, blocking, wait_ms, now) {
                    Ok(()) => return (SysvOutcome::Waiting, None),
                    Err(NotWaiting::Errno(errno)) => Err(errno),
                    Err(NotWaiting::Limit(refusal)) => {
                        limit = Some(refusal);
                        Err(Errno::NoMem)
                    }
                }
            }
        };
        (sysv.settle(call, process, is_durable, result), limit)
    }

    /// Reads or changes a set: `semctl`.
    pub fn sem_ctl(&self, call: SysvCall, set: SetId, command: &SetCommand, now: Moment) -> SysvOutcome {
        let sysv = &mut *self.sysv();
        let is_durable = sysv.is_named_durable(set);
        if command.is_change() {
            let mut changed = None;
            let outcome = sysv.once(call, is_durable, |sysv, process| {
                // The kernel checks the value before it looks for the set.
                if let SetCommand::SetValue(_, value) = *command {
                    checked_value(value)?;
                }
                changed = Some(sysv.change(call.caller, process, set, command, now)?);
                Ok((SetAnswer::Done, is_durable))
            });
            match changed {
                Some(Some(removed)) => sysv.clean_up_removed(set, removed),
                Some(None) if !matches!(command, SetCommand::SetOwnership(_)) => {
                    sysv.complete_after(set, None, now);
                }
                Some(_) | None => {}
            }
            return outcome;
        }
        // Reading again does no harm, so the result is cached only while it waits for the store.
        if is_durable && !sysv.journal.is_idle() {
            return sysv.once(call, is_durable, |sysv, process| {
                Ok((sysv.read(call.caller, process, set, command)?, false))
            });
        }
        match sysv.find_reply(call) {
            Err(refusal) => SysvOutcome::Refused(refusal),
            Ok((process, _)) => SysvOutcome::Answered(sysv.read(call.caller, process, set, command)),
        }
    }

    /// Cancels a waiting call of a connection: it fails with EINTR. Returns whether there was one.
    pub fn cancel_sem_op(&self, connection: ConnectionId, token: Token, now: Moment) -> bool {
        let sysv = &mut *self.sysv();
        let Some((process, mailbox)) = sysv.processes.acting(connection) else { return false };
        let Some(acting) = sysv.processes.get(process) else { return false };
        let is_of_request = |waiter: &Waiter| {
            let reply_to = waiter.reply_to.as_ref();
            reply_to.is_some_and(|to| to.token == token && Arc::ptr_eq(&to.mailbox, mailbox))
        };
        let found = acting.waiting().values().copied().find(|(set, waiter_id)| {
            sysv.sets.get(*set).and_then(|set| set.waiters.get(*waiter_id)).is_some_and(is_of_request)
        });
        let Some((set, waiter_id)) = found else { return false };
        sysv.fail(set, waiter_id, Errno::Intr, now);
        true
    }
}

impl Sysv {
    fn create(
        &mut self,
        caller: Caller,
        key: i32,
        count: u32,
        mode: u32,
        now: Moment,
    ) -> Result<SetId, Errno> {
        if count == 0 {
            return Err(Errno::Inval);
        }
        if self.rules.is_durable(key) && !self.journal.has_store() {
            return Err(Errno::Io);
        }
        if self.limits.memory.is_exceeded() {
            return Err(Errno::NoMem);
        }
        let semaphores = self.sets.semaphores() + u64::from(count);
        if semaphores > self.limits.semaphores_max || self.sets.len() >= self.limits.sets_max {
            return Err(Errno::NoSpc);
        }
        let kind = (self.rules.order_of(key), self.makes_durable(key));
        Ok(self.sets.insert(Set::new(key, kind, caller, mode, count, now.unix)))
    }

    /// Performs the operations of a call if it does not have to wait.
    fn start(
        &mut self,
        call: SysvCall,
        process: ProcessId,
        id: SetId,
        operations: &[Operation],
        now: Moment,
    ) -> Result<Verdict, Errno> {
        if operations.is_empty() {
            return Err(Errno::Inval);
        }
        if operations.len() > OPERATIONS_MAX {
            return Err(Errno::TooBig);
        }
        let acting = self.processes.get_mut(process).ok_or(Errno::Inval)?;
        let set = self.sets.get_mut(id).ok_or(Errno::Inval)?;
        let has = set.values.count();
        if operations.iter().any(|operation| usize::from(operation.number) >= has) {
            return Err(Errno::FBig);
        }
        let asked = if alters(operations) { ALTER } else { READ };
        set.check_access(call.caller, &acting.record.groups, asked)?;
        let undoes = undoes(operations);
        if undoes && self.limits.memory.is_exceeded() && !set.values.has_adjustments_of(process) {
            return Err(Errno::NoMem);
        }
        if undoes && set.values.adjust_for(process) {
            acting.add_adjusted_set(id);
        }
        let verdict = set.operate(process, acting.record.pid, operations, now.unix);
        if verdict == Verdict::Performed {
            self.store_set(id);
            if undoes {
                self.store_adjustments(process, id);
            }
        }
        Ok(verdict)
    }

    /// Completes the calls that these operations have made possible; `None`: any values may have changed.
    fn complete_after(&mut self, id: SetId, changed: Option<&[Operation]>, now: Moment) {
        if let Some(set) = self.sets.get(id) {
            self.complete(id, set.completion(changed), now);
        }
    }

    /// Adds a call to those that wait for its set. Fails if the call may not wait.
    fn wait(
        &mut self,
        call: SysvCall,
        (id, process): (SetId, ProcessId),
        operations: &[Operation],
        blocking: usize,
        wait_ms: Option<u32>,
        now: Moment,
    ) -> Result<(), NotWaiting> {
        if wait_ms == Some(0) {
            return Err(Errno::Again.into());
        }
        let is_durable = self.is_durable(id);
        // A call on a durable set may still wait: the client repeats it to the next server.
        if self.is_shutting_down && !is_durable {
            return Err(Errno::IdRm.into());
        }
        if is_durable {
            self.store_process(process);
        }
        let reply_to = self.reply_to(call);
        let pid = self.processes.get(process).ok_or(Errno::Inval)?.record.pid;
        let set = self.sets.get_mut(id).ok_or(Errno::Inval)?;
        let own = self.processes.waiting_of_client(process);
        if operations.len() > 1 && set.waiters.many_operations() + operations.len() > WAITING_OPERATIONS_MAX {
            let reached = limit_reached(Limit::Waiters, WAITING_OPERATIONS_MAX);
            return Err(NotWaiting::Limit(reached));
        }
        let limit = (self.limits.waiters_max, self.limits.client_share);
        check_limit(Limit::Waiters, limit, set.waiters.len(), own).map_err(NotWaiting::Limit)?;
        let bytes = self.processes.bytes_of_client(process);
        self.limits.memory.check(self.limits.client_share, bytes).map_err(NotWaiting::Limit)?;
        let deadline = wait_ms.map(|wait_ms| now.monotonic.after(wait_ms));
        let waiter = Waiter {
            process,
            request: call.ids.own,
            pid,
            operations: operations.into(),
            blocking,
            deadline,
            reply_to,
        };
        let bytes = waiter.bytes();
        let waiter_id = set.waiters.push(waiter);
        self.processes.add_waiting(process, call.ids.own, (id, waiter_id), bytes);
        if let Some(deadline) = deadline {
            self.timeouts.insert((deadline, id, waiter_id));
            self.alarm.ring(Due::At(deadline));
        }
        self.cache(process, call.ids.own, Reply::Waiting(id, waiter_id));
        Ok(())
    }

    /// Changes a set. The caller completes the calls that the change made possible. Returns the set if it was removed.
    fn change(
        &mut self,
        caller: Caller,
        process: ProcessId,
        id: SetId,
        command: &SetCommand,
        now: Moment,
    ) -> Result<Option<Set>, Errno> {
        let acting = self.processes.get(process).ok_or(Errno::Inval)?;
        let (pid, groups) = (acting.record.pid, &acting.record.groups);
        let set = self.sets.get_mut(id).ok_or(Errno::Inval)?;
        match *command {
            SetCommand::Remove => {
                set.check_owner(caller)?;
                return Ok(self.remove(id));
            }
            SetCommand::SetOwnership(ownership) => {
                set.check_owner(caller)?;
                set.set_ownership(ownership, now.unix)?;
            }
            SetCommand::SetValue(number, value) => {
                let value = checked_value(value)?;
                let number = number as usize;
                set.values.get(number).ok_or(Errno::Inval)?;
                set.check_access(caller, groups, ALTER)?;
                set.set_value(number, value, pid, now.unix);
            }
            SetCommand::SetAll(ref values) => {
                set.check_access(caller, groups, ALTER)?;
                if values.len() != set.values.count() {
                    return Err(Errno::Inval);
                }
                if values.iter().any(|value| *value > VALUE_MAX) {
                    return Err(Errno::Range);
                }
                set.set_all(values, pid, now.unix);
            }
            SetCommand::Stat
            | SetCommand::GetValue(_)
            | SetCommand::GetAll
            | SetCommand::GetPid(_)
            | SetCommand::GetNCount(_)
            | SetCommand::GetZCount(_) => {}
        }
        self.store_set(id);
        Ok(None)
    }

    fn read(
        &self,
        caller: Caller,
        process: ProcessId,
        set: SetId,
        command: &SetCommand,
    ) -> Result<SetAnswer, Errno> {
        let set = self.sets.get(set).ok_or(Errno::Inval)?;
        set.check_access(caller, self.groups_of(process), READ)?;
        let semaphore = |number: u32| set.values.get(number as usize).ok_or(Errno::Inval);
        let counted = |number: u32, count: fn(&Set, u16) -> usize| {
            semaphore(number)?;
            Ok(SetAnswer::Number(count(set, number as u16) as u32))
        };
        match *command {
            SetCommand::GetValue(number) => Ok(SetAnswer::Number(semaphore(number)?.value.into())),
            SetCommand::GetPid(number) => Ok(SetAnswer::Number(semaphore(number)?.pid)),
            SetCommand::GetAll => Ok(SetAnswer::Values(set.values.iter().collect())),
            SetCommand::GetNCount(number) => {
                counted(number, |set, number| set.waiters.count_for_growth(number))
            }
            SetCommand::GetZCount(number) => {
                counted(number, |set, number| set.waiters.count_for_zero(number))
            }
            _ => Ok(SetAnswer::Stat(set.stat)),
        }
    }
}
