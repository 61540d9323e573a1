//! Reads TOML into the same flat list of settings as the other language: `[counter]` with `port = 1` below it and
//! `counter.port = 1` are one setting, `counter.port`.
//!
//! The spans of the parser give the line of each key, so that a value which is refused later can still be pointed
//! at. What a value may be is left to `schema`.

use toml::de::{DeInteger, DeTable, DeValue};

use super::error::Mistake;
use super::setting::{Setting, Value, line_at};

/// The settings of `text` in the order of their lines.
pub(super) fn read(text: &str) -> Result<Vec<Setting<'_>>, Mistake> {
    let document = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(text.len(), |span| span.start);
        Mistake::syntax(line_at(text, offset), error.message())
    })?;
    let mut settings = Vec::new();
    flatten(text, "", document.get_ref(), &mut settings);
    // The parser sorts by key; a reader looks for the first mistake of the file first.
    settings.sort_by_key(|setting| setting.line);
    Ok(settings)
}

fn flatten<'a>(text: &'a str, prefix: &str, table: &DeTable<'_>, settings: &mut Vec<Setting<'a>>) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => {
                flatten(text, &format!("{key}."), inner, settings);
            }
            other => settings.push(Setting {
                key,
                value: read_value(other),
                written: text.get(value.span()).unwrap_or_default(),
                line: line_at(text, name.span().start),
            }),
        }
    }
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
        read(text).unwrap().into_iter().map(|s| (s.key, s.value, s.line)).collect()
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
    fn a_number_of_any_length_is_read() {
        let text = format!("a = {}\nb = -{}", "9".repeat(60), "9".repeat(60));
        let values: Vec<_> = read_all(&text).into_iter().map(|(_, value, _)| value).collect();
        assert_eq!(values, [Value::Number(i128::MAX), Value::Number(i128::MIN)]);
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let mistake = read("workers = 2\n[counter\nport = 1").unwrap_err();
        assert_eq!(mistake.line, 2);
    }
}
