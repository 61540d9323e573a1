//! The settings of the listener that may change while the server runs.

use crate::config::Config;

/// They are replaced as a whole.
#[derive(Debug)]
pub(super) struct Settings {
    /// In lower case.
    pub(super) hosts: Vec<String>,
    /// Names that begin with one of these have series of their own.
    pub(super) names: Vec<String>,
    /// The most names of a namespace that have.
    pub(super) names_max: usize,
}

impl Settings {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            hosts: config.http.hosts.clone(),
            names: config.http.names.clone(),
            names_max: config.http.names_max as usize,
        }
    }
}
