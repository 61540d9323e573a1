//! Messages about a configuration: errors, which prevent the start of the server, and notices, which are logged.
//!
//! An error names the file, the line, the key, the value and what would be right, as far as each applies. The command line
//! prints it and chooses the exit status.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be opened or read.
    #[error("{}: the configuration file cannot be read: {source}; check its path and its permissions", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file has an error.
    #[error("{}:{line}: {reason}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The line of the error, counted from 1.
        line: usize,
        /// What is wrong and what would be right.
        reason: Reason,
    },
    /// A variable of the environment is of no key.
    #[error(
        "{variable}: this environment variable is of no key of signalbox; {}",
        match close {
            Some(close) => format!("did you mean {close}?"),
            None => "remove it from the environment".to_owned(),
        }
    )]
    UnknownVariable {
        /// The variable.
        variable: String,
        /// A variable that may have been meant.
        close: Option<String>,
    },
    /// A variable of the environment has a value that its key does not allow.
    #[error("{variable} = {value}: must be {allowed}")]
    InVariable {
        /// The variable.
        variable: String,
        /// Its value.
        value: String,
        /// What would be right.
        allowed: String,
    },
    /// Keys contradict each other, and one of them was set there.
    #[error("{place}: {error}")]
    At {
        /// The file and line, the variable, or the option.
        place: String,
        /// The contradiction.
        error: Box<ConfigError>,
    },
    /// Neither counters nor semaphores are enabled.
    #[error(
        "counter.enable and semaphore.enable are both false; set `counter.enable = true`, `semaphore.enable = true` or \
         both in the configuration file"
    )]
    NothingEnabled,
    /// Both extensions are enabled on the same port.
    #[error(
        "counter.port and semaphore.port are both {port}; set one of them to another port, \
         such as `semaphore.port = {}`",
        if *port == 11216 { 11215 } else { 11216 }
    )]
    SamePort {
        /// The port.
        port: u16,
    },
    /// The HTTP listener has the port of another one.
    #[error(
        "http.port and {key} are both {port}; set http.port to another port, such as `http.port = 11217`"
    )]
    SameHttpPort {
        /// The port.
        port: u16,
        /// The key of the other one.
        key: &'static str,
    },
    /// Semaphore sets are to be durable, and there is no store.
    #[error(
        "sysv.durable_keys is set, but data_dir is not; set data_dir to the directory in which these sets are kept, such as \
         `data_dir = \"/var/lib/signalbox\"`, or make this server a node of a cluster"
    )]
    NoStore,
    /// A key of `[cluster]` is of no use without another one.
    #[error("{key} is set, but {missing} is not; set both or neither")]
    ClusterIncomplete {
        /// The key that is set.
        key: &'static str,
        /// The key that it needs.
        missing: &'static str,
    },
    /// Members of etcd have certificates, and nothing says who signed them.
    #[error(
        "cluster.etcd has a member with https, but cluster.etcd_ca is not set; set it to the file with the certificate of \
         the authority that signed those of etcd's members"
    )]
    ClusterWithoutAuthority,
    /// A key of `[tls]` is of no use without another one.
    #[error("{key} is set, but {missing} is not; set both or neither")]
    TlsIncomplete {
        /// The key that is set.
        key: &'static str,
        /// The key that it needs.
        missing: &'static str,
    },
    /// Other nodes need an address that they can reach.
    #[error(
        "cluster.bind has the address of no network; set the address at which the other nodes reach this one, such as \
         10.0.0.1:11218"
    )]
    ClusterBindUnspecified,
    /// A node of a cluster has no data directory.
    #[error(
        "cluster.etcd and data_dir are both set, but a node of a cluster stores everything in etcd; remove data_dir \
         (\"signalbox data export\" and \"signalbox data import --cluster\" move its contents into the cluster)"
    )]
    ClusterAndDataDir,
    /// A node of a cluster declares no semaphores by its configuration.
    #[error(
        "cluster.etcd and semaphore.declare are both set, but nodes with different files would undo each other's \
         declarations; remove the [[semaphore.declare]] tables, and declare each semaphore once with \"signalbox declare\": \
         the cluster keeps it"
    )]
    ClusterAndDeclare,
    /// The header of a proxy would be behind the TLS of the relay, where it is not looked for.
    #[error(
        "cluster.relay_ca and proxies are both set, but a relay that encrypts cannot pass on the header of a proxy; remove one of \
         the two: without proxies, clients count as their proxy, and without relay_ca, only clients with TLS of their own are \
         encrypted between the nodes"
    )]
    RelayCaAndProxies,
    /// A time exceeds another one that limits it.
    #[error(
        "{} is {} and {} is {}; lower the first or raise the second", lower.0, lower.1, upper.0, upper.1
    )]
    OutOfOrder {
        /// The key that must not be more, and its value.
        lower: (&'static str, u32),
        /// The key that must not be less, and its value.
        upper: (&'static str, u32),
    },
}

/// What is wrong with a line of a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Reason {
    /// The line does not follow the syntax of the file.
    #[error("{0}")]
    Syntax(String),
    /// No key has this name.
    #[error("{key} is not a key of signalbox{}", did_you_mean(*close))]
    UnknownKey {
        /// The key, dotted.
        key: String,
        /// A key that may have been meant.
        close: Option<&'static str>,
    },
    /// The value is of the wrong type or out of range.
    #[error("{key} = {value}: must be {allowed}")]
    Value {
        /// The key, dotted.
        key: String,
        /// The value as written in the file.
        value: String,
        /// What would be right.
        allowed: String,
    },
    /// A table of an array lacks a required key.
    #[error("{key} is not set in this [[{table}]]; it must be {allowed}")]
    Missing {
        /// The key, dotted.
        key: &'static str,
        /// The name of the array, dotted.
        table: String,
        /// What would be right.
        allowed: String,
    },
    /// Two tables declare the same name.
    #[error("{key} = {value}: line {earlier_line} declares this name already; keep one of them")]
    DeclaredTwice {
        /// The key, dotted.
        key: String,
        /// The name as written in the file.
        value: String,
        /// Where it was declared before.
        earlier_line: usize,
    },
    /// A key is set twice, maybe in two spellings.
    #[error(
        "{key} = {value}: line {earlier_line} sets {earlier_key} already, which is the same key; keep one of them"
    )]
    SetTwice {
        /// The key, dotted.
        key: String,
        /// The value as written in the file.
        value: String,
        /// The key as it was spelled before.
        earlier_key: String,
        /// Where it was set before.
        earlier_line: usize,
    },
}

/// A reason and its line, from the readers, which do not know the file's path.
#[derive(Debug)]
pub(super) struct Mistake {
    /// Counted from 1.
    pub(super) line: usize,
    /// What is wrong there.
    pub(super) reason: Reason,
}

impl Mistake {
    /// A line that does not follow the syntax.
    pub(super) fn syntax(line: usize, message: impl Into<String>) -> Self {
        Self { line, reason: Reason::Syntax(message.into()) }
    }

    /// The error with its file.
    pub(super) fn in_file(self, path: &Path) -> ConfigError {
        ConfigError::InFile { path: path.to_owned(), line: self.line, reason: self.reason }
    }
}

/// The severity of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file probably does not do what the administrator expects.
    Warning,
    /// For information; no change is needed.
    Info,
}

/// A message about a valid configuration, to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its severity.
    pub severity: Severity,
    /// The message, which names the file, and the line if there is one.
    pub sentence: String,
}

fn did_you_mean(close: Option<&'static str>) -> String {
    close.map(|key| format!("; did you mean {key}?")).unwrap_or_default()
}
