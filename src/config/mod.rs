//! The configuration: TOML or yrmcds.conf in, one validated [`Config`] out.
//!
//! Both languages are read into the same flat list of settings, and one table of keys ([`Key`]) is applied to
//! either, so that names, ranges and messages are the same. Every error names file, line, key, value and what is
//! allowed; nothing here touches a socket, so a bad configuration is found before anything is bound.
//!
//! Left to others: overriding keys from the command line (then [`Config::validate`]), logging the notices, turning
//! names of accounts into numbers, binding addresses and opening the log file.

mod apply;
mod error;
mod language;
mod schema;
mod setting;
mod toml;
mod yrmcds;

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use error::{ConfigError, Notice, Reason, Severity};
pub use language::Language;
pub use schema::Key;

use error::Mistake;
use setting::line_at;

/// The most resources of a semaphore whose resources are numbered: a number of a slot has 16 bits.
const SLOTS_MAX: u32 = 65_536;

/// Everything that can be configured. The default is what an empty file means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Addresses to listen on, each once; none means every address of the machine (`bind_ip`).
    pub bind: Vec<IpAddr>,
    /// An address to listen on beside those of `bind`, although the machine may not own it yet. Without meaning
    /// while `bind` is empty; [`Config::floating_ip`] minds that.
    pub virtual_ip: Option<IpAddr>,
    /// Threads that serve connections; `None` is one for each core.
    pub workers: Option<NonZeroUsize>,
    /// The account to take on once the ports are bound.
    pub user: Option<String>,
    /// The group to take on once the ports are bound.
    pub group: Option<String>,
    /// Seconds after which a peer that has vanished is gone, and what it held is given back.
    pub peer_timeout_s: u32,
    /// Seconds within which a frame that was started must be complete.
    pub frame_timeout_s: u32,
    /// Addresses besides loopback that may take from others what they hold, and declare, resize and remove
    /// semaphores; each once.
    pub admin_from: Vec<IpAddr>,
    /// The directory in which declared semaphores and leased sessions survive a restart; `None`: they are forgotten.
    pub data_dir: Option<PathBuf>,
    /// What is logged, and where.
    pub log: Log,
    /// The counter extension.
    pub counter: Counter,
    /// The semaphore extension.
    pub semaphore: Semaphore,
    /// Leased sessions, grants, waiting and watches.
    pub session: SessionConfig,
}

/// What is logged, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The least important message that is logged.
    pub threshold: Threshold,
    /// An absolute path; `None` is standard error.
    pub file: Option<PathBuf>,
}

/// How important a message has to be to be logged, in yrmcds' words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threshold {
    /// What keeps the server from doing its work.
    Error,
    /// What an administrator should look at.
    Warning,
    /// What happens in normal service, a few lines an hour.
    #[default]
    Info,
    /// What happens to each connection.
    Debug,
}

/// The counter extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// What it has in common with the other extension.
    pub port: PortConfig,
    /// Seconds over which the maximum of a counter's consumption is taken.
    pub stat_interval_s: u32,
}

/// The semaphore extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semaphore {
    /// What it has in common with the other extension.
    pub port: PortConfig,
    /// Seconds between two removals of fully released semaphores.
    pub gc_interval_s: u32,
    /// Semaphores that exist because the configuration says so, each name once, in the order of the file.
    pub declare: Vec<DeclareConfig>,
}

/// A semaphore that the configuration declares, and that only it can change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclareConfig {
    /// Its name, of 1 to 65535 bytes.
    pub name: String,
    /// How many resources may be in use; at most 65536 where `slots` is set.
    pub capacity: u32,
    /// Whether its resources are numbered.
    pub slots: bool,
    /// What people call it, of at most 255 bytes; may be empty.
    pub label: String,
}

/// One extension's port and the limits on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Whether it is served at all.
    pub enable: bool,
    /// The TCP port, from 1.
    pub port: u16,
    /// The most connections at a time; 0 is without limit.
    pub max_connections: u32,
    /// The most names that exist at a time; 0 is without limit.
    pub max_names: u64,
}

/// Leased sessions, grants, waiting and watches: times and limits of the extended operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Seconds that a leased session lives unheard where its client leaves it to the server.
    pub default_ttl_s: u32,
    /// The shortest time to live; less is raised to it.
    pub min_ttl_s: u32,
    /// The longest time to live; more is cut down to it.
    pub max_ttl_s: u32,
    /// Seconds that a request waits which leaves it to the server.
    pub default_wait_s: u32,
    /// The longest that a request may wait; more is cut down to it.
    pub max_wait_s: u32,
    /// The most leased sessions at a time.
    pub max_sessions: u32,
    /// The most grants and waiting requests of one session.
    pub max_grants: u32,
    /// The most requests that wait in the queue of one name, and the most that wait until it is idle.
    pub max_waiters: u32,
    /// The most watches at a time.
    pub max_watches: u32,
}

/// A configuration that was read, and what to log about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration. [`Config::validate`] is still to be called.
    pub config: Config,
    /// What to log once, at start.
    pub notices: Vec<Notice>,
}

impl Config {
    /// What the server does without a configuration file: both extensions, for this machine only.
    pub fn without_file() -> Self {
        let mut config = Self { bind: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)], ..Self::default() };
        config.counter.port.enable = true;
        config.semaphore.port.enable = true;
        config.semaphore.port.port = 11216;
        config
    }

    /// Reads the file at `path`, in the language that [`Language::of`] makes out.
    ///
    /// Comments in yrmcds.conf may be in any encoding, as they are in files of that age.
    pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
        let bytes = fs::read(path).map_err(unreadable)?;
        let text = String::from_utf8_lossy(&bytes);
        let language = Language::of(path, &text);
        if language == Language::Toml
            && let Err(error) = str::from_utf8(&bytes)
        {
            let line = line_at(&text, error.valid_up_to());
            return Err(Mistake::syntax(
                line,
                "this line is not valid UTF-8; save the file as UTF-8, as TOML requires",
            )
            .in_file(path));
        }
        Self::parse(&text, path, language)
    }

    /// Reads `text`; `path` is the file that messages name.
    pub fn parse(text: &str, path: &Path, language: Language) -> Result<Loaded, ConfigError> {
        let mut config = Self::default();
        let settings = match language {
            Language::Toml => toml::read(text),
            Language::Yrmcds => {
                // yrmcds binds its virtual address beside those of `bind_ip`, and has this one by default.
                config.virtual_ip = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
                yrmcds::read(text)
            }
        };
        let notices = settings
            .and_then(|settings| apply::apply(&settings, path, language, &mut config))
            .map_err(|mistake| mistake.in_file(path))?;
        Ok(Loaded { config, notices })
    }

    /// Whether the parts fit together: something is enabled, no two on one port, and no time is beyond its limits.
    /// To be called once the command line has had its say.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (counter, semaphore) = (&self.counter.port, &self.semaphore.port);
        if !counter.enable && !semaphore.enable {
            return Err(ConfigError::NothingEnabled);
        }
        // 0, which only the command line can ask for, is any free port: another one each time.
        if counter.enable && semaphore.enable && counter.port == semaphore.port && counter.port != 0 {
            return Err(ConfigError::SamePort { port: counter.port });
        }
        self.session.validate()
    }

    /// The addresses to bind out of `bind`: without those that another one covers, which could not be bound beside
    /// it.
    pub fn owned_ips(&self) -> impl Iterator<Item = IpAddr> {
        self.bind.iter().copied().filter(|address| !self.is_covered(*address))
    }

    /// The address to bind although the machine may not own it, beside those of `bind`; none where it is among them
    /// or where every address is bound.
    pub fn floating_ip(&self) -> Option<IpAddr> {
        let is_beside =
            |ip: &IpAddr| !self.bind.is_empty() && !self.bind.contains(ip) && !self.is_covered(*ip);
        self.virtual_ip.filter(is_beside)
    }

    /// Whether another address of `bind` stands for this one too: `0.0.0.0` for all of IPv4, `::` for all of both
    /// families.
    fn is_covered(&self, address: IpAddr) -> bool {
        let covers = |other: &IpAddr| {
            other.is_unspecified() && *other != address && (other.is_ipv6() || address.is_ipv4())
        };
        self.bind.iter().any(covers)
    }

    /// The keys that have another value in `new`, and whose value a running server keeps until it is restarted.
    pub fn changes_needing_restart(&self, new: &Self) -> Vec<&'static str> {
        let differs = |key: &&Key| key.value_in(self) != key.value_in(new);
        Key::all().iter().filter(|key| !key.changes_while_running()).filter(differs).map(Key::name).collect()
    }
}

impl SessionConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        let min_ttl = ("session.min_ttl", self.min_ttl_s);
        let default_ttl = ("session.default_ttl", self.default_ttl_s);
        let max_ttl = ("session.max_ttl", self.max_ttl_s);
        let default_wait = ("session.default_wait", self.default_wait_s);
        let max_wait = ("session.max_wait", self.max_wait_s);
        for (lower, upper) in [(min_ttl, default_ttl), (default_ttl, max_ttl), (default_wait, max_wait)] {
            if lower.1 > upper.1 {
                return Err(ConfigError::OutOfOrder { lower, upper });
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
            workers: None,
            user: None,
            group: None,
            peer_timeout_s: 35,
            frame_timeout_s: 10,
            admin_from: Vec::new(),
            data_dir: None,
            log: Log::default(),
            counter: Counter { port: PortConfig::default(), stat_interval_s: 86_400 },
            semaphore: Semaphore { port: PortConfig::default(), gc_interval_s: 10, declare: Vec::new() },
            session: SessionConfig::default(),
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
            max_sessions: 100_000,
            max_grants: 10_000,
            max_waiters: 100_000,
            max_watches: 1_000,
        }
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

/// A word that is no threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be error, warning, info or debug")]
pub struct UnknownThreshold;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, language: Language) -> Result<Loaded, String> {
        Config::parse(text, Path::new("/etc/x"), language).map_err(|error| error.to_string())
    }

    fn notices(text: &str) -> Vec<(Severity, String)> {
        let loaded = parse(text, Language::Yrmcds).unwrap();
        loaded.notices.into_iter().map(|notice| (notice.severity, notice.sentence)).collect()
    }

    #[test]
    fn both_languages_say_the_same() {
        let lines = "bind_ip = 127.0.0.1 ::1\nvirtual_ip = 192.0.2.1\nworkers = 4\nuser = a\ngroup = b\n\
            data_dir = /b\npeer_timeout = 60\nframe_timeout = 5\nlog.threshold = debug\nlog.file = \"/a\"\n\
            counter.enable = true\n\
            counter.max_connections = 2K\ncounter.max_names = 1M\ncounter.stat_interval = 60\n\
            semaphore.enable = true\nsemaphore.port = 11216\nsemaphore.gc_interval = 3\n\
            admin_from = 192.0.2.2 2001:db8::2\nsession.max_ttl = 60\nsession.max_grants = 2K\n";
        let toml = "bind_ip = ['127.0.0.1', '::1']\nvirtual_ip = '192.0.2.1'\nworkers = 4\nuser = 'a'\ngroup = 'b'\n\
            data_dir = '/b'\npeer_timeout = 60\nframe_timeout = 5\nlog = { threshold = 'debug', file = '/a' }\n\
            semaphore.enable = true\nsemaphore.port = 11216\nsemaphore.gc_interval = 3\n\
            admin_from = ['192.0.2.2', '2001:db8::2']\nsession = { max_ttl = 60, max_grants = 2048 }\n\
            [counter]\nenable = true\nmax_connections = 2048\nmax_names = 1_048_576\nstat_interval = 60\n";
        let of_lines = parse(lines, Language::Yrmcds).unwrap();
        let of_toml = parse(toml, Language::Toml).unwrap();
        assert_eq!(of_lines.config, of_toml.config);
        assert_eq!(of_lines.notices, []);
        assert_eq!(of_toml.notices, []);
        assert_eq!(of_toml.config.counter.port.max_connections, 2048);
    }

    #[test]
    fn an_empty_file_enables_nothing() {
        let config = parse("", Language::Toml).unwrap().config;
        assert_eq!(config, Config::default());
        assert!(matches!(config.validate(), Err(ConfigError::NothingEnabled)));
    }

    #[test]
    fn two_on_one_port_are_refused_by_name() {
        let text = "counter.enable = true\nsemaphore.enable = true";
        let config = parse(text, Language::Toml).unwrap().config;
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains("counter.port") && message.contains("semaphore.port"), "{message}");
        assert!(Config { semaphore: Config::default().semaphore, ..config }.validate().is_ok());
        assert!(Config::without_file().validate().is_ok());
    }

    #[test]
    fn times_of_sessions_beyond_their_limits_are_refused_by_both_keys() {
        for (settings, message) in [
            ("session.min_ttl = 31", "session.min_ttl is 31 and session.default_ttl is 30"),
            ("session.default_ttl = 3601", "session.default_ttl is 3601 and session.max_ttl is 3600"),
            ("session.max_wait = 59", "session.default_wait is 60 and session.max_wait is 59"),
        ] {
            let text = format!("counter.enable = true\n{settings}");
            let config = parse(&text, Language::Toml).unwrap().config;
            let said = config.validate().unwrap_err().to_string();
            assert_eq!(said, format!("{message}; lower the first or raise the second"));
        }
        let text = "counter.enable = true\n[session]\nmin_ttl = 5\ndefault_ttl = 5\nmax_ttl = 5\n\
            default_wait = 5\nmax_wait = 5";
        assert!(parse(text, Language::Toml).unwrap().config.validate().is_ok(), "equal is in order");
    }

    #[test]
    fn errors_name_file_line_key_value_and_what_is_allowed() {
        use Language::{Toml, Yrmcds};
        for (language, text, message) in [
            (
                Toml,
                "\n[counter]\nport = 70000",
                "/etc/x:3: counter.port = 70000: must be a whole number from 1 to 65535",
            ),
            (
                Toml,
                "counter.port = '1'",
                "/etc/x:1: counter.port = '1': must be a whole number from 1 to 65535, without quotes",
            ),
            (
                Toml,
                "data_dir = 'state'",
                "/etc/x:1: data_dir = 'state': must be an absolute path, such as /var/lib/signalbox",
            ),
            (Toml, "counter.enable = 1", "/etc/x:1: counter.enable = 1: must be true or false"),
            (
                Toml,
                "log.threshold = 'loud'",
                "/etc/x:1: log.threshold = 'loud': must be error, warning, info or debug",
            ),
            (
                Toml,
                "log.file = 'a.log'",
                "/etc/x:1: log.file = 'a.log': must be an absolute path, such as /var/log/signalbox.log",
            ),
            (
                Toml,
                "counter.prot = 1",
                "/etc/x:1: counter.prot is not a key of signalbox; did you mean counter.port?",
            ),
            (Toml, "temp_dir = '/tmp'", "/etc/x:1: temp_dir is not a key of signalbox"),
            (
                Toml,
                "session.max_wait = 0",
                "/etc/x:1: session.max_wait = 0: must be a whole number from 1 to 3999999",
            ),
            (
                Toml,
                "admin_from = ['10.0.0.0/8']",
                "/etc/x:1: admin_from = ['10.0.0.0/8']: must be IP addresses with spaces between them, \
                 such as \"127.0.0.1 ::1\", or empty for loopback only",
            ),
            (Toml, "[countr]", "/etc/x:1: countr is not a key of signalbox"),
            (Toml, "counter = 1", "/etc/x:1: counter = 1: must be a table of keys, such as counter.enable"),
            (
                Toml,
                "counter.port = 1\n'counter.port' = 2",
                "/etc/x:2: counter.port = 2: line 1 sets counter.port already, which is the same key; keep one of them",
            ),
            (
                Yrmcds,
                "counter.port",
                "/etc/x:1: this line has no \"=\"; write `key = value`, or \"#\" before a comment",
            ),
            (Yrmcds, "workers =", "/etc/x:1: workers = (nothing): must be a whole number from 1 to 1024"),
            (Yrmcds, "counter.enable = yes", "/etc/x:1: counter.enable = yes: must be true or false"),
            (
                Yrmcds,
                "workers = 4 # four",
                "/etc/x:1: workers = 4 # four: must be a whole number from 1 to 1024; a comment needs a line of its own",
            ),
            (
                Yrmcds,
                "counter.stat_interval = 10\ncounter.stats_interval = 20",
                "/etc/x:2: counter.stats_interval = 20: line 1 sets counter.stat_interval already, which is the same \
                 key; keep one of them",
            ),
        ] {
            assert_eq!(parse(text, language).unwrap_err(), message);
        }
    }

    #[test]
    fn declarations_are_read_in_the_order_of_the_file() {
        let declare = |name: &str, capacity, slots, label: &str| DeclareConfig {
            name: name.to_owned(),
            capacity,
            slots,
            label: label.to_owned(),
        };
        let expected = [
            declare("web", 0, false, ""),
            declare("dépôt 1", 65_536, true, "the first"),
            declare("all", u32::MAX, false, ""),
        ];
        let tables = "[[semaphore.declare]]\nname = 'web'\ncapacity = 0\n\
            [[semaphore.declare]]\nslots = true\nlabel = 'the first'\ncapacity = 0x10000\nname = 'dépôt 1'\n\
            [session]\nmax_ttl = 60\n\
            [[semaphore.declare]]\nname = 'all'\ncapacity = 4_294_967_295\nslots = false\nlabel = ''\n";
        let inline = "session.max_ttl = 60\nsemaphore.declare = [{ name = 'web', capacity = 0 }, { name = 'dépôt 1', \
            capacity = 65536, slots = true, label = 'the first' },\n{ name = 'all', capacity = 4294967295 }]";
        for text in [tables, inline] {
            let loaded = parse(text, Language::Toml).unwrap();
            assert_eq!(loaded.config.semaphore.declare, expected);
            assert_eq!(loaded.config.session.max_ttl_s, 60);
            assert_eq!(loaded.notices, []);
            let shown = |name| Key::find(name).unwrap().value_in(&loaded.config);
            assert_eq!(shown("semaphore.declare"), "web dépôt 1 all");
            assert_eq!(shown("semaphore.declare.capacity"), "0 65536 4294967295");
        }
        assert_eq!(parse("semaphore.declare = []", Language::Toml).unwrap().config, Config::default());
    }

    #[test]
    fn a_mistake_in_a_declaration_is_named_where_it_is() {
        let one = "[[semaphore.declare]]\nname = 'a'\n";
        for (within, message) in [
            (
                "capacity = -1",
                "3: semaphore.declare.capacity = -1: must be a whole number from 0 to 4294967295",
            ),
            (
                "capacity = 4294967296",
                "3: semaphore.declare.capacity = 4294967296: must be a whole number from 0 to 4294967295",
            ),
            (
                "capacity = '1'",
                "3: semaphore.declare.capacity = '1': must be a whole number from 0 to 4294967295, without quotes",
            ),
            (
                "",
                "1: semaphore.declare.capacity is not set in this [[semaphore.declare]]; it must be a whole number \
                 from 0 to 4294967295",
            ),
            (
                "capacity = 65537\nslots = true",
                "3: semaphore.declare.capacity = 65537: must be a whole number from 0 to 65536 where \
                 semaphore.declare.slots is true",
            ),
            ("capacity = 1\nslots = 1", "4: semaphore.declare.slots = 1: must be true or false"),
            ("label = 5", "3: semaphore.declare.label = 5: must be a text of at most 255 bytes"),
            (
                "lable = 'x'",
                "3: semaphore.declare.lable is not a key of signalbox; did you mean semaphore.declare.label?",
            ),
            (
                "[[semaphore.declare]]\ncapacity = 1",
                "1: semaphore.declare.capacity is not set in this [[semaphore.declare]]; it must be a whole number \
                 from 0 to 4294967295",
            ),
            (
                "capacity = 1\n[[semaphore.declare]]\ncapacity = 1",
                "4: semaphore.declare.name is not set in this [[semaphore.declare]]; it must be a text of 1 to 65535 \
                 bytes",
            ),
            (
                "capacity = 1\n[session]\n[[semaphore.declare]]\ncapacity = 2\nname = \"a\"",
                "7: semaphore.declare.name = \"a\": line 2 declares this name already; keep one of them",
            ),
            (
                "capacity = 1\n[counter]\nport = 0\n[[semaphore.declare]]\ncapacity = -1",
                "5: counter.port = 0: must be a whole number from 1 to 65535",
            ),
            (
                "[counter]\nport = 0",
                "1: semaphore.declare.capacity is not set in this [[semaphore.declare]]; it must be a whole number \
                 from 0 to 4294967295",
            ),
        ] {
            let said = parse(&format!("{one}{within}"), Language::Toml).unwrap_err();
            assert_eq!(said, format!("/etc/x:{message}"));
        }
    }

    #[test]
    fn names_and_labels_of_declarations_are_measured_in_bytes() {
        let read = |name: &str, label: &str| {
            let text = format!("[[semaphore.declare]]\nname = '{name}'\ncapacity = 1\nlabel = '{label}'");
            parse(&text, Language::Toml).map(|_| ())
        };
        read(&"n".repeat(65_535), &"l".repeat(255)).unwrap();
        assert_eq!(
            read("", "").unwrap_err(),
            "/etc/x:2: semaphore.declare.name = '': must be a text of 1 to 65535 bytes"
        );
        let said = read(&"ä".repeat(32_768), "").unwrap_err();
        assert!(said.ends_with("…: must be a text of 1 to 65535 bytes"), "{said}");
        let said = read("n", &"ä".repeat(128)).unwrap_err();
        assert!(said.starts_with("/etc/x:4: semaphore.declare.label = 'ää"), "{said}");
    }

    #[test]
    fn declarations_need_toml_and_two_brackets() {
        use Language::{Toml, Yrmcds};
        for (language, text, message) in [
            (
                Yrmcds,
                "semaphore.declare = web",
                "semaphore.declare = web: must be tables [[semaphore.declare]], which only a file in TOML can have",
            ),
            (
                Yrmcds,
                "semaphore.declare.name = web",
                "semaphore.declare.name = web: must be in a table [[semaphore.declare]], which only a file in TOML can \
                 have",
            ),
            (
                Toml,
                "semaphore.declare = ['web']",
                "semaphore.declare = ['web']: must be tables [[semaphore.declare]], which only a file in TOML can have",
            ),
            (
                Toml,
                "semaphore.declare = { capacity = 1 }",
                "semaphore.declare.capacity = 1: must be in a table [[semaphore.declare]], which only a file in TOML \
                 can have",
            ),
            (
                Toml,
                "semaphore = { 'declare.name' = 'b' }",
                "semaphore.declare.name = 'b': must be in a table [[semaphore.declare]], which only a file in TOML \
                 can have",
            ),
            (
                Toml,
                "[[counter]]\nport = 1",
                "counter = [[counter]]: must be a table of keys, such as counter.enable",
            ),
            (Toml, "[[workers]]", "workers = [[workers]]: must be a whole number from 1 to 1024"),
        ] {
            assert_eq!(parse(text, language).unwrap_err(), format!("/etc/x:1: {message}"));
        }
    }

    #[test]
    fn both_spellings_of_the_interval_are_one_key() {
        for language in [Language::Toml, Language::Yrmcds] {
            let text = "counter.stat_interval = 10\ncounter.stats_interval = 10";
            let loaded = parse(text, language).unwrap();
            assert_eq!((loaded.config.counter.stat_interval_s, loaded.notices.len()), (10, 0));
        }
    }

    #[test]
    fn what_yrmcds_lets_pass_is_a_warning() {
        assert_eq!(
            notices("workers = 2\nworkers = 3\ncounter.prot = 5\ncounter = 5"),
            [
                (Severity::Warning, "/etc/x:2: workers is set a second time; line 1 is ignored".to_owned()),
                (
                    Severity::Warning,
                    "/etc/x:3: ignored: counter.prot is not a key of signalbox; did you mean counter.port?"
                        .to_owned()
                ),
                (Severity::Warning, "/etc/x:4: ignored: counter is not a key of signalbox".to_owned()),
            ]
        );
        let loaded = parse("workers = 2\nworkers = 3", Language::Yrmcds).unwrap();
        assert_eq!(loaded.config.workers, NonZeroUsize::new(3));
    }

    #[test]
    fn unused_keys_are_listed_once_and_not_checked() {
        let found = notices("port = x\ntemp_dir = /none\ncounter.buckets = 5");
        let severities: Vec<_> = found.iter().map(|(severity, _)| *severity).collect();
        assert_eq!(severities, [Severity::Info, Severity::Info]);
        assert!(found[0].1.contains("counter.buckets has no effect"), "{found:?}");
        assert!(found[1].1.ends_with(": port, temp_dir"), "{found:?}");
    }

    #[test]
    fn the_virtual_address_is_bound_beside_others_only() {
        let floating = |text| parse(text, Language::Yrmcds).unwrap().config.floating_ip();
        assert_eq!(floating("virtual_ip = 192.0.2.1"), None);
        assert_eq!(floating("virtual_ip = 192.0.2.1\nbind_ip = 192.0.2.1"), None);
        assert_eq!(floating("virtual_ip = 192.0.2.1\nbind_ip = ::1"), Some("192.0.2.1".parse().unwrap()));
        // yrmcds listens on 127.0.0.1 too where virtual_ip is not set.
        assert_eq!(floating("bind_ip = ::1"), Some("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn limits_and_the_log_level_change_while_running() {
        let old = Config::without_file();
        let mut new = old.clone();
        new.log.threshold = Threshold::Debug;
        new.counter.port.max_connections = 5;
        new.semaphore.port.max_names = 5;
        new.semaphore.declare.push(DeclareConfig { name: "web".to_owned(), ..DeclareConfig::default() });
        new.peer_timeout_s = 60;
        new.admin_from = vec!["192.0.2.1".parse().unwrap()];
        new.session.max_ttl_s = 60;
        new.session.max_waiters = 5;
        assert!(old.changes_needing_restart(&new).is_empty());
        new.bind.clear();
        new.data_dir = Some("/b".into());
        new.log.file = Some("/a".into());
        new.counter.port.port = 1;
        assert_eq!(old.changes_needing_restart(&new), ["bind_ip", "data_dir", "log.file", "counter.port"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let message = Config::load(Path::new("/nonexistent/x.toml")).unwrap_err().to_string();
        assert!(
            message.starts_with("/nonexistent/x.toml: the configuration file cannot be read: No such file")
        );
    }
}
