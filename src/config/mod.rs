//! The configuration: TOML or yrmcds.conf in, one validated [`Config`] out.
//!
//! Both languages are read into the same flat list of settings, and the same table of keys ([`Key`]) is applied to them,
//! so that names, ranges and messages are the same. Every error names the file, the line, the key, the value and what is
//! allowed. Nothing here opens a socket, so a bad configuration is found before anything is bound.
//!
//! Variables of the environment override the file. The caller overrides keys from the command line and then calls
//! [`Loaded::validate`], logs the notices, looks up accounts, binds addresses and opens the log file.

mod access;
mod apply;
mod clients;
mod cluster;
mod error;
mod http;
mod language;
mod network;
mod origin;
mod schema;
mod setting;
#[cfg(test)]
mod tests;
mod tls;
mod toml;
mod workers;
mod yrmcds;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use access::{AccessConfig, CertificateRule, NetworkRule, UnknownRule};
pub use clients::{Clients, UnknownClients};
pub use cluster::ClusterConfig;
pub use error::{ConfigError, Contradiction, Notice, Severity};
pub use http::HttpConfig;
pub use language::Language;
pub use network::{Network, UnknownNetwork};
pub use origin::VARIABLE_PREFIX;
pub use schema::Key;
pub use tls::{ClientCert, PlainRule, TlsConfig};
pub use workers::WorkerCount;

use error::Mistake;
use origin::Origins;
use setting::line_at;

/// The most resources of a semaphore with numbered slots: the number of a slot has 16 bits.
const SLOTS_MAX: u32 = 65_536;

/// The whole configuration. The default is that of an empty file.
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

/// A configuration that was read, with the notices about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration, before [`Loaded::validate`].
    pub config: Config,
    /// Notices to log once, at start.
    pub notices: Vec<Notice>,
    /// The file that was read.
    file: Option<PathBuf>,
    /// Where keys were set.
    origins: Origins,
}

impl Config {
    /// The configuration without a file: both extensions, on loopback only.
    pub fn without_file() -> Self {
        let mut config = Self { bind: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)], ..Self::default() };
        config.counter.port.enable = true;
        config.semaphore.port.enable = true;
        config.semaphore.port.port = 11216;
        config
    }

    /// Reads the file at `path`, in the language that [`Language::of`] detects.
    ///
    /// Comments in yrmcds.conf may have any encoding, as old files do.
    pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
        let unreadable = |error| {
            let path = path.display();
            ConfigError(format!(
                "{path}: the configuration file cannot be read: {error}; check its path and its permissions"
            ))
        };
        let bytes = fs::read(path).map_err(unreadable)?;
        let text = String::from_utf8_lossy(&bytes);
        let language = Language::of(path, &text);
        if language == Language::Toml
            && let Err(error) = str::from_utf8(&bytes)
        {
            let line = line_at(&text, error.valid_up_to());
            return Err(Mistake::new(
                line,
                "this line is not valid UTF-8; save the file as UTF-8, as TOML requires",
            )
            .in_file(path));
        }
        Self::parse(&text, path, language)
    }

    /// Reads `text`. Messages name `path` as the file.
    pub fn parse(text: &str, path: &Path, language: Language) -> Result<Loaded, ConfigError> {
        let mut config = Self::default();
        let settings = match language {
            Language::Toml => toml::read(text),
            Language::Yrmcds => {
                // yrmcds listens on a virtual address too, and this is its default.
                config.virtual_ip = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
                yrmcds::read(text)
            }
        };
        let (notices, lines) = settings
            .and_then(|settings| apply::apply(&settings, path, language, &mut config))
            .map_err(|mistake| mistake.in_file(path))?;
        if language == Language::Yrmcds {
            config.workers = config.workers.of_yrmcds();
        }
        Ok(Loaded { config, notices, file: Some(path.to_owned()), origins: Origins::of_lines(lines) })
    }

    /// Checks the configuration as a whole: an extension is enabled, both have different ports, durable keys have a store,
    /// and times are within their limits. To be called after the command line has overridden keys.
    pub fn validate(&self) -> Result<(), Contradiction> {
        let (counter, semaphore) = (&self.counter.port, &self.semaphore.port);
        if !counter.enable && !semaphore.enable {
            return Contradiction::of(
                ["counter.enable", "semaphore.enable"],
                "counter.enable and semaphore.enable are both false; set `counter.enable = true`, `semaphore.enable = true` \
                 or both in the configuration file",
            );
        }
        // Port 0, which only the command line can set, means any free port, and so a different one each time.
        if counter.enable && semaphore.enable && counter.port == semaphore.port && counter.port != 0 {
            let (port, other) = (counter.port, if counter.port == 11216 { 11215 } else { 11216 });
            let sentence = format!(
                "counter.port and semaphore.port are both {port}; set one of them to another port, such as `semaphore.port = \
                 {other}`"
            );
            return Contradiction::of(["counter.port", "semaphore.port"], sentence);
        }
        if !self.sysv.durable_keys.is_empty() && !self.has_store() {
            return Contradiction::of(
                ["sysv.durable_keys", "data_dir"],
                "sysv.durable_keys is set, but data_dir is not; set data_dir to the directory in which these sets are kept, \
                 such as `data_dir = \"/var/lib/signalbox\"`, or make this server a node of a cluster",
            );
        }
        self.http.validate(self)?;
        self.tls.validate()?;
        self.cluster.validate(self)?;
        self.session.validate()
    }

    /// Whether declared semaphores and leased sessions survive the process.
    pub fn has_store(&self) -> bool {
        self.data_dir.is_some() || self.cluster.is_enabled()
    }

    /// The addresses of `bind` to bind. It leaves out addresses that a wildcard covers, because binding both fails.
    pub fn owned_ips(&self) -> impl Iterator<Item = IpAddr> {
        self.bind.iter().copied().filter(|address| !self.is_covered(*address))
    }

    /// The address to bind although the machine may not have it. `None` if it is bound anyway.
    pub fn floating_ip(&self) -> Option<IpAddr> {
        let is_beside =
            |ip: &IpAddr| !self.bind.is_empty() && !self.bind.contains(ip) && !self.is_covered(*ip);
        self.virtual_ip.filter(is_beside)
    }

    /// Whether a wildcard in `bind` includes this address: `0.0.0.0` includes IPv4, `::` both families.
    fn is_covered(&self, address: IpAddr) -> bool {
        let covers = |other: &IpAddr| {
            other.is_unspecified() && *other != address && (other.is_ipv6() || address.is_ipv4())
        };
        self.bind.iter().any(covers)
    }

    /// The keys whose values differ in `new`.
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let of_key = |key: &&Key| !key.name().starts_with("semaphore.declare");
        let mut changes: Vec<_> = Key::all()
            .iter()
            .filter(of_key)
            .map(|key| Change {
                key: key.name().to_owned(),
                from: shown(key.value_in(self)),
                to: shown(key.value_in(new)),
                takes_effect: key.changes_while_running(),
            })
            .collect();
        let [old, new] = [self, new].map(|config| {
            let declared = config.semaphore.declare.iter().map(|of| (of.name.as_str(), of));
            declared.collect::<BTreeMap<_, _>>()
        });
        let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        changes.extend(names.into_iter().map(|name| Change {
            key: declaration_key(name),
            from: described(old.get(name).copied()),
            to: described(new.get(name).copied()),
            takes_effect: true,
        }));
        changes.retain(|change| change.from != change.to);
        changes
    }
}

/// What a [`Change`] of a declared semaphore has as its key.
pub(crate) fn declaration_key(name: &str) -> String {
    format!("semaphore.declare \"{}\"", name.escape_default())
}

/// A key whose value differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key. For a declared semaphore, `semaphore.declare` with its name.
    pub key: String,
    /// The value before.
    pub from: String,
    /// The value after.
    pub to: String,
    /// Whether a running server applies it; else it needs a restart.
    pub takes_effect: bool,
}

fn shown(value: String) -> String {
    if value.is_empty() { "not set".to_owned() } else { value }
}

fn described(declared: Option<&DeclareConfig>) -> String {
    match declared {
        None => "not declared".to_owned(),
        Some(DeclareConfig { name: _, capacity, slots, label }) => {
            format!("capacity {capacity}, slots {slots}, label \"{}\"", label.escape_default())
        }
    }
}

impl SessionConfig {
    fn validate(&self) -> Result<(), Contradiction> {
        let min_ttl = ("session.min_ttl", self.min_ttl_s);
        let default_ttl = ("session.default_ttl", self.default_ttl_s);
        let max_ttl = ("session.max_ttl", self.max_ttl_s);
        let default_wait = ("session.default_wait", self.default_wait_s);
        let max_wait = ("session.max_wait", self.max_wait_s);
        for (lower, upper) in [(min_ttl, default_ttl), (default_ttl, max_ttl), (default_wait, max_wait)] {
            if lower.1 > upper.1 {
                let sentence = format!(
                    "{} is {} and {} is {}; lower the first or raise the second",
                    lower.0, lower.1, upper.0, upper.1
                );
                return Contradiction::of([lower.0, upper.0], sentence);
            }
        }
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: Vec::new(),
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
            counter: Counter { port: PortConfig::default(), stat_interval_s: 86_400 },
            semaphore: Semaphore { port: PortConfig::default(), gc_interval_s: 10, declare: Vec::new() },
            session: SessionConfig::default(),
            sysv: SysvConfig::default(),
            cluster: ClusterConfig::default(),
        }
    }
}

impl Default for PortConfig {
    fn default() -> Self {
        Self { enable: false, port: 11215, max_connections: 0, max_names: 0 }
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            default_ttl_s: 30,
            min_ttl_s: 1,
            max_ttl_s: 3_600,
            default_wait_s: 60,
            max_wait_s: 3_600,
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

impl FromStr for Threshold {
    type Err = UnknownThreshold;

    fn from_str(text: &str) -> Result<Self, UnknownThreshold> {
        match text {
            "error" => Ok(Self::Error),
            "warning" => Ok(Self::Warning),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            _ => Err(UnknownThreshold),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

/// The text is not the name of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be error, warning, info or debug")]
pub struct UnknownThreshold;
