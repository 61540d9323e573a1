//! Connections over TLS.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, InconsistentKeys, InvalidMessage, RootCertStore,
};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::error::{ConnectError, TlsFailure};
use super::reread::Reread;
use super::{Address, Transport, socket};
pub use signalbox_tls::FileError;
use signalbox_tls::{VERSIONS, certificates, private_key, provider};

/// The files that a client needs for TLS, in PEM.
///
/// ```no_run
/// use signalbox_client::TlsFiles;
///
/// let files = TlsFiles {
///     ca: Some("/etc/signalbox/ca.pem".into()),
///     identity: Some(("/etc/signalbox/worker.pem".into(), "/etc/signalbox/worker.key".into())),
/// };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities that sign the servers' certificates; `None`: the system's authorities.
    pub ca: Option<PathBuf>,
    /// The certificate of this client, with the intermediate certificates, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why the files for TLS cannot be used.
///
/// ```no_run
/// use signalbox_client::{Tls, TlsFiles, TlsFilesError};
///
/// match Tls::load(&TlsFiles::default()) {
///     Err(TlsFilesError::NoSystemCa { .. }) => println!("install ca-certificates"),
///     result => drop(result.expect("there are no other files")),
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsFilesError {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The key does not belong to the certificate.
    #[error("{}: this is not the key of the first certificate in {}", key.display(), certificate.display())]
    KeyDiffers {
        /// The file with the key.
        key: PathBuf,
        /// The file with the certificate.
        certificate: PathBuf,
    },
    /// The system has no certificates of authorities.
    #[error(
        "the system has no certificates of authorities ({problem}); name a file with them, or install the package \
         ca-certificates"
    )]
    NoSystemCa {
        /// The reason.
        problem: String,
    },
}

/// TCP with TLS 1.3. The certificate of a server must name the host of its address, which may be an IP address.
///
#[doc = example!(
    "",
    r#"let tls = Tls::load(&TlsFiles { ca: Some("/etc/signalbox/ca.pem".into()), identity: None })?;"#,
    r#"let client = Client::builder("lock.example.org".parse()?).transport(tls).connect().await?;"#,
)]
#[derive(Clone)]
pub struct Tls {
    config: Arc<Reread<Arc<ClientConfig>>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files. They are read again for each connection, so that they can be replaced before they expire. If
    /// the new files cannot be used, the former ones stay in use, and the log has a warning (`tracing`). Pipes are read
    /// once.
    ///
    /// # Errors
    /// [`TlsFilesError`], which names the file and what is wrong with it.
    ///
    #[doc = example!("", "let tls = Tls::load(&TlsFiles::default())?;")]
    pub fn load(files: &TlsFiles) -> Result<Self, TlsFilesError> {
        let identity = files.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        let paths: Vec<_> = files.ca.iter().chain(identity).map(PathBuf::as_path).collect();
        let same = files.clone();
        Ok(Self { config: Reread::new(&paths, move || configuration(&same))? })
    }

    /// Returns the TLS state of a connection whose I/O the caller does, for `signalbox bench`.
    #[doc(hidden)] // For the command line.
    pub fn connection(&self, address: &Address) -> io::Result<rustls::ClientConnection> {
        let name = ServerName::try_from(address.host().to_owned()).map_err(io::Error::other)?;
        rustls::ClientConnection::new(self.config.last(), name).map_err(io::Error::other)
    }

    async fn handshake(&self, stream: TcpStream, address: &Address) -> Result<TlsStream, ConnectError> {
        let name = ServerName::try_from(address.host().to_owned());
        let name = name.map_err(|_| failed(address, TlsFailure::WrongName))?;
        match TlsConnector::from(self.config.latest().await).connect(name, stream).await {
            Ok(stream) => Ok(TlsStream { stream, address: address.clone() }),
            Err(error) => Err(failed(address, failure_of(&error))),
        }
    }
}

/// Reads the files, and returns the configuration for new connections.
fn configuration(files: &TlsFiles) -> Result<Arc<ClientConfig>, TlsFilesError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .expect("the provider has the cipher suites of the version")
        .with_root_certificates(authorities(files)?);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let unusable = |error| match error {
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    TlsFilesError::KeyDiffers { key: key.clone(), certificate: certificate.clone() }
                }
                Error::InvalidCertificate(_) => FileError::unusable(certificate)(error).into(),
                error => FileError::unusable(key)(error).into(),
            };
            builder.with_client_auth_cert(certificates(certificate)?, private_key(key)?).map_err(unusable)?
        }
    };
    // Each connection is verified, and signalbox servers do not resume sessions.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn authorities(files: &TlsFiles) -> Result<RootCertStore, TlsFilesError> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &files.ca {
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(FileError::unusable(ca))?;
        }
        return Ok(roots);
    }
    let system = rustls_native_certs::load_native_certs();
    // A system may have certificates that cannot be parsed.
    let (added, _) = roots.add_parsable_certificates(system.certs);
    if added == 0 {
        let problem = system.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
        return Err(TlsFilesError::NoSystemCa { problem });
    }
    Ok(roots)
}

impl Transport for Tls {
    type Stream = TlsStream;

    async fn resolve(&self, address: Address) -> Result<Vec<Address>, ConnectError> {
        socket::resolve(address).await
    }

    /// Uses the first IP address of the host at which the handshake succeeds.
    async fn connect(&self, address: Address, limit: Duration) -> Result<TlsStream, ConnectError> {
        let tls = self.clone();
        let handshake = move |stream, address: Address| {
            let tls = tls.clone();
            async move { tls.handshake(stream, &address).await }
        };
        socket::first_of(&address, limit, handshake).await
    }

    async fn connect_in_steps(
        &self,
        address: Address,
        limit: Duration,
        accepted: impl FnOnce() + Send,
    ) -> Result<TlsStream, ConnectError> {
        let deadline = Instant::now() + limit;
        let stream = socket::connect(&address, limit).await?;
        accepted();
        let handshake = timeout_at(deadline, self.handshake(stream, &address)).await;
        handshake.unwrap_or_else(|_| Err(ConnectError::TimedOut { address: address.to_string(), limit }))
    }
}

/// A connection of [`Tls`].
///
/// ```no_run
/// # async fn example(tls: signalbox_client::Tls) -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox_client::{PlainClient, TlsStream, Transport};
/// use std::time::Duration;
///
/// let stream: TlsStream = tls.connect("lock.example.org".parse()?, Duration::from_secs(5)).await?;
/// PlainClient::over(stream).noop().await?;
/// # Ok(())
/// # }
/// ```
pub struct TlsStream {
    stream: tokio_rustls::client::TlsStream<TcpStream>,
    address: Address,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("address", &self.address).finish_non_exhaustive()
    }
}

impl TlsStream {
    /// Converts an error of TLS to one with advice. The server verifies the certificate of the client after the
    /// client's part of the handshake, so a refusal arrives instead of the first answer.
    fn explained(&self, error: io::Error) -> io::Error {
        match rustls_error(&error) {
            Some(_) => io::Error::other(failed(&self.address, failure_of(&error))),
            None => error,
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            // The stream ended without close_notify, which a server that stops has no time to send. Truncation is
            // detected all the same, since responses contain their length.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => read.map_err(|error| self.explained(error)),
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn failed(address: &Address, failure: TlsFailure) -> ConnectError {
    ConnectError::Tls { address: address.to_string(), failure }
}

fn rustls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Classifies an error of TLS.
fn failure_of(error: &io::Error) -> TlsFailure {
    let Some(problem) = rustls_error(error) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => TlsFailure::Closed,
            _ => TlsFailure::Other(error.to_string()),
        };
    };
    match problem {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => TlsFailure::NotTls,
        Error::InvalidCertificate(problem) => certificate_failure(problem),
        Error::AlertReceived(AlertDescription::CertificateRequired) => TlsFailure::CertificateRequired,
        Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError),
        ) => TlsFailure::CertificateRefused(format!("{alert:?}")),
        problem => TlsFailure::Other(problem.to_string()),
    }
}

fn certificate_failure(problem: &CertificateError) -> TlsFailure {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
    };
    match problem {
        Expired | ExpiredContext { .. } => TlsFailure::Expired,
        NotValidYet | NotValidYetContext { .. } => TlsFailure::NotValidYet,
        NotValidForName | NotValidForNameContext { .. } => TlsFailure::WrongName,
        problem => TlsFailure::NotTrusted(problem.to_string()),
    }
}
