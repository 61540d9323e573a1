//! TLS on the service ports, and the files of the section `[tls]`.
//!
//! A connection whose first byte begins a TLS record performs a [`handshake`], and is then served over the stream of
//! tokio-rustls; all others are plain and never come here. `x509` finds the names in a client's certificate.
//!
//! There is no resumption: each connection is verified with the certificates that are in force, also after a reload.
//! Only TLS 1.3 is supported; its half-close lets a client that has sent its last request receive the answers.

mod handshake;
pub(super) mod x509;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig};
use thiserror::Error;

use super::client_address::ClientAddress;
use super::expirations::Expiration;
use crate::config::{ClientCert, PlainRule, TlsConfig};
pub(super) use handshake::{Handshake, HandshakeError};
use signalbox_tls::{FileError, VERSIONS, certificates, private_key, provider};

/// The most bytes that a client may send before its handshake is complete, certificates included.
const BYTES_MAX: usize = 64 * 1024;

/// The limit in place of [`BYTES_MAX`] if clients are not asked for certificates. Clients usually send 2 KiB.
const BYTES_MAX_WITHOUT_CERTIFICATES: usize = 16 * 1024;

/// The configuration of TLS, with the contents of its files.
pub(super) struct Tls {
    settings: HandshakeSettings,
    /// For the connections that relays encrypt. The relays need no certificate, because they have proven themselves
    /// already.
    for_relays: HandshakeSettings,
    plain: PlainRule,
    /// The expirations of the certificates in the files.
    pub(super) expirations: Vec<Expiration>,
}

/// The settings of a handshake.
#[derive(Clone)]
pub(super) struct HandshakeSettings {
    config: Arc<ServerConfig>,
    /// The most bytes that a client may send before its handshake is complete.
    bytes_max: usize,
}

/// How the connection of a client may begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum FirstBytes {
    /// With a request, or perhaps with TLS.
    Any { may_begin_tls: bool },
    /// Only with TLS.
    Tls,
}

/// The reason why the files of TLS cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be used.
    #[error("{key} = {source}{}", advice(.source))]
    File {
        /// The key of the configuration.
        key: &'static str,
        /// The file and what is wrong.
        source: FileError,
    },
    /// The key does not belong to the certificate.
    #[error(
        "tls.key = {}: this is not the key of the first certificate in {}; that file must begin with the server's own \
         certificate", key.display(), cert.display()
    )]
    KeyDiffers {
        /// The file with the key.
        key: PathBuf,
        /// The file with the certificate.
        cert: PathBuf,
    },
    /// The certificate authorities for clients cannot be used.
    #[error("tls.client_ca = {}: {problem}", path.display())]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: VerifierBuilderError,
    },
}

fn advice(error: &FileError) -> &'static str {
    match error {
        FileError::Unreadable { .. } => {
            "; at the start it is read as the user who starts the server, and on SIGHUP as the configured one"
        }
        _ => "",
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("plain", &self.plain).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files. `None`: TLS is not configured.
    pub(super) fn read(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
        let (Some(cert), Some(key)) = (&config.cert, &config.key) else { return Ok(None) };
        let chain = certificates(cert).map_err(file_error("tls.cert"))?;
        let private_key = private_key(key).map_err(file_error("tls.key"))?;
        let mut expirations = Expiration::of_certificates("tls.cert", cert, &chain);
        let verifier = match &config.client_ca {
            Some(ca) => {
                let authorities = certificates(ca).map_err(file_error("tls.client_ca"))?;
                expirations.extend(Expiration::of_certificates("tls.client_ca", ca, &authorities));
                verifier(ca, authorities, config.client_cert)?
            }
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let unusable = |error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::KeyDiffers { key: key.clone(), cert: cert.clone() }
            }
            Error::InvalidCertificate(_) => file_error("tls.cert")(FileError::unusable(cert)(error)),
            error => file_error("tls.key")(FileError::unusable(key)(error)),
        };
        let settings_with = |verifier: Arc<dyn ClientCertVerifier>| {
            let bytes_max =
                if verifier.offer_client_auth() { BYTES_MAX } else { BYTES_MAX_WITHOUT_CERTIFICATES };
            let mut server = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(VERSIONS)
                .expect("the provider has the cipher suites of the version")
                .with_client_cert_verifier(verifier)
                .with_single_cert(chain.clone(), private_key.clone_key())
                .map_err(&unusable)?;
            server.session_storage = Arc::new(NoServerSessionStorage {});
            server.send_tls13_tickets = 0;
            Ok(HandshakeSettings { config: Arc::new(server), bytes_max })
        };
        let for_relays = settings_with(WebPkiClientVerifier::no_client_auth())?;
        Ok(Some(Self { settings: settings_with(verifier)?, for_relays, plain: config.plain, expirations }))
    }

    /// Returns the settings for the handshakes of new connections.
    pub(super) fn handshake_settings(&self) -> HandshakeSettings {
        self.settings.clone()
    }

    /// Returns the settings for a handshake of this client.
    pub(super) fn handshake_settings_for(&self, client: ClientAddress) -> HandshakeSettings {
        if client.is_encrypted_by_relay() { self.for_relays.clone() } else { self.handshake_settings() }
    }

    /// Returns whether this client may send requests without TLS of its own.
    pub(super) fn permits_plain(&self, client: ClientAddress) -> bool {
        match self.plain {
            PlainRule::Allow => true,
            PlainRule::Loopback => client.is_local(),
            PlainRule::Refuse => false,
        }
    }

    /// Returns how the connection of a client may begin, if no relay encrypts it.
    pub(super) fn first_bytes_of(&self, client: ClientAddress) -> FirstBytes {
        if self.permits_plain(client) { FirstBytes::Any { may_begin_tls: true } } else { FirstBytes::Tls }
    }
}

/// Returns a function that makes the error for the file under this key of the configuration.
fn file_error(key: &'static str) -> impl Fn(FileError) -> TlsError {
    move |source| TlsError::File { key, source }
}

fn verifier(
    path: &Path,
    authorities: Vec<CertificateDer<'static>>,
    rule: ClientCert,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate).map_err(FileError::unusable(path)).map_err(file_error("tls.client_ca"))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let builder = match rule {
        ClientCert::Optional => builder.allow_unauthenticated(),
        ClientCert::Required => builder,
    };
    builder.build().map_err(|problem| TlsError::ClientCa { path: path.to_owned(), problem })
}
