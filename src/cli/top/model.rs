//! What `top` shows and what its keys do, without a terminal and a server.
//!
//! Invariant: the selected row exists, unless the view has no rows.

use bytes::Bytes;

use super::super::output::escaped;
use super::super::sessions::ttl_left_s;
use super::reader::{NameKey, NameRow, Snapshot};
use signalbox_client::{DeclaredEntry, Namespace, SessionEntry};
use signalbox_model::views::kind_of_session;

/// What the screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
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

    /// The columns by which the view can be sorted. The first one is used at the start.
    pub(super) fn sorts(self) -> &'static [&'static str] {
        match self {
            Self::Names => &["WAITING", "IN USE", "PEAK", "NAME"],
            Self::Declared => &["NAME", "WAITING", "IN USE", "CAPACITY"],
            Self::Sessions => &["GRANTS", "WAITING", "AGE", "TTL LEFT", "LABEL", "ADDRESS"],
            Self::Server => &["ITEM"],
        }
    }
}

/// What a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    View(View),
    NextView,
    Up(usize),
    Down(usize),
    First,
    Last,
    NextSort,
    Reverse,
    BeginFilter,
    /// A character of the filter.
    Type(char),
    DeleteCharacter,
    Enter,
    Back,
    TogglePause,
    ToggleHelp,
    Quit,
}

/// What follows an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The screen is drawn again.
    Draw,
    /// The server is asked at once.
    Read,
    Quit,
}

/// The rows of a view.
#[derive(Clone, Debug)]
pub(super) enum Rows<'a> {
    Names(Vec<&'a NameRow>),
    Declared(Vec<&'a DeclaredEntry<Bytes>>),
    Sessions(Vec<&'a SessionEntry<Bytes>>),
    Items(Vec<&'a (String, String)>),
}

impl Rows<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Names(rows) => rows.len(),
            Self::Declared(rows) => rows.len(),
            Self::Sessions(rows) => rows.len(),
            Self::Items(rows) => rows.len(),
        }
    }
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Model {
    /// The server as it was requested.
    pub(super) server: String,
    pub(super) view: View,
    pub(super) snapshot: Snapshot,
    /// Acquires and Releases a second since the snapshot before.
    pub(super) rates: Option<(f64, f64)>,
    /// Why the last update failed.
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
        Self {
            server,
            view: View::Names,
            snapshot: Snapshot::default(),
            rates: None,
            problem: None,
            is_paused: false,
            shows_help: false,
            filter: String::new(),
            is_typing: false,
            details: None,
            selected: 0,
            sorts: Default::default(),
        }
    }

    /// Shows another snapshot.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        let before = &self.snapshot;
        let elapsed_s = snapshot.at_s - before.at_s;
        let rate = |after: u64, before: u64| after.saturating_sub(before) as f64 / elapsed_s;
        let had_one = !before.statistics.is_empty() && elapsed_s > 0.0;
        let rates = had_one
            .then(|| (rate(snapshot.acquires, before.acquires), rate(snapshot.releases, before.releases)));
        self.rates = rates;
        self.snapshot = snapshot;
        self.problem = None;
        self.select(self.selected);
    }

    /// The selected row; `None`: there are no rows.
    pub(super) fn selected(&self) -> Option<usize> {
        (self.rows().len() > 0).then_some(self.selected)
    }

    /// The column by which the view is sorted, and whether its usual order is reversed.
    pub(super) fn sort(&self) -> (&'static str, bool) {
        let Sort { column, is_reversed } = self.sorts[self.view as usize];
        (self.view.sorts()[column], is_reversed)
    }

    /// The rows of the view that pass the filter, in its order.
    pub(super) fn rows(&self) -> Rows<'_> {
        let snapshot = &self.snapshot;
        let contains = |text: &&[u8]| escaped(text).contains(&self.filter);
        let passes = |texts: &[&[u8]]| self.filter.is_empty() || texts.iter().any(contains);
        match self.view {
            View::Names => {
                let rows = snapshot.names.iter().filter(|row| passes(&[&row.key.name]));
                Rows::Names(self.sorted(rows.collect(), |row, column| match column {
                    "WAITING" => Rank::most(row.waiting.unwrap_or(0), row.in_use, &row.key.name),
                    "IN USE" => Rank::most(row.in_use, 0, &row.key.name),
                    "PEAK" => Rank::most(row.peak, 0, &row.key.name),
                    _ => Rank::text(&row.key.name),
                }))
            }
            View::Declared => {
                let rows = snapshot.declared.iter().filter(|row| passes(&[&row.name, &row.label]));
                Rows::Declared(self.sorted(rows.collect(), |row, column| match column {
                    "WAITING" => Rank::most(row.waiting, row.in_use, &row.name),
                    "IN USE" => Rank::most(row.in_use, 0, &row.name),
                    "CAPACITY" => Rank::most(row.capacity, 0, &row.name),
                    _ => Rank::text(&row.name),
                }))
            }
            View::Sessions => {
                let shown = |row: &&SessionEntry<Bytes>| {
                    let kind = kind_of_session(row.kind).as_bytes();
                    passes(&[&row.label, &row.address, &row.identity, kind])
                };
                let rows = snapshot.sessions.iter().filter(shown);
                Rows::Sessions(self.sorted(rows.collect(), |row, column| match column {
                    "GRANTS" => Rank::most(row.grants, row.waiting, &row.label),
                    "WAITING" => Rank::most(row.waiting, row.grants, &row.label),
                    "AGE" => Rank::most(row.age_s.map_or(u64::MAX, u64::from), 0, &row.label),
                    "TTL LEFT" => Rank::least(ttl_left_s(row).unwrap_or(u64::MAX), &row.label),
                    "ADDRESS" => Rank::text(&row.address),
                    _ => Rank::text(&row.label),
                }))
            }
            View::Server => {
                let rows = snapshot.statistics.iter().filter(|(name, _)| passes(&[name.as_bytes()]));
                let mut rows: Vec<_> = rows.collect();
                if self.sort().1 {
                    rows.reverse();
                }
                Rows::Items(rows)
            }
        }
    }

    fn sorted<'a, R>(&self, mut rows: Vec<&'a R>, rank: impl Fn(&'a R, &str) -> Rank<'a>) -> Vec<&'a R> {
        let (column, is_reversed) = self.sort();
        rows.sort_by(|one, other| {
            let order = rank(one, column).cmp(&rank(other, column));
            if is_reversed { order.reverse() } else { order }
        });
        rows
    }

    /// Does what a person asked for.
    pub(super) fn act(&mut self, action: Action) -> Next {
        match action {
            Action::Quit => return Next::Quit,
            Action::View(view) => self.show(view),
            Action::NextView => self.show(View::ALL[(self.view as usize + 1) % View::ALL.len()]),
            Action::Up(rows) => self.select(self.selected.saturating_sub(rows)),
            Action::Down(rows) => self.select(self.selected.saturating_add(rows)),
            Action::First => self.select(0),
            Action::Last => self.select(usize::MAX),
            Action::NextSort => {
                let columns = self.view.sorts().len();
                let sort = &mut self.sorts[self.view as usize];
                *sort = Sort { column: (sort.column + 1) % columns, is_reversed: false };
            }
            Action::Reverse => {
                let sort = &mut self.sorts[self.view as usize];
                sort.is_reversed = !sort.is_reversed;
            }
            Action::BeginFilter => self.is_typing = true,
            Action::Type(character) => {
                self.filter.push(character);
                self.select(0);
            }
            Action::DeleteCharacter => {
                self.filter.pop();
                self.select(0);
            }
            Action::Enter if self.is_typing => self.is_typing = false,
            Action::Enter => {
                self.details = self.selected_key();
                if self.details.is_some() {
                    return Next::Read;
                }
            }
            Action::Back => self.back(),
            Action::TogglePause => {
                self.is_paused = !self.is_paused;
                if !self.is_paused {
                    return Next::Read;
                }
            }
            Action::ToggleHelp => self.shows_help = !self.shows_help,
        }
        Next::Draw
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.details = None;
        self.select(0);
    }

    /// Leaves what was entered last.
    fn back(&mut self) {
        if self.shows_help {
            self.shows_help = false;
        } else if self.is_typing {
            self.is_typing = false;
            self.filter.clear();
        } else if self.details.is_some() {
            self.details = None;
        } else {
            self.filter.clear();
        }
        self.select(self.selected);
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows().len().saturating_sub(1));
    }

    /// The name of the selected row.
    fn selected_key(&self) -> Option<NameKey> {
        match self.rows() {
            Rows::Names(rows) => rows.get(self.selected).map(|row| row.key.clone()),
            Rows::Declared(rows) => rows
                .get(self.selected)
                .map(|row| NameKey { namespace: Namespace::Semaphores, name: row.name.clone() }),
            Rows::Sessions(_) | Rows::Items(_) => None,
        }
    }
}

/// The place of a row: by figures, the first before the second, and where these are the same by a text.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    figures: (u64, u64),
    text: &'a [u8],
}

impl<'a> Rank<'a> {
    /// Great figures come first.
    fn most(first: impl Into<u64>, second: u32, text: &'a [u8]) -> Self {
        Self { figures: (u64::MAX - first.into(), u64::MAX - u64::from(second)), text }
    }

    /// Small figures come first.
    fn least(first: u64, text: &'a [u8]) -> Self {
        Self { figures: (first, 0), text }
    }

    fn text(text: &'a [u8]) -> Self {
        Self { figures: (0, 0), text }
    }
}
