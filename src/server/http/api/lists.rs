//! Lists page by page, as commands of the command line print them: declared semaphores (`list`), holders and waiters (`status`),
//! sessions, what they hold, System V semaphore sets (`sysv list`, `sysv show`) and tokens (`token list`).

use std::mem;

use serde::Serialize;

use super::super::super::clock::Clock;
use super::super::super::state::Server;
use super::super::super::steps;
use super::super::access::Right;
use super::super::answer::{Answer, ApiError, Json};
use super::super::paging::{Page, Paged, each_step};
use super::super::request::Context;
use super::changes::{clients, session};
use signalbox_access::ListedToken;
use signalbox_core::{ClaimListing, Claimed, DeclaredSemaphore, Listed, ListedSession, ListingKind};
use signalbox_model::sysv::{ListedUser, SetId, UserRole};
use signalbox_model::views::{self, Named, Semaphore, Session, Set, User};
use signalbox_model::{Namespace, Quoted, SessionId, SessionKind, Target, TtlLeft};

/// A selection of declared semaphores.
#[derive(Clone, Copy)]
enum DeclaredList {
    All,
    Paused,
    /// More is in use than the capacity, which was lowered.
    AboveCapacity,
    /// Slots are out of service.
    OutOfService,
    /// The capacity is 0, so every request is refused.
    NoCapacity,
}

impl DeclaredList {
    fn has(self, declared: &DeclaredSemaphore) -> bool {
        match self {
            Self::All => true,
            Self::Paused => declared.record.service.paused,
            Self::AboveCapacity => declared.in_use > declared.record.capacity,
            Self::OutOfService => !declared.record.service.slots_out.is_empty(),
            Self::NoCapacity => declared.record.capacity == 0,
        }
    }
}

pub(in super::super) async fn declared(mut context: Context) -> Answer {
    // Without any right to read, all semaphores would be visited for an empty page.
    context.check_read(Target::Anywhere)?;
    let parameters = &mut context.parameters;
    let prefix = parameters.bytes("prefix")?.unwrap_or_default();
    let lists = [
        ("all", DeclaredList::All),
        ("paused", DeclaredList::Paused),
        ("above_capacity", DeclaredList::AboveCapacity),
        ("out_of_service", DeclaredList::OutOfService),
        ("no_capacity", DeclaredList::NoCapacity),
    ];
    let list = parameters.word("list", &lists)?;
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.parameters.end()?;
    let mut listing = server.core.declared(&prefix);
    let is_wanted = |declared: &DeclaredSemaphore| {
        list.has(declared)
            && context
                .permissions
                .may(Right::Read, Target::Name(Namespace::Semaphores, &declared.record.name))
    };
    let next = || server.core.list_declared(&mut listing);
    let page = page.take(next, is_wanted, |declared| Semaphore::of(&declared.entry())).await?;
    Json::of(&page)
}

/// A holder or a waiter.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    #[serde(flatten)]
    entry: views::Entry,
    /// The seconds that are left of the lease of a grant, or of its grace period; `None`: it lasts as long as the
    /// connection.
    ttl_left: Option<f64>,
}

impl Entry {
    pub(super) fn of(server: &Server, listed: Listed) -> Self {
        let (entry, ttl_left) = server.with_address(listed);
        Self { entry: views::Entry::of(&entry), ttl_left: views::ttl_left_s(ttl_left) }
    }
}

/// Returns the error about a name that does not exist; `kind` is that of the request.
pub(super) fn no_such_name(kind: Option<Namespace>, name: &[u8]) -> ApiError {
    let what = match kind {
        None => "neither a counter nor a semaphore",
        Some(Namespace::Counters) => "no counter",
        Some(Namespace::Semaphores) => "no semaphore",
    };
    let name = Quoted(name);
    ApiError::not_found(format!("{what} {name} exists; check the name; /api/v1/names lists names"))
}

/// Returns a page of the holders or the waiters of a name; `None`: there is no such name.
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
    entries_of(context, ListingKind::Holders).await
}

pub(in super::super) async fn waiters(context: Context) -> Answer {
    entries_of(context, ListingKind::Waiters).await
}

async fn entries_of(mut context: Context, kind: ListingKind) -> Answer {
    let parameters = &mut context.parameters;
    let wanted = parameters.kind()?;
    let namespace =
        wanted.ok_or_else(|| ApiError::bad_request("\"kind\" must be \"counter\" or \"semaphore\""))?;
    let (name, page) = (parameters.name()?, Page::of(parameters)?);
    let server = context.reads(Target::Name(namespace, &name))?;
    let entries = entries(&server, (namespace, &name), kind, page).await?;
    Json::of(&entries.ok_or_else(|| no_such_name(wanted, &name))?)
}

/// The order of a list of sessions.
#[derive(Clone, Copy)]
enum Order {
    Oldest,
    MostGrants,
    MostWaiting,
    ShortestLease,
}

impl Order {
    /// Returns a key that is lower for sessions that come first.
    fn key(self, session: &ListedSession) -> u64 {
        let descending = |number: u32| u64::from(u32::MAX - number);
        match (self, session.ttl_left) {
            (Self::Oldest, _) => session.age_s.map_or(u64::MAX, descending),
            (Self::MostGrants, _) => descending(session.grants),
            (Self::MostWaiting, _) => descending(session.waiting),
            (Self::ShortestLease, TtlLeft::For(left)) => left.0.into(),
            (Self::ShortestLease, TtlLeft::Connection) => u64::MAX,
        }
    }
}

pub(in super::super) async fn sessions(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let search = parameters.text("search")?.unwrap_or_default();
    let order = parameters.word(
        "sort",
        &[
            ("session", None),
            ("age", Some(Order::Oldest)),
            ("grants", Some(Order::MostGrants)),
            ("waiting", Some(Order::MostWaiting)),
            ("lease", Some(Order::ShortestLease)),
        ],
    )?;
    let page = Page::of(parameters)?;
    let server = context.reads(Target::Server)?;
    let (is_wanted, item) = (|listed: &_| has(listed, &search), |listed: ListedSession| Session::of(&listed));
    let page = match order {
        None => page.take(session_steps(&server), is_wanted, item).await?,
        // A later page would need all that come before it.
        Some(_) if page.offset > 0 => {
            return Err(ApiError::bad_request("a list with \"sort\" has one page; leave out \"offset\""));
        }
        Some(order) => {
            page.take_first(session_steps(&server), is_wanted, |listed| order.key(listed), item).await?
        }
    };
    Json::of(&page)
}

/// Returns a function that runs the next step of a list of all sessions.
fn session_steps(server: &Server) -> impl FnMut() -> Vec<ListedSession> {
    let mut listing = server.core.sessions();
    let connected = |after| server.peers.connected_after(after, steps::LISTED_CONNECTIONS);
    move || server.core.list_sessions(&mut listing, connected, server.moment())
}

/// Returns whether the label of a session, or the address or the identity of its client, contains a text.
fn has(listed: &ListedSession, search: &str) -> bool {
    let texts = [&listed.label, &listed.address, &listed.identity];
    search.is_empty() || texts.into_iter().any(|text| String::from_utf8_lossy(text).contains(search))
}

/// One name that a session holds by grants or waits for. The ledger does not know what connections hold by plain Acquires;
/// `/api/v1/names` finds that with `holder`.
#[derive(Debug, Serialize)]
struct Held {
    kind: &'static str,
    #[serde(flatten)]
    name: Named,
    state: &'static str,
    #[serde(flatten)]
    entry: Entry,
}

pub(in super::super) async fn held(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let number = parameters.number("session", 0..=u64::MAX)?;
    let client = parameters.text("client")?;
    let page = Page::of(parameters)?;
    let server = context.reads(Target::Server)?;
    let sessions = match (number, client) {
        (Some(number), None) => vec![session(number)?],
        (None, Some(client)) => sessions_of(&context, &client).await?,
        _ => return Err(ApiError::bad_request("give one of \"session\" and \"client\"")),
    };
    let mut listing = ClaimListing::of(sessions);
    let may_read = |claimed: &Claimed| {
        context.permissions.may(Right::Read, Target::Name(claimed.namespace, &claimed.name))
    };
    let shown = |Claimed { namespace, name, is_held, listed }: Claimed| Held {
        kind: namespace.noun(),
        name: Named::of(&name),
        state: if is_held { "holds" } else { "waits" },
        entry: Entry::of(&server, listed),
    };
    Json::of(&page.take(|| server.core.list_claims(&mut listing), may_read, shown).await?)
}

/// Returns the sessions of a client that have grants or waiting requests.
async fn sessions_of(context: &Context, client: &str) -> Result<Vec<SessionId>, ApiError> {
    let server = context.server()?;
    let clients = clients(client)?;
    let mut sessions = Vec::new();
    each_step(session_steps(&server), |listed| {
        let with_claims = listed.into_iter().filter(|session| session.grants + session.waiting > 0);
        let of_client = with_claims.filter(|session| clients.revocation().is_about(session));
        // A process of System V calls has no grants of names, and its number is not that of a session.
        let leased_or_connected = of_client.filter(|session| session.kind != SessionKind::Process);
        sessions.extend(leased_or_connected.filter_map(|session| SessionId::from_number(session.session)));
        Ok(())
    })
    .await?;
    // `ClaimListing` begins with the last session.
    sessions.reverse();
    Ok(sessions)
}

pub(in super::super) async fn sets(mut context: Context) -> Answer {
    let page = Page::of(&mut context.parameters)?;
    let server = context.reads(Target::Sets)?;
    let mut listing = server.core.sets();
    let page = page.take(|| server.core.list_sets(&mut listing), |_| true, |listed| Set::of(&listed)).await?;
    Json::of(&page)
}

/// A process that has adjustments of a set, or whose call waits.
#[derive(Serialize)]
struct ListedProcess {
    role: &'static str,
    #[serde(flatten)]
    user: User,
}

impl ListedProcess {
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
    let id = parameters.number("id", 0..=i32::MAX)?;
    let id = id.ok_or_else(|| ApiError::bad_request("the set is missing; give its \"id\""))?;
    let page = Page::of(parameters)?;
    let server = context.reads(Target::Sets)?;
    let listing = server.core.set_users(SetId(id));
    let mut listing = listing.map_err(|_| {
        ApiError::not_found(format!("no set with the id {id} exists; /api/v1/sysv/sets lists sets"))
    })?;
    let next = || server.core.list_set_users(&mut listing);
    let page = page.take(next, |_| true, ListedProcess::of).await?;
    Json::of(&page)
}

/// A token, or one of its two secrets.
#[derive(Serialize)]
struct UsedToken {
    #[serde(flatten)]
    token: ListedToken,
    /// The last use, in seconds since the Unix epoch: the present time while a connection that has shown the token is open;
    /// `None`: no use since the start.
    last_use: Option<u64>,
}

/// Answers with the tokens in the file, without secrets and hashes. The file is confidential, so the client needs the right
/// to administer everything.
pub(in super::super) async fn tokens(mut context: Context) -> Answer {
    let page = Page::of(&mut context.parameters)?;
    if !context.permissions.may(Right::Administer, Target::Server) {
        return Err(context.refuse(Right::Administer, Target::Server));
    }
    context.parameters.end()?;
    let access = &context.connection.shared.rules.access;
    let (tokens, now) = (access.tokens(), Clock::system().now().0);
    let mut all: Vec<_> = tokens.iter().collect();
    let used = |entry| UsedToken {
        token: ListedToken::of(entry, now),
        last_use: access.uses.last(entry.id).map(|last| last.0),
    };
    Json::of(&page.take(|| mem::take(&mut all), |_| true, used).await?)
}
