//! What is said about a configuration: errors, which keep the server from starting, and notices, which are logged.
//!
//! Every error is one sentence that names the file, the line, the key, the value and what would be right, as far as
//! there is one of each. Where it is printed, and with which exit status, is left to the command line.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be opened or read.
    #[error("{}: the configuration file cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file can be read, and something in it is wrong.
    #[error("{}:{line}: {reason}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The line of the mistake, counted from 1.
        line: usize,
        /// What is wrong and what would be right.
        reason: Reason,
    },
    /// There would be no port to serve.
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
    /// A time is beyond another one that limits it.
    #[error(
        "{} is {} and {} is {}; lower the first or raise the second", lower.0, lower.1, upper.0, upper.1
    )]
    OutOfOrder {
        /// The key of what must not be more, and its value.
        lower: (&'static str, u32),
        /// The key of what must not be less, and its value.
        upper: (&'static str, u32),
    },
}

/// What is wrong with a line of a file.
#[derive(Debug, Error)]
pub enum Reason {
    /// The line is not of the language.
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
        /// The value as it stands in the file.
        value: String,
        /// What would be right.
        allowed: String,
    },
    /// A table of an array lacks a key that each of them has to have.
    #[error("{key} is not set in this [[{table}]]; it must be {allowed}")]
    Missing {
        /// The key, dotted.
        key: &'static str,
        /// The array that the table is of, dotted.
        table: String,
        /// What would be right.
        allowed: String,
    },
    /// Two tables declare the same name.
    #[error("{key} = {value}: line {earlier_line} declares this name already; keep one of them")]
    DeclaredTwice {
        /// The key, dotted.
        key: String,
        /// The name as it stands in the file.
        value: String,
        /// Where it was declared before.
        earlier_line: usize,
    },
    /// Two spellings of a key, or the same one twice, where that is not allowed.
    #[error(
        "{key} = {value}: line {earlier_line} sets {earlier_key} already, which is the same key; keep one of them"
    )]
    SetTwice {
        /// The key, dotted.
        key: String,
        /// The value as it stands in the file.
        value: String,
        /// The key as it was spelled before.
        earlier_key: String,
        /// Where it was set before.
        earlier_line: usize,
    },
}

/// A reason and its line, from the parts of this module that do not know which file they read.
#[derive(Debug)]
pub(super) struct Mistake {
    /// Counted from 1.
    pub(super) line: usize,
    /// What is wrong there.
    pub(super) reason: Reason,
}

impl Mistake {
    /// A line that is not of the language.
    pub(super) fn syntax(line: usize, message: impl Into<String>) -> Self {
        Self { line, reason: Reason::Syntax(message.into()) }
    }

    /// The same, with the file that it is in.
    pub(super) fn in_file(self, path: &Path) -> ConfigError {
        ConfigError::InFile { path: path.to_owned(), line: self.line, reason: self.reason }
    }
}

/// How much a notice matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something is probably not as the administrator thinks.
    Warning,
    /// Something that is worth knowing and needs no change.
    Info,
}

/// What to log about a configuration that is good enough to start with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How much it matters.
    pub severity: Severity,
    /// A sentence that names the file, and the line where there is one.
    pub sentence: String,
}

fn did_you_mean(close: Option<&'static str>) -> String {
    close.map(|key| format!("; did you mean {key}?")).unwrap_or_default()
}
