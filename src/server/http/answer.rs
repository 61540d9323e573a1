//! Answers in JSON, and errors: each has a stable code, and a message that says what was requested, what the state is
//! and what to do.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use serde::Serialize;
use serde_json::json;

/// The number of seconds after which a client may repeat a request for which there was no room, or no server.
pub(super) const RETRY_S: u32 = 1;

/// The type of every answer of the API.
pub(super) const JSON: &str = "application/json";

/// The headers of every answer, which `routes` adds.
pub(super) static HEADERS: [(HeaderName, HeaderValue); 8] = [
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        ),
    ),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-embedder-policy"), HeaderValue::from_static("require-corp")),
];

/// A response with a whole body.
pub(super) type Response = hyper::Response<Full<Bytes>>;

/// Makes a response of this content type.
pub(super) fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    // Room for `HEADERS` too, so that the map does not grow.
    response.headers_mut().reserve(1 + HEADERS.len());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub(super) type Answer = Result<Json, ApiError>;

pub(super) struct Json {
    status: StatusCode,
    text: Vec<u8>,
}

impl Json {
    pub(super) fn of(value: &impl Serialize) -> Answer {
        Self::with(StatusCode::OK, value)
    }

    /// Returns an answer with this status and a value in JSON.
    pub(super) fn with(status: StatusCode, value: &impl Serialize) -> Answer {
        let text = serde_json::to_vec(value).map_err(|error| ApiError::internal(&error))?;
        Ok(Self { status, text })
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }
}

impl From<Json> for Response {
    fn from(json: Json) -> Self {
        respond(json.status, JSON, json.text)
    }
}

/// The error of a request that failed.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// A word for programs, which does not change.
    pub(super) code: &'static str,
    /// A sentence for people.
    pub(super) message: String,
    /// The number of seconds after which the client may repeat the request; `None`: repeating does not help.
    retry_after_s: Option<u32>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after_s: None }
    }

    /// Adds the number of seconds after which the request may be repeated.
    pub(super) fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// Returns the error for a request that is not as documented.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Returns the error for a request to a process that does not serve clients.
    pub(super) fn no_server() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not_serving",
            "this process does not serve clients now: it starts, or another node leads the cluster; ask the node that leads",
        )
        .retry_after(RETRY_S)
    }

    /// Returns the error for a request that this node cannot forward, because it has found no leader.
    pub(super) fn no_leader() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not_serving",
            "no node of the cluster has served the request within cluster.hold; repeat it",
        )
        .retry_after(RETRY_S)
    }

    /// Returns the error for a request for which there is no room.
    pub(super) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "the server, or this client, has as many HTTP connections as it may have; repeat the request later, or send a \
             request for leases without \"poll_ms\"",
        )
        .retry_after(RETRY_S)
    }

    /// Returns the error for a request that took longer than `limit`, as a whole or in part.
    pub(super) fn too_slow(limit: Duration) -> Self {
        let message = format!("the request was not complete or not answered within {} s", limit.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    }

    /// Logs a failure of the server, and returns the error for the client.
    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        tracing::warn!(%error, "an HTTP request cannot be answered; please report this");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the server has failed; its log says why")
    }
}

impl From<ApiError> for Response {
    fn from(error: ApiError) -> Self {
        let body = json!({"error": {"code": error.code, "message": error.message}});
        let mut response = respond(error.status, JSON, body.to_string());
        if let Some(seconds) = error.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if error.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
