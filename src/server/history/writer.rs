//! The thread that writes the history.
//!
//! What the core has no room for meanwhile, and what a full disk does not take, is lost: it is counted, and a line says so where
//! it would have been.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use tracing::{error, info, warn};

use super::super::bell::Bell;
use super::super::log::LogFile;
use super::super::state::Server;
use super::format::Format;
use super::{History, Thread};
use signalbox_core::HistoryEntries;
use signalbox_model::history::{HistoryLine, HistoryWord};

/// The time between two looks at the core while there are entries. Lines are written so late at most, and many at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Bytes that are written at once, and the line after which there are more.
const WRITE_BYTES: usize = 64 * 1024;

impl History {
    /// Opens the file, and records grants of the server in it from now on. To be called once, before clients are served.
    pub(in crate::server) fn start(server: &Arc<Server>, path: PathBuf) -> io::Result<()> {
        let file = LogFile::open(path)?;
        let (bell, is_moved) = (Arc::new(Bell::default()), Arc::default());
        let clock = server.clock.clone();
        server.core.keep_history(move || clock.now_ms(), Waker::from(Arc::clone(&bell)));
        let lines = Lines {
            server: Arc::clone(server),
            file,
            text: Vec::new(),
            format: Format::default(),
            lost: Lost::default(),
        };
        let run = {
            let (bell, is_moved) = (Arc::clone(&bell), Arc::clone(&is_moved));
            move || write(lines, &bell, &is_moved)
        };
        let handle = std::thread::Builder::new().name("history".to_owned()).spawn(run)?;
        // A second call would come from a second start of one server, and there is none.
        let _ = server.history.thread.set(Thread { bell, is_moved, handle });
        Ok(())
    }
}

/// Lines on their way to the file.
struct Lines {
    server: Arc<Server>,
    file: LogFile,
    /// Whole lines that are written next.
    text: Vec<u8>,
    format: Format,
    lost: Lost,
}

/// What the file does not say yet about lines that are lost.
#[derive(Default)]
struct Lost {
    lines: u64,
    /// Whether the last write failed. Then the file may end within a line.
    is_failing: bool,
}

fn write(mut lines: Lines, bell: &Bell, is_moved: &AtomicBool) {
    let server = Arc::clone(&lines.server);
    let (mut entries, mut dropped_before) = (Vec::new(), 0);
    lines.add(&HistoryLine { durable: Some(server.is_durable()), ..lines.own(HistoryWord::Started) });
    lines.flush();
    loop {
        let is_ending = bell.is_ending();
        if is_moved.swap(false, Ordering::Acquire)
            && let Err(error) = lines.file.reopen()
        {
            error!(%error, "log.grants: the file could not be reopened; the old one stays in use");
        }
        let dropped = server.core.take_history(&mut entries);
        for entry in HistoryEntries::of(&entries) {
            lines.format.put(&mut lines.text, &entry);
            lines.flush_if_long();
        }
        if entries.is_empty() && is_ending {
            lines.add(&lines.own(HistoryWord::Stopped));
        }
        lines.flush();
        if dropped > dropped_before {
            lines.lost.lines += dropped - dropped_before;
            dropped_before = dropped;
            lines.flush();
        }
        match (entries.is_empty(), is_ending) {
            (true, true) => return,
            (true, false) => bell.wait(),
            (false, true) => {}
            (false, false) => std::thread::sleep(PAUSE),
        }
    }
}

impl Lines {
    /// A line about the history itself.
    fn own(&self, event: HistoryWord) -> HistoryLine<'static> {
        HistoryLine::of(self.server.clock.now_ms(), event)
    }

    fn add(&mut self, line: &HistoryLine<'_>) {
        put(&mut self.text, line);
    }

    fn flush_if_long(&mut self) {
        if self.text.len() >= WRITE_BYTES {
            self.flush();
        }
    }

    /// Writes what was added, after a line about what is lost.
    fn flush(&mut self) {
        let mut note = Vec::new();
        if self.lost.is_failing {
            note.push(b'\n');
        }
        if self.lost.lines > 0 {
            let lines = Some(self.lost.lines);
            put(&mut note, &HistoryLine { lines, ..self.own(HistoryWord::Lost) });
        }
        let note_bytes = note.len();
        self.text.splice(..0, note);
        if self.text.is_empty() {
            return;
        }
        match self.file.append(&self.text) {
            Ok(()) => {
                if self.lost.lines > 0 {
                    let lines = self.lost.lines;
                    warn!(lines, "log.grants: lines of the history were lost; the file says where");
                }
                if self.lost.is_failing {
                    info!("log.grants: the file can be written again");
                }
                self.lost = Lost::default();
            }
            Err((written, error)) => {
                if written >= note_bytes {
                    self.lost.lines = 0;
                }
                let rest = &self.text[written.max(note_bytes)..];
                let lines = rest.iter().filter(|byte| **byte == b'\n').count() as u64;
                self.lost.lines += lines;
                self.server.history.unwritten.add(lines);
                if !self.lost.is_failing {
                    error!(%error, "log.grants: the file cannot be written; lines of the history are lost until it can");
                }
                self.lost.is_failing = true;
            }
        }
        self.text.clear();
    }
}

fn put(text: &mut Vec<u8>, line: &HistoryLine<'_>) {
    serde_json::to_writer(&mut *text, line).expect("texts are always JSON");
    text.push(b'\n');
}
