//! All sessions, as `signalbox sessions` prints them.

use super::super::super::steps;
use super::super::answer::{Answer, Json};
use super::super::paging::Page;
use super::Context;
use signalbox_core::ListedSession;
use signalbox_model::views::Session;
use signalbox_model::{SessionId, Target};

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
    let page = page.take(next, |listed| has(listed, &search), |listed| Session::of(&listed)).await?;
    Json::of(&page)
}

/// Whether the label of a session, or the address or the identity of its client, has a text.
fn has(listed: &ListedSession, search: &str) -> bool {
    let texts = [&listed.label, &listed.address, &listed.identity];
    search.is_empty() || texts.into_iter().any(|text| String::from_utf8_lossy(text).contains(search))
}
