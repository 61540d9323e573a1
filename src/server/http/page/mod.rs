//! The status page: static files that are part of the program.
//!
//! The Content-Security-Policy of every answer (`guard`) permits scripts and styles of this server only, and none inline.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// A file of the page.
#[derive(Debug)]
pub(super) struct File {
    /// Where it is served.
    pub(super) path: &'static str,
    kind: &'static str,
    content: &'static str,
}

/// The files of the page.
pub(super) const FILES: &[File] =
    &[File { path: "/", kind: "text/html; charset=utf-8", content: include_str!("index.html") }];

impl File {
    pub(super) fn answer(&self) -> Response {
        ([(CONTENT_TYPE, self.kind)], self.content).into_response()
    }
}
