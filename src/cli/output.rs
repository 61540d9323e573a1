//! Output formats, and the escaping of text that the program did not write itself.
//!
//! Names, labels and statistics may contain any bytes, and a terminal executes some of them. Invariant: text that these
//! functions return contains no characters that are [unsafe](is_unsafe): control characters, direction marks, invisible
//! characters and unusual spaces. It is on one line.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::time::Duration;

use serde::Serialize;

use signalbox_client::is_unsafe;
use signalbox_model::UnixSeconds;

/// The format of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// An aligned table, for people.
    Table { has_header: bool },
    /// One line per entry, columns separated by tabs: for cut, awk and sort.
    Tabs { has_header: bool },
    /// One JSON object per line.
    Json,
}

impl Form {
    /// JSON if `--json` was given; else a table on a terminal and tabs elsewhere.
    pub(super) fn of_output(wants_json: bool, has_header: bool) -> Self {
        match wants_json {
            true => Self::Json,
            false if std::io::stdout().is_terminal() => Self::Table { has_header },
            false => Self::Tabs { has_header },
        }
    }
}

/// The columns of the terminal on standard output; no limit if it is none, or of an unknown size.
pub(super) fn terminal_width() -> usize {
    width_of(terminal_size::terminal_size_of(std::io::stdout()))
}

/// As [`terminal_width`], of standard error.
pub(super) fn error_width() -> usize {
    width_of(terminal_size::terminal_size_of(std::io::stderr()))
}

fn width_of(size: Option<(terminal_size::Width, terminal_size::Height)>) -> usize {
    size.map_or(usize::MAX, |(terminal_size::Width(columns), _)| usize::from(columns))
}

/// Writes figures, one to a line, behind their keys in a column of this width.
pub(super) fn figures(out: &mut impl io::Write, width: usize, figures: &[(&str, String)]) -> io::Result<()> {
    figures.iter().try_for_each(|(key, value)| writeln!(out, "{key:<width$}  {}", harmless(value)))
}

/// The text in at most `width` characters; if it is longer, its start and `…`.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Stands for a missing value, so that each column keeps its place.
pub(super) const NOTHING: &str = "-";

/// The escaped text for a column; [`NOTHING`] if it is empty.
pub(super) fn or_nothing(text: &[u8]) -> String {
    if text.is_empty() { NOTHING.to_owned() } else { escaped(text) }
}

/// A time in seconds, with milliseconds: as exact as the protocol, and shown without rounding errors.
pub(super) fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

/// Seconds since the Unix epoch as a date and time of day in UTC.
pub(super) fn utc(unix_s: u64) -> String {
    UnixSeconds(unix_s).to_string()
}

/// The bytes as text that bash's `printf %b` turns back into the bytes: `\\`, `\t`, `\n`, and `\xNN` for each byte of
/// any other [unsafe](is_unsafe) character, and for each byte that is not UTF-8.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                unsafe_one if is_unsafe(unsafe_one) => {
                    push_hex(&mut text, unsafe_one.encode_utf8(&mut [0; 4]).as_bytes());
                }
                other => text.push(other),
            }
        }
        push_hex(&mut text, chunk.invalid());
    }
    text
}

/// A message without characters that do something else than show themselves, but on as many lines as before.
pub(super) fn harmless(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for character in message.chars() {
        match character {
            '\n' => text.push('\n'),
            unsafe_one if is_unsafe(unsafe_one) => {
                push_hex(&mut text, unsafe_one.encode_utf8(&mut [0; 4]).as_bytes());
            }
            other => text.push(other),
        }
    }
    text
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "\\x{byte:02x}").expect("a String takes everything");
    }
}

/// The value as JSON on one line. The unsafe characters that JSON leaves as they are (U+007F to U+009F, direction marks and
/// others) are escaped, too; they can stand only within strings, where the escape means the same.
pub(super) fn json(value: &impl Serialize) -> String {
    let plain = serde_json::to_string(value).expect("the values that are shown have only strings as keys");
    let mut text = String::with_capacity(plain.len());
    for character in plain.chars() {
        if is_unsafe(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(text, "\\u{unit:04x}").expect("a String takes everything");
            }
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_as_it_is_and_the_rest_is_escaped() {
        assert_eq!(escaped("jobs/nightly größe".as_bytes()), "jobs/nightly größe");
        assert_eq!(escaped(b"a\tb\nc\\d\re"), r"a\tb\nc\\d\x0de");
        assert_eq!(escaped(b"\x1b[31m\x7f\0"), r"\x1b[31m\x7f\x00");
        assert_eq!(escaped(b"\xff\xc3("), r"\xff\xc3(");
        assert_eq!(escaped("\u{9b}31m".as_bytes()), r"\xc2\x9b31m", "a terminal takes U+009B for ESC [");
        assert_eq!(escaped("a\u{202e}b\u{2069}".as_bytes()), r"a\xe2\x80\xaeb\xe2\x81\xa9");
        assert_eq!(escaped("\u{200e}\u{200f}\u{61c}".as_bytes()), r"\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c");
        assert_eq!(
            escaped("שלום\u{200b}\u{3164}".as_bytes()),
            r"שלום\xe2\x80\x8b\xe3\x85\xa4",
            "letters stay"
        );
        assert_eq!(harmless("a\n\tb\\ \u{1b}\u{ad}ü"), "a\n\\x09b\\ \\x1b\\xc2\\xadü");
    }

    #[test]
    fn json_has_no_control_characters_and_no_direction_marks() {
        let text = json(&"a\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\n\"ü");
        assert_eq!(text, r#""a\u001b\u007f\u009b\u202e\udb40\udc41\n\"ü""#);
        assert_eq!(
            serde_json::from_str::<String>(&text).unwrap(),
            "a\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\n\"ü"
        );
    }
}
