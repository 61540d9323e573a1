//! Messages about a configuration: errors, which prevent the start of the server, and notices, which are logged.
//!
//! An error names the file, the line, the key, the value and what would be right, as far as each applies. The command line
//! prints it and chooses the exit status.

use std::path::Path;

use thiserror::Error;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ConfigError(pub(super) String);

/// Keys that contradict each other.
#[derive(Debug, Error)]
#[error("{sentence}")]
pub struct Contradiction {
    /// The keys; the one that was set last is to blame.
    pub(super) keys: [&'static str; 2],
    sentence: String,
}

impl Contradiction {
    /// A failed check, whose sentence says what would be right.
    pub(super) fn of<T>(keys: [&'static str; 2], sentence: impl Into<String>) -> Result<T, Self> {
        Err(Self { keys, sentence: sentence.into() })
    }

    /// A key that is of no use without another one.
    pub(super) fn without<T>(key: &'static str, missing: &'static str) -> Result<T, Self> {
        Self::of([key, missing], format!("{key} is set, but {missing} is not; set both or neither"))
    }
}

/// What is wrong with a line, from the readers, which do not know the file's path.
#[derive(Debug)]
pub(super) struct Mistake {
    /// Counted from 1.
    pub(super) line: usize,
    /// What is wrong there and what would be right.
    pub(super) sentence: String,
}

impl Mistake {
    pub(super) fn new(line: usize, sentence: impl Into<String>) -> Self {
        Self { line, sentence: sentence.into() }
    }

    /// The error with its file.
    pub(super) fn in_file(self, path: &Path) -> ConfigError {
        ConfigError(format!("{}:{}: {}", path.display(), self.line, self.sentence))
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
