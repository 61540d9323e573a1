//! The history of grants: its lines, slow and full disks, rotation, restarts; and the output of `signalbox history`.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::caller::{Caller, declare_new, for_ms, limit, numbered, semaphore};
use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use serde_json::Value;
use signalbox_model::{Milliseconds, Operation, Revocation, SessionId};

const TTL_MS: u32 = 600_000;

/// A name that is neither UTF-8 nor on one line.
const HOSTILE: &[u8] = b"a\n{\"\\\x1b[2J\xff";

/// A daemon that records grants in a file.
struct Recorder {
    daemon: Daemon,
    file: ConfigFile,
}

impl Recorder {
    fn start(settings: &str) -> Self {
        Self::start_in(ConfigFile::toml(""), settings)
    }

    fn start_in(file: ConfigFile, settings: &str) -> Self {
        let directory = file.directory().display();
        file.write(&format!("{settings}\n[log]\ngrants = '{directory}/grants.log'\n"));
        let mut command = serve_file_on_any_ports(&file.path());
        command.args(["--http-port", "0"]);
        let mut daemon = Daemon::spawn(command);
        daemon.ready();
        Self { daemon, file }
    }

    fn log(&self) -> PathBuf {
        self.file.directory().join("grants.log")
    }

    fn caller(&mut self) -> Caller {
        let mut caller = Caller::new(self.daemon.counter());
        caller.hello("of a connection");
        caller
    }

    fn leased(&mut self) -> Caller {
        let mut caller = self.caller();
        caller.open(TTL_MS);
        caller
    }

    /// Waits until the file has this number of lines about grants, and returns them.
    fn lines(&mut self, count: usize) -> Vec<Value> {
        let log = self.log();
        self.daemon.wait_for("lines of grants", |_| {
            // After a rotation, the writer makes the new file soon.
            let lines = lines_of(&fs::read_to_string(&log).unwrap_or_default());
            let lines: Vec<_> = lines.into_iter().filter(|line| line["grant"].is_string()).collect();
            assert!(lines.len() <= count, "{lines:#?}");
            (lines.len() == count).then_some(lines)
        })
    }

    /// The metric of lost lines.
    fn lost(&mut self) -> u64 {
        let mut stream = TcpStream::connect(self.daemon.address("http")).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("signalbox_history_lost_lines_total "));
        line.unwrap().parse().unwrap()
    }

    fn history(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(SIGNALBOX);
        command.arg("history").args(arguments).arg("--config").arg(self.file.path());
        outcome(command)
    }

    /// The rows of `signalbox history --json`.
    fn rows(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.history(&[arguments, &["--json"]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
        lines_of(str::from_utf8(&output.stdout).unwrap())
    }

    fn stop(&mut self) {
        self.daemon.signal(Signal::SIGTERM);
        assert_eq!(self.daemon.exit_status().code(), Some(0));
    }
}

fn lines_of(text: &str) -> Vec<Value> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

fn ends(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["end"].as_str().unwrap()).collect()
}

#[test]
fn a_grant_has_a_line_at_its_beginning_and_one_at_each_kind_of_end() {
    let mut recorder = Recorder::start("");
    let mut leased = recorder.leased();
    let mut other = recorder.caller();
    declare_new(&mut leased, numbered(HOSTILE, 2));
    let first = leased.take(semaphore(2, HOSTILE));
    let waiting = other.want(semaphore(1, HOSTILE), for_ms(60_000));
    other.sync();
    let second = leased.take(limit(1, b"expires"));
    // A plain Acquire is not recorded.
    let mut plain = recorder.daemon.counter();
    assert_eq!(plain.acquire(b"plain", 1, 1).status, OK);
    assert_eq!(leased.give_back(first.grant), OK);
    let granted = other.answer(waiting).granted().unwrap();
    let revoke = Operation::Revoke { what: Revocation::Grant(granted.grant), grace: Milliseconds(0) };
    assert_eq!(leased.change(revoke).status, OK);
    // The notice.
    other.next();
    let third = other.take(limit(1, b"connection"));
    drop(other);
    let lines = recorder.lines(7);
    let of = |grant: u64| -> Vec<&Value> {
        lines.iter().filter(|line| line["grant"] == grant.to_string().as_str()).collect()
    };
    let [begins, ended] = of(first.grant.0)[..] else { panic!("{lines:#?}") };
    for (line, event) in [(begins, "granted"), (ended, "released")] {
        assert_eq!(line["event"], event);
        assert_eq!(line["label"], "leased");
        assert!(line["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert_eq!(line["limits"][0]["slots"], serde_json::json!([0, 1]), "{line}");
        let hex: String = HOSTILE.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(line["limits"][0]["name_hex"], hex.as_str());
    }
    assert!(begins["waited_ms"].is_u64() && begins["held_ms"].is_null(), "{begins}");
    assert!(ended["held_ms"].is_u64() && ended["waited_ms"].is_null(), "{ended}");
    assert_eq!(of(granted.grant.0)[1]["event"], "revoked");
    assert_eq!(of(granted.grant.0)[1]["label"], "of a connection");
    assert_eq!(of(third.grant.0)[1]["event"], "disconnected");
    assert_eq!(of(second.grant.0).len(), 1);

    let rows = recorder.rows(&[]);
    assert_eq!(ends(&rows), ["released", "revoked", "disconnected", "held"]);
    assert_eq!(rows[3]["name"], "expires");
    assert_eq!(ends(&recorder.rows(&["conn*", "--since", "1h"])), ["disconnected"]);
    assert!(recorder.rows(&["connection", "--until", "1h"]).is_empty());
    let table = recorder.history(&["--since", "2026-01-01", "--no-header"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(!table.contains('\x1b') && table.contains("\\xff"), "{table}");
}

#[test]
fn what_a_client_gives_back_within_the_grace_period_was_revoked() {
    let mut recorder = Recorder::start("");
    let mut client = recorder.leased();
    let [grant, of_session, free] = [b"a", b"b", b"c"].map(|name| client.take(limit(1, name)).grant);
    let revoke = |client: &mut Caller, what| {
        assert_eq!(client.change(Operation::Revoke { what, grace: Milliseconds(TTL_MS) }).status, OK);
        // The notice.
        client.next();
    };
    assert_eq!(client.give_back(free), OK);
    revoke(&mut client, Revocation::Grant(grant));
    assert_eq!(client.give_back(grant), OK);
    let line = recorder.lines(5).pop().unwrap();
    let session = line["session"].as_str().unwrap().parse().unwrap();
    revoke(&mut client, Revocation::Session(SessionId::new(session)));
    assert_eq!(client.give_back(of_session), OK);
    let lines = recorder.lines(6);
    let ends: Vec<_> = lines[3..].iter().map(|line| [&line["limits"][0]["name"], &line["event"]]).collect();
    assert_eq!(ends, [["c", "released"], ["a", "revoked"], ["b", "revoked"]]);
}

#[test]
fn a_lease_that_expires_is_recorded_so() {
    let mut recorder = Recorder::start("[session]\nmin_ttl = 1");
    let mut leased = recorder.caller();
    leased.open(1000);
    leased.take(limit(1, b"a"));
    drop(leased);
    let lines = recorder.lines(2);
    assert_eq!(lines[1]["event"], "expired");
    assert!(lines[1]["held_ms"].as_u64().unwrap() >= 900, "{}", lines[1]);
}

#[test]
fn rotation_loses_no_line_and_the_rotated_files_are_read() {
    let mut recorder = Recorder::start("");
    let mut leased = recorder.leased();
    for round in 0..4 {
        for _ in 0..50 {
            let grant = leased.take(limit(1, b"a")).grant;
            assert_eq!(leased.give_back(grant), OK);
        }
        // Like logrotate: lines may still be written to the file that is moved.
        let moved = |number: usize| recorder.log().with_extension(format!("log.{number}"));
        for number in (1..=round).rev() {
            fs::rename(moved(number), moved(number + 1)).unwrap();
        }
        fs::rename(recorder.log(), moved(1)).unwrap();
        recorder.daemon.signal(Signal::SIGHUP);
        let log = recorder.log();
        recorder.daemon.wait_for("the new file", |_| log.exists().then_some(()));
    }
    let oldest = recorder.log().with_extension("log.4");
    assert!(Command::new("gzip").arg(oldest).status().unwrap().success());
    leased.take(limit(1, b"a"));
    let mut rows = Vec::new();
    eventually("all lines are written", || {
        rows = recorder.rows(&["a"]);
        rows.len() == 201
    });
    assert!(ends(&rows)[..200].iter().all(|end| *end == "released"));
    assert_eq!(ends(&rows)[200], "held");
}

#[test]
fn a_full_disk_delays_no_grant_and_its_lost_lines_are_counted_and_noted() {
    let file = ConfigFile::toml("");
    std::os::unix::fs::symlink("/dev/full", file.directory().join("grants.log")).unwrap();
    let mut recorder = Recorder::start_in(file, "");
    let mut leased = recorder.leased();
    for _ in 0..10 {
        let grant = leased.take(limit(1, b"a")).grant;
        assert_eq!(leased.give_back(grant), OK);
    }
    recorder.daemon.logged_message("lines of the history are lost until it can");
    // The line of the start is lost too.
    let mut lost = 0;
    for _ in 0..1000 {
        lost = recorder.lost();
        if lost == 21 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(lost, 21);
    fs::remove_file(recorder.log()).unwrap();
    recorder.daemon.reload("the configuration was read again");
    leased.take(limit(1, b"a"));
    recorder.lines(1);
    let lines = lines_of(&fs::read_to_string(recorder.log()).unwrap());
    assert_eq!((&lines[0]["event"], &lines[0]["lines"]), (&"lost".into(), &21.into()));
    recorder.daemon.logged_message("the file can be written again");
    let output = recorder.history(&["a"]);
    assert!(output.status.success() && stderr(&output).contains("lost 21 lines"), "{}", stderr(&output));
}

#[test]
fn a_disk_that_hangs_delays_no_grant_and_no_stop() {
    let file = ConfigFile::toml("");
    let fifo = file.directory().join("grants.log");
    nix::unistd::mkfifo(&fifo, Mode::from_bits_truncate(0o600)).unwrap();
    // It takes 64 KiB, and then blocks the writer until it is read.
    let mut pipe = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let mut recorder = Recorder::start_in(file, "");
    let mut leased = recorder.leased();
    let long = vec![b'x'; 60_000];
    let mut taken = 0;
    while recorder.lost() == 0 {
        let grant = leased.take(limit(1, &long)).grant;
        assert_eq!(leased.give_back(grant), OK);
        taken += 2;
        assert!(taken < 1000, "the lines that wait are limited");
    }
    // SIGHUP is handled while the writer is blocked.
    recorder.daemon.reload("the configuration was read again");
    let reader = std::thread::spawn(move || {
        let (mut text, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while !String::from_utf8_lossy(&text).contains("\"event\":\"lost\"") {
            let count = pipe.read(&mut buffer).unwrap();
            text.extend_from_slice(&buffer[..count]);
        }
        pipe
    });
    recorder.daemon.logged_message("lines of the history were lost");
    let pipe: File = reader.join().unwrap();
    for _ in 0..4 {
        leased.take(limit(4, &long));
    }
    recorder.stop();
    drop(pipe);
}

#[test]
fn a_restart_ends_what_it_does_not_keep_and_repeats_no_beginning() {
    let data = open_directory();
    let settings = format!("data_dir = '{}'", data.path().join("data").display());
    let mut recorder = Recorder::start(&settings);
    let mut leased = recorder.caller();
    let session = leased.open(TTL_MS);
    let kept = leased.take(limit(1, b"kept")).grant;
    recorder.caller().take(limit(1, b"of a connection that ended"));
    let mut other = recorder.caller();
    let lost = other.take(limit(1, b"lost")).grant;
    recorder.lines(4);
    recorder.daemon.signal(Signal::SIGKILL);
    recorder.daemon.exit_status();
    let Recorder { file, .. } = recorder;
    let mut recorder = Recorder::start_in(file, &settings);
    let rows = recorder.rows(&[]);
    assert_eq!(ends(&rows), ["disconnected", "stopped", "held"]);
    assert_eq!(rows[1]["grant"], lost.0.to_string().as_str());
    assert!(rows[1]["held"].is_null(), "it is not known when the server was killed: {}", rows[1]);
    let mut leased = recorder.caller();
    assert_eq!(leased.attach(session), OK);
    // The request that took it has the first id.
    leased.ids();
    assert_eq!(leased.give_back(kept), OK);
    let lines = recorder.lines(5);
    assert_eq!(lines[4]["event"], "released");
    assert_eq!(lines[4]["grant"], kept.0.to_string().as_str());
    recorder.stop();
    assert_eq!(ends(&recorder.rows(&["kept"])), ["released"]);
}
