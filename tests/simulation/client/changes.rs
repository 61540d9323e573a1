//! The changes that administrators requested, and their outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::client::{DeclaredState, IfExists, Pausing, Removal, Resizing, SlotChange};
use signalbox::core::{DeclarationRecord, Service};

use super::change_history::ChangeHistory;
use super::declared::State;
use crate::scene::Scene;

/// How long a request may be in flight after its client has dropped it: messages may be held back for so long.
const ABANDONED_MS_MAX: u64 = 45_000;

/// A change of one name.
#[derive(Clone, Debug)]
pub enum ChangeKind {
    Declare { capacity: u32, numbered: bool, label: Vec<u8>, if_exists: IfExists },
    Resize(Resizing),
    Remove(Removal),
    Pause(Pausing),
    SetSlot(SlotChange),
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Not answered yet.
    Open,
    Done {
        at_ms: u64,
    },
    Refused,
    /// The client dropped the request; the change may still be made.
    Abandoned {
        at_ms: u64,
    },
}

#[derive(Debug)]
pub struct Change {
    name: Vec<u8>,
    pub kind: ChangeKind,
    pub expected: Option<u64>,
    pub requested_ms: u64,
    /// The life of the server in which it was requested.
    life: u64,
    end: End,
}

#[derive(Default)]
struct Log {
    changes: Vec<Change>,
    names: BTreeMap<Vec<u8>, ChangeHistory>,
}

pub struct Changes {
    scene: Arc<Scene>,
    log: Mutex<Log>,
}

/// The changes of one request, until its answer is recorded. If this is dropped before, they may be made or not.
pub struct PendingChanges<'a> {
    changes: &'a Changes,
    indices: Vec<usize>,
}

impl Changes {
    pub fn new(scene: Arc<Scene>) -> Self {
        Self { scene, log: Mutex::default() }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics while it records changes")
    }

    /// The time, and the server's life.
    fn moment(&self) -> (u64, u64) {
        let state = self.scene.state();
        (state.now_ms, state.server_life)
    }

    /// A client requests changes, all in one request.
    pub fn ask(
        &self,
        requested: impl IntoIterator<Item = (Vec<u8>, ChangeKind)>,
        expected: Option<u64>,
    ) -> PendingChanges<'_> {
        let (requested_ms, life) = self.moment();
        let mut log = self.log();
        let first = log.changes.len();
        let change = |(name, kind)| Change { name, kind, expected, requested_ms, life, end: End::Open };
        log.changes.extend(requested.into_iter().map(change));
        let indices = (first..log.changes.len()).collect();
        PendingChanges { changes: self, indices }
    }

    /// The number of changes of a name that may have been made since then.
    pub fn overlapping(&self, name: &[u8], since_ms: u64) -> usize {
        let log = self.log();
        let may_be = |change: &&Change| change.name == name && change.may_be_made(since_ms);
        log.changes.iter().filter(may_be).count()
    }

    /// The shortest grace period of the removals that may have evicted the holders of a name since then.
    pub fn evicting(&self, name: &[u8], since_ms: u64) -> Option<u64> {
        let log = self.log();
        let possible =
            log.changes.iter().filter(|change| change.name == name && change.may_be_made(since_ms));
        let grace = |change: &Change| match change.kind {
            ChangeKind::Remove(Removal::Now { grace }) => Some(grace.0.into()),
            _ => None,
        };
        possible.filter_map(grace).min()
    }

    /// Compares the state of a name after a step with the requested changes.
    pub fn observe(&self, name: &[u8], before: &State, now: &State) -> Result<(), String> {
        let now_ms = self.moment().0;
        let mut log = self.log();
        let Log { changes, names } = &mut *log;
        let history = names.entry(name.to_vec()).or_default();
        if *now == State::Down {
            return Ok(());
        }
        let is_restarted = *before == State::Down;
        if is_restarted {
            history.restart(now, self.scene.disk.is_some());
        }
        let own = || changes.iter().enumerate().filter(|(_, change)| change.name == name);
        if let State::Declared(record) = now
            && !history.seen.contains_key(&record.generation)
        {
            if record.generation <= history.greatest && !is_restarted {
                return Err(format!(
                    "generation {} follows generation {}",
                    record.generation, history.greatest
                ));
            }
            let possible: Vec<_> = own().filter(|(_, change)| change.may_be_made(now_ms)).collect();
            let causes = possible.iter().filter(|(_, change)| change.kind.leads_to(record));
            history.greatest = record.generation.max(history.greatest);
            history.seen.insert(record.generation, causes.map(|(index, _)| *index).collect());
            history.check_causes(changes)?;
            if let ([(_, Change { kind, .. })], State::Declared(before)) = (&possible[..], before)
                && !before.removing
                && kind.result(before) != (record.capacity, record.service.clone())
            {
                return Err(format!("{kind:?} made {record:?} of {before:?}"));
            }
        }
        if let State::Declared(record) = now {
            history.check_generation(record)?;
        }
        history.check(now, |since_ms, is_it| {
            own().any(|(_, change)| is_it(&change.kind) && change.may_be_made(since_ms))
        })
    }
}

impl PendingChanges<'_> {
    /// The changes were made. The answer has the resulting states, except for removals.
    pub fn done(mut self, states: &[DeclaredState]) -> Result<(), String> {
        let ((at_ms, life), indices) = (self.changes.moment(), std::mem::take(&mut self.indices));
        let keeps = self.changes.scene.disk.is_some();
        let mut log = self.changes.log();
        let Log { changes, names } = &mut *log;
        for (place, index) in indices.into_iter().enumerate() {
            let change = &mut changes[index];
            change.end = End::Done { at_ms };
            let change = &changes[index];
            let history = names.entry(change.name.clone()).or_default();
            history.done((index, change), states.get(place), at_ms)?;
            if !keeps && change.life != life {
                // The answer is from a server that has ended.
                history.forget();
            }
            history.check_causes(changes)?;
        }
        Ok(())
    }

    /// No change of the request was made.
    pub fn refused(mut self) -> Result<(), String> {
        let mut log = self.changes.log();
        let Log { changes, names } = &mut *log;
        for index in std::mem::take(&mut self.indices) {
            changes[index].end = End::Refused;
            let history = names.entry(changes[index].name.clone()).or_default();
            history.seen.values_mut().for_each(|causes| _ = causes.remove(&index));
            history.check_causes(changes)?;
        }
        Ok(())
    }
}

impl Drop for PendingChanges<'_> {
    fn drop(&mut self) {
        if self.indices.is_empty() {
            return;
        }
        let at_ms = self.changes.moment().0;
        let mut log = self.changes.log();
        for index in &self.indices {
            log.changes[*index].end = End::Abandoned { at_ms };
        }
    }
}

impl Change {
    /// Whether it may have been made since then, or may still be made.
    fn may_be_made(&self, since_ms: u64) -> bool {
        match self.end {
            End::Open => true,
            End::Done { at_ms } => at_ms >= since_ms,
            End::Refused => false,
            End::Abandoned { at_ms } => at_ms + ABANDONED_MS_MAX >= since_ms,
        }
    }
}

impl ChangeKind {
    /// Whether it can have led to this state of a name.
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
            Self::Pause(_) | Self::SetSlot(_) => self.is_in_force(&record.service) && !record.removing,
        }
    }

    /// Whether what this takes out of service, or puts back, is so.
    pub fn is_in_force(&self, service: &Service) -> bool {
        match self {
            Self::Pause(how) => service.paused == (*how == Pausing::Pause),
            Self::SetSlot(SlotChange::Out(slot)) => service.slots_out.contains(slot),
            Self::SetSlot(SlotChange::In(slot)) => !service.slots_out.contains(slot),
            Self::Declare { .. } | Self::Resize(_) | Self::Remove(_) => true,
        }
    }

    /// The capacity and what is out of service after this change of a semaphore that is not being removed.
    fn result(&self, before: &DeclarationRecord) -> (u32, Service) {
        let (mut capacity, mut service) = (before.capacity, before.service.clone());
        match self {
            Self::Declare { capacity: declared, numbered, .. } => {
                capacity = *declared;
                if !numbered {
                    service.slots_out = Box::default();
                }
            }
            Self::Resize(how) => capacity = resized(capacity, *how),
            Self::Remove(_) => service = Service::default(),
            Self::Pause(how) => service.paused = *how == Pausing::Pause,
            Self::SetSlot(change) => {
                let mut slots: BTreeSet<_> = service.slots_out.iter().copied().collect();
                match change {
                    SlotChange::Out(slot) => slots.insert(*slot),
                    SlotChange::In(slot) => slots.remove(slot),
                };
                service.slots_out = slots.into_iter().collect();
            }
        }
        (capacity, service)
    }

    /// Whether an acknowledgement always means a change.
    pub fn changes_always(&self) -> bool {
        // A resize to the same capacity changes nothing, and what is paused may be paused again.
        !matches!(
            self,
            Self::Declare { if_exists: IfExists::Keep | IfExists::Set, .. }
                | Self::Resize(Resizing::To(_) | Resizing::ShrinkBy(_))
                | Self::Pause(_)
                | Self::SetSlot(_)
        )
    }
}

/// The capacity after a resize.
fn resized(capacity: u32, how: Resizing) -> u32 {
    match how {
        Resizing::To(to) => to,
        Resizing::GrowBy(by) => capacity + by,
        Resizing::ShrinkBy(by) => capacity.saturating_sub(by),
    }
}
