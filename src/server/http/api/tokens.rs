//! The tokens in use, with the keys of `signalbox token list --json`, and when a client has used each last. The file of tokens is
//! the server's secret, so only administrators of everything see what is in it; neither secrets nor hashes are in the answer.

use std::mem;

use serde::Serialize;

use super::super::super::clock::Clock;
use super::super::access::Right;
use super::super::answer::{Answer, Json};
use super::super::paging::Page;
use super::Context;
use signalbox_access::ListedToken;
use signalbox_model::Target;

/// A token, or one of its two secrets.
#[derive(Serialize)]
struct Used {
    #[serde(flatten)]
    token: ListedToken,
    /// In seconds since the Unix epoch: the present while a connection is open that has shown it; `None`: not since the start.
    last_use: Option<u64>,
}

pub(in super::super) async fn tokens(mut context: Context) -> Answer {
    let page = Page::of(&mut context.parameters)?;
    if !context.permissions.may(Right::Administer, Target::Server) {
        return Err(context.refuse(Right::Administer, Target::Server));
    }
    context.parameters.end()?;
    let access = &context.shared.rules.access;
    let (tokens, now) = (access.tokens(), Clock::system().now().0);
    let mut all: Vec<_> = tokens.iter().collect();
    let used = |entry| Used {
        token: ListedToken::of(entry, now),
        last_use: access.uses.last(entry.id).map(|last| last.0),
    };
    Json::of(&page.take(|| mem::take(&mut all), |_| true, used).await?)
}
