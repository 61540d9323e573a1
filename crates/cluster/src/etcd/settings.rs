//! The settings of the client: members, TLS, user and timeout.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// The settings of the client of etcd.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The members, as URLs with a port: `https://10.0.0.1:2379`. All of them use TLS (`https`), or none does (`http`).
    pub endpoints: Vec<String>,
    /// The files for TLS; required for `https`, refused for `http`.
    pub tls: Option<Tls>,
    /// The user as which the client authenticates, if etcd requires users. A client certificate can replace it, and
    /// needs no tokens that expire.
    pub user: Option<User>,
    /// How long each call may take, including a connection and an authentication if they are needed.
    pub request_timeout: Duration,
}

/// The files for TLS, in PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificates of the authorities that sign etcd's certificates.
    pub ca: PathBuf,
    /// The client's certificate and its key, if etcd asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Clone)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: String,
}

/// Without the password, which must not be logged.
impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why the settings cannot be used on this machine.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// An endpoint is not a URL.
    #[error("endpoint \"{0}\" of etcd is not a URL; give it as \"https://10.0.0.1:2379\"")]
    Endpoint(String),
    /// There are files for TLS, but an endpoint is `http`.
    #[error("endpoint \"{0}\" of etcd does not use TLS, but files for TLS are given; write https://")]
    Plain(String),
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// A certificate or a key cannot be used.
    #[error("certificates for etcd: {0}; the files must be in PEM, and the key must fit the certificate")]
    Certificates(String),
    /// The host name, the default name of a node, cannot be read.
    #[error("the name of this machine cannot be read ({0}); set cluster.node")]
    NodeName(std::io::Error),
}

impl Settings {
    /// Returns the endpoints of the members, with TLS if it is configured. Reads the files.
    pub(super) fn prepare(&self) -> Result<Vec<Endpoint>, SettingsError> {
        let tls = self.tls.as_ref().map(read_tls).transpose()?;
        let prepare = |url: &String| {
            let endpoint =
                Endpoint::from_shared(url.clone()).map_err(|_| SettingsError::Endpoint(url.clone()))?;
            match &tls {
                Some(_) if url.starts_with("http:") => Err(SettingsError::Plain(url.clone())),
                Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| certificates(&error)),
                None => Ok(endpoint),
            }
        };
        self.endpoints.iter().map(prepare).collect()
    }
}

fn read_tls(tls: &Tls) -> Result<ClientTlsConfig, SettingsError> {
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read_certificates(&tls.ca)?));
    Ok(match &tls.identity {
        Some((certificate, key)) => {
            config.identity(Identity::from_pem(read_certificates(certificate)?, read(key)?))
        }
        None => config,
    })
}

/// Reads a file of certificates. A file without a certificate is refused here, because connections would fail without saying
/// why.
fn read_certificates(path: &Path) -> Result<Vec<u8>, SettingsError> {
    let pem = read(path)?;
    if String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
        return Ok(pem);
    }
    Err(SettingsError::Certificates(format!("{} has no certificate", path.display())))
}

fn read(path: &Path) -> Result<Vec<u8>, SettingsError> {
    fs::read(path).map_err(|error| SettingsError::Unreadable { path: path.to_owned(), error })
}

fn certificates(error: &dyn std::error::Error) -> SettingsError {
    SettingsError::Certificates(super::failure::with_causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(endpoint: &str, tls: Option<Tls>) -> String {
        let endpoints = vec![endpoint.to_owned()];
        let settings = Settings { endpoints, tls, user: None, request_timeout: Duration::from_secs(1) };
        settings.prepare().unwrap_err().to_string()
    }

    #[test]
    fn files_of_tls_that_cannot_be_used_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let tls = |name: &str| Tls { ca: scratch.path().join(name), identity: None };
        let missing = refusal("https://10.0.0.1:2379", Some(tls("missing.pem")));
        assert!(missing.contains("missing.pem"), "{missing}");
        fs::write(scratch.path().join("ca.pem"), [0x30, 0x82]).unwrap();
        let not_pem = refusal("https://10.0.0.1:2379", Some(tls("ca.pem")));
        assert!(not_pem.contains("ca.pem") && not_pem.contains("must be in PEM"), "{not_pem}");
        let broken = "-----BEGIN CERTIFICATE-----\n&\n-----END CERTIFICATE-----\n";
        fs::write(scratch.path().join("ca.pem"), broken).unwrap();
        let broken = refusal("https://10.0.0.1:2379", Some(tls("ca.pem")));
        assert!(broken.contains("must be in PEM"), "{broken}");
        let plain = refusal("http://10.0.0.1:2379", Some(tls("ca.pem")));
        assert!(plain.contains("write https://"), "{plain}");
    }

    #[test]
    fn the_password_is_not_logged() {
        let user = User { name: "signalbox".to_owned(), password: "secret".to_owned() };
        let text = format!("{user:?}");
        assert!(text.contains("signalbox") && !text.contains("secret"), "{text}");
    }
}
