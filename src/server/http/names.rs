//! The overview of all names, from which pages are selected.
//!
//! Nothing keeps names in an order, and there may be millions of them. So the listener keeps a copy of all names with what
//! is in use and waits, which it makes in bursts with pauses between them, only while requests ask for names. The first names of
//! the usual orders are found while the copy is made, because the status page asks for them all the time. Any other page is
//! selected by one pass over the copy, which keeps the numbers of rows and no names. All have fresh figures of their names,
//! and say how old the copy is.
//!
//! Invariants: at most one copy of a namespace is being made; a copy takes at most a part of the memory budget; a copy that no
//! request asks for is freed; no copy and no pass works for longer than a burst.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memchr::memmem::Finder;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::{Server, steps};
use super::answer::ApiError;
use super::budget::Reservation;
use crate::core::Namespace;

/// Names that are copied between two pauses, and names and bytes that a pass looks at: less than a millisecond of work.
const BURST: usize = 2048;
const PASS_BURST: usize = 32_768;
const PASS_BURST_BYTES: usize = 1 << 20;

/// How many of the first names of each usual order are found while a copy is made.
const FIRST_MAX: usize = 100;

/// A copy is made again when it is older than this, or than so many times what it took to make it.
const AGE_MAX: Duration = Duration::from_secs(1);
const AGE_MAX_FACTOR: u32 = 5;

/// A copy that nobody has asked for in this time is freed.
const UNUSED_MAX: Duration = Duration::from_secs(60);

/// How long an answer waits for a copy that is being made. Then it has the last one, or the part that there is.
const WAIT_MAX: Duration = Duration::from_millis(12);

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
#[derive(Debug)]
pub(super) struct View {
    pub(super) namespace: Namespace,
    table: Arc<Mutex<Table>>,
    /// Since it was finished; `None`: it is being made, and does not have all names.
    pub(super) age: Option<Duration>,
}

/// The names of a namespace, one behind the other, and their figures.
#[derive(Debug, Default)]
struct Table {
    bytes: Vec<u8>,
    rows: Vec<Row>,
    /// The first rows of the usual order of each [`Sort`], in this order.
    first: [Vec<u32>; Sort::ALL.len()],
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

impl Sort {
    const ALL: [Self; 3] = [Self::Name, Self::InUse, Self::Waiting];

    /// Whether the usual order begins with the last name or the greatest figure: names begin with the first letter.
    pub(super) fn is_usually_descending(self) -> bool {
        self != Self::Name
    }
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

/// Where a name is that was selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The index of its view.
    pub(super) view: usize,
    row: u32,
}

impl Overview {
    /// The last copy of a namespace. If it is old, another one is made.
    pub(super) async fn view(&self, server: &Arc<Server>, namespace: Namespace) -> View {
        let copies = &self.0[namespace as usize];
        let finished = copies.finished.notified();
        tokio::pin!(finished);
        finished.as_mut().enable();
        let (table, age) = match copies.fresh() {
            Some(fresh) => fresh,
            None => {
                copies.want(server, namespace);
                let _ = tokio::time::timeout(WAIT_MAX, finished).await;
                copies.newest()
            }
        };
        View { namespace, table, age }
    }
}

impl Copies {
    /// The last copy and its age, if it is not old.
    fn fresh(&self) -> Option<(Arc<Mutex<Table>>, Option<Duration>)> {
        let mut state = self.state();
        state.asked = Some(Instant::now());
        let (table, finished, took) = state.last.as_ref()?;
        let age = finished.elapsed();
        (age <= AGE_MAX.max(*took * AGE_MAX_FACTOR)).then(|| (Arc::clone(table), Some(age)))
    }

    /// The last copy and its age, or else the part of the next that there is.
    fn newest(&self) -> (Arc<Mutex<Table>>, Option<Duration>) {
        let state = self.state();
        match (&state.last, &state.next) {
            (Some((table, finished, _)), _) => (Arc::clone(table), Some(finished.elapsed())),
            (None, Some(table)) => (Arc::clone(table), None),
            (None, None) => (Arc::default(), None),
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

    /// The name at a place of this view.
    pub(super) fn name(&self, place: Place) -> Box<[u8]> {
        lock(&self.table).name(place.row).into()
    }

    /// The rows of the first `count` names in the order of the selection, in any order, and how many are selected.
    async fn select(
        &self,
        selection: Selection<'_>,
        count: usize,
        memory: &mut Reservation,
        is_wanted: Option<impl Fn(&[u8]) -> bool>,
    ) -> Result<(Vec<u32>, usize), ApiError> {
        if is_wanted.is_none()
            && let Some(first) = lock(&self.table).first(selection, count)
        {
            return Ok(first);
        }
        let mut pass = Pass::new(selection, count);
        while lock(&self.table).continue_pass(&mut pass, is_wanted.as_ref()) {
            memory.set(pass.rows.capacity() * (size_of::<u32>() + size_of::<Place>()))?;
            tokio::time::sleep(steps::PAUSE).await;
        }
        pass.trim(&lock(&self.table));
        Ok((pass.rows, pass.total))
    }
}

/// Selects the names of a page: those behind the first `offset`, at most `limit`, in the order of the selection over all
/// views. Returns their places, and how many names are selected altogether.
/// `is_wanted`: which names are considered; `None`: all. `memory` is for the places. Fails if there is no room for them.
pub(super) async fn select(
    views: &[View],
    selection: Selection<'_>,
    (offset, limit): (usize, usize),
    memory: &mut Reservation,
    is_wanted: Option<impl Fn(Namespace, &[u8]) -> bool>,
) -> Result<(Vec<Place>, usize), ApiError> {
    let (mut places, mut total) = (Vec::new(), 0);
    for (index, view) in views.iter().enumerate() {
        let is_wanted = is_wanted.as_ref().map(|is_wanted| |name: &[u8]| is_wanted(view.namespace, name));
        let (rows, count) = view.select(selection, offset.saturating_add(limit), memory, is_wanted).await?;
        places.extend(rows.into_iter().map(|row| Place { view: index, row }));
        memory.set(places.capacity() * size_of::<Place>())?;
        total += count;
    }
    let tables: Vec<_> = views.iter().map(|view| lock(&view.table)).collect();
    let tables: Vec<&Table> = tables.iter().map(|table| &**table).collect();
    Ok((page(&tables, selection, places, (offset, limit)), total))
}

/// The places of a page, of those of all names up to its end, in the order of the selection.
fn page(
    tables: &[&Table],
    selection: Selection<'_>,
    mut places: Vec<Place>,
    (offset, limit): (usize, usize),
) -> Vec<Place> {
    let order = |one: &Place, other: &Place| {
        let ranked = |place: &Place| tables[place.view].ranked(selection, place.row);
        ranked(one).cmp(&ranked(other)).then(one.view.cmp(&other.view))
    };
    if offset >= places.len() || limit == 0 {
        return Vec::new();
    }
    places.select_nth_unstable_by(offset, order);
    places.drain(..offset);
    if limit < places.len() {
        places.select_nth_unstable_by(limit, order);
        places.truncate(limit);
    }
    places.sort_unstable_by(order);
    places
}

/// A pass over the rows of a table.
struct Pass<'a> {
    selection: Selection<'a>,
    /// Finds the part of a name that is searched for, in a time that grows with the length of the name alone.
    search: Finder<'a>,
    count: usize,
    /// The next row, and where its name begins.
    next: usize,
    start: usize,
    /// The first rows so far, and some that may not be among them: fewer than twice as many as are wanted.
    rows: Vec<u32>,
    /// Names behind this row are not among the first.
    last: Option<u32>,
    total: usize,
}

impl<'a> Pass<'a> {
    fn new(selection: Selection<'a>, count: usize) -> Self {
        let search = Finder::new(selection.search);
        Self { selection, search, count, next: 0, start: 0, rows: Vec::new(), last: None, total: 0 }
    }

    fn add(&mut self, table: &Table, row: u32) {
        self.total += 1;
        let ranked = table.ranked(self.selection, row);
        if self.count > 0 && self.last.is_none_or(|last| ranked < table.ranked(self.selection, last)) {
            self.rows.push(row);
            if self.rows.len() >= self.count.saturating_mul(2) {
                self.trim(table);
            }
        }
    }

    /// Keeps the first rows only.
    fn trim(&mut self, table: &Table) {
        if self.rows.len() > self.count {
            let ranked = |row: &u32| table.ranked(self.selection, *row);
            self.rows.select_nth_unstable_by(self.count - 1, |one, other| ranked(one).cmp(&ranked(other)));
            self.rows.truncate(self.count);
            self.last = self.rows.last().copied();
        }
    }
}

impl Table {
    fn add(&mut self, name: &[u8], in_use: u32, waiting: u32, bytes_max: usize) {
        let bytes = self.bytes.len() + name.len() + (self.rows.len() + 1) * size_of::<Row>();
        let number = u32::try_from(self.rows.len()).ok().filter(|_| !self.is_cut && bytes <= bytes_max);
        let Some(number) = number else {
            self.is_cut = true;
            return;
        };
        self.bytes.extend_from_slice(name);
        let row = Row { end: self.bytes.len() as u64, in_use, waiting };
        self.rows.push(row);
        for sort in Sort::ALL {
            let usual = Selection::usual(sort);
            let ranked = usual.ranked(usual.figure(&row), name);
            let first = &self.first[sort as usize];
            let is_full = first.len() == FIRST_MAX;
            if is_full && first.last().is_some_and(|last| self.ranked(usual, *last) < ranked) {
                continue;
            }
            let place = first.partition_point(|other| self.ranked(usual, *other) < ranked);
            let first = &mut self.first[sort as usize];
            first.truncate(FIRST_MAX - 1);
            first.insert(place, number);
        }
    }

    fn name(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let start = number.checked_sub(1).map_or(0, |before| self.rows[before].end as usize);
        &self.bytes[start..self.rows[number].end as usize]
    }

    fn ranked(&self, selection: Selection<'_>, number: u32) -> Ranked<'_> {
        selection.ranked(selection.figure(&self.rows[number as usize]), self.name(number))
    }

    /// The rows of the first names of a usual order, and how many names there are altogether; `None`: a pass is needed.
    fn first(&self, selection: Selection<'_>, count: usize) -> Option<(Vec<u32>, usize)> {
        let is_usual = selection.prefix.is_empty()
            && selection.search.is_empty()
            && selection.is_descending == selection.sort.is_usually_descending();
        if !is_usual || count > FIRST_MAX {
            return None;
        }
        let first = self.first[selection.sort as usize].iter().take(count);
        Some((first.copied().collect(), self.rows.len()))
    }

    /// Takes the pass over some more rows. Returns whether there are more.
    fn continue_pass(&self, pass: &mut Pass<'_>, is_wanted: Option<&impl Fn(&[u8]) -> bool>) -> bool {
        let begun = pass.start;
        for (row, number) in self.rows.iter().zip(0..).skip(pass.next).take(PASS_BURST) {
            if pass.start - begun >= PASS_BURST_BYTES {
                break;
            }
            let name = &self.bytes[pass.start..row.end as usize];
            pass.next += 1;
            pass.start = row.end as usize;
            let is_selected = name.starts_with(pass.selection.prefix)
                && is_wanted.is_none_or(|is_wanted| is_wanted(name))
                && pass.search.find(name).is_some();
            if is_selected {
                pass.add(self, number);
            }
        }
        pass.next < self.rows.len()
    }
}

impl Selection<'static> {
    /// All names in the usual order.
    fn usual(sort: Sort) -> Self {
        Self { prefix: b"", search: b"", sort, is_descending: sort.is_usually_descending() }
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

    const ALL_NAMES: Option<fn(&[u8]) -> bool> = None;

    /// The rows of the first names, in their order.
    fn pass(
        table: &Table,
        selection: Selection<'_>,
        count: usize,
        is_wanted: Option<impl Fn(&[u8]) -> bool>,
    ) -> (Vec<u32>, usize) {
        let mut pass = Pass::new(selection, count);
        while table.continue_pass(&mut pass, is_wanted.as_ref()) {
            assert!(pass.rows.len() < 2 * count.max(1));
        }
        pass.trim(table);
        let places = pass.rows.into_iter().map(|row| Place { view: 0, row }).collect();
        let sorted = page(&[table], selection, places, (0, count));
        (sorted.into_iter().map(|place| place.row).collect(), pass.total)
    }

    fn text(name: &[u8]) -> String {
        String::from_utf8_lossy(name).into_owned()
    }

    fn names(table: &Table, selection: Selection<'_>, count: usize) -> (Vec<String>, usize) {
        let (selected, total) = pass(table, selection, count, ALL_NAMES);
        (selected.into_iter().map(|row| text(table.name(row))).collect(), total)
    }

    #[test]
    fn the_pages_of_two_tables_follow_each_other() {
        let mut random = fastrand::Rng::with_seed(2);
        let [one, other] = [(); 2].map(|()| {
            let mut table = Table::default();
            for _ in 0..300 {
                let name = format!("{:x}", random.u16(..500));
                table.add(name.as_bytes(), random.u32(..4), 0, 1 << 20);
            }
            table
        });
        let tables = [&one, &other];
        for sort in Sort::ALL {
            for is_descending in [false, true] {
                let selection = Selection { sort, is_descending, ..ALL };
                let mut all: Vec<_> = (0..2)
                    .flat_map(|view| (0..300).map(move |row| Place { view, row }))
                    .map(|place| {
                        let table = tables[place.view];
                        let figure = selection.figure(&table.rows[place.row as usize]);
                        (figure, table.name(place.row), place.view)
                    })
                    .collect();
                all.sort_by(|(figure, name, view), (other_figure, other_name, other_view)| {
                    let figures = figure.cmp(other_figure);
                    let order = match (sort, is_descending) {
                        (Sort::Name, true) => name.cmp(other_name).reverse(),
                        (_, true) => figures.reverse().then(name.cmp(other_name)),
                        (_, false) => figures.then(name.cmp(other_name)),
                    };
                    order.then(view.cmp(other_view))
                });
                let mut found = Vec::new();
                for offset in (0..700).step_by(7) {
                    let rows =
                        |view: usize| pass(tables[view], selection, offset + 7, ALL_NAMES).0.into_iter();
                    let places =
                        (0..2).flat_map(|view| rows(view).map(move |row| Place { view, row })).collect();
                    let page = page(&tables, selection, places, (offset, 7));
                    found.extend(page.into_iter().map(|place| {
                        let table = tables[place.view];
                        let figure = selection.figure(&table.rows[place.row as usize]);
                        (figure, table.name(place.row), place.view)
                    }));
                }
                assert_eq!(found, all);
            }
        }
    }

    #[test]
    fn a_pass_over_long_names_is_interrupted() {
        let names: Vec<_> = (0..100_u8).map(|number| [&[b'a'; 65_000][..], &[number]].concat()).collect();
        let mut table = Table::default();
        names.iter().for_each(|name| table.add(name, 1, 0, 100 << 20));
        let mut pass = Pass::new(Selection { search: &names[99], ..ALL }, 10);
        let mut bursts = 1;
        while table.continue_pass(&mut pass, ALL_NAMES.as_ref()) {
            bursts += 1;
        }
        assert_eq!((bursts, pass.total), (6, 1));
    }

    #[test]
    fn the_first_names_of_the_usual_orders_are_those_of_a_pass() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut table = Table::default();
        for number in 0..1_000_u32 {
            let name = format!("{:x}", number.wrapping_mul(2_654_435_761));
            table.add(name.as_bytes(), random.u32(..5), random.u32(..3), 1 << 20);
            if number % 97 > 0 {
                continue;
            }
            for sort in Sort::ALL {
                for count in [0, 1, 10, FIRST_MAX] {
                    let usual = Selection::usual(sort);
                    assert_eq!(table.first(usual, count).unwrap(), pass(&table, usual, count, ALL_NAMES));
                }
            }
        }
        assert!(table.first(Selection::usual(Sort::InUse), FIRST_MAX + 1).is_none());
        assert!(table.first(Selection { is_descending: true, ..ALL }, 1).is_none());
        assert!(table.first(Selection { prefix: b"a", ..ALL }, 1).is_none());
        assert!(table.first(Selection { search: b"a", ..ALL }, 1).is_none());
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
        assert_eq!(pass(&table, ALL, 9, Some(|name: &[u8]| name != b"a")).1, 3);
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
