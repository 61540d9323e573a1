//! The store: every committed change survives any end of the process, and nothing else does.
//!
//! `SIGNALBOX_POWER_LOSSES=100000 cargo test --release --test storage power` sets the number of power losses.

mod damage;
mod disk;
mod failures;
mod format;
mod power;
mod process;
mod records;
mod snapshots;
mod sysv_records;
mod text;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use disk::{Disk, Fault};
use records::{Life, State, session};
use signalbox_core::{Change, Key, Record, SessionRecord};
use signalbox_model::{GrantId, SessionKey};
use signalbox_storage::{CommitError, FILE_NAME, FORMAT, FileStorage, Memory, Storage, StorageError, check};

/// The state that a store loads.
pub fn loaded(storage: &mut dyn Storage) -> State {
    let mut state = State::new();
    let mut last = None;
    let mut keep = |record: Record| {
        let key = record.key();
        assert!(last.as_ref().is_none_or(|last| *last < key), "records come in the order of keys");
        last = Some(key.clone());
        state.insert(key, record);
    };
    storage.load(&mut keep).unwrap();
    state
}

/// Opens the store in a directory.
pub fn open(directory: &Path) -> Result<FileStorage, StorageError> {
    FileStorage::open(directory)
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn a_session(number: u64) -> Record {
    Record::Session(SessionRecord {
        session: session(number),
        key: SessionKey([7; 16]),
        ttl_ms: 10_000,
        label: (*b"a label").into(),
        revoked_grace_ms: None,
    })
}

#[test]
fn committed_changes_survive_a_restart() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("data");
    let mut life = Life::new(1);
    for opening in 1..=4 {
        let mut storage = open(&directory).unwrap();
        assert_eq!(storage.epoch(), opening, "every opening takes the next epoch");
        assert!(!storage.was_repaired());
        assert_eq!(loaded(&mut storage), life.state);
        for _ in 0..50 {
            storage.commit(&life.changes()).unwrap();
        }
        assert_eq!(loaded(&mut storage), life.state);
    }
    assert!(life.state.len() > 50, "a history leaves records: {}", life.state.len());
}

#[test]
fn the_last_change_of_a_key_counts() {
    for storage in [&mut Disk::laid_out().open().unwrap() as &mut dyn Storage, &mut Memory::default().open()]
    {
        storage.commit(&[Change::Put(a_session(1)), Change::Delete(Key::Session(session(1)))]).unwrap();
        assert_eq!(loaded(storage).len(), 0);
        storage.commit(&[Change::Delete(Key::Grant(GrantId(9))), Change::Put(a_session(1))]).unwrap();
        storage.commit(&[]).unwrap();
        assert_eq!(loaded(storage).len(), 1);
    }
}

#[test]
fn memory_storage_behaves_like_file_storage() {
    let memory = Memory::default();
    let mut life = Life::new(2);
    let mut storage = memory.open();
    (0..200).for_each(|_| storage.commit(&life.changes()).unwrap());
    let mut later = memory.open();
    assert_eq!((storage.epoch(), later.epoch()), (1, 2));
    assert_eq!(loaded(&mut later), life.state);
    let superseded = storage.commit(&life.changes()).unwrap_err();
    assert!(matches!(superseded, CommitError::Superseded { own: 1, newest: 2 }), "{superseded}");
}

#[test]
fn an_owner_with_an_older_epoch_cannot_write() {
    let disk = Disk::laid_out();
    let mut older = disk.open().unwrap();
    older.commit(&[Change::Put(a_session(1))]).unwrap();
    // It fails and has to open the disk again, but another owner was there in between.
    disk.set_fault(Some(Fault { nth: 1, calls: u64::MAX, is_done: false }));
    let not_stored = older.commit(&[Change::Put(a_session(2))]).unwrap_err();
    assert!(!matches!(not_stored, CommitError::Superseded { .. }), "{not_stored}");
    disk.set_fault(None);
    let mut newer = disk.open().unwrap();
    newer.commit(&[Change::Put(a_session(3))]).unwrap();
    drop(newer);
    for _ in 0..2 {
        let superseded = older.commit(&[Change::Put(a_session(4))]).unwrap_err();
        assert!(matches!(superseded, CommitError::Superseded { own: 1, newest: 2 }), "{superseded}");
    }
    drop(older);
    let keys: Vec<_> = loaded(&mut disk.open().unwrap()).into_keys().collect();
    assert_eq!(keys, [Key::Session(session(1)), Key::Session(session(3))]);
}

#[test]
fn only_the_owner_can_access_the_directory_and_the_file() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("data");
    let storage = open(&directory).unwrap();
    assert_eq!(mode_of(&directory), 0o700);
    assert_eq!(mode_of(&directory.join(FILE_NAME)), 0o600);
    drop(storage);
    let deep = open(&scratch.path().join("no/such")).unwrap_err();
    assert!(matches!(deep, StorageError::Unusable { .. }), "{deep}");
}

#[test]
fn an_interrupted_first_start_does_not_block_the_next() {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("signalbox.redb.new"), b"half of it").unwrap();
    let mut storage = open(scratch.path()).unwrap();
    storage.commit(&[Change::Put(a_session(1))]).unwrap();
    assert!(!scratch.path().join("signalbox.redb.new").exists());
}

#[test]
fn a_file_that_is_not_a_store_is_refused_and_not_changed() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join(FILE_NAME);
    let another = {
        let disk = Disk::default();
        let database = redb::Builder::new().create_with_backend(disk.clone()).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(redb::TableDefinition::<u64, u64>::new("another")).unwrap();
        transaction.commit().unwrap();
        drop(database);
        disk.bytes()
    };
    let short = Disk::laid_out().bytes()[..5_000].to_vec();
    for content in [Vec::new(), b"not a store".to_vec(), vec![0; 1 << 20], another, short] {
        fs::write(&file, &content).unwrap();
        let error = open(scratch.path()).unwrap_err();
        assert!(matches!(error, StorageError::Damaged { .. }), "{error}");
        let sentence = error.to_string();
        assert!(sentence.contains("restore a backup") && sentence.contains(FILE_NAME), "{sentence}");
        let checked = check(scratch.path()).unwrap_err();
        assert!(matches!(checked, StorageError::Damaged { .. }), "{checked}");
        assert!(fs::read(&file).unwrap() == content, "{} bytes", content.len());
    }
}

#[test]
fn a_newer_format_is_refused() {
    let disk = Disk::laid_out();
    let database = redb::Builder::new().create_with_backend(disk.clone()).unwrap();
    let transaction = database.begin_write().unwrap();
    let table = redb::TableDefinition::<&[u8], &[u8]>::new("signalbox");
    transaction
        .open_table(table)
        .unwrap()
        .insert([0, b'f'].as_slice(), (FORMAT + 1).to_be_bytes().as_slice())
        .unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = disk.open().unwrap_err();
    assert!(matches!(error, StorageError::Newer { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("update signalbox"), "{error}");
}
