//! Static files that are part of the program: the status page, and the description of the API.
//!
//! The Content-Security-Policy of every answer (`routes`) permits only scripts and styles of this server, and no inline
//! ones. `page.js` shows the view that the address names; `overview.js` and `views.js` have the views, `columns.js`
//! what these have in common, `actions.js` the changes, `api.js` the requests, `table.js` and `chart.js` what is
//! updated in place, and `text.js` how names are shown.

use hyper::StatusCode;

use super::answer::{JSON, Response, respond};

#[derive(Debug)]
pub(super) struct File {
    /// The path at which it is served.
    pub(super) path: &'static str,
    kind: &'static str,
    pub(super) content: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! script {
    ($name:literal) => {
        File { path: concat!("/", $name), kind: SCRIPT, content: include_str!($name) }
    };
}

/// The description of the API.
pub(super) const OPENAPI: File =
    File { path: "/api/v1/openapi.json", kind: JSON, content: include_str!("../../../../docs/openapi.json") };

pub(super) const FILES: &[File] = &[
    File { path: "/", kind: "text/html; charset=utf-8", content: include_str!("index.html") },
    File { path: "/page.css", kind: "text/css; charset=utf-8", content: include_str!("page.css") },
    File { path: "/icon.svg", kind: "image/svg+xml", content: include_str!("icon.svg") },
    script!("page.js"),
    script!("overview.js"),
    script!("views.js"),
    script!("columns.js"),
    script!("actions.js"),
    script!("api.js"),
    script!("table.js"),
    script!("chart.js"),
    script!("text.js"),
    OPENAPI,
];

impl File {
    pub(super) fn answer(&self) -> Response {
        respond(StatusCode::OK, self.kind, self.content)
    }
}
