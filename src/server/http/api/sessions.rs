//! All sessions, as `signalbox sessions` prints them.

use serde::Serialize;

use super::super::super::steps;
use super::super::access::Target;
use super::super::answer::{Answer, Json};
use super::super::paging::Page;
use super::{Context, Labeled, seconds};
use signalbox_core::{ListedId, ListedSession, SessionId};

/// A session.
#[derive(Serialize)]
struct Session {
    kind: &'static str,
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    session: String,
    address: Option<String>,
    connected: bool,
    /// In seconds.
    age: Option<u64>,
    grants: u32,
    waiting: u32,
    /// In seconds.
    ttl_left: Option<f64>,
    /// That the client has proven.
    identity: Option<String>,
    #[serde(flatten)]
    label: Labeled,
}

impl Session {
    fn of(listed: ListedSession) -> Self {
        let (kind, session) = match listed.id {
            ListedId::Leased(session) => ("leased", session.number()),
            ListedId::Connection(connection) => ("connection", connection.number()),
            ListedId::Process(process) => ("process", process.number()),
        };
        Self {
            kind,
            session: session.to_string(),
            address: listed.client.as_ref().map(|client| client.address.to_string()),
            identity: listed.client.and_then(|client| client.identity).map(|identity| identity.to_string()),
            connected: listed.is_attached,
            age: listed.age_ms.map(|age_ms| age_ms / 1000),
            grants: listed.grants,
            waiting: listed.waiting,
            ttl_left: listed.ttl_left_ms.map(seconds),
            label: Labeled::of(listed.label),
        }
    }
}

pub(in super::super) async fn sessions(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let search = parameters.text("search")?.unwrap_or_default();
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.check_read(Target::Server)?;
    context.parameters.end()?;
    let mut listing = server.core.sessions();
    let connected = |after: Option<SessionId>| server.peers.connected_after(after, steps::LISTED_CONNECTIONS);
    let next = || server.core.list_sessions(&mut listing, connected, server.moment());
    let page = page.take(next, |listed| has(listed, &search), Session::of).await?;
    Json::of(&page)
}

/// Whether the label of a session, or the address or the identity of its client, has a text.
fn has(listed: &ListedSession, search: &str) -> bool {
    search.is_empty()
        || String::from_utf8_lossy(&listed.label).contains(search)
        || listed.client.as_ref().is_some_and(|client| {
            client.address.to_string().contains(search)
                || client.identity.as_ref().is_some_and(|identity| identity.contains(search))
        })
}
