//! The table of keys: one row per key, for both languages, the documents and the tests.
//!
//! A row has the allowed values of the key, its field in [`Config`], how its value is shown, and whether it may change
//! while the server runs. `apply` handles keys that are not in the table.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use super::cluster::{is_member, is_name};
use super::http::is_host;
use super::setting::Value;
use super::{
    CertificateRule, ClientCert, Config, DeclareConfig, Network, NetworkRule, PlainRule, Threshold,
    WorkerCount,
};
use crate::access::Rights;

/// A row of the table of keys.
#[derive(Debug)]
pub struct Key {
    name: &'static str,
    other_name: Option<&'static str>,
    kind: Kind,
    shown: fn(&Config) -> String,
    changes_while_running: bool,
    is_required: bool,
}

impl Key {
    /// Every key, in the order in which the documents list them.
    pub fn all() -> &'static [Self] {
        KEYS
    }

    /// The dotted name: `counter.port`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The allowed values, as a phrase that follows "must be".
    pub fn allowed(&self) -> String {
        self.kind.allowed()
    }

    /// Its value in `config`, as in a configuration file, but without quotes. Empty if it is not set, and for keys without
    /// effect. For a key of declarations, the values in all declarations, separated by spaces.
    pub fn value_in(&self, config: &Config) -> String {
        (self.shown)(config)
    }

    /// Whether a running server applies a new value on SIGHUP.
    pub fn changes_while_running(&self) -> bool {
        self.changes_while_running
    }

    /// Whether every table with this key must set it.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// For a key without effect, the reason.
    pub fn no_effect_because(&self) -> Option<&'static str> {
        match self.kind {
            Kind::NoEffect { reason, .. } => Some(reason),
            _ => None,
        }
    }

    pub(super) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name || key.other_name == Some(name))
    }

    /// Sets the field in `config`, or fails with the allowed values. A key within declarations sets the last declaration,
    /// which must exist.
    pub(super) fn set(&self, value: &Value, config: &mut Config) -> Result<(), String> {
        self.kind.set(value, config).ok_or_else(|| self.allowed())
    }

    const fn new(name: &'static str, kind: Kind, shown: fn(&Config) -> String) -> Self {
        Self { name, other_name: None, kind, shown, changes_while_running: false, is_required: false }
    }

    const fn also_named(self, other_name: &'static str) -> Self {
        Self { other_name: Some(other_name), ..self }
    }

    const fn while_running(self) -> Self {
        Self { changes_while_running: true, ..self }
    }

    const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }
}

/// Whether the key belongs to tables `[[semaphore.declare]]`, each of which may set it.
pub(super) fn is_within_declaration(name: &str) -> bool {
    name.starts_with("semaphore.declare.")
}

static KEYS: &[Key] = &[
    Key::new(
        "bind_ip",
        Kind::Addresses { empty: "every address", put: |config, addresses| config.bind = addresses },
        |config| in_a_row(&config.bind),
    ),
    Key::new("virtual_ip", Kind::Address(|config, address| config.virtual_ip = Some(address)), |config| {
        shown_if_set(config.virtual_ip)
    }),
    Key::new(
        "workers",
        Kind::Number {
            least: 1,
            most: 1024,
            put: |config, n| {
                let count = NonZeroUsize::new(narrow(n)).expect("it is at least 1");
                config.workers = WorkerCount::Exactly(count);
            },
        },
        |config| config.workers.to_string(),
    ),
    Key::new("memory_max", Kind::Bytes(|config, bytes| config.memory_max = Some(bytes)), |config| {
        shown_if_set(config.memory_max)
    })
    .while_running(),
    Key::new(
        "client_share",
        Kind::Number { least: 1, most: 100, put: |config, n| config.client_share = narrow(n) },
        |config| config.client_share.to_string(),
    )
    .while_running(),
    Key::new(
        "short_connections",
        Kind::Number { least: 0, most: 1_000_000, put: |config, n| config.short_connections = narrow(n) },
        |config| config.short_connections.to_string(),
    )
    .while_running(),
    Key::new("user", Kind::Account(|config, name| config.user = name), |config| {
        shown_if_set(config.user.as_ref())
    }),
    Key::new("group", Kind::Account(|config, name| config.group = name), |config| {
        shown_if_set(config.group.as_ref())
    }),
    Key::new(
        "peer_timeout",
        Kind::Number { least: 5, most: 86_400, put: |config, n| config.peer_timeout_s = narrow(n) },
        |config| config.peer_timeout_s.to_string(),
    )
    .while_running(),
    Key::new(
        "frame_timeout",
        Kind::Number { least: 1, most: 3_600, put: |config, n| config.frame_timeout_s = narrow(n) },
        |config| config.frame_timeout_s.to_string(),
    )
    .while_running(),
    Key::new(
        "admin_from",
        Kind::Addresses { empty: "loopback only", put: |config, addresses| config.admin_from = addresses },
        |config| in_a_row(&config.admin_from),
    )
    .while_running(),
    Key::new("proxies", Kind::Networks(|config, networks| config.proxies = networks), |config| {
        in_a_row(&config.proxies)
    })
    .while_running(),
    Key::new(
        "data_dir",
        Kind::File { example: "/var/lib/signalbox", put: |config, path| config.data_dir = Some(path) },
        |config| shown_if_set(config.data_dir.as_ref().map(|path| path.display())),
    ),
    Key::new(
        "log.threshold",
        Kind::Threshold(|config, threshold| config.log.threshold = threshold),
        |config| config.log.threshold.to_string(),
    )
    .while_running(),
    Key::new(
        "log.file",
        Kind::File { example: "/var/log/signalbox.log", put: |config, path| config.log.file = Some(path) },
        |config| shown_if_set(config.log.file.as_ref().map(|path| path.display())),
    ),
    Key::new(
        "tls.cert",
        Kind::File { example: "/etc/signalbox/server.pem", put: |config, path| config.tls.cert = Some(path) },
        |config| shown_if_set(config.tls.cert.as_ref().map(|path| path.display())),
    )
    .while_running(),
    Key::new(
        "tls.key",
        Kind::File { example: "/etc/signalbox/server.key", put: |config, path| config.tls.key = Some(path) },
        |config| shown_if_set(config.tls.key.as_ref().map(|path| path.display())),
    )
    .while_running(),
    Key::new(
        "tls.client_ca",
        Kind::File {
            example: "/etc/signalbox/client-ca.pem",
            put: |config, path| config.tls.client_ca = Some(path),
        },
        |config| shown_if_set(config.tls.client_ca.as_ref().map(|path| path.display())),
    )
    .while_running(),
    Key::new("tls.client_cert", Kind::ClientCert(|config, rule| config.tls.client_cert = rule), |config| {
        config.tls.client_cert.to_string()
    })
    .while_running(),
    Key::new("tls.plain", Kind::Plain(|config, rule| config.tls.plain = rule), |config| {
        config.tls.plain.to_string()
    })
    .while_running(),
    Key::new(
        "access.tokens",
        Kind::File {
            example: "/etc/signalbox/tokens.toml",
            put: |config, path| config.access.tokens = Some(path),
        },
        |config| shown_if_set(config.access.tokens.as_ref().map(|path| path.display())),
    )
    .while_running(),
    Key::new(
        "access.tokens_over_plain",
        Kind::Flag(|config, flag| config.access.tokens_over_plain = flag),
        |config| config.access.tokens_over_plain.to_string(),
    )
    .while_running(),
    Key::new("access.anonymous", Kind::Rights(|config, rights| config.access.anonymous = rights), |config| {
        shown_if_set(config.access.anonymous.as_ref())
    })
    .while_running(),
    Key::new(
        "access.networks",
        Kind::NetworkRules(|config, rules| config.access.networks = rules),
        |config| rules_in_a_row(&config.access.networks),
    )
    .while_running(),
    Key::new(
        "access.certificates",
        Kind::CertificateRules(|config, rules| config.access.certificates = rules),
        |config| rules_in_a_row(&config.access.certificates),
    )
    .while_running(),
    Key::new(
        "access.audit_log",
        Kind::File {
            example: "/var/log/signalbox-audit.log",
            put: |config, path| config.access.audit_log = Some(path),
        },
        |config| shown_if_set(config.access.audit_log.as_ref().map(|path| path.display())),
    ),
    Key::new("counter.enable", Kind::Flag(|config, flag| config.counter.port.enable = flag), |config| {
        config.counter.port.enable.to_string()
    }),
    Key::new(
        "counter.port",
        Kind::Number { least: 1, most: 65_535, put: |config, n| config.counter.port.port = narrow(n) },
        |config| config.counter.port.port.to_string(),
    ),
    Key::new(
        "counter.max_connections",
        Kind::Number {
            least: 0,
            most: u32::MAX as u64,
            put: |config, n| config.counter.port.max_connections = narrow(n),
        },
        |config| config.counter.port.max_connections.to_string(),
    )
    .while_running(),
    Key::new(
        "counter.max_names",
        Kind::Number { least: 0, most: u64::MAX, put: |config, n| config.counter.port.max_names = n },
        |config| config.counter.port.max_names.to_string(),
    )
    .while_running(),
    Key::new(
        "counter.stat_interval",
        Kind::Number {
            least: 1,
            most: u32::MAX as u64,
            put: |config, n| config.counter.stat_interval_s = narrow(n),
        },
        |config| config.counter.stat_interval_s.to_string(),
    )
    .also_named("counter.stats_interval"),
    Key::new("counter.buckets", BUCKETS, |_| String::new()),
    Key::new("semaphore.enable", Kind::Flag(|config, flag| config.semaphore.port.enable = flag), |config| {
        config.semaphore.port.enable.to_string()
    }),
    Key::new(
        "semaphore.port",
        Kind::Number { least: 1, most: 65_535, put: |config, n| config.semaphore.port.port = narrow(n) },
        |config| config.semaphore.port.port.to_string(),
    ),
    Key::new(
        "semaphore.max_connections",
        Kind::Number {
            least: 0,
            most: u32::MAX as u64,
            put: |config, n| config.semaphore.port.max_connections = narrow(n),
        },
        |config| config.semaphore.port.max_connections.to_string(),
    )
    .while_running(),
    Key::new(
        "semaphore.max_names",
        Kind::Number { least: 0, most: u64::MAX, put: |config, n| config.semaphore.port.max_names = n },
        |config| config.semaphore.port.max_names.to_string(),
    )
    .while_running(),
    Key::new(
        "semaphore.gc_interval",
        Kind::Number { least: 1, most: 86_400, put: |config, n| config.semaphore.gc_interval_s = narrow(n) },
        |config| config.semaphore.gc_interval_s.to_string(),
    ),
    Key::new("semaphore.buckets", BUCKETS, |_| String::new()),
    Key::new("semaphore.declare", Kind::Declarations, |config| of_declarations(config, |of| &of.name))
        .while_running(),
    Key::new(
        "semaphore.declare.name",
        Kind::Text {
            least_bytes: 1,
            most_bytes: 65_535,
            put: |config, name| declaration(config).name = name,
        },
        |config| of_declarations(config, |of| &of.name),
    )
    .required()
    .while_running(),
    Key::new(
        "semaphore.declare.capacity",
        Kind::Number {
            least: 0,
            most: u32::MAX as u64,
            put: |config, n| declaration(config).capacity = narrow(n),
        },
        |config| of_declarations(config, |of| &of.capacity),
    )
    .required()
    .while_running(),
    Key::new(
        "semaphore.declare.slots",
        Kind::Flag(|config, flag| declaration(config).slots = flag),
        |config| of_declarations(config, |of| &of.slots),
    )
    .while_running(),
    Key::new(
        "semaphore.declare.label",
        Kind::Text {
            least_bytes: 0,
            most_bytes: 255,
            put: |config, label| declaration(config).label = label,
        },
        |config| of_declarations(config, |of| &of.label),
    )
    .while_running(),
    Key::new(
        "session.default_ttl",
        session_time(|config, n| config.session.default_ttl_s = narrow(n)),
        |config| config.session.default_ttl_s.to_string(),
    )
    .while_running(),
    Key::new("session.min_ttl", session_time(|config, n| config.session.min_ttl_s = narrow(n)), |config| {
        config.session.min_ttl_s.to_string()
    })
    .while_running(),
    Key::new("session.max_ttl", session_time(|config, n| config.session.max_ttl_s = narrow(n)), |config| {
        config.session.max_ttl_s.to_string()
    })
    .while_running(),
    Key::new(
        "session.default_wait",
        session_time(|config, n| config.session.default_wait_s = narrow(n)),
        |config| config.session.default_wait_s.to_string(),
    )
    .while_running(),
    Key::new("session.max_wait", session_time(|config, n| config.session.max_wait_s = narrow(n)), |config| {
        config.session.max_wait_s.to_string()
    })
    .while_running(),
    Key::new(
        "session.reconnect_window",
        Kind::Number {
            least: 0,
            most: SESSION_TIME_MAX_S,
            put: |config, n| config.session.reconnect_window_s = narrow(n),
        },
        |config| config.session.reconnect_window_s.to_string(),
    ),
    Key::new(
        "session.max_sessions",
        session_limit(|config, n| config.session.max_sessions = narrow(n)),
        |config| config.session.max_sessions.to_string(),
    )
    .while_running(),
    Key::new(
        "session.max_grants",
        session_limit(|config, n| config.session.max_grants = narrow(n)),
        |config| config.session.max_grants.to_string(),
    )
    .while_running(),
    Key::new(
        "session.max_waiters",
        session_limit(|config, n| config.session.max_waiters = narrow(n)),
        |config| config.session.max_waiters.to_string(),
    )
    .while_running(),
    Key::new(
        "session.max_watches",
        session_limit(|config, n| config.session.max_watches = narrow(n)),
        |config| config.session.max_watches.to_string(),
    )
    .while_running(),
    Key::new("sysv.max_sets", session_limit(|config, n| config.sysv.max_sets = narrow(n)), |config| {
        config.sysv.max_sets.to_string()
    })
    .while_running(),
    Key::new("sysv.max_semaphores", session_limit(|config, n| config.sysv.max_semaphores = n), |config| {
        config.sysv.max_semaphores.to_string()
    })
    .while_running(),
    Key::new("sysv.fifo_keys", Kind::KeyRanges(|config, keys| config.sysv.fifo_keys = keys), |config| {
        in_a_row(config.sysv.fifo_keys.iter().map(shown_keys))
    })
    .while_running(),
    Key::new(
        "sysv.durable_keys",
        Kind::KeyRanges(|config, keys| config.sysv.durable_keys = keys),
        |config| in_a_row(config.sysv.durable_keys.iter().map(shown_keys)),
    )
    .while_running(),
    Key::new("http.enable", Kind::Flag(|config, flag| config.http.enable = flag), |config| {
        config.http.enable.to_string()
    }),
    Key::new(
        "http.bind_ip",
        Kind::Addresses { empty: "every address", put: |config, addresses| config.http.bind = addresses },
        |config| in_a_row(&config.http.bind),
    ),
    Key::new(
        "http.port",
        Kind::Number { least: 1, most: 65_535, put: |config, n| config.http.port = narrow(n) },
        |config| config.http.port.to_string(),
    ),
    Key::new("http.hosts", Kind::Hosts(|config, hosts| config.http.hosts = hosts), |config| {
        in_a_row(&config.http.hosts)
    })
    .while_running(),
    Key::new("http.names", Kind::Prefixes(|config, names| config.http.names = names), |config| {
        in_a_row(&config.http.names)
    })
    .while_running(),
    Key::new(
        "http.names_max",
        Kind::Number { least: 0, most: 10_000, put: |config, n| config.http.names_max = narrow(n) },
        |config| config.http.names_max.to_string(),
    )
    .while_running(),
    Key::new("cluster.name", Kind::Name(|config, name| config.cluster.name = name), |config| {
        config.cluster.name.clone()
    }),
    Key::new("cluster.node", Kind::Name(|config, name| config.cluster.node = Some(name)), |config| {
        shown_if_set(config.cluster.node.as_ref())
    }),
    Key::new("cluster.etcd", Kind::Members(|config, members| config.cluster.etcd = members), |config| {
        in_a_row(&config.cluster.etcd)
    }),
    Key::new(
        "cluster.etcd_ca",
        Kind::File {
            example: "/etc/signalbox/etcd-ca.pem",
            put: |config, p| config.cluster.etcd_ca = Some(p),
        },
        |config| shown_if_set(config.cluster.etcd_ca.as_ref().map(|path| path.display())),
    ),
    Key::new(
        "cluster.etcd_cert",
        Kind::File {
            example: "/etc/signalbox/etcd.pem",
            put: |config, p| config.cluster.etcd_cert = Some(p),
        },
        |config| shown_if_set(config.cluster.etcd_cert.as_ref().map(|path| path.display())),
    ),
    Key::new(
        "cluster.etcd_key",
        Kind::File { example: "/etc/signalbox/etcd.key", put: |config, p| config.cluster.etcd_key = Some(p) },
        |config| shown_if_set(config.cluster.etcd_key.as_ref().map(|path| path.display())),
    ),
    Key::new("cluster.etcd_user", Kind::Account(|config, name| config.cluster.etcd_user = name), |config| {
        shown_if_set(config.cluster.etcd_user.as_ref())
    }),
    Key::new(
        "cluster.etcd_password_file",
        Kind::File {
            example: "/etc/signalbox/etcd-password",
            put: |config, p| config.cluster.etcd_password_file = Some(p),
        },
        |config| shown_if_set(config.cluster.etcd_password_file.as_ref().map(|path| path.display())),
    ),
    Key::new(
        "cluster.renew_deadline",
        Kind::Number { least: 2, most: 60, put: |config, n| config.cluster.renew_deadline_s = narrow(n) },
        |config| config.cluster.renew_deadline_s.to_string(),
    ),
    Key::new("cluster.bind", Kind::Socket(|config, address| config.cluster.bind = Some(address)), |config| {
        shown_if_set(config.cluster.bind)
    }),
    Key::new(
        "cluster.advertise",
        Kind::ReachedAt(|config, hosts| config.cluster.advertise = hosts),
        |config| in_a_row(&config.cluster.advertise),
    ),
    Key::new(
        "cluster.relay_ca",
        Kind::File {
            example: "/etc/signalbox/nodes-ca.pem",
            put: |config, p| config.cluster.relay_ca = Some(p),
        },
        |config| shown_if_set(config.cluster.relay_ca.as_ref().map(|path| path.display())),
    ),
    Key::new("cluster.eligible", Kind::Flag(|config, flag| config.cluster.is_eligible = flag), |config| {
        config.cluster.is_eligible.to_string()
    }),
    Key::new(
        "cluster.hold",
        Kind::Number { least: 1, most: 60, put: |config, n| config.cluster.hold_s = narrow(n) },
        |config| config.cluster.hold_s.to_string(),
    ),
];

/// The longest time of sessions in seconds. It comes from the wire, where it is a `u32` of milliseconds.
const SESSION_TIME_MAX_S: u64 = 3_999_999;

/// A time of sessions in seconds.
const fn session_time(put: fn(&mut Config, u64)) -> Kind {
    Kind::Number { least: 1, most: SESSION_TIME_MAX_S, put }
}

/// A limit of sessions. It cannot be switched off.
const fn session_limit(put: fn(&mut Config, u64)) -> Kind {
    Kind::Number { least: 1, most: u32::MAX as u64, put }
}

fn shown_keys(keys: &RangeInclusive<u32>) -> String {
    format!("{:#x}-{:#x}", keys.start(), keys.end())
}

/// The declaration that is being read: the last one.
fn declaration(config: &mut Config) -> &mut DeclareConfig {
    config.semaphore.declare.last_mut().expect("apply refuses keys of declarations outside of one")
}

const BUCKETS: Kind =
    Kind::NoEffect { least: 1, most: u64::MAX, reason: "the table of names grows and shrinks by itself" };

/// The type of a key's value, and the field that it sets.
#[derive(Debug)]
enum Kind {
    Flag(fn(&mut Config, bool)),
    Number {
        least: u64,
        most: u64,
        put: fn(&mut Config, u64),
    },
    /// A number of bytes, which may have a suffix in both languages.
    Bytes(fn(&mut Config, u64)),
    /// A number that is checked, so that a typing error is found, but not used.
    NoEffect {
        least: u64,
        most: u64,
        reason: &'static str,
    },
    Address(fn(&mut Config, IpAddr)),
    Addresses {
        /// The meaning of an empty list.
        empty: &'static str,
        put: fn(&mut Config, Vec<IpAddr>),
    },
    Networks(fn(&mut Config, Vec<Network>)),
    /// The name of a user or a group; the empty one stands for none, as in yrmcds.
    Account(fn(&mut Config, Option<String>)),
    File {
        /// A path for messages.
        example: &'static str,
        put: fn(&mut Config, PathBuf),
    },
    Threshold(fn(&mut Config, Threshold)),
    ClientCert(fn(&mut Config, ClientCert)),
    Plain(fn(&mut Config, PlainRule)),
    /// What clients may do; empty: the default.
    Rights(fn(&mut Config, Option<Rights>)),
    /// What the clients of networks may do.
    NetworkRules(fn(&mut Config, Vec<NetworkRule>)),
    /// What the clients with certificates may do.
    CertificateRules(fn(&mut Config, Vec<CertificateRule>)),
    Text {
        least_bytes: usize,
        most_bytes: usize,
        put: fn(&mut Config, String),
    },
    /// An address with a port.
    Socket(fn(&mut Config, SocketAddr)),
    /// The name of a cluster or a node.
    Name(fn(&mut Config, String)),
    /// URLs of members of etcd.
    Members(fn(&mut Config, Vec<String>)),
    /// Names of hosts.
    Hosts(fn(&mut Config, Vec<String>)),
    /// Names or IP addresses of hosts.
    ReachedAt(fn(&mut Config, Vec<String>)),
    /// Beginnings of names.
    Prefixes(fn(&mut Config, Vec<String>)),
    /// Ranges of keys of System V semaphore sets.
    KeyRanges(fn(&mut Config, Vec<RangeInclusive<u32>>)),
    /// A further declaration. Its keys follow.
    Declarations,
}

impl Kind {
    fn allowed(&self) -> String {
        match self {
            Self::Flag(_) => "true or false".to_owned(),
            Self::Number { least, most, .. } | Self::NoEffect { least, most, .. } => {
                if *most == u64::MAX {
                    format!("a whole number, {least} or more")
                } else {
                    format!("a whole number from {least} to {most}")
                }
            }
            Self::Bytes(_) => "a number of bytes, such as 1073741824 or \"1G\", or 0 for no limit".to_owned(),
            Self::Address(_) => "an IP address, such as 192.0.2.1 or 2001:db8::1".to_owned(),
            Self::Addresses { empty, .. } => {
                format!(
                    "IP addresses with spaces between them, such as \"127.0.0.1 ::1\", or empty for {empty}"
                )
            }
            Self::Networks(_) => {
                "IP addresses and networks with spaces between them, such as \"192.0.2.1 10.0.0.0/8\", or empty for none"
                    .to_owned()
            }
            Self::Account(_) => "the name of an account, such as nobody, or empty for none".to_owned(),
            Self::File { example, .. } => format!("an absolute path, such as {example}"),
            Self::Threshold(_) => "error, warning, info or debug".to_owned(),
            Self::ClientCert(_) => ClientCert::ALLOWED.to_owned(),
            Self::Plain(_) => PlainRule::ALLOWED.to_owned(),
            Self::Rights(_) => {
                "rights and where they hold, such as \"read,acquire counter:web/ semaphore\", \"all\" or \"none\", or empty for \
                 the default"
                    .to_owned()
            }
            Self::NetworkRules(_) => {
                "rules of a network and rights, such as [\"10.0.0.0/8 read,acquire counter:web/\"], in yrmcds.conf with \
                 semicolons between them, or empty for none"
                    .to_owned()
            }
            Self::CertificateRules(_) => {
                "rules of a name and rights, such as [\"worker-1 read,acquire counter:web/\"], in yrmcds.conf with semicolons \
                 between them, or empty for none"
                    .to_owned()
            }
            Self::Text { least_bytes: 0, most_bytes, .. } => format!("a text of at most {most_bytes} bytes"),
            Self::Text { least_bytes, most_bytes, .. } => {
                format!("a text of {least_bytes} to {most_bytes} bytes")
            }
            Self::Socket(_) => "an IP address and a port, such as 10.0.0.1:11217 or [2001:db8::1]:11217".to_owned(),
            Self::Name(_) => "1 to 64 letters, digits, dots, hyphens and underscores".to_owned(),
            Self::Members(_) => {
                "URLs of etcd's members with spaces between them, such as \"http://10.0.0.1:2379 http://10.0.0.2:2379\", or \
                 empty for none"
                    .to_owned()
            }
            Self::Hosts(_) => {
                "names of hosts without ports, with spaces between them, such as \"signalbox.example.org\", or empty for \
                 none"
                    .to_owned()
            }
            Self::ReachedAt(_) => {
                "names or IP addresses of hosts without ports, with spaces between them, such as \"sb1.example.org\", or \
                 empty for those of bind_ip"
                    .to_owned()
            }
            Self::Prefixes(_) => {
                "beginnings of names with spaces between them, such as \"jobs/ licences/\", or a list of them, or empty for \
                 none"
                    .to_owned()
            }
            Self::KeyRanges(_) => {
                "keys and ranges of keys with spaces between them, such as \"0x1000-0x1fff 42\", or empty for none"
                    .to_owned()
            }
            Self::Declarations => {
                "tables [[semaphore.declare]], which only a file in TOML can have".to_owned()
            }
        }
    }

    /// `None` if the value is not allowed. Then `config` does not change.
    fn set(&self, value: &Value, config: &mut Config) -> Option<()> {
        match self {
            Self::Flag(put) => put(config, flag(value)?),
            Self::Number { least, most, put } => put(config, number(value, *least, *most)?),
            Self::Bytes(put) => put(config, bytes(value)?),
            Self::NoEffect { least, most, .. } => {
                number(value, *least, *most)?;
            }
            Self::Address(put) => put(config, text(value)?.parse().ok()?),
            Self::Addresses { put, .. } => put(config, each_once(value)?),
            Self::Networks(put) => put(config, each_once(value)?),
            Self::Account(put) => put(config, account(text(value)?)?),
            Self::File { put, .. } => put(config, absolute_path(text(value)?)?),
            Self::Threshold(put) => put(config, text(value)?.parse().ok()?),
            Self::ClientCert(put) => put(config, text(value)?.parse().ok()?),
            Self::Plain(put) => put(config, text(value)?.parse().ok()?),
            Self::Rights(put) => {
                let text = text(value)?;
                put(config, if text.is_empty() { None } else { Some(text.parse().ok()?) });
            }
            Self::NetworkRules(put) => put(config, rules(value)?),
            Self::CertificateRules(put) => put(config, rules(value)?),
            Self::Text { least_bytes, most_bytes, put } => {
                let text = text(value)?;
                let is_allowed = (*least_bytes..=*most_bytes).contains(&text.len());
                put(config, is_allowed.then(|| text.to_owned())?);
            }
            Self::Socket(put) => {
                put(config, text(value)?.parse().ok().filter(|address: &SocketAddr| address.port() != 0)?);
            }
            Self::Name(put) => put(config, text(value).filter(|text| is_name(text))?.to_owned()),
            Self::Members(put) => {
                let members: Vec<String> = each_once(value)?;
                put(config, members.iter().all(|member| is_member(member)).then_some(members)?);
            }
            Self::Hosts(put) => {
                let hosts: Vec<String> = each_once(&in_lower_case(value)?)?;
                put(config, hosts.iter().all(|host| is_host(host)).then_some(hosts)?);
            }
            Self::ReachedAt(put) => {
                let hosts: Vec<String> = each_once(&in_lower_case(value)?)?;
                let is_reached_at = |host: &String| is_host(host) || host.parse::<IpAddr>().is_ok();
                put(config, hosts.iter().all(is_reached_at).then_some(hosts)?);
            }
            Self::Prefixes(put) => {
                let prefixes: Vec<String> = each_once(value)?;
                put(config, prefixes.iter().all(|prefix| is_shown(prefix)).then_some(prefixes)?);
            }
            Self::KeyRanges(put) => put(config, key_ranges(value)?),
            Self::Declarations => match value {
                Value::Entry => config.semaphore.declare.push(DeclareConfig::default()),
                Value::List(values) if values.is_empty() => {}
                _ => return None,
            },
        }
        Some(())
    }
}

fn key_ranges(value: &Value) -> Option<Vec<RangeInclusive<u32>>> {
    let words: Vec<&str> = match value {
        Value::List(values) => values.iter().map(text).collect::<Option<_>>()?,
        value => text(value)?.split_whitespace().collect(),
    };
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last) = (set_key(first)?, set_key(last)?);
        (first <= last).then_some(first..=last)
    };
    words.into_iter().map(range).collect()
}

/// The key of a set, decimal or hexadecimal.
fn set_key(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Flag(flag) => Some(*flag),
        Value::Word(word) => word.parse().ok(),
        _ => None,
    }
}

fn number(value: &Value, least: u64, most: u64) -> Option<u64> {
    let number = match value {
        Value::Number(number) => u64::try_from(*number).ok()?,
        Value::Word(word) => number_with_suffix(word)?,
        _ => return None,
    };
    (least..=most).contains(&number).then_some(number)
}

fn bytes(value: &Value) -> Option<u64> {
    match value {
        Value::Text(text) => number_with_suffix(text),
        value => number(value, 0, u64::MAX),
    }
}

/// `10`, `10K`, `10m`: the suffixes of yrmcds.conf are powers of 1024.
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

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Word(text) | Value::Text(text) => Some(text),
        _ => None,
    }
}

/// The addresses or networks of a list or of a text, each once.
fn each_once<T: FromStr + PartialEq>(value: &Value) -> Option<Vec<T>> {
    let words: Vec<&str> = match value {
        Value::List(values) => values.iter().map(text).collect::<Option<_>>()?,
        _ => text(value)?.split_whitespace().collect(),
    };
    let mut found = Vec::with_capacity(words.len());
    for word in words {
        let one = word.parse().ok()?;
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Some(found)
}

/// Whether a beginning of names is not empty and has no characters that cannot be seen.
fn is_shown(prefix: &str) -> bool {
    !prefix.is_empty() && !prefix.contains(char::is_control)
}

/// The same texts in lower case.
fn in_lower_case(value: &Value) -> Option<Value> {
    match value {
        Value::List(values) => Some(Value::List(values.iter().map(in_lower_case).collect::<Option<_>>()?)),
        value => Some(Value::Text(text(value)?.to_ascii_lowercase())),
    }
}

/// The rules of a list, or of a text with semicolons between them.
fn rules<T: FromStr>(value: &Value) -> Option<Vec<T>> {
    let rules: Vec<&str> = match value {
        Value::List(values) => values.iter().map(text).collect::<Option<_>>()?,
        _ => text(value)?.split(';').filter(|rule| !rule.trim().is_empty()).collect(),
    };
    rules.into_iter().map(|rule| rule.parse().ok()).collect()
}

fn rules_in_a_row<T: ToString>(rules: &[T]) -> String {
    rules.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn account(name: &str) -> Option<Option<String>> {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '#' | ':' | '/' | '=');
    if name.contains(is_odd) {
        return None;
    }
    Some((!name.is_empty()).then(|| name.to_owned()))
}

fn absolute_path(text: &str) -> Option<PathBuf> {
    (text.starts_with('/') && !text.contains('\0')).then(|| PathBuf::from(text))
}

fn shown_if_set(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn in_a_row<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
}

fn of_declarations<T: Display>(config: &Config, part: fn(&DeclareConfig) -> &T) -> String {
    in_a_row(config.semaphore.declare.iter().map(part))
}

/// A number that was checked against its row, in the type of its field.
fn narrow<T: TryFrom<u64>>(number: u64) -> T {
    T::try_from(number).ok().expect("a test checks that the range of each row fits its field")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_fits_its_field() {
        for key in Key::all() {
            let Kind::Number { least, most, .. } = key.kind else { continue };
            for number in [least, most] {
                let mut config = with_a_declaration();
                key.set(&Value::Number(number.into()), &mut config).unwrap();
                assert_eq!(key.value_in(&config), number.to_string(), "{}", key.name());
            }
            for number in [i128::from(least) - 1, i128::from(most) + 1] {
                assert!(
                    key.set(&Value::Number(number), &mut with_a_declaration()).is_err(),
                    "{}",
                    key.name()
                );
            }
        }
    }

    fn with_a_declaration() -> Config {
        let mut config = Config::default();
        config.semaphore.declare.push(DeclareConfig::default());
        config
    }

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (word, number) in [
            ("0", Some(0)),
            ("2k", Some(2048)),
            ("2K", Some(2048)),
            ("3M", Some(3 << 20)),
            ("1g", Some(1 << 30)),
            ("K", None),
            ("1KK", None),
            ("1.5K", None),
            ("-1", None),
            ("", None),
            ("1 K", None),
            ("18446744073709551615G", None),
        ] {
            assert_eq!(number_with_suffix(word), number, "{word:?}");
        }
    }

    #[test]
    fn keys_are_numbers_and_ranges() {
        let word = |text: &str| key_ranges(&Value::Text(text.to_owned()));
        assert_eq!(word(" 0x10-0x1f\t42 0-4294967295"), Some(vec![0x10..=0x1f, 42..=42, 0..=u32::MAX]));
        assert_eq!(word(""), Some(vec![]));
        for wrong in ["0x1f-0x10", "1-", "-1", "x", "4294967296", "1-2-3"] {
            assert_eq!(word(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn addresses_come_as_a_list_or_in_a_row() {
        let expected: Vec<IpAddr> = vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        let row = Value::Text(" 127.0.0.1\t::1 127.0.0.1".to_owned());
        let list = Value::List(vec![Value::Text("127.0.0.1".to_owned()), Value::Text("::1".to_owned())]);
        assert_eq!(each_once(&row), Some(expected.clone()));
        assert_eq!(each_once(&list), Some(expected));
        assert_eq!(each_once::<IpAddr>(&Value::Word(String::new())), Some(vec![]));
        assert_eq!(each_once::<IpAddr>(&Value::Word("localhost".to_owned())), None);
    }
}
