//! The checks that `check-config` makes after it has validated the text of the configuration. They cover the files,
//! accounts, directories and addresses that the server would use. Nothing is changed, and no port is bound.
//!
//! Something that the server would refuse is a mistake. Something that this user cannot read is a warning, because the server may
//! run as another user.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{AccessFlags, eaccess, geteuid};

use super::clock::Clock;
use super::expirations::{Expiration, cluster_files};
use super::process::{self, Identity};
use super::tls::{Tls, TlsError};
use crate::cluster;
use crate::config::Config;
use signalbox_access::{TokenFileError, read_tokens};
use signalbox_cluster::etcd::SettingsError;
use signalbox_tls::{FileError, certificates};

/// The findings, one sentence each.
#[derive(Debug, Default)]
pub struct Checked {
    /// The server would not start.
    pub mistakes: Vec<String>,
    /// The server would start, but may not work as configured, or only for a limited time.
    pub warnings: Vec<String>,
}

/// Checks the files, accounts, directories and addresses of a configuration.
pub fn check(config: &Config) -> Checked {
    let mut checked = Checked::default();
    checked.files(config);
    for error in process::missing(config) {
        checked.mistake_of_root(error.to_string());
    }
    checked.directories(config);
    checked.addresses(config);
    checked
}

impl Checked {
    /// Checks the files of certificates, keys, passwords and tokens, and warns of what has expired or expires within 30
    /// days.
    fn files(&mut self, config: &Config) {
        let mut expirations = Vec::new();
        match Tls::read(&config.tls) {
            Ok(tls) => expirations.extend(tls.into_iter().flat_map(|tls| tls.expirations)),
            Err(error @ TlsError::File { source: FileError::Unreadable { .. }, .. }) => {
                self.unchecked(&error.to_string());
            }
            Err(error) => self.mistakes.push(error.to_string()),
        }
        let mut are_readable = true;
        for (key, file) in cluster_files(&config.cluster) {
            match certificates(file) {
                Ok(found) => {
                    expirations.extend(Expiration::of_certificates(key, file, &found));
                    continue;
                }
                Err(error @ FileError::Unreadable { .. }) => self.unchecked(&format!("{key} = {error}")),
                Err(error) => self.mistakes.push(format!("{key} = {error}")),
            }
            are_readable = false;
        }
        if config.cluster.is_enabled() && are_readable {
            // Nothing is sent, so the timeout does not matter.
            match cluster::client(&config.cluster, Duration::from_secs(1)) {
                Ok(_) => {}
                Err(error @ SettingsError::Unreadable { .. }) => {
                    self.unchecked(&format!("[cluster]: {error}"))
                }
                Err(error) => self.mistakes.push(format!("[cluster]: {error}")),
            }
        }
        if let Some(path) = &config.access.tokens {
            match read_tokens(path) {
                Ok(tokens) => expirations.extend(Expiration::of_tokens(&tokens)),
                Err(error @ TokenFileError::Io { .. }) => self.unchecked(&format!("access.tokens: {error}")),
                Err(error) => self.mistakes.push(format!("access.tokens: {error}")),
            }
        }
        let now = Clock::system().now();
        self.warnings.extend(expirations.iter().filter_map(|of| of.warning(now)));
    }

    fn unchecked(&mut self, problem: &str) {
        self.warnings.push(format!("{problem}; it was not checked"));
    }

    /// Adds a mistake if root runs the command, else a warning, because another user may start the server.
    fn mistake_of_root(&mut self, sentence: String) {
        if geteuid().is_root() { self.mistakes.push(sentence) } else { self.warnings.push(sentence) }
    }

    /// Checks the directories in which the server creates its files.
    fn directories(&mut self, config: &Config) {
        let files = [
            ("log.file", &config.log.file),
            ("log.grants", &config.log.grants),
            ("access.audit_log", &config.access.audit_log),
        ];
        for (key, file) in files {
            let Some(file) = file else { continue };
            if file.is_dir() {
                self.mistakes
                    .push(format!("{key} = {}: this is a directory; name a file in it", file.display()));
            } else if file.exists() {
                self.writable(config, key, file, file, AccessFlags::W_OK);
            } else if let Some(parent) = file.parent() {
                self.directory(config, key, file, parent);
            }
        }
        if let Some(data) = &config.data_dir {
            // The server creates the directory itself, but not those above it.
            let directory = if data.exists() { Some(&**data) } else { data.parent() };
            self.directory(config, "data_dir", data, directory.unwrap_or(data));
        }
    }

    /// Checks the `directory` that the file or directory `value` needs.
    fn directory(&mut self, config: &Config, key: &str, value: &Path, directory: &Path) {
        let (shown, needed) = (value.display(), directory.display());
        match fs::metadata(directory) {
            Ok(found) if found.is_dir() => {
                self.writable(config, key, value, directory, AccessFlags::W_OK | AccessFlags::X_OK);
            }
            Ok(_) => self.mistakes.push(format!("{key} = {shown}: {needed} is not a directory; name another")),
            Err(error) if error.kind() == ErrorKind::NotFound => self.warnings.push(format!(
                "{key} = {shown}: the directory {needed} does not exist; create it for the user of the server, unless the \
                 service manager does so at the start"
            )),
            Err(error) => self.unchecked(&format!("{key} = {shown}: {needed}: {error}")),
        }
    }

    /// Checks that the user of the server has this access to `path`: the configured user if root runs this command, or
    /// else the user who runs it.
    fn writable(&mut self, config: &Config, key: &str, value: &Path, path: &Path, access: AccessFlags) {
        // `check` reports an account that does not exist.
        let Ok(identity) = Identity::of(config) else { return };
        if let Ok(Err(error)) = identity.act(|| eaccess(path, access)) {
            let (shown, path) = (value.display(), path.display());
            let user = config.user.as_deref().filter(|_| geteuid().is_root());
            let user = user.map_or("this user".to_owned(), |user| format!("the user \"{user}\""));
            self.mistake_of_root(format!(
                "{key} = {shown}: {user} cannot write to {path}: {}; change its owner or its mode",
                error.desc()
            ));
        }
    }

    fn addresses(&mut self, config: &Config) {
        let is_everywhere = |ips: &[IpAddr]| ips.is_empty() || ips.iter().any(IpAddr::is_unspecified);
        for (key, ips) in [
            ("bind_ip", Some(&config.bind)),
            ("http.bind_ip", config.http.enable.then_some(&config.http.bind)),
        ] {
            if ips.is_some_and(|ips| is_everywhere(ips)) {
                self.warnings.push(format!(
                    "{key}: the server listens on every address of this machine; name the addresses that clients need, or let a \
                     firewall admit only them"
                ));
            }
        }
    }
}
