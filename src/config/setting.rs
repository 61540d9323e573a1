//! What a configuration file sets, before anybody asks whether it may: the common ground of the two languages.
//!
//! The readers (`yrmcds`, `toml`) yield a flat list of these, in the order of the file. Names, kinds and ranges are
//! left to `schema`, so that both languages have the same rules and the same messages.

/// One `key = value` of a file.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    /// The whole key, dotted: `counter.port`, wherever its parts stand in the file.
    pub(super) key: String,
    /// What the language says that the value is.
    pub(super) value: Value,
    /// The value as it stands in the file, for messages.
    pub(super) written: &'a str,
    /// Where it stands, counted from 1.
    pub(super) line: usize,
}

/// A value, as far as its language tells kinds apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A value of yrmcds.conf, which knows nothing but words; the key decides what it is.
    Word(String),
    /// A string of TOML.
    Text(String),
    /// A whole number of TOML. Numbers too long for it are at its ends, where every range excludes them.
    Number(i128),
    /// A boolean of TOML.
    Flag(bool),
    /// An array of TOML.
    List(Vec<Value>),
    /// A table of TOML with nothing in it; one with keys is these keys.
    EmptyTable,
    /// A table of an array of tables; its keys are the settings that follow.
    Entry,
    /// What no key takes: floats, dates, tables beside other things in an array.
    Other,
}

/// The line of the byte at `offset`, counted from 1.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
