//! The changes of administrators: each request becomes an operation, and the answer has its outcome. The request needs a token
//! with the right to administer what it changes.

use hyper::StatusCode;
use serde::Serialize;

use super::super::super::operations::Requested;
use super::super::super::state::Server;
use super::super::access::Right;
use super::super::answer::{Answer, ApiError, Json};
use super::super::query::Parameters;
use super::super::request::{
    ANSWER_MAX, Context, NO_SUCH_SESSION, Requester, answer_to, no_such_session, status_of,
};
use crate::config::Clients;
use signalbox_core::{Answer as CoreAnswer, Call, Mailbox, Outcome, Token};
use signalbox_model::{
    Cancellation, Declaration, Generation, GrantId, IfExists, Milliseconds, Operation, Refusal, Removal,
    RequestIds, Resizing, Revocation, ServiceChange, SessionId,
};

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

/// Takes the way in which a semaphore is removed, in the words of `signalbox remove --when`.
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

/// Returns the clients that a parameter names.
pub(super) fn clients(text: &str) -> Result<Clients, ApiError> {
    text.parse().map_err(|error| ApiError::bad_request(format!("\"client\" {error}")))
}

/// Returns the id of the session with this number. No session has the number 0.
pub(super) fn session(number: u64) -> Result<SessionId, ApiError> {
    SessionId::from_number(number).ok_or_else(no_such_session)
}

/// Takes the generation that the semaphore must have; `None`: any.
fn expected(parameters: &mut Parameters) -> Result<Option<Generation>, ApiError> {
    Ok(parameters.number("generation", 0..=u64::MAX)?.map(Generation))
}

/// Takes the grace period, or returns the default.
fn grace(parameters: &mut Parameters) -> Result<Milliseconds, ApiError> {
    Ok(parameters.milliseconds("grace_ms")?.unwrap_or(Milliseconds::GRACE_DEFAULT))
}

/// The answer to a change that does not concern a declared semaphore.
#[derive(Default, Serialize)]
struct Done {
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
}

/// Makes a change if its client has the right. Fails if the request has an unknown parameter: one that was not taken.
async fn make(context: Context, operation: &Operation<'_>) -> Answer {
    context.parameters.end()?;
    let requested = permitted(&context, operation)?;
    let server = context.serving()?;
    match execute(&server, requested, operation).await? {
        CoreAnswer::Declared(states) if !states.is_empty() => Json::of(&states[0]),
        CoreAnswer::Revoked { sessions } => Json::of(&Done { sessions: Some(sessions), ..Done::default() }),
        CoreAnswer::Canceled { requests } => Json::of(&Done { requests: Some(requests), ..Done::default() }),
        _ => Json::of(&Done::default()),
    }
}

/// Checks that the client of a request may execute an operation. A refusal goes to the audit log.
pub(super) fn permitted(context: &Context, operation: &Operation<'_>) -> Result<Requested, ApiError> {
    let server = context.server().ok();
    Requested::permitted(server.as_deref(), &context.peer.client, &context.permissions, operation)
        .map_err(|target| context.refuse(Right::Administer, target))
}

/// Executes an operation in the core, and waits for its answer.
pub(super) async fn execute(
    server: &Server,
    mut requested: Requested,
    operation: &Operation<'_>,
) -> Result<CoreAnswer, ApiError> {
    let requester = Requester::open(server, Mailbox::default(), Some(b"http"));
    let token = Token(1);
    let call = Call { connection: requester.connection(), ids: RequestIds::FIRST, token };
    match requested.execute(server, call, operation, server.moment()) {
        Outcome::Answered(answer) => Ok(answer),
        Outcome::Refused(refusal) => Err(refused(operation, refusal)),
        Outcome::Waiting => {
            let answer = tokio::time::timeout(ANSWER_MAX, answer_to(requester.mailbox(), token)).await;
            requested.record_answer(server, answer.as_ref().ok());
            answer.map_err(|_| no_answer())?.map_err(|refusal| refused(operation, refusal))
        }
    }
}

fn no_answer() -> ApiError {
    ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "no_answer",
        format!(
            "the change was not stored within {} s and may still be; check whether it was made before you repeat it",
            ANSWER_MAX.as_secs()
        ),
    )
}

/// Returns the error for a refusal of the core. The general advice for a status is for clients that acquire;
/// administrators need different advice in some cases.
fn refused(operation: &Operation<'_>, refusal: Refusal) -> ApiError {
    let (status, http) = (refusal.status(), status_of(refusal));
    let advice = match refusal {
        // The client has the right, but the configuration declares the semaphore.
        Refusal::NotPermitted => "the configuration declares it: change it there and send SIGHUP",
        Refusal::OutOfRange => {
            "the capacity would be below 0, or above the largest: 4294967295, and 65536 with slots; read it, and give one between"
        }
        Refusal::NotFound => match operation {
            Operation::Cancel(_) => "it is not waiting; read the queue of its name again",
            Operation::DeleteCounter { .. } => "it does not exist; read the list of names again",
            _ => "it is not declared; read the list of declared semaphores again",
        },
        Refusal::NotAcquired => {
            "it is not held: it was released or revoked, or has expired; read the holders again"
        }
        Refusal::NoSuchSession => NO_SUCH_SESSION,
        _ => status.advice(),
    };
    let code = if refusal == Refusal::NotPermitted { "configured" } else { status.name() };
    ApiError::new(http, code, format!("the server has refused to {operation}: {advice}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::access::{Peer, permissions_of};
    use super::super::super::connections::{Connections, OpenConnection};
    use super::super::super::shared::{Shared, Stage};
    use super::*;
    use crate::config::Config;
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

    #[test]
    fn each_refusal_has_its_status_and_code() {
        for (refusal, status, code) in [
            (Refusal::NotFound, 404, "not_found"),
            (Refusal::NotAcquired, 404, "no_such_grant"),
            (Refusal::NoSuchSession, 404, "no_such_session"),
            (Refusal::NoSuchSlot, 404, "no_such_slot"),
            (Refusal::AlreadyExists, 409, "already_exists"),
            (Refusal::GenerationDiffers, 409, "generation_differs"),
            (Refusal::InUse, 409, "in_use"),
            (Refusal::Removed, 409, "removed"),
            (Refusal::NotPermitted, 409, "configured"),
            (Refusal::OutOfRange, 400, "bad_request"),
            (Refusal::TooManyNames, 503, "limit_reached"),
            (Refusal::NotStored, 503, "not_stored"),
            (Refusal::ShuttingDown, 503, "not_serving"),
            (Refusal::Revoked, 409, "revoked"),
        ] {
            let what = Revocation::Grant(GrantId(7));
            let operation = Operation::Revoke { what, grace: Milliseconds(0) };
            let error = refused(&operation, refusal);
            assert_eq!((error.status.as_u16(), error.code), (status, code), "{refusal:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_is_not_stored_in_time_has_no_answer_and_is_accepted() {
        let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
        let file = tempfile::NamedTempFile::new().unwrap();
        server.audit.open(file.path().to_owned()).unwrap();
        // Nothing takes the steps of the revocation, so that no answer comes.
        let what = Revocation::Identity(b"token:web");
        let operation = Operation::Revoke { what, grace: Milliseconds(0) };
        let peer = Peer::of_test();
        let permissions = server.rules.access.permissions_of(&peer.client);
        let requested = Requested::permitted(Some(&server), &peer.client, &permissions, &operation).unwrap();
        let error = execute(&server, requested, &operation).await.unwrap_err();
        assert_eq!((error.status.as_u16(), error.code), (503, "no_answer"));
        let line = std::fs::read_to_string(file.path()).unwrap();
        assert!(line.contains(r#""outcome":"accepted""#), "{line}");
    }
}
