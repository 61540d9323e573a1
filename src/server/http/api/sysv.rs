//! System V semaphore sets and the processes that use them, as `signalbox sysv list` and `signalbox sysv show` print them.

use serde::Serialize;

use super::super::access::Target;
use super::super::answer::{Answer, ApiError, Json};
use super::super::paging::Page;
use super::{Context, Labeled};
use signalbox_core::{ListedSet, ListedUser, Operation, Order, UserRole};

/// The key of sets that have none (`IPC_PRIVATE`).
const PRIVATE: i32 = 0;

/// A set.
#[derive(Serialize)]
struct Set {
    key: Option<String>,
    id: i32,
    uid: u32,
    gid: u32,
    creator_uid: u32,
    creator_gid: u32,
    mode: String,
    semaphores: u32,
    waiting: usize,
    adjusting: usize,
    operated: Option<u64>,
    changed: u64,
    durable: bool,
    fifo: bool,
}

impl Set {
    fn of(listed: ListedSet) -> Self {
        let stat = listed.stat;
        Self {
            key: (stat.key != PRIVATE).then(|| format!("{:#010x}", stat.key)),
            id: listed.set.number(),
            uid: stat.ownership.uid,
            gid: stat.ownership.gid,
            creator_uid: stat.creator_uid,
            creator_gid: stat.creator_gid,
            mode: format!("{:04o}", stat.ownership.mode & 0o777),
            semaphores: stat.count,
            waiting: listed.waiting,
            adjusting: listed.adjusting,
            operated: stat.operated_at.map(|at| at.0),
            changed: stat.changed_at.0,
            durable: listed.is_durable,
            fifo: listed.order == Order::Fifo,
        }
    }
}

pub(in super::super) async fn sets(mut context: Context) -> Answer {
    let page = Page::of(&mut context.parameters)?;
    let server = context.server()?;
    context.check_read(Target::Sets)?;
    context.parameters.end()?;
    let mut listing = server.core.sets();
    let page = page.take(|| server.core.list_sets(&mut listing), |_| true, Set::of).await?;
    Json::of(&page)
}

/// A process that has adjustments of a set, or whose call waits.
#[derive(Serialize)]
struct User {
    role: &'static str,
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    process: String,
    pid: u32,
    uid: u32,
    #[serde(flatten)]
    operations: Operations,
    #[serde(flatten)]
    label: Labeled,
}

#[derive(Serialize)]
enum Operations {
    #[serde(rename = "adjustments")]
    Adjustments(Vec<AdjustmentFields>),
    #[serde(rename = "operations")]
    Operations(Vec<OperationFields>),
}

#[derive(Serialize)]
struct AdjustmentFields {
    semaphore: u16,
    adjustment: i16,
}

#[derive(Serialize)]
struct OperationFields {
    semaphore: u16,
    change: i16,
    nowait: bool,
    undo: bool,
}

impl User {
    fn of(listed: ListedUser) -> Self {
        let adjustment = |of: &Operation| AdjustmentFields { semaphore: of.number, adjustment: of.change };
        let operation = |of: &Operation| OperationFields {
            semaphore: of.number,
            change: of.change,
            nowait: of.is_nowait,
            undo: of.is_undone,
        };
        let (role, operations) = match listed.role {
            UserRole::Adjusts => {
                ("adjusts", Operations::Adjustments(listed.operations.iter().map(adjustment).collect()))
            }
            UserRole::Waits => {
                ("waits", Operations::Operations(listed.operations.iter().map(operation).collect()))
            }
        };
        Self {
            role,
            process: listed.process.number().to_string(),
            pid: listed.pid,
            uid: listed.uid,
            operations,
            label: Labeled::of(listed.label),
        }
    }
}

pub(in super::super) async fn users(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let id = parameters.number("id", i32::MAX as u64)?;
    let id = id.ok_or_else(|| ApiError::bad_request("the set is missing; give its \"id\""))? as i32;
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.check_read(Target::Sets)?;
    context.parameters.end()?;
    let listing = server.core.set_users(id);
    let mut listing = listing.map_err(|_| {
        ApiError::not_found(format!("no set with the id {id} exists; /api/v1/sysv/sets lists sets"))
    })?;
    let next = || server.core.list_set_users(&mut listing);
    let page = page.take(next, |_| true, User::of).await?;
    Json::of(&page)
}
