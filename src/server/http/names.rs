//! The overview of all names, from which pages are selected.
//!
//! Nothing keeps names in an order, and there may be millions of them. So the listener keeps a copy of all names with what
//! is in use and waits, which it makes in bursts with pauses between them, only while requests ask for names. A page is selected by
//! one pass over the copy, and has fresh figures of its names. Each answer says how old the copy is.
//!
//! Invariants: at most one copy of a namespace is being made; a copy takes at most a part of the memory budget; a copy that
//! nobody asks for is freed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::{Server, steps};
use crate::core::Namespace;

/// Names that are copied between two pauses: about a millisecond of work.
const BURST: usize = 4096;

/// A copy is made again when it is older than this, or than so many times what it took to make it.
const AGE_MAX: Duration = Duration::from_secs(1);
const AGE_MAX_FACTOR: u32 = 5;

/// A copy that nobody has asked for in this time is freed.
const UNUSED_MAX: Duration = Duration::from_secs(60);

/// How long an answer waits for a copy that is being made. Then it has the last one, or the part that there is.
const WAIT_MAX: Duration = Duration::from_millis(30);

/// A copy may take one in so many parts of the memory budget.
const MEMORY_PART: u64 = 8;

/// The overviews of both namespaces.
#[derive(Debug, Default)]
pub(super) struct Overview([Arc<Copies>; Namespace::ALL.len()]);

/// The copies of one namespace.
#[derive(Debug, Default)]
struct Copies {
    state: Mutex<State>,
    /// A copy is finished.
    finished: Notify,
    /// A copy is wanted.
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The last copy, when it was finished, and how long it took.
    last: Option<(Arc<Mutex<Table>>, Instant, Duration)>,
    /// The copy that is being made.
    next: Option<Arc<Mutex<Table>>>,
    has_keeper: bool,
    asked: Option<Instant>,
}

/// A copy, to select a page from.
pub(super) struct View {
    table: Arc<Mutex<Table>>,
    /// Since it was finished; `None`: it is being made, and does not have all names.
    pub(super) age: Option<Duration>,
}

/// The names of a namespace, one behind the other, and their figures.
#[derive(Debug, Default)]
struct Table {
    bytes: Vec<u8>,
    rows: Vec<Row>,
    /// Whether names are missing because there was no memory for them.
    is_cut: bool,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    end: u64,
    in_use: u32,
    waiting: u32,
}

/// The order of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    InUse,
    Waiting,
}

/// The names that are wanted, and their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selection<'a> {
    pub(super) prefix: &'a [u8],
    /// What names contain.
    pub(super) search: &'a [u8],
    pub(super) sort: Sort,
    pub(super) is_descending: bool,
}

/// A name that was selected, with what it is sorted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selected {
    pub(super) name: Box<[u8]>,
    figure: u32,
}

impl Overview {
    /// The last copy of a namespace. If it is old, another one is made.
    pub(super) async fn view(&self, server: &Arc<Server>, namespace: Namespace) -> View {
        let copies = &self.0[namespace as usize];
        let finished = copies.finished.notified();
        tokio::pin!(finished);
        finished.as_mut().enable();
        if let Some(view) = copies.fresh() {
            return view;
        }
        copies.want(server, namespace);
        let _ = tokio::time::timeout(WAIT_MAX, finished).await;
        copies.newest()
    }
}

impl Copies {
    /// The last copy, if it is not old.
    fn fresh(&self) -> Option<View> {
        let mut state = self.state();
        state.asked = Some(Instant::now());
        let (table, finished, took) = state.last.as_ref()?;
        let age = finished.elapsed();
        (age <= AGE_MAX.max(*took * AGE_MAX_FACTOR))
            .then(|| View { table: Arc::clone(table), age: Some(age) })
    }

    /// The last copy, or else the part of the next that there is.
    fn newest(&self) -> View {
        let state = self.state();
        match (&state.last, &state.next) {
            (Some((table, finished, _)), _) => {
                View { table: Arc::clone(table), age: Some(finished.elapsed()) }
            }
            (None, Some(table)) => View { table: Arc::clone(table), age: None },
            (None, None) => View { table: Arc::default(), age: None },
        }
    }

    /// Has a copy made.
    fn want(self: &Arc<Self>, server: &Arc<Server>, namespace: Namespace) {
        let has_keeper = std::mem::replace(&mut self.state().has_keeper, true);
        if has_keeper {
            self.wanted.notify_one();
        } else {
            tokio::spawn(keep(Arc::clone(self), Arc::clone(server), namespace));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by a panic while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes copies while they are wanted, and frees the last one when nobody asks any more.
async fn keep(copies: Arc<Copies>, server: Arc<Server>, namespace: Namespace) {
    loop {
        make(&copies, &server, namespace).await;
        loop {
            let unused_at = copies.state().asked.unwrap_or_else(Instant::now) + UNUSED_MAX;
            tokio::select! {
                () = copies.wanted.notified() => break,
                () = tokio::time::sleep_until(unused_at) => {
                    let mut state = copies.state();
                    if state.asked.is_none_or(|asked| asked + UNUSED_MAX <= Instant::now()) {
                        *state = State::default();
                        return;
                    }
                }
            }
        }
    }
}

/// Makes one copy.
async fn make(copies: &Copies, server: &Server, namespace: Namespace) {
    let (begun, table) = (Instant::now(), Arc::new(Mutex::new(Table::default())));
    copies.state().next = Some(Arc::clone(&table));
    let bytes_max = usize::try_from(server.memory.limit().max / MEMORY_PART).unwrap_or(usize::MAX);
    let mut survey = server.core.survey(namespace);
    let now = server.clock.now();
    lock(&table)
        .rows
        .reserve((server.core.stats(namespace).objects as usize).min(bytes_max / size_of::<Row>()));
    loop {
        let is_more = {
            let mut table = lock(&table);
            let before = table.rows.len();
            let mut is_more = true;
            while is_more && table.rows.len() < before + BURST && !table.is_cut {
                is_more = survey.step(&server.core, BURST, now, |name, found| {
                    table.add(name, found.usage.consumption, found.waiting, bytes_max);
                });
            }
            is_more && !table.is_cut
        };
        if !is_more {
            break;
        }
        tokio::time::sleep(steps::PAUSE).await;
    }
    let mut state = copies.state();
    state.last = Some((table, Instant::now(), begun.elapsed()));
    state.next = None;
    drop(state);
    copies.finished.notify_waiters();
}

/// Nothing is left half done by a panic while it is locked.
fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl View {
    /// Whether it has all names.
    pub(super) fn is_complete(&self) -> bool {
        self.age.is_some() && !lock(&self.table).is_cut
    }

    /// Selects the first `count` names in the order of the selection, of those that are wanted, and counts all of them.
    pub(super) fn select(
        &self,
        selection: Selection<'_>,
        count: usize,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> (Vec<Selected>, usize) {
        lock(&self.table).select(selection, count, is_wanted)
    }
}

impl Table {
    fn add(&mut self, name: &[u8], in_use: u32, waiting: u32, bytes_max: usize) {
        let bytes = self.bytes.len() + name.len() + (self.rows.len() + 1) * size_of::<Row>();
        if self.is_cut || bytes > bytes_max {
            self.is_cut = true;
            return;
        }
        self.bytes.extend_from_slice(name);
        self.rows.push(Row { end: self.bytes.len() as u64, in_use, waiting });
    }

    fn select(
        &self,
        selection: Selection<'_>,
        count: usize,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> (Vec<Selected>, usize) {
        // The last of the selected names is at the top.
        let mut first = BinaryHeap::with_capacity(count.min(self.rows.len()) + 1);
        let (mut start, mut total) = (0, 0);
        for row in &self.rows {
            let name = &self.bytes[start..row.end as usize];
            start = row.end as usize;
            if !name.starts_with(selection.prefix) || !contains(name, selection.search) || !is_wanted(name) {
                continue;
            }
            total += 1;
            let ranked = selection.ranked(selection.figure(row), name);
            if first.len() < count {
                first.push(ranked);
            } else if let Some(mut last) = first.peek_mut()
                && ranked < *last
            {
                *last = ranked;
            }
        }
        let selected = first.into_sorted_vec().into_iter();
        (selected.map(|ranked| Selected { name: ranked.name.into(), figure: ranked.figure }).collect(), total)
    }
}

impl Selection<'_> {
    fn figure(&self, row: &Row) -> u32 {
        match self.sort {
            Sort::Name => 0,
            Sort::InUse => row.in_use,
            Sort::Waiting => row.waiting,
        }
    }

    /// The order of two selected names.
    pub(super) fn order(&self, one: &Selected, other: &Selected) -> Ordering {
        self.ranked(one.figure, &one.name).cmp(&self.ranked(other.figure, &other.name))
    }

    fn ranked<'a>(&self, figure: u32, name: &'a [u8]) -> Ranked<'a> {
        Ranked { figure, name, sort: self.sort, is_descending: self.is_descending }
    }
}

/// A name in the order of a selection: by the figure, and where that is the same, by the name.
struct Ranked<'a> {
    figure: u32,
    name: &'a [u8],
    sort: Sort,
    is_descending: bool,
}

impl Ord for Ranked<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (figures, names) = (self.figure.cmp(&other.figure), self.name.cmp(other.name));
        match (self.sort, self.is_descending) {
            (Sort::Name, false) => names,
            (Sort::Name, true) => names.reverse(),
            (_, false) => figures.then(names),
            (_, true) => figures.reverse().then(names),
        }
    }
}

impl PartialOrd for Ranked<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked<'_> {}

fn contains(name: &[u8], part: &[u8]) -> bool {
    part.is_empty() || name.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[(&[u8], u32, u32)]) -> Table {
        let mut table = Table::default();
        for (name, in_use, waiting) in names {
            table.add(name, *in_use, *waiting, 1 << 20);
        }
        table
    }

    fn names(table: &Table, selection: Selection<'_>, count: usize) -> (Vec<String>, usize) {
        let (selected, total) = table.select(selection, count, |_| true);
        let text = |selected: &Selected| String::from_utf8_lossy(&selected.name).into_owned();
        (selected.iter().map(text).collect(), total)
    }

    const ALL: Selection<'_> = Selection { prefix: b"", search: b"", sort: Sort::Name, is_descending: false };

    #[test]
    fn a_page_has_the_first_names_in_the_order_of_the_request() {
        let table = table(&[(b"jobs/b", 1, 0), (b"a", 3, 7), (b"jobs/a", 2, 7), (b"c", 3, 0)]);
        assert_eq!(names(&table, ALL, 3).0, ["a", "c", "jobs/a"]);
        let descending = Selection { is_descending: true, ..ALL };
        assert_eq!(names(&table, descending, 9).0, ["jobs/b", "jobs/a", "c", "a"]);
        let by_use = Selection { sort: Sort::InUse, is_descending: true, ..ALL };
        assert_eq!(names(&table, by_use, 3).0, ["a", "c", "jobs/a"]);
        let by_waiters = Selection { sort: Sort::Waiting, ..ALL };
        assert_eq!(names(&table, by_waiters, 9).0, ["c", "jobs/b", "a", "jobs/a"]);
        assert_eq!(names(&table, Selection { prefix: b"jobs/", ..ALL }, 1), (vec!["jobs/a".to_owned()], 2));
        assert_eq!(names(&table, Selection { search: b"s/b", ..ALL }, 5), (vec!["jobs/b".to_owned()], 1));
        assert_eq!(names(&table, ALL, 0), (vec![], 4));
        assert_eq!(table.select(ALL, 9, |name| name != b"a").1, 3);
    }

    #[test]
    fn a_copy_takes_no_more_than_its_memory() {
        let mut table = Table::default();
        for number in 0..100_u32 {
            table.add(&number.to_be_bytes(), 0, 0, 10 * (size_of::<Row>() + 4));
        }
        assert!(table.is_cut);
        assert_eq!(table.rows.len(), 10);
    }
}
