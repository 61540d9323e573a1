//! The operations of [`Core`] on System V semaphore sets. Each method holds the lock of the sets once.

use std::sync::Arc;
use std::task::Waker;

use super::calls::{Caller, SetCommand, SysvCall, SysvOutcome};
use super::check::SetCheck;
use super::listing::{SetListing, UserListing};
use super::processes::{OpenedProcess, ProcessId};
use super::rules::{KeyRule, Rules};
use super::{ConnectionEnd, ListedSet, ListedUser, Operation, Sysv, SysvLimits, SysvStats};
use crate::core::ids::{ConnectionId, SessionKey, Token};
use crate::core::mailbox::Mailbox;
use crate::core::store::Step;
use crate::core::time::{Due, Moment};
use crate::core::{Core, Refusal};

impl Core {
    /// Sets the limits of sets and processes. What exceeds a lowered limit stays.
    pub fn set_sysv_limits(&self, limits: SysvLimits) {
        self.sysv().limits = limits;
    }

    /// Sets the rules for keys. Sets that exist stay as they are.
    pub fn set_sysv_rules(&self, rules: Vec<KeyRule>) {
        self.sysv().rules = Rules::new(rules);
    }

    /// Sets what the ids of sets and processes are drawn from, which differs between runs of a server: `sets` is any
    /// number.
    pub fn start_sysv_after(&self, sets: u32, last_process: u64) {
        let mut sysv = self.sysv();
        sysv.sets.start_after(sets);
        sysv.processes.start_after(last_process);
    }

    /// Live figures of sets and processes.
    pub fn sysv_stats(&self) -> SysvStats {
        let sysv = self.sysv();
        let waiting: usize = sysv.sets.iter().map(|(_, set)| set.waiters.len()).sum();
        SysvStats {
            processes: sysv.processes.len() as u64,
            sets: sysv.sets.len() as u64,
            waiting: waiting as u64,
        }
    }

    /// Checks the invariants of sets and processes. For tests: it visits everything at once.
    pub fn check_sysv(&self) -> Result<(), String> {
        self.sysv().check()
    }

    /// Begins a check of the invariants of each set.
    pub fn begin_set_check(&self) -> SetCheck {
        SetCheck::default()
    }

    /// Takes a step of the check. Returns whether there is more to do.
    pub fn check_sets(&self, check: &mut SetCheck) -> bool {
        self.sysv().check_step(check)
    }

    /// Opens a process and attaches the connection, which has this mailbox, to it. `key` is the process's secret,
    /// `ttl_ms` how long it lives on after its last connection was lost, in milliseconds; `pid`, `caller`, `groups` and
    /// `label` are what the client states of it.
    pub fn open_process(
        &self,
        connection: (ConnectionId, &Arc<Mailbox>),
        key: SessionKey,
        ttl_ms: u32,
        (pid, caller, groups): (u32, Caller, &[u32]),
        label: &[u8],
        now: Moment,
    ) -> Result<OpenedProcess, Refusal> {
        self.sysv().open(connection, key, ttl_ms, (pid, caller, groups), label, now)
    }

    /// Attaches a connection, which has this mailbox, to a process, beside those that it has. Returns the process's time
    /// to live in milliseconds.
    pub fn attach_process(
        &self,
        connection: (ConnectionId, &Arc<Mailbox>),
        process: ProcessId,
        key: &SessionKey,
        now: Moment,
    ) -> Result<u32, Refusal> {
        self.sysv().attach(connection, process, key, now)
    }

    /// The connection's process replaces its program: for this time, in milliseconds, it lives on although its
    /// connections are closed.
    pub fn keep_process(&self, connection: ConnectionId, grace_ms: u32) -> Result<(), Refusal> {
        self.sysv().keep(connection, grace_ms)
    }

    /// Finds or creates a set: `semget`. The flags are IPC_CREAT, IPC_EXCL, and those that have the nine bits of the mode.
    pub fn sem_get(
        &self,
        call: SysvCall,
        key: i32,
        count: u32,
        flags: (bool, bool, u32),
        now: Moment,
    ) -> SysvOutcome {
        self.sysv().get(call, key, count, flags, now)
    }

    /// Performs operations, all or none: `semop` and `semtimedop`. The call waits for `wait_ms` milliseconds at most;
    /// `None`: without an end. If it may not wait because of a limit, the second value says of which.
    pub fn sem_op(
        &self,
        call: SysvCall,
        set: i32,
        operations: &[Operation],
        wait_ms: Option<u32>,
        now: Moment,
    ) -> (SysvOutcome, Option<Refusal>) {
        self.sysv().operate(call, set, operations, wait_ms, now)
    }

    /// Reads or changes a set: `semctl`.
    pub fn sem_ctl(&self, call: SysvCall, set: i32, command: SetCommand<'_>, now: Moment) -> SysvOutcome {
        self.sysv().control(call, set, command, now)
    }

    /// Cancels a call of a connection that waits: it fails with EINTR. Returns whether there was one.
    pub fn cancel_sem_op(&self, connection: ConnectionId, token: Token, now: Moment) -> bool {
        self.sysv().cancel(connection, token, now)
    }

    /// A connection has ended. If it was the last one of a process, that ends too, at once or later.
    pub fn leave_process(&self, connection: ConnectionId, how: ConnectionEnd, now: Moment) {
        self.sysv().disconnected(connection, how, now);
    }

    /// Begins a listing of all sets.
    pub fn sets(&self) -> SetListing {
        SetListing::default()
    }

    /// The next sets of a listing; none at its end.
    pub fn list_sets(&self, listing: &mut SetListing) -> Vec<ListedSet> {
        self.sysv().list_sets(listing)
    }

    /// Begins a listing of the processes that have adjustments of a set or wait for it.
    pub fn set_users(&self, set: i32) -> Result<UserListing, Refusal> {
        self.sysv().users(set)
    }

    /// The next entries of a listing of users; none at its end.
    pub fn list_set_users(&self, listing: &mut UserListing) -> Vec<ListedUser> {
        self.sysv().list_users(listing)
    }

    /// Takes a step of what is due. Returns whether there is more to do at once.
    pub(in crate::core) fn expire_sysv(&self, now: Moment) -> bool {
        self.sysv().expire(now)
    }

    /// When something is due next.
    pub(in crate::core) fn next_sysv_due(&self, sleeper: &Waker) -> Option<Due> {
        self.sysv().next_due(sleeper)
    }

    /// Has calls that wait fail, and lets none wait any more, in steps. Returns whether there is more to do.
    pub(in crate::core) fn shut_down_sysv(&self, now: Moment) -> bool {
        self.sysv().shut_down(now)
    }

    pub(in crate::core) fn sysv(&self) -> Step<'_, Sysv> {
        Step::begin(&self.sysv)
    }
}
