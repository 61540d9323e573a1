//! Backups of a running daemon: exports that are taken under load restore to a consistent server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::signal::Signal;
use signalbox_model::{
    Declaration, GrantId, IfExists, Milliseconds, Operation, Removal, RequestId, RequestIds,
};
use signalbox_protocol::{Claims, Extended};

use crate::support::caller::{Caller, NOW, counted, declare_new, semaphore};
use crate::support::daemon::*;
use crate::support::*;

const CLIENTS: u32 = 6;
const EXPORTS: usize = 5;
const CAPACITY: u32 = 4;
const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];

fn configured(directory: &Path) -> ConfigFile {
    ConfigFile::toml(&format!("data_dir = '{}'\n", directory.display()))
}

/// The grants that a client holds for certain: from their acknowledgement until it begins to release them.
type Held = BTreeSet<GrantId>;

/// Acquires and releases grants of several names until it is told to stop. `held` is correct at every moment.
fn work(mut caller: Caller, number: u32, held: &Mutex<Held>, is_over: &AtomicBool) {
    let mut grants: Vec<GrantId> = Vec::new();
    let mut turn = number;
    // Each request is answered before the next one, so the server forgets the earlier answers.
    let mut last = 0;
    let mut ids = || {
        last += 1;
        RequestIds { own: RequestId(last), lowest_unanswered: RequestId(last) }
    };
    while !is_over.load(Ordering::Relaxed) {
        turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let start = turn as usize % NAMES.len();
        let claims: Vec<_> = (0..3).map(|place| semaphore(1, NAMES[(start + place) % NAMES.len()])).collect();
        let claims = Claims::new(&claims).unwrap();
        let asked = Extended::AcquireAll { ids: ids(), queueing: NOW, claims, place: None };
        let answer = caller.ask(&asked);
        if answer.status == OK {
            let grant = answer.all_granted().unwrap().grant;
            held.lock().unwrap().insert(grant);
            grants.push(grant);
        }
        if grants.len() > 1 || answer.status != OK {
            let Some(grant) = grants.pop() else { continue };
            held.lock().unwrap().remove(&grant);
            assert_eq!(caller.ask(&Extended::ReleaseGrant { ids: ids(), grant, is_done: false }).status, OK);
        }
    }
}

fn data(arguments: &[&str], input: Stdio) -> std::process::Output {
    Command::new(SIGNALBOX).arg("data").args(arguments).stdin(input).output().unwrap()
}

/// The records of an export of one kind.
fn records(export: &str, kind: &str) -> Vec<serde_json::Value> {
    let lines = export.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter(|line| line["kind"] == kind).collect()
}

/// The grants in an export. Checks that each has all of its names, and that no name has more than its capacity.
fn grants_of(export: &str) -> BTreeSet<GrantId> {
    let mut used: BTreeMap<String, u64> = BTreeMap::new();
    let mut grants = BTreeSet::new();
    for grant in records(export, "grant") {
        let parts = grant["parts"].as_array().unwrap();
        assert_eq!(parts.len(), 3, "a grant has all of its names: {grant}");
        for part in parts {
            *used.entry(part["name"].as_str().unwrap().to_owned()).or_default() +=
                part["resources"].as_u64().unwrap();
        }
        grants.insert(GrantId(grant["grant"].as_str().unwrap().parse().unwrap()));
    }
    assert!(used.values().all(|used| *used <= CAPACITY.into()), "{used:?}");
    grants
}

/// Checks that a server that was restored from an export continues: nothing is granted twice, and ids grow.
fn check_restored(directory: &Path, grants: &BTreeSet<GrantId>) {
    let file = configured(directory);
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    daemon.ready();
    let mut caller = Caller::new(daemon.semaphore());
    for grant in grants {
        assert_eq!(caller.ask(&Extended::VerifyGrant { grant: *grant }).status, OK, "{grant:?}");
    }
    let sessions: Vec<_> = {
        let opaque = caller.send(&Extended::Sessions);
        std::iter::from_fn(|| caller.answer(opaque).session_entry().unwrap()).collect()
    };
    let of_clients: Vec<_> = sessions.iter().filter(|entry| entry.age_s.is_none()).collect();
    assert_eq!(of_clients.len(), CLIENTS as usize, "{sessions:?}");
    let later = caller.open(60_000).session;
    assert!(of_clients.iter().all(|entry| entry.session < later), "{of_clients:?}");
    for name in NAMES {
        let free = caller.wire.get(name).number();
        for _ in 0..free {
            let taken = caller.take(semaphore(1, name)).grant;
            assert!(grants.iter().all(|grant| *grant < taken));
        }
        let opaque = caller.want(semaphore(1, name), NOW);
        assert_eq!(caller.answer(opaque).status, NOT_AVAILABLE);
    }
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_status().code(), Some(0), "{}", daemon.said());
}

#[test]
fn exports_under_load_are_consistent_and_have_everything_acknowledged() {
    let scratch = tempfile::tempdir().unwrap();
    let file = configured(&scratch.path().join("data"));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    daemon.ready();
    let server = daemon.address("semaphore").to_string();
    let mut administrator = Caller::new(daemon.semaphore());
    for name in NAMES {
        declare_new(&mut administrator, counted(name, CAPACITY));
    }

    let is_over = Arc::new(AtomicBool::new(false));
    let held: Vec<Arc<Mutex<Held>>> = (0..CLIENTS).map(|_| Arc::default()).collect();
    let workers: Vec<_> = (0..CLIENTS)
        .zip(&held)
        .map(|(number, held)| {
            let mut caller = Caller::new(daemon.semaphore());
            let ttl = Some(Milliseconds(600_000));
            let opened = caller.ask(&Extended::OpenSession { ttl, label: b"worker", key: None });
            assert_eq!(opened.status, OK);
            let (held, is_over) = (Arc::clone(held), Arc::clone(&is_over));
            thread::spawn(move || work(caller, number, &held, &is_over))
        })
        .collect();

    let look = || held.iter().map(|held| held.lock().unwrap().clone()).collect::<Vec<_>>();
    let mut in_exports = 0;
    for number in 0..EXPORTS {
        let before = look();
        let exported = data(&["export", "--semaphore", "--server", &server], Stdio::null());
        let after = look();
        assert!(exported.status.success(), "{exported:?}");
        let text = String::from_utf8(exported.stdout).unwrap();
        let grants = grants_of(&text);
        in_exports += grants.len();
        for (before, after) in before.iter().zip(&after) {
            // It was acknowledged before, and its release was not begun when the export had ended.
            for grant in before.intersection(after) {
                assert!(grants.contains(grant), "{grant:?} is missing");
            }
        }
        let path = scratch.path().join(format!("export-{number}"));
        std::fs::write(&path, &text).unwrap();
        let copy = scratch.path().join(format!("copy-{number}"));
        let copy_text = copy.to_str().unwrap();
        let imported = data(&["import", copy_text], std::fs::File::open(&path).unwrap().into());
        assert!(imported.status.success(), "{imported:?}");
        let checked = data(&["check", copy_text], Stdio::null());
        assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
        check_restored(&copy, &grants);
    }
    is_over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().unwrap();
    }
    assert!(in_exports > 0, "no client held anything during an export");
}

/// The records of a snapshot that is still being read are not overwritten, so each commit would need new space.
#[test]
fn a_client_that_does_not_read_its_export_does_not_make_the_file_grow() {
    const COUNT: u32 = 300;
    let folder = open_directory();
    let data = folder.path().join("data");
    let file = configured(&data);
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let name = |number: u32| [&number.to_be_bytes()[..], &[b'n'; 60_000]].concat();
    let mut caller = Caller::new(daemon.counter());
    // Many at once, so that they share flushes.
    let mut make = |operations: &[Operation<'_>]| {
        let send = |operation: &Operation<'_>| {
            let ids = caller.ids();
            caller.send(&Extended::Change { ids, operation: operation.clone() })
        };
        let sent: Vec<_> = operations.iter().map(send).collect();
        assert!(sent.into_iter().all(|opaque| caller.answer(opaque).status == OK));
    };
    let names: Vec<_> = (0..COUNT).map(name).collect();
    let declare = |name| {
        let declarations = vec![Declaration { name, capacity: 1, numbered: false, label: b"" }];
        Operation::Declare { if_exists: IfExists::Fail, declarations }
    };
    let remove = |name| Operation::Remove { expected: None, how: Removal::IfIdle, name };
    make(&names.iter().map(|name| declare(name)).collect::<Vec<_>>());
    let mut reader = Caller::new(daemon.counter());
    let opaque = reader.send(&Extended::Export);
    // The rest is more than the buffers between the two have room for.
    assert!(reader.answer(opaque).export_part().unwrap().is_some());
    let size = || {
        let entries = std::fs::read_dir(&data).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let before = size();
    for names in names.chunks(20) {
        make(&names.iter().map(|name| remove(name)).collect::<Vec<_>>());
        make(&names.iter().map(|name| declare(name)).collect::<Vec<_>>());
    }
    let after = size();
    assert!(after <= before + before / 2, "the directory has grown from {before} to {after} bytes");
    // It still gets all of it.
    while reader.answer(opaque).export_part().unwrap().is_some() {}
}
