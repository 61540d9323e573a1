//! Everything that the listener answers, in one table, which `docs/openapi.json` describes; a test compares the two.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use super::super::access::Outcome;
use super::access::{Permissions, Target, permissions_of, require_token};
use super::answer::{Answer, ApiError};
use super::api::{self, Context};
use super::guard::guard;
use super::health;
use super::metrics;
use super::openapi;
use super::page;
use super::peer::Peer;
use super::query::Parameters;
use super::shared::Shared;

/// The longest body: a name of 64 KiB, of which JSON may write each byte in six.
const BODY_BYTES_MAX: usize = 512 * 1024;

/// A request of the API.
pub(super) struct Route {
    pub(super) path: &'static str,
    kind: Kind,
    handler: fn(Context) -> Pin<Box<dyn Future<Output = Answer> + Send>>,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It reads. It may also be a POST, whose body has the parameters: names that are too long for a URL.
    Read,
    /// It changes something, which needs a token.
    Change,
}

macro_rules! routes {
    ($($path:literal $kind:ident $handler:path;)*) => {
        &[$(Route { path: $path, kind: Kind::$kind, handler: |context| Box::pin($handler(context)) }),*]
    };
}

impl Route {
    /// Whether it changes something.
    #[cfg(test)]
    pub(super) fn is_change(&self) -> bool {
        self.kind == Kind::Change
    }
}

/// The API.
pub(super) const ROUTES: &[Route] = routes! {
    "/api/v1/status" Read api::status::status;
    "/api/v1/stats" Read api::status::stats;
    "/api/v1/refusals" Read api::status::refusals;
    "/api/v1/store" Read api::status::store;
    "/api/v1/cluster" Read api::status::cluster;
    "/api/v1/names" Read api::names::names;
    "/api/v1/name" Read api::names::name;
    "/api/v1/holders" Read api::entries::holders;
    "/api/v1/waiters" Read api::entries::waiters;
    "/api/v1/sessions" Read api::sessions::sessions;
    "/api/v1/declared" Read api::declared::declared;
    "/api/v1/sysv/sets" Read api::sysv::sets;
    "/api/v1/sysv/users" Read api::sysv::users;
    "/api/v1/declare" Change api::changes::declare;
    "/api/v1/resize" Change api::changes::resize;
    "/api/v1/pause" Change api::changes::pause;
    "/api/v1/resume" Change api::changes::resume;
    "/api/v1/slot" Change api::changes::slot;
    "/api/v1/remove" Change api::changes::remove;
    "/api/v1/revoke" Change api::changes::revoke;
    "/api/v1/delete-counter" Change api::changes::delete_counter;
};

/// The routes and what surrounds them.
pub(super) fn router(shared: &Arc<Shared>) -> Router {
    let mut router = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::metrics))
        .route(openapi::PATH, get(openapi::description))
        .fallback(no_such_path);
    for file in page::FILES {
        router = router.route(file.path, get(async || file.answer()));
    }
    for route in ROUTES {
        router = router.route(route.path, methods(route));
    }
    // For the routes before it.
    let router = router.method_not_allowed_fallback(wrong_method);
    router.layer(from_fn_with_state(Arc::clone(shared), guard)).with_state(Arc::clone(shared))
}

fn methods(route: &'static Route) -> MethodRouter<Arc<Shared>> {
    let answer = move |shared: axum::extract::State<Arc<Shared>>, request: Request| async move {
        answer(route, shared.0, request).await.unwrap_or_else(ApiError::into_response)
    };
    match route.kind {
        Kind::Read => get(answer).post(answer),
        Kind::Change => post(answer),
    }
}

async fn answer(route: &Route, shared: Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    // The listener sets it for each request.
    let peer = head.extensions.get::<Peer>().cloned().ok_or_else(ApiError::no_server)?;
    let mut permissions = authorize(route, &shared, &peer, &head.headers)?;
    let query = head.uri.query().unwrap_or_default();
    let parameters = match head.method {
        Method::GET | Method::HEAD => Parameters::of_query(query)?,
        _ if !query.is_empty() => {
            return Err(ApiError::bad_request(
                "a POST has its parameters in its body; send no query in the URL",
            ));
        }
        _ => {
            let body = read(&head.headers, body).await?;
            // The client may have lost its rights while it sent the body.
            permissions = authorize(route, &shared, &peer, &head.headers)?;
            Parameters::of_json(&body)?
        }
    };
    // Of the process, so that it can be awaited here.
    let computed = Arc::clone(&shared.computed);
    let answered = (route.handler)(Context { shared, permissions, peer, parameters });
    let answer = match route.kind {
        Kind::Read => {
            let _permit = computed.acquire().await.map_err(|error| ApiError::internal(&error))?;
            answered.await
        }
        // When the client closes its connection, this future is dropped. A change that has begun must be recorded too.
        Kind::Change => tokio::spawn(answered).await.unwrap_or_else(|error| Err(ApiError::internal(&error))),
    };
    Ok(answer?.into_response())
}

/// What the client of a request may do. A change without a right token is refused, and the refusal goes to the audit log.
fn authorize(
    route: &Route,
    shared: &Shared,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Permissions, ApiError> {
    if route.kind == Kind::Read {
        return permissions_of(shared, peer, headers, route.path);
    }
    let permissions = require_token(shared, peer, headers, route.path)
        .and_then(|()| permissions_of(shared, peer, headers, route.path));
    if let (Err(error), Some(server)) = (&permissions, shared.stage().server()) {
        let outcome = Outcome::Refused(error.code);
        server.audit.record(Some(&peer.client), None, route.path, &Target::Server, outcome);
    }
    permissions
}

/// Reads a body to its end, or refuses it.
async fn read(headers: &HeaderMap, body: Body) -> Result<axum::body::Bytes, ApiError> {
    // The guard has refused bodies whose length is not stated.
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| {
        if length.is_some_and(|length| length <= BODY_BYTES_MAX as u64) {
            return ApiError::bad_request("the body ended before its Content-Length; send all of it");
        }
        let message = format!("the body is longer than {BODY_BYTES_MAX} bytes; send a shorter one");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    })
}

async fn no_such_path(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(100).collect();
    ApiError::not_found(format!(
        "there is nothing at \"{}\"; /api/v1/openapi.json lists what there is",
        path.escape_debug()
    ))
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!(
        "{} is not possible here; /api/v1/openapi.json lists the methods of each path",
        request.method().as_str().escape_debug()
    );
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
