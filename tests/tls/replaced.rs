//! Clients whose files of TLS are replaced while they run, or expire.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use signalbox::config::{ClientCert, TlsConfig};
use signalbox_client::{
    Address, Client, ConnectError, ErrorKind, Lost, Permit, PlainClient, Tls, TlsFailure, TlsFiles, Transport,
};
use tokio::io::AsyncReadExt;

use crate::certificates::{Authority, Files, for_loopback};
use crate::support::daemon::SIGNALBOX;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{PATIENCE, TestServer};

/// A server on loopback with an authority of clients, which can change, and a proxy to it that can cut connections.
struct World {
    server: TestServer,
    proxy: Proxy,
    authority: Authority,
    files: Files,
}

impl World {
    fn start(clients: &Authority) -> Self {
        let (authority, files) = for_loopback();
        let server = std::thread::scope(|scope| scope.spawn(TestServer::start).join().unwrap());
        let proxy = Proxy::to(server.counters);
        let this = Self { server, proxy, authority, files };
        this.require(clients);
        this
    }

    /// The server accepts clients of this authority alone, from the next connection on.
    fn require(&self, clients: &Authority) {
        let client_ca = Some(clients.file());
        let config = TlsConfig { client_ca, client_cert: ClientCert::Required, ..self.files.config() };
        self.server.server.load_tls(&config).unwrap();
    }

    fn address(&self) -> Address {
        self.proxy.address.to_string().parse().unwrap()
    }

    fn cut(&self) {
        self.proxy.set(Mode::Cut);
        self.proxy.set(Mode::To(self.server.counters));
    }

    fn tls(&self, identity: &Files) -> Tls {
        let identity = Some((identity.certificate.clone(), identity.key.clone()));
        Tls::load(&TlsFiles { ca: Some(self.authority.file()), identity }).unwrap()
    }

    async fn held(&self, identity: &Files, ttl: Duration) -> (Client, Permit) {
        let builder = Client::builder(self.address()).transport(self.tls(identity)).ttl(ttl);
        let client = builder.unreachable_after(Duration::from_millis(500)).connect().await.unwrap();
        let permit = client.counter("a").maximum(1).acquire().await.unwrap();
        (client, permit)
    }
}

fn replace(files: &Files, by: &Files) {
    fs::copy(&by.certificate, &files.certificate).unwrap();
    fs::copy(&by.key, &files.key).unwrap();
}

/// Whether a server answers.
async fn answers(tls: &Tls, address: &Address) -> Result<(), ErrorKind> {
    let stream = tls.connect(address.clone(), PATIENCE).await?;
    PlainClient::over(stream).noop().await.map_err(|error| error.kind().clone())
}

#[tokio::test]
async fn files_that_were_replaced_are_used_by_the_next_connection() {
    let clients = Authority::new();
    let world = World::start(&clients);
    let (expired, valid) = (clients.sign_expired("expired", ""), clients.sign("worker", ""));
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    fs::copy(Authority::new().file(), &ca).unwrap();
    let identity = Some((expired.certificate.clone(), expired.key.clone()));
    let tls = Tls::load(&TlsFiles { ca: Some(ca.clone()), identity }).unwrap();
    let failure = |outcome| match outcome {
        Err(ErrorKind::Connect(ConnectError::Tls { failure, .. })) => failure,
        other => panic!("{other:?}"),
    };
    let stranger = failure(answers(&tls, &world.address()).await);
    assert!(matches!(stranger, TlsFailure::NotTrusted(_)), "{stranger}");
    fs::copy(world.authority.file(), &ca).unwrap();
    let refused = failure(answers(&tls, &world.address()).await);
    assert!(matches!(refused, TlsFailure::CertificateRefused(_)), "{refused}");
    // A certificate without its key, as in the middle of a replacement, is not used.
    fs::copy(&valid.certificate, &expired.certificate).unwrap();
    failure(answers(&tls, &world.address()).await);
    fs::copy(&valid.key, &expired.key).unwrap();
    answers(&tls, &world.address()).await.unwrap();
    // If a file cannot be read, what was read before stays in use.
    fs::write(&ca, "").unwrap();
    fs::remove_file(&expired.key).unwrap();
    answers(&tls, &world.address()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_the_certificate_with_which_it_began() {
    let (clients, next) = (Authority::new(), Authority::new());
    let world = World::start(&clients);
    let identity = clients.sign("worker", "");
    let (client, permit) = world.held(&identity, Duration::from_secs(60)).await;
    replace(&identity, &next.sign("worker", ""));
    world.require(&next);
    world.cut();
    let other = client.counter("b").maximum(1).acquire().await.unwrap();
    assert!(permit.is_held());
    permit.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_refused_says_so_and_not_that_no_server_is_there() {
    let (clients, next) = (Authority::new(), Authority::new());
    let world = World::start(&clients);
    let (client, permit) = world.held(&clients.sign("worker", ""), Duration::from_secs(3)).await;
    world.require(&next);
    world.cut();
    let refused = client.counter("b").maximum(1).acquire_or_proceed().await.unwrap_err();
    let is_reason = |kind: &ErrorKind| {
        matches!(
            kind,
            ErrorKind::Connect(ConnectError::Tls { failure: TlsFailure::CertificateRefused(_), .. })
        )
    };
    assert!(is_reason(refused.kind()), "{refused}");
    assert_eq!(tokio::time::timeout(PATIENCE, permit.lost()).await.unwrap(), Lost::Refused);
}

/// Runs `signalbox run` with a lease over the proxy, which is cut. Returns its exit status and its messages.
async fn run_over_a_cut(
    world: &World,
    identity: &Files,
    while_held: impl FnOnce(&World),
    command: &str,
) -> (Option<i32>, String) {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut program = tokio::process::Command::new(SIGNALBOX);
    program
        .args([
            "run",
            "job",
            "--max",
            "1",
            "--lease",
            "6",
            "--kill-after",
            "1",
            "--server",
            &world.address().to_string(),
        ])
        .args(["--ca", &text(&world.authority.file()), "--cert", &text(&identity.certificate)])
        .args(["--cert-key", &text(&identity.key), "--", "sh", "-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = program.spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).await.unwrap();
    while_held(world);
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_goes_on_with_files_that_were_replaced() {
    let (clients, next) = (Authority::new(), Authority::new());
    let world = World::start(&clients);
    let identity = clients.sign("worker", "");
    let renewed = |world: &World| {
        replace(&identity, &next.sign("worker", ""));
        world.require(&next);
        world.cut();
    };
    // Longer than the lease.
    let (status, said) = run_over_a_cut(&world, &identity, renewed, "echo ready; sleep 9; exit 7").await;
    assert_eq!((status, &said[..]), (Some(7), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_says_why_its_lease_is_not_renewed() {
    let (clients, next) = (Authority::new(), Authority::new());
    let world = World::start(&clients);
    let identity = clients.sign("worker", "");
    let refused = |world: &World| {
        fs::write(&identity.certificate, "").unwrap();
        world.require(&next);
        world.cut();
    };
    let (status, said) = run_over_a_cut(&world, &identity, refused, "echo ready; exec sleep 1000").await;
    assert_eq!(status, Some(69), "{said}");
    assert!(said.contains("the lease is not renewed") && said.contains("refused the certificate"), "{said}");
    let unreadable = said.lines().filter(|line| line.contains("what was read before stays in use"));
    assert_eq!(unreadable.count(), 1, "{said}");
}
