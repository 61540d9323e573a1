//! What administrators have asked for, and what it came to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::client::{DeclaredState, IfExists, Removal, Resizing};
use signalbox::core::DeclarationRecord;

use super::declared::State;
use super::standing::Standing;
use crate::scene::Scene;

/// How long a request may be on its way that its client does not wait for any more: messages are held back for so long.
const STRAY_MS_MAX: u64 = 45_000;

/// A change of one name.
#[derive(Clone, Debug)]
pub enum Wish {
    Declare { capacity: u32, numbered: bool, label: Vec<u8>, if_exists: IfExists },
    Resize(Resizing),
    Remove(Removal),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has not.
    Open,
    Done {
        at_ms: u64,
    },
    Refused,
    /// Nobody waits for it any more; it may be made still.
    Stray {
        at_ms: u64,
    },
}

#[derive(Debug)]
pub struct Change {
    name: Vec<u8>,
    pub wish: Wish,
    pub expected: Option<u64>,
    pub asked_ms: u64,
    /// In which life of the server it was asked for.
    life: u64,
    end: End,
}

#[derive(Default)]
struct Log {
    changes: Vec<Change>,
    names: BTreeMap<Vec<u8>, Standing>,
}

pub struct Changes {
    scene: Arc<Scene>,
    log: Mutex<Log>,
}

/// Changes that were asked for in one request, until its answer is noted. Dropped before that, they may be made or not.
pub struct Outcome<'a> {
    changes: &'a Changes,
    indices: Vec<usize>,
}

impl Changes {
    pub fn new(scene: Arc<Scene>) -> Self {
        Self { scene, log: Mutex::default() }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics while it notes changes")
    }

    /// The time, and which life of the server it is.
    fn moment(&self) -> (u64, u64) {
        let state = self.scene.state();
        (state.now_ms, state.server_life)
    }

    /// Somebody asks for changes from now on, all in one request.
    pub fn ask(
        &self,
        wishes: impl IntoIterator<Item = (Vec<u8>, Wish)>,
        expected: Option<u64>,
    ) -> Outcome<'_> {
        let (asked_ms, life) = self.moment();
        let mut log = self.log();
        let first = log.changes.len();
        let change = |(name, wish)| Change { name, wish, expected, asked_ms, life, end: End::Open };
        log.changes.extend(wishes.into_iter().map(change));
        let indices = (first..log.changes.len()).collect();
        Outcome { changes: self, indices }
    }

    /// How many changes of a name may have been made since then.
    pub fn overlapping(&self, name: &[u8], since_ms: u64) -> usize {
        let log = self.log();
        let may_be = |change: &&Change| change.name == name && change.may_be_made(since_ms);
        log.changes.iter().filter(may_be).count()
    }

    /// The shortest grace of those removals that may have taken a name from its holders since then.
    pub fn evicting(&self, name: &[u8], since_ms: u64) -> Option<u64> {
        let log = self.log();
        let possible =
            log.changes.iter().filter(|change| change.name == name && change.may_be_made(since_ms));
        let grace = |change: &Change| match change.wish {
            Wish::Remove(Removal::Now { grace }) => Some(grace.0.into()),
            _ => None,
        };
        possible.filter_map(grace).min()
    }

    /// Compares what a name is after a step with what was asked for.
    pub fn seen(&self, name: &[u8], before: &State, now: &State) -> Result<(), String> {
        let now_ms = self.moment().0;
        let mut log = self.log();
        let Log { changes, names } = &mut *log;
        let standing = names.entry(name.to_vec()).or_default();
        if *now == State::Down {
            return Ok(());
        }
        let is_restarted = *before == State::Down;
        if is_restarted {
            standing.restart(now, self.scene.disk.is_some());
        }
        let own = || changes.iter().enumerate().filter(|(_, change)| change.name == name);
        if let State::Declared(record) = now
            && !standing.seen.contains_key(&record.generation)
        {
            if record.generation <= standing.greatest && !is_restarted {
                return Err(format!("generation {} comes after {}", record.generation, standing.greatest));
            }
            let possible: Vec<_> = own().filter(|(_, change)| change.may_be_made(now_ms)).collect();
            let causes = possible.iter().filter(|(_, change)| change.wish.leads_to(record));
            standing.greatest = record.generation.max(standing.greatest);
            standing.seen.insert(record.generation, causes.map(|(index, _)| *index).collect());
            standing.check_causes(changes)?;
            if let ([(_, Change { wish: Wish::Resize(how), .. })], State::Declared(before)) =
                (&possible[..], before)
                && resized(before.capacity, *how) != record.capacity
            {
                return Err(format!("{} became {} by {how:?}", before.capacity, record.capacity));
            }
        }
        standing.check(now, |since_ms, is_it| {
            own().any(|(_, change)| is_it(&change.wish) && change.may_be_made(since_ms))
        })
    }
}

impl Outcome<'_> {
    /// They are made; of those that were not removed, the answer tells what they came to.
    pub fn done(mut self, settled: &[DeclaredState]) -> Result<(), String> {
        let ((at_ms, life), indices) = (self.changes.moment(), std::mem::take(&mut self.indices));
        let keeps = self.changes.scene.disk.is_some();
        let mut log = self.changes.log();
        let Log { changes, names } = &mut *log;
        for (place, index) in indices.into_iter().enumerate() {
            let change = &mut changes[index];
            change.end = End::Done { at_ms };
            let change = &changes[index];
            let standing = names.entry(change.name.clone()).or_default();
            standing.done((index, change), settled.get(place), at_ms)?;
            if !keeps && change.life != life {
                // The answer is of a server that is gone.
                standing.forget();
            }
            standing.check_causes(changes)?;
        }
        Ok(())
    }

    /// None of them is made.
    pub fn refused(mut self) -> Result<(), String> {
        let mut log = self.changes.log();
        let Log { changes, names } = &mut *log;
        for index in std::mem::take(&mut self.indices) {
            changes[index].end = End::Refused;
            let standing = names.entry(changes[index].name.clone()).or_default();
            standing.seen.values_mut().for_each(|causes| _ = causes.remove(&index));
            standing.check_causes(changes)?;
        }
        Ok(())
    }
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        if self.indices.is_empty() {
            return;
        }
        let at_ms = self.changes.moment().0;
        let mut log = self.changes.log();
        for index in &self.indices {
            log.changes[*index].end = End::Stray { at_ms };
        }
    }
}

impl Change {
    /// Whether it may have been made since then, or be made yet.
    fn may_be_made(&self, since_ms: u64) -> bool {
        match self.end {
            End::Open => true,
            End::Done { at_ms } => at_ms >= since_ms,
            End::Refused => false,
            End::Stray { at_ms } => at_ms + STRAY_MS_MAX >= since_ms,
        }
    }
}

impl Wish {
    /// Whether it can have made of a name what it is.
    fn leads_to(&self, record: &DeclarationRecord) -> bool {
        match self {
            Self::Declare { capacity, numbered, label, .. } => {
                let wanted = (*capacity, *numbered, &label[..]);
                wanted == (record.capacity, record.numbered, &record.label) && !record.removing
            }
            Self::Resize(Resizing::To(capacity)) => record.capacity == *capacity && !record.removing,
            Self::Resize(Resizing::GrowBy(by)) => record.capacity >= *by && !record.removing,
            Self::Resize(Resizing::ShrinkBy(_)) => !record.removing,
            Self::Remove(Removal::Now { grace }) => {
                record.removing && record.evicted_grace_ms == Some(grace.0)
            }
            Self::Remove(_) => record.removing,
        }
    }

    /// Whether what is acknowledged is a change in any case.
    pub fn changes_always(&self) -> bool {
        !matches!(self, Self::Declare { if_exists: IfExists::Keep | IfExists::Set, .. })
    }
}

/// What a capacity becomes.
fn resized(capacity: u32, how: Resizing) -> u32 {
    match how {
        Resizing::To(to) => to,
        Resizing::GrowBy(by) => capacity + by,
        Resizing::ShrinkBy(by) => capacity.saturating_sub(by),
    }
}
