//! The options of TLS and of the token: which servers the client subcommands trust, and how they identify themselves.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::Args;
use clap::builder::{BoolishValueParser, OsStringValueParser, TypedValueParser};

use super::exit::Failure;
use signalbox_client::{Tls, TlsFiles, Token};

/// The TLS options of all client subcommands.
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

    /// Certificate authorities of servers; implies --tls
    ///
    /// The file has their certificates in PEM, which replace those of the system.
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_CA", global = true)]
    ca: Option<PathBuf>,

    /// Certificate of this client; implies --tls
    ///
    /// In PEM, like its key.
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

    /// The contents of the files. The client reads them again for each connection.
    #[arg(skip)]
    loaded: Arc<OnceLock<Tls>>,
}

impl TlsOptions {
    /// Loads the files for TLS; `None` if connections are plain. A file that is given requests TLS, even without `--tls`.
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

/// The environment variable that names the file with the token.
pub(super) const TOKEN_FILE: &str = "SIGNALBOX_TOKEN_FILE";

/// The environment variable that has the token itself.
const TOKEN: &str = "SIGNALBOX_TOKEN";

/// The environment variable of `--token-over-plain`.
pub(super) const TOKEN_OVER_PLAIN: &str = "SIGNALBOX_TOKEN_OVER_PLAIN";

/// The source of the token of the client subcommands: a file or the environment. It is not an argument, because every
/// user of a machine can read the arguments of all processes.
#[derive(Clone, Debug, Args)]
pub(super) struct TokenSource {
    /// File with the token that proves what this client may do
    ///
    /// Without it, or with an empty FILE, the environment variable SIGNALBOX_TOKEN may have the token itself.
    #[arg(long, value_name = "FILE", env = TOKEN_FILE, value_parser = OsStringValueParser::new().map(PathBuf::from), global = true)]
    token_file: Option<PathBuf>,

    /// Send the token to other machines even without TLS
    ///
    /// Others may read it on the network; the server accepts it only with access.tokens_over_plain.
    #[arg(long, env = TOKEN_OVER_PLAIN, value_parser = BoolishValueParser::new(), global = true)]
    pub(super) token_over_plain: bool,

    /// The contents of the file. The client reads it again for each connection.
    #[arg(skip)]
    loaded: Arc<OnceLock<Token>>,
}

impl TokenSource {
    /// Loads the token, if there is one.
    pub(super) fn load(&self) -> Result<Option<Token>, Failure> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(Some(loaded.clone()));
        }
        let token = match self.file() {
            Some(path) => Some(Token::from_file(path).map_err(|error| {
                Failure::usage(format!(
                    "cannot read the token from {}: {error}; check --token-file",
                    path.display()
                ))
            })?),
            None => std::env::var(TOKEN).ok().filter(|text| !text.is_empty()).map(|text| Token::new(&text)),
        };
        let token = if self.token_over_plain { token.map(Token::over_plain) } else { token };
        Ok(token.map(|token| self.loaded.get_or_init(|| token).clone()))
    }

    /// Returns the file that has the token; `None` if only the environment may have it.
    pub(super) fn file(&self) -> Option<&Path> {
        // An empty variable counts as not set, as with SIGNALBOX_TOKEN.
        self.token_file.as_deref().filter(|path| !path.as_os_str().is_empty())
    }
}
