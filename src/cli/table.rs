//! Lists of rows: a table that fits the terminal, columns separated by tabs, or one JSON object per line.
//!
//! The first rows of a table are kept back until the widths of its columns are known, at most [`ROWS_KEPT`] of them, so
//! memory does not grow with the length of a list. A table that is wider than the terminal first gives up space between
//! its columns, then cuts long texts, then omits columns. The other two forms always have everything.

use std::io::{self, Write};

use super::output::{Form, cut, terminal_width};

/// Rows that decide the widths of the columns. Longer texts of later rows are cut.
const ROWS_KEPT: usize = 200;

/// A text is not cut below this many characters.
const TEXT_MIN: usize = 12;

/// The space between two columns.
const GAP: usize = 2;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    title: &'static str,
    kind: Kind,
    /// The width if there is room for it, so that lists of the same kind look alike.
    width: usize,
    /// Columns with higher numbers are omitted first; 0: never.
    rank: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Aligned to the right, and never cut.
    Number,
    /// Aligned to the left, and never cut.
    Word,
    /// Aligned to the left, and cut if it is too long.
    Text,
}

impl Column {
    pub(super) const fn number(title: &'static str, width: usize) -> Self {
        Self { title, kind: Kind::Number, width, rank: 0 }
    }

    pub(super) const fn word(title: &'static str, width: usize) -> Self {
        Self { title, kind: Kind::Word, width, rank: 0 }
    }

    pub(super) const fn text(title: &'static str) -> Self {
        Self { title, kind: Kind::Text, width: 0, rank: 0 }
    }

    /// The column may be omitted, before those of lower ranks.
    pub(super) const fn omitted(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// Writes rows as they come.
pub(super) struct Rows<W> {
    form: Form,
    columns: &'static [Column],
    out: W,
    layout: Layout,
}

enum Layout {
    /// The rows that were kept back.
    Open(Vec<Vec<String>>),
    /// The width of each column; `None`: it is omitted.
    Settled(Vec<Option<usize>>),
}

impl<W: Write> Rows<W> {
    pub(super) fn new(form: Form, columns: &'static [Column], out: W) -> Self {
        Self { form, columns, out, layout: Layout::Open(Vec::new()) }
    }

    /// Writes a row: the cells, or in JSON the object.
    pub(super) fn push(
        &mut self,
        cells: impl FnOnce() -> Vec<String>,
        object: impl FnOnce() -> String,
    ) -> io::Result<()> {
        match (self.form, &mut self.layout) {
            (Form::Json, _) => writeln!(self.out, "{}", object()),
            (Form::Tabs { .. }, _) => {
                self.settle()?;
                writeln!(self.out, "{}", cells().join("\t"))
            }
            (Form::Table { .. }, Layout::Open(kept)) => {
                kept.push(cells());
                if kept.len() == ROWS_KEPT { self.settle() } else { Ok(()) }
            }
            (Form::Table { .. }, Layout::Settled(widths)) => {
                let line = line(self.columns, widths, &cells());
                writeln!(self.out, "{line}")
            }
        }
    }

    /// Writes the header, and the rows that were kept back under it.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let Layout::Open(kept) = &self.layout else { return Ok(()) };
        let titles: Vec<_> = self.columns.iter().map(|column| column.title.to_owned()).collect();
        let mut settled = Vec::new();
        match self.form {
            Form::Json | Form::Tabs { has_header: false } => {}
            Form::Tabs { has_header: true } => writeln!(self.out, "{}", titles.join("\t"))?,
            Form::Table { has_header } => {
                settled = widths(self.columns, kept, terminal_width());
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

/// The widths with which the rows fit the terminal; `None` for a column that is omitted.
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

/// Gives the rest of the line to a text in the last column, for longer ones in rows to come.
fn with_rest(columns: &[Column], mut widths: Vec<Option<usize>>, terminal: usize) -> Vec<Option<usize>> {
    let rest = terminal - total(&widths);
    if let (Some(Column { kind: Kind::Text, .. }), Some(Some(last))) = (columns.last(), widths.last_mut()) {
        *last += rest;
    }
    widths
}

/// The width of a row.
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
    // The last column may be as wide as the largest number, if the output is no terminal of a known width.
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
