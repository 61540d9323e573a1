//! Listings of sets and processes, for administrators. A listing is taken in steps, so it is not a snapshot.

use super::processes::Process;
use super::state::Sysv;
use super::waiters::{Waiter, WaiterId};
use crate::ledger::{ListedSession, age_s, client_texts, ttl_left};
use crate::state::Core;
use crate::time::MonotonicMs;
use signalbox_model::sysv::{ListedSet, ListedUser, Operation, ProcessId, SetId, UserRole};
use signalbox_model::{Refusal, SessionKind};

/// The most entries of one step.
const STEP_ENTRIES: usize = 64;

/// The progress of a listing of all sets.
#[derive(Debug, Default)]
pub struct SetListing(Option<SetId>);

/// The progress of a listing of the processes that use a set.
#[derive(Debug)]
pub struct UserListing {
    set: SetId,
    last: Last,
}

#[derive(Debug)]
enum Last {
    Adjusting(Option<ProcessId>),
    Waiting(WaiterId),
}

impl Core {
    /// Begins a listing of all sets.
    pub fn sets(&self) -> SetListing {
        SetListing::default()
    }

    /// The next sets of a listing; none at its end.
    pub fn list_sets(&self, listing: &mut SetListing) -> Vec<ListedSet> {
        let sysv = &*self.sysv();
        let sets = sysv.sets.after(listing.0).take(STEP_ENTRIES);
        let sets: Vec<_> = sets
            .map(|(id, set)| ListedSet {
                set: id,
                stat: set.stat,
                waiting: count(set.waiters.len()),
                adjusting: count(set.values.adjusting().count()),
                order: set.order,
                is_durable: set.is_durable,
            })
            .collect();
        listing.0 = sets.last().map(|listed| listed.set).or(listing.0);
        sets
    }

    /// Begins a listing of the processes that have adjustments of a set or wait for it.
    pub fn set_users(&self, set: SetId) -> Result<UserListing, Refusal> {
        self.sysv().sets.get(set).ok_or(Refusal::NotFound)?;
        Ok(UserListing { set, last: Last::Adjusting(None) })
    }

    /// The next entries of a listing of users; none at its end. First come the processes with adjustments, then the calls
    /// that wait, in their order.
    pub fn list_set_users(&self, listing: &mut UserListing) -> Vec<ListedUser> {
        let sysv = &*self.sysv();
        let Some(set) = sysv.sets.get(listing.set) else { return Vec::new() };
        if let Last::Adjusting(last) = &mut listing.last {
            let rest = set.values.adjusting().filter(|(process, _)| last.is_none_or(|last| *process > last));
            let users = rest.take(STEP_ENTRIES).map(|(process, adjustments)| {
                let operation = |(number, change)| Operation { number, change, flags: 0 };
                let operations = adjustments.map(operation).collect();
                sysv.listed_user(UserRole::Adjusts, process, operations)
            });
            let users: Vec<_> = users.collect();
            if let Some(user) = users.last() {
                *last = Some(user.process);
                return users;
            }
            listing.last = Last::Waiting(WaiterId(0));
        }
        let Last::Waiting(last) = &mut listing.last else { return Vec::new() };
        let rest: Vec<(WaiterId, &Waiter)> = set.waiters.after(*last).take(STEP_ENTRIES).collect();
        *last = rest.last().map_or(*last, |(waiter_id, _)| *waiter_id);
        let user = |(_, waiter): &(WaiterId, &Waiter)| {
            sysv.listed_user(UserRole::Waits, waiter.process, waiter.operations.clone())
        };
        rest.iter().map(user).collect()
    }
}

impl Sysv {
    /// The next processes of a listing, after this one, as sessions; none at its end.
    pub(crate) fn list_processes(
        &self,
        after: Option<ProcessId>,
        now: MonotonicMs,
    ) -> Vec<(ProcessId, ListedSession)> {
        let listed = |(id, process): (ProcessId, &Process)| {
            let (address, identity) = client_texts(process.client.as_ref());
            let listed = ListedSession {
                kind: SessionKind::Process,
                session: id.0,
                label: process.record.label.clone(),
                address,
                identity,
                attached: process.is_connected(),
                age_s: process.opened.map(|opened| age_s(opened, now)),
                grants: count(process.adjusts.len()),
                waiting: count(process.waiting().len()),
                ttl_left: ttl_left(process.deadline().map(|deadline| now.until(deadline))),
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
            pid: known.map_or(0, |known| known.record.pid),
            uid: known.map_or(0, |known| known.record.uid),
            label: known.map_or_else(Box::default, |known| known.record.label.clone()),
            operations,
        }
    }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
