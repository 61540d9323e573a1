//! Messages about a configuration: errors, which prevent the start of the server, and notices, which are logged.
//!
//! An error names the file, the line, the key, the value and what would be right, as far as each applies. The command line
//! prints it and chooses the exit status.

use std::io;
use std::path::Path;

use thiserror::Error;

/// The mistakes that make a configuration unusable. There is at least one. Displays the first one, and the number of the
/// others.
#[derive(Debug, Error)]
#[error("{}", first_of(.0))]
pub struct ConfigError(pub(super) Vec<String>);

impl ConfigError {
    pub(super) fn of(sentence: String) -> Self {
        Self(vec![sentence])
    }

    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        Self::of(format!("{path}: the file cannot be read: {error}; check its path and its permissions"))
    }

    /// Returns all mistakes, one sentence for each: those of the file in the order of its lines, then those of the
    /// environment, then contradictions.
    pub fn mistakes(&self) -> &[String] {
        &self.0
    }
}

fn first_of(mistakes: &[String]) -> String {
    match mistakes {
        [first] => first.clone(),
        [first, further @ ..] => {
            let count = further.len();
            format!("{first} ({count} more: \"signalbox check-config\" reports all mistakes)")
        }
        [] => unreachable!("there is at least one"),
    }
}

/// Keys that contradict each other.
#[derive(Debug, Error)]
#[error("{sentence}")]
pub struct Contradiction {
    /// The keys; the one that was set last is to blame.
    pub(super) keys: [&'static str; 2],
    sentence: String,
}

impl Contradiction {
    /// Returns the contradiction that a check has found; the sentence says what would be right.
    pub(super) fn of(keys: [&'static str; 2], sentence: impl Into<String>) -> Self {
        Self { keys, sentence: sentence.into() }
    }

    /// Returns the contradiction of a key that needs another one, which is not set.
    pub(super) fn without(key: &'static str, missing: &'static str) -> Self {
        Self::of([key, missing], format!("{key} is set, but {missing} is not; set both or neither"))
    }
}

/// A mistake in a line, without the path of the file, which the functions that read its text do not know.
#[derive(Debug)]
pub(super) struct Mistake {
    /// Counted from 1.
    pub(super) line: usize,
    /// The mistake, and what would be right.
    pub(super) sentence: String,
}

impl Mistake {
    pub(super) fn new(line: usize, sentence: impl Into<String>) -> Self {
        Self { line, sentence: sentence.into() }
    }

    /// Returns the sentence, with the file and the line.
    pub(super) fn in_file(self, path: &Path) -> String {
        format!("{}:{}: {}", path.display(), self.line, self.sentence)
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
