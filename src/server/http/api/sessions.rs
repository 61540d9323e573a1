//! All sessions, as `signalbox sessions` prints them.

use super::super::super::state::Server;
use super::super::super::steps;
use super::super::answer::{Answer, Json};
use super::super::paging::Page;
use super::Context;
use signalbox_core::ListedSession;
use signalbox_model::Target;
use signalbox_model::views::Session;

pub(in super::super) async fn sessions(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let search = parameters.text("search")?.unwrap_or_default();
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.check_read(Target::Server)?;
    context.parameters.end()?;
    let page =
        page.take(steps_of(&server), |listed| has(listed, &search), |listed| Session::of(&listed)).await?;
    Json::of(&page)
}

/// Takes a list of all sessions in steps.
pub(super) fn steps_of(server: &Server) -> impl FnMut() -> Vec<ListedSession> {
    let mut listing = server.core.sessions();
    let connected = |after| server.peers.connected_after(after, steps::LISTED_CONNECTIONS);
    move || server.core.list_sessions(&mut listing, connected, server.moment())
}

/// Whether the label of a session, or the address or the identity of its client, has a text.
fn has(listed: &ListedSession, search: &str) -> bool {
    let texts = [&listed.label, &listed.address, &listed.identity];
    search.is_empty() || texts.into_iter().any(|text| String::from_utf8_lossy(text).contains(search))
}
