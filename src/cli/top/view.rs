//! Draws the state of `top`.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Table, TableState};

use super::model::{Model, Rows, View};
use super::snapshot::{Details, EntryRow, Usage};

/// Colors, or none if the environment asks for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colors {
    pub(super) is_colored: bool,
}

impl Colors {
    fn of(self, color: Color) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }

    fn header(self) -> Style {
        self.of(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn problem(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn quiet(self) -> Style {
        self.of(Color::DarkGray)
    }

    /// A figure that deserves attention.
    fn busy(self) -> Style {
        self.of(Color::Yellow)
    }
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

/// Draws everything.
pub(super) fn draw(model: &Model, colors: Colors, frame: &mut Frame<'_>) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(3), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(model, colors)), head);
    match &model.details {
        Some(_) => draw_details(model, colors, frame, body),
        None => draw_rows(model, colors, frame, body),
    }
    frame.render_widget(Paragraph::new(foot_line(model, colors)), foot);
    if model.shows_help {
        draw_help(colors, frame);
    }
}

fn head_lines(model: &Model, colors: Colors) -> Vec<Line<'static>> {
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
    vec![
        Line::styled(first, Style::new().add_modifier(Modifier::BOLD)),
        Line::from(second),
        tabs(model, colors),
    ]
}

fn tabs(model: &Model, colors: Colors) -> Line<'static> {
    let mut spans = Vec::new();
    for (index, view) in View::ALL.into_iter().enumerate() {
        let style =
            if view == model.view { colors.header().add_modifier(Modifier::REVERSED) } else { Style::new() };
        spans.push(Span::styled(format!(" {} {} ", index + 1, view.title()), style));
    }
    if model.is_paused {
        spans.push(Span::styled("  updates are stopped", colors.busy()));
    }
    Line::from(spans)
}

fn foot_line(model: &Model, colors: Colors) -> Line<'static> {
    if let Some(problem) = &model.problem {
        return Line::styled(problem.clone(), colors.problem());
    }
    if model.is_typing {
        return Line::from(format!("/{}_", model.filter));
    }
    let (column, is_reversed) = model.sort();
    let order = if is_reversed { ", reversed" } else { "" };
    let filter =
        if model.filter.is_empty() { String::new() } else { format!("  filter \"{}\"", model.filter) };
    let rows = grouped(model.rows().len() as u64);
    let text = format!("{rows} rows, by {}{order}{filter}  ? keys  q quit", column.to_lowercase());
    Line::styled(text, colors.quiet())
}

/// A column: its title, its width, and whether it has numbers.
struct Column(&'static str, Constraint, bool);

const fn number(title: &'static str, width: u16) -> Column {
    Column(title, Constraint::Length(width), true)
}

const fn word(title: &'static str, width: u16) -> Column {
    Column(title, Constraint::Length(width), false)
}

const fn text(title: &'static str) -> Column {
    Column(title, Constraint::Fill(1), false)
}

/// A table with a header and perhaps a selected row. The rows are those that fit on the screen.
fn table(
    columns: &[Column],
    rows: Vec<Vec<(String, Style)>>,
    selected: Option<usize>,
    colors: Colors,
    frame: &mut Frame<'_>,
    area: Rect,
) {
    let cell = |(text, style): (String, Style), is_number: bool| {
        let alignment = if is_number { Alignment::Right } else { Alignment::Left };
        Cell::from(Line::styled(text, style).alignment(alignment))
    };
    let header = columns
        .iter()
        .map(|Column(title, _, is_number)| cell(((*title).to_owned(), colors.header()), *is_number));
    let rows = rows
        .into_iter()
        .map(|row| Row::new(row.into_iter().zip(columns).map(|(content, column)| cell(content, column.2))));
    let table = Table::new(rows, columns.iter().map(|column| column.1))
        .header(Row::new(header))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_rows(model: &Model, colors: Colors, frame: &mut Frame<'_>, area: Rect) {
    let plain = |text: String| (text, Style::new());
    let count = |number: u32| (grouped(number.into()), if number > 0 { colors.busy() } else { Style::new() });
    let optional = |number: Option<u64>| plain(number.map_or("-".to_owned(), grouped));
    let (columns, rows): (Vec<_>, Vec<Vec<_>>) = match model.rows() {
        Rows::Names(rows) => (
            vec![
                number("IN USE", 11),
                number("CAPACITY", 11),
                number("PEAK", 11),
                number("WAITING", 9),
                word("KIND", 9),
                text("NAME"),
            ],
            visible(&rows, model, area)
                .map(|row| {
                    let waiting = row.waiting.map_or(plain("-".to_owned()), count);
                    let kind = crate::views::kind_of(row.key.namespace);
                    vec![
                        plain(grouped(row.in_use.into())),
                        optional(row.capacity.map(u64::from)),
                        plain(grouped(row.peak.into())),
                        waiting,
                        plain(kind.to_owned()),
                        plain(row.name.clone()),
                    ]
                })
                .collect(),
        ),
        Rows::Declared(rows) => (
            vec![
                number("IN USE", 11),
                number("CAPACITY", 11),
                number("WAITING", 9),
                word("FLAGS", 16),
                text("NAME"),
                text("LABEL"),
            ],
            visible(&rows, model, area)
                .map(|row| {
                    vec![
                        plain(grouped(row.in_use.into())),
                        plain(grouped(row.capacity.into())),
                        count(row.waiting),
                        plain(row.flags.clone()),
                        plain(row.name.clone()),
                        plain(row.label.clone()),
                    ]
                })
                .collect(),
        ),
        Rows::Sessions(rows) => (
            vec![
                word("KIND", 10),
                number("SESSION", 10),
                number("GRANTS", 7),
                number("WAITING", 7),
                number("AGE", 9),
                number("TTL LEFT", 9),
                text("LABEL"),
                word("ADDRESS", 22),
            ],
            visible(&rows, model, area)
                .map(|row| {
                    let address =
                        if row.is_connected { row.address.clone() } else { format!("({})", row.address) };
                    let label = match &row.identity[..] {
                        "" => row.label.clone(),
                        identity => format!("{} ({identity})", row.label),
                    };
                    vec![
                        plain(row.kind.to_owned()),
                        plain(row.session.to_string()),
                        plain(grouped(row.grants.into())),
                        count(row.waiting),
                        plain(row.age_s.map_or("-".to_owned(), duration)),
                        plain(row.ttl_left_s.map_or("-".to_owned(), duration)),
                        plain(label),
                        plain(address),
                    ]
                })
                .collect(),
        ),
        Rows::Items(rows) => (
            vec![word("ITEM", 24), number("VALUE", 24)],
            visible(&rows, model, area)
                .map(|(name, value)| vec![plain(name.clone()), plain(value.clone())])
                .collect(),
        ),
    };
    let first = first_visible(model, area);
    table(&columns, rows, model.selected().map(|selected| selected - first), colors, frame, area);
}

/// The first row on the screen: so that the selected one is.
fn first_visible(model: &Model, area: Rect) -> usize {
    let shown = usize::from(area.height.saturating_sub(1)).max(1);
    model.selected().map_or(0, |selected| (selected + 1).saturating_sub(shown))
}

/// The rows on the screen.
fn visible<'r, R>(rows: &'r [&'r R], model: &Model, area: Rect) -> impl Iterator<Item = &'r R> {
    rows.iter().skip(first_visible(model, area)).take(area.height.into()).copied()
}

fn draw_details(model: &Model, colors: Colors, frame: &mut Frame<'_>, area: Rect) {
    let details =
        model.snapshot.details.as_ref().filter(|details| Some(&details.key) == model.details.as_ref());
    let Some(details) = details else {
        return frame.render_widget(Paragraph::new("asking the server"), area);
    };
    let [title, holders, queue] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(details_title(details, colors)), title);
    let Some(usage) = &details.usage else { return };
    draw_entries("HELD FOR", &usage.holders, colors, frame, holders);
    draw_entries("WAITS FOR", &usage.queue, colors, frame, queue);
}

fn details_title(details: &Details, colors: Colors) -> Vec<Line<'static>> {
    let name = Line::styled(details.name.clone(), colors.header());
    let Some(Usage { in_use, peak, waiting, capacity, .. }) = details.usage else {
        return vec![name, Line::from("it does not exist any more")];
    };
    let of = capacity.map_or(String::new(), |capacity| format!(" of {}", grouped(capacity.into())));
    let (in_use, peak, waiting) = (grouped(in_use.into()), grouped(peak.into()), grouped(waiting.into()));
    vec![name, Line::from(format!("{in_use}{of} in use, peak {peak}, {waiting} waiting"))]
}

fn draw_entries(
    since: &'static str,
    entries: &[EntryRow],
    colors: Colors,
    frame: &mut Frame<'_>,
    area: Rect,
) {
    let columns = [
        number(since, 9),
        number("LEASE", 9),
        number("RESOURCES", 9),
        word("SLOTS", 8),
        number("SESSION", 10),
        number("GRANT", 20),
        text("LABEL"),
        word("ADDRESS", 22),
    ];
    let time = |time_s: Option<u64>| time_s.map_or("-".to_owned(), duration);
    let row = |entry: &EntryRow| {
        let texts = [
            time(entry.age_s),
            time(entry.lease_s),
            grouped(entry.resources.into()),
            entry.slots.clone(),
            entry.session.to_string(),
            entry.grant.clone(),
            entry.label.clone(),
            entry.address.clone(),
        ];
        texts.map(|text| (text, Style::new())).into()
    };
    table(&columns, entries.iter().take(area.height.into()).map(row).collect(), None, colors, frame, area);
}

fn draw_help(colors: Colors, frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (area.width.min(76), area.height.min(KEYS.len() as u16 + 2));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let line = |(keys, what): (&str, &str)| {
        Line::from(vec![Span::styled(format!("{keys:<20}"), colors.header()), Span::raw(what.to_owned())])
    };
    let lines: Vec<_> = KEYS.into_iter().map(line).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(lines).block(Block::new().borders(Borders::ALL).title(" Keys ")),
        place,
    );
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
