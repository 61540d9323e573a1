//! The settings of a configuration file before they are checked, the two languages, and the reader of yrmcds.conf.
//!
//! Both readers (`toml` has that of TOML) yield a flat list of settings, in the order of the file. `schema` checks
//! names, types and ranges, so that both languages have the same rules and messages.

use std::path::Path;

use toml::de::DeValue;

use super::error::Mistake;

/// The contents of a file: the settings, in the order of their lines, and the mistakes in lines that could not be read.
#[derive(Debug, Default)]
pub(super) struct Read<'a> {
    pub(super) settings: Vec<Setting<'a>>,
    pub(super) mistakes: Vec<Mistake>,
}

/// One `key = value` of a file.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    /// The whole key, dotted: `counter.port`, even if its parts are separate in the file.
    pub(super) key: String,
    /// The value, as the language types it.
    pub(super) value: Value,
    /// The value as in the file, for messages.
    pub(super) written: &'a str,
    /// Its line, counted from 1.
    pub(super) line: usize,
}

/// A value with the type that its language gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A value of yrmcds.conf, which has no types: the key decides.
    Word(String),
    /// A string of TOML.
    Text(String),
    /// A whole number of TOML. A number that does not fit becomes the minimum or the maximum, which no range includes.
    Number(i128),
    /// A boolean of TOML.
    Flag(bool),
    /// An array of TOML.
    List(Vec<Value>),
    /// An empty table of TOML. In any other table, each key is a setting.
    EmptyTable,
    /// A table of an array of tables; its keys are the settings that follow.
    Entry,
    /// A type that no key accepts: a float, a date, an array that mixes tables with other values.
    Other,
}

/// A language in which a configuration can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// TOML, signalbox's own: strict about unknown keys.
    Toml,
    /// The lines of yrmcds.conf, for machines that ran yrmcdsd: unknown keys are a warning.
    Yrmcds,
}

impl Language {
    /// Returns the language of a file; `None` if it is not recognised.
    ///
    /// The file extensions `.toml` and `.conf` decide. Without one of them, the first line that is valid in only one
    /// language decides. A line that starts with `[` is TOML, and so is a value that is an array, an inline table or a
    /// string in single quotes, or that has a comment after it. A bare word or a list without brackets is yrmcds.conf.
    /// A file without such a line could be either, and the languages differ in the defaults of keys that it does not
    /// set.
    pub fn of(path: &Path, text: &str) -> Option<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("toml") => Some(Self::Toml),
            Some("conf") => Some(Self::Yrmcds),
            _ => text.lines().find_map(|line| Self::of_line(line.trim())),
        }
    }

    fn of_line(line: &str) -> Option<Self> {
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        if line.starts_with('[') {
            return Some(Self::Toml);
        }
        let value = line.split_once('=')?.1.trim();
        if value.starts_with(['[', '{', '\'']) || value.starts_with("\"\"\"") {
            return Some(Self::Toml);
        }
        if let Some(quoted) = value.strip_prefix('"') {
            let after = quoted.split_once('"')?.1.trim_start();
            return after.starts_with('#').then_some(Self::Toml);
        }
        let is_the_same_in_both = matches!(value, "true" | "false") || value.parse::<u64>().is_ok();
        if is_the_same_in_both {
            return None;
        }
        let without_comment = value.split('#').next().unwrap_or(value).trim_end();
        let is_toml = DeValue::parse(without_comment).is_ok();
        Some(if is_toml { Self::Toml } else { Self::Yrmcds })
    }
}

/// Reads the language of yrmcds.conf, one `key = value` per line, including repeated keys.
///
/// Lines mean the same as in yrmcds 1.1.9: space around key and value is dropped, a line that starts with `#` is a
/// comment, the key ends at the first `=`, and a value that starts and ends with `"` loses both. There are no comments
/// after a value.
pub(super) fn read_yrmcds(text: &str) -> Read<'_> {
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
