//! Where log lines go: to standard error or to a file that can be reopened.
//!
//! A line is written with one call and without a buffer, so that lines of several threads never mix and the last line
//! before an abort is there. Writing never panics: a line that the file does not take goes to standard error, and a line
//! that standard error does not take is lost.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::super::lock;

/// Mode of a new log file: its owner writes, its group reads, as is usual for logs on Debian.
const FILE_MODE: u32 = 0o640;

/// The destination of log lines.
#[derive(Debug)]
pub(in crate::server) struct Output {
    /// `None` is standard error.
    file: Option<LogFile>,
}

/// A file to which lines are appended.
#[derive(Debug)]
pub(in crate::server) struct LogFile {
    path: PathBuf,
    /// Locked for one write, or to replace the file.
    open: Mutex<File>,
}

impl LogFile {
    /// Opens the file, and creates it if it does not exist.
    pub(in crate::server) fn open(path: PathBuf) -> io::Result<Self> {
        let open = Mutex::new(open_file(&path)?);
        Ok(Self { path, open })
    }

    /// Opens the file again, and creates it if it was moved away. If that fails, the old one stays in use.
    pub(in crate::server) fn reopen(&self) -> io::Result<()> {
        let opened = open_file(&self.path)?;
        *lock(&self.open) = opened;
        Ok(())
    }

    /// Appends a text. An error comes with how many bytes of it the file has taken.
    pub(in crate::server) fn append(&self, text: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut open = lock(&self.open);
        let mut written = 0;
        while written < text.len() {
            match open.write(&text[written..]) {
                Ok(0) => return Err((written, ErrorKind::WriteZero.into())),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }
}

impl Output {
    pub(super) fn standard_error() -> Self {
        Self { file: None }
    }

    pub(in crate::server) fn file(path: PathBuf) -> io::Result<Self> {
        Ok(Self { file: Some(LogFile::open(path)?) })
    }

    pub(in crate::server) fn reopen(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), LogFile::reopen)
    }

    pub(in crate::server) fn write(&self, line: &str) {
        if let Some(file) = &self.file
            && file.append(line.as_bytes()).is_ok()
        {
            return;
        }
        // If this fails too, the line is lost.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Opens a file for appending, and creates it if it does not exist.
fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)
}
