//! Renew: renews up to [`KEYS_MAX`] leases and answers with their states, at once or when one of them changes.

use std::mem;

use serde::Serialize;

use super::super::super::state::Server;
use super::super::access::Right;
use super::super::answer::{Answer, ApiError, Json};
use super::super::request::{Context, Requester};
use super::view::View;
use super::waiting::{Parking, Woken, mailbox};
use super::{TOKEN, end_lost, key, poll_ms};
use signalbox_core::{KeyedRefusal, KeyedState, MonotonicMs};
use signalbox_model::{LeaseKey, Target};

/// The most leases that one request renews.
const KEYS_MAX: usize = 64;

#[derive(Serialize)]
struct Renewed {
    leases: Vec<View>,
}

pub(in super::super) async fn renew(mut context: Context) -> Answer {
    let answer = renew_uncounted(&mut context).await;
    context.connection.shared.leases.note(answer)
}

async fn renew_uncounted(context: &mut Context) -> Answer {
    let (texts, poll_ms) = parameters(context)?;
    let keys = keys(&texts)?;
    let server = context.serving()?;
    if poll_ms > 0 && !context.connection.use_for_leases() {
        return Err(ApiError::busy());
    }
    let received = server.moment();
    let may = |namespace, name: &[u8]| context.permissions.may(Right::Acquire, Target::Name(namespace, name));
    let (mut requesters, mut is_permitted) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
    for key in keys {
        let requester = Requester::open(&server, mailbox(context), None);
        let renewed = server.core.renew_keyed(requester.connection(), TOKEN, &key, may, received);
        is_permitted.push(renewed != Err(KeyedRefusal::NotPermitted));
        requesters.push((key, requester));
    }
    if is_permitted.contains(&false) {
        // This only counts and logs the refusal: the answer has the state of each lease.
        let _ = context.refuse(Right::Acquire, Target::Anywhere);
    }
    let views = || {
        let of = |((key, _), is_permitted): (&(LeaseKey, Requester<'_>), &bool)| {
            let view = view(&server, key, received.monotonic);
            if *is_permitted { view } else { view.not_permitted() }
        };
        requesters.iter().zip(&is_permitted).map(of).collect::<Vec<_>>()
    };
    let mut leases = views();
    if poll_ms > 0 && !leases.iter().any(|lease| lease.is_urgent) {
        let ttl_ms = leases.iter().filter_map(|lease| lease.ttl_ms).min().unwrap_or(0);
        let mut parking = Parking::begin(context, &server, poll_ms, ttl_ms);
        loop {
            drop(leases);
            let woken = parking.wait(&requesters).await?;
            leases = views();
            if woken == Woken::ToAnswer || leases.iter().any(|lease| lease.is_urgent) {
                break;
            }
        }
    }
    let leases = leases.into_iter().zip(texts).map(|(lease, key)| lease.with_key(key));
    Json::of(&Renewed { leases: leases.collect() })
}

/// Takes the keys as the client has written them, and how long the request may wait, in milliseconds. Nothing else is
/// kept while it waits.
fn parameters(context: &mut Context) -> Result<(Vec<String>, u32), ApiError> {
    let mut parameters = mem::take(&mut context.parameters);
    let (mut texts, poll_ms) = (parameters.texts("keys")?, poll_ms(&mut parameters)?);
    parameters.end()?;
    texts.shrink_to_fit();
    Ok((texts, poll_ms))
}

fn keys(texts: &[String]) -> Result<Vec<LeaseKey>, ApiError> {
    if texts.is_empty() || texts.len() > KEYS_MAX {
        return Err(ApiError::bad_request(format!("\"keys\" must be a list of 1 to {KEYS_MAX} keys")));
    }
    let keys = texts.iter().map(|text| key(text)).collect::<Result<Vec<_>, _>>()?;
    let mut sorted: Vec<_> = keys.iter().map(|key| key.0).collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(ApiError::bad_request("\"keys\" has a key twice; give each once"));
    }
    Ok(keys)
}

/// Returns the view of a lease, whose times count from `from`, when the request was received. Ends the lease if its request
/// was refused or its grant was revoked.
fn view(server: &Server, key: &LeaseKey, from: MonotonicMs) -> View {
    let lease = server.core.keyed_lease(key, from);
    if let Some(KeyedState::Over(refusal)) = lease.as_ref().map(|lease| &lease.state) {
        end_lost(server, key, *refusal);
    }
    View::of(lease)
}
