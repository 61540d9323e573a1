//! The Rust client over TLS, and its errors.

use std::time::Duration;

use signalbox::config::{ClientCert, TlsConfig};
use signalbox_client::{
    Address, Client, ConnectError, Disconnect, Error, ErrorKind, Maximum, PlainClient, Resources, Tls,
    TlsFailure, TlsFiles, Transport,
};

use crate::certificates::{Authority, Files, for_loopback};
use crate::support::{PATIENCE, TestServer};

fn tls(authority: &Authority, identity: Option<&Files>) -> Tls {
    let identity = identity.map(|files| (files.certificate.clone(), files.key.clone()));
    Tls::load(&TlsFiles { ca: Some(authority.file()), identity }).unwrap()
}

fn server(config: &TlsConfig) -> (TestServer, Address) {
    // On a thread without a runtime, because it makes its own.
    let server = std::thread::scope(|scope| scope.spawn(TestServer::start).join().unwrap());
    server.server.load_tls(config).unwrap();
    let address = server.counters.to_string().parse().unwrap();
    (server, address)
}

/// The failure of a connection, or of the first request over it.
async fn failure(tls: &Tls, address: &Address) -> TlsFailure {
    let error = match tls.connect(address.clone(), PATIENCE).await {
        Ok(stream) => match PlainClient::over(stream).noop().await.map_err(|error| error.kind().clone()) {
            Err(ErrorKind::Connect(error)) => error,
            other => panic!("{other:?}"),
        },
        Err(error) => error,
    };
    match error {
        ConnectError::Tls { address: of, failure } => {
            // The address of a name follows the name.
            assert!(of.starts_with(&address.to_string()), "{of}");
            failure
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_plain_client_and_a_leased_client_work_over_tls() {
    let (authority, files) = for_loopback();
    let (server, address) = server(&files.config());
    let tls = tls(&authority, None);
    let plain = PlainClient::over(tls.connect(address.clone(), PATIENCE).await.unwrap());
    let held = plain.hold(b"plain", Resources(1), Maximum(1)).await.unwrap();
    let client = Client::builder(address.clone()).transport(tls.clone()).connect().await.unwrap();
    let permit = client.counter("leased").maximum(1).acquire().await.unwrap();
    let direct = client.direct().await.unwrap();
    assert_eq!(direct.server().port, signalbox_client::Namespace::Counters);
    permit.release().await.unwrap();
    held.release().await.unwrap();
    client.close().await;
    assert_eq!(server.counter().stat("failed_handshakes"), 0);
    assert_eq!(server.counter().stat("tls_connections"), 3);
}

#[tokio::test]
async fn a_server_is_named_by_its_name_or_its_address() {
    let authority = Authority::new();
    for (names, host, works) in [
        ("IP:127.0.0.1", "127.0.0.1", true),
        ("IP:127.0.0.1", "localhost", false),
        ("DNS:localhost", "localhost", true),
        ("DNS:localhost", "127.0.0.1", false),
    ] {
        let (server, _) = server(&authority.sign("server", names).config());
        let address: Address = format!("{host}:{}", server.counters.port()).parse().unwrap();
        let tls = tls(&authority, None);
        if works {
            let stream = tls.connect(address, PATIENCE).await.unwrap();
            PlainClient::over(stream).noop().await.unwrap();
        } else {
            assert_eq!(failure(&tls, &address).await, TlsFailure::WrongName, "{names} as {host}");
        }
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_trusted_is_not_used() {
    let (authority, files) = for_loopback();
    let (_server, address) = server(&files.config());
    let stranger = failure(&tls(&Authority::new(), None), &address).await;
    assert!(matches!(&stranger, TlsFailure::NotTrusted(_)), "{stranger:?}");
    let expired = authority.sign_expired("expired", "IP:127.0.0.1");
    let (_server, address) = server(&expired.config());
    assert_eq!(failure(&tls(&authority, None), &address).await, TlsFailure::Expired);
}

#[tokio::test]
async fn a_server_without_tls_and_one_that_closes_are_told_apart() {
    let authority = Authority::new();
    let (_server, address) = server(&TlsConfig::default());
    assert_eq!(failure(&tls(&authority, None), &address).await, TlsFailure::NotTls);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    tokio::spawn(async move {
        // It has read the handshake, so that it ends without a reset.
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut first = [0; 16 * 1024];
        tokio::io::AsyncReadExt::read(&mut stream, &mut first).await.unwrap();
    });
    assert_eq!(failure(&tls(&authority, None), &address).await, TlsFailure::Closed);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let authority = Authority::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let error = tls(&authority, None).connect(address, Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn a_server_with_an_authority_of_clients_verifies_their_certificates() {
    let (authority, files) = for_loopback();
    let client_authority = Authority::new();
    let known = client_authority.sign("worker", "DNS:worker.example.org");
    let (_server, address) = server(&TlsConfig {
        client_ca: Some(client_authority.file()),
        client_cert: ClientCert::Required,
        ..files.config()
    });
    let stream = tls(&authority, Some(&known)).connect(address.clone(), PATIENCE).await.unwrap();
    PlainClient::over(stream).noop().await.unwrap();
    let none = failure(&tls(&authority, None), &address).await;
    assert_eq!(none, TlsFailure::CertificateRequired);
    for unknown in [authority.sign("client", ""), client_authority.sign_expired("late", "")] {
        let refused = failure(&tls(&authority, Some(&unknown)), &address).await;
        assert!(matches!(&refused, TlsFailure::CertificateRefused(_)), "{refused:?}");
    }
    // The leased client says the same.
    let client = Client::builder(address).transport(tls(&authority, None)).connect().await;
    let error = client.unwrap_err();
    let ErrorKind::Connect(ConnectError::Tls { failure, .. }) = error.kind() else { panic!("{error}") };
    assert_eq!(*failure, TlsFailure::CertificateRequired);
}

#[tokio::test]
async fn an_optional_certificate_is_verified_if_there_is_one() {
    let (authority, files) = for_loopback();
    let config = TlsConfig { client_ca: Some(authority.file()), ..files.config() };
    let (_server, address) = server(&config);
    let known = authority.sign("worker", "");
    for identity in [None, Some(&known)] {
        let stream = tls(&authority, identity).connect(address.clone(), PATIENCE).await.unwrap();
        PlainClient::over(stream).noop().await.unwrap();
    }
    let stranger = Authority::new();
    let unknown = stranger.sign("worker", "");
    let refused = failure(&tls(&authority, Some(&unknown)), &address).await;
    assert!(matches!(refused, TlsFailure::CertificateRefused(_)), "{refused:?}");
}

#[tokio::test]
async fn a_server_that_requires_tls_says_so() {
    let (_authority, files) = for_loopback();
    let (_server, address) =
        server(&TlsConfig { plain: signalbox::config::PlainRule::Refuse, ..files.config() });
    let plain = PlainClient::connect(&address).await.unwrap();
    let refused: Error = plain.noop().await.unwrap_err();
    assert!(refused.to_string().contains("only connections over TLS"), "{refused}");
    let leased = Client::builder(address).connect().await.unwrap_err();
    assert!(leased.to_string().contains("only connections over TLS"), "{leased}");
}

#[tokio::test]
async fn a_server_that_stops_ends_the_connection_in_order() {
    let (authority, files) = for_loopback();
    let mut daemon = crate::daemon::started(&files.lines());
    let address = daemon.address("counter").to_string().parse().unwrap();
    let stream = tls(&authority, None).connect(address, PATIENCE).await.unwrap();
    let client = PlainClient::over(stream);
    client.noop().await.unwrap();
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    let end = tokio::time::timeout(PATIENCE, client.closed()).await.unwrap();
    assert!(matches!(end, Disconnect::ClosedByServer), "{end:?}");
}

#[test]
fn files_that_cannot_be_used_are_refused_with_what_is_wrong() {
    let (authority, files) = for_loopback();
    let other = authority.sign("other", "");
    let load = |ca: &std::path::Path, certificate: &std::path::Path, key: &std::path::Path| {
        let identity = Some((certificate.to_owned(), key.to_owned()));
        Tls::load(&TlsFiles { ca: Some(ca.to_owned()), identity }).unwrap_err().to_string()
    };
    let ca = authority.file();
    for (ca, certificate, key, expected) in [
        (&ca, &files.certificate, &other.key, "is not the key of the first certificate"),
        (&ca, &files.key, &files.key, "has no certificate in PEM"),
        (&ca, &files.certificate, &files.certificate, "has no private key in PEM"),
        (&files.key, &files.certificate, &files.key, "has no certificate in PEM"),
        (&ca.with_extension("none"), &files.certificate, &files.key, "cannot be read"),
    ] {
        let refused = load(ca, certificate, key);
        assert!(refused.contains(expected), "{refused}");
    }
}
