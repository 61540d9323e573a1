//! The shell around the core: all sockets, clocks and tasks.
//!
//! [`Server`] is the state that the tasks share. `listener` accepts connections within the limit of `admission`, `workers`
//! gives each a thread, `connection` reads and writes, and `dispatch` turns a frame into a call of the core and its answer
//! into a frame. `expiry` and `gc` are the background tasks, `store` writes to disk, and `daemon` puts all of it together
//! with the configuration, privileges and signals.
//!
//! The shell is generic over stream and listener, and gets its clock and its hash seed from outside, so that a simulated
//! network and clock run the same code as real ones.

mod access;
mod admission;
mod buffers;
mod client_address;
mod clock;
mod connection;
mod daemon;
mod dispatch;
mod ending;
mod expiry;
mod export;
mod gc;
mod http;
mod listener;
mod log;
mod memory;
mod metrics;
mod new_rules;
mod node_view;
mod peers;
mod privileges;
mod rate;
mod refusal_log;
mod relay;
mod resting_listener;
mod shares;
mod socket;
mod statistics;
pub mod steps;
mod store;
mod systemd;
mod throttle;
mod tls;
mod whereabouts;
mod workers;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

pub use admission::Admission;
pub use clock::Clock;
pub use daemon::{DaemonError, Options, run};
pub use expiry::expire;
pub use gc::{sweep_counters, sweep_for_memory, sweep_semaphores};
pub use listener::{Listener, serve_port};
pub use log::{Format as LogFormat, Log, LogError, Settings as LogSettings};
pub use new_rules::announce_rules;
pub use relay::{Incoming, Outgoing, RelayAuthority, RelayNetwork, Trust, relay_port, serve_relays};
pub use store::{RestoreError, StoreError};
pub use workers::{SameThread, Spawn, Workers};

use nix::sys::resource::{Resource, getrlimit};
use tokio::time::Instant;

use crate::config::{Config, Network, PortConfig, TlsConfig};
use access::{Access, Audit};
pub use client_address::ClientAddress;
use export::Exports;
use memory::MemoryBudget;
use metrics::{Durations, Metrics, Stored};
use peers::Peers;
use shares::Shares;
pub use signalbox_access::TokenFileError;
use signalbox_cluster::fence::Fence;
use signalbox_cluster::keys::Advertised;
use signalbox_core::{
    ClientShare, Core, KeyRule, LedgerLimits, Limits, MemoryLimit, Moment, MonotonicMs, NameHasher,
    Namespace, Order, SysvLimits,
};
use statistics::Conflicts;
use throttle::Throttle;
pub use tls::TlsError;
use tls::{FirstBytes, ReloadableTls, Tls};
use whereabouts::Whereabouts;

/// The state that all tasks of a server share.
#[derive(Debug)]
pub struct Server {
    core: Core,
    clock: Clock,
    counters: Port,
    semaphores: Port,
    peers: Peers,
    /// In an `Arc`, so that a request reads it without copying the list.
    session_limits: RwLock<Arc<SessionLimits>>,
    tls: Arc<ReloadableTls>,
    /// What clients may do.
    access: Arc<Access>,
    /// The log of administrative changes.
    audit: Audit,
    /// The limit on connections where a port has no limit of its own.
    files_max: usize,
    frame_timeout_s: AtomicU32,
    peer_timeout_s: AtomicU32,
    /// Workers whose threads use nearly all of a core.
    saturated_workers: AtomicUsize,
    /// Connections that have something to do for their peers. A stop waits for them.
    busy: AtomicUsize,
    closing: AtomicBool,
    /// Whether declared semaphores and leased sessions are stored.
    durable: AtomicBool,
    stored: Stored,
    /// How long requests for grants waited that were not answered at once.
    waits: Durations,
    exports: Exports,
    memory: MemoryBudget,
    shares: Arc<Shares>,
    started: Instant,
    /// Nothing is written to a client past its deadline; `None`: this server is not a node of a cluster.
    fence: Option<Fence>,
    /// Where clients reach the cluster; unset where this server is not a node, or does not lead yet.
    whereabouts: OnceLock<Whereabouts>,
}

/// How clients may connect, what they may do, and their shares: one of each for the process, before it has a server and while
/// it has one.
#[derive(Clone, Debug)]
struct Rules {
    access: Arc<Access>,
    tls: Arc<ReloadableTls>,
    shares: Arc<Shares>,
}

impl Rules {
    /// Those of a configuration, without tokens.
    fn of(config: &Config, tls: Option<Arc<Tls>>, clock: Clock) -> Self {
        let shares = Arc::<Shares>::default();
        shares.configure(config);
        Self { access: Arc::new(Access::of(config, clock)), tls: Arc::new(ReloadableTls::new(tls)), shares }
    }
}

/// Ids of grants begin at the Unix time of the start in milliseconds, shifted by this many bits.
const GRANT_ID_TIME_SHIFT: u32 = 20;

/// Numbers of processes begin at the Unix time of the start in seconds, shifted by this many bits.
const PROCESS_ID_TIME_SHIFT: u32 = 24;

/// Limits of the extended operations, also those that Hello divides into shares, and the addresses of proxies. Times are in milliseconds.
#[derive(Debug, Default)]
struct SessionLimits {
    default_ttl_ms: u32,
    min_ttl_ms: u32,
    max_ttl_ms: u32,
    default_wait_ms: u32,
    max_wait_ms: u32,
    sessions_max: u32,
    waiters_max: u32,
    watches_max: u32,
    /// Where proxies are, whose connections begin with a header.
    proxies: Vec<Network>,
}

/// One port: the namespace of its plain requests, its limits and its figures.
#[derive(Debug)]
struct Port {
    namespace: Namespace,
    /// Most connections at a time; 0 means no limit.
    connections_max: AtomicU32,
    /// Most names at a time; 0 means no limit. This one is for the statistics; the core enforces the limit.
    names_max: AtomicU64,
    conflicts: Conflicts,
    metrics: Metrics,
    warnings: Warnings,
}

/// Warnings whose rate is limited.
#[derive(Debug, Default)]
struct Warnings {
    bad_input: Throttle,
    refused_connection: Throttle,
    refused_name: Throttle,
    failed_handshake: Throttle,
    refused_plain: Throttle,
    failed_accept: Throttle,
}

impl Server {
    /// Creates a server without sockets. `hasher` seeds the hash of names.
    pub fn new(config: &Config, clock: Clock, hasher: NameHasher) -> Arc<Self> {
        Self::with_fence(config, clock, hasher, None)
    }

    /// As [`Server::new`]; nothing is written to a client past the deadline of the fence.
    pub fn with_fence(config: &Config, clock: Clock, hasher: NameHasher, fence: Option<Fence>) -> Arc<Self> {
        let rules = Rules::of(config, None, clock.clone());
        Self::with_rules(config, clock, hasher, fence, rules)
    }

    /// As [`Server::with_fence`], with the rules of the process.
    fn with_rules(
        config: &Config,
        clock: Clock,
        hasher: NameHasher,
        fence: Option<Fence>,
        Rules { access, tls, shares }: Rules,
    ) -> Arc<Self> {
        let stat_interval_s = NonZeroU32::new(config.counter.stat_interval_s).unwrap_or(NonZeroU32::MIN);
        let first_set = hasher.hash_one(clock.now().0) as u32;
        let server = Self {
            core: Core::new(stat_interval_s, hasher),
            counters: Port::new(Namespace::Counters),
            semaphores: Port::new(Namespace::Semaphores),
            peers: Peers::default(),
            session_limits: RwLock::default(),
            tls,
            access,
            audit: Audit::default(),
            clock,
            files_max: usize::try_from(files_max()).unwrap_or(usize::MAX),
            frame_timeout_s: AtomicU32::new(0),
            peer_timeout_s: AtomicU32::new(0),
            saturated_workers: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            durable: AtomicBool::new(false),
            stored: Stored::default(),
            waits: Durations::default(),
            exports: Exports::default(),
            memory: MemoryBudget::default(),
            shares,
            started: Instant::now(),
            fence,
            whereabouts: OnceLock::new(),
        };
        server.apply(config);
        // Ids of grants increase from one run to the next, unless the clock is set back in between.
        server.core.start_ids_after(server.clock.now().0.saturating_mul(1000 << GRANT_ID_TIME_SHIFT));
        // Ids of sets and processes of an earlier run mean nothing.
        server.core.start_sysv_after(first_set, server.clock.now().0 << PROCESS_ID_TIME_SHIFT);
        Arc::new(server)
    }

    /// Applies the settings that may change while the server runs: limits and timeouts. Connections and names above a
    /// lowered limit stay.
    pub fn apply(&self, config: &Config) {
        self.counters.apply(&config.counter.port, &self.core);
        self.semaphores.apply(&config.semaphore.port, &self.core);
        let session_limits = Arc::new(SessionLimits::of(config));
        *self.session_limits.write().unwrap_or_else(PoisonError::into_inner) = session_limits;
        self.access.configure(config);
        self.memory.set_max(config.memory_max);
        self.shares.configure(config);
        let share = self.shares.share();
        self.core.set_ledger_limits(ledger_limits(config, self.memory.limit(), share));
        self.core.set_reconnect_window(config.session.reconnect_window_s.saturating_mul(1000));
        self.core.set_sysv_limits(sysv_limits(config, self.memory.limit(), share));
        self.core.set_sysv_rules(key_rules(config));
        self.frame_timeout_s.store(config.frame_timeout_s, Ordering::Relaxed);
        self.peer_timeout_s.store(config.peer_timeout_s, Ordering::Relaxed);
    }

    /// Reads the files of TLS, for connections from now on. If they cannot be used, those before stay in use.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what is wrong with it.
    pub fn load_tls(&self, config: &TlsConfig) -> Result<(), TlsError> {
        self.tls.load(config, self.clock.now())
    }

    /// What TLS needs; `None`: it is not configured.
    fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.current()
    }

    /// How the connection of a client may begin.
    fn first_bytes_of(&self, client: ClientAddress) -> FirstBytes {
        if client.is_encrypted_by_relay() {
            return FirstBytes::Tls;
        }
        let tls = self.tls();
        tls.map_or(FirstBytes::Any { may_begin_tls: false }, |tls| tls.first_bytes_of(client))
    }

    /// The rules and the state.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The current time by both clocks of the core.
    fn moment(&self) -> Moment {
        Moment { monotonic: self.monotonic(), unix: self.clock.now() }
    }

    /// The time since the start.
    fn monotonic(&self) -> MonotonicMs {
        MonotonicMs(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn session_limits(&self) -> Arc<SessionLimits> {
        Arc::clone(&self.session_limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the connections of this peer have to begin with a proxy's header.
    fn is_proxy(&self, peer: ClientAddress) -> bool {
        self.session_limits().proxies.iter().any(|network| network.contains(peer.socket().ip()))
    }

    /// Whether this is a node of a cluster, which leads it.
    fn is_node(&self) -> bool {
        self.fence.is_some()
    }

    /// Where clients reach the cluster; `None`: this server is not a node of one.
    fn whereabouts(&self) -> Option<&Whereabouts> {
        self.whereabouts.get()
    }

    /// This server leads its cluster. To be called before it serves clients.
    fn set_whereabouts(&self, whereabouts: Whereabouts) {
        let is_first = self.whereabouts.set(whereabouts).is_ok();
        assert!(is_first, "a process leads once");
    }

    /// Where clients reach the other nodes.
    fn set_other_nodes(&self, others: Advertised) {
        if let Some(whereabouts) = self.whereabouts() {
            whereabouts.set_others(others);
        }
    }

    /// Tells clients that said Hello that another node will lead, each of which relays them to that one.
    fn announce_move_to_others(&self) {
        if let Some(whereabouts) = self.whereabouts() {
            self.announce_move((*whereabouts.others()).clone());
        }
    }

    /// Tells clients that said Hello where the next leader is, or may be.
    fn announce_move(&self, next: Advertised) {
        if let Some(whereabouts) = self.whereabouts()
            && !next.is_empty()
        {
            whereabouts.set_next(next);
            self.core.announce_move();
        }
    }

    /// Whether nothing may be written to a client any more.
    fn is_fenced(&self) -> bool {
        self.fence.as_ref().is_some_and(Fence::is_past)
    }

    fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }

    /// The longest time that a started frame may take.
    fn frame_timeout(&self) -> Duration {
        Duration::from_secs(self.frame_timeout_s.load(Ordering::Relaxed).into())
    }

    /// The longest time until a vanished peer is noticed.
    fn peer_timeout(&self) -> Duration {
        Duration::from_secs(self.peer_timeout_s.load(Ordering::Relaxed).into())
    }

    fn port(&self, namespace: Namespace) -> &Port {
        match namespace {
            Namespace::Counters => &self.counters,
            Namespace::Semaphores => &self.semaphores,
        }
    }

    /// The limit on connections in which clients have shares: that of the port, or else the files of the process.
    fn connections_limit(&self, port: &Port) -> usize {
        match port.connections_max.load(Ordering::Relaxed) {
            0 => self.files_max,
            max => max as usize,
        }
    }

    /// Counts a connection that has become busy, or is busy no more.
    fn count_busy(&self, is_busy: bool) {
        if is_busy {
            self.busy.fetch_add(1, Ordering::Relaxed);
        } else {
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether a connection has something to do for its peer.
    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Stops reading requests. Requests that were read are still answered.
    fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

impl SessionLimits {
    fn of(config: &Config) -> Self {
        let session = &config.session;
        let ms = |seconds: u32| seconds.saturating_mul(1000);
        Self {
            default_ttl_ms: ms(session.default_ttl_s),
            min_ttl_ms: ms(session.min_ttl_s),
            max_ttl_ms: ms(session.max_ttl_s),
            default_wait_ms: ms(session.default_wait_s),
            max_wait_ms: ms(session.max_wait_s),
            sessions_max: session.max_sessions,
            waiters_max: session.max_waiters,
            watches_max: session.max_watches,
            proxies: config.proxies.clone(),
        }
    }
}

fn ledger_limits(config: &Config, memory: MemoryLimit, client_share: ClientShare) -> LedgerLimits {
    let session = &config.session;
    LedgerLimits {
        sessions_max: session.max_sessions as usize,
        grants_max: session.max_grants as usize,
        waiters_max: session.max_waiters as usize,
        watches_max: session.max_watches as usize,
        memory,
        client_share,
    }
}

fn key_rules(config: &Config) -> Vec<KeyRule> {
    let fifo = config.sysv.fifo_keys.iter().map(|keys| KeyRule {
        keys: keys.clone(),
        order: Some(Order::Fifo),
        is_durable: false,
    });
    let durable = config.sysv.durable_keys.iter().map(|keys| KeyRule {
        keys: keys.clone(),
        order: None,
        is_durable: true,
    });
    fifo.chain(durable).collect()
}

fn sysv_limits(config: &Config, memory: MemoryLimit, client_share: ClientShare) -> SysvLimits {
    let session = &config.session;
    SysvLimits {
        processes_max: session.max_sessions as usize,
        sets_max: config.sysv.max_sets as usize,
        semaphores_max: config.sysv.max_semaphores,
        waiters_max: session.max_waiters as usize,
        memory,
        client_share,
    }
}

/// How many files the process may have open.
fn files_max() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

impl Port {
    fn new(namespace: Namespace) -> Self {
        Self {
            namespace,
            connections_max: AtomicU32::new(0),
            names_max: AtomicU64::new(0),
            conflicts: Conflicts::default(),
            metrics: Metrics::default(),
            warnings: Warnings::default(),
        }
    }

    fn apply(&self, config: &PortConfig, core: &Core) {
        self.connections_max.store(config.max_connections, Ordering::Relaxed);
        self.names_max.store(config.max_names, Ordering::Relaxed);
        core.set_limits(
            self.namespace,
            Limits { names_max: (config.max_names > 0).then_some(config.max_names) },
        );
    }
}

/// The section of the configuration for a namespace.
fn port_config(config: &Config, namespace: Namespace) -> &PortConfig {
    match namespace {
        Namespace::Counters => &config.counter.port,
        Namespace::Semaphores => &config.semaphore.port,
    }
}

/// The word for a namespace in logs, requests, answers and metrics: that of its section of the configuration.
fn port_name(namespace: Namespace) -> &'static str {
    match namespace {
        Namespace::Counters => "counter",
        Namespace::Semaphores => "semaphore",
    }
}
