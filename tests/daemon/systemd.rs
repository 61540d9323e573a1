//! The sockets that systemd passes to the daemon, and the notifications to systemd.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;

const ACTIVATE: &str = "systemd-socket-activate";

/// `serve` on these ports, started by a tool of systemd with listeners on these addresses; the tool waits for the first
/// connection and then executes the daemon. `None`, with a line on standard error, if the tool is missing.
fn activated(listeners: &[SocketAddr], counter_port: u16, semaphore_port: u16) -> Option<Daemon> {
    if !works(ACTIVATE, &["--version"]) {
        skipped(&format!("{ACTIVATE} is missing; install the package systemd"));
        return None;
    }
    let mut command = Command::new(ACTIVATE);
    for address in listeners {
        command.args(["--listen", &address.to_string()]);
    }
    command.args([SIGNALBOX, "serve", "--log-format", "json"]);
    command.args([
        "--counter-port",
        &counter_port.to_string(),
        "--semaphore-port",
        &semaphore_port.to_string(),
    ]);
    let mut daemon = Daemon::spawn(command);
    for address in listeners {
        daemon.wait_for("the tool to listen", |daemon| {
            daemon.said().contains(&address.to_string()).then_some(())
        });
    }
    Some(daemon)
}

/// A loopback address that the daemon itself does not bind.
fn elsewhere(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 2], port))
}

#[test]
fn sockets_passed_by_systemd_are_served_by_their_ports() {
    let [counter, semaphore] = free_ports();
    let handed = [elsewhere(semaphore), elsewhere(counter)];
    let Some(mut daemon) = activated(&handed, counter, semaphore) else { return };
    // This connection waits in the backlog until the daemon runs.
    let mut first = Wire::connect(elsewhere(counter));
    assert_eq!(first.acquire(b"name", 1, 1).status, OK);
    assert_eq!(daemon.address("counter"), elsewhere(counter));
    assert_eq!(daemon.address("semaphore"), elsewhere(semaphore));
    let mut semaphores = Wire::connect(elsewhere(semaphore));
    assert_eq!(semaphores.get(b"name").status, NOT_FOUND, "that name is a counter");
    assert_eq!(daemon.lines_with("handed over"), [] as [serde_json::Value; 0]);
}

#[test]
fn a_port_without_a_passed_socket_is_bound() {
    let [counter, semaphore] = free_ports();
    let Some(mut daemon) = activated(&[elsewhere(counter)], counter, semaphore) else { return };
    let mut first = Wire::connect(elsewhere(counter));
    assert_eq!(first.ask(NOOP, &[]).status, OK);
    assert_eq!(daemon.address("semaphore"), SocketAddr::from(([127, 0, 0, 1], semaphore)));
    assert_eq!(daemon.semaphore().ask(NOOP, &[]).status, OK);
}

#[test]
fn a_passed_socket_without_a_port_is_closed_with_a_warning() {
    let [counter, semaphore, other] = free_ports();
    let Some(mut daemon) = activated(&[elsewhere(counter), elsewhere(other)], counter, semaphore) else {
        return;
    };
    let mut first = Wire::connect(elsewhere(counter));
    assert_eq!(first.ask(NOOP, &[]).status, OK);
    let warning = daemon.logged_message("handed over");
    assert_eq!(
        (&warning["level"], text(&warning, "address")),
        (&"warning".into(), &*elsewhere(other).to_string())
    );
    eventually("it is closed", || TcpStream::connect(elsewhere(other)).is_err());
}

#[test]
fn systemd_is_notified_when_the_ports_are_bound_and_when_the_daemon_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };

    let [counter, semaphore] = free_ports();
    let mut command = serve::<&str>([]);
    command.args(["--counter-port", &counter.to_string(), "--semaphore-port", &semaphore.to_string()]);
    command.env("NOTIFY_SOCKET", &path);
    let mut daemon = Daemon::spawn(command);
    let ready = next();
    assert!(ready.lines().any(|line| line == "READY=1"), "{ready}");
    for port in [counter, semaphore] {
        assert_eq!(Wire::connect(([127, 0, 0, 1], port).into()).ask(NOOP, &[]).status, OK);
    }
    daemon.signal(Signal::SIGTERM);
    let stopping = next();
    assert!(stopping.lines().any(|line| line == "STOPPING=1"), "{stopping}");
    assert_eq!(daemon.exit_status().code(), Some(0));
}

#[test]
fn a_daemon_that_cannot_start_reports_no_readiness() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = serve::<&str>([]);
    command.args([
        "--counter-port",
        "0",
        "--semaphore-port",
        &taken.local_addr().unwrap().port().to_string(),
    ]);
    command.env("NOTIFY_SOCKET", &path);
    assert_eq!(outcome(command).status.code(), Some(71));
    assert!(socket.recv(&mut [0; 64]).is_err(), "no notification was sent");
}
