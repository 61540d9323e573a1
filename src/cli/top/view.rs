//! Draws the state of `top` as lines of styled text.

use std::io::{self, Write};

use bytes::Bytes;
use crossterm::cursor::{MoveTo, MoveToColumn};
use crossterm::queue;
use crossterm::style::{Attribute, Attributes, Color, ContentStyle, PrintStyledContent};
use crossterm::terminal::{Clear, ClearType};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::model::{Cell, Model, View, ttl_left};
use super::reader::{Details, NameKey};
use crate::cli::listing::{Entry, State};
use crate::cli::output::{escaped, slot_ranges, value_or_dash};
use crate::cli::table::{Column, Kind};
use crate::cli::values::unix_now_s;
use signalbox_client::{Inspected, Namespace, SessionEntry};
use signalbox_model::SessionKind;

// crossterm omits the colors if NO_COLOR is set.
const PLAIN: ContentStyle = ContentStyle {
    foreground_color: None,
    background_color: None,
    underline_color: None,
    attributes: Attributes::none(),
};
const BOLD: ContentStyle = ContentStyle { attributes: Attributes::none().with(Attribute::Bold), ..PLAIN };
const HEADER: ContentStyle = ContentStyle { foreground_color: Some(Color::DarkCyan), ..BOLD };
const PROBLEM: ContentStyle = ContentStyle { foreground_color: Some(Color::DarkRed), ..BOLD };
const QUIET: ContentStyle = ContentStyle { foreground_color: Some(Color::DarkGrey), ..PLAIN };
/// The style of a number that deserves attention.
const BUSY: ContentStyle = ContentStyle { foreground_color: Some(Color::DarkYellow), ..PLAIN };

/// Returns the style with reversed colors.
fn reversed(style: ContentStyle) -> ContentStyle {
    ContentStyle { attributes: style.attributes.with(Attribute::Reverse), ..style }
}

/// A part of a line in one style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    style: ContentStyle,
}

/// The spans of a line, from left to right.
pub(super) type Line = Vec<Span>;

/// Returns a span. Control characters become spaces, because messages may have several lines.
fn span(text: impl Into<String>, style: ContentStyle) -> Span {
    Span { text: text.into().replace(char::is_control, " "), style }
}

fn plain(text: impl Into<String>) -> Line {
    vec![span(text, PLAIN)]
}

const KEYS: [(&str, &str); 12] = [
    ("1 2 3 4, Tab", "names, declared semaphores, sessions, server"),
    ("Up Down, j k", "select a row"),
    ("PgUp PgDn, Home End", "move by a page, or to the first or last row"),
    ("Enter", "holders and queue of the selected name"),
    ("Esc", "back; clears the filter"),
    ("/", "filter by a part of the name, label, address or identity; Enter ends it"),
    ("s", "sort by the next column"),
    ("r", "reverse the order"),
    ("Space", "stop and continue the updates"),
    ("Ctrl-Z", "leave for a while; fg returns"),
    ("?", "this list"),
    ("q, Ctrl-C", "quit"),
];

/// Returns the lines of a screen of this width and height.
pub(super) fn draw(model: &Model, (width, height): (u16, u16)) -> Vec<Line> {
    let (width, height) = (usize::from(width), usize::from(height));
    let mut lines = head_lines(model);
    let left = height.saturating_sub(lines.len() + 1);
    lines.extend(match &model.details {
        _ if model.shows_help => help(),
        Some(_) => details_lines(model, width, left),
        None => row_lines(model, width, left),
    });
    lines.resize(height.saturating_sub(1), Line::new());
    lines.push(foot_line(model));
    lines
}

fn head_lines(model: &Model) -> Vec<Line> {
    let snapshot = &model.snapshot;
    let number = |name| grouped(snapshot.statistic(name));
    let memory = match snapshot.statistic("memory_max") {
        0 => bytes(snapshot.statistic("used_memory")),
        max => format!("{} of {}", bytes(snapshot.statistic("used_memory")), bytes(max)),
    };
    let rate =
        |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{}/s", grouped(rate.round() as u64)));
    let (acquires, releases) =
        (rate(model.rates.map(|rates| rates.0)), rate(model.rates.map(|rates| rates.1)));
    let first = format!(
        "{}  signalbox {}, up {}, {} connections, memory {memory}",
        model.server,
        snapshot.text("version"),
        duration(snapshot.statistic("uptime")),
        number("curr_connections"),
    );
    let second = format!(
        "{} sessions, {} grants, {} waiting, {} declared; {acquires} acquires, {releases} releases; {} refused for shares, {} \
         for memory, {} for limits",
        number("sessions"),
        number("grants"),
        number("waiters"),
        number("declared"),
        number("refused_shares"),
        number("refused_memory"),
        number("limit_reached"),
    );
    let tab = |(index, view): (usize, View)| {
        let style = if view == model.view { reversed(HEADER) } else { PLAIN };
        span(format!(" {} {} ", index + 1, view.title()), style)
    };
    let mut tabs: Line = View::ALL.into_iter().enumerate().map(tab).collect();
    if model.is_paused {
        tabs.push(span("  updates are stopped", BUSY));
    }
    vec![vec![span(first, BOLD)], plain(second), tabs]
}

fn foot_line(model: &Model) -> Line {
    if let Some(problem) = &model.problem {
        return vec![span(problem.clone(), PROBLEM)];
    }
    if model.is_typing {
        return plain(format!("/{}_", model.filter));
    }
    let (column, is_reversed) = model.sort();
    let order = if is_reversed { ", reversed" } else { "" };
    let filter =
        if model.filter.is_empty() { String::new() } else { format!("  filter \"{}\"", model.filter) };
    let rows = grouped(model.rows.len() as u64);
    vec![span(format!("{rows} rows, by {}{order}{filter}  ? keys  q quit", column.to_lowercase()), QUIET)]
}

/// The minimum width of a text column. Text columns share the space that the others leave.
const TEXT_WIDTH_MIN: usize = 8;

/// Returns the lines of a table with a header and perhaps a selected row. Numbers are never cut.
fn table<'r>(
    columns: &[Column],
    rows: impl Iterator<Item = &'r [Cell]>,
    selected: Option<usize>,
    width: usize,
) -> Vec<Line> {
    let rows: Vec<Vec<String>> = rows.map(|cells| cells.iter().map(Cell::text).collect()).collect();
    let longest = |index: usize| rows.iter().map(|row| row[index].len()).max().unwrap_or(0);
    let width_of = |(index, column): (usize, &Column)| match column.kind {
        Kind::Number => Some(column.width.max(longest(index))),
        Kind::Word => Some(column.width),
        Kind::Text => None,
    };
    let widths: Vec<_> = columns.iter().enumerate().map(width_of).collect();
    let texts = widths.iter().filter(|width| width.is_none()).count();
    let others = widths.iter().flatten().sum::<usize>() + widths.len() - 1;
    let left = width.saturating_sub(others) / texts.max(1);
    let line = |texts: Vec<&str>, style: &dyn Fn(&Column, &str) -> ContentStyle| -> Line {
        let mut line = Line::new();
        for ((text, column), width) in texts.into_iter().zip(columns).zip(&widths) {
            let space = if line.is_empty() { "" } else { " " };
            let width = width.unwrap_or(left.max(TEXT_WIDTH_MIN));
            let fitted = fitted(text, width, column.kind == Kind::Number);
            line.push(span(format!("{space}{fitted}"), style(column, text)));
        }
        line
    };
    let mut lines = vec![line(columns.iter().map(|column| column.title).collect(), &|_, _| HEADER)];
    for (index, row) in rows.iter().enumerate() {
        let style = |column: &Column, text: &str| {
            let is_busy = column.title == "WAITING" && !matches!(text, "0" | "-");
            let style = if is_busy { BUSY } else { PLAIN };
            if selected == Some(index) { reversed(style) } else { style }
        };
        lines.push(line(row.iter().map(String::as_str).collect(), &style));
    }
    lines
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Count(count) => value_or_dash(count.map(grouped)),
            Self::Since(time_s) | Self::Left(time_s) => value_or_dash(time_s.map(duration)),
            Self::Text(text) | Self::Word(text) => text.clone(),
        }
    }
}

/// Returns the rows that fit on the screen, including the selected one.
fn row_lines(model: &Model, width: usize, height: usize) -> Vec<Line> {
    let shown = height.saturating_sub(1).max(1);
    let first = model.selected().map_or(0, |selected| (selected + 1).saturating_sub(shown));
    let rows = model.rows.iter().skip(first).take(shown).map(|row| &row.cells[..]);
    table(model.view.columns(), rows, model.selected().map(|selected| selected - first), width)
}

fn details_lines(model: &Model, width: usize, height: usize) -> Vec<Line> {
    let details =
        model.snapshot.details.as_ref().filter(|details| Some(&details.key) == model.details.as_ref());
    let Some(details) = details else { return vec![plain("asking the server")] };
    let mut lines = details_title(details);
    let Some(state) = &details.state else { return lines };
    let sessions = &model.snapshot.sessions;
    let half = height.saturating_sub(lines.len()) / 2;
    let end = lines.len() + half;
    lines.extend(entry_lines("HELD FOR", &state.holders, sessions, width, half));
    lines.resize(end, Line::new());
    lines.extend(entry_lines("WAITS FOR", &state.queue, sessions, width, half));
    lines
}

fn details_title(details: &Details) -> Vec<Line> {
    let NameKey { namespace, name } = &details.key;
    let name = vec![span(format!("{} {}", namespace.noun(), escaped(name)), HEADER)];
    let Some(State { inspected: Inspected { in_use, peak, waiting, capacity, .. }, .. }) = details.state
    else {
        return vec![name, plain("it no longer exists")];
    };
    let of = match namespace {
        Namespace::Counters => String::new(),
        Namespace::Semaphores => format!(" of {}", grouped(capacity.into())),
    };
    let (in_use, peak, waiting) = (grouped(in_use.into()), grouped(peak.into()), grouped(waiting.into()));
    vec![name, plain(format!("{in_use}{of} in use, peak {peak}, {waiting} waiting"))]
}

fn entry_lines(
    since: &'static str,
    entries: &[Entry],
    sessions: &[SessionEntry<Bytes>],
    width: usize,
    height: usize,
) -> Vec<Line> {
    let columns = [
        Column::number(since, 9),
        Column::number("LEASE", 9),
        Column::number("RESOURCES", 9),
        Column::word("SLOTS", 8),
        Column::number("SESSION", 10),
        Column::number("GRANT", 20),
        Column::text("LABEL"),
        Column::word("ADDRESS", 22),
    ];
    let now_s = unix_now_s();
    let row = |entry: &Entry| {
        let session = sessions.iter().find(|row| row.session == entry.session);
        let leased = session.filter(|row| row.kind == SessionKind::Leased);
        [
            Cell::Since(entry.since.map(|since| now_s.saturating_sub(since))),
            Cell::Left(leased.and_then(ttl_left)),
            Cell::Count(Some(entry.resources.into())),
            Cell::Word(slot_ranges(&entry.slots)),
            Cell::Word(entry.session.to_string()),
            Cell::Word(value_or_dash(entry.grant)),
            Cell::Text(escaped(&entry.label)),
            Cell::Text(escaped(&entry.address)),
        ]
    };
    let rows: Vec<_> = entries.iter().take(height).map(row).collect();
    table(&columns, rows.iter().map(|row| &row[..]), None, width)
}

fn help() -> Vec<Line> {
    let line = |(keys, what): (&str, &str)| vec![span(format!("{keys:<20}"), HEADER), span(what, PLAIN)];
    KEYS.into_iter().map(line).collect()
}

/// Returns the number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (number as f64, 0);
    while amount >= 1024.0 && unit < UNITS.len() - 1 {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} B") } else { format!("{amount:.1} {}", UNITS[unit]) }
}

/// Returns a time in its two largest units.
fn duration(time_s: u64) -> String {
    match time_s {
        0..60 => format!("{time_s}s"),
        60..3_600 => format!("{}m{:02}s", time_s / 60, time_s % 60),
        3_600..86_400 => format!("{}h{:02}m", time_s / 3_600, time_s / 60 % 60),
        _ => format!("{}d{:02}h", time_s / 86_400, time_s / 3_600 % 24),
    }
}

/// Returns the start of a text that takes at most this number of columns.
fn cut(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find_map(|(at, character)| {
        used += character.width().unwrap_or(0);
        (used > columns).then_some(at)
    });
    let mut text = end.map_or(text, |end| &text[..end]);
    // Some characters are wider together, such as a heart and the selector of its emoji.
    while text.width() > columns {
        text = &text[..text.floor_char_boundary(text.len() - 1)];
    }
    text
}

/// Returns a text in exactly this number of columns: it is cut, or filled with spaces.
pub(super) fn fitted(text: &str, columns: usize, is_right: bool) -> String {
    let text = cut(text, columns);
    let spaces = " ".repeat(columns.saturating_sub(text.width()));
    if is_right { spaces + text } else { text.to_owned() + &spaces }
}

/// Writes the lines to a terminal of this width, over those that it shows.
pub(super) fn write(lines: &[Line], width: u16, out: &mut impl Write) -> io::Result<()> {
    for (row, line) in lines.iter().enumerate() {
        queue!(out, MoveTo(0, row as u16))?;
        let mut columns = usize::from(width);
        for Span { text, style } in line {
            // Terminals differ in the width of some characters. This lets the next span begin in its column on all of
            // them.
            queue!(out, MoveToColumn(width - columns as u16))?;
            let text = cut(text, columns);
            columns = columns.saturating_sub(text.width());
            queue!(out, PrintStyledContent(style.apply(text)))?;
        }
        if columns > 0 {
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
    }
    Ok(())
}
