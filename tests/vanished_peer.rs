//! Peers that vanish without closing their connections: the server releases what they held.
//!
//! A peer vanishes when the cable between two network namespaces is cut. The test creates the namespaces and removes
//! them afterwards, which needs root; without root, the tests print that they are skipped.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use support::daemon::*;
use support::namespaces::within;
use support::*;

#[path = "support/mod.rs"]
mod support;

const SERVER_IP: &str = "10.99.71.1";
const CLIENT_IP: &str = "10.99.71.2";

/// `peer_timeout` in the tests, the minimum of the configuration.
const PEER_TIMEOUT_S: u32 = 5;

/// The longest time until a vanished peer must be noticed.
const GONE_BOUND: Duration = Duration::from_secs(60);

/// Two namespaces, one for a server and one for a client, and a cable between them.
struct Cable {
    server: String,
    client: String,
}

impl Cable {
    /// `None`, with a line on standard error, if this is not permitted.
    fn lay() -> Option<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = |end| format!("signalbox-test-{}-{serial}-{end}", std::process::id());
        let cable = Self { server: name("server"), client: name("client") };
        let (server, client) = (cable.server.as_str(), cable.client.as_str());
        let (server_net, client_net) = (format!("{SERVER_IP}/24"), format!("{CLIENT_IP}/24"));
        let is_laid = [
            &["netns", "add", server][..],
            &["netns", "add", client],
            &["link", "add", "v0", "netns", server, "type", "veth", "peer", "name", "v0", "netns", client],
            &["-n", server, "addr", "add", &server_net, "dev", "v0"],
            &["-n", client, "addr", "add", &client_net, "dev", "v0"],
            &["-n", server, "link", "set", "lo", "up"],
            &["-n", server, "link", "set", "v0", "up"],
            &["-n", client, "link", "set", "v0", "up"],
        ]
        .iter()
        .all(|arguments| works("ip", arguments));
        if !is_laid {
            skipped("network namespaces cannot be created here; that needs root and iproute2");
            return None;
        }
        Some(cable)
    }

    /// From now on no packet reaches the other end, and neither end is notified.
    fn cut(&self) {
        assert!(works("ip", &["-n", &self.client, "link", "set", "v0", "down"]));
    }

    /// Starts the daemon at the server's end.
    fn serve(&self) -> (Daemon, SocketAddr) {
        let file = ConfigFile::toml(&format!(
            "bind_ip = '{SERVER_IP}'\npeer_timeout = {PEER_TIMEOUT_S}\nlog.threshold = 'debug'\n"
        ));
        let path = file.path();
        let wrapper = ["ip", "netns", "exec", &self.server];
        let mut command = serve_within(&wrapper, ["--config".as_ref(), path.as_os_str()]);
        command.args(ANY_PORTS);
        let mut daemon = Daemon::spawn(command);
        let address = daemon.address("counter");
        (daemon, address)
    }

    /// A connection from the namespace of the server, which does not use the cable.
    fn connect_beside(&self, address: SocketAddr) -> Wire {
        within(&self.server, || Wire::connect(address))
    }

    /// A connection over the cable.
    fn connect_across(&self, address: SocketAddr) -> Wire {
        within(&self.client, || Wire::connect(address))
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            works("ip", &["netns", "del", namespace]);
        }
    }
}

/// Waits until a name can be acquired, with a bound.
#[track_caller]
fn free_in_time(other: &mut Wire, name: &[u8]) {
    let started = Instant::now();
    while other.acquire(name, 1, 1).status != OK {
        assert!(started.elapsed() < GONE_BOUND, "a vanished peer still holds the name");
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!(
        "free {:?} after the cable was cut, with a peer_timeout of {PEER_TIMEOUT_S} s",
        started.elapsed()
    );
}

/// `signalbox run` with a command that ends at the end of its input.
struct Run(Child);

impl Run {
    fn start(cable: &Cable, address: SocketAddr, name: &str) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &cable.client, SIGNALBOX, "run", name, "--max", "1"]);
        command.args(["--timeout", "1", "--server", &address.to_string(), "--", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_holding_of_a_vanished_run_is_released() {
    let Some(cable) = Cable::lay() else { return };
    let (_daemon, address) = cable.serve();
    let mut other = cable.connect_beside(address);
    let _run = Run::start(&cable, address, "job");
    eventually("the name is held", || other.get(b"job").status == OK);
    assert_eq!(other.acquire(b"job", 1, 1).status, NOT_AVAILABLE);
    cable.cut();
    free_in_time(&mut other, b"job");
    eventually("its connection is gone", || other.stat("curr_connections") == 1);
}

#[test]
fn the_holding_of_a_vanished_reader_of_a_dump_is_released() {
    let Some(cable) = Cable::lay() else { return };
    let (_daemon, address) = cable.serve();
    let mut other = cable.connect_beside(address);
    fill(&mut other);
    let mut reader = cable.connect_across(address);
    assert_eq!(reader.acquire(b"held", 1, 1).status, OK);
    reader.send(&frame(DUMP, *b"dump", &[]));
    reader.answer();
    assert_eq!(other.acquire(b"held", 1, 1).status, NOT_AVAILABLE);
    cable.cut();
    free_in_time(&mut other, b"held");
}

#[test]
fn the_holding_of_a_peer_that_vanished_before_it_read_its_answer_is_released() {
    let Some(cable) = Cable::lay() else { return };
    let (_daemon, address) = cable.serve();
    let mut other = cable.connect_beside(address);
    let mut peer = cable.connect_across(address);
    assert_eq!(peer.acquire(b"held", 1, 1).status, OK);
    cable.cut();
    // The answer cannot be delivered.
    peer.stream.write_all(&frame(NOOP, *b"void", &[])).unwrap();
    free_in_time(&mut other, b"held");
}

/// Acquires names whose Dump is larger than the socket buffers.
fn fill(wire: &mut Wire) {
    for chunk in (0..20_000u32).collect::<Vec<_>>().chunks(1000) {
        let burst = chunk
            .iter()
            .flat_map(|i| frame(ACQUIRE, i.to_be_bytes(), &named(&[1, 1], format!("{i:0>1000}").as_bytes())));
        wire.send(&burst.collect::<Vec<u8>>());
        for _ in chunk {
            assert_eq!(wire.answer().status, OK);
        }
    }
}

/// An idle peer stays: its kernel answers for it.
#[test]
fn a_live_peer_that_takes_no_output_until_the_timeout_is_disconnected() {
    let file = ConfigFile::toml(&format!("peer_timeout = {PEER_TIMEOUT_S}\n"));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let mut other = daemon.counter();
    fill(&mut other);
    let mut idle = daemon.counter();
    assert_eq!(idle.acquire(b"idle", 1, 1).status, OK);
    let mut reader = daemon.counter();
    assert_eq!(reader.acquire(b"held", 1, 1).status, OK);
    reader.send(&frame(DUMP, *b"dump", &[]));
    free_in_time(&mut other, b"held");
    assert_eq!(other.acquire(b"idle", 1, 1).status, NOT_AVAILABLE);
    assert_eq!(idle.release(b"idle", 1).status, OK);
}
