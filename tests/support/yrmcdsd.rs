//! A real yrmcdsd, for tests that compare signalbox with it.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::ports::free_ports;
use super::{NOOP, frame, skipped};

const PROGRAM: &str = "/usr/sbin/yrmcdsd";

/// A running yrmcdsd, which is killed when it is dropped.
pub struct Yrmcdsd {
    process: Child,
    pub counters: SocketAddr,
    /// Connections opened while it started. They stay open, because yrmcdsd may overlook a connection that reuses the
    /// descriptor of one that was just closed.
    pub kept: Vec<TcpStream>,
    _folder: tempfile::TempDir,
}

impl Yrmcdsd {
    /// Starts the program of Debian's package yrmcds; `None`, with a line on standard error, if it is not installed. If
    /// `SIGNALBOX_REQUIRE_PEERS` is set, as in CI, that is a failure.
    pub fn start() -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            assert!(
                std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_none(),
                "{PROGRAM} is missing: apt-get install yrmcds"
            );
            skipped(&format!("{PROGRAM} is not installed (apt-get install yrmcds)"));
            return None;
        }
        // Another process may bind the ports before yrmcdsd does; then other ports are tried.
        for _ in 0..10 {
            if let Some(started) = Self::try_start() {
                return Some(started);
            }
        }
        panic!("yrmcdsd did not start ten times");
    }

    fn try_start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let [port, repl_port, counter_port] = free_ports();
        let config = folder.path().join("yrmcds.conf");
        // yrmcdsd binds its virtual address in addition to bind_ip, so the two must differ.
        std::fs::write(
            &config,
            format!(
                "bind_ip = 127.0.0.2\nvirtual_ip = 127.0.0.1\nport = {port}\nrepl_port = {repl_port}\n\
                 temp_dir = {}\ncounter.enable = true\ncounter.port = {counter_port}\n\
                 counter.stat_interval = 2000000000\n",
                folder.path().display()
            ),
        )
        .unwrap();
        let mut process = Command::new(PROGRAM)
            .arg("-f")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let counters = SocketAddr::from(([127, 0, 0, 1], counter_port));
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut kept = Vec::new();
        while !kept.last().is_some_and(is_answered) {
            if process.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "yrmcdsd does not answer on {counters}");
            match TcpStream::connect(counters) {
                Ok(stream) => kept.push(stream),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Some(Self { process, counters, kept, _folder: folder })
    }
}

impl Drop for Yrmcdsd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether a Noop is answered soon. A Noop that arrives while the workers start may never be answered.
fn is_answered(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.write_all(&frame(NOOP, [0; 4], &[])).unwrap();
    stream.read_exact(&mut [0; 12]).is_ok()
}
