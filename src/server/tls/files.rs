//! The files of the section `[tls]`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig};
use thiserror::Error;

use super::super::current::Current;
use super::super::expirations::Expiration;
use super::{Terms, Tls};
use crate::config::{ClientCert, TlsConfig};
use signalbox_tls::{FileError, VERSIONS, certificates, private_key, provider};

/// The most bytes of a client until its handshake is complete, certificates included.
const BYTES_MAX: usize = 64 * 1024;

/// The same where no certificates of clients are asked for. Today, clients send 2 KiB.
const BYTES_MAX_WITHOUT_CERTIFICATES: usize = 16 * 1024;

/// Why the files of TLS cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
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
    /// The certificates of the authorities of clients cannot be used.
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

impl Current<Option<Arc<Tls>>> {
    /// Reads the files, for connections from now on. If they cannot be used, those before stay in use.
    pub(in crate::server) fn load(&self, config: &TlsConfig) -> Result<(), TlsError> {
        self.set(Tls::read(config)?.map(Arc::new));
        Ok(())
    }
}

impl Tls {
    /// Reads the files. `None`: TLS is not configured.
    pub(in crate::server) fn read(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
        let (Some(cert), Some(key)) = (&config.cert, &config.key) else { return Ok(None) };
        let chain = certificates(cert).map_err(of("tls.cert"))?;
        let private_key = private_key(key).map_err(of("tls.key"))?;
        let mut expirations = Expiration::of_certificates("tls.cert", cert, &chain);
        let verifier = match &config.client_ca {
            Some(ca) => {
                let authorities = certificates(ca).map_err(of("tls.client_ca"))?;
                expirations.extend(Expiration::of_certificates("tls.client_ca", ca, &authorities));
                verifier(ca, authorities, config.client_cert)?
            }
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let unusable = |error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::KeyDiffers { key: key.clone(), cert: cert.clone() }
            }
            Error::InvalidCertificate(_) => of("tls.cert")(FileError::unusable(cert)(error)),
            error => of("tls.key")(FileError::unusable(key)(error)),
        };
        let with = |verifier: Arc<dyn ClientCertVerifier>| {
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
            Ok(Terms { config: Arc::new(server), bytes_max })
        };
        let for_relays = with(WebPkiClientVerifier::no_client_auth())?;
        Ok(Some(Self { terms: with(verifier)?, for_relays, plain: config.plain, expirations }))
    }
}

/// The error of the file of a key.
fn of(key: &'static str) -> impl Fn(FileError) -> TlsError {
    move |source| TlsError::File { key, source }
}

fn verifier(
    path: &Path,
    authorities: Vec<CertificateDer<'static>>,
    rule: ClientCert,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate).map_err(FileError::unusable(path)).map_err(of("tls.client_ca"))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let builder = match rule {
        ClientCert::Optional => builder.allow_unauthenticated(),
        ClientCert::Required => builder,
    };
    builder.build().map_err(|problem| TlsError::ClientCa { path: path.to_owned(), problem })
}
