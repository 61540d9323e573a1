//! The limits of extended requests, in the units of the server.

use crate::config::{Config, Network};

/// Limits of the extended operations, also those that Hello divides into shares, and the addresses of proxies. Times are in milliseconds.
#[derive(Debug, Default)]
pub(super) struct SessionLimits {
    pub(super) default_ttl_ms: u32,
    pub(super) min_ttl_ms: u32,
    pub(super) max_ttl_ms: u32,
    pub(super) default_wait_ms: u32,
    pub(super) max_wait_ms: u32,
    pub(super) sessions_max: u32,
    pub(super) waiters_max: u32,
    pub(super) watches_max: u32,
    /// Where proxies are, whose connections begin with a header.
    pub(super) proxies: Vec<Network>,
}

impl SessionLimits {
    pub(super) fn of(config: &Config) -> Self {
        let session = &config.session;
        let ms = |seconds: u32| seconds.saturating_mul(1000);
        Self {
            default_ttl_ms: ms(session.default_ttl_s),
            min_ttl_ms: ms(session.min_ttl_s),
            max_ttl_ms: ms(session.max_ttl_s),
            default_wait_ms: ms(session.default_wait_s),
            max_wait_ms: ms(session.max_wait_s),
            sessions_max: session.max_sessions,
            waiters_max: session.max_waiters,
            watches_max: session.max_watches,
            proxies: config.proxies.clone(),
        }
    }
}
