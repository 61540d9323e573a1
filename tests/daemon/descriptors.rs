//! The daemon without free file descriptors.

use std::time::{Duration, Instant};

use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;

/// More connections than fit the limit below, and fewer than three times as many.
const CONNECTIONS: usize = 50;

/// A daemon with a limit of 40 descriptors, some of which are listeners and similar. Both the soft and the hard limit
/// are set, because the daemon raises the first to the second. `None`, with a line on standard error, if limits cannot be set.
fn short_of_descriptors() -> Option<Daemon> {
    let limit = ["prlimit", "--nofile=40:40"];
    if !works(limit[0], &[limit[1], "true"]) {
        skipped("prlimit (util-linux) is missing");
        return None;
    }
    let file = ConfigFile::toml("workers = 1\nclient_share = 100\n");
    let path = file.path();
    let mut command = serve_within(&limit, ["--config".as_ref(), path.as_os_str()]);
    command.args(ANY_PORTS);
    let mut daemon = Daemon::spawn(command);
    assert_eq!(number(&daemon.ready(), "files_max"), 40);
    Some(daemon)
}

/// Opens more connections than fit and returns them with the number of those that are served, which are the first ones.
fn crowd(daemon: &mut Daemon) -> (Vec<Wire>, usize) {
    let mut wires: Vec<_> = (0..CONNECTIONS).map(|_| daemon.counter()).collect();
    assert_eq!(wires[0].ask(NOOP, &[]).status, OK);
    eventually("accepting fails", || wires[0].stat("failed_accepts") > 1);
    let served = usize::try_from(wires[0].stat("curr_connections")).unwrap();
    assert!((2..40).contains(&served), "{served}");
    (wires, served)
}

#[test]
fn without_free_descriptors_open_connections_are_served_and_others_wait() {
    let Some(mut daemon) = short_of_descriptors() else { return };
    let (mut wires, served) = crowd(&mut daemon);
    for (index, wire) in wires[..served].iter_mut().enumerate() {
        assert_eq!(wire.acquire(format!("{index}").as_bytes(), 1, 1).status, OK);
    }
    let warning = daemon.logged_message("connections cannot be accepted and wait");
    assert_eq!((&warning["level"], text(&warning, "port")), (&"warning".into(), "counter"));

    // Some disconnect, holders among them; the same number of waiting connections is accepted, in order of arrival.
    drop(wires.drain(1..served));
    let served = served.min(wires.len());
    for (index, wire) in wires[..served].iter_mut().enumerate() {
        assert_eq!(wire.acquire(format!("again-{index}").as_bytes(), 1, 1).status, OK);
    }
    drop(wires.drain(1..served));
    for wire in &mut wires {
        assert_eq!(wire.ask(NOOP, &[]).status, OK, "in the end every connection is served");
    }
    let names = wires[0].dump();
    assert!(
        names
            .iter()
            .all(|(consumption, _, name)| (*consumption == 1) == (name == b"0" || name == b"again-0"))
    );
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_status().code(), Some(0));
}

#[test]
fn without_free_descriptors_accepting_is_retried_with_a_pause() {
    let Some(mut daemon) = short_of_descriptors() else { return };
    let (mut wires, _) = crowd(&mut daemon);
    let (begun, failures) = (Instant::now(), wires[0].stat("failed_accepts"));
    eventually("accepting fails five times more", || wires[0].stat("failed_accepts") >= failures + 5);
    // Four whole pauses, each twice as long as the previous one; the first follows the third failure or a later one.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(40 + 80 + 160 + 320), "{took:?}");
    assert_eq!(daemon.lines_with("connections cannot be accepted").len(), 1, "logged once");
}

#[test]
fn without_free_descriptors_the_daemon_still_stops_and_reports() {
    let Some(mut daemon) = short_of_descriptors() else { return };
    let (wires, _) = crowd(&mut daemon);
    daemon.signal(Signal::SIGUSR1);
    daemon.logged_message("checked the accounting");
    daemon.signal(Signal::SIGHUP);
    daemon.logged_message("the configuration");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_status().code(), Some(0));
    drop(wires);
}
