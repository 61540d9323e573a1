//! Other processes: one that starts while a store is open, and one that is killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use signalbox_storage::{Storage, StorageError, check, export};

use crate::records::{Life, State};
use crate::{loaded, open};

const DIRECTORY: &str = "SIGNALBOX_STORAGE_TEST_DIRECTORY";

/// Starts this program again, to run one of its tests in this directory.
fn another_process(test: &str, directory: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(DIRECTORY, directory);
    command
}

fn directory_of_the_parent() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

#[test]
fn a_directory_cannot_be_opened_twice() {
    let scratch = tempfile::tempdir().unwrap();
    let storage = open(scratch.path()).unwrap();
    let second = open(scratch.path()).unwrap_err();
    assert!(matches!(second, StorageError::InUse { .. }), "{second}");
    let sentence = second.to_string();
    assert!(sentence.contains("a server has this data directory open; stop"), "{sentence}");
    assert!(matches!(check(scratch.path()), Err(StorageError::InUse { .. })));
    assert!(matches!(export(scratch.path(), &mut Vec::new()), Err(StorageError::InUse { .. })));
    let child = another_process("process::the_other_process_cannot_open_the_directory", scratch.path())
        .status()
        .unwrap();
    assert!(child.success());
    drop(storage);
    open(scratch.path()).unwrap();
}

#[test]
fn the_other_process_cannot_open_the_directory() {
    let Some(directory) = directory_of_the_parent() else { return };
    let error = open(&directory).unwrap_err();
    assert!(matches!(error, StorageError::InUse { .. }), "{error}");
}

#[test]
fn a_killed_process_loses_no_acknowledged_commit() {
    let scratch = tempfile::tempdir().unwrap();
    let mut child = another_process("process::the_other_process_commits_until_it_is_killed", scratch.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut acknowledged = 0;
    for line in lines.filter(|line| line.starts_with("commit ")) {
        acknowledged += 1;
        assert_eq!(line, format!("commit {acknowledged}"));
        if acknowledged == 30 {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    let report = check(scratch.path()).unwrap();
    assert!(report.needs_repair && report.problems.is_empty(), "{report:?}");
    let mut storage = open(scratch.path()).unwrap();
    assert!(storage.was_repaired());
    let found = loaded(&mut storage);
    let mut life = Life::new(6);
    (0..acknowledged).for_each(|_| _ = life.changes());
    let before: State = life.state.clone();
    life.changes();
    assert!(found == before || found == life.state, "after {acknowledged} commits");
}

#[test]
fn the_other_process_commits_until_it_is_killed() {
    let Some(directory) = directory_of_the_parent() else { return };
    let mut storage = open(&directory).unwrap();
    let mut life = Life::new(6);
    for commit in 1.. {
        storage.commit(&life.changes()).unwrap();
        println!("\ncommit {commit}");
    }
}
