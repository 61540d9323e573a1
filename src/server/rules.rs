//! The rules of a process for its clients.

use std::sync::Arc;

use super::access::Access;
use super::clock::Clock;
use super::expirations::{Expiration, Warned};
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
    /// Of the certificates of the section `[cluster]`, which are read once.
    pub(super) cluster_expirations: Arc<[Expiration]>,
    pub(super) warned: Arc<Warned>,
}

impl Rules {
    /// Those of a configuration, without tokens.
    pub(super) fn of(config: &Config, tls: Option<Arc<Tls>>, clock: Clock) -> Self {
        let shares = Arc::<Shares>::default();
        shares.configure(config);
        Self {
            access: Arc::new(Access::of(config, clock)),
            tls: Arc::new(ReloadableTls::new(tls)),
            shares,
            cluster_expirations: Arc::default(),
            warned: Arc::default(),
        }
    }

    /// When the certificates and tokens in use end.
    pub(super) fn expirations(&self) -> Vec<Expiration> {
        let mut expirations = self.cluster_expirations.to_vec();
        expirations.extend(self.tls.current().iter().flat_map(|tls| tls.expirations.clone()));
        expirations.extend(Expiration::of_tokens(&self.access.tokens()));
        expirations
    }
}
