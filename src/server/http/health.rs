//! Health in plain text, for probes: `/healthz` says whether the process works, `/readyz` whether it serves clients.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::shared::Shared;

const TEXT: &str = "text/plain; charset=utf-8";

/// The process works, also while it serves no clients.
pub(super) async fn healthz() -> Response {
    ([(CONTENT_TYPE, TEXT)], "ok\n").into_response()
}

/// Whether clients can be sent here.
pub(super) async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let state = shared.state();
    let status = match state {
        "serving" | "relaying" => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, [(CONTENT_TYPE, TEXT)], format!("{state}\n")).into_response()
}
