//! All names, page by page, and one name with its holders and its queue.

use std::sync::Arc;

use serde::Serialize;

use super::super::super::Server;
use super::super::access::{Right, Target};
use super::super::answer::{Answer, ApiError};
use super::super::budget::{AnswerMemory, Reservation};
use super::super::names::{self, Selection, Sort, View};
use super::super::paging::{Items, Page, Paged};
use super::declared::Declaration;
use super::entries::{Entry, entries};
use super::{Context, Named, kind_name, quoted};
use crate::core::{Inspected, ListingKind, Namespace};

/// A page of all names.
#[derive(Serialize)]
struct Names {
    #[serde(flatten)]
    page: Paged<Usage>,
    /// How old the selection is, in seconds; the figures of each name are new. `None`: names are still being collected.
    age: Option<f64>,
    /// Whether every name was considered.
    complete: bool,
}

/// What is in use of a name, and waits for it.
#[derive(Debug, Serialize)]
struct Usage {
    kind: &'static str,
    #[serde(flatten)]
    name: Named,
    in_use: u32,
    /// `None`: it is a counter.
    capacity: Option<u32>,
    available: Option<u32>,
    peak: u32,
    waiting: u32,
}

impl Usage {
    fn of(namespace: Namespace, name: Box<[u8]>, inspected: Inspected) -> Self {
        let Inspected { in_use, peak, waiting, availability } = inspected;
        Self {
            kind: kind_name(namespace),
            name: Named::of(name),
            in_use,
            capacity: availability.map(|availability| availability.capacity),
            available: availability.map(|availability| availability.available),
            peak,
            waiting,
        }
    }
}

pub(in super::super) async fn names(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let kind = parameters.kind()?;
    let prefix = parameters.bytes("prefix")?.unwrap_or_default();
    let search = parameters.bytes("search")?.unwrap_or_default();
    let sort = parameters
        .word("sort", &[("name", Sort::Name), ("in_use", Sort::InUse), ("waiting", Sort::Waiting)])?;
    let [ascending, descending] = [("asc", false), ("desc", true)];
    let orders = if sort.is_usually_descending() { [descending, ascending] } else { [ascending, descending] };
    let is_descending = parameters.word("order", &orders)?;
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.parameters.end()?;
    let selection = Selection { prefix: &prefix, search: &search, sort, is_descending };
    let names = select(&context, &server, kind, selection, page).await?;
    context.answer(&names)
}

async fn select(
    context: &Context,
    server: &Arc<Server>,
    kind: Option<Namespace>,
    selection: Selection<'_>,
    page: Page,
) -> Result<Names, ApiError> {
    let mut views = Vec::new();
    for namespace in Namespace::ALL.into_iter().filter(|namespace| kind.is_none_or(|kind| kind == *namespace))
    {
        views.push(context.shared.overview.view(server, namespace).await);
    }
    let may_read_all = context.permissions.may(Right::Read, Target::Server);
    let may_read =
        |namespace, name: &[u8]| context.permissions.may(Right::Read, Target::Name(namespace, name));
    let may_read = (!may_read_all).then_some(may_read);
    let mut memory = Reservation::new(&context.memory);
    let (selected, total) =
        names::select(&views, selection, (page.offset, page.limit), &mut memory, may_read).await?;
    let (mut items, mut passed) = (Items::new(&context.memory), 0);
    for place in selected {
        let view = &views[place.view];
        let name = view.name(place);
        // A name that was collected since is left out.
        if let Ok(inspected) = server.core.inspect(view.namespace, &name, server.moment())
            && !items.add(Usage::of(view.namespace, name, inspected))?
        {
            break;
        }
        passed += 1;
    }
    let ages = views.iter().map(|view| view.age.map(|age| age.as_secs_f64()));
    let age = ages.reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other))).flatten();
    Ok(Names {
        page: Paged::new(page, items, passed, total),
        age: age.map(|age| (age * 1000.0).round() / 1000.0),
        complete: views.iter().all(View::is_complete),
    })
}

/// One name. Where a counter and a semaphore have it, both.
#[derive(Serialize)]
struct Found {
    items: Vec<Details>,
}

/// A name as `signalbox status --json` prints it, with the first holders and waiters.
#[derive(Serialize)]
struct Details {
    #[serde(flatten)]
    usage: Usage,
    declared: Option<Declaration>,
    holders: Items<Entry>,
    /// How many there are.
    holders_total: usize,
    queue: Items<Entry>,
}

pub(in super::super) async fn name(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let (kind, name) = (parameters.kind()?, parameters.name()?);
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.parameters.end()?;
    let mut items = Vec::new();
    for namespace in Namespace::ALL.into_iter().filter(|namespace| kind.is_none_or(|kind| kind == *namespace))
    {
        context.check_read(Target::Name(namespace, &name))?;
        items.extend(details(&context.memory, &server, (namespace, &name), page).await?);
    }
    if items.is_empty() {
        return Err(no_such_name(kind, &name));
    }
    context.answer(&Found { items })
}

/// `None`: there is no such name.
async fn details(
    memory: &Arc<AnswerMemory>,
    server: &Server,
    (namespace, name): (Namespace, &[u8]),
    page: Page,
) -> Result<Option<Details>, ApiError> {
    let holders = entries(memory, server, (namespace, name), ListingKind::Holders, page).await?;
    let queue = entries(memory, server, (namespace, name), ListingKind::Waiters, page).await?;
    let inspected = server.core.inspect(namespace, name, server.moment()).ok();
    let (Some(holders), Some(queue), Some(inspected)) = (holders, queue, inspected) else { return Ok(None) };
    Ok(Some(Details {
        usage: Usage::of(namespace, name.into(), inspected),
        declared: if namespace == Namespace::Semaphores { Declaration::find(server, name) } else { None },
        holders_total: holders.total,
        holders: holders.into_items(),
        queue: queue.into_items(),
    }))
}

/// The error about a name that does not exist; `kind` as in the request.
pub(super) fn no_such_name(kind: Option<Namespace>, name: &[u8]) -> ApiError {
    let what = match kind {
        None => "neither a counter nor a semaphore",
        Some(Namespace::Counters) => "no counter",
        Some(Namespace::Semaphores) => "no semaphore",
    };
    let name = quoted(name);
    ApiError::not_found(format!("{what} {name} exists; check the name; /api/v1/names lists names"))
}
