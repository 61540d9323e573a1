//! Reads TOML into the same flat list of settings as the other language: `[counter]` with `port = 1` below it and
//! `counter.port = 1` are one setting, `counter.port`. Of an array of tables, each table is a setting, and those of
//! its keys follow.
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
use super::setting::{Read, Setting, Value, line_at};

/// The settings of `text` and its mistakes, one for each line.
pub(super) fn read(text: &str) -> Read<'_> {
    let (document, errors) = DeTable::parse_recoverable(text);
    let span = |error: &toml::de::Error| error.span().unwrap_or(text.len()..text.len());
    let mut errors: Vec<_> = errors.iter().map(|error| (span(error), error.message())).collect();
    // The parser reports lines that are not a key and a value before it looks at the values.
    errors.sort_by_key(|(span, _)| span.start);
    let mut mistakes: Vec<Mistake> = Vec::new();
    // The line where the parser lost the structure of the file. Errors in later lines may be consequences.
    let mut lost_at = None;
    for (span, message) in errors {
        let line = line_at(text, span.start);
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
    flatten(&Source::new(text), "", document.get_ref(), &mut settings);
    // The parser sorts by key, but the first mistake of the file is to be reported first. The sort is stable, so that keys
    // on one line still follow the table that they are in.
    settings.sort_by_key(|setting| setting.line);
    settings.retain(|setting| {
        let end = setting.line + setting.written.matches('\n').count();
        lost_at.is_none_or(|lost| end < lost) && !mistakes.iter().any(|mistake| mistake.line == setting.line)
    });
    Read { settings, mistakes }
}

/// The section that a line begins.
fn header(line: &str) -> Option<&str> {
    let (name, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    Some(name.trim())
}

/// A mistake within one line, in other words than those of the parser, which leaves out the key that is duplicate, and that a
/// text or an address needs quotes, where it took the first letter for the start of another value.
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

/// Whether a value without quotes begins with an IP address, a network, or an address and a port.
fn is_address(value: &str) -> bool {
    let first = value.split([' ', '\t', ',']).next().unwrap_or_default();
    let host = first.split('/').next().unwrap_or_default();
    host.parse::<IpAddr>().is_ok() || host.parse::<SocketAddr>().is_ok()
}

/// A text with an index of its lines, as a file may declare many thousands of semaphores.
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

    /// The same as [`line_at`], but faster.
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

/// The tables of an array of tables, with their positions; `None` for other arrays.
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

fn read_number(number: &DeInteger<'_>) -> i128 {
    let too_long = if number.as_str().starts_with('-') { i128::MIN } else { i128::MAX };
    i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(too_long)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(text: &str) -> Vec<(String, Value, usize)> {
        let read = read(text);
        assert!(read.mistakes.is_empty(), "{:?}", read.mistakes);
        read.settings.into_iter().map(|s| (s.key, s.value, s.line)).collect()
    }

    #[test]
    fn dotted_and_tabled_spellings_are_the_same_key() {
        let expected = |line| vec![("counter.port".to_owned(), Value::Number(11215), line)];
        assert_eq!(read_all("counter.port = 11_215"), expected(1));
        assert_eq!(read_all("[counter]\nport = 11215 # the usual"), expected(2));
        assert_eq!(read_all("counter = { port = 0x2bcf }"), expected(1));
    }

    #[test]
    fn settings_come_in_the_order_of_the_file() {
        let text =
            "workers = 2\nbind_ip = [\n  \"::1\",\n]\n[log]\nthreshold = \"info\"\n[counter]\nenable = true";
        let lines: Vec<_> = read_all(text).into_iter().map(|(key, _, line)| (key, line)).collect();
        let expected = [("workers", 1), ("bind_ip", 2), ("log.threshold", 6), ("counter.enable", 8)];
        assert_eq!(lines, expected.map(|(key, line)| (key.to_owned(), line)));
    }

    #[test]
    fn a_table_of_an_array_comes_before_its_keys_and_after_those_of_the_one_before() {
        let read = |text| {
            let settings = read_all(text).into_iter().map(|(key, value, line)| match value {
                Value::Entry => format!("{line}: {key}"),
                value => format!("{line}: {key} = {value:?}"),
            });
            settings.collect::<Vec<_>>()
        };
        assert_eq!(
            read("[[a.b]]\nz = 1\nc = 2\n[d]\ne = 3\n[[a.b]]\n[[a.b]] # none\nc = 4"),
            [
                "1: a.b",
                "2: a.b.z = Number(1)",
                "3: a.b.c = Number(2)",
                "5: d.e = Number(3)",
                "6: a.b",
                "7: a.b",
                "8: a.b.c = Number(4)"
            ]
        );
        assert_eq!(
            read("a.b = [{ z = 1 }, { c = 2,\nz = 3 }, {}]"),
            [
                "1: a.b",
                "1: a.b.z = Number(1)",
                "1: a.b",
                "1: a.b.c = Number(2)",
                "2: a.b.z = Number(3)",
                "2: a.b"
            ]
        );
        assert_eq!(read("a = [{ b = 1 }, 2]"), ["1: a = List([Other, Number(2)])"]);
        assert_eq!(read("a = []"), ["1: a = List([])"]);
    }

    #[test]
    fn a_number_of_any_length_is_read() {
        let text = format!("a = {}\nb = -{}", "9".repeat(60), "9".repeat(60));
        let values: Vec<_> = read_all(&text).into_iter().map(|(_, value, _)| value).collect();
        assert_eq!(values, [Value::Number(i128::MAX), Value::Number(i128::MIN)]);
    }

    #[test]
    fn a_text_without_quotes_and_a_key_that_is_set_twice_are_named() {
        let quoted = |start: &str, setting: &str| format!("{start}: put quotes around the value: {setting}");
        for (text, message) in [
            ("[log]\nthreshold = info", quoted("threshold = info", r#"threshold = "info""#)),
            ("bind_ip = 127.0.0.1", quoted("bind_ip = 127.0.0.1", r#"bind_ip = "127.0.0.1""#)),
            ("bind_ip = ::1", quoted("bind_ip = ::1", r#"bind_ip = "::1""#)),
            ("a = 127.0.0.1 ::1 # both", quoted("a = 127.0.0.1 ::1", r#"a = "127.0.0.1 ::1""#)),
            ("a = 10.0.0.0/8\nworkers = 1", quoted("a = 10.0.0.0/8", r#"a = "10.0.0.0/8""#)),
            ("a = [127.0.0.1, ::1]", "a = [127.0.0.1, ::1]: put quotes around each address".to_owned()),
            ("[a]\nbind = 10.0.0.1:11218", quoted("bind = 10.0.0.1:11218", r#"bind = "10.0.0.1:11218""#)),
            ("log.file = /x # there", quoted("log.file = /x", r#"log.file = "/x""#)),
            ("[a]\nmax_wait = 24h # a day", quoted("max_wait = 24h", r#"max_wait = "24h""#)),
            ("user = nobody\nworkers = 2", quoted("user = nobody", r#"user = "nobody""#)),
            ("[counter]\nenable = yes", "enable = yes: did you mean true?".to_owned()),
            ("[counter]\nenable = False # off", "enable = False: did you mean false?".to_owned()),
            ("file = 'a'\nfile = 'b'", "the key file is set twice; keep one of them".to_owned()),
            (
                "[tls]\n[log]\n[tls] # again\ncert = 'a'",
                "the section [tls] begins in line 1 already; write its keys there".to_owned(),
            ),
        ] {
            let said: Vec<_> = read(text).mistakes.into_iter().map(|mistake| mistake.sentence).collect();
            assert_eq!(said, [message]);
        }
        assert!(!read("workers = 1 2").mistakes[0].sentence.contains("quotes"));
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let read = read("workers = 2\nuser = a\n[counter\nport = x\n[log]\nthreshold = y");
        let lines: Vec<_> = read.mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [2, 3], "later errors may be consequences");
        let keys: Vec<_> = read.settings.iter().map(|setting| setting.key.as_str()).collect();
        assert_eq!(keys, ["workers"]);
    }

    #[test]
    fn each_line_that_cannot_be_read_is_a_mistake_and_the_others_are_read() {
        let read = read("user = a\nworkers = 2\n[log]\nthreshold = b\n[counter]\nport = 1");
        let lines: Vec<_> = read.mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 4]);
        let keys: Vec<_> = read.settings.iter().map(|setting| setting.key.as_str()).collect();
        assert_eq!(keys, ["workers", "counter.port"]);
    }
}
