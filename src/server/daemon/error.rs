//! The errors of the daemon.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::super::TokenFileError;
use super::super::log::LogError;
use super::super::process::PrivilegeError;
use super::super::store::RestoreError;
use super::super::tls::TlsError;
use crate::config::ConfigError;

/// The reason why the daemon did not start, or ended.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The configuration is wrong; nothing was bound.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A port cannot be bound.
    #[error(
        "{key}: the port cannot be bound: {source}; if another server uses it, stop that one or change the port"
    )]
    Bind {
        /// The key of the configuration.
        key: String,
        /// The address, and the error of the system.
        source: io::Error,
    },
    /// The server cannot switch to the configured user or group.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// The certificates of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The file of tokens cannot be used.
    #[error("access.tokens: {0}")]
    Tokens(TokenFileError),
    /// The audit log or the history of grants cannot be opened.
    #[error(
        "{key}: {} cannot be opened: {source}; make its directory, and let the server's user write there",
        path.display()
    )]
    Output {
        /// The key of the configuration.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("data_dir: {0}")]
    Data(RestoreError),
    /// The node cannot join its cluster before its settings are changed.
    #[error("cluster: {0}")]
    ClusterSettings(String),
    /// The cluster's keys cannot be read by this version.
    #[error("cluster: {0}")]
    ClusterFormat(String),
    /// The node cannot join its cluster, or take part in it.
    #[error("cluster: {0}")]
    Cluster(String),
    /// The records of the cluster cannot be loaded.
    #[error("cluster: {0}")]
    Records(RestoreError),
    /// The system refused a resource that every process needs.
    #[error("the server cannot run on this system: {0}")]
    System(#[from] io::Error),
}
