//! All sessions, as `signalbox sessions` prints them.

use super::super::super::dispatch::session_on_wire;
use super::super::super::steps;
use super::super::access::Target;
use super::super::answer::{Answer, Json};
use super::super::paging::Page;
use super::Context;
use crate::views::Session;
use signalbox_core::{ListedSession, SessionId};

fn shown(listed: ListedSession) -> Session {
    let address = listed.client.as_ref().map_or_else(String::new, |client| client.address.to_string());
    Session::of(&session_on_wire(&listed, address.as_bytes()))
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
    let page = page.take(next, |listed| has(listed, &search), shown).await?;
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
