//! Answers in JSON, and errors: each has a code that stays, and a message that says what was requested, what the state is
//! and what to do.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The type of every answer of the API.
pub(super) const JSON: &str = "application/json";

/// An answer of the API.
pub(super) type Answer = Result<Json, ApiError>;

/// A value in JSON.
pub(super) struct Json(Vec<u8>);

impl Json {
    /// Writes a value.
    pub(super) fn of(value: &impl Serialize) -> Answer {
        serde_json::to_vec(value).map(Self).map_err(|error| ApiError::internal(&error))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, JSON)], self.0).into_response()
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// A word for programs, which does not change.
    pub(super) code: &'static str,
    /// A sentence for people.
    pub(super) message: String,
    /// After how many seconds the client may repeat the request, if that helps.
    retry_after_s: Option<u32>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    code: &'a str,
    message: &'a str,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after_s: None }
    }

    /// The request may be repeated after so many seconds.
    pub(super) fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// The request is not one of the documented.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The process does not serve clients.
    pub(super) fn no_server() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not_serving",
            "this process does not serve clients now: it starts, or another node leads the cluster; ask the node that leads",
        )
    }

    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        tracing::warn!(%error, "an HTTP request cannot be answered; please report this");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the server has failed; its log says why")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let fields = ErrorFields { code: self.code, message: &self.message };
        // Two strings can always be written.
        let text = serde_json::to_vec(&ErrorBody { error: fields }).unwrap_or_default();
        let mut response = (self.status, [(CONTENT_TYPE, JSON)], text).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
