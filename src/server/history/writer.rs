//! The thread that writes the history.
//!
//! Lines for which the core has no room, and lines that cannot be written because the disk is full, are lost: they are
//! counted, and a line in their place reports their number.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use tracing::{error, info, warn};

use super::super::bell::Bell;
use super::super::log::LogFile;
use super::super::state::Server;
use super::{History, Thread};
use signalbox_core::{HistoryEntries, HistoryEntry, HistoryEvent, HistoryPart};
use signalbox_model::history::{HistoryLine, HistoryWord};
use signalbox_model::{UnixMilliseconds, UnixSeconds, hex};

/// The time between two reads of the core while there are entries. Lines are delayed by this at most, so that many are
/// written at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Lines are written at the latest when they have this many bytes.
const WRITE_BYTES: usize = 64 * 1024;

impl History {
    /// Opens the file, and records grants of the server in it from now on. Must be called once, before clients are
    /// served.
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
        // A server starts once, so there is no second call.
        let _ = server.history.thread.set(Thread { bell, is_moved, handle });
        Ok(())
    }
}

/// The file, and the lines that are not written to it yet.
struct Lines {
    server: Arc<Server>,
    file: LogFile,
    /// Whole lines that are written next.
    text: Vec<u8>,
    format: Format,
    lost: Lost,
}

/// Lost lines that the file does not report yet.
#[derive(Default)]
struct Lost {
    lines: u64,
    /// Whether the last write failed. If so, the file may end within a line.
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
    /// Returns a line about the history itself.
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

    /// Writes the added lines, after a line about lost ones if there are any. Lines that cannot be written are lost too.
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

/// Writes entries as lines in the format of [`HistoryLine`], which reads them.
///
/// The lines are composed by hand, because serde takes several times as many instructions, and a server writes two
/// lines for each grant.
#[derive(Debug, Default)]
struct Format {
    /// The Unix second of the last line, and the start of that line up to the `.` before the milliseconds.
    second: Option<(u64, Vec<u8>)>,
}

impl Format {
    /// Adds the line of an entry.
    fn put(&mut self, text: &mut Vec<u8>, entry: &HistoryEntry<'_>) {
        let HistoryEntry { head, address, identity, label, parts } = entry;
        self.put_time(text, head.time);
        let (event, key, amount) = match head.event {
            HistoryEvent::Granted { waited_ms } => ("granted", &b",\"waited_ms\":"[..], waited_ms),
            HistoryEvent::Ended { end, held_ms } => (end.word(), &b",\"held_ms\":"[..], held_ms),
        };
        text.extend_from_slice(event.as_bytes());
        text.extend_from_slice(b"\",\"grant\":\"");
        put_number(text, head.grant.0);
        text.extend_from_slice(b"\",\"session\":\"");
        put_number(text, head.session.number());
        text.extend_from_slice(b"\",\"limits\":[");
        for (index, part) in parts.clone().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            put_part(text, &part);
        }
        text.push(b']');
        if let Some(address) = address {
            text.extend_from_slice(b",\"address\":\"");
            put_address(text, address);
            text.push(b'"');
        }
        if !identity.is_empty() {
            put_text(text, b",\"identity", identity);
        }
        if !label.is_empty() {
            put_text(text, b",\"label", label);
        }
        text.extend_from_slice(if head.is_durable { b",\"durable\":true" } else { b",\"durable\":false" });
        text.extend_from_slice(key);
        put_number(text, amount);
        text.extend_from_slice(b"}\n");
    }

    fn put_time(&mut self, text: &mut Vec<u8>, time: UnixMilliseconds) {
        let UnixSeconds(second) = time.into();
        let (of, begin) = self.second.get_or_insert_default();
        if *of != second || begin.is_empty() {
            *of = second;
            let shown = UnixSeconds(second).to_string();
            *begin = format!("{{\"time\":\"{}.", shown.trim_end_matches('Z')).into_bytes();
        }
        text.extend_from_slice(begin);
        let ms = (time.0 % 1000) as u16;
        text.extend_from_slice(&[ms / 100, ms / 10 % 10, ms % 10].map(|digit| b'0' + digit as u8));
        text.extend_from_slice(b"Z\",\"event\":\"");
    }
}

fn put_part(text: &mut Vec<u8>, part: &HistoryPart<'_>) {
    text.extend_from_slice(b"{\"kind\":\"");
    text.extend_from_slice(part.namespace.noun().as_bytes());
    put_text(text, b"\",\"name", part.name);
    text.extend_from_slice(b",\"resources\":");
    put_number(text, part.resources.into());
    for (index, slot) in part.slots().enumerate() {
        text.extend_from_slice(if index == 0 { b",\"slots\":[" } else { b"," });
        put_number(text, slot.into());
    }
    text.extend_from_slice(if part.slots().len() > 0 { b"]}" } else { b"}" });
}

/// Adds a key and its text. If the text is not UTF-8, adds the key with `_hex` at its end, and the hexadecimal digits of
/// the text.
fn put_text(text: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    text.extend_from_slice(key);
    if is_plain(value) {
        text.extend_from_slice(b"\":\"");
        text.extend_from_slice(value);
        text.push(b'"');
        return;
    }
    match str::from_utf8(value) {
        Ok(value) => {
            text.extend_from_slice(b"\":");
            serde_json::to_writer(text, value).expect("a text is always JSON");
        }
        Err(_) => {
            text.extend_from_slice(b"_hex\":\"");
            text.extend_from_slice(hex(value).as_bytes());
            text.push(b'"');
        }
    }
}

/// Returns whether a text is ASCII and needs no escapes in JSON.
fn is_plain(text: &[u8]) -> bool {
    let is_special = |byte: &u8| !matches!(byte, b' '..=b'~') | matches!(byte, b'"' | b'\\');
    // Sixteen bytes are compared at once.
    let (chunks, rest) = text.as_chunks::<16>();
    let mut last = [b' '; 16];
    last[..rest.len()].copy_from_slice(rest);
    !chunks.iter().chain([&last]).any(|chunk| chunk.iter().fold(false, |any, byte| any | is_special(byte)))
}

fn put_address(text: &mut Vec<u8>, address: &SocketAddr) {
    let IpAddr::V4(ip) = address.ip() else {
        text.extend_from_slice(address.to_string().as_bytes());
        return;
    };
    for (octet, after) in ip.octets().into_iter().zip(*b"...:") {
        let [hundreds, tens, ones] = [octet / 100, octet / 10 % 10, octet % 10].map(|digit| b'0' + digit);
        match octet {
            100.. => text.extend_from_slice(&[hundreds, tens, ones, after]),
            10.. => text.extend_from_slice(&[tens, ones, after]),
            _ => text.extend_from_slice(&[ones, after]),
        }
    }
    put_number(text, address.port().into());
}

fn put_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_as_it_is_shown() {
        for expected in ["0.9.10.99:1", "100.109.200.255:65535", "[::1]:7"] {
            let mut text = Vec::new();
            put_address(&mut text, &expected.parse().unwrap());
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }

    #[test]
    fn a_text_is_that_of_json() {
        for (value, expected) in [
            (&b"a b~"[..], r#"k":"a b~""#),
            (b"\"\\\n\x1f", r#"k":"\"\\\n\u001f""#),
            ("\u{e9}".as_bytes(), "k\":\"\u{e9}\""),
            (b"\xff", r#"k_hex":"ff""#),
            (b"0123456789abcdef", r#"k":"0123456789abcdef""#),
            (b"0123456789abcde\"", r#"k":"0123456789abcde\"""#),
            (b"0123456789abcdef\"", r#"k":"0123456789abcdef\"""#),
        ] {
            let mut text = Vec::new();
            put_text(&mut text, b"k", value);
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }
}
