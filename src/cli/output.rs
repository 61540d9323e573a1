//! Output formats, and the escaping of text that the program did not write itself.
//!
//! Names, labels and statistics may contain any bytes, and a terminal treats some of them as commands. Invariant: text that
//! [`escaped`], [`text_or_dash`], [`sanitized`] and [`json`] return contains no characters that are [unsafe](is_unsafe):
//! control characters, direction marks, invisible characters and unusual spaces. It is on one line, except that
//! [`sanitized`] keeps line breaks.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use terminal_size::{Width, terminal_size_of};

pub(super) use signalbox_model::escaped;
use signalbox_model::{escaped_except, is_unsafe};

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
    /// Returns JSON if `--json` was given; else a table on a terminal and tabs elsewhere.
    pub(super) fn of_output(wants_json: bool, has_header: bool) -> Self {
        match wants_json {
            true => Self::Json,
            false if io::stdout().is_terminal() => Self::Table { has_header },
            false => Self::Tabs { has_header },
        }
    }
}

/// Returns the text of a value, or [`MISSING`] if there is none.
pub(super) fn value_or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| MISSING.to_owned(), |value| value.to_string())
}

/// Returns the width of a terminal in columns; `usize::MAX` if it is not a terminal, or has an unknown size.
pub(super) fn width_of(terminal: impl AsFd) -> usize {
    terminal_size_of(terminal).map_or(usize::MAX, |(Width(columns), _)| usize::from(columns))
}

/// Returns the text if it has at most `width` characters, else its start and `…`.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The text for a missing value, so that each column keeps its place.
pub(super) const MISSING: &str = "-";

/// Returns the escaped text for a column; [`MISSING`] if it is empty.
pub(super) fn text_or_dash(text: &[u8]) -> String {
    if text.is_empty() { MISSING.to_owned() } else { escaped(text) }
}

/// Returns numbered slots as ranges, for people: `0-3,7`.
pub(super) fn slot_ranges(slots: &[u16]) -> String {
    let ranges = slots.chunk_by(|slot, next| u32::from(*next) == u32::from(*slot) + 1);
    let ranges = ranges.map(|range| match range {
        [first, .., last] => format!("{first}-{last}"),
        _ => slot_list(range),
    });
    ranges.collect::<Vec<_>>().join(",")
}

/// Returns a list of all slots, for programs: `0,1,2,3,7`.
pub(super) fn slot_list(slots: &[u16]) -> String {
    slots.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

/// Returns a time in seconds, with milliseconds: as exact as the protocol, and shown without rounding errors.
pub(super) fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

/// Returns a message with all control and invisible characters escaped, but with its line breaks.
pub(super) fn sanitized(message: &str) -> String {
    escaped_except(message.as_bytes(), "\\\n")
}

/// Returns one object with the keys of several, in their order. A null adds no keys.
pub(super) fn merged(objects: impl IntoIterator<Item = Value>) -> Value {
    let keys = objects.into_iter().filter_map(|object| match object {
        Value::Object(keys) => Some(keys),
        _ => None,
    });
    Value::Object(keys.flatten().collect())
}

/// Returns the value as JSON on one line. The unsafe characters that JSON leaves as they are (U+007F to U+009F,
/// direction marks and others) are escaped, too; they can occur only within strings, where the escape means the same.
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
    fn neighbouring_slots_are_a_range() {
        for (slots, expected, listed) in [
            (&[][..], "", ""),
            (&[5], "5", "5"),
            (&[0, 1], "0-1", "0,1"),
            (&[0, 1, 2, 3, 7, 65_534, 65_535], "0-3,7,65534-65535", "0,1,2,3,7,65534,65535"),
        ] {
            assert_eq!((slot_ranges(slots), slot_list(slots)), (expected.to_owned(), listed.to_owned()));
        }
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
