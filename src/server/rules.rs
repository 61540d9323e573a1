//! The rules of a process for its clients.

use std::sync::Arc;

use super::access::Access;
use super::clock::Clock;
use super::shares::Shares;
use super::tls::{ReloadableTls, Tls};
use crate::config::Config;

/// How clients may connect, what they may do, and their shares: one of each for the process, before it has a server and while
/// it has one.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) access: Arc<Access>,
    pub(super) tls: Arc<ReloadableTls>,
    pub(super) shares: Arc<Shares>,
}

impl Rules {
    /// Those of a configuration, without tokens.
    pub(super) fn of(config: &Config, tls: Option<Arc<Tls>>, clock: Clock) -> Self {
        let shares = Arc::<Shares>::default();
        shares.configure(config);
        Self { access: Arc::new(Access::of(config, clock)), tls: Arc::new(ReloadableTls::new(tls)), shares }
    }
}
