//! Opening processes, attaching connections to them, and announcing that a process replaces its program.

use std::sync::Arc;

use super::durable::ProcessRecord;
use super::processes::Process;
use super::state::Sysv;
use crate::limit::check_limit;
use crate::mailbox::Mailbox;
use crate::state::Core;
use crate::time::Moment;
use signalbox_model::sysv::{Caller, OpenedProcess, ProcessId};
use signalbox_model::{ConnectionId, Limit, Milliseconds, Refusal, SessionKey};

impl Core {
    /// Opens a process and attaches the connection, which has this mailbox, to it. `key` is the process's secret, and
    /// `ttl` how long it lives on after its last connection was lost. The client states `pid`, `caller`, `groups` and
    /// `label`.
    pub fn open_process(
        &self,
        (connection, mailbox): (ConnectionId, &Arc<Mailbox>),
        key: SessionKey,
        ttl: Milliseconds,
        (pid, caller, groups): (u32, Caller, &[u32]),
        label: &[u8],
        now: Moment,
    ) -> Result<OpenedProcess, Refusal> {
        let sysv = &mut *self.sysv();
        if sysv.is_shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        let bytes = sysv.processes.bytes_of(mailbox.owner());
        sysv.limits.memory.check(sysv.limits.client_share, bytes)?;
        sysv.make_room_for_process(mailbox, now)?;
        sysv.leave_process(connection, now);
        let id = sysv.processes.next_id();
        let mut process = Process::new(ProcessRecord {
            process: id,
            key,
            ttl_ms: ttl.0,
            pid,
            uid: caller.uid,
            groups: groups.into(),
            label: label.into(),
            is_ending: false,
        });
        process.opened = Some(now.monotonic);
        sysv.processes.insert(id, process);
        sysv.processes.attach(connection, id, mailbox);
        Ok(OpenedProcess { process: id, key, ttl })
    }

    /// Attaches one more connection, which has this mailbox, to a process. Returns the process's time to live in
    /// milliseconds.
    pub fn attach_process(
        &self,
        (connection, mailbox): (ConnectionId, &Arc<Mailbox>),
        process: ProcessId,
        key: &SessionKey,
        now: Moment,
    ) -> Result<u32, Refusal> {
        let sysv = &mut *self.sysv();
        let found = sysv.processes.get(process).filter(|found| found.record.key == *key);
        // A process whose end has begun has lost adjustments already.
        let is_over = |found: &Process| found.deadline().is_some_and(|deadline| deadline <= now.monotonic);
        if found.is_none_or(is_over) {
            return Err(Refusal::NoSuchSession);
        }
        if sysv.processes.acting(connection).map(|(acting, _)| acting) != Some(process) {
            sysv.leave_process(connection, now);
            sysv.processes.attach(connection, process, mailbox);
        }
        let found = sysv.processes.get_mut(process).ok_or(Refusal::NoSuchSession)?;
        found.grace_ms = None;
        Ok(found.record.ttl_ms)
    }

    /// Lets the process of a connection live on for this time, in milliseconds and at most its time to live, after its
    /// connections are closed: it is about to replace its program (exec).
    pub fn keep_process(&self, connection: ConnectionId, grace_ms: u32) -> Result<(), Refusal> {
        let sysv = &mut *self.sysv();
        let (process, _) = sysv.processes.acting(connection).ok_or(Refusal::NoSuchSession)?;
        let process = sysv.processes.get_mut(process).ok_or(Refusal::NoSuchSession)?;
        process.grace_ms = Some(grace_ms.min(process.record.ttl_ms));
        Ok(())
    }
}

impl Sysv {
    /// Checks that the client with this mailbox may open one more process. At a limit, its own oldest unused process
    /// ends first.
    fn make_room_for_process(&mut self, mailbox: &Mailbox, now: Moment) -> Result<(), Refusal> {
        let client = mailbox.owner();
        loop {
            let (all, own) = (self.processes.len(), self.processes.count_of(client));
            let limit = (self.limits.processes_max, self.limits.client_share);
            let Err(refusal) = check_limit(Limit::Sessions, limit, all, own) else { return Ok(()) };
            let Some(unused) = self.processes.pop_unused(client) else { return Err(refusal) };
            self.end_process_step(unused, now);
        }
    }

    /// Notes that the client of a connection has proven another identity.
    pub(crate) fn note_client(&mut self, connection: ConnectionId) {
        self.processes.note_client(connection);
    }
}
