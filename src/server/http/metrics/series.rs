//! Names that have series of their own: declared semaphores, and names that begin with a prefix of `http.names`.
//!
//! A scrape never visits all names. The first declared semaphores are listed in the order of their names. Names with a
//! prefix are found by a walk in bursts with pauses, which is repeated every [`WALK_PERIOD`] while the server is
//! scraped. The walk also sums up the names for which there is no room: those beyond `http.names_max`, and those whose
//! labels are too long together. Names may be 64 KiB long, so their number alone would not bound a scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::super::super::lock;
use super::super::super::state::Server;
use super::super::super::steps;
use crate::config::HttpConfig;
use signalbox_core::{ListingKind, WaitedListing};
use signalbox_model::{Namespace, escaped};

/// The age of the selection of names at which the next scrape renews it.
const WALK_PERIOD: Duration = Duration::from_secs(10);

/// The most bytes of labels for the names of a namespace. They are written once for each metric of names: up to five
/// times.
pub(super) const LABEL_BYTES_MAX: usize = 256 * 1024;

/// The number of names that are visited between two pauses: about a millisecond of work.
const BURST: usize = 4096;

#[derive(Debug, Default)]
pub(in super::super) struct Selection(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    walked: Walked,
    /// When the last walk began.
    begun: Option<Instant>,
    is_walking: bool,
}

/// The results of a walk.
#[derive(Clone, Debug, Default)]
struct Walked {
    names: [Vec<Box<[u8]>>; Namespace::ALL.len()],
    others: [Option<Figures>; Namespace::ALL.len()],
}

/// The figures of a name, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) capacity: u64,
    pub(super) in_use: u64,
    pub(super) waiting: u64,
    /// The number of names that are paused.
    pub(super) paused: u64,
    /// The time since which the first request of the queue waits, in seconds of Unix time; `None`: no request waits, or these are
    /// the figures of several names.
    pub(super) waiting_since_s: Option<u64>,
}

impl Figures {
    fn add(&mut self, other: Self) {
        self.capacity += other.capacity;
        self.in_use += other.in_use;
        self.waiting += other.waiting;
        self.paused += other.paused;
        self.waiting_since_s = None;
    }

    /// Returns the figures of one name; `None`: it no longer exists.
    fn of(server: &Server, namespace: Namespace, name: &[u8], is_paused: bool) -> Option<Self> {
        let inspected = server.core.inspect(namespace, name, server.moment()).ok()?;
        Some(Self {
            capacity: inspected.capacity.into(),
            in_use: inspected.in_use.into(),
            waiting: inspected.waiting.into(),
            paused: is_paused.into(),
            waiting_since_s: if inspected.waiting > 0 {
                waiting_since_s(server, namespace, name)
            } else {
                None
            },
        })
    }
}

/// Returns the time since which the first request in the queue of a name waits, in seconds of Unix time; `None`: no request
/// waits.
fn waiting_since_s(server: &Server, namespace: Namespace, name: &[u8]) -> Option<u64> {
    let mut listing = server.core.listing(namespace, name, ListingKind::Waiters).ok()?;
    let (first, _) = server.core.list(&mut listing).into_iter().next()?;
    first.since
}

/// Returns the time since which the request that waits longest has waited, in seconds of Unix time; `None`: no request waits.
pub(super) fn longest_waiting_since_s(server: &Server) -> Option<u64> {
    let names = server.core.list_waited(&mut WaitedListing::default());
    let (namespace, name) = names.first()?;
    waiting_since_s(server, *namespace, name)
}

/// The series of names of one scrape.
#[derive(Debug, Default)]
pub(super) struct Series {
    pub(super) names: [Vec<(String, Figures)>; Namespace::ALL.len()],
    /// The sum of the names for which there is no room.
    pub(super) others: [Option<Figures>; Namespace::ALL.len()],
}

impl Selection {
    /// Returns the series of a scrape. Begins a walk if the last one is old.
    pub(super) fn of(&self, config: &HttpConfig, server: &Arc<Server>) -> Series {
        let names_max = config.names_max as usize;
        let (declared, is_more) = declared(server, names_max);
        let paused: BTreeSet<_> =
            declared.iter().filter(|(_, is_paused)| *is_paused).map(|(name, _)| name.clone()).collect();
        let needs_walk = !config.names.is_empty() || is_more;
        let mut walked = Walked::default();
        if needs_walk {
            let mut state = lock(&self.0);
            walked = state.walked.clone();
            let is_due = state.begun.is_none_or(|begun| begun.elapsed() >= WALK_PERIOD);
            if is_due && !std::mem::replace(&mut state.is_walking, true) {
                state.begun = Some(Instant::now());
                let prefixes = config.names.clone();
                tokio::spawn(walk(Arc::clone(&self.0), Arc::clone(server), prefixes, names_max));
            }
        }
        let [counters, semaphores] = walked.names;
        let declared = declared.into_iter().map(|(name, _)| name);
        let semaphores: BTreeSet<_> = declared.chain(semaphores).collect();
        let names = [counters.into_iter().collect(), semaphores];
        let figures = |namespace| {
            let names: &BTreeSet<Box<[u8]>> = &names[namespace as usize];
            let found = names.iter().filter_map(|name| {
                let is_paused = namespace == Namespace::Semaphores && paused.contains(name);
                Some((escaped(name), Figures::of(server, namespace, name, is_paused)?))
            });
            let mut bytes = 0;
            let fits = |(label, _): &(String, Figures)| {
                bytes += label_bytes(label);
                bytes <= LABEL_BYTES_MAX
            };
            found.take(names_max).take_while(fits).collect()
        };
        Series { names: Namespace::ALL.map(figures), others: walked.others }
    }
}

/// The name of a declared semaphore, and whether it is paused.
type Declared = (Box<[u8]>, bool);

/// Returns the first declared semaphores for which there is room, and whether there are more.
fn declared(server: &Server, names_max: usize) -> (Vec<Declared>, bool) {
    let mut listing = server.core.declared(b"");
    let (mut names, mut bytes) = (Vec::new(), 0);
    loop {
        let some = server.core.list_declared(&mut listing);
        if some.is_empty() {
            return (names, false);
        }
        for record in some.into_iter().map(|declared| declared.record) {
            bytes += label_bytes(&escaped(&record.name));
            if names.len() == names_max || bytes > LABEL_BYTES_MAX {
                return (names, true);
            }
            names.push((record.name, record.service.paused));
        }
    }
}

/// Returns the names of all semaphores that are paused.
async fn paused(server: &Server) -> BTreeSet<Box<[u8]>> {
    let (mut listing, mut names, mut visited) = (server.core.declared(b""), BTreeSet::new(), 0);
    loop {
        let some = server.core.list_declared(&mut listing);
        if some.is_empty() {
            return names;
        }
        visited += some.len();
        let paused = some.into_iter().map(|declared| declared.record).filter(|record| record.service.paused);
        names.extend(paused.map(|record| record.name));
        if visited >= BURST {
            visited = 0;
            tokio::time::sleep(steps::PAUSE).await;
        }
    }
}

/// Visits all names, and keeps the first of those that are selected.
async fn walk(state: Arc<Mutex<State>>, server: Arc<Server>, prefixes: Vec<String>, names_max: usize) {
    let mut walked = Walked::default();
    let paused = paused(&server).await;
    for namespace in Namespace::ALL {
        let mut first = First::new(names_max);
        let (mut survey, now) = (server.core.survey(namespace), server.clock.now());
        let mut visited = 0;
        while survey.step(&server.core, BURST, now, |name, found| {
            visited += 1;
            if found.is_declared || prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes())) {
                let figures = Figures {
                    capacity: found.availability.map_or(0, |availability| availability.capacity.into()),
                    in_use: found.usage.consumption.into(),
                    waiting: found.waiting.into(),
                    paused: (found.is_declared && paused.contains(name)).into(),
                    waiting_since_s: None,
                };
                first.insert(name, figures);
            }
        }) {
            if visited >= BURST {
                visited = 0;
                tokio::time::sleep(steps::PAUSE).await;
            }
        }
        walked.names[namespace as usize] = first.names.into_keys().collect();
        walked.others[namespace as usize] = first.others;
    }
    let mut state = lock(&state);
    state.walked = walked;
    state.is_walking = false;
}

/// The first names, in order, for which there is room.
struct First {
    /// With their figures and the bytes of their labels.
    names: BTreeMap<Box<[u8]>, (Figures, usize)>,
    names_max: usize,
    label_bytes: usize,
    /// The first name for which there is no room. Later names are left out too, although they may be shorter.
    end: Option<Box<[u8]>>,
    /// The sum of the names for which there is no room.
    others: Option<Figures>,
}

impl First {
    fn new(names_max: usize) -> Self {
        Self { names: BTreeMap::new(), names_max, label_bytes: 0, end: None, others: None }
    }

    /// Keeps a name if it is one of the first. Those for which there is no room are summed up.
    fn insert(&mut self, name: &[u8], figures: Figures) {
        if self.end.as_ref().is_some_and(|end| **end <= *name) {
            return self.leave_out(figures);
        }
        let bytes = label_bytes(&escaped(name));
        self.names.insert(name.into(), (figures, bytes));
        self.label_bytes += bytes;
        while self.names.len() > self.names_max || self.label_bytes > LABEL_BYTES_MAX {
            let Some((last, (figures, bytes))) = self.names.pop_last() else { return };
            self.label_bytes -= bytes;
            self.end = Some(last);
            self.leave_out(figures);
        }
    }

    fn leave_out(&mut self, figures: Figures) {
        self.others.get_or_insert_default().add(figures);
    }
}

/// Returns the bytes of a label in the text of a scrape, which has a backslash before some characters.
fn label_bytes(label: &str) -> usize {
    label.len() + label.bytes().filter(|byte| matches!(byte, b'\\' | b'"')).count()
}
