//! Lists of objects: a table that fits the terminal, columns separated by tabs, or one JSON object per line.
//!
//! The JSON object is the one definition of a row: a column shows the value under the key that its title spells, such
//! as `in_use` for IN USE. Only texts that the object does not have are given separately.
//!
//! The first rows of a table, at most [`ROWS_KEPT`], are kept back until the widths of its columns are known, so memory
//! does not grow with the length of a list. A table that is wider than the terminal first gives up space between its
//! columns, then cuts long texts, then omits columns. The other two forms always have everything.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::output::{self, Form, MISSING, cut, sanitized, slot_ranges, text_or_dash, width_of};
use signalbox_model::{UnixSeconds, from_hex};

/// The number of rows that decide the widths of the columns. Longer texts of later rows are cut.
const ROWS_KEPT: usize = 200;

/// The minimum number of characters that a text is cut to.
const TEXT_MIN: usize = 12;

/// The space between two columns, in characters.
const GAP: usize = 2;

/// The boolean keys of objects that the column FLAGS shows.
const FLAGS: [&str; 6] = ["slots", "removing", "configured", "paused", "durable", "fifo"];

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// The key whose value the column shows; `None` if the title spells it.
    key: Option<&'static str>,
    pub(super) kind: Kind,
    format: Format,
    /// The width in characters, if there is room for it, so that lists of the same kind look alike.
    pub(super) width: usize,
    /// Columns with higher numbers are omitted first; those with 0, never.
    rank: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Aligned to the right, and never cut.
    Number,
    /// Aligned to the left, and never cut.
    Word,
    /// Aligned to the left, and cut if it is too long.
    Text,
}

/// How a number of the object is shown.
#[derive(Clone, Copy, Debug)]
enum Format {
    Plain,
    /// Seconds since the Unix epoch as a date and time of day.
    Utc,
    /// Whole seconds, rounded down.
    Seconds,
    /// Seconds with milliseconds.
    Milliseconds,
}

impl Column {
    const fn of(title: &'static str, kind: Kind, width: usize) -> Self {
        Self { title, key: None, kind, format: Format::Plain, width, rank: 0 }
    }

    pub(super) const fn number(title: &'static str, width: usize) -> Self {
        Self::of(title, Kind::Number, width)
    }

    pub(super) const fn word(title: &'static str, width: usize) -> Self {
        Self::of(title, Kind::Word, width)
    }

    pub(super) const fn text(title: &'static str) -> Self {
        Self::of(title, Kind::Text, 0)
    }

    /// Returns a column for a time, which the object has in seconds since the Unix epoch.
    pub(super) const fn utc(title: &'static str) -> Self {
        Self { format: Format::Utc, ..Self::word(title, 20) }
    }

    /// Returns a column for a number of seconds, rounded down.
    pub(super) const fn seconds(title: &'static str, width: usize) -> Self {
        Self { format: Format::Seconds, ..Self::number(title, width) }
    }

    /// Returns a column for a number of seconds, with milliseconds.
    pub(super) const fn milliseconds(title: &'static str, width: usize) -> Self {
        Self { format: Format::Milliseconds, ..Self::number(title, width) }
    }

    /// Sets the key that the column shows, if the title does not spell it.
    pub(super) const fn under(self, key: &'static str) -> Self {
        Self { key: Some(key), ..self }
    }

    fn key(&self) -> String {
        self.key.map_or_else(|| self.title.to_lowercase().replace(' ', "_"), str::to_owned)
    }

    /// Allows the column to be omitted if the table is too wide, before those of lower ranks.
    pub(super) const fn omitted(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// Returns the value under a key, as text for people. For bytes that are not UTF-8, the object has hexadecimal digits
/// under another key.
fn cell(object: &Value, key: &str, format: Format) -> String {
    match (format, &object[key]) {
        _ if key == "flags" => flags(object),
        (_, Value::Null) => {
            let bytes = object[format!("{key}_hex")].as_str().and_then(from_hex);
            text_or_dash(&bytes.unwrap_or_default())
        }
        (_, Value::Bool(is_so)) => if *is_so { "yes" } else { "no" }.to_owned(),
        (Format::Utc, Value::Number(time)) => UnixSeconds(time.as_u64().unwrap_or_default()).to_string(),
        (Format::Seconds, Value::Number(time)) => time.as_f64().unwrap_or_default().floor().to_string(),
        (Format::Milliseconds, Value::Number(time)) => format!("{:.3}", time.as_f64().unwrap_or_default()),
        // JSON would show a decimal point even in a whole number.
        (Format::Plain, Value::Number(number)) => number
            .as_f64()
            .filter(|_| number.is_f64())
            .map_or_else(|| number.to_string(), |number| number.to_string()),
        (_, Value::Array(items)) if items.iter().all(Value::is_u64) => {
            let slots: Vec<_> = items.iter().filter_map(|slot| slot.as_u64()?.try_into().ok()).collect();
            text_or_dash(slot_ranges(&slots).as_bytes())
        }
        (_, Value::Array(items)) => {
            let words: Vec<_> = items.iter().filter_map(Value::as_str).collect();
            text_or_dash(words.join(" ").as_bytes())
        }
        (_, Value::String(text)) => text_or_dash(text.as_bytes()),
        (_, other) => other.to_string(),
    }
}

/// Returns the flags of an object, separated by commas.
pub(super) fn flags(object: &Value) -> String {
    let words = FLAGS.into_iter().filter(|flag| object[*flag] == true).map(str::to_owned);
    let out = cell(object, "slots_out", Format::Plain);
    // Commas separate the flags, so another character must separate the slots.
    let out = (out != MISSING).then(|| format!("out={}", out.replace(',', "+")));
    text_or_dash(words.chain(out).collect::<Vec<_>>().join(",").as_bytes())
}

/// Returns the text of each column: the given one, or the value of the object.
fn texts(columns: &[Column], object: &impl Serialize, given: &[(&str, &str)]) -> Vec<String> {
    let object = json!(object);
    let text = |column: &Column| match given.iter().find(|(title, _)| *title == column.title) {
        Some((_, text)) => (*text).to_owned(),
        None => cell(&object, &column.key(), column.format),
    };
    columns.iter().map(text).collect()
}

/// Writes these keys of an object with their values, one per line, with the keys padded to `width` characters. `given` has
/// texts that the object does not have, with their keys.
pub(super) fn write_fields(
    out: &mut impl Write,
    width: usize,
    keys: &[&str],
    object: &impl Serialize,
    given: &[(&str, &str)],
) -> io::Result<()> {
    let object = json!(object);
    keys.iter().try_for_each(|key| {
        let text = given.iter().find(|(given, _)| given == key).map(|(_, text)| sanitized(text));
        writeln!(out, "{key:<width$}  {}", text.unwrap_or_else(|| cell(&object, key, Format::Plain)))
    })
}

/// Writes a list row by row. A table keeps its first rows back.
pub(super) struct Rows<W> {
    form: Form,
    columns: &'static [Column],
    out: W,
    layout: Layout,
}

enum Layout {
    /// The rows that were kept back.
    Open(Vec<Vec<String>>),
    /// The width of each column; `None` if it is omitted.
    Settled(Vec<Option<usize>>),
}

impl<W: Write> Rows<W> {
    pub(super) fn new(form: Form, columns: &'static [Column], out: W) -> Self {
        Self { form, columns, out, layout: Layout::Open(Vec::new()) }
    }

    /// Writes a row.
    pub(super) fn push(&mut self, object: &impl Serialize) -> io::Result<()> {
        self.push_with(object, &[])
    }

    /// Writes a row. `given` has texts that the object does not have, with the titles of their columns.
    pub(super) fn push_with(&mut self, object: &impl Serialize, given: &[(&str, &str)]) -> io::Result<()> {
        let texts = || texts(self.columns, object, given);
        match (self.form, &mut self.layout) {
            (Form::Json, _) => writeln!(self.out, "{}", output::json(object)),
            (Form::Tabs { .. }, _) => {
                let line = texts().join("\t");
                self.settle()?;
                writeln!(self.out, "{line}")
            }
            (Form::Table { .. }, Layout::Open(kept)) => {
                kept.push(texts());
                if kept.len() == ROWS_KEPT { self.settle() } else { Ok(()) }
            }
            (Form::Table { .. }, Layout::Settled(widths)) => {
                let line = line(self.columns, widths, &texts());
                writeln!(self.out, "{line}")
            }
        }
    }

    /// Writes the header, and the rows that were kept back.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let Layout::Open(kept) = &self.layout else { return Ok(()) };
        let titles: Vec<_> = self.columns.iter().map(|column| column.title.to_owned()).collect();
        let mut settled = Vec::new();
        match self.form {
            Form::Json | Form::Tabs { has_header: false } => {}
            Form::Tabs { has_header: true } => writeln!(self.out, "{}", titles.join("\t"))?,
            Form::Table { has_header } => {
                settled = widths(self.columns, kept, width_of(io::stdout()));
                for cells in [&titles].into_iter().filter(|_| has_header).chain(kept) {
                    writeln!(self.out, "{}", line(self.columns, &settled, cells))?;
                }
            }
        }
        self.layout = Layout::Settled(settled);
        Ok(())
    }

    /// Writes what is left.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.settle()?;
        self.out.flush()
    }
}

/// Returns the widths with which the rows fit the terminal; `None` for a column that is omitted.
fn widths(columns: &[Column], rows: &[Vec<String>], terminal: usize) -> Vec<Option<usize>> {
    let mut needed: Vec<_> = columns.iter().map(|column| Some(length(column.title))).collect();
    for row in rows {
        for (needed, cell) in needed.iter_mut().zip(row) {
            *needed = (*needed).max(Some(length(cell)));
        }
    }
    let usual = columns.iter().zip(&needed).map(|(column, needed)| (*needed).max(Some(column.width)));
    let usual: Vec<_> = usual.collect();
    if total(&usual) <= terminal {
        return with_rest(columns, usual, terminal);
    }
    loop {
        let mut widths = needed.clone();
        while total(&widths) > terminal {
            let can_shrink = |(column, width): &(&Column, &mut Option<usize>)| {
                column.kind == Kind::Text && **width > Some(TEXT_MIN.max(length(column.title)))
            };
            let texts = columns.iter().zip(&mut widths).filter(can_shrink);
            let Some((_, Some(widest))) = texts.max_by_key(|(_, width)| **width) else { break };
            *widest -= 1;
        }
        if total(&widths) <= terminal {
            return with_rest(columns, widths, terminal);
        }
        let ranks = columns.iter().zip(&needed).enumerate();
        let ranks = ranks.filter(|(_, (column, needed))| column.rank > 0 && needed.is_some());
        let Some((index, _)) = ranks.max_by_key(|(_, (column, _))| column.rank) else { return widths };
        needed[index] = None;
    }
}

/// Gives the rest of the line to a text in the last column, for longer texts in later rows.
fn with_rest(columns: &[Column], mut widths: Vec<Option<usize>>, terminal: usize) -> Vec<Option<usize>> {
    let rest = terminal - total(&widths);
    if let (Some(Column { kind: Kind::Text, .. }), Some(Some(last))) = (columns.last(), widths.last_mut()) {
        *last += rest;
    }
    widths
}

/// Returns the width of a row.
fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

fn line(columns: &[Column], widths: &[Option<usize>], cells: &[String]) -> String {
    let mut line = String::new();
    let shown = columns.iter().zip(widths).zip(cells);
    for (index, (column, width, cell)) in
        shown.filter_map(|((column, width), cell)| width.map(|width| (column, width, cell))).enumerate()
    {
        if index > 0 {
            line.push_str("  ");
        }
        match column.kind {
            Kind::Number => line.push_str(&format!("{cell:>width$}")),
            Kind::Word => line.push_str(&format!("{cell:<width$}")),
            Kind::Text => line.push_str(&pad(&cut(cell, width), width)),
        }
    }
    line.truncate(line.trim_end_matches(' ').len());
    line
}

fn pad(text: &str, width: usize) -> String {
    // The width of the last column may be close to `usize::MAX`, if the output is not a terminal of a known width.
    let missing = width.min(1000).saturating_sub(length(text));
    format!("{text}{}", " ".repeat(missing))
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::number("GRANT", 10),
        Column::word("SLOTS", 8),
        Column::text("ADDRESS").omitted(1),
        Column::text("LABEL"),
    ];

    fn table(terminal: usize, rows: &[[&str; 4]]) -> Vec<String> {
        let rows: Vec<Vec<_>> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        let widths = widths(&COLUMNS, &rows, terminal);
        rows.iter().map(|row| line(&COLUMNS, &widths, row)).collect()
    }

    #[test]
    fn a_table_is_as_wide_as_the_terminal_at_most() {
        let row = ["4711", "0-1", "192.0.2.77:40000", "a machine with a long name"];
        for (terminal, expected) in [
            (200, "      4711  0-1       192.0.2.77:40000  a machine with a long name"),
            (58, " 4711  0-1    192.0.2.77:40000  a machine with a long name"),
            (50, " 4711  0-1    192.0.2.77:40000  a machine with a …"),
            (42, " 4711  0-1    192.0.2.77:4…  a machine wi…"),
            (30, " 4711  0-1    a machine with …"),
        ] {
            assert_eq!(table(terminal, &[row]), [expected], "{terminal}");
            assert!(length(expected) <= terminal);
        }
        assert_eq!(table(3, &[row]), [" 4711  0-1    a machine w…"], "what cannot be cut is shown");
    }

    #[test]
    fn later_rows_have_the_rest_of_the_line() {
        let settled = widths(&COLUMNS, &[], 60);
        let cells = ["1", "-", "x", "a label that is much longer than the room that is left for it"];
        let shown = line(&COLUMNS, &settled, &cells.map(str::to_owned));
        assert!(length(&shown) <= 60 && shown.ends_with('…'), "{shown}");
    }
}
