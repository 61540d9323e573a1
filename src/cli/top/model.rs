//! The contents of the screens of `top` and the actions of its keys, without a terminal and a server.
//!
//! Invariants: the rows are those of the view that match the filter, in the order of the view. The selected row exists,
//! unless there are no rows.

use std::cmp::Ordering;

use bytes::Bytes;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::listing::flags;
use super::super::output::escaped;
use super::super::table::Column;
use super::reader::{NameKey, NameRow, Snapshot};
use signalbox_client::{DeclaredEntry, Namespace, SessionEntry};
use signalbox_model::views::{kind_of_session, ttl_left_s};

/// The number of rows by which PgUp and PgDn move.
const PAGE_ROWS: usize = 20;

const NAMES: [Column; 6] = [
    Column::number("IN USE", 11),
    Column::number("CAPACITY", 11),
    Column::number("PEAK", 11),
    Column::number("WAITING", 9),
    Column::word("KIND", 9),
    Column::text("NAME"),
];

const DECLARED: [Column; 6] = [
    Column::number("IN USE", 11),
    Column::number("CAPACITY", 11),
    Column::number("WAITING", 9),
    Column::word("FLAGS", 16),
    Column::text("NAME"),
    Column::text("LABEL"),
];

const SESSIONS: [Column; 8] = [
    Column::word("KIND", 10),
    Column::number("SESSION", 10),
    Column::number("GRANTS", 7),
    Column::number("WAITING", 7),
    Column::number("AGE", 9),
    Column::number("TTL LEFT", 9),
    Column::text("LABEL"),
    Column::word("ADDRESS", 22),
];

const ITEMS: [Column; 2] = [Column::word("ITEM", 24), Column::number("VALUE", 24)];

/// The views, of which the screen shows one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Names,
    Declared,
    Sessions,
    Server,
}

impl View {
    pub(super) const ALL: [Self; 4] = [Self::Names, Self::Declared, Self::Sessions, Self::Server];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Names => "Names",
            Self::Declared => "Declared",
            Self::Sessions => "Sessions",
            Self::Server => "Server",
        }
    }

    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Self::Names => &NAMES,
            Self::Declared => &DECLARED,
            Self::Sessions => &SESSIONS,
            Self::Server => &ITEMS,
        }
    }

    /// Returns the columns by which the view can be sorted, the default first. Rows with the same value are sorted by the
    /// other columns, in this order.
    fn sorts(self) -> &'static [&'static str] {
        match self {
            Self::Names => &["WAITING", "IN USE", "PEAK", "NAME"],
            Self::Declared => &["NAME", "WAITING", "IN USE", "CAPACITY"],
            Self::Sessions => &["GRANTS", "WAITING", "AGE", "TTL LEFT", "LABEL", "ADDRESS"],
            Self::Server => &["ITEM"],
        }
    }
}

/// A value of a row. Rows are sorted by such values, the greatest numbers first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// `None` if it was not requested, or if there is none.
    Count(Option<u64>),
    /// The time since something began, in seconds.
    Since(Option<u64>),
    /// The time until something ends, in seconds: the shortest comes first.
    Left(Option<u64>),
    /// An escaped text that the filter searches.
    Text(String),
    /// An escaped text that the filter does not search.
    Word(String),
}

impl Cell {
    /// Returns a key by which values are sorted, the smallest first.
    fn rank(&self) -> (u64, &str) {
        match self {
            Self::Count(count) => (u64::MAX - count.unwrap_or(0), ""),
            Self::Since(time_s) => (u64::MAX - time_s.unwrap_or(u64::MAX), ""),
            Self::Left(time_s) => (time_s.unwrap_or(u64::MAX), ""),
            Self::Text(text) | Self::Word(text) => (0, text),
        }
    }
}

/// A row of a view, with a value for each of its columns.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    /// The name whose details Enter shows.
    key: Option<NameKey>,
}

fn count(number: u32) -> Cell {
    Cell::Count(Some(number.into()))
}

impl Row {
    fn of_name(row: &NameRow) -> Self {
        let cells = vec![
            count(row.in_use),
            Cell::Count(row.capacity.map(u64::from)),
            count(row.peak),
            Cell::Count(row.waiting.map(u64::from)),
            Cell::Word(row.key.namespace.noun().to_owned()),
            Cell::Text(escaped(&row.key.name)),
        ];
        Self { cells, key: Some(row.key.clone()) }
    }

    fn of_declared(row: &DeclaredEntry<Bytes>) -> Self {
        let cells = vec![
            count(row.in_use),
            count(row.capacity),
            count(row.waiting),
            Cell::Word(flags(row)),
            Cell::Text(escaped(&row.name)),
            Cell::Text(escaped(&row.label)),
        ];
        Self { cells, key: Some(NameKey { namespace: Namespace::Semaphores, name: row.name.clone() }) }
    }

    fn of_session(row: &SessionEntry<Bytes>) -> Self {
        let (address, label) = (escaped(&row.address), escaped(&row.label));
        let address = if row.attached { address } else { format!("({address})") };
        let label = match &row.identity[..] {
            b"" => label,
            identity => format!("{label} ({})", escaped(identity)),
        };
        let cells = vec![
            Cell::Text(kind_of_session(row.kind).to_owned()),
            Cell::Word(row.session.to_string()),
            count(row.grants),
            count(row.waiting),
            Cell::Since(row.age_s.map(u64::from)),
            Cell::Left(ttl_left(row)),
            Cell::Text(label),
            Cell::Text(address),
        ];
        Self { cells, key: None }
    }

    fn of_item((name, value): &(String, String)) -> Self {
        Self { cells: vec![Cell::Text(name.clone()), Cell::Word(value.clone())], key: None }
    }

    fn contains(&self, filter: &str) -> bool {
        self.cells.iter().any(|cell| matches!(cell, Cell::Text(text) if text.contains(filter)))
    }
}

/// Returns the time to live that is left, in seconds; `None` if the session ends with its connection.
pub(super) fn ttl_left(session: &SessionEntry<Bytes>) -> Option<u64> {
    ttl_left_s(session.ttl_left).map(|left| left as u64)
}

/// The next action of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The screen is drawn again.
    Draw,
    /// A reading begins, at once or after the one in progress.
    Read,
    /// The program stops until it is continued, and restores the terminal before.
    Stop,
    Quit,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The server, as given on the command line.
    pub(super) server: String,
    pub(super) view: View,
    pub(super) snapshot: Snapshot,
    pub(super) rows: Vec<Row>,
    /// Acquires and Releases per second since the previous snapshot.
    pub(super) rates: Option<(f64, f64)>,
    /// The failure of the last update.
    pub(super) problem: Option<String>,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    /// The name whose details are shown.
    pub(super) details: Option<NameKey>,
    selected: usize,
    sorts: [Sort; View::ALL.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Sort {
    column: usize,
    is_reversed: bool,
}

impl Model {
    pub(super) fn new(server: String) -> Self {
        Self { server, ..Self::default() }
    }

    /// Shows another snapshot.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        let before = &self.snapshot;
        let elapsed_s = snapshot.at_s - before.at_s;
        let rate = |after: u64, before: u64| after.saturating_sub(before) as f64 / elapsed_s;
        let has_previous = !before.statistics.is_empty() && elapsed_s > 0.0;
        let rates = has_previous
            .then(|| (rate(snapshot.acquires, before.acquires), rate(snapshot.releases, before.releases)));
        self.rates = rates;
        self.snapshot = snapshot;
        self.problem = None;
        self.arrange();
    }

    /// Returns the selected row; `None` if there are no rows.
    pub(super) fn selected(&self) -> Option<usize> {
        (!self.rows.is_empty()).then_some(self.selected)
    }

    /// Returns the column by which the view is sorted, and whether its usual order is reversed.
    pub(super) fn sort(&self) -> (&'static str, bool) {
        let Sort { column, is_reversed } = self.sorts[self.view as usize];
        (self.view.sorts()[column], is_reversed)
    }

    /// Makes, filters and sorts the rows of the view.
    fn arrange(&mut self) {
        let snapshot = &self.snapshot;
        let mut rows: Vec<_> = match self.view {
            View::Names => snapshot.names.iter().map(Row::of_name).collect(),
            View::Declared => snapshot.declared.iter().map(Row::of_declared).collect(),
            View::Sessions => snapshot.sessions.iter().map(Row::of_session).collect(),
            View::Server => snapshot.statistics.iter().map(Row::of_item).collect(),
        };
        rows.retain(|row| self.filter.is_empty() || row.contains(&self.filter));
        let (first, is_reversed) = self.sort();
        let columns = [first].into_iter().chain(self.view.sorts().iter().copied());
        let index = |title| self.view.columns().iter().position(|column| column.title == title);
        let columns: Vec<_> = columns.filter_map(index).collect();
        rows.sort_by(|one, other| {
            let order = |column: &usize| one.cells[*column].rank().cmp(&other.cells[*column].rank());
            columns.iter().map(order).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        });
        if is_reversed {
            rows.reverse();
        }
        self.rows = rows;
        self.select(self.selected);
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => return Next::Draw,
            KeyCode::Char('c') if is_control => return Next::Quit,
            KeyCode::Char('z') if is_control => return Next::Stop,
            code if self.is_typing => self.edit_filter(code, is_control),
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('1') => self.show(View::Names),
            KeyCode::Char('2') => self.show(View::Declared),
            KeyCode::Char('3') => self.show(View::Sessions),
            KeyCode::Char('4') => self.show(View::Server),
            KeyCode::Tab => self.show(View::ALL[(self.view as usize + 1) % View::ALL.len()]),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(PAGE_ROWS)),
            KeyCode::PageDown => self.select(self.selected + PAGE_ROWS),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('s') => {
                let columns = self.view.sorts().len();
                let sort = &mut self.sorts[self.view as usize];
                *sort = Sort { column: (sort.column + 1) % columns, is_reversed: false };
                self.arrange();
            }
            KeyCode::Char('r') => {
                let sort = &mut self.sorts[self.view as usize];
                sort.is_reversed = !sort.is_reversed;
                self.arrange();
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Enter => {
                self.details = self.rows.get(self.selected).and_then(|row| row.key.clone());
                if self.details.is_some() {
                    return Next::Read;
                }
            }
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            KeyCode::Char(' ') => {
                self.is_paused = !self.is_paused;
                if !self.is_paused {
                    return Next::Read;
                }
            }
            KeyCode::Char('?') => self.shows_help = !self.shows_help,
            _ => {}
        }
        Next::Draw
    }

    fn edit_filter(&mut self, code: KeyCode, is_control: bool) {
        match code {
            KeyCode::Char(character) if !is_control => self.filter.push(character),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => {
                self.is_typing = false;
                return;
            }
            KeyCode::Esc => return self.back(),
            _ => return,
        }
        self.selected = 0;
        self.arrange();
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.details = None;
        self.selected = 0;
        self.arrange();
    }

    /// Leaves the help, the details or the filter.
    fn back(&mut self) {
        if self.shows_help {
            self.shows_help = false;
        } else if self.details.is_some() && !self.is_typing {
            self.details = None;
        } else {
            self.is_typing = false;
            self.filter.clear();
            self.arrange();
        }
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
    }
}
