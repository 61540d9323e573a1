//! Draws the state of `top`.

use bytes::Bytes;
use crossterm::style::Color;

use super::model::{Model, Rows, View};
use super::paint::{Line, Span, Style, fitted, span};
use super::reader::{Details, NameKey};
use crate::cli::declared::flags;
use crate::cli::listing::{Entry, State};
use crate::cli::output::{escaped, or_none};
use crate::cli::sessions::ttl_left_s;
use crate::cli::slots;
use crate::cli::table::{Column, Kind};
use crate::cli::time::unix_now_s;
use signalbox_client::{Inspected, Namespace, SessionEntry};
use signalbox_model::SessionKind;
use signalbox_model::views::kind_of_session;

/// Colors, or none if the environment asks for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colors {
    pub(super) is_colored: bool,
}

impl Colors {
    fn of(self, color: Color) -> Style {
        Style { color: self.is_colored.then_some(color), ..Style::default() }
    }

    fn header(self) -> Style {
        Style { is_bold: true, ..self.of(Color::DarkCyan) }
    }

    fn problem(self) -> Style {
        Style { is_bold: true, ..self.of(Color::DarkRed) }
    }

    fn quiet(self) -> Style {
        self.of(Color::DarkGrey)
    }

    /// A figure that deserves attention.
    fn busy(self) -> Style {
        self.of(Color::DarkYellow)
    }
}

/// A part of the screen, in columns and rows.
#[derive(Clone, Copy, Debug)]
struct Area {
    width: usize,
    height: usize,
}

const KEYS: [(&str, &str); 12] = [
    ("1 2 3 4, Tab", "names, declared semaphores, sessions, server"),
    ("Up Down, j k", "select a row"),
    ("PgUp PgDn, Home End", "select far away"),
    ("Enter", "holders and queue of the selected name"),
    ("Esc", "back; without the filter"),
    ("/", "filter by a part of the name, label, address or identity; Enter ends it"),
    ("s", "sort by the next column"),
    ("r", "reverse the order"),
    ("Space", "stop and continue the updates"),
    ("Ctrl-Z", "leave for a while; fg returns"),
    ("?", "this list"),
    ("q, Ctrl-C", "quit"),
];

/// The lines of a screen of this width and height.
pub(super) fn draw(model: &Model, colors: Colors, (width, height): (u16, u16)) -> Vec<Line> {
    let (width, height) = (usize::from(width), usize::from(height));
    let mut lines = head_lines(model, colors);
    let area = Area { width, height: height.saturating_sub(lines.len() + 1) };
    let body = match &model.details {
        _ if model.shows_help => help(colors),
        Some(_) => details_lines(model, colors, area),
        None => row_lines(model, colors, area),
    };
    lines.extend(filled(body, area));
    lines.truncate(height.saturating_sub(1));
    lines.push(foot_line(model, colors));
    lines
}

/// As many lines as the area has.
fn filled(mut lines: Vec<Line>, area: Area) -> Vec<Line> {
    lines.resize(area.height, Line::new());
    lines
}

fn plain(text: impl Into<String>) -> Line {
    vec![span(text, Style::default())]
}

fn head_lines(model: &Model, colors: Colors) -> Vec<Line> {
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
    vec![vec![span(first, Style { is_bold: true, ..Style::default() })], plain(second), tabs(model, colors)]
}

fn tabs(model: &Model, colors: Colors) -> Line {
    let mut spans = Vec::new();
    for (index, view) in View::ALL.into_iter().enumerate() {
        let style = if view == model.view {
            Style { is_reversed: true, ..colors.header() }
        } else {
            Style::default()
        };
        spans.push(span(format!(" {} {} ", index + 1, view.title()), style));
    }
    if model.is_paused {
        spans.push(span("  updates are stopped", colors.busy()));
    }
    spans
}

fn foot_line(model: &Model, colors: Colors) -> Line {
    if let Some(problem) = &model.problem {
        return vec![span(problem.clone(), colors.problem())];
    }
    if model.is_typing {
        return plain(format!("/{}_", model.filter));
    }
    let (column, is_reversed) = model.sort();
    let order = if is_reversed { ", reversed" } else { "" };
    let filter =
        if model.filter.is_empty() { String::new() } else { format!("  filter \"{}\"", model.filter) };
    let rows = grouped(model.rows().len() as u64);
    let text = format!("{rows} rows, by {}{order}{filter}  ? keys  q quit", column.to_lowercase());
    vec![span(text, colors.quiet())]
}

/// The least width of a column that takes what the others leave.
const TEXT_WIDTH_MIN: usize = 8;

/// A table with a header and perhaps a selected row. The rows are those that fit on the screen. Numbers are never cut.
fn table(
    columns: &[Column],
    rows: Vec<Vec<Span>>,
    selected: Option<usize>,
    colors: Colors,
    area: Area,
) -> Vec<Line> {
    let longest = |index: usize| rows.iter().map(|row| row[index].text.len()).max().unwrap_or(0);
    let width_of = |(index, column): (usize, &Column)| match column.kind {
        Kind::Number => Some(column.width.max(longest(index))),
        Kind::Word => Some(column.width),
        Kind::Text => None,
    };
    let widths: Vec<_> = columns.iter().enumerate().map(width_of).collect();
    let texts = widths.iter().filter(|width| width.is_none()).count();
    let others = widths.iter().flatten().sum::<usize>() + widths.len() - 1;
    let left = area.width.saturating_sub(others) / texts.max(1);
    let line = |cells: Vec<Span>, is_selected: bool| -> Line {
        let mut line = Line::new();
        for ((cell, column), width) in cells.into_iter().zip(columns).zip(&widths) {
            let space = if line.is_empty() { "" } else { " " };
            let width = width.unwrap_or(left.max(TEXT_WIDTH_MIN));
            let style = Style { is_reversed: is_selected, ..cell.style };
            line.push(span(
                format!("{space}{}", fitted(&cell.text, width, column.kind == Kind::Number)),
                style,
            ));
        }
        line
    };
    let header = columns.iter().map(|column| span(column.title, colors.header())).collect();
    let mut lines = vec![line(header, false)];
    lines.extend(rows.into_iter().enumerate().map(|(index, row)| line(row, selected == Some(index))));
    lines
}

fn row_lines(model: &Model, colors: Colors, area: Area) -> Vec<Line> {
    let plain = |text: String| span(text, Style::default());
    let count =
        |number: u32| span(grouped(number.into()), if number > 0 { colors.busy() } else { Style::default() });
    let time = |time_s: Option<u64>| plain(time_s.map_or("-".to_owned(), duration));
    let optional = |number: Option<u64>| plain(number.map_or("-".to_owned(), grouped));
    let (columns, rows): (Vec<_>, Vec<Vec<_>>) = match model.rows() {
        Rows::Names(rows) => (
            vec![
                Column::number("IN USE", 11),
                Column::number("CAPACITY", 11),
                Column::number("PEAK", 11),
                Column::number("WAITING", 9),
                Column::word("KIND", 9),
                Column::text("NAME"),
            ],
            visible(&rows, model, area)
                .map(|row| {
                    let waiting = row.waiting.map_or(plain("-".to_owned()), count);
                    let kind = row.key.namespace.noun();
                    vec![
                        plain(grouped(row.in_use.into())),
                        optional(row.capacity.map(u64::from)),
                        plain(grouped(row.peak.into())),
                        waiting,
                        plain(kind.to_owned()),
                        plain(escaped(&row.key.name)),
                    ]
                })
                .collect(),
        ),
        Rows::Declared(rows) => (
            vec![
                Column::number("IN USE", 11),
                Column::number("CAPACITY", 11),
                Column::number("WAITING", 9),
                Column::word("FLAGS", 16),
                Column::text("NAME"),
                Column::text("LABEL"),
            ],
            visible(&rows, model, area)
                .map(|row| {
                    vec![
                        plain(grouped(row.in_use.into())),
                        plain(grouped(row.capacity.into())),
                        count(row.waiting),
                        plain(flags(row)),
                        plain(escaped(&row.name)),
                        plain(escaped(&row.label)),
                    ]
                })
                .collect(),
        ),
        Rows::Sessions(rows) => (
            vec![
                Column::word("KIND", 10),
                Column::number("SESSION", 10),
                Column::number("GRANTS", 7),
                Column::number("WAITING", 7),
                Column::number("AGE", 9),
                Column::number("TTL LEFT", 9),
                Column::text("LABEL"),
                Column::word("ADDRESS", 22),
            ],
            visible(&rows, model, area)
                .map(|row| {
                    let (address, label) = (escaped(&row.address), escaped(&row.label));
                    let address = if row.attached { address } else { format!("({address})") };
                    let label = match &row.identity[..] {
                        b"" => label,
                        identity => format!("{label} ({})", escaped(identity)),
                    };
                    vec![
                        plain(kind_of_session(row.kind).to_owned()),
                        plain(row.session.to_string()),
                        plain(grouped(row.grants.into())),
                        count(row.waiting),
                        time(row.age_s.map(u64::from)),
                        time(ttl_left_s(row)),
                        plain(label),
                        plain(address),
                    ]
                })
                .collect(),
        ),
        Rows::Items(rows) => (
            vec![Column::word("ITEM", 24), Column::number("VALUE", 24)],
            visible(&rows, model, area)
                .map(|(name, value)| vec![plain(name.clone()), plain(value.clone())])
                .collect(),
        ),
    };
    let first = first_visible(model, area);
    table(&columns, rows, model.selected().map(|selected| selected - first), colors, area)
}

/// The first row on the screen: so that the selected one is.
fn first_visible(model: &Model, area: Area) -> usize {
    let shown = area.height.saturating_sub(1).max(1);
    model.selected().map_or(0, |selected| (selected + 1).saturating_sub(shown))
}

/// The rows on the screen.
fn visible<'r, R>(rows: &'r [&'r R], model: &Model, area: Area) -> impl Iterator<Item = &'r R> {
    rows.iter().skip(first_visible(model, area)).take(area.height).copied()
}

fn details_lines(model: &Model, colors: Colors, area: Area) -> Vec<Line> {
    let details =
        model.snapshot.details.as_ref().filter(|details| Some(&details.key) == model.details.as_ref());
    let Some(details) = details else { return vec![plain("asking the server")] };
    let mut lines = details_title(details, colors);
    let Some(state) = &details.state else { return lines };
    let sessions = &model.snapshot.sessions;
    let half = Area { height: area.height.saturating_sub(lines.len()) / 2, ..area };
    lines.extend(filled(entry_lines("HELD FOR", &state.holders, sessions, colors, half), half));
    lines.extend(entry_lines("WAITS FOR", &state.queue, sessions, colors, half));
    lines
}

fn details_title(details: &Details, colors: Colors) -> Vec<Line> {
    let NameKey { namespace, name } = &details.key;
    let name = vec![span(format!("{} {}", namespace.noun(), escaped(name)), colors.header())];
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
    colors: Colors,
    area: Area,
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
    let time = |time_s: Option<u64>| time_s.map_or("-".to_owned(), duration);
    let now_s = unix_now_s();
    let row = |entry: &Entry| {
        let session = sessions.iter().find(|row| row.session == entry.session);
        let leased = session.filter(|row| row.kind == SessionKind::Leased);
        let texts = [
            time(entry.since.map(|since| now_s.saturating_sub(since))),
            time(leased.and_then(ttl_left_s)),
            grouped(entry.resources.into()),
            slots::ranges(&entry.slots),
            entry.session.to_string(),
            or_none(entry.grant),
            escaped(&entry.label),
            escaped(&entry.address),
        ];
        texts.map(|text| span(text, Style::default())).into()
    };
    table(&columns, entries.iter().take(area.height).map(row).collect(), None, colors, area)
}

fn help(colors: Colors) -> Vec<Line> {
    let line = |(keys, what): (&str, &str)| {
        vec![span(format!("{keys:<20}"), colors.header()), span(what, Style::default())]
    };
    KEYS.into_iter().map(line).collect()
}

/// The digits in groups of three.
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

/// A time in its two largest units.
fn duration(time_s: u64) -> String {
    match time_s {
        0..60 => format!("{time_s}s"),
        60..3_600 => format!("{}m{:02}s", time_s / 60, time_s % 60),
        3_600..86_400 => format!("{}h{:02}m", time_s / 3_600, time_s / 60 % 60),
        _ => format!("{}d{:02}h", time_s / 86_400, time_s / 3_600 % 24),
    }
}
