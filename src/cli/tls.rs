//! The options of TLS of the client subcommands.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use clap::Args;
use clap::builder::BoolishValueParser;

use super::exit::Failure;
use signalbox_client::{Tls, TlsFiles};

/// The options of TLS of all client subcommands.
#[derive(Clone, Debug, Args)]
pub(super) struct TlsOptions {
    /// Connect over TLS
    ///
    /// The server's certificate must name the host of --server.
    #[arg(
        id = "tls",
        long = "tls",
        env = "SIGNALBOX_TLS",
        value_parser = BoolishValueParser::new(),
        global = true
    )]
    is_requested: bool,

    /// Authorities of servers' certificates; implies --tls
    ///
    /// Their certificates in PEM, instead of those of the system.
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_CA", global = true)]
    ca: Option<PathBuf>,

    /// Certificate of this client; implies --tls
    ///
    /// In PEM, as its key.
    #[arg(id = "cert", long = "cert", value_name = "FILE", env = "SIGNALBOX_CERT", global = true)]
    certificate: Option<PathBuf>,

    /// Key of the certificate of --cert
    #[arg(
        id = "cert-key",
        long = "cert-key",
        value_name = "FILE",
        env = "SIGNALBOX_CERT_KEY",
        global = true
    )]
    key: Option<PathBuf>,

    /// What was read from the files. The client reads them again for each connection.
    #[arg(skip)]
    loaded: Arc<OnceLock<Tls>>,
}

impl TlsOptions {
    /// What connections over TLS need; `None`: connections are plain. A file of TLS is never ignored.
    pub(super) fn load(&self) -> Result<Option<Tls>, Failure> {
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => {
                return Err(Failure::usage("--cert needs --cert-key, the file with its key"));
            }
            (None, Some(_)) => {
                return Err(Failure::usage("--cert-key needs --cert, the file with its certificate"));
            }
        };
        if !self.is_requested && self.ca.is_none() && identity.is_none() {
            return Ok(None);
        }
        if let Some(loaded) = self.loaded.get() {
            return Ok(Some(loaded.clone()));
        }
        let files = TlsFiles { ca: self.ca.clone(), identity };
        let tls = Tls::load(&files).map_err(|error| Failure::usage(format!("cannot use TLS: {error}")))?;
        Ok(Some(self.loaded.get_or_init(|| tls).clone()))
    }

    /// Refuses TLS for a command that cannot use it.
    pub(super) fn refuse(&self, why: &str) -> Result<(), Failure> {
        let is_given = self.is_requested || self.ca.is_some() || self.certificate.is_some();
        if is_given { Err(Failure::usage(why.to_owned())) } else { Ok(()) }
    }
}
