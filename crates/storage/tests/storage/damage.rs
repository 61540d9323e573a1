//! A file with changed bits is refused and left as it is, or the changed bits do not matter. No acknowledged commit is
//! rolled back without a message.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use signalbox_core::Change;
use signalbox_storage::{FILE_NAME, Storage, StorageError, check, export};

use crate::disk::{Disk, Operation};
use crate::records::{Life, Random, State};
use crate::{a_session, loaded, open};

/// The engine's header with the first of its two commit slots, and with both.
const FIRST_SLOT_END: usize = 64 + 128;
const HEADER_BYTES: usize = FIRST_SLOT_END + 128;

/// How the process that wrote the file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Orderly,
    Killed,
}

/// A file with these commits, and what they stored.
fn file_after(end: End, commits: usize) -> (Vec<u8>, State) {
    let disk = Disk::laid_out();
    let mut life = Life::new(4);
    let mut storage = disk.open().unwrap();
    (0..commits).for_each(|_| storage.commit(&life.changes()).unwrap());
    match end {
        End::Orderly => drop(storage),
        End::Killed => std::mem::forget(storage),
    }
    (disk.bytes(), life.state)
}

fn flip(file: &Path, bytes: &[u8], bit: usize) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&[bytes[bit / 8] ^ 1 << (bit % 8)], (bit / 8) as u64).unwrap();
}

fn restore(file: &Path, bytes: &[u8], bit: usize) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&bytes[bit / 8..=bit / 8], (bit / 8) as u64).unwrap();
}

/// Each bit of the header and the first commit slot, and a sample of the others; after an even and an odd number of
/// commits, so that each of the two slots is the current one.
#[test]
fn a_changed_bit_of_the_header_loses_no_acknowledged_commit() {
    for (end, commits) in [(End::Killed, 10), (End::Killed, 11), (End::Orderly, 10)] {
        let (sound, state) = file_after(end, commits);
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join(FILE_NAME);
        fs::write(&file, &sound).unwrap();
        let mut refused = 0;
        let sampled = if end == End::Killed && sound[9] & 1 == 0 { 1 } else { 7 };
        for bit in
            (0..FIRST_SLOT_END * 8).step_by(sampled).chain((FIRST_SLOT_END * 8..HEADER_BYTES * 8).step_by(7))
        {
            let case = format!("{end:?}, {commits} commits, bit {bit}");
            flip(&file, &sound, bit);
            let damaged = fs::read(&file).unwrap();
            match open(scratch.path()) {
                Ok(mut storage) => {
                    assert!(loaded(&mut storage) == state, "{case}: a commit is missing");
                    drop(storage);
                    let report = check(scratch.path()).unwrap();
                    assert!(report.problems.is_empty(), "{case}: {report:?}");
                }
                Err(error) => {
                    assert!(matches!(error, StorageError::Damaged { .. }), "{case}: {error}");
                    assert!(!error.to_string().contains("panic"), "{case}: {error}");
                    let checked = check(scratch.path()).unwrap_err();
                    assert_eq!(checked.to_string(), error.to_string(), "{case}");
                    refused += 1;
                }
            }
            assert!(fs::read(&file).unwrap() == damaged, "{case}: the file was changed");
            restore(&file, &sound, bit);
        }
        // The slot of the current commit, and most of the fields before the slots.
        assert!(refused > 128 * 8 / sampled, "{end:?}, {commits} commits: {refused}");
        assert!(loaded(&mut open(scratch.path()).unwrap()) == state);
    }
}

/// Bits anywhere in the file, also in the pages that only the last commit wrote.
#[test]
fn a_changed_bit_of_a_page_is_detected() {
    for end in [End::Orderly, End::Killed] {
        let (sound, state) = file_after(end, 60);
        let used: Vec<_> =
            sound.chunks(512).enumerate().filter(|(_, piece)| piece.iter().any(|byte| *byte != 0)).collect();
        let mut random = Random::new(5);
        let mut refused = 0;
        for _ in 0..300 {
            let (chunk, _) = used[random.below(used.len() as u64) as usize];
            let mut bytes = sound.clone();
            let at = chunk * 512 + random.below(512) as usize;
            bytes[at] ^= 1 << random.below(8);
            let disk = Disk::with(bytes.clone());
            let outcome = disk.open().and_then(|mut storage| {
                let mut found = State::new();
                storage.load(&mut |record| _ = found.insert(record.key(), record)).map(|()| found)
            });
            match outcome {
                Ok(found) => {
                    assert!(
                        found == state,
                        "{end:?}: byte {at} was changed, and the change was not detected"
                    );
                }
                Err(StorageError::Damaged { .. }) => refused += 1,
                Err(error) => panic!("{end:?}: byte {at}: {error}"),
            }
            assert!(disk.bytes() == bytes, "{end:?}: byte {at}: the file was changed");
        }
        assert!(refused > 50, "{end:?}: damage is found: {refused}");
    }
}

/// The records from before the damaged commit can be exported, with a message.
#[test]
fn an_export_of_a_file_without_its_latest_commit_has_the_records_before() {
    let disk = Disk::laid_out();
    let mut storage = disk.open().unwrap();
    storage.commit(&[Change::Put(a_session(1))]).unwrap();
    disk.record();
    storage.commit(&[Change::Put(a_session(2))]).unwrap();
    std::mem::forget(storage);
    // A page that the last commit wrote.
    let page = disk.operations().into_iter().find_map(|operation| match operation {
        Operation::Write { offset, data } if offset >= 4096 && data.iter().any(|byte| *byte != 0) => {
            Some(offset)
        }
        _ => None,
    });
    let mut bytes = disk.bytes();
    bytes[page.unwrap()] ^= 1;
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join(FILE_NAME), &bytes).unwrap();
    let error = open(scratch.path()).unwrap_err().to_string();
    assert!(
        error.contains("the latest changes, which were stored completely, cannot be read; restore"),
        "{error}"
    );
    let mut text = Vec::new();
    let problems = export(scratch.path(), &mut text).unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].ends_with("the latest changes may be missing from the export"), "{problems:?}");
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(r#""session":1,"#) && !text.contains(r#""session":2,"#), "{text}");
}

/// The file is as it was found until the first commit, even if it needs a repair.
#[test]
fn a_file_is_not_changed_before_the_first_commit() {
    for end in [End::Orderly, End::Killed] {
        let (sound, state) = file_after(end, 20);
        let disk = Disk::with(sound.clone());
        let mut storage = disk.open().unwrap();
        assert_eq!((storage.epoch(), storage.was_repaired()), (2, end == End::Killed));
        assert!(loaded(&mut storage) == state);
        drop(storage);
        assert!(disk.bytes() == sound, "{end:?}");
        let mut storage = disk.open().unwrap();
        assert_eq!(storage.epoch(), 2, "no commit has used it");
        storage.commit(&[]).unwrap();
        drop(storage);
        let mut storage = disk.open().unwrap();
        assert_eq!((storage.epoch(), storage.was_repaired()), (3, false));
        assert!(loaded(&mut storage) == state);
    }
}
