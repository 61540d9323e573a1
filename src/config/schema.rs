//! The table of keys: one row per key, for both languages, the documents and the tests.
//!
//! A row has the allowed values of the key, its field in [`Config`], and whether it may change while the server runs. The
//! type of the field reads and shows the value. `apply` handles keys that are not in the table.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::ValueEnum;

use super::root::{ClientCert, Config, DeclareConfig, PlainRule, Threshold, WorkerCount};
use super::rules::{CertificateRule, Network, NetworkRule};
use super::setting::Value;
use signalbox_access::Rights;
use signalbox_model::span;

/// A row of the table of keys.
#[derive(Debug)]
pub struct Key {
    name: &'static str,
    other_name: Option<&'static str>,
    kind: Kind,
    access: FieldAccess,
    changes_while_running: bool,
    is_required: bool,
}

impl Key {
    /// Returns every key, in the order in which the documents list them.
    pub fn all() -> &'static [Self] {
        KEYS
    }

    /// Returns the dotted name, such as `counter.port`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the allowed values, as a phrase that follows "must be".
    pub fn allowed(&self) -> String {
        self.kind.allowed()
    }

    /// Returns its value in `config`, as in a configuration file, but without quotes. Empty if it is not set, and for
    /// keys without effect. For a key of declarations, the values in all declarations, separated by spaces.
    pub fn value_in(&self, config: &Config) -> String {
        match self.access {
            FieldAccess::Nowhere => String::new(),
            FieldAccess::Config(field, _) => field(config).shown(),
            FieldAccess::Declaration(field, _) => {
                joined(config.semaphore.declare.iter().map(|declared| field(declared).shown()))
            }
        }
    }

    /// Returns whether a running server applies a new value on SIGHUP.
    pub fn changes_while_running(&self) -> bool {
        self.changes_while_running
    }

    /// Returns whether each table `[[semaphore.declare]]` must set the key.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Returns why a key has no effect, if it has none.
    pub fn no_effect_because(&self) -> Option<&'static str> {
        match self.kind {
            Kind::NoEffect { reason, .. } => Some(reason),
            _ => None,
        }
    }

    pub(super) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name || key.other_name == Some(name))
    }

    /// Sets the field in `config`. Fails with the allowed values, and then leaves `config` unchanged. A key within
    /// declarations sets the last declaration, which must exist.
    pub(super) fn set(&self, value: &Value, config: &mut Config) -> Result<(), String> {
        let set = match (&self.kind, &self.access) {
            (Kind::Declarations, _) => match value {
                Value::Entry => {
                    config.semaphore.declare.push(DeclareConfig::default());
                    Some(())
                }
                Value::List(values) if values.is_empty() => Some(()),
                _ => None,
            },
            (kind, FieldAccess::Nowhere) => kind.number(value).map(drop),
            (kind, FieldAccess::Config(_, field)) => field(config).read(value, kind),
            (kind, FieldAccess::Declaration(_, field)) => {
                let declared = config.semaphore.declare.last_mut();
                field(declared.expect("apply refuses keys of declarations outside of one")).read(value, kind)
            }
        };
        set.ok_or_else(|| self.allowed())
    }

    /// Makes a key whose new value takes effect only at the next start.
    const fn at_start(name: &'static str, kind: Kind, access: FieldAccess) -> Self {
        Self { name, other_name: None, kind, access, changes_while_running: false, is_required: false }
    }

    /// Makes a key whose new value takes effect in a running server too.
    const fn at_once(name: &'static str, kind: Kind, access: FieldAccess) -> Self {
        Self { changes_while_running: true, ..Self::at_start(name, kind, access) }
    }

    const fn also_named(self, other_name: &'static str) -> Self {
        Self { other_name: Some(other_name), ..self }
    }

    const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }
}

/// Returns whether the key belongs to tables `[[semaphore.declare]]`, each of which may set it.
pub(super) fn is_within_declaration(name: &str) -> bool {
    name.starts_with("semaphore.declare.")
}

/// The access to the field that a key sets.
#[derive(Debug)]
enum FieldAccess {
    Config(fn(&Config) -> &dyn Field, fn(&mut Config) -> &mut dyn Field),
    /// A field of each declaration.
    Declaration(fn(&DeclareConfig) -> &dyn Field, fn(&mut DeclareConfig) -> &mut dyn Field),
    /// The key has no effect, and no field.
    Nowhere,
}

/// A field of [`Config`].
macro_rules! field {
    ($($path:tt)+) => {
        FieldAccess::Config(|config| &config.$($path)+, |config| &mut config.$($path)+)
    };
}

/// A field of [`DeclareConfig`].
macro_rules! declared {
    ($field:ident) => {
        FieldAccess::Declaration(|declared| &declared.$field, |declared| &mut declared.$field)
    };
}

static KEYS: &[Key] = &[
    Key::at_start("bind_ip", ADDRESSES, field!(bind)),
    Key::at_start(
        "virtual_ip",
        text("an IP address, such as 192.0.2.1 or 2001:db8::1", is_set),
        field!(virtual_ip),
    ),
    Key::at_start("workers", number(1, 1024), field!(workers)),
    Key::at_once("memory_max", Kind::Bytes, field!(memory_max)),
    Key::at_once("client_share", number(1, 100), field!(client_share)),
    Key::at_once("short_connections", number(0, 1_000_000), field!(short_connections)),
    Key::at_start("user", ACCOUNT, field!(user)),
    Key::at_start("group", ACCOUNT, field!(group)),
    Key::at_once("peer_timeout", time(5, 86_400), field!(peer_timeout_s)),
    Key::at_once("frame_timeout", time(1, 3_600), field!(frame_timeout_s)),
    Key::at_once("admin_from", ADMINS, field!(admin_from)),
    Key::at_once("proxies", NETWORKS, field!(proxies)),
    Key::at_start("data_dir", path("/var/lib/signalbox"), field!(data_dir)),
    Key::at_once("log.threshold", text("error, warning, info or debug", any), field!(log.threshold)),
    Key::at_start("log.file", path("/var/log/signalbox.log"), field!(log.file)),
    Key::at_start("log.grants", path("/var/log/signalbox/grants.log"), field!(log.grants)),
    Key::at_once("tls.cert", path("/etc/signalbox/server.pem"), field!(tls.cert)),
    Key::at_once("tls.key", path("/etc/signalbox/server.key"), field!(tls.key)),
    Key::at_once("tls.client_ca", path("/etc/signalbox/client-ca.pem"), field!(tls.client_ca)),
    Key::at_once("tls.client_cert", text("optional or required", any), field!(tls.client_cert)),
    Key::at_once("tls.plain", text("allow, loopback or refuse", any), field!(tls.plain)),
    Key::at_once("access.tokens", path("/etc/signalbox/tokens.toml"), field!(access.tokens)),
    Key::at_once("access.tokens_over_plain", Kind::Flag, field!(access.tokens_over_plain)),
    Key::at_once("access.anonymous", RIGHTS, field!(access.anonymous)),
    Key::at_once("access.networks", NETWORK_RULES, field!(access.networks)),
    Key::at_once("access.certificates", CERTIFICATE_RULES, field!(access.certificates)),
    Key::at_start("access.audit_log", path("/var/log/signalbox-audit.log"), field!(access.audit_log)),
    Key::at_start("counter.enable", Kind::Flag, field!(counter.port.enable)),
    Key::at_start("counter.port", PORT, field!(counter.port.port)),
    Key::at_once("counter.max_connections", number(0, U32_MAX), field!(counter.port.max_connections)),
    Key::at_once("counter.max_names", number(0, u64::MAX), field!(counter.port.max_names)),
    Key::at_start("counter.stat_interval", time(1, U32_MAX), field!(counter.stat_interval_s))
        .also_named("counter.stats_interval"),
    Key::at_start("counter.buckets", BUCKETS, FieldAccess::Nowhere),
    Key::at_start("semaphore.enable", Kind::Flag, field!(semaphore.port.enable)),
    Key::at_start("semaphore.port", PORT, field!(semaphore.port.port)),
    Key::at_once("semaphore.max_connections", number(0, U32_MAX), field!(semaphore.port.max_connections)),
    Key::at_once("semaphore.max_names", number(0, u64::MAX), field!(semaphore.port.max_names)),
    Key::at_start("semaphore.gc_interval", time(1, 86_400), field!(semaphore.gc_interval_s)),
    Key::at_start("semaphore.buckets", BUCKETS, FieldAccess::Nowhere),
    Key::at_once("semaphore.declare", Kind::Declarations, declared!(name)),
    Key::at_once(
        "semaphore.declare.name",
        text("a text of 1 to 65535 bytes", |text| (1..=65_535).contains(&text.len())),
        declared!(name),
    )
    .required(),
    Key::at_once("semaphore.declare.capacity", number(0, U32_MAX), declared!(capacity)).required(),
    Key::at_once("semaphore.declare.slots", Kind::Flag, declared!(slots)),
    Key::at_once(
        "semaphore.declare.label",
        text("a text of at most 255 bytes", |text| text.len() <= 255),
        declared!(label),
    ),
    Key::at_once("session.default_ttl", SESSION_TIME, field!(session.default_ttl_s)),
    Key::at_once("session.min_ttl", SESSION_TIME, field!(session.min_ttl_s)),
    Key::at_once("session.max_ttl", SESSION_TIME, field!(session.max_ttl_s)),
    Key::at_once("session.default_wait", SESSION_TIME, field!(session.default_wait_s)),
    Key::at_once("session.max_wait", SESSION_TIME, field!(session.max_wait_s)),
    Key::at_start(
        "session.reconnect_window",
        time(0, SESSION_TIME_MAX_S),
        field!(session.reconnect_window_s),
    ),
    Key::at_once("session.max_sessions", LIMIT, field!(session.max_sessions)),
    Key::at_once("session.max_grants", LIMIT, field!(session.max_grants)),
    Key::at_once("session.max_waiters", LIMIT, field!(session.max_waiters)),
    Key::at_once("session.max_watches", LIMIT, field!(session.max_watches)),
    Key::at_once("sysv.max_sets", LIMIT, field!(sysv.max_sets)),
    Key::at_once("sysv.max_semaphores", LIMIT, field!(sysv.max_semaphores)),
    Key::at_once("sysv.fifo_keys", SET_KEYS, field!(sysv.fifo_keys)),
    Key::at_once("sysv.durable_keys", SET_KEYS, field!(sysv.durable_keys)),
    Key::at_start("http.enable", Kind::Flag, field!(http.enable)),
    Key::at_start("http.bind_ip", ADDRESSES, field!(http.bind)),
    Key::at_start("http.port", PORT, field!(http.port)),
    Key::at_once("http.hosts", HOSTS, field!(http.hosts)),
    Key::at_once("http.names", PREFIXES, field!(http.names)),
    Key::at_once("http.names_max", number(0, 10_000), field!(http.names_max)),
    Key::at_once("http.lease_connections_max", number(0, 1_000_000), field!(http.lease_connections_max)),
    Key::at_start("cluster.name", NAME, field!(cluster.name)),
    Key::at_start("cluster.node", NAME, field!(cluster.node)),
    Key::at_start("cluster.etcd", MEMBERS, field!(cluster.etcd)),
    Key::at_start("cluster.etcd_ca", path("/etc/signalbox/etcd-ca.pem"), field!(cluster.etcd_ca)),
    Key::at_start("cluster.etcd_cert", path("/etc/signalbox/etcd.pem"), field!(cluster.etcd_cert)),
    Key::at_start("cluster.etcd_key", path("/etc/signalbox/etcd.key"), field!(cluster.etcd_key)),
    Key::at_start("cluster.etcd_user", ACCOUNT, field!(cluster.etcd_user)),
    Key::at_start(
        "cluster.etcd_password_file",
        path("/etc/signalbox/etcd-password"),
        field!(cluster.etcd_password_file),
    ),
    Key::at_start("cluster.renew_deadline", time(2, 60), field!(cluster.renew_deadline_s)),
    Key::at_start("cluster.bind", SOCKET, field!(cluster.bind)),
    Key::at_start("cluster.advertise", REACHED_AT, field!(cluster.advertise)),
    Key::at_start("cluster.relay_ca", path("/etc/signalbox/nodes-ca.pem"), field!(cluster.relay_ca)),
    Key::at_start("cluster.eligible", Kind::Flag, field!(cluster.is_eligible)),
    Key::at_start("cluster.hold", time(1, 60), field!(cluster.hold_s)),
];

/// The longest time of sessions, in seconds. In milliseconds, it fits into a `u32`, as the protocol requires.
const SESSION_TIME_MAX_S: u64 = 3_999_999;
const U32_MAX: u64 = u32::MAX as u64;

const PORT: Kind = number(1, 65_535);
const SESSION_TIME: Kind = time(1, SESSION_TIME_MAX_S);
/// A limit that cannot be switched off.
const LIMIT: Kind = number(1, U32_MAX);
const BUCKETS: Kind =
    Kind::NoEffect { least: 1, most: u64::MAX, reason: "the table of names grows and shrinks by itself" };
const ADDRESSES: Kind =
    text("IP addresses separated by spaces, such as \"127.0.0.1 ::1\", or empty for every address", any);
const ACCOUNT: Kind = text("the name of an account, such as nobody, or empty for none", is_account);
const NAME: Kind = text("1 to 64 letters, digits, dots, hyphens and underscores", is_name);
const SET_KEYS: Kind =
    text("keys and ranges of keys separated by spaces, such as \"0x1000-0x1fff 42\", or empty for none", any);

const ADMINS: Kind =
    text("IP addresses separated by spaces, such as \"127.0.0.1 ::1\", or empty for loopback only", any);
const NETWORKS: Kind = text(
    "IP addresses and networks separated by spaces, such as \"192.0.2.1 10.0.0.0/8\", or empty \
     for none",
    any,
);
const RIGHTS: Kind = text(
    "rights and the areas in which they hold, such as \"read,acquire limit:web/ semaphore\", \"all\" or \
     \"none\", or empty for the default",
    any,
);
const NETWORK_RULES: Kind = text(
    "rules of a network and rights, such as [\"10.0.0.0/8 read,acquire limit:web/\"], in \
     yrmcds.conf separated by semicolons, or empty for none",
    any,
);
const CERTIFICATE_RULES: Kind = text(
    "rules of a name with its type (dns:, uri: or cn:), or * for any, and rights, such as \
     [\"dns:worker-1 read,acquire limit:web/\"], in yrmcds.conf separated by semicolons, or empty for none",
    any,
);
const PREFIXES: Kind = text(
    "prefixes of names separated by spaces, such as \"jobs/ licences/\", or a list of them, \
     or empty for none",
    is_name_prefix,
);
const MEMBERS: Kind = text(
    "URLs of etcd's members separated by spaces, such as \"http://10.0.0.1:2379 \
     http://10.0.0.2:2379\", or empty for none",
    is_member,
);
const HOSTS: Kind = Kind::Hosts {
    allowed: "names of hosts without ports, separated by spaces, such as \"signalbox.example.org\", or \
     empty for none",
    is_allowed: is_host,
};
const REACHED_AT: Kind = Kind::Hosts {
    allowed: "names or IP addresses of hosts without ports, separated by spaces, such as \
     \"sb1.example.org\", or empty for those of bind_ip",
    is_allowed: |host| is_host(host) || host.parse::<IpAddr>().is_ok(),
};
const SOCKET: Kind =
    text("an IP address and a port, such as 10.0.0.1:11217 or [2001:db8::1]:11217", is_socket);

const fn number(least: u64, most: u64) -> Kind {
    Kind::Number { least, most }
}

const fn time(least_s: u64, most_s: u64) -> Kind {
    Kind::Time { least_s, most_s }
}

const fn text(allowed: &'static str, is_allowed: fn(&str) -> bool) -> Kind {
    Kind::Text { allowed, is_allowed }
}

const fn path(example: &'static str) -> Kind {
    Kind::Path { example }
}

/// The values that a key may have.
#[derive(Debug)]
enum Kind {
    Flag,
    Number {
        least: u64,
        most: u64,
    },
    /// A time in whole seconds: a number, or a text with a unit.
    Time {
        least_s: u64,
        most_s: u64,
    },
    /// A number of bytes, which may have a suffix in both languages.
    Bytes,
    /// A number that is checked, so that a typing error is found, but not used.
    NoEffect {
        least: u64,
        most: u64,
        reason: &'static str,
    },
    /// A text, or several in a list or in one text. The type of the field parses each.
    Text {
        allowed: &'static str,
        is_allowed: fn(&str) -> bool,
    },
    /// Like `Text`, but each text is converted to lower case.
    Hosts {
        allowed: &'static str,
        is_allowed: fn(&str) -> bool,
    },
    /// An absolute path.
    Path {
        example: &'static str,
    },
    /// Another declaration. Its keys follow.
    Declarations,
}

impl Kind {
    fn allowed(&self) -> String {
        match *self {
            Self::Flag => "true or false".to_owned(),
            Self::Number { least, most: u64::MAX } | Self::NoEffect { least, most: u64::MAX, .. } => {
                format!("a whole number, {least} or more")
            }
            Self::Number { least, most } | Self::NoEffect { least, most, .. } => {
                format!("a whole number from {least} to {most}")
            }
            Self::Time { least_s, most_s } => {
                format!("a time in whole seconds from {least_s} to {most_s}, such as 60, \"60s\" or \"1m\"")
            }
            Self::Bytes => "a number of bytes, such as 1073741824 or \"1G\", or 0 for no limit".to_owned(),
            Self::Text { allowed, .. } | Self::Hosts { allowed, .. } => allowed.to_owned(),
            Self::Path { example } => format!("an absolute path, such as {example}"),
            Self::Declarations => {
                "tables [[semaphore.declare]], which only a file in TOML can have".to_owned()
            }
        }
    }

    fn number(&self, value: &Value) -> Option<u64> {
        let (least, most) = match *self {
            Self::Number { least, most } | Self::NoEffect { least, most, .. } => (least, most),
            Self::Time { least_s, most_s } => (least_s, most_s),
            _ => (0, u64::MAX),
        };
        let number = match (value, self) {
            (Value::Number(number), _) => u64::try_from(*number).ok()?,
            (Value::Word(text) | Value::Text(text), Self::Time { .. }) => seconds(text)?,
            (Value::Word(word), _) | (Value::Text(word), Self::Bytes) => number_with_suffix(word)?,
            _ => return None,
        };
        (least..=most).contains(&number).then_some(number)
    }

    /// Parses a text, if it is allowed.
    fn parse<T>(&self, text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        match self {
            Self::Text { is_allowed, .. } => parse(Some(text).filter(|text| is_allowed(text))?),
            Self::Hosts { is_allowed, .. } => {
                parse(&Some(text.to_ascii_lowercase()).filter(|text| is_allowed(text))?)
            }
            Self::Path { .. } => {
                parse(Some(text).filter(|text| text.starts_with('/') && !text.contains('\0'))?)
            }
            _ => None,
        }
    }

    /// Parses each text of a list, or each part of a text, and omits duplicates.
    fn parse_each<T: PartialEq>(
        &self,
        value: &Value,
        separator: fn(char) -> bool,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<T>> {
        let texts: Vec<&str> = match value {
            Value::List(values) => values.iter().map(as_text).collect::<Option<_>>()?,
            _ => as_text(value)?.split(separator).filter(|part| !part.trim().is_empty()).collect(),
        };
        let mut found = Vec::with_capacity(texts.len());
        for text in texts {
            let one = self.parse(text, &parse)?;
            if !found.contains(&one) {
                found.push(one);
            }
        }
        Some(found)
    }
}

/// The type of a field, which reads and shows its values.
trait Field {
    /// Sets the field. Returns `None`, without a change, if the value is not allowed.
    fn read(&mut self, value: &Value, kind: &Kind) -> Option<()>;

    /// Returns the value as in a configuration file, without quotes; empty if it is not set.
    fn shown(&self) -> String;
}

/// Implements [`Field`] for types: how each reads a value, and shows its own.
macro_rules! fields {
    ($($($type:ty)+: $read:expr, $shown:expr;)+) => {
        $($(impl Field for $type {
            fn read(&mut self, value: &Value, kind: &Kind) -> Option<()> {
                let read: fn(&Value, &Kind) -> Option<$type> = $read;
                *self = read(value, kind)?;
                Some(())
            }

            fn shown(&self) -> String {
                let shown: fn(&$type) -> String = $shown;
                shown(self)
            }
        })+)+
    };
}

fields! {
    bool: |value, _| match value {
        Value::Flag(flag) => Some(*flag),
        Value::Word(word) => word.parse().ok(),
        _ => None,
    }, ToString::to_string;
    // A test checks these types against the ranges of the rows.
    u16 u32: |value, kind| kind.number(value)?.try_into().ok(), ToString::to_string;
    u64: |value, kind| kind.number(value), ToString::to_string;
    Option<u64>: |value, kind| kind.number(value).map(Some), |own| joined(own);
    WorkerCount: |value, kind| {
        let count = usize::try_from(kind.number(value)?).ok()?;
        NonZeroUsize::new(count).map(WorkerCount::Exactly)
    }, ToString::to_string;
    String: |value, kind| kind.parse(as_text(value)?, |text| Some(text.to_owned())), ToString::to_string;
    Threshold ClientCert PlainRule: |value, kind| {
        kind.parse(as_text(value)?, |text| ValueEnum::from_str(text, false).ok())
    }, |own| joined(own.to_possible_value().map(|word| word.get_name().to_owned()));
    // These need not be set. An empty text, where it is allowed, means that the key is not set, as in yrmcds.
    Option<String> Option<IpAddr> Option<SocketAddr> Option<Rights>: |value, kind| {
        kind.parse(as_text(value)?, |text| (!text.is_empty()).then(|| text.parse()).transpose().ok())
    }, |own| joined(own);
    Option<PathBuf>: |value, kind| {
        kind.parse(as_text(value)?, |text| Some(Some(PathBuf::from(text))))
    }, |own| joined(own.iter().map(|path| path.display()));
    Vec<IpAddr> Vec<Network> Vec<String>: |value, kind| {
        kind.parse_each(value, char::is_whitespace, |text| text.parse().ok())
    }, |own| joined(own);
    Vec<NetworkRule> Vec<CertificateRule>: |value, kind| {
        kind.parse_each(value, |c| c == ';', |text| text.parse().ok())
    }, |own| own.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    Vec<RangeInclusive<u32>>: |value, kind| kind.parse_each(value, char::is_whitespace, set_keys),
        |own| joined(own.iter().map(|keys| format!("{:#x}-{:#x}", keys.start(), keys.end())));
}

/// Parses a range of keys of System V semaphore sets.
fn set_keys(text: &str) -> Option<RangeInclusive<u32>> {
    let key = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (key(first)?, key(last)?);
    (first <= last).then_some(first..=last)
}

/// Parses a time in whole seconds, such as `30`, `30s`, `1.5h` or `0s`.
fn seconds(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok();
    }
    if ["0ms", "0s", "0m", "0h"].contains(&text) {
        return Some(0);
    }
    span(text).filter(|time| time.subsec_nanos() == 0).map(|time| time.as_secs())
}

/// Parses numbers such as `10`, `10K` or `10m`. The suffixes, as in yrmcds.conf, are powers of 1024.
fn number_with_suffix(word: &str) -> Option<u64> {
    let digits = word.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']);
    let factor = match &word[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn as_text(value: &Value) -> Option<&str> {
    match value {
        Value::Word(text) | Value::Text(text) => Some(text),
        _ => None,
    }
}

fn any(_: &str) -> bool {
    true
}

fn is_set(text: &str) -> bool {
    !text.is_empty()
}

/// Returns whether a prefix of names is not empty and has no control characters.
fn is_name_prefix(prefix: &str) -> bool {
    !prefix.is_empty() && !prefix.contains(char::is_control)
}

/// Returns whether this is the name of a user or a group, or empty.
fn is_account(name: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '#' | ':' | '/' | '=');
    !name.contains(is_odd)
}

/// Returns whether a text can be the name of a cluster or a node, which are parts of keys in etcd.
fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&text.len()) && text.chars().all(is_allowed)
}

/// Returns whether a text is the URL of a member of etcd: a scheme, a host and a port.
fn is_member(text: &str) -> bool {
    let rest = ["http://", "https://"].into_iter().find_map(|scheme| text.strip_prefix(scheme));
    let Some((host, port)) = rest.and_then(|rest| rest.rsplit_once(':')) else { return false };
    let is_host = !host.is_empty()
        && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')))
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '[' | ']'));
    is_host && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Returns whether a request can name this as its host: a DNS name in lower case, without a port.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_socket(text: &str) -> bool {
    text.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0)
}

fn joined<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
}
