//! System V semaphore sets and the processes that use them, as `signalbox sysv list` and `signalbox sysv show` print them.

use serde::Serialize;

use super::super::answer::{Answer, ApiError, Json};
use super::super::paging::Page;
use super::Context;
use signalbox_model::Target;
use signalbox_model::sysv::{ListedUser, SetId, UserRole};
use signalbox_model::views::{Set, User};

pub(in super::super) async fn sets(mut context: Context) -> Answer {
    let page = Page::of(&mut context.parameters)?;
    let server = context.server()?;
    context.check_read(Target::Sets)?;
    context.parameters.end()?;
    let mut listing = server.core.sets();
    let page = page.take(|| server.core.list_sets(&mut listing), |_| true, |listed| Set::of(&listed)).await?;
    Json::of(&page)
}

/// A process that has adjustments of a set, or whose call waits.
#[derive(Serialize)]
struct Listed {
    role: &'static str,
    #[serde(flatten)]
    user: User,
}

impl Listed {
    fn of(listed: ListedUser) -> Self {
        let role = match listed.role {
            UserRole::Adjusts => "adjusts",
            UserRole::Waits => "waits",
        };
        Self { role, user: User::of(&listed) }
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
    let listing = server.core.set_users(SetId(id));
    let mut listing = listing.map_err(|_| {
        ApiError::not_found(format!("no set with the id {id} exists; /api/v1/sysv/sets lists sets"))
    })?;
    let next = || server.core.list_set_users(&mut listing);
    let page = page.take(next, |_| true, Listed::of).await?;
    Json::of(&page)
}
