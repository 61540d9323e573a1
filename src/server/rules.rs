//! The rules of a process for its clients.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::access::Access;
use super::clock::Clock;
use super::current::Current;
use super::expirations::{Expiration, Warned};
use super::shares::Shares;
use super::tls::{Tls, TlsError};
use crate::config::{Config, TlsConfig};

/// The time between two checks whether a certificate or a token expires soon.
const CHECK_PERIOD: Duration = Duration::from_secs(600);

/// The rules on how clients may connect, what they may do, and which shares they have. They exist before the `Server`
/// does: a standby has no `Server`.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// The configuration that was read last. Only keys that may change while the process runs are read from it.
    pub(super) config: Arc<Current<Arc<Config>>>,
    pub(super) access: Arc<Access>,
    /// For new connections; `None`: TLS is not configured.
    pub(super) tls: Arc<Current<Option<Arc<Tls>>>>,
    pub(super) shares: Arc<Shares>,
    /// The expirations of the certificates of the section `[cluster]`, which are read once.
    pub(super) cluster_expirations: Arc<[Expiration]>,
    pub(super) warned: Arc<Warned>,
}

impl Rules {
    /// Returns the rules of a configuration, without tokens.
    pub(super) fn of(config: &Config, tls: Option<Arc<Tls>>, clock: Clock) -> Self {
        let shares = Arc::<Shares>::default();
        shares.configure(config);
        Self {
            config: Arc::new(Current::new(Arc::new(config.clone()))),
            access: Arc::new(Access::of(config, clock)),
            tls: Arc::new(Current::new(tls)),
            shares,
            cluster_expirations: Arc::default(),
            warned: Arc::default(),
        }
    }

    /// Applies the settings that may change while the process runs.
    pub(super) fn apply(&self, config: &Config) {
        self.config.set(Arc::new(config.clone()));
        self.access.configure(config);
        self.shares.configure(config);
    }

    /// Reads the files of TLS, for connections from now on. If they cannot be used, those in use stay.
    pub(super) fn load_tls(&self, config: &TlsConfig) -> Result<(), TlsError> {
        self.tls.set(Tls::read(config)?.map(Arc::new));
        Ok(())
    }

    /// Returns when the certificates and tokens in use expire.
    pub(super) fn expirations(&self) -> Vec<Expiration> {
        let mut expirations = self.cluster_expirations.to_vec();
        expirations.extend(self.tls.get().iter().flat_map(|tls| tls.expirations.clone()));
        expirations.extend(Expiration::of_tokens(&self.access.tokens()));
        expirations
    }

    /// Logs the warnings about expirations that have become due.
    pub(super) fn warn_of_expirations(&self) {
        for warning in self.warned.next(self.expirations(), Clock::system().now()) {
            warn!("{warning}");
        }
    }

    /// Logs the warnings about expirations whenever they become due, until the future is dropped.
    pub(super) async fn watch_expirations(self) {
        loop {
            self.warn_of_expirations();
            tokio::time::sleep(CHECK_PERIOD).await;
        }
    }
}
