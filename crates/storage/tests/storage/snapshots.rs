//! Snapshots of a store that is written while they are read.

use std::ops::ControlFlow;

use signalbox_core::{Change, Record};
use signalbox_storage::{Storage, StorageError};

use crate::disk::{Disk, Fault};
use crate::{a_session, open};

const SESSIONS: u64 = 3_000;

/// A store with sessions.
fn filled(disk: &Disk) -> impl Storage + use<> {
    let mut storage = disk.open().unwrap();
    storage.commit(&(1..=SESSIONS).map(|number| Change::Put(a_session(number))).collect::<Vec<_>>()).unwrap();
    storage
}

/// Changes that write every page again.
fn all_deleted() -> Vec<Change> {
    (1..=SESSIONS).map(|number| Change::Delete(a_session(number).key())).collect()
}

fn others() -> Vec<Change> {
    (1..=SESSIONS).map(|number| Change::Put(a_session(1_000_000 + number))).collect()
}

#[test]
fn a_snapshot_is_of_one_moment_however_much_is_committed_meanwhile() {
    let disk = Disk::laid_out();
    let mut storage = filled(&disk);
    let snapshot = storage.snapshot().unwrap();
    let mut found = Vec::new();
    let read = snapshot.read(&mut |record| {
        if found.len().is_multiple_of(1_000) {
            storage.commit(&all_deleted()).unwrap();
            storage.commit(&others()).unwrap();
        }
        found.push(record);
        ControlFlow::Continue(())
    });
    read.unwrap();
    assert_eq!(found, (1..=SESSIONS).map(a_session).collect::<Vec<Record>>());
}

#[test]
fn a_snapshot_of_a_file_states_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mut storage = open(directory.path()).unwrap();
    assert_eq!(storage.snapshot().unwrap().directory(), Some(directory.path()));
}

#[test]
fn a_snapshot_is_read_until_its_reader_has_enough() {
    let mut storage = filled(&Disk::laid_out());
    let mut records = 0;
    let read = storage.snapshot().unwrap().read(&mut |_| {
        records += 1;
        if records < 10 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    read.unwrap();
    assert_eq!(records, 10);
}

#[test]
fn a_snapshot_of_a_file_that_was_opened_again_since_is_not_read_on() {
    let disk = Disk::laid_out();
    let mut storage = filled(&disk);
    let snapshot = storage.snapshot().unwrap();
    let mut found = Vec::new();
    let read = snapshot.read(&mut |record| {
        if found.is_empty() {
            // The file is closed and opened again, and then it is written over the pages of the snapshot.
            disk.set_fault(Some(Fault { nth: 1, calls: 1, is_done: false }));
            storage.commit(&all_deleted()).unwrap_err();
            disk.set_fault(None);
            for changes in [all_deleted(), others(), all_deleted()] {
                storage.commit(&changes).unwrap();
            }
        }
        found.push(record);
        ControlFlow::Continue(())
    });
    assert!(matches!(read, Err(StorageError::Unusable { .. })), "{read:?}");
    assert_eq!(found, [a_session(1)], "nothing that was written later is read");
    let mut later = 0;
    let read = storage.snapshot().unwrap().read(&mut |_| {
        later += 1;
        ControlFlow::Continue(())
    });
    read.unwrap();
    assert_eq!(later, SESSIONS, "a new snapshot is that of the open file");
}
