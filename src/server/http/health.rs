//! Health in plain text, for probes: `/healthz` says whether the process works, `/readyz` whether it serves clients.

use hyper::StatusCode;

use super::answer::{Response, respond};
use super::shared::Shared;

const TEXT: &str = "text/plain; charset=utf-8";

/// The process works, also while it serves no clients.
pub(super) fn healthz() -> Response {
    respond(StatusCode::OK, TEXT, "ok\n")
}

/// Whether clients can be sent here.
pub(super) fn readyz(shared: &Shared) -> Response {
    let state = shared.state();
    let status = match state {
        "serving" | "relaying" => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    respond(status, TEXT, format!("{state}\n"))
}
