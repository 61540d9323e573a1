//! The changes of administrators: each request becomes an operation, whose outcome is answered. It needs a token with the right to
//! administer what it changes.

use serde::Serialize;

use super::super::answer::{Answer, ApiError, Json};
use super::super::query::Parameters;
use super::super::requester::{no_such_session, request};
use super::Context;
use crate::config::Clients;
use signalbox_core::Answer as CoreAnswer;
use signalbox_model::{
    Cancellation, Declaration, Generation, GrantId, IfExists, Milliseconds, Operation, Removal, Resizing,
    Revocation, ServiceChange, SessionId,
};

/// A semaphore after its change.
#[derive(Serialize)]
struct State {
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    generation: String,
    capacity: u32,
    in_use: u32,
}

/// The answer to any other change.
#[derive(Default, Serialize)]
struct Done {
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
}

/// Makes a change if its client has the right. Fails if a parameter of the request was not read: it is unknown.
async fn make(context: Context, operation: &Operation<'_>) -> Answer {
    context.parameters.end()?;
    let requested = context.administer(operation)?;
    let server = context.serving()?;
    match request(&server, requested, operation).await? {
        CoreAnswer::Declared(states) if !states.is_empty() => {
            let state = &states[0];
            Json::of(&State {
                generation: state.generation.0.to_string(),
                capacity: state.capacity,
                in_use: state.in_use,
            })
        }
        CoreAnswer::Revoked { sessions } => Json::of(&Done { sessions: Some(sessions), ..Done::default() }),
        CoreAnswer::Canceled { requests } => Json::of(&Done { requests: Some(requests), ..Done::default() }),
        _ => Json::of(&Done::default()),
    }
}

/// The declaration of a semaphore.
pub(super) struct Declared {
    name: Vec<u8>,
    capacity: u32,
    numbered: bool,
    label: Vec<u8>,
}

impl Declared {
    pub(super) fn of(parameters: &mut Parameters) -> Result<Self, ApiError> {
        let name = parameters.name()?;
        let capacity = parameters
            .number("capacity", 0..=u32::MAX)?
            .ok_or_else(|| ApiError::bad_request("\"capacity\" is missing; give a number"))?;
        let numbered = parameters.flag("slots")?;
        Ok(Self { name, capacity, numbered, label: parameters.label()? })
    }

    pub(super) fn declaration(&self) -> Declaration<'_> {
        let Self { name, capacity, numbered, label } = self;
        Declaration { name, capacity: *capacity, numbered: *numbered, label }
    }
}

pub(in super::super) async fn declare(mut context: Context) -> Answer {
    // A declaration expects no generation, as on the service ports.
    let parameters = &mut context.parameters;
    let declared = Declared::of(parameters)?;
    let rules = [("fail", IfExists::Fail), ("keep", IfExists::Keep), ("set", IfExists::Set)];
    let if_exists = parameters.word("if_exists", &rules)?;
    make(context, &Operation::Declare { if_exists, declarations: vec![declared.declaration()] }).await
}

pub(in super::super) async fn resize(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let (name, expected) = (parameters.name()?, expected(parameters)?);
    let mut number = |key| parameters.number(key, 0..=u32::MAX);
    let how = match (number("capacity")?, number("grow_by")?, number("shrink_by")?) {
        (Some(capacity), None, None) => Resizing::To(capacity),
        (None, Some(more), None) => Resizing::GrowBy(more),
        (None, None, Some(less)) => Resizing::ShrinkBy(less),
        _ => return Err(ApiError::bad_request("give one of \"capacity\", \"grow_by\" and \"shrink_by\"")),
    };
    make(context, &Operation::Resize { name: &name, how, expected }).await
}

pub(in super::super) async fn pause(context: Context) -> Answer {
    change_service(context, |_| Ok(ServiceChange::Pause)).await
}

pub(in super::super) async fn resume(context: Context) -> Answer {
    change_service(context, |_| Ok(ServiceChange::Resume)).await
}

pub(in super::super) async fn slot(context: Context) -> Answer {
    let change = |parameters: &mut Parameters| {
        let slot = parameters.number("slot", 0..=u16::MAX)?;
        let missing = || ApiError::bad_request("\"slot\" is missing; give the number of a slot");
        let slot = slot.ok_or_else(missing)?;
        match parameters.text("service")?.as_deref() {
            Some("out") => Ok(ServiceChange::SlotOut(slot)),
            Some("in") => Ok(ServiceChange::SlotIn(slot)),
            _ => Err(ApiError::bad_request("\"service\" must be \"out\" or \"in\"")),
        }
    };
    change_service(context, change).await
}

async fn change_service(
    mut context: Context,
    change: impl FnOnce(&mut Parameters) -> Result<ServiceChange, ApiError>,
) -> Answer {
    let parameters = &mut context.parameters;
    let (name, expected, how) = (parameters.name()?, expected(parameters)?, change(parameters)?);
    make(context, &Operation::ChangeService { name: &name, how, expected }).await
}

pub(in super::super) async fn remove(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let (name, expected, how) = (parameters.name()?, expected(parameters)?, removal(parameters)?);
    make(context, &Operation::Remove { name: &name, how, expected }).await
}

/// How a semaphore is removed, as by `signalbox remove --when`.
pub(super) fn removal(parameters: &mut Parameters) -> Result<Removal, ApiError> {
    let grace = grace(parameters)?;
    let ways = [
        ("idle", Removal::IfIdle),
        ("last-holder", Removal::WithLastHolder),
        ("now", Removal::Now { grace }),
    ];
    parameters.word("when", &ways)
}

pub(in super::super) async fn delete_counter(mut context: Context) -> Answer {
    let name = context.parameters.name()?;
    make(context, &Operation::DeleteCounter { name: &name }).await
}

pub(in super::super) async fn cancel(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let what =
        match (parameters.number("request", 0..=u64::MAX)?, parameters.number("session", 0..=u64::MAX)?) {
            (Some(id), None) => Cancellation::Request(GrantId(id)),
            (None, Some(number)) => Cancellation::Session(session(number)?),
            _ => return Err(ApiError::bad_request("give one of \"request\" and \"session\"")),
        };
    make(context, &Operation::Cancel(what)).await
}

pub(in super::super) async fn revoke(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let grace = grace(parameters)?;
    let grant = parameters.number("grant", 0..=u64::MAX)?;
    let number = parameters.number("session", 0..=u64::MAX)?;
    let client = parameters.text("client")?;
    let named: Clients;
    let what = match (grant, number, client) {
        (Some(grant), None, None) => Revocation::Grant(GrantId(grant)),
        (None, Some(number), None) => Revocation::Session(session(number)?),
        (None, None, Some(client)) => {
            named = clients(&client)?;
            named.revocation()
        }
        _ => return Err(ApiError::bad_request("give one of \"grant\", \"session\" and \"client\"")),
    };
    make(context, &Operation::Revoke { what, grace }).await
}

/// The clients that a parameter names.
pub(super) fn clients(text: &str) -> Result<Clients, ApiError> {
    text.parse().map_err(|error| ApiError::bad_request(format!("\"client\" {error}")))
}

/// The session with this number. No session has the number 0.
pub(super) fn session(number: u64) -> Result<SessionId, ApiError> {
    SessionId::from_number(number).ok_or_else(no_such_session)
}

/// The generation that the semaphore must have; `None`: any.
fn expected(parameters: &mut Parameters) -> Result<Option<Generation>, ApiError> {
    Ok(parameters.number("generation", 0..=u64::MAX)?.map(Generation))
}

/// A grace period, or the default.
fn grace(parameters: &mut Parameters) -> Result<Milliseconds, ApiError> {
    Ok(parameters.milliseconds("grace_ms")?.unwrap_or(Milliseconds::GRACE_DEFAULT))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::access::permissions_of;
    use super::super::super::connections::{Connections, OpenConnection};
    use super::super::super::peer::Peer;
    use super::super::super::shared::{Shared, Stage};
    use super::*;
    use crate::config::Config;
    use crate::server::Server;
    use crate::server::clock::Clock;
    use hyper::HeaderMap;
    use signalbox_core::NameHasher;

    /// A server, and a request to it by a client that may do everything.
    fn context(shared: &Arc<Shared>, json: &str) -> Context {
        Context {
            permissions: permissions_of(&shared.rules.access, &Peer::of_test(), &HeaderMap::new(), "/")
                .unwrap(),
            token: None,
            peer: Peer::of_test(),
            connection: Arc::new(
                OpenConnection::begin(&Connections::new(Arc::clone(shared)), Peer::of_test().client.address)
                    .0,
            ),
            parameters: Parameters::of_json(json.as_bytes()).unwrap(),
        }
    }

    fn serving() -> (Arc<Shared>, Arc<Server>) {
        let config = Config::default();
        let server = Server::new(&config, Clock::system(), NameHasher::new());
        let shared = Arc::new(Shared::of_test(&config));
        shared.set_stage(Stage::Serving(Arc::clone(&server)));
        (shared, server)
    }

    #[tokio::test]
    async fn a_draining_server_changes_nothing() {
        let (shared, _server) = serving();
        shared.drain();
        let refused = declare(context(&shared, r#"{"name": "gpu", "capacity": 4}"#)).await;
        assert_eq!(refused.err().map(|error| error.code), Some("not_serving"));
    }

    #[tokio::test]
    async fn one_document_is_applied_at_a_time() {
        let (shared, server) = serving();
        let apply = || {
            let document = r#"{"prefix": "", "declare": [{"name": "gpu", "capacity": 4}]}"#;
            super::super::declarations::apply(context(&shared, document))
        };
        let permit = shared.applying.try_acquire().unwrap();
        assert_eq!(apply().await.err().map(|error| error.code), Some("busy"));
        drop(permit);
        assert!(apply().await.is_ok());
        assert_eq!(server.core.list_declared(&mut server.core.declared(b"gpu"))[0].record.capacity, 4);
    }
}
