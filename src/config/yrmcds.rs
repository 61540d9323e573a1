//! Reads the language of yrmcds.conf: one `key = value` per line.
//!
//! Lines mean the same as in yrmcds 1.1.9: space around key and value is dropped, a line that starts with `#` is a
//! comment, the key ends at the first `=`, and a value that starts and ends with `"` loses both. There are no comments
//! after a value. `schema` decides which values are allowed.

use super::error::Mistake;
use super::setting::{Read, Setting, Value};

/// The settings of `text`, including repeated keys.
pub(super) fn read(text: &str) -> Read<'_> {
    let mut read = Read::default();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match read_line(line, line_number) {
            Ok(setting) => read.settings.push(setting),
            Err(mistake) => read.mistakes.push(mistake),
        }
    }
    read
}

fn read_line(line: &str, line_number: usize) -> Result<Setting<'_>, Mistake> {
    let Some((key, written)) = line.split_once('=') else {
        return Err(Mistake::new(
            line_number,
            "this line has no \"=\"; write `key = value`, or \"#\" before a comment",
        ));
    };
    let (key, written) = (key.trim_end(), written.trim_start());
    if key.is_empty() {
        return Err(Mistake::new(line_number, "this line has no key before the \"=\"; write `key = value`"));
    }
    if line.contains(char::REPLACEMENT_CHARACTER) {
        return Err(Mistake::new(
            line_number,
            "this line is not valid UTF-8; only comments may have other encodings",
        ));
    }
    let value = Value::Word(unquoted(written).to_owned());
    Ok(Setting { key: key.to_owned(), value, written, line: line_number })
}

fn unquoted(written: &str) -> &str {
    written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(text: &str) -> (String, Value, usize) {
        let mut settings = read(text).settings;
        assert_eq!(settings.len(), 1, "{settings:?}");
        let setting = settings.remove(0);
        (setting.key, setting.value, setting.line)
    }

    #[test]
    fn space_comments_and_quotes_are_dropped() {
        let text = "# a comment\n\n   # another = one\n\t counter.port\t=  \"11215\" \r\n";
        assert_eq!(read_one(text), ("counter.port".into(), Value::Word("11215".into()), 4));
    }

    #[test]
    fn the_key_ends_at_the_first_equals_sign() {
        assert_eq!(read_one("log.file=/a=b"), ("log.file".into(), Value::Word("/a=b".into()), 1));
    }

    #[test]
    fn a_lone_quote_is_part_of_the_value() {
        assert_eq!(read_one("user = \"").1, Value::Word("\"".into()));
        assert_eq!(read_one("user = \"a").1, Value::Word("\"a".into()));
    }

    #[test]
    fn a_repeated_key_is_listed_twice() {
        let keys: Vec<_> = read("a = 1\na = 2").settings.into_iter().map(|s| (s.key, s.line)).collect();
        assert_eq!(keys, [("a".to_owned(), 1), ("a".to_owned(), 2)]);
    }

    #[test]
    fn a_line_that_sets_nothing_is_a_mistake_on_that_line() {
        for (text, line) in [("a = 1\ncounter.enable", 2), ("= 5", 1), ("\n\nuser = \u{fffd}", 3)] {
            let lines: Vec<_> = read(text).mistakes.iter().map(|mistake| mistake.line).collect();
            assert_eq!(lines, [line], "{text:?}");
        }
    }
}
