//! What systemd hands to the daemon and is told by it.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;

const ACTIVATE: &str = "systemd-socket-activate";

/// `serve` on these ports, started by systemd's tool with listeners on these addresses; the tool waits for the first
/// connection and becomes the daemon then. `None`, and a line that says so, where the tool is absent.
fn activated(listeners: &[SocketAddr], counter_port: u16, semaphore_port: u16) -> Option<Daemon> {
    if !works(ACTIVATE, &["--version"]) {
        skipped(&format!("{ACTIVATE} is not there; install the package systemd"));
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

/// An address of loopback that is not the one which the daemon itself would bind.
fn elsewhere(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 2], port))
}

#[test]
fn sockets_that_are_handed_over_are_served_by_their_ports() {
    let [counter, semaphore] = free_ports();
    let handed = [elsewhere(semaphore), elsewhere(counter)];
    let Some(mut daemon) = activated(&handed, counter, semaphore) else { return };
    // This connection waits in the backlog until the daemon is there.
    let mut first = Wire::connect(elsewhere(counter));
    assert_eq!(first.acquire(b"name", 1, 1).status, OK);
    assert_eq!(daemon.address("counter"), elsewhere(counter));
    assert_eq!(daemon.address("semaphore"), elsewhere(semaphore));
    let mut semaphores = Wire::connect(elsewhere(semaphore));
    assert_eq!(semaphores.get(b"name").status, NOT_FOUND, "that name is a counter");
    assert_eq!(daemon.lines_with("handed over"), [] as [serde_json::Value; 0]);
}

#[test]
fn a_port_without_a_handed_socket_is_bound() {
    let [counter, semaphore] = free_ports();
    let Some(mut daemon) = activated(&[elsewhere(counter)], counter, semaphore) else { return };
    let mut first = Wire::connect(elsewhere(counter));
    assert_eq!(first.ask(NOOP, &[]).status, OK);
    assert_eq!(daemon.address("semaphore"), SocketAddr::from(([127, 0, 0, 1], semaphore)));
    assert_eq!(daemon.semaphore().ask(NOOP, &[]).status, OK);
}

#[test]
fn a_handed_socket_of_no_port_is_closed_with_a_warning() {
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
fn readiness_is_told_once_the_ports_are_bound_and_the_end_when_it_begins() {
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
fn a_daemon_that_cannot_start_tells_no_readiness() {
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
    assert!(socket.recv(&mut [0; 64]).is_err(), "nothing was told");
}
