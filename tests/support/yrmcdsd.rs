//! A real yrmcdsd, for tests that compare with it.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::ports::free_ports;
use super::{NOOP, frame, skipped};

const PROGRAM: &str = "/usr/sbin/yrmcdsd";

/// A running yrmcdsd, ended when it is dropped.
pub struct Yrmcdsd {
    process: Child,
    pub counters: SocketAddr,
    /// Connections made while it started. Kept, because yrmcdsd may overlook one that gets the descriptor of one that
    /// was just closed.
    pub kept: Vec<TcpStream>,
    _folder: tempfile::TempDir,
}

impl Yrmcdsd {
    /// Starts the program of Debian's package yrmcds; `None`, with a line that says so, where it is not installed.
    /// With `SIGNALBOX_REQUIRE_PEERS` set, as in CI, that is a failure.
    pub fn start() -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            assert!(
                std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_none(),
                "{PROGRAM} is missing: apt-get install yrmcds"
            );
            skipped(&format!("{PROGRAM} is not installed (apt-get install yrmcds)"));
            return None;
        }
        // The ports may be taken by somebody else between being found and being bound; then others are tried.
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
        // Its virtual address is bound beside bind_ip, so that the two must differ.
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

/// Whether a Noop is answered soon. One that came while the workers started may never be.
fn is_answered(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.write_all(&frame(NOOP, [0; 4], &[])).unwrap();
    stream.read_exact(&mut [0; 12]).is_ok()
}
