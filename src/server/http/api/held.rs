//! What a session, or all sessions of a client, hold by grants and wait for, with the keys of `signalbox status --session --json`.
//!
//! The ledger does not know what connections hold by plain Acquires; `/api/v1/names` finds that with `holder`.

use serde::Serialize;

use super::super::access::Right;
use super::super::answer::{Answer, ApiError, Json};
use super::super::paging::{Page, each_step};
use super::Context;
use super::changes::{clients, session};
use super::entries::Entry;
use super::sessions::steps_of;
use signalbox_core::{ClaimListing, Claimed};
use signalbox_model::views::Named;
use signalbox_model::{SessionId, SessionKind, Target};

/// One name that is held or waited for.
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
    let number = parameters.number("session", u64::MAX)?;
    let client = parameters.text("client")?;
    let page = Page::of(parameters)?;
    let server = context.server()?;
    context.check_read(Target::Server)?;
    context.parameters.end()?;
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

/// The sessions of a client that have grants or waiting requests.
async fn sessions_of(context: &Context, client: &str) -> Result<Vec<SessionId>, ApiError> {
    let server = context.server()?;
    let clients = clients(client)?;
    let mut sessions = Vec::new();
    each_step(steps_of(&server), |listed| {
        let with_claims = listed.into_iter().filter(|session| session.grants + session.waiting > 0);
        let of_client = with_claims.filter(|session| clients.revocation().is_about(session));
        // Processes of System V calls have other numbers, and no grants of names.
        let leased_or_connected = of_client.filter(|session| session.kind != SessionKind::Process);
        sessions.extend(leased_or_connected.filter_map(|session| SessionId::from_number(session.session)));
        Ok(())
    })
    .await?;
    sessions.reverse();
    Ok(sessions)
}
