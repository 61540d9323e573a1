//! The cost of leases over HTTP: the CPU of a pair of acquire and release, compared with a bare responder; the CPU and the
//! memory of renewals that wait for a change; and how soon a revocation is announced.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use signalbox_bench::Usage;
use signalbox_model::{GrantId, Milliseconds, Revocation};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

use super::support::asker::{Asker, ids};
use super::support::certificates::{Authority, for_loopback};
use super::support::ports::free_ports;
use super::support::servers::{Server, start_self, start_signalbox_with};
use super::support::statistics::{median, noise};
use super::{Arguments, print_heading, print_line, responder};

/// Connections with pairs, each with one request at a time.
const CONNECTIONS: usize = 50;

const TTL_MS: u32 = 30_000;
/// How long a renewal waits for a change: the most that this time to live permits.
const POLL_MS: u32 = TTL_MS / 3;

/// Revocations in a run.
const REVOCATIONS: usize = 200;

/// The upper bounds: the CPU of a pair, in relation to the responder's; the share of a core for the waiting renewals, in
/// percent; the memory of each of them, without and with TLS; and the time of a revocation, in round trips to the responder.
const PAIR_BOUND: f64 = 2.5;
const PARKED_CPU_BOUND: f64 = 10.0;
const PARKED_KIB_BOUND: f64 = 16.0;
const PARKED_TLS_KIB_BOUND: f64 = 32.0;
const REVOCATION_BOUND: f64 = 3.0;

/// The figures of a run.
struct Figures {
    pair_us: f64,
    pair_to_responder: f64,
    /// The responder's cost in relation to itself.
    responder_to_itself: f64,
    parked_cpu_percent: f64,
    parked_kib: f64,
    parked_tls_kib: f64,
    revocation_us: f64,
    revocation_to_round_trip: f64,
}

pub fn measure_all(arguments: &Arguments) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits can be asked for");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("a process may raise its limit to the hard one");
    println!(
        "\nleases: {CONNECTIONS} connections with pairs, {} renewals that wait, {} over TLS; medians of {} runs\n",
        arguments.parked,
        tls_parked(arguments),
        arguments.runs
    );
    let figures: Vec<_> = (0..arguments.runs).map(|_| measure(arguments)).collect();
    let of = |figure: fn(&Figures) -> f64| figures.iter().map(figure).collect::<Vec<_>>();
    print_heading();
    print_line("a pair, µs of CPU", &of(|f| f.pair_us), None);
    print_line("a pair, to a bare responder", &of(|f| f.pair_to_responder), Some(PAIR_BOUND));
    println!("{:<44}{:>10.2}", "noise: the responder to itself", noise(&of(|f| f.responder_to_itself)));
    print_line("waiting renewals, % of a core", &of(|f| f.parked_cpu_percent), Some(PARKED_CPU_BOUND));
    print_line("a waiting renewal, KiB", &of(|f| f.parked_kib), Some(PARKED_KIB_BOUND));
    print_line("the same over TLS, KiB", &of(|f| f.parked_tls_kib), Some(PARKED_TLS_KIB_BOUND));
    print_line("revocation to answer, µs", &of(|f| f.revocation_us), None);
    print_line("the same, to a round trip", &of(|f| f.revocation_to_round_trip), Some(REVOCATION_BOUND));
}

fn measure(arguments: &Arguments) -> Figures {
    let time = Duration::from_secs_f64(arguments.seconds);
    let responder = start_self([responder::ARGUMENT.as_ref()]);
    let (server, http) = start(arguments, "");
    let figures = block_on(async {
        let before = pair_cpu_us(&responder, responder.address, time).await;
        let pair_us = pair_cpu_us(&server, http, time).await;
        let after = pair_cpu_us(&responder, responder.address, time).await;
        let round_trip_us = round_trip_us(responder.address).await;
        let revocation_us = revocation_us(http, server.address).await;
        let (parked_cpu_percent, parked_kib) = parked(&server, http, None, arguments.parked, 2).await;
        Figures {
            pair_us,
            pair_to_responder: pair_us / f64::midpoint(before, after),
            responder_to_itself: after / before,
            parked_cpu_percent,
            parked_kib,
            parked_tls_kib: 0.0,
            revocation_us,
            revocation_to_round_trip: revocation_us / round_trip_us,
        }
    });
    drop(server);
    let (authority, files) = for_loopback();
    let (server, https) = start(arguments, &files.lines());
    let tls = tls(&authority);
    let (_, parked_tls_kib) = block_on(parked(&server, https, Some(&tls), tls_parked(arguments), 1));
    Figures { parked_tls_kib, ..figures }
}

/// Only memory is measured over TLS, for which fewer will do: each takes a handshake.
fn tls_parked(arguments: &Arguments) -> usize {
    arguments.parked.min(1000)
}

/// A server with HTTP, with further lines at the top of its configuration.
fn start(arguments: &Arguments, further: &str) -> (Server, SocketAddr) {
    let [port] = free_ports();
    let max = arguments.parked + CONNECTIONS;
    let http = format!("http = {{ enable = true, port = {port}, lease_connections_max = {max} }}\n");
    (start_signalbox_with(&format!("{http}{further}")), SocketAddr::from(([127, 0, 0, 1], port)))
}

/// A connector that trusts the certificates of this authority.
fn tls(authority: &Authority) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(authority.file()).expect("the file was made for this");
    roots.add(certificate).expect("it is a certificate of an authority");
    let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("the provider has the cipher suites")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime needs little"), work)
}

fn usage(server: &Server) -> Usage {
    Usage::of(server.pid()).unwrap_or_else(|error| panic!("{error}"))
}

/// The CPU time of a pair of acquire and release, in microseconds.
async fn pair_cpu_us(server: &Server, address: SocketAddr, time: Duration) -> f64 {
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        clients.push((number, Client::connect(address).await));
    }
    let before = usage(server).cpu;
    let until = Instant::now() + time;
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|(number, mut client)| {
            spawn_local(async move {
                let mut pairs = 0;
                while Instant::now() < until {
                    client.acquire(number, pairs).await;
                    client.release(number, pairs).await;
                    pairs += 1;
                }
                pairs
            })
        })
        .collect();
    let mut pairs = 0;
    for task in tasks {
        pairs += task.await.expect("a client ends in order");
    }
    let cpu = usage(server).cpu.saturating_sub(before);
    cpu.as_secs_f64() * 1e6 / pairs.max(1) as f64
}

/// The median time of a request to the responder and its answer, in microseconds.
async fn round_trip_us(responder: SocketAddr) -> f64 {
    let mut client = Client::connect(responder).await;
    let mut times = Vec::with_capacity(REVOCATIONS);
    for number in 0..REVOCATIONS {
        let start = Instant::now();
        client.acquire(0, number).await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(&times)
}

/// The median time from a request that revokes a grant to the answer of the renewal that waits for this, in microseconds.
async fn revocation_us(http: SocketAddr, counters: SocketAddr) -> f64 {
    let (mut client, mut operator) = (Client::connect(http).await, Asker::connect(counters));
    let mut times = Vec::with_capacity(REVOCATIONS);
    for number in 0..REVOCATIONS {
        let held = client.acquire(1_000_000, number).await;
        let grant =
            held["grant"].as_str().and_then(|grant| grant.parse().ok()).expect("a grant has a number");
        client.send("renew", &renewal(1_000_000, number)).await;
        // Until it waits.
        sleep(Duration::from_millis(5)).await;
        let id = u32::try_from(number + 1).expect("they are few");
        operator.revoke(ids(id, id), Revocation::Grant(GrantId(grant)), Milliseconds(5000));
        let start = Instant::now();
        operator.send();
        let answer = client.answer().await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert_eq!(answer["leases"][0]["state"], "revoking");
        operator.answers(1);
        client.release(1_000_000, number).await;
    }
    median(&times)
}

/// The cost of this many waiting renewals, while each is answered and repeated some times: their CPU in percent of a core, and
/// the memory of each with its lease, in KiB.
async fn parked(
    server: &Server,
    http: SocketAddr,
    tls: Option<&TlsConnector>,
    count: usize,
    times: u32,
) -> (f64, f64) {
    let before = usage(server).resident_bytes;
    let to_begin = Rc::new(());
    for number in 0..count {
        let mut client = match tls {
            Some(tls) => Client::connect_over(tls, http).await,
            None => Client::connect(http).await,
        };
        // At different times, as clients come.
        let begin =
            sleep(Duration::from_secs_f64(f64::from(POLL_MS) / 1000.0 * number as f64 / count as f64));
        let not_begun = Rc::clone(&to_begin);
        client.acquire(number + CONNECTIONS, 0).await;
        spawn_local(async move {
            begin.await;
            client.send("renew", &renewal(number + CONNECTIONS, 0)).await;
            drop(not_begun);
            loop {
                let answer = client.answer().await;
                assert_eq!(answer["leases"][0]["state"], "held");
                client.send("renew", &renewal(number + CONNECTIONS, 0)).await;
            }
        });
    }
    while Rc::strong_count(&to_begin) > 1 {
        sleep(Duration::from_millis(100)).await;
    }
    let (start, cpu) = (Instant::now(), usage(server).cpu);
    sleep(Duration::from_millis((times * POLL_MS).into())).await;
    let after = usage(server);
    let percent = after.cpu.saturating_sub(cpu).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    (percent, (after.resident_bytes.saturating_sub(before)) as f64 / 1024.0 / count as f64)
}

fn key(client: usize, lease: usize) -> String {
    format!("{client:016x}{lease:016x}")
}

fn renewal(client: usize, lease: usize) -> String {
    format!(r#"{{"keys":["{}"],"poll_ms":{POLL_MS}}}"#, key(client, lease))
}

/// A connection, perhaps over TLS.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// A connection that is kept open.
struct Client {
    stream: Box<dyn Stream>,
    host: SocketAddr,
    received: Vec<u8>,
}

impl Client {
    async fn connect(host: SocketAddr) -> Self {
        let stream = TcpStream::connect(host).await.expect("the server accepts");
        stream.set_nodelay(true).expect("a socket of TCP");
        Self { stream: Box::new(stream), host, received: Vec::new() }
    }

    async fn connect_over(tls: &TlsConnector, host: SocketAddr) -> Self {
        let stream = TcpStream::connect(host).await.expect("the server accepts");
        let stream =
            tls.connect(ServerName::from(host.ip()), stream).await.expect("the server has a certificate");
        Self { stream: Box::new(stream), host, received: Vec::new() }
    }

    /// Acquires a lease on the client's own name.
    async fn acquire(&mut self, client: usize, lease: usize) -> Value {
        let key = key(client, lease);
        let body = format!(
            r#"{{"key":"{key}","claims":[{{"name":"bench-{client}","maximum":1}}],"ttl_ms":{TTL_MS}}}"#
        );
        let held = self.post("acquire", &body).await;
        assert_eq!(held["state"], "held");
        held
    }

    async fn release(&mut self, client: usize, lease: usize) {
        self.post("release", &format!(r#"{{"key":"{}"}}"#, key(client, lease))).await;
    }

    async fn post(&mut self, request: &str, body: &str) -> Value {
        self.send(request, body).await;
        self.answer().await
    }

    async fn send(&mut self, request: &str, body: &str) {
        let request = format!(
            "POST /api/v1/lease/{request} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.expect("the server reads");
    }

    /// Reads one answer, by its length.
    async fn answer(&mut self) -> Value {
        loop {
            if let Some(value) = self.whole_answer() {
                return value;
            }
            let read = self.stream.read_buf(&mut self.received).await.expect("the server answers");
            assert!(read > 0, "the server closed the connection");
        }
    }

    fn whole_answer(&mut self) -> Option<Value> {
        let head_bytes = self.received.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = str::from_utf8(&self.received[..head_bytes]).expect("heads are text").to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{}", String::from_utf8_lossy(&self.received));
        let (_, length) = head.split_once("content-length: ").expect("an answer has a length");
        let length: usize = length.lines().next().and_then(|digits| digits.parse().ok()).expect("a number");
        let body = self.received.get(head_bytes..head_bytes + length)?;
        let value = serde_json::from_slice(body).expect("an answer is JSON");
        self.received.drain(..head_bytes + length);
        Some(value)
    }
}
