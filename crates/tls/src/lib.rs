//! The parts of TLS that client and server share: reading the files, the cryptography, and the version.

#![warn(clippy::unwrap_used)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{CertificateError, Error, OtherError, SupportedProtocolVersion};

/// Only TLS 1.3, in which a side that has sent its last byte can still receive, as over TCP.
pub const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13];

/// The cryptographic provider.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A file with certificates or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{}: the file cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not in PEM.
    #[error("{}: the file is not in PEM: {problem}", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: pem::Error,
    },
    /// The file has no certificate.
    #[error("{}: the file has no certificate in PEM (\"-----BEGIN CERTIFICATE-----\")", .0.display())]
    NoCertificate(PathBuf),
    /// The file has no key, or only an encrypted one.
    #[error(
        "{}: the file has no private key in PEM (\"-----BEGIN PRIVATE KEY-----\"); one with a passphrase cannot be used",
        .0.display()
    )]
    NoKey(PathBuf),
    /// The certificate is of X.509 version 1, as `openssl x509 -req` makes it without extensions.
    #[error(
        "{}: the certificate is of X.509 version 1, and TLS needs version 3; make it again with a subjectAltName \
        (docs/operations.md, \"Certificates\")",
        .0.display()
    )]
    Version1(PathBuf),
    /// The contents cannot be used.
    #[error("{}: the file cannot be used: {problem}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: Error,
    },
}

impl FileError {
    /// Returns a function that converts an error about the contents of this file.
    pub fn unusable(path: &Path) -> impl Fn(Error) -> Self + '_ {
        |problem| match &problem {
            Error::InvalidCertificate(CertificateError::Other(OtherError(reason)))
                if matches!(reason.downcast_ref(), Some(webpki::Error::UnsupportedCertVersion)) =>
            {
                Self::Version1(path.to_owned())
            }
            _ => Self::Unusable { path: path.to_owned(), problem },
        }
    }
}

/// Reads the certificates of a file, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let text = read(path)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|problem| FileError::NotPem { path: path.to_owned(), problem })?;
    if found.is_empty() {
        return Err(FileError::NoCertificate(path.to_owned()));
    }
    Ok(found)
}

/// Reads the first private key of a file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|problem| match problem {
        pem::Error::NoItemsFound => FileError::NoKey(path.to_owned()),
        problem => FileError::NotPem { path: path.to_owned(), problem },
    })
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(|source| FileError::Unreadable { path: path.to_owned(), source })
}
