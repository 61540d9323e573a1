//! The real shell on the simulated network: replacements for the server's sockets.
//!
//! Simulated connections never end by themselves: there are no keepalives and no retransmission timeouts. This file
//! does what the kernel does for the daemon (`src/server/listener.rs`): it probes a peer every 5 s, and ends the
//! connection if the peer answered no probe for 35 s or accepted no output for as long. A probe is answered while the
//! link is intact and the client still has the connection open.
//!
//! A server that stops closes its connections in the order of their addresses, because the runtime would drop their
//! tasks in an order that depends on earlier events in the process.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, UNIX_EPOCH};

use signalbox::config::Config;
use signalbox::server::{Listener, SameThread, Server, expire, serve_port, sweep_counters, sweep_semaphores};
use signalbox_client::{Address, ConnectError};
use signalbox_core::{Moment, MonotonicMs, NameHasher};
use signalbox_model::UnixSeconds;
use signalbox_model::{Declaration, Namespace};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, timeout};
use turmoil::Sim;
use turmoil::net::{TcpListener, TcpStream};

use crate::disk::{Written, store};
use crate::scene::{Scene, Shared};

pub const SERVER: &str = "server";
/// Simulated time between two checks.
pub const STEP: Duration = Duration::from_millis(10);

pub const STAT_INTERVAL_S: u32 = 10;

const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PEER_TIMEOUT: Duration = Duration::from_secs(35);
const SEMAPHORE_SWEEP: Duration = Duration::from_millis(200);

/// The host name of a client machine.
pub fn machine_name(machine: usize) -> String {
    format!("machine-{machine}")
}

pub fn port_of(namespace: Namespace) -> u16 {
    match namespace {
        Namespace::Counters => 11215,
        Namespace::Semaphores => 11216,
    }
}

/// A network without hosts, whose messages take between 1 ms and `latency_ms_max`. The seed decides everything random.
pub fn simulation<'a>(seed: u64, latency_ms_max: u64) -> Sim<'a> {
    turmoil::Builder::new()
        .rng_seed(seed)
        .epoch(UNIX_EPOCH)
        .tick_duration(STEP)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(latency_ms_max))
        .tcp_capacity(1024)
        .enable_random_order()
        .build()
}

/// Connects a client of the product.
pub async fn connect(address: &Address, limit: Duration) -> Result<TcpStream, ConnectError> {
    let port = address.port().unwrap_or(signalbox_client::COUNTER_PORT);
    match timeout(limit, TcpStream::connect((address.host(), port))).await {
        Ok(connected) => connected.map_err(|source| {
            let address = SocketAddr::new(turmoil::lookup(address.host()), port);
            ConnectError::Refused { address, source: Arc::new(source) }
        }),
        Err(_) => Err(ConnectError::TimedOut { address: address.to_string(), limit }),
    }
}

/// Runs a server until its machine stops. Its sockets accept at most `write_bytes_max` bytes at a time.
pub async fn serve(scene: Arc<Scene>, hash_seed: u64, write_bytes_max: usize) -> turmoil::Result {
    let mut config = Config::default();
    let machines = scene.state().machines.len();
    config.admin_from = (0..machines).map(|machine| turmoil::lookup(machine_name(machine))).collect();
    config.counter.stat_interval_s = STAT_INTERVAL_S;
    let server = Server::new(&config, scene.clock(), NameHasher::with_seeds(hash_seed, 2, 3, 4));
    if let Some(disk) = &scene.disk {
        let mut storage = disk.memory.open();
        let written = Arc::new(Written::default());
        let restored = server.restore(&mut storage, Waker::from(Arc::clone(&written)));
        restored.map_err(|error| format!("the stored state cannot be restored: {error}"))?;
        declare(&scene.shared[..disk.numbered], &server);
        tokio::spawn(store(Arc::clone(&scene), Arc::clone(&server), storage, written, hash_seed));
    }
    scene.server_started(&server);
    let open: Open = Arc::new(Mutex::new(Some(BTreeMap::new())));
    for namespace in Namespace::ALL {
        let inner = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port_of(namespace))).await?;
        let listener =
            SimulatedListener { inner, scene: Arc::clone(&scene), open: Arc::clone(&open), write_bytes_max };
        tokio::spawn(serve_port(Arc::clone(&server), namespace, listener, SameThread));
    }
    tokio::spawn(expire(Arc::clone(&server)));
    tokio::spawn(sweep_counters(Arc::clone(&server)));
    tokio::spawn(sweep_semaphores(server, SEMAPHORE_SWEEP));
    scene.stop.notified().await;
    for socket in locked(&open).take().into_iter().flatten() {
        *locked(&socket.1) = None;
    }
    // The machine is switched off after this step.
    std::future::pending().await
}

/// Declares the shared semaphores, with numbered slots.
fn declare(shared: &[Shared], server: &Server) {
    let mut declares = Vec::new();
    for Shared { name, capacity } in shared {
        declares.push(Declaration { name, capacity: *capacity, numbered: true, label: b"" });
    }
    let refused = server
        .core()
        .declare_configured(&declares, Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) });
    assert_eq!(refused, []);
}

/// A socket, or `None` once the server has stopped.
type Socket = Arc<Mutex<Option<TcpStream>>>;

/// The sockets of all connections, or `None` once the server has stopped.
type Open = Arc<Mutex<Option<BTreeMap<SocketAddr, Socket>>>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds a socket")
}

struct SimulatedListener {
    inner: TcpListener,
    scene: Arc<Scene>,
    open: Open,
    write_bytes_max: usize,
}

impl Listener for SimulatedListener {
    type Stream = SimulatedStream;

    async fn accept(&mut self) -> io::Result<(SimulatedStream, SocketAddr)> {
        let (inner, peer) = self.inner.accept().await?;
        let socket = Arc::new(Mutex::new(Some(inner)));
        match &mut *locked(&self.open) {
            Some(open) => open.insert(peer, Arc::clone(&socket)),
            None => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        self.scene.accepted(peer);
        let stream = SimulatedStream {
            socket,
            open: Arc::clone(&self.open),
            peer,
            scene: Arc::clone(&self.scene),
            write_bytes_max: self.write_bytes_max,
            probe: Box::pin(tokio::time::sleep(PROBE_INTERVAL)),
            last_seen: Instant::now(),
            stalled: None,
        };
        Ok((stream, peer))
    }
}

/// The server's end of a connection.
struct SimulatedStream {
    socket: Socket,
    open: Open,
    peer: SocketAddr,
    scene: Arc<Scene>,
    write_bytes_max: usize,
    probe: Pin<Box<Sleep>>,
    /// When the peer last showed that it exists.
    last_seen: Instant,
    /// Since when the peer accepts no output.
    stalled: Option<Instant>,
}

impl SimulatedStream {
    /// Calls the socket if the server still has it.
    fn poll_socket<T>(
        &self,
        call: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let mut socket = locked(&self.socket);
        let socket = socket.as_mut().ok_or(io::ErrorKind::ConnectionAborted)?;
        call(Pin::new(socket))
    }

    /// Ready when the peer has vanished.
    fn poll_keepalive(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.probe.as_mut().poll(context));
            let now = Instant::now();
            if self.scene.answers_probe(self.peer) {
                self.last_seen = now;
            }
            let silent_since = self.stalled.map_or(self.last_seen, |stalled| stalled.min(self.last_seen));
            if now.duration_since(silent_since) >= PEER_TIMEOUT {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            self.probe.as_mut().reset(now + PROBE_INTERVAL);
        }
    }
}

impl AsyncRead for SimulatedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match self.poll_socket(|socket| socket.poll_read(context, buffer)) {
            Poll::Ready(read) => read,
            Poll::Pending => Err(ready!(self.poll_keepalive(context))),
        };
        if read.is_ok() && buffer.filled().len() > before {
            self.last_seen = Instant::now();
            self.scene.received();
        } else {
            self.scene.ended(self.peer);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for SimulatedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(self.write_bytes_max)];
        let written = match self.poll_socket(|socket| socket.poll_write(context, bytes)) {
            Poll::Ready(written) => written,
            Poll::Pending => {
                self.stalled.get_or_insert_with(Instant::now);
                Err(ready!(self.poll_keepalive(context)))
            }
        };
        self.stalled = None;
        if written.is_err() {
            self.scene.ended(self.peer);
        }
        Poll::Ready(written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_socket(|socket| socket.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_socket(|socket| socket.poll_shutdown(context))
    }
}

impl Drop for SimulatedStream {
    fn drop(&mut self) {
        if let Some(open) = &mut *locked(&self.open) {
            open.remove(&self.peer);
            self.scene.dropped(self.peer);
        }
    }
}
