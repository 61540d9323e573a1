//! Errors, which keep the server from starting, and notices, which are logged.
//!
//! Every error is one sentence that names the file, the line, the key, the value and what is allowed, as far as the
//! mistake has them. The command line prints it and chooses the exit status.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be opened or read.
    #[error("{}: the configuration file cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file can be read, but a line of it is wrong.
    #[error("{}:{line}: {reason}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The line of the mistake, counted from 1.
        line: usize,
        /// What is wrong, and what is allowed.
        reason: Reason,
    },
    /// No extension is enabled, so there is no port to serve.
    #[error(
        "nothing is enabled; set `counter.enable = true`, `semaphore.enable = true` or both in the configuration file"
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
    /// A time exceeds the time that limits it.
    #[error(
        "{} is {} and {} is {}; lower the first or raise the second", lower.0, lower.1, upper.0, upper.1
    )]
    OutOfOrder {
        /// The key of the time that must not exceed the other, and its value.
        lower: (&'static str, u32),
        /// The key of the limit, and its value.
        upper: (&'static str, u32),
    },
}

/// What is wrong with a line of a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Reason {
    /// The line does not follow the syntax.
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
        /// The value as in the file.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// A table of an array lacks a required key.
    #[error("{key} is not set in this [[{table}]]; it must be {allowed}")]
    Missing {
        /// The key, dotted.
        key: &'static str,
        /// The name of the array, dotted.
        table: String,
        /// The allowed values.
        allowed: String,
    },
    /// Two tables declare the same name.
    #[error("{key} = {value}: line {earlier_line} declares this name already; keep one of them")]
    DeclaredTwice {
        /// The key, dotted.
        key: String,
        /// The name as in the file.
        value: String,
        /// Where it was declared before.
        earlier_line: usize,
    },
    /// A key is set twice, perhaps by two spellings of it.
    #[error(
        "{key} = {value}: line {earlier_line} sets {earlier_key} already, which is the same key; keep one of them"
    )]
    SetTwice {
        /// The key, dotted.
        key: String,
        /// The value as in the file.
        value: String,
        /// The key as it was spelled before.
        earlier_key: String,
        /// Where it was set before.
        earlier_line: usize,
    },
}

/// A reason and its line. The readers do not know the name of the file; [`Mistake::in_file`] adds it.
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

    /// Adds the file.
    pub(super) fn in_file(self, path: &Path) -> ConfigError {
        ConfigError::InFile { path: path.to_owned(), line: self.line, reason: self.reason }
    }
}

/// The severity of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration probably does not mean what the administrator intended.
    Warning,
    /// Worth knowing, but nothing has to be changed.
    Info,
}

/// A notice about a configuration that the server can start with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its severity.
    pub severity: Severity,
    /// A sentence that names the file, and the line if there is one.
    pub sentence: String,
}

fn did_you_mean(close: Option<&'static str>) -> String {
    close.map(|key| format!("; did you mean {key}?")).unwrap_or_default()
}
