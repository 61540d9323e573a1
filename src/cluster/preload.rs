//! What a successor reads in advance: it reads until it has all records, or until they are not wanted any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::coordinator::{Coordinator, Revision};
use super::handover::Preloaded;
use super::keys::Keys;
use crate::storage::StorageError;

/// The pause before the records are read again.
const PAUSE: Duration = Duration::from_millis(200);

/// What a successor has read in advance. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Preload(Arc<Mutex<Slot>>);

#[derive(Debug, Default)]
struct Slot {
    /// The handover for which records are wanted.
    wanted: Option<Revision>,
    records: Option<Preloaded>,
}

impl Preload {
    /// The records are wanted for this handover from now on; `None`: for none. What was read before is forgotten.
    pub fn want(&self, handover: Option<Revision>) {
        *self.slot() = Slot { wanted: handover, records: None };
    }

    /// Reads the records for a handover, and returns whether they are still wanted. Repeats that as long as it fails and they are
    /// wanted; `failed` is told each time.
    pub fn read(
        &self,
        coordinator: &mut impl Coordinator,
        keys: &Keys,
        handover: Revision,
        mut failed: impl FnMut(StorageError),
    ) -> bool {
        while self.slot().wanted == Some(handover) {
            match Preloaded::read(coordinator, keys, handover) {
                Ok(records) => return self.put(handover, records),
                Err(error) => failed(error),
            }
            coordinator.pause(PAUSE);
        }
        false
    }

    /// What was read. Nothing is wanted any more.
    pub fn take(&self) -> Option<Preloaded> {
        std::mem::take(&mut *self.slot()).records
    }

    fn put(&self, handover: Revision, records: Preloaded) -> bool {
        let mut slot = self.slot();
        let is_wanted = slot.wanted == Some(handover);
        if is_wanted {
            slot.records = Some(records);
        }
        is_wanted
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
