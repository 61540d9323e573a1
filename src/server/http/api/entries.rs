//! The holders and the waiters of a name, as `signalbox status` prints them.

use serde::Serialize;

use super::super::super::state::Server;
use super::super::answer::{Answer, ApiError, Json};
use super::super::paging::{Page, Paged};
use super::{Context, no_such_name};
use signalbox_core::{Listed, ListingKind};
use signalbox_model::views;
use signalbox_model::{Namespace, Target};

/// A holder or a waiter.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    #[serde(flatten)]
    entry: views::Entry,
    /// How long the lease of a grant lasts without a renewal, or its grace period, in seconds; `None`: as long as the connection.
    ttl_left: Option<f64>,
}

impl Entry {
    pub(super) fn of(server: &Server, listed: Listed) -> Self {
        let (entry, ttl_left) = server.shown(listed);
        Self { entry: views::Entry::of(&entry), ttl_left: views::ttl_left_s(ttl_left) }
    }
}

/// A page of the holders or the waiters of a name; `None`: there is no such name.
pub(super) async fn entries(
    server: &Server,
    (namespace, name): (Namespace, &[u8]),
    kind: ListingKind,
    page: Page,
) -> Result<Option<Paged<Entry>>, ApiError> {
    let Ok(mut listing) = server.core.listing(namespace, name, kind) else { return Ok(None) };
    let next = || server.core.list(&mut listing);
    page.take(next, |_| true, |listed| Entry::of(server, listed)).await.map(Some)
}

pub(in super::super) async fn holders(context: Context) -> Answer {
    list(context, ListingKind::Holders).await
}

pub(in super::super) async fn waiters(context: Context) -> Answer {
    list(context, ListingKind::Waiters).await
}

async fn list(mut context: Context, kind: ListingKind) -> Answer {
    let parameters = &mut context.parameters;
    let wanted = parameters.kind()?;
    let namespace = wanted.ok_or_else(|| {
        ApiError::bad_request("whether a counter or a semaphore is meant is missing; give \"kind\"")
    })?;
    let (name, page) = (parameters.name()?, Page::of(parameters)?);
    let server = context.server()?;
    context.check_read(Target::Name(namespace, &name))?;
    context.parameters.end()?;
    let entries = entries(&server, (namespace, &name), kind, page).await?;
    Json::of(&entries.ok_or_else(|| no_such_name(wanted, &name))?)
}
