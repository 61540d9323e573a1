//! A port, which serves the plain requests of one namespace.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::conflicts::Conflicts;
use super::metrics::Metrics;
use super::throttle::Throttle;
use crate::config::{Config, PortConfig};
use signalbox_core::{Core, Limits};
use signalbox_model::Namespace;

/// One port: the namespace of its plain requests, its limits and its figures.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) namespace: Namespace,
    /// Most connections at a time; 0 means no limit.
    pub(super) connections_max: AtomicU32,
    /// Most names at a time; 0 means no limit. This one is for the statistics; the core enforces the limit.
    pub(super) names_max: AtomicU64,
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
            connections_max: AtomicU32::new(0),
            names_max: AtomicU64::new(0),
            conflicts: Conflicts::default(),
            metrics: Metrics::default(),
            warnings: Warnings::default(),
        }
    }

    pub(super) fn apply(&self, config: &PortConfig, core: &Core) {
        self.connections_max.store(config.max_connections, Ordering::Relaxed);
        self.names_max.store(config.max_names, Ordering::Relaxed);
        core.set_limits(
            self.namespace,
            Limits { names_max: (config.max_names > 0).then_some(config.max_names) },
        );
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
