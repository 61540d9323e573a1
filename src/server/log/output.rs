//! Where log lines go: to standard error or to a file that can be reopened.
//!
//! A line is written with one call and without a buffer, so that lines of several threads never mix and the last line
//! before an abort is there. Writing never panics: a line that the file does not take goes to standard error, and a line
//! that standard error does not take is lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Mode of a new log file: its owner writes, its group reads, as is usual for logs on Debian.
const FILE_MODE: u32 = 0o640;

/// The destination of log lines.
#[derive(Debug)]
pub(in crate::server) struct Output {
    /// `None` is standard error.
    file: Option<LogFile>,
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    /// Locked for one write, or to replace the file.
    open: Mutex<File>,
}

impl Output {
    pub(super) fn standard_error() -> Self {
        Self { file: None }
    }

    pub(in crate::server) fn file(path: PathBuf) -> io::Result<Self> {
        let open = Mutex::new(open_file(&path)?);
        Ok(Self { file: Some(LogFile { path, open }) })
    }

    pub(in crate::server) fn reopen(&self) -> io::Result<()> {
        if let Some(file) = &self.file {
            let opened = open_file(&file.path)?;
            *file.open.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        }
        Ok(())
    }

    pub(in crate::server) fn write(&self, line: &str) {
        if let Some(file) = &self.file {
            let mut open = file.open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.write_all(line.as_bytes()).is_ok() {
                return;
            }
        }
        // If this fails too, the line is lost.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Opens a file for appending, and creates it if it does not exist.
fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)
}
