//! The calls of programs: `semget`, `semop`, `semctl`, and what a process says of itself.
//!
//! A call that changes something is made once for all requests with its number; its result is cached.

use std::sync::Arc;

use super::processes::{OpenedProcess, Process, ProcessId};
use super::set::{ALTER, Completed, Ownership, READ, Set, SetStat};
use super::sets::{PRIVATE, SetId};
use super::values::{Operation, Verdict};
use super::waiters::{Place, Waiter};
use super::{Errno, OPERATIONS_MAX, SEMAPHORES_MAX, Sysv, VALUE_MAX};
use crate::core::ids::{ConnectionId, RequestIds, SessionKey, Token};
use crate::core::mailbox::{Mailbox, Message, ReplyTo};
use crate::core::time::{Due, Moment};
use crate::core::{Limit, LimitKind, Refusal};

/// The user and the group that a call is checked against, as the client states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

/// Which request of which connection makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysvCall {
    /// The connection that the request came in by.
    pub connection: ConnectionId,
    /// The request's number within its process.
    pub ids: RequestIds,
    /// The connection's name for the request; a late answer carries it.
    pub token: Token,
    /// Who calls.
    pub caller: Caller,
}

/// The result of a call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetAnswer {
    /// The call is done.
    Done,
    /// `semget`: the set, and how many semaphores it has.
    Set(SetId, u32),
    /// The number that was asked for.
    Number(u32),
    /// The values of all semaphores (GETALL).
    Values(Box<[u16]>),
    /// What is known of the set (IPC_STAT).
    Stat(SetStat),
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysvOutcome {
    /// The call has a result.
    Answered(Result<SetAnswer, Errno>),
    /// The call waits; its result comes as a [`Message`].
    Waiting,
    /// The request is not a call of a process.
    Refused(Refusal),
}

/// What `semctl` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCommand<'a> {
    /// IPC_RMID.
    Remove,
    /// IPC_SET.
    SetOwnership(Ownership),
    /// IPC_STAT.
    Stat,
    /// GETVAL of a semaphore.
    GetValue(u32),
    /// SETVAL of a semaphore.
    SetValue(u32, i32),
    /// GETALL.
    GetAll,
    /// SETALL.
    SetAll(&'a [u16]),
    /// GETPID of a semaphore.
    GetPid(u32),
    /// GETNCNT of a semaphore.
    GetNCount(u32),
    /// GETZCNT of a semaphore.
    GetZCount(u32),
}

/// The cached reply to a request, or what it waits for.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Waiting(SetId, Place),
    Done(Result<SetAnswer, Errno>),
}

impl SetCommand<'_> {
    fn is_change(self) -> bool {
        matches!(self, Self::Remove | Self::SetOwnership(_) | Self::SetValue(..) | Self::SetAll(_))
    }
}

fn checked_value(value: i32) -> Result<u16, Errno> {
    u16::try_from(value).ok().filter(|value| *value <= VALUE_MAX).ok_or(Errno::Range)
}

/// Processes.
impl Sysv {
    /// Opens a process and attaches the connection to it. `key` is its secret, `ttl_ms` how long it lives on after its
    /// last connection was lost, in milliseconds.
    pub(in crate::core) fn open(
        &mut self,
        (connection, mailbox): (ConnectionId, &Arc<Mailbox>),
        key: SessionKey,
        ttl_ms: u32,
        (pid, caller, groups): (u32, Caller, &[u32]),
        label: &[u8],
        now: Moment,
    ) -> Result<OpenedProcess, Refusal> {
        if self.is_shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        if self.processes.len() >= self.limits.processes_max {
            return Err(Limit::reached(LimitKind::Sessions, self.limits.processes_max));
        }
        self.leave_process(connection, now);
        let opened = OpenedProcess { process: self.processes.next_id(), key, ttl_ms };
        self.processes.insert(opened.process, Process::new(&opened, pid, caller.uid, groups, label));
        self.processes.attach(connection, opened.process, mailbox);
        Ok(opened)
    }

    /// Attaches a connection to a process, beside those that it has. Returns the process's time to live in milliseconds.
    pub(in crate::core) fn attach(
        &mut self,
        (connection, mailbox): (ConnectionId, &Arc<Mailbox>),
        process: ProcessId,
        key: &SessionKey,
        now: Moment,
    ) -> Result<u32, Refusal> {
        let found = self.processes.get(process).filter(|found| found.key.is(key));
        // One whose end has begun has lost adjustments already.
        let is_over = |found: &Process| found.deadline().is_some_and(|deadline| deadline <= now.monotonic);
        if found.is_none_or(is_over) {
            return Err(Refusal::NoSuchSession);
        }
        if self.processes.acting(connection).map(|(acting, _)| acting) != Some(process) {
            self.leave_process(connection, now);
            self.processes.attach(connection, process, mailbox);
        }
        let found = self.processes.get_mut(process).ok_or(Refusal::NoSuchSession)?;
        found.grace_ms = None;
        Ok(found.ttl_ms)
    }

    /// The process replaces its program: for this time, in milliseconds, it lives on although its connections are closed.
    pub(in crate::core) fn keep(&mut self, connection: ConnectionId, grace_ms: u32) -> Result<(), Refusal> {
        let (process, _) = self.processes.acting(connection).ok_or(Refusal::NoSuchSession)?;
        let process = self.processes.get_mut(process).ok_or(Refusal::NoSuchSession)?;
        process.grace_ms = Some(grace_ms.min(process.ttl_ms));
        Ok(())
    }
}

/// Calls.
impl Sysv {
    /// Finds or creates a set: `semget`. `flags` has the nine bits of the mode.
    pub(in crate::core) fn get(
        &mut self,
        call: SysvCall,
        key: i32,
        count: u32,
        (creates, is_exclusive, flags): (bool, bool, u32),
        now: Moment,
    ) -> SysvOutcome {
        self.once(call, |sysv, process| {
            if count > SEMAPHORES_MAX {
                return Err(Errno::Inval);
            }
            let Some(id) = sysv.sets.by_key(key).filter(|_| key != PRIVATE) else {
                if key != PRIVATE && !creates {
                    return Err(Errno::NoEnt);
                }
                return sysv.create(call.caller, key, count, flags, now);
            };
            if creates && is_exclusive {
                return Err(Errno::Exist);
            }
            let set = sysv.sets.get(id).ok_or(Errno::NoEnt)?;
            let has = set.values.count() as u32;
            if count > has {
                return Err(Errno::Inval);
            }
            set.check_access(call.caller, sysv.groups_of(process), flags)?;
            Ok(SetAnswer::Set(id, has))
        })
    }

    fn create(
        &mut self,
        caller: Caller,
        key: i32,
        count: u32,
        mode: u32,
        now: Moment,
    ) -> Result<SetAnswer, Errno> {
        if count == 0 {
            return Err(Errno::Inval);
        }
        let semaphores = self.sets.semaphores() + u64::from(count);
        if semaphores > self.limits.semaphores_max || self.sets.len() >= self.limits.sets_max {
            return Err(Errno::NoSpc);
        }
        let id = self.sets.insert(Set::new(key, self.rules.order_of(key), caller, mode, count, now.unix));
        Ok(SetAnswer::Set(id, count))
    }

    /// Performs operations, all or none: `semop` and `semtimedop`. The call waits for `wait_ms` milliseconds at most;
    /// `None`: without an end.
    pub(in crate::core) fn operate(
        &mut self,
        call: SysvCall,
        set: i32,
        operations: &[Operation],
        wait_ms: Option<u32>,
        now: Moment,
    ) -> SysvOutcome {
        let (process, repeated) = match self.begin(call) {
            Ok(begun) => begun,
            Err(refusal) => return SysvOutcome::Refused(refusal),
        };
        match repeated {
            Some(Reply::Done(result)) => return SysvOutcome::Answered(result),
            Some(Reply::Waiting(set, place)) => {
                self.redirect(call, set, place);
                return SysvOutcome::Waiting;
            }
            None => {}
        }
        let result = match self.start(call, process, set, operations, now) {
            Err(errno) => Err(errno),
            Ok((_, Verdict::Performed)) => Ok(SetAnswer::Done),
            Ok((_, Verdict::Failed(errno))) => Err(errno),
            Ok((id, Verdict::Blocked(blocking))) => {
                match self.wait(call, (id, process), operations, blocking, wait_ms, now) {
                    Ok(()) => return SysvOutcome::Waiting,
                    Err(errno) => Err(errno),
                }
            }
        };
        self.cache(process, call, Reply::Done(result.clone()));
        SysvOutcome::Answered(result)
    }

    /// Performs the operations of a call if it does not have to wait.
    fn start(
        &mut self,
        call: SysvCall,
        process: ProcessId,
        set: i32,
        operations: &[Operation],
        now: Moment,
    ) -> Result<(SetId, Verdict), Errno> {
        if operations.is_empty() {
            return Err(Errno::Inval);
        }
        if operations.len() > OPERATIONS_MAX {
            return Err(Errno::TooBig);
        }
        let id = SetId::from_number(set).ok_or(Errno::Inval)?;
        let acting = self.processes.get_mut(process).ok_or(Errno::Inval)?;
        let set = self.sets.get_mut(id).ok_or(Errno::Inval)?;
        let has = set.values.count();
        if operations.iter().any(|operation| usize::from(operation.number) >= has) {
            return Err(Errno::FBig);
        }
        let alters = operations.iter().any(|operation| operation.change != 0);
        set.check_access(call.caller, &acting.groups, if alters { ALTER } else { READ })?;
        let undoes = operations.iter().any(|operation| operation.is_undone);
        if undoes && set.values.adjust_for(process) {
            acting.adjusts.push(id);
        }
        let mut completed = Vec::new();
        let verdict = set.operate(process, acting.pid, operations, now.unix, &mut completed);
        self.finish(id, completed);
        Ok((id, verdict))
    }

    /// Lets a call wait.
    fn wait(
        &mut self,
        call: SysvCall,
        (id, process): (SetId, ProcessId),
        operations: &[Operation],
        blocking: usize,
        wait_ms: Option<u32>,
        now: Moment,
    ) -> Result<(), Errno> {
        if wait_ms == Some(0) {
            return Err(Errno::Again);
        }
        if self.is_shutting_down {
            return Err(Errno::IdRm);
        }
        let reply_to = self.reply_to(call);
        let acting = self.processes.get_mut(process).ok_or(Errno::Inval)?;
        let set = self.sets.get_mut(id).ok_or(Errno::Inval)?;
        if set.waiters.len() >= self.limits.waiters_max {
            return Err(Errno::NoMem);
        }
        let deadline = wait_ms.map(|wait_ms| now.monotonic.after(wait_ms));
        let place = set.waiters.push(Waiter {
            process,
            request: call.ids.own,
            pid: acting.pid,
            operations: operations.into(),
            blocking,
            deadline,
            reply_to,
        });
        acting.waiting.insert(call.ids.own, (id, place));
        if let Some(deadline) = deadline {
            self.timeouts.insert((deadline, id, place));
            self.alarm.ring(Due::At(deadline));
        }
        self.cache(process, call, Reply::Waiting(id, place));
        Ok(())
    }

    /// The answer of a waiting call goes to this connection from now on.
    fn redirect(&mut self, call: SysvCall, set: SetId, place: Place) {
        let reply_to = self.reply_to(call);
        let waiter = self.sets.get_mut(set).and_then(|set| set.waiters.get_mut(place));
        let Some(waiter) = waiter else { return };
        let before = std::mem::replace(&mut waiter.reply_to, reply_to);
        if let Some(before) = before {
            before.mailbox.put(Message::Operated { token: before.token, result: Err(Errno::Intr) });
        }
    }

    /// Reads or changes a set: `semctl`.
    pub(in crate::core) fn control(
        &mut self,
        call: SysvCall,
        set: i32,
        command: SetCommand<'_>,
        now: Moment,
    ) -> SysvOutcome {
        if command.is_change() {
            return self.once(call, |sysv, process| {
                // The kernel looks at the value before it looks for the set.
                if let SetCommand::SetValue(_, value) = command {
                    checked_value(value)?;
                }
                let id = SetId::from_number(set).ok_or(Errno::Inval)?;
                sysv.change(call.caller, process, id, command, now)
            });
        }
        // Reading again does no harm, so the result is not cached.
        match self.begin(call) {
            Err(refusal) => SysvOutcome::Refused(refusal),
            Ok((process, _)) => SysvOutcome::Answered(self.read(call.caller, process, set, command)),
        }
    }

    fn change(
        &mut self,
        caller: Caller,
        process: ProcessId,
        id: SetId,
        command: SetCommand<'_>,
        now: Moment,
    ) -> Result<SetAnswer, Errno> {
        let acting = self.processes.get(process).ok_or(Errno::Inval)?;
        let (pid, groups) = (acting.pid, &acting.groups);
        let set = self.sets.get_mut(id).ok_or(Errno::Inval)?;
        let mut completed = Vec::new();
        match command {
            SetCommand::Remove => {
                set.check_owner(caller)?;
                self.remove(id);
                return Ok(SetAnswer::Done);
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
                set.set_value(number, value, pid, now.unix, &mut completed);
            }
            SetCommand::SetAll(values) => {
                set.check_access(caller, groups, ALTER)?;
                if values.len() != set.values.count() {
                    return Err(Errno::Inval);
                }
                if values.iter().any(|value| *value > VALUE_MAX) {
                    return Err(Errno::Range);
                }
                set.set_all(values, pid, now.unix, &mut completed);
            }
            SetCommand::Stat
            | SetCommand::GetValue(_)
            | SetCommand::GetAll
            | SetCommand::GetPid(_)
            | SetCommand::GetNCount(_)
            | SetCommand::GetZCount(_) => {}
        }
        self.finish(id, completed);
        Ok(SetAnswer::Done)
    }

    fn read(
        &self,
        caller: Caller,
        process: ProcessId,
        set: i32,
        command: SetCommand<'_>,
    ) -> Result<SetAnswer, Errno> {
        let id = SetId::from_number(set).ok_or(Errno::Inval)?;
        let set = self.sets.get(id).ok_or(Errno::Inval)?;
        set.check_access(caller, self.groups_of(process), READ)?;
        let semaphore = |number: u32| set.values.get(number as usize).ok_or(Errno::Inval);
        let counted = |number: u32, count: fn(&Set, u16) -> usize| {
            semaphore(number)?;
            Ok(SetAnswer::Number(count(set, number as u16) as u32))
        };
        match command {
            SetCommand::GetValue(number) => Ok(SetAnswer::Number(semaphore(number)?.value.into())),
            SetCommand::GetPid(number) => Ok(SetAnswer::Number(semaphore(number)?.pid)),
            SetCommand::GetAll => Ok(SetAnswer::Values(set.values.iter().collect())),
            SetCommand::GetNCount(number) => {
                counted(number, |set, number| set.waiters.count_for_growth(number))
            }
            SetCommand::GetZCount(number) => {
                counted(number, |set, number| set.waiters.count_for_zero(number))
            }
            _ => Ok(SetAnswer::Stat(set.stat())),
        }
    }

    /// Cancels a call of a connection that waits: it fails with EINTR. Returns whether there was one.
    pub(in crate::core) fn cancel(&mut self, connection: ConnectionId, token: Token, now: Moment) -> bool {
        let Some((process, mailbox)) = self.processes.acting(connection) else { return false };
        let Some(acting) = self.processes.get(process) else { return false };
        let is_its = |waiter: &Waiter| {
            let reply_to = waiter.reply_to.as_ref();
            reply_to.is_some_and(|to| to.token == token && Arc::ptr_eq(&to.mailbox, mailbox))
        };
        let found = acting.waiting.values().copied().find(|(set, place)| {
            self.sets.get(*set).and_then(|set| set.waiters.get(*place)).is_some_and(is_its)
        });
        let Some((set, place)) = found else { return false };
        self.fail(set, place, Errno::Intr, now);
        true
    }
}

/// What all calls share.
impl Sysv {
    /// The process that a request is for, and the reply if the request was made before.
    fn begin(&mut self, call: SysvCall) -> Result<(ProcessId, Option<Reply>), Refusal> {
        let (process, _) = self.processes.acting(call.connection).ok_or(Refusal::NoSuchSession)?;
        let acting = self.processes.get_mut(process).ok_or(Refusal::NoSuchSession)?;
        // The program was not replaced after all.
        acting.grace_ms = None;
        Ok((process, acting.log.find(call.ids, |_, _| {})?.cloned()))
    }

    /// Makes a call that does not wait, once for all requests with its number.
    fn once(
        &mut self,
        call: SysvCall,
        make: impl FnOnce(&mut Self, ProcessId) -> Result<SetAnswer, Errno>,
    ) -> SysvOutcome {
        let (process, repeated) = match self.begin(call) {
            Ok(begun) => begun,
            Err(refusal) => return SysvOutcome::Refused(refusal),
        };
        match repeated {
            Some(Reply::Done(result)) => return SysvOutcome::Answered(result),
            // The request with this number was another one.
            Some(Reply::Waiting(..)) => return SysvOutcome::Refused(Refusal::StaleRequest),
            None => {}
        }
        let result = make(self, process);
        self.cache(process, call, Reply::Done(result.clone()));
        SysvOutcome::Answered(result)
    }

    fn cache(&mut self, process: ProcessId, call: SysvCall, reply: Reply) {
        if let Some(acting) = self.processes.get_mut(process) {
            acting.log.insert(call.ids.own, reply);
        }
    }

    fn groups_of(&self, process: ProcessId) -> &[u32] {
        self.processes.get(process).map_or(&[], |process| &process.groups)
    }

    fn reply_to(&self, call: SysvCall) -> Option<ReplyTo> {
        let (_, mailbox) = self.processes.acting(call.connection)?;
        Some(ReplyTo { mailbox: Arc::clone(mailbox), token: call.token })
    }

    /// Answers calls of a set that waited.
    pub(super) fn finish(&mut self, set: SetId, completed: Vec<Completed>) {
        for Completed { waiter, place, result } in completed {
            if let Some(deadline) = waiter.deadline {
                self.timeouts.remove(&(deadline, set, place));
            }
            if let Some(process) = self.processes.get_mut(waiter.process) {
                process.waiting.remove(&waiter.request);
                process.log.insert(waiter.request, Reply::Done(result.map(|()| SetAnswer::Done)));
            }
            if let Some(ReplyTo { mailbox, token }) = waiter.reply_to {
                mailbox.put(Message::Operated { token, result });
            }
        }
    }

    /// Ends the wait of a call with an error.
    pub(super) fn fail(&mut self, id: SetId, place: Place, errno: Errno, now: Moment) {
        let Some(set) = self.sets.get_mut(id) else { return };
        let Some(waiter) = set.waiters.remove(place) else { return };
        let mut completed = vec![Completed { waiter, place, result: Err(errno) }];
        set.waiter_left(now.unix, &mut completed);
        self.finish(id, completed);
    }
}
