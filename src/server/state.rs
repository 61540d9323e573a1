//! The state of a server, and its settings that may change while it runs.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::access::Audit;
use super::client_address::ClientAddress;
use super::clock::Clock;
use super::export::Exports;
use super::history::History;
use super::memory::MemoryBudget;
use super::metrics::{Durations, Stored};
use super::node_view::Whereabouts;
use super::peers::Peers;
use super::port::{Port, port_config};
use super::process::files_max;
use super::rules::Rules;
use super::tls::{FirstBytes, Tls, TlsError};
use super::unfinished::Unfinished;
use crate::config::{Config, TlsConfig, ms};
use signalbox_cluster::keys::Advertised;
use signalbox_cluster::timing::Fence;
use signalbox_core::{
    Claimed, ClientShare, Core, KeyRule, LedgerLimits, Limits, Listed, MemoryLimit, Moment, MonotonicMs,
    NameEntry, NameHasher, SysvLimits,
};
use signalbox_model::sysv::Order;
use signalbox_model::{ConnectionId, HeldEntry, Namespace, TtlLeft};

/// The state that all tasks of a server share.
#[derive(Debug)]
pub struct Server {
    pub(super) core: Core,
    pub(super) clock: Clock,
    pub(super) counters: Port,
    pub(super) semaphores: Port,
    pub(super) peers: Peers,
    pub(super) rules: Rules,
    /// Notified after the rights of clients have changed.
    pub(super) new_rules: watch::Sender<()>,
    /// The log of administrative changes.
    pub(super) audit: Audit,
    pub(super) history: History,
    /// The process's limit on open files: the limit on connections of a port that has no limit of its own.
    pub(super) files_max: usize,
    /// The number of workers whose threads use nearly all of a core.
    pub(super) saturated_workers: AtomicUsize,
    /// The number of connections that have something to do for their peers. A stop waits for these.
    pub(super) busy: AtomicUsize,
    pub(super) closing: AtomicBool,
    /// Whether declared semaphores and leased sessions are stored.
    pub(super) durable: AtomicBool,
    pub(super) stored: Stored,
    /// The names of the semaphores of the configuration that are not declared yet, because clients use these names as
    /// counters.
    pub(super) declared_later: Mutex<Vec<Box<[u8]>>>,
    /// How long requests for grants waited, if they were not answered at once.
    pub(super) waits: Durations,
    pub(super) exports: Exports,
    pub(super) memory: Arc<MemoryBudget>,
    pub(super) unfinished: Arc<Unfinished>,
    pub(super) started: Instant,
    /// The fence past whose deadline nothing is written to a client; `None`: this server is not a node of a cluster.
    pub(super) fence: Option<Fence>,
    /// Where clients reach the cluster; unset if this server is not a node, or does not lead yet.
    pub(super) whereabouts: OnceLock<Whereabouts>,
}

/// Ids of grants begin at the Unix time of the start in milliseconds, shifted by this many bits.
const GRANT_ID_TIME_SHIFT: u32 = 20;

/// Numbers of processes begin at the Unix time of the start in seconds, shifted by this many bits.
const PROCESS_ID_TIME_SHIFT: u32 = 24;

impl Server {
    /// Creates a server without sockets. `hasher` seeds the hash of names.
    pub fn new(config: &Config, clock: Clock, hasher: NameHasher) -> Arc<Self> {
        Self::with_fence(config, clock, hasher, None)
    }

    /// Does the same as [`Server::new`], but nothing is written to a client past the deadline of the fence.
    pub fn with_fence(config: &Config, clock: Clock, hasher: NameHasher, fence: Option<Fence>) -> Arc<Self> {
        let rules = Rules::of(config, None, clock.clone());
        Self::with_rules(config, clock, hasher, fence, rules)
    }

    /// Does the same as [`Server::with_fence`] with the rules of the process, whose configuration may be newer than
    /// `config`.
    pub(super) fn with_rules(
        config: &Config,
        clock: Clock,
        hasher: NameHasher,
        fence: Option<Fence>,
        rules: Rules,
    ) -> Arc<Self> {
        let stat_interval_s = NonZeroU32::new(config.counter.stat_interval_s).unwrap_or(NonZeroU32::MIN);
        let first_set = hasher.hash_one(clock.now().0) as u32;
        let memory = Arc::default();
        let server = Self {
            core: Core::new(stat_interval_s, hasher),
            counters: Port::new(Namespace::Counters),
            semaphores: Port::new(Namespace::Semaphores),
            peers: Peers::default(),
            new_rules: watch::Sender::new(()),
            audit: Audit::default(),
            history: History::default(),
            clock,
            files_max: usize::try_from(files_max()).unwrap_or(usize::MAX),
            saturated_workers: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            durable: AtomicBool::new(false),
            stored: Stored::default(),
            declared_later: Mutex::default(),
            waits: Durations::default(),
            exports: Exports::default(),
            unfinished: Unfinished::new(&memory, &rules.shares),
            memory,
            rules,
            started: Instant::now(),
            fence,
            whereabouts: OnceLock::new(),
        };
        server.apply_limits();
        // Ids of grants increase from one run to the next, unless the clock is set back in between.
        server.core.start_ids_after(server.clock.now().0.saturating_mul(1000 << GRANT_ID_TIME_SHIFT));
        // Ids of sets and processes of an earlier run must not be valid in this one.
        server.core.start_sysv_after(first_set, server.clock.now().0 << PROCESS_ID_TIME_SHIFT);
        Arc::new(server)
    }

    /// Applies the settings that may change while the server runs: limits and timeouts. Connections and names above a
    /// lowered limit stay.
    pub fn apply(&self, config: &Config) {
        self.rules.apply(config);
        self.apply_limits();
    }

    /// Applies the limits of the configuration in force.
    pub(super) fn apply_limits(&self) {
        let config = &*self.config();
        for namespace in Namespace::ALL {
            let names_max = port_config(config, namespace).max_names;
            self.core.set_limits(namespace, Limits { names_max: (names_max > 0).then_some(names_max) });
        }
        self.memory.set_max(config.memory_max);
        let share = self.rules.shares.share();
        self.core.set_ledger_limits(ledger_limits(config, self.memory.limit(), share));
        self.core.set_reconnect_window(ms(config.session.reconnect_window_s));
        self.core.set_sysv_limits(sysv_limits(config, self.memory.limit(), share));
        self.core.set_sysv_rules(key_rules(config));
    }

    /// Reads the files of TLS, for connections from now on. If they cannot be used, those in use stay.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what is wrong with it.
    pub fn load_tls(&self, config: &TlsConfig) -> Result<(), TlsError> {
        self.rules.load_tls(config)
    }

    /// Returns the configuration of TLS; `None`: it is not configured.
    pub(super) fn tls(&self) -> Option<Arc<Tls>> {
        self.rules.tls.get()
    }

    /// Returns how the connection of a client may begin.
    pub(super) fn first_bytes_of(&self, client: ClientAddress) -> FirstBytes {
        if client.is_encrypted_by_relay() {
            return FirstBytes::Tls;
        }
        let tls = self.tls();
        tls.map_or(FirstBytes::Any { may_begin_tls: false }, |tls| tls.first_bytes_of(client))
    }

    /// Returns the core, which has the rules and the state.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the current time by both clocks of the core.
    pub(super) fn moment(&self) -> Moment {
        Moment { monotonic: self.monotonic(), unix: self.clock.now() }
    }

    /// Returns the time since the start.
    pub(super) fn monotonic(&self) -> MonotonicMs {
        MonotonicMs(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the configuration in force.
    pub(super) fn config(&self) -> Arc<Config> {
        self.rules.config.get()
    }

    /// Returns whether the connections of this peer must begin with a proxy's header.
    pub(super) fn is_proxy(&self, peer: ClientAddress) -> bool {
        self.config().is_proxy(peer.socket().ip())
    }

    /// Returns whether this server is a node that leads a cluster.
    pub(super) fn is_node(&self) -> bool {
        self.fence.is_some()
    }

    /// Returns where clients reach the cluster; `None`: this server is not a node of one.
    pub(super) fn whereabouts(&self) -> Option<&Whereabouts> {
        self.whereabouts.get()
    }

    /// Sets where clients reach the cluster, which this server leads. Must be called before it serves clients.
    pub(super) fn set_whereabouts(&self, whereabouts: Whereabouts) {
        let is_first = self.whereabouts.set(whereabouts).is_ok();
        assert!(is_first, "a process leads once");
    }

    /// Sets where clients reach the other nodes.
    pub(super) fn set_other_nodes(&self, others: Advertised) {
        if let Some(whereabouts) = self.whereabouts() {
            whereabouts.others.set(Arc::new(others));
        }
    }

    /// Tells clients that have sent Hello where the other nodes are. One of them will lead, and each relays clients to
    /// it.
    pub(super) fn announce_move_to_others(&self) {
        if let Some(whereabouts) = self.whereabouts() {
            self.announce_move((*whereabouts.others.get()).clone());
        }
    }

    /// Tells clients that have sent Hello where the next leader is, or may be.
    pub(super) fn announce_move(&self, next: Advertised) {
        if let Some(whereabouts) = self.whereabouts()
            && !next.is_empty()
        {
            whereabouts.next.set(Some(Arc::new(next)));
            self.core.announce_move();
        }
    }

    /// Returns whether no further message may be written to a client.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence.as_ref().is_some_and(Fence::is_past)
    }

    pub(super) fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }

    /// Returns the longest time that a started frame may take.
    pub(super) fn frame_timeout(&self) -> Duration {
        Duration::from_secs(self.config().frame_timeout_s.into())
    }

    /// Returns the longest time until a vanished peer is noticed.
    pub(super) fn peer_timeout(&self) -> Duration {
        Duration::from_secs(self.config().peer_timeout_s.into())
    }

    pub(super) fn port(&self, namespace: Namespace) -> &Port {
        match namespace {
            Namespace::Counters => &self.counters,
            Namespace::Semaphores => &self.semaphores,
        }
    }

    /// Returns the most connections of a port; 0: no limit.
    pub(super) fn connections_max(&self, namespace: Namespace) -> u32 {
        port_config(&self.config(), namespace).max_connections
    }

    /// Returns the limit on connections of which clients have shares: that of the port, or else the limit on files of
    /// the process.
    pub(super) fn connections_limit(&self, namespace: Namespace) -> usize {
        match self.connections_max(namespace) {
            0 => self.files_max,
            max => max as usize,
        }
    }

    /// Counts a connection that has become busy, or is no longer busy.
    pub(super) fn count_busy(&self, is_busy: bool) {
        if is_busy {
            self.busy.fetch_add(1, Ordering::Relaxed);
        } else {
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns whether any connection has something to do for its peer.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Stops reading requests. Requests that were read are still answered.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Returns the address of the client of a connection, as lists show it; empty if there is no connection.
    pub(super) fn address_text(&self, connection: Option<ConnectionId>) -> Box<[u8]> {
        let address = connection.and_then(|connection| {
            let peer = self.peers.find(connection).map(|peer| peer.address);
            // A request over HTTP is a connection of the core, and not of a port.
            peer.or_else(|| self.core.client_of(connection).map(|client| client.address))
        });
        address.map(|address| address.to_string()).unwrap_or_default().into_bytes().into()
    }

    /// Adds the client's address to an entry. Returns the entry with the time for which its grant is held without a
    /// renewal.
    pub(super) fn with_address(&self, (mut entry, connection): Listed) -> (NameEntry, TtlLeft) {
        entry.address = self.address_text(connection);
        let held = entry.grant.filter(|_| entry.position == 0);
        let verified = held.and_then(|grant| self.core.verify(grant, self.moment()).ok());
        (entry, verified.map_or(TtlLeft::Connection, |verified| verified.ttl_left))
    }

    /// Does the same as [`Self::with_address`] for what a session holds or waits for.
    pub(super) fn held_entry(&self, claimed: Claimed) -> HeldEntry<Box<[u8]>, Box<[u16]>> {
        let Claimed { namespace, name, is_held, listed } = claimed;
        let (entry, ttl_left) = self.with_address(listed);
        HeldEntry { namespace, name, is_held, ttl_left, entry }
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
