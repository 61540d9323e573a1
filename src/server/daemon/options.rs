//! What the command line sets, and the configuration that results.

use std::net::IpAddr;
use std::path::PathBuf;

use tracing::{info, warn};

use super::super::log::Format;
use crate::config::{Config, ConfigError, Loaded, Notice, Severity, Threshold};

/// The options of the command line. They also override the configuration when it is read again.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file; without one, both namespaces are served on loopback.
    pub config_file: Option<PathBuf>,
    /// Addresses to bind instead of the configuration's.
    pub bind: Vec<IpAddr>,
    /// The counters' port instead of the configuration's; 0 is any free port.
    pub counter_port: Option<u16>,
    /// The semaphores' port, likewise.
    pub semaphore_port: Option<u16>,
    /// The log's threshold instead of the configuration's.
    pub log_level: Option<Threshold>,
    /// The format of log lines.
    pub log_format: Format,
}

impl Options {
    /// Reads the configuration, overrides it by the options, and validates the result.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        let mut loaded = match &self.config_file {
            Some(path) => Config::load(path)?,
            None => Loaded { config: Config::without_file(), notices: Vec::new() },
        };
        let config = &mut loaded.config;
        if !self.bind.is_empty() {
            config.bind.clone_from(&self.bind);
            config.virtual_ip = None;
        }
        config.counter.port.port = self.counter_port.unwrap_or(config.counter.port.port);
        config.semaphore.port.port = self.semaphore_port.unwrap_or(config.semaphore.port.port);
        config.log.threshold = self.log_level.unwrap_or(config.log.threshold);
        config.validate()?;
        Ok(loaded)
    }
}

/// Logs the notices about a configuration that was read.
pub(super) fn log_notices(notices: &[Notice]) {
    for notice in notices {
        match notice.severity {
            Severity::Warning => warn!("{}", notice.sentence),
            Severity::Info => info!("{}", notice.sentence),
        }
    }
}
