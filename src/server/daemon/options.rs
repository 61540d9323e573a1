//! The options of `signalbox serve`, and the configuration that results.

use std::net::IpAddr;
use std::path::PathBuf;

use tracing::{info, warn};

use super::super::log::Format;
use crate::config::{ConfigError, Loaded, Notice, Severity, Threshold};

/// The options of the command line. They override the configuration, also when it is read again.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file; without one, both namespaces are served on loopback.
    pub config_file: Option<PathBuf>,
    /// Addresses to bind instead of the configured ones.
    pub bind: Vec<IpAddr>,
    /// The counters' port instead of the configured one; 0 is any free port.
    pub counter_port: Option<u16>,
    /// The semaphores' port instead of the configured one.
    pub semaphore_port: Option<u16>,
    /// The port of the HTTP listener instead of the configured one; it enables the listener.
    pub http_port: Option<u16>,
    /// The data directory instead of the configured one; an absolute path.
    pub data_dir: Option<PathBuf>,
    /// The log's threshold instead of the configured one.
    pub log_level: Option<Threshold>,
    /// The format of log lines.
    pub log_format: Format,
}

impl Options {
    /// Reads the file and the environment, overrides them with the options, and validates the result.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        let mut loaded = Loaded::read(self.config_file.as_deref(), std::env::vars_os())?;
        let config = &mut loaded.config;
        if !self.bind.is_empty() {
            config.bind.clone_from(&self.bind);
            config.virtual_ip = None;
        }
        config.log.threshold = self.log_level.unwrap_or(config.log.threshold);
        if let Some(directory) = &self.data_dir {
            config.data_dir = Some(directory.clone());
        }
        if let Some(port) = self.counter_port {
            config.counter.port.port = port;
            loaded.note_option("counter.port", "--counter-port");
        }
        if let Some(port) = self.semaphore_port {
            loaded.config.semaphore.port.port = port;
            loaded.note_option("semaphore.port", "--semaphore-port");
        }
        if let Some(port) = self.http_port {
            loaded.config.http.enable = true;
            loaded.config.http.port = port;
            loaded.note_option("http.port", "--http-port");
        }
        loaded.validate()?;
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
