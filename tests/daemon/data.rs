//! The daemon and its data directory: state after a restart, access to it, and a damaged or full directory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::caller::{Caller, LONG, NOW, counted, declare, list, numbered, semaphore};
use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;
use signalbox_model::{
    Claim, Declaration, DeclaredEntry, IfExists, Milliseconds, Operation, Removal, Resizing, Status,
};
use signalbox_protocol::{Extended, Features};

/// The status for an error of the operating system.
const EX_OSERR: i32 = 71;

/// The status for damaged data.
const EX_DATAERR: i32 = 65;

const DATA_FILE: &str = "signalbox.redb";

/// A configuration with a data directory and the lines of `more`.
fn configured(more: &str) -> ConfigFile {
    let file = ConfigFile::toml("");
    write(&file, more);
    file
}

fn write(file: &ConfigFile, more: &str) {
    let directory = data_directory(file);
    file.write(&format!(
        "data_dir = '{}'\nworkers = 1\nsemaphore.gc_interval = 1\n{more}",
        directory.display()
    ));
}

fn data_directory(file: &ConfigFile) -> PathBuf {
    file.directory().join("data")
}

fn start(file: &ConfigFile) -> Daemon {
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    daemon.ready();
    daemon
}

fn stop(mut daemon: Daemon) {
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_status().code(), Some(0), "{}", daemon.said());
}

fn caller(daemon: &mut Daemon) -> Caller {
    Caller::new(daemon.semaphore())
}

/// Declares a semaphore, or changes an existing one, and returns the status.
fn declared(caller: &mut Caller, declaration: Declaration<'_>) -> u8 {
    declare(caller, IfExists::Set, &[declaration]).status
}

fn names(caller: &mut Caller) -> Vec<(String, u32, bool)> {
    let entries = list(caller, b"");
    let name = |entry: &DeclaredEntry<bytes::Bytes>| String::from_utf8(entry.name.to_vec()).unwrap();
    entries.iter().map(|entry| (name(entry), entry.capacity, entry.numbered)).collect()
}

#[test]
fn acknowledged_state_survives_a_stop_and_a_crash() {
    let file = configured("");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut daemon = start(&file);
        let [mut one, mut bound] = [caller(&mut daemon), caller(&mut daemon)];
        assert!(one.introduce("", Features::default()).features.contains(Features::DURABLE));
        let session = one.open(60_000);
        assert_eq!(declared(&mut one, numbered(b"a", 4)), OK);
        let held = one.take(semaphore(2, b"a"));
        bound.take(semaphore(1, b"a"));
        assert_eq!(bound.wire.acquire(b"a", 1, 1).status, OK);
        let waiting = bound.want(semaphore(1, b"a"), LONG);
        bound.sync();
        daemon.signal(signal);
        daemon.exit_status();
        if signal == Signal::SIGTERM {
            let answer = loop {
                let answer = bound.next();
                if answer.opaque == waiting {
                    break answer;
                }
            };
            assert_eq!(answer.status, Status::ShuttingDown.code());
        }

        let mut daemon = start(&file);
        let found = daemon.logged_message("restored the durable state");
        assert_eq!(
            [number(&found, "declared"), number(&found, "sessions"), number(&found, "grants")],
            [1, 1, 1]
        );
        let repaired = daemon.lines_with("was not stopped in an orderly way").len();
        assert_eq!(repaired == 1, signal == Signal::SIGKILL, "{:?}", daemon.log());
        let mut other = caller(&mut daemon);
        assert_eq!(other.take(semaphore(1, b"a")).slots, [2]);
        assert_eq!(other.attach(session), OK);
        for _ in 0..3 {
            other.ids();
        }
        assert_eq!(other.give_back(held.grant), OK);
        assert_eq!(other.ask(&Extended::CloseSession).status, OK);
        stop(daemon);
    }
}

#[test]
fn without_a_data_directory_the_daemon_logs_what_a_restart_forgets() {
    let mut daemon = Daemon::start();
    let said = daemon.logged_message("a restart forgets them");
    assert_eq!(said["level"], "info");
    assert!(message(&said).contains("declared semaphores and leased sessions"), "{said}");
    assert!(!message(&said).contains("  "), "{said}");
    let mut caller = caller(&mut daemon);
    assert!(!caller.introduce("", Features::default()).features.contains(Features::DURABLE));
    assert_eq!(declared(&mut caller, numbered(b"a", 1)), OK, "declared semaphores work in memory");
}

/// Starts a daemon that is expected to exit, and returns its output.
#[track_caller]
fn refused(file: &ConfigFile, status: i32) -> String {
    let output = outcome(serve_file_on_any_ports(&file.path()));
    assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
    let said = stderr(&output);
    let last = said.lines().last().unwrap().to_owned();
    assert!(last.starts_with("signalbox: data_dir"), "{said}");
    last
}

#[test]
fn a_second_daemon_on_the_same_data_is_refused_and_the_first_continues() {
    let file = configured("");
    let mut first = start(&file);
    let mut caller = caller(&mut first);
    assert_eq!(declared(&mut caller, counted(b"a", 1)), OK);
    let said = refused(&file, EX_OSERR);
    assert!(said.contains("a server has this data directory open; stop that server"), "{said}");
    assert_eq!(declared(&mut caller, counted(b"b", 1)), OK);
    stop(first);
    let mut next = start(&file);
    assert_eq!(names(&mut self::caller(&mut next)).len(), 2);
}

#[test]
fn damaged_data_is_refused_with_instructions_and_left_unchanged() {
    let file = configured("");
    let mut daemon = start(&file);
    let mut caller = caller(&mut daemon);
    for number in 0..200 {
        assert_eq!(declared(&mut caller, counted(format!("semaphore-{number}").as_bytes(), 1)), OK);
    }
    stop(daemon);
    let path = data_directory(&file).join(DATA_FILE);
    let whole = fs::read(&path).unwrap();
    let mut changed = whole.clone();
    // Most copies are in pages of earlier commits, which are not read.
    for (at, bytes) in whole.windows(12).enumerate() {
        if bytes == b"semaphore-17" {
            changed[at + 3] ^= 0x40;
        }
    }
    let damages = [
        changed,
        Vec::new(),
        b"not a store at all".to_vec(),
        vec![0; whole.len()],
        whole[..whole.len() / 2].to_vec(),
        whole[..100].to_vec(),
    ];
    for (number, damaged) in damages.into_iter().enumerate() {
        fs::write(&path, &damaged).unwrap();
        let said = refused(&file, EX_DATAERR);
        assert!(said.contains("the file is damaged or is not a data file of signalbox"), "{number}: {said}");
        assert!(said.contains("restore a backup"), "{number}: {said}");
        assert!(fs::read(&path).unwrap() == damaged, "{number}: it was changed");
    }
    fs::write(&path, &whole).unwrap();
    let mut daemon = start(&file);
    assert_eq!(names(&mut self::caller(&mut daemon)).len(), 200);
}

/// Records that contradict each other are found after the engine has opened the file.
#[test]
fn contradictory_data_is_refused_and_left_unchanged() {
    let file = configured("");
    let mut daemon = start(&file);
    assert_eq!(declared(&mut caller(&mut daemon), counted(b"a", 1)), OK);
    stop(daemon);
    let path = data_directory(&file).join(DATA_FILE);
    // A grant of a session that does not exist.
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let table = redb::TableDefinition::<&[u8], &[u8]>::new("signalbox");
    let grant = [[0; 7].as_slice(), &[5], &[0; 7], &[9], &[0; 8], &[0], &[0; 8]].concat();
    let key = [[4].as_slice(), &[0; 7], &[7]].concat();
    transaction.open_table(table).unwrap().insert(key.as_slice(), grant.as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let before = fs::read(&path).unwrap();
    let said = refused(&file, EX_DATAERR);
    assert!(said.contains("grant 7"), "{said}");
    assert!(fs::read(&path).unwrap() == before, "it was changed");
}

#[test]
fn a_data_directory_that_cannot_be_created_is_refused() {
    let file = configured("");
    fs::write(data_directory(&file), b"a file").unwrap();
    let said = refused(&file, EX_OSERR);
    assert!(said.contains("check that the server's user can create, read and write it"), "{said}");
}

fn limit_file_size(daemon: &Daemon, bytes: &str) {
    let mut command = Command::new("prlimit");
    command.args(["--pid", &daemon.pid().to_string(), &format!("--fsize={bytes}:unlimited")]);
    assert!(outcome(command).status.success());
}

/// While the file cannot grow, the daemon serves its existing state, and it stores again afterwards. A limit on the file
/// size has the effect of a full disk, and does not need root.
#[test]
fn the_daemon_keeps_serving_if_the_file_cannot_grow() {
    if !works("prlimit", &["--fsize=1000000000:unlimited", "true"]) {
        skipped("prlimit (util-linux) is missing, or may not set limits");
        return;
    }
    let file = configured("");
    let mut daemon = start(&file);
    let [mut admin, mut one, mut bound] = std::array::from_fn(|_| caller(&mut daemon));
    let session = one.open(600_000);
    assert_eq!(declared(&mut admin, numbered(b"a", 10)), OK);
    let held = one.take(semaphore(1, b"a"));
    let bytes = fs::metadata(data_directory(&file).join(DATA_FILE)).unwrap().len();
    limit_file_size(&daemon, &(bytes + 1).to_string());

    let long = vec![b'n'; 60_000];
    let mut stored = 0;
    loop {
        let name = [format!("{stored}-").as_bytes(), &long].concat();
        let status = declared(&mut admin, counted(&name, 1));
        if status == Status::NotStored.code() {
            break;
        }
        assert_eq!(status, OK);
        stored += 1;
        assert!(stored < 900, "the file did not fill");
    }
    let failure = daemon.logged_message("cannot be stored");
    assert_eq!(failure["level"], "error");
    assert!(
        text(&failure, "error").contains("check that the server's user can create, read and write it"),
        "{failure}"
    );
    assert_eq!(names(&mut admin).len(), stored + 2, "the last one takes effect when there is room");
    assert_eq!(bound.take(semaphore(1, b"a")).slots, [1], "requests that need no store are served");
    assert_eq!(one.ask(&Extended::VerifyGrant { grant: held.grant }).status, OK);

    limit_file_size(&daemon, "unlimited");
    daemon.logged_message("the store works again");
    let second = one.take(semaphore(1, b"a"));
    assert_eq!(second.slots, [2]);
    assert_eq!(daemon.lines_with("cannot be stored").len(), 1, "logged once");
    daemon.signal(Signal::SIGKILL);
    daemon.exit_status();

    let mut daemon = start(&file);
    let mut other = caller(&mut daemon);
    assert_eq!(names(&mut other).len(), stored + 2, "what was acknowledged, and the one in flight");
    assert_eq!(other.take(semaphore(1, b"a")).slots, [1]);
    assert_eq!(other.attach(session), OK);
    stop(daemon);
}

/// Every write fails, from the first one on.
#[test]
fn a_stop_does_not_wait_for_a_full_disk() {
    if !works("prlimit", &["--fsize=1000000000:unlimited", "true"]) {
        skipped("prlimit (util-linux) is missing, or may not set limits");
        return;
    }
    let file = configured("");
    let mut daemon = start(&file);
    let mut one = caller(&mut daemon);
    one.open(600_000);
    limit_file_size(&daemon, "1");
    let asked = one.want(Claim { maximum: 1, ..semaphore(1, b"a") }, NOW);
    assert_eq!(one.answer(asked).status, Status::NotStored.code());
    stop(daemon);
}

const TWO: &str = "[[semaphore.declare]]\nname = 'lift'\ncapacity = 2\nlabel = 'two lifts'\n\
                   [[semaphore.declare]]\nname = 'lane'\ncapacity = 8\nslots = true\n";

#[test]
fn only_the_file_changes_the_semaphores_that_it_declares() {
    let file = configured(TWO);
    let mut daemon = start(&file);
    let mut admin = caller(&mut daemon);
    let session = admin.open(60_000);
    assert_eq!(names(&mut admin), [("lane".to_owned(), 8, true), ("lift".to_owned(), 2, false)]);
    assert!(list(&mut admin, b"").iter().all(|entry| entry.configured));
    let not_permitted = Status::NotPermitted.code();
    let expected = None;
    let grow = |name| Operation::Resize { name, how: Resizing::GrowBy(1), expected };
    assert_eq!(admin.change(grow(b"lift")).status, not_permitted);
    for how in [Removal::IfIdle, Removal::WithLastHolder, Removal::Now { grace: Milliseconds(0) }] {
        let remove = Operation::Remove { name: b"lift", how, expected };
        assert_eq!(admin.change(remove).status, not_permitted);
    }
    assert_eq!(declared(&mut admin, counted(b"lift", 9)), not_permitted);
    assert_eq!(declared(&mut admin, counted(b"own", 1)), OK);
    let held = admin.take(semaphore(3, b"lane"));

    // One is changed, one that a client declared is taken over, one is deleted from the file while it is held.
    write(
        &file,
        "[[semaphore.declare]]\nname = 'lift'\ncapacity = 3\n[[semaphore.declare]]\nname = 'own'\ncapacity = 5\n",
    );
    daemon.reload("the configuration was read again");
    let figures = |entry: &DeclaredEntry<bytes::Bytes>| {
        (entry.capacity, entry.in_use, entry.removing, entry.configured)
    };
    assert_eq!(
        list(&mut admin, b"").iter().map(figures).collect::<Vec<_>>(),
        [(8, 3, true, true), (3, 0, false, true), (5, 0, false, true)]
    );
    let refused = admin.want(semaphore(1, b"lane"), NOW);
    assert_eq!(admin.answer(refused).status, Status::Removed.code());
    assert_eq!(admin.change(grow(b"own")).status, not_permitted);

    daemon.signal(Signal::SIGKILL);
    daemon.exit_status();
    let mut daemon = start(&file);
    let mut after = caller(&mut daemon);
    assert_eq!(after.attach(session), OK);
    for _ in 0..20 {
        after.ids();
    }
    assert!(list(&mut after, b"")[0].removing, "it is still held");
    assert_eq!(after.give_back(held.grant), OK);
    assert_eq!(names(&mut after), [("lift".to_owned(), 3, false), ("own".to_owned(), 5, false)]);
    let generations: Vec<_> = list(&mut after, b"").iter().map(|entry| entry.generation).collect();
    daemon.reload("the configuration was read again");
    let same: Vec<_> = list(&mut after, b"").iter().map(|entry| entry.generation).collect();
    assert_eq!(same, generations, "an unchanged declaration keeps its generation");

    // It cannot become numbered while it is held, and the refusal is logged. Otherwise the file has precedence.
    assert_eq!(after.wire.acquire(b"own", 1, 1).status, OK);
    write(&file, "[[semaphore.declare]]\nname = 'own'\ncapacity = 5\nslots = true\n");
    daemon.reload("the configuration was read again");
    let refusal = daemon.logged_message("whether slots are numbered cannot change");
    assert_eq!((&refusal["level"], text(&refusal, "name")), (&"error".into(), "own"));
    let applied = daemon.lines_with("takes effect now");
    let keys: Vec<_> = applied.iter().map(|line| text(line, "key")).collect();
    assert_eq!(keys, ["semaphore.declare \"lift\""], "what was refused is not said to take effect");
    assert_eq!(names(&mut after), [("own".to_owned(), 5, false)], "and the one without holders is removed");
    stop(daemon);

    write(&file, "");
    let mut daemon = start(&file);
    assert_eq!(names(&mut caller(&mut daemon)), [], "deleted from the file while the daemon was stopped");
}

#[test]
fn the_file_can_declare_semaphores_without_a_data_directory() {
    let file = ConfigFile::toml(&format!("counter.enable = false\n{TWO}"));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let mut admin = caller(&mut daemon);
    assert_eq!(names(&mut admin), [("lane".to_owned(), 8, true), ("lift".to_owned(), 2, false)]);
}
