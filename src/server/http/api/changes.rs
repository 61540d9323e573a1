//! What administrators change. Each request needs a token with the right to administer what it changes, and is logged.

use serde::Serialize;

use super::super::super::access::after;
use super::super::super::state::Server;
use super::super::access::Target;
use super::super::answer::{Answer, ApiError, Json};
use super::super::query::Parameters;
use super::super::requester::{refused, request};
use super::Context;
use crate::config::{Clients, UnknownClients};
use signalbox_core::{
    self, Call, ClientSelector, Declare, GrantId, IfExists, Moment, Namespace, Outcome, Removal, Resizing,
    ServiceChange, SessionId,
};

/// The longest label.
const LABEL_BYTES_MAX: usize = 255;

/// A semaphore after its change.
#[derive(Serialize)]
struct State {
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    generation: String,
    capacity: u32,
    in_use: u32,
}

/// What else a change answers.
#[derive(Serialize)]
struct Done {
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u64>,
}

/// A request for a change of a declared semaphore.
struct Change {
    context: Context,
    name: Vec<u8>,
    /// The change is made only if the semaphore has this one; `None`: it may have any.
    generation: Option<u64>,
}

impl Change {
    /// Reads the name.
    fn of_any(mut context: Context) -> Result<Self, ApiError> {
        let name = context.parameters.name()?;
        Ok(Self { context, name, generation: None })
    }

    /// Reads the name and the expected generation.
    fn of(context: Context) -> Result<Self, ApiError> {
        let mut change = Self::of_any(context)?;
        change.generation = change.parameters().number("generation", u64::MAX)?;
        Ok(change)
    }

    fn parameters(&mut self) -> &mut Parameters {
        &mut self.context.parameters
    }

    /// Makes the change if its client has the right. Every parameter has been read.
    async fn make(
        self,
        what: &str,
        ask: impl FnOnce(&Server, &[u8], Option<u64>, Call, Moment) -> Outcome,
    ) -> Answer {
        let Self { context, name, generation } = self;
        context.parameters.end()?;
        let target = Target::Name(Namespace::Semaphores, &name);
        context.check_administer(what, target)?;
        let server = context.serving()?;
        let ask = |call, now| ask(&server, &name, generation, call, now);
        let answer = request(&server, ask).await;
        answered(&context.record(&server, what, target, answer)?)
    }
}

fn answered(answer: &signalbox_core::Answer) -> Answer {
    match answer {
        signalbox_core::Answer::Declared(states) if !states.is_empty() => {
            let state = &states[0];
            Json::of(&State {
                generation: state.generation.to_string(),
                capacity: state.capacity,
                in_use: state.in_use,
            })
        }
        signalbox_core::Answer::Revoked { sessions } => Json::of(&Done { sessions: Some(*sessions) }),
        _ => Json::of(&Done { sessions: None }),
    }
}

pub(in super::super) async fn declare(context: Context) -> Answer {
    // A semaphore is declared whatever generation there is, as over the service ports.
    let mut change = Change::of_any(context)?;
    let parameters = change.parameters();
    let capacity = required_u32(parameters, "capacity")?;
    let numbered = parameters.flag("slots")?;
    let label = parameters.bytes("label")?.unwrap_or_default();
    if label.len() > LABEL_BYTES_MAX {
        return Err(ApiError::bad_request(format!("\"label\" must be at most {LABEL_BYTES_MAX} bytes")));
    }
    let rules = [("fail", IfExists::Fail), ("keep", IfExists::Keep), ("set", IfExists::Set)];
    let if_exists = parameters.word("if_exists", &rules)?;
    let slots = if numbered { " with slots" } else { "" };
    let existing = match if_exists {
        IfExists::Fail => "",
        IfExists::Keep => ", keeps an existing one",
        IfExists::Set => ", changes an existing one",
    };
    let what = format!("Declare with capacity {capacity}{slots}{existing}");
    change
        .make(&what, |server, name, _, call, now| {
            let wanted = Declare { name, capacity, numbered, label: &label };
            server.core.declare(call, &[wanted], if_exists, now)
        })
        .await
}

pub(in super::super) async fn resize(context: Context) -> Answer {
    let mut change = Change::of(context)?;
    let parameters = change.parameters();
    let mut number =
        |key| parameters.number(key, u32::MAX.into()).map(|number| number.map(|number| number as u32));
    let resizing = match (number("capacity")?, number("grow_by")?, number("shrink_by")?) {
        (Some(capacity), None, None) => Resizing::To(capacity),
        (None, Some(by), None) => Resizing::Grow(by),
        (None, None, Some(by)) => Resizing::Shrink(by),
        _ => return Err(ApiError::bad_request("give one of \"capacity\", \"grow_by\" and \"shrink_by\"")),
    };
    let what = match resizing {
        Resizing::To(capacity) => format!("Resize to {capacity}"),
        Resizing::Grow(by) => format!("Resize by +{by}"),
        Resizing::Shrink(by) => format!("Resize by -{by}"),
    };
    change
        .make(&what, |server, name, generation, call, now| {
            server.core.resize(call, name, resizing, generation, now)
        })
        .await
}

pub(in super::super) async fn pause(context: Context) -> Answer {
    serve(Change::of(context)?, "Pause", ServiceChange::Pause).await
}

pub(in super::super) async fn resume(context: Context) -> Answer {
    serve(Change::of(context)?, "Resume", ServiceChange::Resume).await
}

pub(in super::super) async fn slot(context: Context) -> Answer {
    let mut change = Change::of(context)?;
    let parameters = change.parameters();
    let slot = parameters.number("slot", u16::MAX.into())?;
    let slot =
        slot.ok_or_else(|| ApiError::bad_request("\"slot\" is missing; give the number of a slot"))? as u16;
    let is_out = parameters.text("service")?;
    let (what, service) = match is_out.as_deref() {
        Some("out") => (format!("SetSlot {slot} out of service"), ServiceChange::SlotOut(slot)),
        Some("in") => (format!("SetSlot {slot} into service"), ServiceChange::SlotIn(slot)),
        _ => return Err(ApiError::bad_request("\"service\" must be \"out\" or \"in\"")),
    };
    serve(change, &what, service).await
}

async fn serve(change: Change, what: &str, service: ServiceChange) -> Answer {
    change
        .make(what, |server, name, generation, call, now| {
            server.core.change_service(call, name, service, generation, now)
        })
        .await
}

pub(in super::super) async fn remove(context: Context) -> Answer {
    let mut change = Change::of(context)?;
    let parameters = change.parameters();
    let grace_ms = grace_ms(parameters)?;
    let ways = [
        ("if_idle", Removal::IfIdle),
        ("with_last_holder", Removal::WithLastHolder),
        ("now", Removal::Now { grace_ms }),
    ];
    let removal = parameters.word("how", &ways)?;
    let what = match removal {
        Removal::IfIdle => "Remove if idle".to_owned(),
        Removal::WithLastHolder => "Remove with its last holder".to_owned(),
        Removal::Now { grace_ms } => format!("Remove now{}", after(grace_ms)),
    };
    change
        .make(&what, |server, name, generation, call, now| {
            server.core.remove(call, name, removal, generation, now)
        })
        .await
}

pub(in super::super) async fn delete_counter(mut context: Context) -> Answer {
    let name = context.parameters.name()?;
    context.parameters.end()?;
    let (what, target) = ("DeleteCounter", Target::Name(Namespace::Counters, &name));
    context.check_administer(what, target)?;
    let server = context.serving()?;
    let deleted = server.core.delete_counter(&name).map_err(refused);
    context.record(&server, what, target, deleted)?;
    Json::of(&Done { sessions: None })
}

/// What is revoked.
enum Revoked {
    Grant(GrantId),
    Session(SessionId),
    Clients(ClientSelector),
}

pub(in super::super) async fn revoke(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let grace_ms = grace_ms(parameters)?;
    let grant = parameters.number("grant", u64::MAX)?;
    let session = parameters.number("session", u64::MAX)?;
    let client = parameters.text("client")?;
    let (revoked, what) = match (grant, session, client) {
        (Some(grant), None, None) => (Revoked::Grant(GrantId(grant)), format!("Revoke grant {grant}")),
        (None, Some(number), None) => {
            let session = SessionId::from_number(number)
                .ok_or_else(|| refused(signalbox_core::Refusal::NoSuchSession))?;
            (Revoked::Session(session), format!("Revoke session {number}"))
        }
        (None, None, Some(client)) => {
            (Revoked::Clients(clients(&client)?), format!("RevokeClient {}", client.escape_debug()))
        }
        _ => return Err(ApiError::bad_request("give one of \"grant\", \"session\" and \"client\"")),
    };
    let what = format!("{what}{}", after(grace_ms));
    context.parameters.end()?;
    context.check_administer(&what, Target::Server)?;
    let server = context.serving()?;
    let ask = |call: Call, now| match revoked {
        Revoked::Grant(grant) => server.core.revoke_grant(call, grant, grace_ms, now),
        Revoked::Session(session) => {
            // The ledger may not know the connection of a plain client yet.
            if let Some(peer) = server.peers.find_session(session) {
                server.core.join(peer.connection, None, &peer.mailbox);
            }
            server.core.revoke_session(call, session, grace_ms, now)
        }
        Revoked::Clients(clients) => {
            server.core.revoke_clients((call.connection, call.token), clients, grace_ms, now)
        }
    };
    let answer = request(&server, ask).await;
    answered(&context.record(&server, &what, Target::Server, answer)?)
}

/// The clients with an identity, or with an address of a network.
fn clients(text: &str) -> Result<ClientSelector, ApiError> {
    match text.parse() {
        Ok(Clients::Network(network)) => Ok(ClientSelector::Addresses(network.range())),
        Ok(Clients::Identity(identity)) => Ok(ClientSelector::Identity(identity.into())),
        Err(error @ UnknownClients) => Err(ApiError::bad_request(format!("\"client\" {error}"))),
    }
}

fn required_u32(parameters: &mut Parameters, key: &str) -> Result<u32, ApiError> {
    let number = parameters.number(key, u32::MAX.into())?;
    number
        .map(|number| number as u32)
        .ok_or_else(|| ApiError::bad_request(format!("\"{key}\" is missing; give a number")))
}

/// A grace period; none if it is missing.
fn grace_ms(parameters: &mut Parameters) -> Result<u32, ApiError> {
    Ok(parameters.number("grace_ms", u32::MAX.into())?.unwrap_or(0) as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::access::permissions_of;
    use super::super::super::peer::Peer;
    use super::super::super::shared::{Shared, Stage};
    use super::*;
    use crate::config::Config;
    use crate::server::clock::Clock;
    use hyper::HeaderMap;
    use signalbox_core::NameHasher;

    /// A server, and a request to it by a client that may do everything.
    fn context(shared: &Arc<Shared>, json: &str) -> Context {
        Context {
            shared: Arc::clone(shared),
            permissions: permissions_of(shared, &Peer::of_test(), &HeaderMap::new(), "/").unwrap(),
            peer: Peer::of_test(),
            parameters: Parameters::of_json(json.as_bytes()).unwrap(),
        }
    }

    fn serving() -> (Arc<Shared>, Arc<Server>) {
        let config = Config::without_file();
        let server = Server::new(&config, Clock::system(), NameHasher::new());
        let shared = Arc::new(Shared::of_test(&config));
        shared.set_stage(Stage::Serving(Arc::clone(&server)));
        (shared, server)
    }

    #[tokio::test]
    async fn a_semaphore_is_declared_changed_and_removed() {
        let (shared, server) = serving();
        let on = |json| context(&shared, json);
        assert!(
            declare(on(r#"{"name": "gpu", "capacity": 4, "slots": true, "label": "room 3"}"#)).await.is_ok()
        );
        let again = declare(on(r#"{"name": "gpu", "capacity": 5}"#)).await;
        assert_eq!(again.err().map(|error| error.code), Some("already_exists"));
        assert!(resize(on(r#"{"name": "gpu", "shrink_by": 1}"#)).await.is_ok());
        let old = resize(on(r#"{"name": "gpu", "capacity": 9, "generation": "1"}"#)).await;
        assert_eq!(old.err().map(|error| error.code), Some("generation_differs"));
        let ignored =
            declare(on(r#"{"name": "gpu", "capacity": 9, "if_exists": "set", "generation": "1"}"#)).await;
        assert_eq!(ignored.err().map(|error| error.code), Some("bad_request"));
        assert!(pause(on(r#"{"name": "gpu"}"#)).await.is_ok());
        assert!(slot(on(r#"{"name": "gpu", "slot": 2, "service": "out"}"#)).await.is_ok());
        let found = server.core.list_declared(&mut server.core.declared(b"gpu")).remove(0).record;
        assert_eq!((found.capacity, found.service.paused, &found.service.slots_out[..]), (3, true, &[2][..]));
        assert!(resume(on(r#"{"name": "gpu"}"#)).await.is_ok());
        assert!(slot(on(r#"{"name": "gpu", "slot": 2, "service": "in"}"#)).await.is_ok());
        assert!(remove(on(r#"{"name": "gpu"}"#)).await.is_ok());
        assert!(server.core.list_declared(&mut server.core.declared(b"gpu")).is_empty());
        let gone = remove(on(r#"{"name": "gpu"}"#)).await;
        assert_eq!(gone.err().map(|error| error.code), Some("not_found"));
    }

    #[test]
    fn a_change_without_an_answer_is_accepted_in_the_audit_log() {
        let (shared, server) = serving();
        let file = tempfile::NamedTempFile::new().unwrap();
        server.audit.open(file.path().to_owned()).unwrap();
        let record = |code| {
            let error = ApiError::new(hyper::StatusCode::SERVICE_UNAVAILABLE, code, "");
            context(&shared, "{}").record(&server, "Pause", Target::Server, Err::<(), _>(error)).unwrap_err();
        };
        record("no_answer");
        record("not_stored");
        let text = std::fs::read_to_string(file.path()).unwrap();
        let outcomes = text.lines().map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["outcome"].as_str().unwrap().to_owned()
        });
        assert_eq!(outcomes.collect::<Vec<_>>(), ["accepted", "refused"]);
    }

    #[tokio::test]
    async fn a_draining_server_changes_nothing() {
        let (shared, _server) = serving();
        shared.drain();
        let refused = declare(context(&shared, r#"{"name": "gpu", "capacity": 4}"#)).await;
        assert_eq!(refused.err().map(|error| error.code), Some("not_serving"));
    }

    #[tokio::test]
    async fn what_is_revoked_must_exist() {
        let (shared, _server) = serving();
        for (json, code) in [
            (r#"{"grant": "7"}"#, "no_such_grant"),
            (r#"{"session": 7}"#, "no_such_session"),
            (r#"{}"#, "bad_request"),
            (r#"{"grant": 1, "session": 1}"#, "bad_request"),
            (r#"{"client": "somewhere"}"#, "bad_request"),
        ] {
            let refused = revoke(context(&shared, json)).await;
            assert_eq!(refused.err().map(|error| error.code), Some(code), "{json}");
        }
    }

    #[tokio::test]
    async fn a_counter_that_is_held_is_not_deleted() {
        let (shared, server) = serving();
        let mut session = server.core.open_session();
        let claim = signalbox_core::Claim::new(1, 1).unwrap();
        server.core.acquire(Namespace::Counters, b"a", claim, &mut session, server.clock.now()).unwrap();
        let on = |json| context(&shared, json);
        assert_eq!(
            delete_counter(on(r#"{"name": "a"}"#)).await.err().map(|error| error.code),
            Some("in_use")
        );
        server.core.release(Namespace::Counters, b"a", 1, &mut session, server.clock.now()).unwrap();
        assert!(delete_counter(on(r#"{"name": "a"}"#)).await.is_ok());
        assert_eq!(server.core.stats(Namespace::Counters).objects, 0);
    }
}
