//! The format of log lines, as it was asked for and as it was chosen.

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use super::record::Record;

/// The format of a line, as the command line asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The last one if standard error goes to journald, otherwise text
    #[default]
    Auto,
    /// Time, level, message and fields, in colour on a terminal
    Text,
    /// One JSON object per line
    Json,
    /// A syslog priority, message and fields; journald adds the time
    Journal,
}

/// The format of a line, as it was chosen at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineFormat {
    Text { colours: bool },
    Json,
    Journal,
}

impl LineFormat {
    pub(super) fn choose(format: Format, to_file: bool) -> Self {
        let colours = !to_file && io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        match format {
            Format::Json => Self::Json,
            Format::Journal => Self::Journal,
            Format::Auto if !to_file && stderr_is_journal() => Self::Journal,
            Format::Auto | Format::Text => Self::Text { colours },
        }
    }

    pub(super) fn write(self, line: &mut String, record: &Record) -> fmt::Result {
        match self {
            Self::Text { colours } => record.write_text(line, colours),
            Self::Json => record.write_json(line),
            Self::Journal => record.write_journal(line),
        }
    }
}

/// Whether standard error is the stream that systemd names by device and inode. A program whose standard error was
/// redirected inherits the variable too, and must not take its standard error for the journal.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    let stderr = File::from(stderr).metadata();
    stderr.is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}
