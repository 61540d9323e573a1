//! Answers in JSON, and errors: each has a code that stays, and a message that says what was requested, what the state is
//! and what to do.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use serde::Serialize;

use super::budget::{AnswerMemory, Reservation};

/// The type of every answer of the API.
pub(super) const JSON: &str = "application/json";

/// An answer of the API.
pub(super) type Answer = Result<Json, ApiError>;

/// How much of an answer a connection is given at a time: it takes the next piece once it has sent most of this one.
const PIECE_BYTES: usize = 16 * 1024;

/// After how many seconds a request that was refused for want of room may be repeated. Most clients take their answers sooner.
const BUSY_S: u32 = 5;

/// A value in JSON.
pub(super) struct Json(Text);

impl Json {
    /// Writes a value. Fails if the answers that are in progress leave no room for it.
    pub(super) fn of(answer: &Arc<AnswerMemory>, value: &impl Serialize) -> Answer {
        let bytes = json_bytes(value)?;
        let mut memory = Reservation::new(answer);
        memory.set(bytes)?;
        let mut text = Vec::with_capacity(bytes);
        serde_json::to_writer(&mut text, value).map_err(|error| ApiError::internal(&error))?;
        Ok(Self(Text::new(text, memory)))
    }
}

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, JSON)], self.0).into_response()
    }
}

/// The length of a value in JSON.
pub(super) fn json_bytes(value: &impl Serialize) -> Result<usize, ApiError> {
    let mut length = Length(0);
    serde_json::to_writer(&mut length, value).map_err(|error| ApiError::internal(&error))?;
    Ok(length.0)
}

/// Counts what is written.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text of an answer and the memory that it takes. The connection copies what it is given, so it is given pieces.
pub(super) struct Text {
    rest: Bytes,
    _memory: Reservation,
}

impl Text {
    /// `memory` is the reservation for the text.
    pub(super) fn new(text: Vec<u8>, memory: Reservation) -> Self {
        Self { rest: text.into(), _memory: memory }
    }
}

impl HttpBody for Text {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(PIECE_BYTES);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl IntoResponse for Text {
    fn into_response(self) -> Response {
        Body::new(self).into_response()
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

    /// There is no room for a long answer.
    pub(super) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "the answer is long, and the answers that clients have not taken yet leave no room for it in the memory of the \
             server; try again, or ask for less, such as a page with limit=10",
        )
        .retry_after(BUSY_S)
    }

    /// The client has its share of the memory for long answers.
    pub(super) fn busy_for_client() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "the answer is long, and the answers that this client has not taken yet have its share of the memory for \
             answers; take them first, or ask for less, such as a page with limit=10",
        )
        .retry_after(BUSY_S)
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
