//! Shared by the tests over sockets: a server, and a connection that sends and receives bytes.
//!
//! `SIGNALBOX_TEST_SERVER=host:port` (and `SIGNALBOX_TEST_SEMAPHORE_SERVER`) points the tests at a running server. A
//! test that needs access to the server's internals starts its own server in any case.
//!
//! Connections are blocking and do not use the product's codec, so that the tests do not share its mistakes.

#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod caller;
pub mod calls;
pub mod cluster;
pub mod daemon;
pub mod documents;
pub mod etcd;
pub mod failing;
pub mod fake_server;
pub mod haproxy;
pub mod namespaces;
pub mod ports;
pub mod proxy;
pub mod store;
pub mod sysv_program;
pub mod yrmcdsd;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use signalbox::config::Config;
use signalbox::server::{
    Clock, Listener, SameThread, Server, Workers, expire, serve_port, sweep_counters, sweep_semaphores,
};
use signalbox_core::NameHasher;
use signalbox_model::Namespace;
use signalbox_model::UnixSeconds;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};

pub const NOOP: u8 = 0x00;
pub const GET: u8 = 0x01;
pub const ACQUIRE: u8 = 0x02;
pub const RELEASE: u8 = 0x03;
pub const STATS: u8 = 0x10;
pub const DUMP: u8 = 0x11;

pub const OK: u8 = 0x00;
pub const NOT_FOUND: u8 = 0x01;
pub const INVALID: u8 = 0x04;
pub const NOT_AVAILABLE: u8 = 0x21;
pub const NOT_ACQUIRED: u8 = 0x22;
pub const UNKNOWN_COMMAND: u8 = 0x81;
pub const OUT_OF_MEMORY: u8 = 0x82;

/// How long a test waits for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server inside the test, with a clock that the test moves.
pub struct TestServer {
    pub server: Arc<Server>,
    pub counters: SocketAddr,
    pub semaphores: SocketAddr,
    unix_s: Arc<AtomicU64>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl TestServer {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts a server with a changed configuration. Counters have intervals of 100 s, and the clock shows
    /// 1,000,000,050 s, the middle of one; semaphores are swept every 20 ms.
    pub fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        Self::start_prepared(change, |_| {})
    }

    /// Like [`Self::start_with`], but `prepare` runs before clients can connect.
    pub fn start_prepared(change: impl FnOnce(&mut Config), prepare: impl FnOnce(&Arc<Server>)) -> Self {
        // Two, so that requests of several connections are executed at the same time.
        let workers = Workers::start(2.try_into().unwrap()).unwrap();
        let mut config = Config::default();
        config.counter.stat_interval_s = 100;
        change(&mut config);
        let unix_s = Arc::new(AtomicU64::new(1_000_000_050));
        let clock = {
            let unix_s = Arc::clone(&unix_s);
            Clock::from_fn(move || UnixSeconds(unix_s.load(Ordering::Relaxed)))
        };
        let server = Server::new(&config, clock, NameHasher::new());
        prepare(&server);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let [counters, semaphores] = Namespace::ALL.map(|namespace| {
            let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
            let address = listener.local_addr().unwrap();
            runtime.spawn(serve_port(Arc::clone(&server), namespace, listener, workers.clone()));
            address
        });
        runtime.spawn(expire(Arc::clone(&server)));
        runtime.spawn(sweep_counters(Arc::clone(&server)));
        runtime.spawn(sweep_semaphores(Arc::clone(&server), Duration::from_millis(20)));
        Self { server, counters, semaphores, unix_s, runtime: Some(runtime) }
    }

    pub fn address(&self, namespace: Namespace) -> SocketAddr {
        match namespace {
            Namespace::Counters => self.counters,
            Namespace::Semaphores => self.semaphores,
        }
    }

    pub fn counter(&self) -> Wire {
        Wire::connect(self.counters)
    }

    pub fn semaphore(&self) -> Wire {
        Wire::connect(self.semaphores)
    }

    pub fn set_clock(&self, unix_s: u64) {
        self.unix_s.store(unix_s, Ordering::Relaxed);
    }

    pub fn assert_books_balance(&self) {
        assert_books_balance(&self.server);
    }
}

/// Asserts that the accounting of both namespaces is consistent (invariant 1).
pub fn assert_books_balance(server: &Server) {
    for namespace in Namespace::ALL {
        let mut failures = Vec::new();
        let mut check = server.core().check(namespace);
        while check.step(1000, &mut failures) {}
        assert_eq!(failures, [], "{namespace:?}");
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Counters served within the process, on the runtime and the clock of the test, so that the result does not depend on
/// the speed of the machine.
pub struct NearServer<S = DuplexStream> {
    pub server: Arc<Server>,
    accepted: tokio::sync::mpsc::UnboundedSender<S>,
}

/// Accepts the connections that the test passes in.
struct Handed<S> {
    streams: tokio::sync::mpsc::UnboundedReceiver<S>,
    peer: SocketAddr,
}

impl<S: Send + 'static> Listener for Handed<S> {
    type Stream = S;

    async fn accept(&mut self) -> std::io::Result<(S, SocketAddr)> {
        match self.streams.recv().await {
            Some(stream) => Ok((stream, self.peer)),
            None => std::future::pending().await,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> NearServer<S> {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts a server with a changed configuration. All connections come from 192.0.2.1.
    pub fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let clock = Clock::from_fn(|| UnixSeconds(1_000_000_050));
        let mut config = Config::default();
        change(&mut config);
        let server = Server::new(&config, clock, NameHasher::new());
        let (accepted, streams) = tokio::sync::mpsc::unbounded_channel();
        let peer = SocketAddr::from(([192, 0, 2, 1], 1));
        let listener = Handed { streams, peer };
        tokio::spawn(serve_port(Arc::clone(&server), Namespace::Counters, listener, SameThread));
        Self { server, accepted }
    }

    /// Has the server accept a connection.
    pub fn accept(&self, stream: S) {
        self.accepted.send(stream).unwrap();
    }
}

impl NearServer {
    /// A connection that buffers at most this many bytes in either direction.
    pub fn connect(&self, bytes_max: usize) -> DuplexStream {
        let (near, far) = tokio::io::duplex(bytes_max);
        self.accept(far);
        near
    }
}

/// The servers that tests of plain behaviour run against: one started here, or the ones that the environment names.
pub enum AnyServer {
    Own(TestServer),
    Outside { counters: Option<SocketAddr>, semaphores: Option<SocketAddr> },
}

impl AnyServer {
    pub fn start() -> Self {
        let named = |variable: &str| {
            let value = std::env::var(variable).ok()?;
            let address =
                value.to_socket_addrs().unwrap_or_else(|e| panic!("{variable}={value}: {e}")).next();
            Some(address.unwrap_or_else(|| panic!("{variable}={value} has no address")))
        };
        let counters = named("SIGNALBOX_TEST_SERVER");
        let semaphores = named("SIGNALBOX_TEST_SEMAPHORE_SERVER");
        if counters.is_none() && semaphores.is_none() {
            return Self::Own(TestServer::start());
        }
        Self::Outside { counters, semaphores }
    }

    /// A connection to the namespace; `None`, with a line on standard error, if no outside server is named for it.
    pub fn connect(&self, namespace: Namespace) -> Option<Wire> {
        let address = match (self, namespace) {
            (Self::Own(server), namespace) => Some(server.address(namespace)),
            (Self::Outside { counters, .. }, Namespace::Counters) => *counters,
            (Self::Outside { semaphores, .. }, Namespace::Semaphores) => *semaphores,
        };
        if address.is_none() {
            skipped(&format!("for {namespace:?}, the environment names no server"));
        }
        address.map(Wire::connect)
    }
}

/// A name that no other test and no earlier run uses, because the server may outlive the test.
pub fn unique(name: &str) -> Vec<u8> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    format!("{name}-{}-{now}-{serial}", std::process::id()).into_bytes()
}

/// A response as received.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    pub magic: u8,
    pub opcode: u8,
    pub status: u8,
    pub reserved: u8,
    pub opaque: [u8; 4],
    pub body: Vec<u8>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = &self.body[..self.body.len().min(64)];
        write!(
            f,
            "answer to {:#04x}/{:?}: status {:#04x}, {} bytes \"{}\"",
            self.opcode,
            self.opaque,
            self.status,
            self.body.len(),
            body.escape_ascii()
        )
    }
}

impl Answer {
    pub fn number(&self) -> u32 {
        u32::from_be_bytes(self.body[..].try_into().expect("a body of one number"))
    }
}

/// A connection from a particular address of this machine, such as 127.0.0.2.
pub fn connect_from(source: &str, address: SocketAddr) -> TcpStream {
    let source = SocketAddr::new(source.parse().unwrap(), 0);
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None).unwrap();
    socket.bind(&source.into()).unwrap_or_else(|e| panic!("binding {source}: {e}"));
    socket.connect(&address.into()).unwrap_or_else(|e| panic!("connecting to {address}: {e}"));
    socket.into()
}

/// A connection that sends and receives bytes.
pub struct Wire<S = TcpStream> {
    pub stream: S,
    /// The server's address, for messages.
    server: String,
    serial: u32,
}

impl Wire {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap_or_else(|e| panic!("connecting to {address}: {e}")))
    }

    /// A connection from a particular address of this machine, such as 127.0.0.2.
    pub fn connect_from(source: &str, address: SocketAddr) -> Self {
        Self::over(connect_from(source, address))
    }

    /// Wraps an established connection.
    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let server = stream.peer_addr().map_or_else(|error| error.to_string(), |server| server.to_string());
        Self { server, ..Self::through(stream) }
    }
}

impl<S: Read + Write> Wire<S> {
    /// Wraps a stream of another kind.
    pub fn through(stream: S) -> Self {
        Self { stream, server: "the server".to_owned(), serial: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next response; panics if none arrives.
    pub fn answer(&mut self) -> Answer {
        self.try_answer().unwrap_or_else(|error| panic!("no answer came from {}: {error}", self.server))
    }

    pub fn try_answer(&mut self) -> std::io::Result<Answer> {
        let mut header = [0; 12];
        self.stream.read_exact(&mut header)?;
        let [magic, opcode, status, reserved, l0, l1, l2, l3, o0, o1, o2, o3] = header;
        let mut body = vec![0; u32::from_be_bytes([l0, l1, l2, l3]) as usize];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { magic, opcode, status, reserved, opaque: [o0, o1, o2, o3], body })
    }

    /// Sends one request and returns its answer, which must be well-formed and repeat the opcode and the opaque.
    pub fn ask(&mut self, opcode: u8, body: &[u8]) -> Answer {
        self.serial += 1;
        let opaque = self.serial.to_be_bytes();
        self.send(&frame(opcode, opaque, body));
        let answer = self.answer();
        assert_eq!((answer.magic, answer.reserved), (0x91, 0));
        assert_eq!((answer.opcode, answer.opaque), (opcode, opaque));
        answer
    }

    pub fn get(&mut self, name: &[u8]) -> Answer {
        self.ask(GET, &named(&[], name))
    }

    pub fn acquire(&mut self, name: &[u8], resources: u32, maximum: u32) -> Answer {
        self.ask(ACQUIRE, &named(&[resources, maximum], name))
    }

    pub fn release(&mut self, name: &[u8], resources: u32) -> Answer {
        self.ask(RELEASE, &named(&[resources], name))
    }

    pub fn stats(&mut self) -> Vec<(String, String)> {
        let answer = self.ask(STATS, &[]);
        assert_eq!(answer.status, OK);
        let mut items = Vec::new();
        let mut rest = &answer.body[..];
        while !rest.is_empty() {
            let name_bytes = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
            let value_bytes = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
            let (item, more) = rest[4..].split_at(name_bytes + value_bytes);
            let (name, value) = item.split_at(name_bytes);
            items.push((String::from_utf8(name.into()).unwrap(), String::from_utf8(value.into()).unwrap()));
            rest = more;
        }
        items
    }

    pub fn stat(&mut self, name: &str) -> u64 {
        let items = self.stats();
        let item =
            items.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no item {name}: {items:?}"));
        item.1.parse().unwrap()
    }

    /// All entries of a Dump: consumption, peak and name.
    pub fn dump(&mut self) -> Vec<(u32, u32, Vec<u8>)> {
        let opaque = *b"dump";
        self.send(&frame(DUMP, opaque, &[]));
        let mut entries = Vec::new();
        loop {
            let answer = self.answer();
            assert_eq!((answer.opcode, answer.status, answer.opaque), (DUMP, OK, opaque));
            if answer.body.is_empty() {
                return entries;
            }
            let number = |at: usize| u32::from_be_bytes(answer.body[at..at + 4].try_into().unwrap());
            let name_bytes = usize::from(u16::from_be_bytes([answer.body[8], answer.body[9]]));
            assert_eq!(answer.body.len(), 10 + name_bytes);
            entries.push((number(0), number(4), answer.body[10..].to_vec()));
        }
    }

    /// Consumption and peak of one name in a Dump.
    pub fn dumped(&mut self, name: &[u8]) -> Option<(u32, u32)> {
        self.dump().into_iter().find(|entry| entry.2 == name).map(|entry| (entry.0, entry.1))
    }

    /// Whether the server has closed the connection and no bytes are left to read.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// The bytes of a request.
pub fn frame(opcode: u8, opaque: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x90, opcode, 0, 0];
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&opaque);
    bytes.extend_from_slice(body);
    bytes
}

/// A body with numbers and a name.
pub fn named(numbers: &[u32], name: &[u8]) -> Vec<u8> {
    let mut body: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
    body.extend_from_slice(&u16::try_from(name.len()).unwrap().to_be_bytes());
    body.extend_from_slice(name);
    body
}

/// Reports that a test is skipped, and why. It writes to standard error directly, because the test runner captures the
/// output that a passing test prints with the usual macros.
pub fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "{test} is skipped: {why}");
}

/// Whether every thread of a process is stopped: SIGSTOP may take effect after the call that sends it.
pub fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stats = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap());
    // The state follows the name in parentheses.
    stats.into_iter().all(|stat| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T')))
}

/// Waits until a condition holds; panics if it does not hold in time.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
