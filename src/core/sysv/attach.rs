//! What a process says of itself: it opens, attaches connections, and replaces its program.

use std::sync::Arc;

use super::Sysv;
use super::calls::Caller;
use super::processes::{OpenedProcess, Process, ProcessId};
use crate::core::ids::{ConnectionId, SessionKey};
use crate::core::mailbox::Mailbox;
use crate::core::time::Moment;
use crate::core::{Limit, LimitKind, Refusal};

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
        let bytes = self.processes.bytes_of(mailbox.owner());
        self.limits.memory.check(self.limits.client_share, bytes)?;
        self.make_room_for_process(mailbox, now)?;
        self.leave_process(connection, now);
        let opened = OpenedProcess { process: self.processes.next_id(), key, ttl_ms };
        let mut process = Process::new(&opened, pid, caller.uid, groups, label);
        process.opened = Some(now.monotonic);
        self.processes.insert(opened.process, process);
        self.processes.attach(connection, opened.process, mailbox);
        Ok(opened)
    }

    /// Checks that the client with this mailbox may open one more process. At a limit, its own oldest process ends first with
    /// which nothing is lost.
    fn make_room_for_process(&mut self, mailbox: &Mailbox, now: Moment) -> Result<(), Refusal> {
        let client = mailbox.owner();
        loop {
            let (all, own) = (self.processes.len(), self.processes.count_of(client));
            let limit = (self.limits.processes_max, self.limits.client_share);
            let Err(refusal) = Limit::check(LimitKind::Sessions, limit, all, own) else { return Ok(()) };
            let Some(unused) = self.processes.pop_unused(client) else { return Err(refusal) };
            self.end_process_step(unused, now);
        }
    }

    /// The client of a connection has proven another identity.
    pub(in crate::core) fn note_client(&mut self, connection: ConnectionId) {
        self.processes.note_client(connection);
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
