//! Text of unknown origin, made safe to print: names and statistics may be any bytes, and a terminal obeys some.
//!
//! Invariant: what comes out of here has no control characters and stands on one line.

use std::fmt::Write;

use serde::Serialize;

/// The bytes as text in which bash's `printf %b` finds the bytes again: `\\`, `\t`, `\n`, and `\xNN` for each byte of any
/// other control character and for each byte that is no UTF-8.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                control if control.is_control() => {
                    push_hex(&mut text, control.encode_utf8(&mut [0; 4]).as_bytes(), "\\x");
                }
                other => text.push(other),
            }
        }
        push_hex(&mut text, chunk.invalid(), "\\x");
    }
    text
}

/// The bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    push_hex(&mut text, bytes, "");
    text
}

fn push_hex(text: &mut String, bytes: &[u8], prefix: &str) {
    for byte in bytes {
        write!(text, "{prefix}{byte:02x}").expect("a String takes everything");
    }
}

/// The value as JSON on one line. The control characters that JSON leaves as they are (U+007F to U+009F) are escaped,
/// too; they can stand only within strings, where the escape means the same.
pub(super) fn json(value: &impl Serialize) -> String {
    let plain = serde_json::to_string(value).expect("the values that are shown have only strings as keys");
    let mut text = String::with_capacity(plain.len());
    for character in plain.chars() {
        if character.is_control() {
            write!(text, "\\u{:04x}", u32::from(character)).expect("a String takes everything");
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
    }

    #[test]
    fn json_has_no_control_characters() {
        let text = json(&"a\u{1b}\u{7f}\u{9b}\n\"ü");
        assert_eq!(text, r#""a\u001b\u007f\u009b\n\"ü""#);
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), "a\u{1b}\u{7f}\u{9b}\n\"ü");
    }
}
