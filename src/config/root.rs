//! The whole configuration, with its defaults.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::access::AccessConfig;
use super::cluster::ClusterConfig;
use super::http::HttpConfig;
use super::network::Network;
use super::tls::TlsConfig;
use super::words::words;
use super::workers::WorkerCount;
use signalbox_model::{Declaration, Milliseconds};

/// The most resources of a semaphore with numbered slots: the number of a slot has 16 bits.
pub(super) const SLOTS_MAX: u32 = 65_536;

/// The whole configuration. The default is that without a file, and of an empty file in TOML: both extensions, on loopback only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Addresses to listen on, without duplicates (`bind_ip`). An empty list means every address of the machine.
    pub bind: Vec<IpAddr>,
    /// A further address to listen on, which the machine may not have yet. Ignored if `bind` is empty; use
    /// [`Config::floating_ip`].
    pub virtual_ip: Option<IpAddr>,
    /// Threads that serve connections.
    pub workers: WorkerCount,
    /// The account to switch to after the ports are bound.
    pub user: Option<String>,
    /// The group to switch to after the ports are bound.
    pub group: Option<String>,
    /// How many bytes the process may have allocated before requests that need memory are refused; 0 means no limit.
    /// `None`: half of the memory that the process may use.
    pub memory_max: Option<u64>,
    /// How much of the connections, sessions, waiting requests and watches one client may have once half of them are in use,
    /// in percent of their limits.
    pub client_share: u32,
    /// How many connections a second may be opened and closed again within ten seconds; 0 means any number. Once all clients
    /// together have half of them, each may have its share.
    pub short_connections: u32,
    /// Seconds after which the connection of a vanished peer ends, and what it held is released.
    pub peer_timeout_s: u32,
    /// Seconds within which a started frame must be complete.
    pub frame_timeout_s: u32,
    /// Addresses, besides loopback, whose clients may revoke, and may declare, resize and remove semaphores; without
    /// duplicates.
    pub admin_from: Vec<IpAddr>,
    /// Where proxies are, whose connections must begin with a header of the PROXY protocol; without duplicates.
    pub proxies: Vec<Network>,
    /// TLS on the service ports and on the HTTP listener.
    pub tls: TlsConfig,
    /// The HTTP listener.
    pub http: HttpConfig,
    /// What clients may do.
    pub access: AccessConfig,
    /// The directory for declared semaphores and leased sessions; `None` means that a restart loses them.
    pub data_dir: Option<PathBuf>,
    /// The log.
    pub log: Log,
    /// The counter extension.
    pub counter: Counter,
    /// The semaphore extension.
    pub semaphore: Semaphore,
    /// Leased sessions, grants, waiting and watches.
    pub session: SessionConfig,
    /// Limits of System V semaphore sets.
    pub sysv: SysvConfig,
    /// The cluster that this node is a part of, if any.
    pub cluster: ClusterConfig,
}

/// The log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The least important message that is logged.
    pub threshold: Threshold,
    /// An absolute path; `None` is standard error.
    pub file: Option<PathBuf>,
    /// The file for the history of grants, an absolute path; `None`: there is none.
    pub grants: Option<PathBuf>,
}

/// The least importance of logged messages, by yrmcds' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threshold {
    /// Failures that keep the server from working.
    Error,
    /// Conditions that an administrator should look at.
    Warning,
    /// Events of normal service, a few lines per hour.
    #[default]
    Info,
    /// Events of each connection.
    Debug,
}

/// The counter extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The settings that both extensions have.
    pub port: PortConfig,
    /// The interval of the statistics, in seconds: a counter's peak is the maximum of its consumption in one interval.
    pub stat_interval_s: u32,
}

/// The semaphore extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semaphore {
    /// The settings that both extensions have.
    pub port: PortConfig,
    /// Seconds between two sweeps, which remove semaphores that nothing holds.
    pub gc_interval_s: u32,
    /// Semaphores that the configuration declares, in the order of the file; names are unique.
    pub declare: Vec<DeclareConfig>,
}

/// A semaphore that the configuration declares. Only the configuration can change it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclareConfig {
    /// Its name, of 1 to 65535 bytes.
    pub name: String,
    /// How many resources may be in use; at most 65536 where `slots` is set.
    pub capacity: u32,
    /// Whether its resources are numbered slots.
    pub slots: bool,
    /// A label for people, of at most 255 bytes; may be empty.
    pub label: String,
}

impl DeclareConfig {
    /// The declaration in the form that the server and the client share.
    pub(crate) fn declaration(&self) -> Declaration<'_> {
        let Self { name, capacity, slots, label } = self;
        let (name, label) = (name.as_bytes(), label.as_bytes());
        Declaration { name, capacity: *capacity, numbered: *slots, label }
    }
}

/// One extension's port and the limits on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Whether it is served at all.
    pub enable: bool,
    /// The TCP port, from 1.
    pub port: u16,
    /// The most connections at a time; 0 means no limit.
    pub max_connections: u32,
    /// The most names at a time; 0 means no limit.
    pub max_names: u64,
}

/// Times and limits of the extended operations: leased sessions, grants, waiting requests and watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// The time to live of a leased session whose client does not set one, in seconds.
    pub default_ttl_s: u32,
    /// The shortest time to live, in seconds. A shorter one is raised to it.
    pub min_ttl_s: u32,
    /// The longest time to live, in seconds. A longer one is lowered to it.
    pub max_ttl_s: u32,
    /// How long a request waits if its client does not say, in seconds.
    pub default_wait_s: u32,
    /// The longest wait of a request, in seconds. A longer one is lowered to it.
    pub max_wait_s: u32,
    /// The longest time after a start for which names with repeated requests wait for sessions that are not back, in
    /// seconds; 0: none.
    pub reconnect_window_s: u32,
    /// The most leased sessions at a time.
    pub max_sessions: u32,
    /// The most grants and waiting requests of one session.
    pub max_grants: u32,
    /// The most requests that wait in the queue of one name, and the most that wait until it is idle.
    pub max_waiters: u32,
    /// The most watches at a time.
    pub max_watches: u32,
}

/// Limits of System V semaphore sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysvConfig {
    /// The most sets at a time.
    pub max_sets: u32,
    /// The most semaphores of all sets together.
    pub max_semaphores: u64,
    /// The keys of sets whose waiting calls are performed in the order of their arrival. Sets without a key have 0.
    pub fifo_keys: Vec<RangeInclusive<u32>>,
    /// The keys of sets that survive a restart, with what processes have of them. Sets without a key have 0.
    pub durable_keys: Vec<RangeInclusive<u32>>,
}

impl Config {
    /// The defaults of yrmcds, which are those of a yrmcds.conf: every address, no extension, and one port for both.
    pub(super) fn of_yrmcds() -> Self {
        // yrmcds listens on a virtual address too, which is used beside others only.
        let virtual_ip = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let mut config = Self { bind: Vec::new(), virtual_ip, ..Self::default() };
        for port in [&mut config.counter.port, &mut config.semaphore.port] {
            (port.enable, port.port) = (false, 11215);
        }
        config
    }

    /// Whether the connections of this peer have to begin with a proxy's header.
    pub(crate) fn is_proxy(&self, peer: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(peer))
    }

    /// Whether declared semaphores and leased sessions survive the process.
    pub fn has_store(&self) -> bool {
        self.data_dir.is_some() || self.cluster.is_enabled()
    }

    /// The address to bind although the machine may not have it. `None` if it is bound anyway.
    pub fn floating_ip(&self) -> Option<IpAddr> {
        let is_beside =
            |ip: &IpAddr| !self.bind.is_empty() && !self.bind.contains(ip) && !is_covered(*ip, &self.bind);
        self.virtual_ip.filter(is_beside)
    }

    /// The hosts at which clients on other machines reach this node; empty: that is not known.
    pub fn advertised(&self) -> Vec<String> {
        let is_usable = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified();
        if !self.cluster.advertise.is_empty() {
            return self.cluster.advertise.clone();
        }
        let is_everywhere = self.bind.is_empty() || self.bind.iter().any(IpAddr::is_unspecified);
        let own: Vec<IpAddr> = match self.cluster.bind.filter(|_| is_everywhere) {
            Some(relays) => vec![relays.ip()],
            None => self.bind.clone(),
        };
        own.into_iter().filter(is_usable).map(|ip| ip.to_string()).collect()
    }
}

/// Whether a wildcard among addresses includes this one, so that binding both fails: `0.0.0.0` includes IPv4, `::` both families.
pub(crate) fn is_covered(address: IpAddr, bind: &[IpAddr]) -> bool {
    let covers = |other: &IpAddr| {
        other.is_unspecified() && *other != address && (other.is_ipv6() || address.is_ipv4())
    };
    bind.iter().any(covers)
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            virtual_ip: None,
            workers: WorkerCount::default(),
            user: None,
            group: None,
            memory_max: None,
            client_share: 12,
            short_connections: 10_000,
            peer_timeout_s: 35,
            frame_timeout_s: 10,
            admin_from: Vec::new(),
            proxies: Vec::new(),
            tls: TlsConfig::default(),
            http: HttpConfig::default(),
            access: AccessConfig::default(),
            data_dir: None,
            log: Log::default(),
            counter: Counter { port: PortConfig::at(11215), stat_interval_s: 86_400 },
            semaphore: Semaphore { port: PortConfig::at(11216), gc_interval_s: 10, declare: Vec::new() },
            session: SessionConfig::default(),
            sysv: SysvConfig::default(),
            cluster: ClusterConfig::default(),
        }
    }
}

impl PortConfig {
    /// Served at this port, without limits.
    fn at(port: u16) -> Self {
        Self { enable: true, port, max_connections: 0, max_names: 0 }
    }
}

impl SessionConfig {
    /// The time to live of a session or a process, in milliseconds. `wanted`: what its client asks for, if it says.
    pub(crate) fn ttl_ms(&self, wanted: Option<Milliseconds>) -> u32 {
        let [default, min, max] = [self.default_ttl_s, self.min_ttl_s, self.max_ttl_s].map(ms);
        wanted.map_or(default, |wanted| wanted.0).clamp(min, max)
    }

    /// How long a request waits at most, in milliseconds. `wanted`: what its client asks for, if it says.
    pub(crate) fn wait_ms(&self, wanted: Option<Milliseconds>) -> u32 {
        wanted.map_or(ms(self.default_wait_s), |wanted| wanted.0.min(ms(self.max_wait_s)))
    }
}

/// So many seconds in milliseconds.
pub(crate) fn ms(seconds: u32) -> u32 {
    seconds.saturating_mul(1000)
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            default_ttl_s: 30,
            min_ttl_s: 1,
            max_ttl_s: 3_600,
            default_wait_s: 60,
            max_wait_s: 24 * 3_600,
            reconnect_window_s: 5,
            max_sessions: 100_000,
            max_grants: 10_000,
            max_waiters: 100_000,
            max_watches: 1_000,
        }
    }
}

impl Default for SysvConfig {
    fn default() -> Self {
        Self { max_sets: 32_000, max_semaphores: 1_000_000, fifo_keys: Vec::new(), durable_keys: Vec::new() }
    }
}

words!(Threshold, UnknownThreshold: Error "error", Warning "warning", Info "info", Debug "debug");

/// The text is not the name of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be error, warning, info or debug")]
pub struct UnknownThreshold;
