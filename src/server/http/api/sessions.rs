//! All sessions, as `signalbox sessions` prints them.

use super::super::super::state::Server;
use super::super::super::steps;
use super::super::answer::{Answer, ApiError, Json};
use super::super::paging::Page;
use super::Context;
use signalbox_core::ListedSession;
use signalbox_model::views::Session;
use signalbox_model::{Target, TtlLeft};

/// Which sessions come first.
#[derive(Clone, Copy)]
enum Order {
    Oldest,
    MostGrants,
    MostWaiting,
    ShortestLease,
}

impl Order {
    /// Lower for sessions that come first.
    fn key(self, session: &ListedSession) -> u64 {
        let most_first = |number: u32| u64::from(u32::MAX - number);
        match (self, session.ttl_left) {
            (Self::Oldest, _) => session.age_s.map_or(u64::MAX, most_first),
            (Self::MostGrants, _) => most_first(session.grants),
            (Self::MostWaiting, _) => most_first(session.waiting),
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
    let server = context.server()?;
    context.check_read(Target::Server)?;
    context.parameters.end()?;
    let (is_wanted, item) = (|listed: &_| has(listed, &search), |listed: ListedSession| Session::of(&listed));
    let page = match order {
        None => page.take(steps_of(&server), is_wanted, item).await?,
        // A later page would need all that come before it.
        Some(_) if page.offset > 0 => {
            return Err(ApiError::bad_request("a list with \"sort\" has one page; leave out \"offset\""));
        }
        Some(order) => {
            page.take_first(steps_of(&server), is_wanted, |listed| order.key(listed), item).await?
        }
    };
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
