//! A connection over TLS that sends and receives bytes, with buffers of rustls's own and not those of the server.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::certificates::{Authority, Files};
use crate::support::{PATIENCE, Wire};

pub type SecureWire = Wire<StreamOwned<ClientConnection, TcpStream>>;

/// Connects, and does the handshake.
pub fn connect(address: SocketAddr, authority: &Authority) -> SecureWire {
    over(TcpStream::connect(address).unwrap(), authority, None).unwrap()
}

/// Like [`connect`], with a certificate of the client.
pub fn connect_as(address: SocketAddr, authority: &Authority, client: &Files) -> SecureWire {
    over(TcpStream::connect(address).unwrap(), authority, Some(client)).unwrap()
}

/// Does the client's side of the handshake over a connection.
pub fn over(
    mut stream: TcpStream,
    authority: &Authority,
    client: Option<&Files>,
) -> std::io::Result<SecureWire> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut connection = client_side(authority, client);
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(Wire::through(StreamOwned::new(connection, stream)))
}

/// The state of a client before its handshake.
pub fn client_side(authority: &Authority, client: Option<&Files>) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = "localhost".try_into().unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}
