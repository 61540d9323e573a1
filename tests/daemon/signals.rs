//! Signals to a running daemon: SIGHUP reads the configuration again, SIGUSR1 reports.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;

const READ_AGAIN: &str = "the configuration was read again";
const LEFT_AS_IT_WAS: &str = "the configuration is left as it was";

/// A file with both ports on loopback and additional lines at the top level and in `[counter]`.
fn file_with(top: &str, counter: &str) -> String {
    format!("bind_ip = '127.0.0.1'\n{top}\n[counter]\n{counter}\n")
}

#[test]
fn sighup_changes_the_log_level() {
    let file = ConfigFile::toml(&file_with("log.threshold = 'info'", ""));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    assert_eq!(daemon.counter().ask(NOOP, &[]).status, OK);
    file.write(&file_with("log.threshold = 'debug'", ""));
    daemon.reload(READ_AGAIN);
    assert!(daemon.lines_with("connection opened").is_empty(), "no debug line was logged before");
    assert_eq!(daemon.counter().ask(NOOP, &[]).status, OK);
    daemon.logged_message("connection opened");

    file.write(&file_with("log.threshold = 'error'", ""));
    daemon.signal(Signal::SIGHUP);
    // The line that reports the reload is not logged at this level.
    let mut wire = daemon.counter();
    daemon.wait_for("debug lines end", |daemon| {
        let before = daemon.log().len();
        assert_eq!(wire.ask(NOOP, &[]).status, OK);
        drop(Wire::connect(wire.stream.peer_addr().unwrap()));
        eventually("that connection is gone", || wire.stat("curr_connections") == 1);
        (daemon.log().len() == before).then_some(())
    });
}

#[test]
fn sighup_changes_the_connection_limit() {
    let file = ConfigFile::toml(&file_with("", "max_connections = 1"));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let mut first = daemon.counter();
    assert_eq!(first.ask(NOOP, &[]).status, OK);
    assert!(daemon.counter().is_closed(), "a connection above the limit is closed at once");
    assert_eq!(first.stat("refused_connections"), 1);
    assert_eq!(daemon.semaphore().ask(NOOP, &[]).status, OK, "the limit applies to one port");

    file.write(&file_with("", "max_connections = 2"));
    daemon.reload(READ_AGAIN);
    let mut second = daemon.counter();
    assert_eq!(second.ask(NOOP, &[]).status, OK);
    assert!(daemon.counter().is_closed());

    file.write(&file_with("", "max_connections = 1"));
    daemon.reload(READ_AGAIN);
    assert_eq!(first.stat("max_connections"), 1);
    assert_eq!(second.ask(NOOP, &[]).status, OK, "a connection above a lowered limit stays open");
    assert!(daemon.counter().is_closed());
    assert_eq!(first.stat("refused_connections"), 3);
}

#[test]
fn sighup_names_the_keys_that_need_a_restart() {
    let [port] = free_ports();
    let file = ConfigFile::toml(&file_with("", ""));
    let mut command = serve_file(&file.path());
    command.args(["--semaphore-port", "0", "--counter-port", &port.to_string()]);
    let mut daemon = Daemon::spawn(command);
    let semaphores = daemon.address("semaphore");
    file.write(&file_with("workers = 7", "stat_interval = 60\nmax_names = 5"));
    daemon.reload(READ_AGAIN);
    let named: Vec<_> = daemon.lines_with("restarted").iter().map(|l| text(l, "key").to_owned()).collect();
    assert_eq!(named, ["workers", "counter.stat_interval"]);
    let values = |line: &serde_json::Value| [text(line, "from").to_owned(), text(line, "to").to_owned()];
    assert_eq!(values(&daemon.lines_with("restarted")[1]), ["86400", "60"]);
    let applied = daemon.lines_with("takes effect now");
    assert_eq!(applied.len(), 1, "{applied:?}");
    assert_eq!(
        (text(&applied[0], "key"), values(&applied[0])),
        ("counter.max_names", ["0".into(), "5".into()])
    );
    assert_eq!(daemon.counter().stat("max_names"), 5, "the other changes take effect");
    assert_eq!(Wire::connect(semaphores).ask(NOOP, &[]).status, OK);
}

/// Each reload is compared with the previous one, so a change is reported once.
#[test]
fn sighup_logs_each_change_that_it_applies() {
    let declare = |capacity| format!("[[semaphore.declare]]\nname = 'gpu'\ncapacity = {capacity}\n");
    let file = ConfigFile::toml(&file_with("frame_timeout = 5", ""));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    daemon.ready();
    file.write(&format!("{}{}", file_with("frame_timeout = 6", ""), declare(2)));
    daemon.reload(READ_AGAIN);
    file.write(&format!("{}{}", file_with("frame_timeout = 6", ""), declare(3)));
    daemon.reload(READ_AGAIN);
    daemon.reload(READ_AGAIN);
    let changes = daemon.lines_with("takes effect now");
    let changes: Vec<_> =
        changes.iter().map(|line| ["key", "from", "to"].map(|field| text(line, field))).collect();
    assert_eq!(
        changes,
        [
            ["frame_timeout", "5", "6"],
            ["semaphore.declare \"gpu\"", "not declared", "capacity 2, slots false, label \"\""],
            [
                "semaphore.declare \"gpu\"",
                "capacity 2, slots false, label \"\"",
                "capacity 3, slots false, label \"\""
            ],
        ]
    );
}

#[test]
fn sighup_reports_a_broken_file_and_keeps_the_old_configuration() {
    let file = ConfigFile::toml(&file_with("", "max_names = 1"));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let mut wire = daemon.counter();
    assert_eq!(wire.acquire(b"one", 1, 1).status, OK);
    let path = file.path();
    for (text_of_file, error) in [
        (file_with("", "max_names = 'many'"), format!("{}:4: counter.max_names = 'many'", path.display())),
        (file_with("frobnicate = 1", "max_names = 0"), format!("{}:2: frobnicate", path.display())),
        (
            "counter.enable = false\nsemaphore.enable = false".to_owned(),
            format!("{}:2: counter.enable and semaphore.enable are both false", path.display()),
        ),
        ("[[[".to_owned(), format!("{}:1: ", path.display())),
    ] {
        file.write(&text_of_file);
        let line = daemon.reload(LEFT_AS_IT_WAS);
        assert_eq!(line["level"], "error");
        assert!(text(&line, "error").starts_with(&error), "{error}: {line}");
        assert_eq!(wire.acquire(b"two", 1, 1).status, OUT_OF_MEMORY);
    }
    fs::remove_file(file.path()).unwrap();
    let line = daemon.reload(LEFT_AS_IT_WAS);
    assert!(text(&line, "error").contains("cannot be read"), "{line}");
    assert!(daemon.lines_with(READ_AGAIN).is_empty());

    file.write(&file_with("", "max_names = 2"));
    daemon.reload(READ_AGAIN);
    assert_eq!(wire.acquire(b"two", 1, 1).status, OK, "a correct file is applied afterwards");
}

#[test]
fn sighup_without_a_file_is_harmless() {
    let mut daemon = Daemon::start();
    daemon.ready();
    daemon.reload(READ_AGAIN);
    assert_eq!(daemon.counter().ask(NOOP, &[]).status, OK);
    assert!(daemon.lines_with("restarted").is_empty(), "{}", daemon.said());
}

#[test]
fn the_command_line_overrides_a_file_that_is_read_again() {
    let file = ConfigFile::toml(&file_with("log.threshold = 'error'", ""));
    let mut command = serve_file_on_any_ports(&file.path());
    command.args(["--log-level", "info"]);
    let mut daemon = Daemon::spawn(command);
    daemon.ready();
    daemon.reload(READ_AGAIN);
    daemon.reload(READ_AGAIN);
}

#[test]
fn sighup_reopens_the_log_file_after_logrotate_moved_it() {
    let directory = open_directory();
    let (log, moved) = (directory.path().join("signalbox.log"), directory.path().join("signalbox.log.1"));
    let file = ConfigFile::toml(&file_with(&format!("log.file = '{}'", log.display()), ""));
    let mut daemon = Daemon::spawn_with_log_file(serve_file_on_any_ports(&file.path()), &log);
    let mut wire = daemon.counter();
    fs::rename(&log, &moved).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.logged_message(READ_AGAIN);
    let old = fs::read_to_string(&moved).unwrap();
    assert!(old.contains("signalbox is ready") && !old.contains(READ_AGAIN), "{old}");
    assert_eq!(wire.ask(NOOP, &[]).status, OK);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_status().code(), Some(0));
    assert_eq!(daemon.lines_with("stopped").len(), 1);
    assert_eq!(fs::read_to_string(&moved).unwrap(), old, "the old file received no more lines");
    assert_eq!(daemon.said(), "", "standard error was not used");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o137, 0, "too many accounts may read it");
}

#[test]
fn a_log_file_that_cannot_be_reopened_stays_in_use() {
    let directory = open_directory();
    let logs = directory.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let log = logs.join("signalbox.log");
    let file = ConfigFile::toml(&file_with(&format!("log.file = '{}'", log.display()), ""));
    let moved = directory.path().join("moved");
    let mut daemon = Daemon::spawn_with_log_file(serve_file_on_any_ports(&file.path()), &log);
    let address = daemon.address("counter");
    fs::rename(&logs, &moved).unwrap();
    daemon.signal(Signal::SIGHUP);
    let log_now = || fs::read_to_string(moved.join("signalbox.log")).unwrap();
    eventually("the old file reports it", || log_now().contains("could not be reopened"));
    eventually("and reads the configuration", || log_now().contains(READ_AGAIN));
    assert_eq!(Wire::connect(address).ask(NOOP, &[]).status, OK);
}

#[test]
fn sigusr1_logs_the_statistics_of_each_port_and_checks_the_accounting() {
    let mut daemon = Daemon::start();
    let (mut counter, mut semaphore) = (daemon.counter(), daemon.semaphore());
    for name in [b"a", b"b", b"c"] {
        assert_eq!(counter.acquire(name, 2, 5).status, OK);
    }
    assert_eq!(semaphore.acquire(b"a", 2, 5).status, OK);
    daemon.signal(Signal::SIGUSR1);
    for (port, names) in [("counter", 3), ("semaphore", 1)] {
        let of_port =
            |line: &serde_json::Value, what| message(line).starts_with(what) && text(line, "port") == port;
        let statistics = daemon.logged("statistics", |line| of_port(line, "statistics"));
        for item in ["objects", "total_objects", "command:acquire"] {
            assert_eq!(statistics["fields"][item], names, "{statistics}");
        }
        assert_eq!(text(&statistics, "version"), env!("CARGO_PKG_VERSION"));
        let fields = statistics["fields"].as_object().unwrap();
        assert!(fields.len() > 35 && fields["store_failures"] == 0, "{statistics}");
        let checked = daemon.logged("accounting", |line| of_port(line, "checked the accounting"));
        assert_eq!((number(&checked, "names"), number(&checked, "failures")), (names, 0));
    }
    let checked = daemon.logged_message("checked the semaphore sets");
    assert_eq!((number(&checked, "sets"), number(&checked, "failures")), (0, 0));
}

#[test]
fn sigusr1_omits_a_port_that_is_not_enabled() {
    let file = ConfigFile::toml("counter.enable = false\n");
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    daemon.ready();
    daemon.signal(Signal::SIGUSR1);
    daemon.logged_message("checked the accounting");
    let ports: Vec<_> =
        daemon.log().iter().filter_map(|l| l["fields"]["port"].as_str().map(String::from)).collect();
    assert_eq!(ports, ["semaphore", "semaphore"]);
}

#[test]
fn all_waiters_are_answered_when_the_server_stops() {
    use crate::support::caller::{Caller, LONG, one_of};
    use signalbox_model::Status;
    let mut daemon = Daemon::start();
    let mut holder = Caller::new(daemon.counter());
    holder.take(one_of(1, b"a"));
    let mut waiters: Vec<_> = (0..300).map(|_| Caller::new(daemon.counter())).collect();
    let asked: Vec<_> = waiters.iter_mut().map(|waiter| waiter.want(one_of(1, b"a"), LONG)).collect();
    eventually("all wait", || holder.wire.stat("waiters") == 300);
    daemon.signal(Signal::SIGTERM);
    for (waiter, opaque) in waiters.iter_mut().zip(asked) {
        assert_eq!(waiter.answer(opaque).status, Status::ShuttingDown.code());
    }
}
