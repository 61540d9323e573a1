//! Reads TOML into the same flat list of settings as the reader of yrmcds.conf: `[counter]` with `port = 1` below it and
//! `counter.port = 1` are one setting, `counter.port`. Each table of an array of tables is a setting, and the settings
//! of its keys follow.
//!
//! The spans of the parser give the line of each key, so that messages about a value that is refused later can name it.
//! `schema` decides which values are allowed.

use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use super::apply::excerpt;
use super::error::Mistake;
use super::setting::{Read, Setting, Value};

/// Reads the settings of `text`, and its mistakes, at most one per line.
pub(super) fn read(text: &str) -> Read<'_> {
    let source = Source::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    let span = |error: &toml::de::Error| error.span().unwrap_or(text.len()..text.len());
    let mut errors: Vec<_> = errors.iter().map(|error| (span(error), error.message())).collect();
    // The parser reports lines that are not a key and a value before it looks at the values.
    errors.sort_by_key(|(span, _)| span.start);
    let mut mistakes: Vec<Mistake> = Vec::new();
    // The line where the parser lost the structure of the file. Errors in later lines may be consequences.
    let mut lost_at = None;
    for (span, message) in errors {
        let line = source.line_at(span.start);
        if mistakes.iter().any(|known| known.line == line) {
            continue;
        }
        let explained = explained(text, &span, message);
        let is_lost = explained.is_none();
        mistakes.push(Mistake::new(line, explained.unwrap_or_else(|| message.to_owned())));
        if is_lost {
            lost_at = Some(line);
            break;
        }
    }
    let mut settings = Vec::new();
    flatten(&source, "", document.get_ref(), &mut settings);
    // The parser sorts by key, but the first mistake of the file is to be reported first. The sort is stable, so that keys
    // on one line still follow the table that they are in.
    settings.sort_by_key(|setting| setting.line);
    settings.retain(|setting| {
        let end = setting.line + setting.written.matches('\n').count();
        lost_at.is_none_or(|lost| end < lost) && !mistakes.iter().any(|mistake| mistake.line == setting.line)
    });
    Read { settings, mistakes }
}

/// Returns the name of the section that a line begins; `None`: it begins none.
fn header(line: &str) -> Option<&str> {
    let (name, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    Some(name.trim())
}

/// Returns a better message than the parser's for a mistake within one line, if there is one. The parser does not name
/// a duplicate key, and does not say that a text or an address needs quotes, because it takes the first letter for the
/// start of another value.
fn explained(text: &str, span: &Range<usize>, message: &str) -> Option<String> {
    if message.contains("duplicate key") {
        let key = text.get(span.clone()).unwrap_or_default().trim();
        let headers = text.lines().zip(1..).filter(|(line, _)| header(line) == Some(key));
        let lines: Vec<u32> = headers.map(|(_, line)| line).collect();
        return Some(match lines[..] {
            [first, _, ..] => {
                format!("the section [{key}] begins in line {first} already; write its keys there")
            }
            _ => format!("the key {key} is set twice; keep one of them"),
        });
    }
    let start =
        text.get(..span.start).and_then(|before| before.rfind('\n')).map_or(0, |line_break| line_break + 1);
    let line = text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let (key, value) = line.split_once('=').map(|(key, value)| (key.trim(), value.trim()))?;
    let value = value.split('#').next().unwrap_or_default().trim_end();
    let flag = match value.to_lowercase().as_str() {
        "yes" | "on" | "true" => Some("true"),
        "no" | "off" | "false" => Some("false"),
        _ => None,
    };
    if let Some(flag) = flag.filter(|flag| *flag != value) {
        return Some(format!("{key} = {value}: did you mean {flag}?"));
    }
    let list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map(str::trim);
    if list.is_some_and(is_address) && !value.contains('"') {
        return Some(format!("{key} = {}: put quotes around each address", excerpt(value)));
    }
    let starts_as_text = value.starts_with(|first: char| first.is_alphabetic() || first == '/');
    let needs_quotes = starts_as_text || is_address(value) || signalbox_model::span(value).is_some();
    (needs_quotes && !value.contains('"')).then(|| {
        let shown = excerpt(value);
        format!("{key} = {shown}: put quotes around the value: {key} = \"{shown}\"")
    })
}

/// Returns whether a value without quotes begins with an IP address, a network, or an address and a port.
fn is_address(value: &str) -> bool {
    let first = value.split([' ', '\t', ',']).next().unwrap_or_default();
    let host = first.split('/').next().unwrap_or_default();
    host.parse::<IpAddr>().is_ok() || host.parse::<SocketAddr>().is_ok()
}

/// A text with an index of its lines, because a file may declare many thousands of semaphores.
struct Source<'a> {
    text: &'a str,
    /// The offset of each line.
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    fn new(text: &'a str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(offset, _)| offset + 1);
        Self { text, lines: iter::once(0).chain(after_breaks).collect() }
    }

    /// Returns the line of the byte at this offset, counted from 1.
    fn line_at(&self, offset: usize) -> usize {
        self.lines.partition_point(|&line| line <= offset)
    }
}

fn flatten<'a>(source: &Source<'a>, prefix: &str, table: &DeTable<'_>, settings: &mut Vec<Setting<'a>>) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        let within = format!("{key}.");
        let setting = |value, written, start| {
            let written = source.text.get(written).unwrap_or_default();
            Setting { key: key.clone(), value, written, line: source.line_at(start) }
        };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => flatten(source, &within, inner, settings),
            DeValue::Array(values) if let Some(tables) = tables_of(values) => {
                for (table, span) in tables {
                    settings.push(setting(Value::Entry, span.clone(), span.start));
                    flatten(source, &within, table, settings);
                }
            }
            other => settings.push(setting(read_value(other), value.span(), name.span().start)),
        }
    }
}

/// Returns the tables of an array of tables, with their positions; `None` for other arrays.
fn tables_of<'a, 'b>(values: &'a DeArray<'b>) -> Option<Vec<(&'a DeTable<'b>, Range<usize>)>> {
    let table = |value: &'a Spanned<DeValue<'b>>| Some((value.get_ref().as_table()?, value.span()));
    let tables: Vec<_> = values.iter().map(table).collect::<Option<_>>()?;
    (!tables.is_empty()).then_some(tables)
}

fn read_value(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(number) => Value::Number(read_number(number)),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Array(values) => {
            Value::List(values.iter().map(|value| read_value(value.get_ref())).collect())
        }
        DeValue::Table(table) if table.is_empty() => Value::EmptyTable,
        DeValue::Table(_) | DeValue::Float(_) | DeValue::Datetime(_) => Value::Other,
    }
}

/// Returns the text of a file in TOML. Fails with the first line that is not UTF-8.
pub(super) fn utf8(bytes: &[u8]) -> Result<&str, Mistake> {
    str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
        Mistake::new(line, "this line is not valid UTF-8; save the file as UTF-8, as TOML requires")
    })
}

fn read_number(number: &DeInteger<'_>) -> i128 {
    let too_long = if number.as_str().starts_with('-') { i128::MIN } else { i128::MAX };
    i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(too_long)
}
