//! Health in plain text, for probes: `/healthz` says whether the process runs, `/readyz` whether it serves clients.
//!
//! Probes name any host or none, and some speak HTTP/1.0 (HAProxy, keepalived). A page of another site learns from the
//! answers only the state of the server.

use hyper::{Method, StatusCode};

use super::answer::{Response, respond};
use super::shared::Shared;

pub(super) const PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// Returns whether a request is a probe, which any client may send. By default, HAProxy probes readiness by `OPTIONS /`.
pub(super) fn is_probe(method: &Method, path: &str) -> bool {
    PATHS.contains(&path) || is_default_of_haproxy(method, path)
}

pub(super) fn is_default_of_haproxy(method: &Method, path: &str) -> bool {
    *method == Method::OPTIONS && path == "/"
}

const TEXT: &str = "text/plain; charset=utf-8";

/// Answers that the process runs, even while it serves no clients.
pub(super) fn healthz() -> Response {
    respond(StatusCode::OK, TEXT, "ok\n")
}

/// Answers with the state of the server; the status is 200 if clients that connect to it are served.
pub(super) fn readyz(shared: &Shared) -> Response {
    let state = shared.state();
    let status = match state {
        "serving" | "relaying" => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    respond(status, TEXT, format!("{state}\n"))
}
