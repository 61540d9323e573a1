//! A port, which serves the plain requests of one namespace.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::lock;
use super::metrics::Metrics;
use super::throttle::Throttle;
use crate::config::{Config, PortConfig};
use signalbox_model::Namespace;

/// One port: the namespace of its plain requests, and its figures.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) namespace: Namespace,
    pub(super) conflicts: Conflicts,
    pub(super) metrics: Metrics,
    pub(super) warnings: Warnings,
}

/// Warnings whose rate is limited.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    pub(super) bad_input: Throttle,
    pub(super) refused_connection: Throttle,
    pub(super) refused_name: Throttle,
    pub(super) failed_handshake: Throttle,
    pub(super) refused_plain: Throttle,
    pub(super) failed_accept: Throttle,
}

impl Port {
    pub(super) fn new(namespace: Namespace) -> Self {
        Self {
            namespace,
            conflicts: Conflicts::default(),
            metrics: Metrics::default(),
            warnings: Warnings::default(),
        }
    }
}

/// How long a count of conflicts is used.
const CONFLICTS_AGE_MAX: Duration = Duration::from_secs(1);

/// The item `conflicts` of a port. Counting them visits every shard, so one count serves all requests of a second.
#[derive(Debug, Default)]
pub(super) struct Conflicts(Mutex<Option<(Instant, u64)>>);

impl Conflicts {
    pub(super) fn value(&self, count: impl FnOnce() -> u64) -> u64 {
        let mut last = lock(&self.0);
        let now = Instant::now();
        if let Some((counted, conflicts)) = *last
            && now.duration_since(counted) < CONFLICTS_AGE_MAX
        {
            return conflicts;
        }
        let conflicts = count();
        *last = Some((now, conflicts));
        conflicts
    }
}

/// Returns the section of the configuration for a namespace.
pub(super) fn port_config(config: &Config, namespace: Namespace) -> &PortConfig {
    match namespace {
        Namespace::Counters => &config.counter.port,
        Namespace::Semaphores => &config.semaphore.port,
    }
}

/// Returns the word for a namespace in logs, requests, answers and metrics: the name of its section of the
/// configuration.
pub(super) fn port_name(namespace: Namespace) -> &'static str {
    match namespace {
        Namespace::Counters => "counter",
        Namespace::Semaphores => "semaphore",
    }
}
