//! The whole configuration and its sections, with their defaults.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::ValueEnum;

use super::rules::{AccessConfig, Network};
use signalbox_model::{Declaration, Milliseconds};

/// The whole configuration. The default applies without a file, and with an empty file in TOML: both extensions, on
/// loopback only.
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
    /// The most bytes that the process may have allocated before requests that need memory are refused; 0 means no limit.
    /// `None` means half of the memory that the process may use.
    pub memory_max: Option<u64>,
    /// The part of the connections, sessions, waiting requests and watches that one client may have once half of them are in
    /// use, in percent of their limits.
    pub client_share: u32,
    /// The most connections per second that may be opened and closed again within ten seconds; 0 means any number. Once
    /// all clients together have used half of them, each is limited to its share.
    pub short_connections: u32,
    /// Seconds after which the connection of a vanished peer ends, and what it held is released.
    pub peer_timeout_s: u32,
    /// Seconds within which a started frame must be complete.
    pub frame_timeout_s: u32,
    /// Addresses, besides loopback, whose clients may revoke, and may declare, resize and remove semaphores; without
    /// duplicates.
    pub admin_from: Vec<IpAddr>,
    /// Networks of proxies, whose connections must begin with a header of the PROXY protocol; without duplicates.
    pub proxies: Vec<Network>,
    /// TLS on the service ports and on the HTTP listener.
    pub tls: TlsConfig,
    /// The HTTP listener.
    pub http: HttpConfig,
    /// The rights of clients.
    pub access: AccessConfig,
    /// The directory for declared semaphores and leased sessions; `None` means that a restart loses them, except in a
    /// cluster.
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
    /// The lowest severity that is logged.
    pub threshold: Threshold,
    /// The file of the log, an absolute path; `None` means standard error.
    pub file: Option<PathBuf>,
    /// The file for the history of grants, an absolute path; `None` if no history is kept.
    pub grants: Option<PathBuf>,
}

/// The lowest severity of logged messages, with yrmcds' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
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
    /// Its capacity; at most 65536 where `slots` is set.
    pub capacity: u32,
    /// Whether its resources are numbered slots.
    pub slots: bool,
    /// A label for people, of at most 255 bytes; may be empty.
    pub label: String,
}

impl DeclareConfig {
    /// Returns the declaration in the form that the server and the client share.
    pub(crate) fn declaration(&self) -> Declaration<'_> {
        let Self { name, capacity, slots, label } = self;
        let (name, label) = (name.as_bytes(), label.as_bytes());
        Declaration { name, capacity: *capacity, numbered: *slots, label }
    }
}

/// One extension's port and the limits on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Whether the extension is served.
    pub enable: bool,
    /// The TCP port, from 1.
    pub port: u16,
    /// The maximum number of connections at a time; 0 means no limit.
    pub max_connections: u32,
    /// The maximum number of names at a time; 0 means no limit.
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
    /// The longest wait of a request whose client does not set one, in seconds.
    pub default_wait_s: u32,
    /// The longest wait of a request, in seconds. A longer one is lowered to it.
    pub max_wait_s: u32,
    /// The longest time after a start for which names with repeated requests wait for sessions that have not come back,
    /// in seconds; 0 means none.
    pub reconnect_window_s: u32,
    /// The maximum number of leased sessions at a time.
    pub max_sessions: u32,
    /// The maximum number of grants and waiting requests of one session.
    pub max_grants: u32,
    /// The maximum number of requests that wait in the queue of one name, and of those that wait until it is idle.
    pub max_waiters: u32,
    /// The maximum number of watches at a time.
    pub max_watches: u32,
}

/// Limits of System V semaphore sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysvConfig {
    /// The maximum number of sets at a time.
    pub max_sets: u32,
    /// The maximum number of semaphores of all sets together.
    pub max_semaphores: u64,
    /// The keys of sets whose waiting calls are performed in the order of their arrival; the key 0 means sets without a key.
    pub fifo_keys: Vec<RangeInclusive<u32>>,
    /// The keys of sets that survive a restart, with the adjustments of processes; the key 0 means sets without a key.
    pub durable_keys: Vec<RangeInclusive<u32>>,
}

impl Config {
    /// Returns the defaults for a yrmcds.conf, which are those of yrmcds: every address, no extension, and one port for
    /// both.
    pub(super) fn of_yrmcds() -> Self {
        // yrmcds also listens on a virtual address, which is used only in addition to others.
        let virtual_ip = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let mut config = Self { bind: Vec::new(), virtual_ip, ..Self::default() };
        for port in [&mut config.counter.port, &mut config.semaphore.port] {
            (port.enable, port.port) = (false, 11215);
        }
        config
    }

    /// Returns whether the connections of this peer must begin with a proxy's header.
    pub(crate) fn is_proxy(&self, peer: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(peer))
    }

    /// Returns whether declared semaphores and leased sessions survive the process.
    pub fn has_store(&self) -> bool {
        self.data_dir.is_some() || self.cluster.is_enabled()
    }

    /// Returns the address to bind even if the machine does not have it yet. `None` if there is none, or if `bind`
    /// includes it.
    pub fn floating_ip(&self) -> Option<IpAddr> {
        let is_additional =
            |ip: &IpAddr| !self.bind.is_empty() && !self.bind.contains(ip) && !is_covered(*ip, &self.bind);
        self.virtual_ip.filter(is_additional)
    }

    /// Returns the hosts at which clients on other machines reach this node; empty if they are not known.
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

/// Returns whether a wildcard among addresses includes this one, so that binding both fails: `0.0.0.0` includes IPv4,
/// `::` both families.
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
    /// Returns the settings of an extension that is served at this port, without limits.
    fn at(port: u16) -> Self {
        Self { enable: true, port, max_connections: 0, max_names: 0 }
    }
}

impl SessionConfig {
    /// Returns the time to live of a session or a process, in milliseconds. `wanted` is what its client requests, if
    /// anything.
    pub(crate) fn ttl_ms(&self, wanted: Option<Milliseconds>) -> u32 {
        let [default, min, max] = [self.default_ttl_s, self.min_ttl_s, self.max_ttl_s].map(ms);
        wanted.map_or(default, |wanted| wanted.0).clamp(min, max)
    }

    /// Returns how long a request waits at most, in milliseconds. `wanted` is what its client requests, if anything.
    pub(crate) fn wait_ms(&self, wanted: Option<Milliseconds>) -> u32 {
        wanted.map_or(ms(self.default_wait_s), |wanted| wanted.0.min(ms(self.max_wait_s)))
    }
}

/// Converts seconds to milliseconds, at most [`u32::MAX`].
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

/// TLS on the service ports and on the HTTP listener. Without a certificate, it is disabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate of the server, followed by the intermediate certificates, in PEM.
    pub cert: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    pub key: Option<PathBuf>,
    /// The certificates of the authorities that sign those of clients, in PEM; `None` if clients are not asked for
    /// certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients over TLS need a certificate.
    pub client_cert: ClientCert,
    /// The clients that may connect without TLS.
    pub plain: PlainRule,
}

/// The rule about certificates of clients over TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ClientCert {
    /// A client that presents one is verified; a client without one is served too.
    #[default]
    Optional,
    /// A client without one is refused.
    Required,
}

/// The clients that may connect without TLS, where TLS is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PlainRule {
    /// All clients.
    #[default]
    Allow,
    /// Clients on the server's machine.
    Loopback,
    /// No clients.
    Refuse,
}

/// The HTTP listener: metrics, health and the JSON API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Whether the listener is enabled.
    pub enable: bool,
    /// Addresses to listen on, without duplicates. An empty list means every address of the machine.
    pub bind: Vec<IpAddr>,
    /// The TCP port, from 1.
    pub port: u16,
    /// The hosts that requests may name, besides loopback and the addresses of the machine; in lower case, without
    /// duplicates.
    pub hosts: Vec<String>,
    /// Names that begin with one of these have metrics of their own, like declared semaphores.
    pub names: Vec<String>,
    /// The maximum number of names that have metrics of their own.
    pub names_max: u32,
    /// The maximum number of connections at a time whose last request was for a lease, and may wait.
    pub lease_connections_max: u32,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            enable: false,
            bind: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            port: 11217,
            hosts: Vec::new(),
            names: Vec::new(),
            names_max: 1000,
            lease_connections_max: 10_000,
        }
    }
}

/// The section about the cluster of this node. Without members of etcd, the server is not in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The name of the cluster, which is a part of its keys in etcd.
    pub name: String,
    /// The name of this node, unique in the cluster; `None` means the name of the machine.
    pub node: Option<String>,
    /// The URLs of the members of etcd, without duplicates.
    pub etcd: Vec<String>,
    /// The certificates of the authorities that have signed those of etcd's members, in PEM. Members with `https` need it.
    pub etcd_ca: Option<PathBuf>,
    /// The certificate with which this node connects to etcd, in PEM.
    pub etcd_cert: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    pub etcd_key: Option<PathBuf>,
    /// The name of the user as which this node connects to etcd.
    pub etcd_user: Option<String>,
    /// The file whose first line is the password of that user.
    pub etcd_password_file: Option<PathBuf>,
    /// Seconds for which a leader serves after its last successful renewal. It is the same on all nodes.
    pub renew_deadline_s: u32,
    /// The address at which this node, when it leads, accepts the connections that other nodes relay. Without it, no
    /// connections are relayed to this node, and this node relays connections only if it may not lead.
    pub bind: Option<SocketAddr>,
    /// The hosts at which clients reach this node: names or IP addresses, without ports and duplicates. If it is empty,
    /// clients use the addresses of `bind_ip`, or the address of `bind` if `bind_ip` means every address.
    pub advertise: Vec<String>,
    /// The certificates of the authorities that have signed those of the nodes, in PEM. If it is set, the
    /// connections of clients without TLS are relayed over TLS.
    pub relay_ca: Option<PathBuf>,
    /// Whether this node may lead.
    pub is_eligible: bool,
    /// Seconds for which a relayed client, or a forwarded HTTP request, waits for a leader.
    pub hold_s: u32,
}

impl ClusterConfig {
    /// Returns whether the node takes part in a cluster.
    pub fn is_enabled(&self) -> bool {
        !self.etcd.is_empty()
    }

    /// Returns whether the node relays clients to the leader while it does not lead.
    pub fn relays(&self) -> bool {
        self.is_enabled() && (self.bind.is_some() || !self.is_eligible)
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            name: "main".to_owned(),
            node: None,
            etcd: Vec::new(),
            etcd_ca: None,
            etcd_cert: None,
            etcd_key: None,
            etcd_user: None,
            etcd_password_file: None,
            renew_deadline_s: 3,
            bind: None,
            advertise: Vec::new(),
            relay_ca: None,
            is_eligible: true,
            hold_s: 5,
        }
    }
}

/// The number of threads that serve connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerCount {
    /// Half of the cores, at least 1 and at most 4: clients on the same machine need cores too, and one thread answers
    /// some hundred thousand requests a second.
    #[default]
    HalfOfTheCores,
    /// As many, but at most this number: `workers` of a yrmcds.conf, which is 10 in the stock file because yrmcds' workers
    /// wait for their clients.
    AtMost(NonZeroUsize),
    /// This number.
    Exactly(NonZeroUsize),
}

impl WorkerCount {
    /// Returns the number of threads on a machine with this many cores.
    pub fn threads(self, cores: usize) -> NonZeroUsize {
        let half = NonZeroUsize::new((cores / 2).clamp(1, 4)).expect("it is at least 1");
        match self {
            Self::HalfOfTheCores => half,
            Self::AtMost(most) => half.min(most),
            Self::Exactly(count) => count,
        }
    }

    /// Returns the meaning of the same number in a yrmcds.conf.
    pub(super) fn of_yrmcds(self) -> Self {
        match self {
            Self::Exactly(count) => Self::AtMost(count),
            other => other,
        }
    }
}

/// Writes the value of the key, or nothing if it is not set.
impl fmt::Display for WorkerCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HalfOfTheCores => Ok(()),
            Self::AtMost(count) | Self::Exactly(count) => count.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_that_clients_ask_for_are_brought_within_their_limits() {
        let session = SessionConfig {
            default_ttl_s: 5,
            min_ttl_s: 2,
            max_ttl_s: 9,
            default_wait_s: 3,
            max_wait_s: 7,
            ..SessionConfig::default()
        };
        for (asked, ttl_ms, wait_ms) in [
            (None, 5_000, 3_000),
            (Some(0), 2_000, 0),
            (Some(1_999), 2_000, 1_999),
            (Some(4_001), 4_001, 4_001),
            (Some(8_000), 8_000, 7_000),
            (Some(u32::MAX), 9_000, 7_000),
        ] {
            let asked = asked.map(Milliseconds);
            assert_eq!((session.ttl_ms(asked), session.wait_ms(asked)), (ttl_ms, wait_ms), "{asked:?}");
        }
    }
}
