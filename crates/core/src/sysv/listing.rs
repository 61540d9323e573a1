//! What administrators see of sets and processes. A listing is taken in steps, so it is not a snapshot.

use super::processes::Process;
use super::reply::Place;
use super::state::Sysv;
use super::types::{Operation, Order, ProcessId, SetId, SetStat};
use super::waiters::Waiter;
use crate::refusal::Refusal;
use crate::session_listing::{ListedId, ListedSession};
use crate::state::Core;
use crate::time::MonotonicMs;

/// Entries of one step.
const STEP_ENTRIES: usize = 64;

/// One set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSet {
    /// Its id.
    pub set: SetId,
    /// Its key, owner, mode and times.
    pub stat: SetStat,
    /// Calls that wait.
    pub waiting: usize,
    /// Processes with adjustments.
    pub adjusting: usize,
    /// In which order waiting calls are performed.
    pub order: Order,
    /// Whether it survives a restart.
    pub is_durable: bool,
}

/// How a process uses a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserRole {
    /// It has adjustments, which are applied when it ends.
    Adjusts,
    /// A call of it waits.
    Waits,
}

/// A process that uses a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedUser {
    /// How it uses the set.
    pub role: UserRole,
    /// The process.
    pub process: ProcessId,
    /// Its number on its machine.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// What it is called.
    pub label: Box<[u8]>,
    /// The operations of a call that waits; or the adjustments, each as an operation.
    pub operations: Box<[Operation]>,
}

/// How far a listing of all sets has come.
#[derive(Debug, Default)]
pub struct SetListing(Option<SetId>);

/// How far a listing of the processes that use a set has come.
#[derive(Debug)]
pub struct UserListing {
    set: SetId,
    last: Last,
}

#[derive(Debug)]
enum Last {
    Adjusting(Option<ProcessId>),
    Waiting(Place),
}

impl Core {
    /// The next sets of a listing; none at its end.
    pub fn list_sets(&self, listing: &mut SetListing) -> Vec<ListedSet> {
        let sysv = &*self.sysv();
        let sets = sysv.sets.after(listing.0).take(STEP_ENTRIES);
        let sets: Vec<_> = sets
            .map(|(id, set)| ListedSet {
                set: id,
                stat: set.stat(),
                waiting: set.waiters.len(),
                adjusting: set.values.adjusting().count(),
                order: set.order(),
                is_durable: set.is_durable,
            })
            .collect();
        listing.0 = sets.last().map(|listed| listed.set).or(listing.0);
        sets
    }

    /// Begins a listing of the processes that have adjustments of a set or wait for it.
    pub fn set_users(&self, set: i32) -> Result<UserListing, Refusal> {
        let id = SetId::from_number(set).filter(|id| self.sysv().sets.get(*id).is_some());
        Ok(UserListing { set: id.ok_or(Refusal::NotFound)?, last: Last::Adjusting(None) })
    }

    /// The next entries of a listing of users; none at its end. First come the processes with adjustments, then the calls
    /// that wait, in their order.
    pub fn list_set_users(&self, listing: &mut UserListing) -> Vec<ListedUser> {
        let sysv = &*self.sysv();
        let Some(set) = sysv.sets.get(listing.set) else { return Vec::new() };
        if let Last::Adjusting(last) = &mut listing.last {
            let rest = set.values.adjusting().filter(|(process, _)| last.is_none_or(|last| *process > last));
            let users = rest.take(STEP_ENTRIES).map(|(process, adjustments)| {
                let operation =
                    |(number, change)| Operation { number, change, is_nowait: false, is_undone: false };
                let operations = adjustments.map(operation).collect();
                sysv.listed_user(UserRole::Adjusts, process, operations)
            });
            let users: Vec<_> = users.collect();
            if let Some(user) = users.last() {
                *last = Some(user.process);
                return users;
            }
            listing.last = Last::Waiting(Place(0));
        }
        let Last::Waiting(last) = &mut listing.last else { return Vec::new() };
        let rest: Vec<(Place, &Waiter)> = set.waiters.after(*last).take(STEP_ENTRIES).collect();
        *last = rest.last().map_or(*last, |(place, _)| *place);
        let user = |(_, waiter): &(Place, &Waiter)| {
            sysv.listed_user(UserRole::Waits, waiter.process, waiter.operations.clone())
        };
        rest.iter().map(user).collect()
    }
}

impl Sysv {
    /// The next processes after one, as sessions; none at the end.
    pub(crate) fn list_processes(
        &self,
        after: Option<ProcessId>,
        now: MonotonicMs,
    ) -> Vec<(ProcessId, ListedSession)> {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let listed = |(id, process): (ProcessId, &Process)| {
            let listed = ListedSession {
                id: ListedId::Process(id),
                label: process.label.clone(),
                client: process.client.clone(),
                is_attached: process.is_connected(),
                age_ms: process.opened.map(|opened| opened.age_ms(now)),
                grants: count(process.adjusts.len()),
                waiting: count(process.waiting().len()),
                ttl_left_ms: process.deadline().map(|deadline| now.until(deadline)),
            };
            (id, listed)
        };
        self.processes.after(after).take(STEP_ENTRIES).map(listed).collect()
    }

    fn listed_user(&self, role: UserRole, process: ProcessId, operations: Box<[Operation]>) -> ListedUser {
        let known = self.processes.get(process);
        ListedUser {
            role,
            process,
            pid: known.map_or(0, |known| known.pid),
            uid: known.map_or(0, |known| known.uid),
            label: known.map_or_else(Box::default, |known| known.label.clone()),
            operations,
        }
    }
}
