//! Names in texts for people.

use std::fmt;

use crate::Namespace;

/// The longest part of a name that a text shows, in bytes.
const NAME_SHOWN_MAX: usize = 255;

/// The most names that a text shows.
const NAMES_SHOWN_MAX: usize = 8;

/// The description of a request for several names, such as `acquire semaphore "a" and semaphore "b"`. If there are
/// many, it has the first ones and the number of the others.
pub fn about_all(operation: &str, names: impl ExactSizeIterator<Item = String>) -> String {
    let count = names.len();
    let mut text = operation.to_owned();
    for (index, name) in names.take(NAMES_SHOWN_MAX).enumerate() {
        text += match index {
            0 => " ",
            _ if index + 1 == count => " and ",
            _ => ", ",
        };
        text += &name;
    }
    if let Some(more) = count.checked_sub(NAMES_SHOWN_MAX).filter(|more| *more > 0) {
        text += &format!(" and {more} more");
    }
    text
}

/// The bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits; `None`: the text has other characters, or an odd number of digits.
pub fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_bytes().as_chunks() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.iter().map(|[high, low]| Some((digit(*high)? * 16 + digit(*low)?) as u8)).collect()
}

/// A name in quotes, on one line and without characters that a terminal would execute. A long one is cut.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(NAME_SHOWN_MAX)];
        let ellipsis = if shown.len() < self.0.len() { "…" } else { "" };
        write!(f, "\"{}{ellipsis}\"", escaped(shown).replace('"', "\\\""))
    }
}

/// The bytes as text on one line that bash's `printf %b` turns back into the bytes: `\\`, `\t`, `\n`, and `\xNN` for each byte
/// of any other [unsafe](is_unsafe) character, and for each byte that is not UTF-8.
pub fn escaped(bytes: &[u8]) -> String {
    escaped_except(bytes, "")
}

/// Like [`escaped`], but keeps these characters as they are.
pub fn escaped_except(bytes: &[u8], kept: &str) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                kept_one if kept.contains(kept_one) => text.push(kept_one),
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

fn push_hex(text: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|byte| *text += &format!("\\x{byte:02x}"));
}

/// A name after its kind, such as `counter "jobs"`; `limit "jobs"` if the server resolves the name.
#[derive(Clone, Copy, Debug)]
pub struct OfKind<'a>(pub Option<Namespace>, pub &'a [u8]);

impl fmt::Display for OfKind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", noun(self.0), Quoted(self.1))
    }
}

/// The noun for a name of this kind; `limit` if the server resolves the name.
pub fn noun(kind: Option<Namespace>) -> &'static str {
    kind.map_or("limit", Namespace::noun)
}

/// Returns whether a character is unsafe to show: a terminal executes control characters, direction marks change the
/// order in which the text around them is shown, and invisible characters and unusual spaces make one name look like
/// another. Letters that look alike, such as those of two scripts, are not unsafe.
pub fn is_unsafe(character: char) -> bool {
    let number = u32::from(character);
    let after = UNSAFE_RANGES.partition_point(|(_, last)| *last < number);
    character.is_control() || UNSAFE_RANGES.get(after).is_some_and(|(first, _)| *first <= number)
}

/// The characters of Unicode 16 with the property Default_Ignorable_Code_Point or one of the categories Cf (format), Zl,
/// Zp and Zs (separators and spaces) except U+0020, and U+2800, which is blank too. Ascending.
const UNSAFE_RANGES: &[(u32, u32)] = &[
    (0x00a0, 0x00a0),
    (0x00ad, 0x00ad),
    (0x034f, 0x034f),
    (0x0600, 0x0605),
    (0x061c, 0x061c),
    (0x06dd, 0x06dd),
    (0x070f, 0x070f),
    (0x0890, 0x0891),
    (0x08e2, 0x08e2),
    (0x115f, 0x1160),
    (0x1680, 0x1680),
    (0x17b4, 0x17b5),
    (0x180b, 0x180f),
    (0x2000, 0x200f),
    (0x2028, 0x202f),
    (0x205f, 0x206f),
    (0x2800, 0x2800),
    (0x3000, 0x3000),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0fff),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_ascend() {
        assert!(UNSAFE_RANGES.iter().all(|(first, last)| first <= last));
        assert!(UNSAFE_RANGES.is_sorted_by(|(_, last), (first, _)| last < first));
    }
}
