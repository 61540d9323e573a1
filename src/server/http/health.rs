//! Health in plain text, for probes: `/healthz` says whether the process works, `/readyz` whether it serves clients.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::shared::{Shared, Stage};

const TEXT: &str = "text/plain; charset=utf-8";

/// The process works, also while it serves no clients.
pub(super) async fn healthz() -> Response {
    ([(CONTENT_TYPE, TEXT)], "ok\n").into_response()
}

/// Whether clients can be sent here.
pub(super) async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let stage = shared.stage();
    let (status, word) = match (shared.serves_clients(), &stage) {
        (true, Stage::Standby) => (StatusCode::OK, "relaying"),
        (true, stage) => (StatusCode::OK, stage.name()),
        (false, stage) => (StatusCode::SERVICE_UNAVAILABLE, stage.name()),
    };
    (status, [(CONTENT_TYPE, TEXT)], format!("{word}\n")).into_response()
}
