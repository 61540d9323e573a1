//! `/metrics`, as OpenMetrics or in the older text format of Prometheus (`docs/metrics.md`).
//!
//! Everything is read from the server's figures during a scrape: metrics cost other requests nothing, except that refused
//! Acquires and waits are counted. `families` has the metrics of the process and of each port, `series` those of single
//! names, and `format` chooses the format.
//!
//! Invariants: neither the number of series nor the length of a scrape depends on clients. Grants, sessions and
//! addresses are not labels, at most `http.names_max` names of a namespace have series, and the labels of these names
//! take at most [`series::LABEL_BYTES_MAX`].

mod families;
mod format;
pub(super) mod series;

use std::fmt;
use std::sync::Arc;

use hyper::header::{HeaderValue, VARY};
use hyper::{HeaderMap, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::access::{Peer, Right, permissions_of, refuse};
use super::answer::{ApiError, Response, respond};
use super::connections::Connections;
use families::Families;
use series::Series;
use signalbox_model::Target;

pub(super) fn metrics(
    connections: &Arc<Connections>,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let shared = &connections.shared;
    let permissions = permissions_of(&shared.rules.access, peer, headers, "/metrics")?;
    if !permissions.may(Right::Read, Target::Server) {
        return Err(refuse(&shared.rules.access, peer, &permissions, Right::Read, Target::Server));
    }
    let mut registry = Registry::default();
    let series = shared.stage().server().map(|server| shared.series.of(&shared.config().http, &server));
    registry.register_collector(Box::new(Scrape { connections: Arc::clone(connections), series }));
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| ApiError::internal(&error))?;
    let (kind, mut text) = format::wanted(headers, text);
    // The text may wait for its client for a long time.
    text.shrink_to_fit();
    let mut response = respond(StatusCode::OK, kind, text);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

#[derive(Debug)]
struct Scrape {
    connections: Arc<Connections>,
    series: Option<Series>,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut families = Families::new(encoder);
        let shared = &self.connections.shared;
        families.process(shared)?;
        families.listener(&self.connections)?;
        let stage = shared.stage();
        if let Some(server) = stage.server() {
            families.server(&server)?;
        }
        self.series.iter().try_for_each(|series| families.names(series))
    }
}
