//! A port, which serves the plain requests of one namespace.

use super::conflicts::Conflicts;
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

/// The section of the configuration for a namespace.
pub(super) fn port_config(config: &Config, namespace: Namespace) -> &PortConfig {
    match namespace {
        Namespace::Counters => &config.counter.port,
        Namespace::Semaphores => &config.semaphore.port,
    }
}

/// The word for a namespace in logs, requests, answers and metrics: that of its section of the configuration.
pub(super) fn port_name(namespace: Namespace) -> &'static str {
    match namespace {
        Namespace::Counters => "counter",
        Namespace::Semaphores => "semaphore",
    }
}
