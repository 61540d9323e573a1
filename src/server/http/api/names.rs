//! Names page by page, and one name with its holders and its queue.
//!
//! There may be millions of names, and no index has them in order. So a page visits the shards of the table, and a
//! cursor says where the next page begins. A page visits [`VISITED_MAX`] names at most, with a pause after each
//! [`BURST`], so a page with a rare prefix may be empty although another one follows. Invariant: a cursor consists of
//! the number of a shard and a hash, so it reveals no names that its client may not read.

use serde::Serialize;

use super::super::super::port::port_name;
use super::super::super::state::Server;
use super::super::super::steps;
use super::super::access::Right;
use super::super::answer::{Answer, ApiError, Json};
use super::super::paging::{Items, Page, limit_of};
use super::super::request::{Context, no_such_session};
use super::changes::session;
use super::lists::{Entry, entries, no_such_name};
use signalbox_core::{ListingKind, NameCursor, WaitedListing};
use signalbox_model::views::{Declaration, Usage};
use signalbox_model::{ConnectionId, Namespace, Target};

/// The most names that a page visits: less than a tenth of a second of work and pauses.
const VISITED_MAX: usize = 65_536;

/// The number of names that are visited between two pauses: about a millisecond of work.
const BURST: usize = 8192;

/// A page of all names.
#[derive(Serialize)]
struct Names {
    items: Items<Usage>,
    limit: usize,
    /// The cursor of the next page; `None`: this is the last one.
    next: Option<String>,
}

/// The names that a request asks for.
struct Selection {
    kind: Option<Namespace>,
    prefix: Vec<u8>,
    /// Only names that this connection holds by plain Acquires.
    holder: Option<ConnectionId>,
    limit: usize,
}

/// The start of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    namespace: Namespace,
    name: NameCursor,
}

impl Cursor {
    fn text(self) -> String {
        let NameCursor { shard, after } = self.name;
        let after = after.map_or_else(String::new, |after| format!("{after:x}"));
        format!("{}.{shard:x}.{after}", port_name(self.namespace))
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once('.')?;
        let (shard, after) = name.split_once('.')?;
        let after = match after {
            "" => None,
            hash => Some(u64::from_str_radix(hash, 16).ok()?),
        };
        let shard = u32::from_str_radix(shard, 16).ok()? as usize;
        let namespace = Namespace::ALL.into_iter().find(|namespace| port_name(*namespace) == kind)?;
        Some(Self { namespace, name: NameCursor { shard, after } })
    }
}

/// A list of names.
#[derive(Clone, Copy)]
enum List {
    All,
    /// Those that requests wait for.
    Waiting,
}

pub(in super::super) async fn names(mut context: Context) -> Answer {
    // Without any right to read, all names would be visited for an empty page.
    context.check_read(Target::Anywhere)?;
    let parameters = &mut context.parameters;
    let list = parameters.word("list", &[("all", List::All), ("waiting", List::Waiting)])?;
    let kind = parameters.kind()?;
    let prefix = parameters.bytes("prefix")?.unwrap_or_default();
    let after = parameters.text("after")?;
    let holder = parameters.number("holder", 0..=u64::MAX)?;
    let limit = limit_of(parameters)?;
    let server = context.server()?;
    context.parameters.end()?;
    let holder = match holder {
        Some(number) => {
            context.check_read(Target::Server)?;
            let peer = server.peers.find_session(session(number)?);
            Some(peer.ok_or_else(no_such_session)?.connection)
        }
        None => None,
    };
    let selection = Selection { kind, prefix, holder, limit };
    let page = match (list, after) {
        (List::Waiting, _) if holder.is_some() => {
            return Err(ApiError::bad_request("the list \"waiting\" has no \"holder\"; give one of the two"));
        }
        (List::All, after) => {
            let wrong = || ApiError::bad_request("\"after\" must be the \"next\" of the page before");
            let from = after.map(|after| Cursor::parse(&after).ok_or_else(wrong)).transpose()?;
            all(&context, &server, selection, from).await?
        }
        (List::Waiting, None) => waiting(&context, &server, selection).await?,
        (List::Waiting, Some(_)) => {
            return Err(ApiError::bad_request("the list \"waiting\" has one page; leave out \"after\""));
        }
    };
    Json::of(&page)
}

/// Returns a page of the names after a cursor.
async fn all(
    context: &Context,
    server: &Server,
    selection: Selection,
    from: Option<Cursor>,
) -> Result<Names, ApiError> {
    let Selection { kind, prefix, holder, limit } = selection;
    let mut items = Items::new(limit);
    let mut visited = 0;
    for namespace in Namespace::one_or_all(kind) {
        let mut cursor = match from {
            Some(from) if from.namespace == namespace => from.name,
            Some(from) if from.namespace > namespace => continue,
            _ => NameCursor::default(),
        };
        loop {
            let mut added = Ok(true);
            let shown = server.core.show_names(namespace, cursor, (&prefix, holder), |name, after| {
                // A name that was collected since, or that the client may not read, is left out.
                if let Some(usage) = usage_of(context, server, namespace, name) {
                    added = items.add(usage);
                }
                let is_added = matches!(added, Ok(true));
                if is_added {
                    cursor = after;
                }
                is_added
            });
            let Some(names) = shown else { break };
            let before = visited;
            visited += names;
            if added? {
                cursor = NameCursor { shard: cursor.shard + 1, after: None };
                if visited < VISITED_MAX {
                    if visited / BURST > before / BURST {
                        tokio::time::sleep(steps::PAUSE).await;
                    }
                    continue;
                }
            }
            return Ok(page(items, limit, Some(Cursor { namespace, name: cursor })));
        }
    }
    Ok(page(items, limit, None))
}

/// Returns the names that requests wait for, with the longest wait first.
async fn waiting(context: &Context, server: &Server, selection: Selection) -> Result<Names, ApiError> {
    let Selection { kind, prefix, limit, .. } = selection;
    let (mut items, mut listing) = (Items::new(limit), WaitedListing::default());
    loop {
        let names = server.core.list_waited(&mut listing);
        if names.is_empty() || items.is_full() {
            return Ok(Names { items, limit, next: None });
        }
        let wanted = names.iter().filter(|(namespace, name)| {
            kind.is_none_or(|kind| kind == *namespace) && name.starts_with(&prefix)
        });
        for (namespace, name) in wanted {
            if let Some(usage) = usage_of(context, server, *namespace, name)
                && !items.add(usage)?
            {
                return Ok(Names { items, limit, next: None });
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Returns a page, sorted by name.
fn page(mut items: Items<Usage>, limit: usize, next: Option<Cursor>) -> Names {
    items.sort_by_key(|usage| (usage.name.clone(), usage.kind));
    Names { items, limit, next: next.map(Cursor::text) }
}

/// Returns the usage of a name; `None`: it no longer exists, or the client may not read it.
fn usage_of(context: &Context, server: &Server, namespace: Namespace, name: &[u8]) -> Option<Usage> {
    if !context.permissions.may(Right::Read, Target::Name(namespace, name)) {
        return None;
    }
    let inspected = server.core.inspect(namespace, name, server.moment()).ok()?;
    Some(Usage::of(name, inspected))
}

/// One name: a counter, a semaphore, or one of each.
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
    /// The number of all holders.
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
    for namespace in Namespace::one_or_all(kind) {
        context.check_read(Target::Name(namespace, &name))?;
        items.extend(details(&server, (namespace, &name), page).await?);
    }
    if items.is_empty() {
        return Err(no_such_name(kind, &name));
    }
    Json::of(&Found { items })
}

/// Returns the details of a name; `None`: there is no such name.
async fn details(
    server: &Server,
    (namespace, name): (Namespace, &[u8]),
    page: Page,
) -> Result<Option<Details>, ApiError> {
    let holders = entries(server, (namespace, name), ListingKind::Holders, page).await?;
    let queue = entries(server, (namespace, name), ListingKind::Waiters, page).await?;
    let inspected = server.core.inspect(namespace, name, server.moment()).ok();
    let (Some(holders), Some(queue), Some(inspected)) = (holders, queue, inspected) else { return Ok(None) };
    let declared = match namespace {
        Namespace::Counters => None,
        Namespace::Semaphores => server.core.declared_semaphore(name),
    };
    Ok(Some(Details {
        usage: Usage::of(name, inspected),
        declared: declared.map(|declared| Declaration::of(&declared.entry())),
        holders_total: holders.total,
        holders: holders.into_items(),
        queue: queue.into_items(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        for after in [None, Some(0), Some(u64::MAX)] {
            for namespace in Namespace::ALL {
                let cursor = Cursor { namespace, name: NameCursor { shard: 2047, after } };
                assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
            }
        }
        for wrong in ["", "counter", "counter.0", "other.0.", "counter..", "counter.0.x", "counter.0.0.0"] {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }
}
