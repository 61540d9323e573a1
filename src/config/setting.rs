//! One setting of a configuration file, in either language, before it is checked.
//!
//! The readers (`yrmcds`, `toml`) yield a flat list of settings, in the order of the file. `schema` checks names, types
//! and ranges, so that both languages have the same rules and messages.

use super::error::Mistake;

/// The contents of a file: the settings, in the order of their lines, and the lines that it could not read.
#[derive(Debug, Default)]
pub(super) struct Read<'a> {
    pub(super) settings: Vec<Setting<'a>>,
    pub(super) mistakes: Vec<Mistake>,
}

/// One `key = value` of a file.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    /// The whole key, dotted: `counter.port`, also if the file spreads its parts.
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
    /// A whole number of TOML. A number that does not fit becomes the least or the greatest, which no range includes.
    Number(i128),
    /// A boolean of TOML.
    Flag(bool),
    /// An array of TOML.
    List(Vec<Value>),
    /// An empty table of TOML. Of another table, each key is a setting.
    EmptyTable,
    /// A table of an array of tables; its keys are the settings that follow.
    Entry,
    /// A type that no key accepts: a float, a date, an array that mixes tables with other values.
    Other,
}

/// The line of the byte at `offset`, counted from 1.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
