//! The history of grants: a line of JSON in a file when a grant is made, and one when it ends.
//!
//! A thread takes the entries from the core, and alone writes and reopens the file, so that a slow disk delays nothing else.
//! What the core has no room for meanwhile, and what a full disk does not take, is lost: it is counted, and a line says so where
//! it would have been.

mod format;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{error, info, warn};

use super::bell::Bell;
use super::log::LogFile;
use super::metrics::Count;
use super::state::Server;
use format::Format;
use signalbox_core::HistoryEntries;
use signalbox_model::history::{HistoryLine, HistoryWord};

/// The time between two looks at the core while there are entries. Lines are written so late at most, and many at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Bytes that are written at once, and the line after which there are more.
const WRITE_BYTES: usize = 64 * 1024;

/// How long the thread may take to write the last lines when the server stops.
const END_MAX: Duration = Duration::from_secs(1);

/// The history of a server; without a file, there is none.
#[derive(Debug, Default)]
pub(super) struct History {
    thread: OnceLock<Thread>,
    /// Lines that the file did not take.
    unwritten: Count,
}

#[derive(Debug)]
struct Thread {
    bell: Arc<Bell>,
    /// The file is to be opened again.
    is_moved: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

impl History {
    /// Opens the file, and records grants of the server in it from now on. To be called once, before clients are served.
    pub(super) fn start(server: &Arc<Server>, path: PathBuf) -> io::Result<()> {
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

    /// Has the file opened again soon, and created if it was moved away.
    pub(super) fn reopen(&self) {
        if let Some(thread) = self.thread.get() {
            thread.is_moved.store(true, Ordering::Release);
            thread.bell.ring();
        }
    }

    /// Has the last lines written, and waits for that, but not for ever.
    pub(super) fn end(&self) {
        let Some(thread) = self.thread.get() else { return };
        if !thread.bell.end(&thread.handle, END_MAX) {
            error!("the last lines of the history of grants were not written within {} s", END_MAX.as_secs());
        }
    }

    /// Lines that are lost because the file did not take them.
    pub(super) fn unwritten(&self) -> u64 {
        self.unwritten.value()
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
