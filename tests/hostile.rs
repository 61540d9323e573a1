//! Hostile clients, and faulty ones that behave like them, against the daemon process.
//!
//! Every test is a [`Siege`]: the daemon survives, its peak memory stays within the bound of the test, an honest client
//! is answered all the time, everything that was held is released, and the accounting is consistent. Vanished peers are
//! in `tests/vanished_peer.rs`, exhausted descriptors in `tests/daemon/descriptors.rs`.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use support::daemon::*;
use support::*;

const KIB_PER_MIB: u64 = 1024;

/// Only one siege runs at a time, so that the others do not use its descriptors and memory or delay it.
static TURN: Mutex<()> = Mutex::new(());

/// A daemon under attack and an honest client.
struct Siege {
    daemon: Daemon,
    counters: SocketAddr,
    semaphores: SocketAddr,
    honest: Honest,
    /// The memory of the daemon before the attack.
    resident_kib: u64,
    _file: ConfigFile,
    _turn: MutexGuard<'static, ()>,
}

impl Siege {
    /// The attackers and the honest client are one client by their address, so the share of a client is everything;
    /// `daemon::shares` tests shares.
    fn begin() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, files_max) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, files_max, files_max).unwrap();
        let file = ConfigFile::toml(
            "bind_ip = '127.0.0.1'\nworkers = 2\nframe_timeout = 2\nclient_share = 100\n\
             semaphore.gc_interval = 1\n",
        );
        let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
        let (counters, semaphores) = (daemon.address("counter"), daemon.address("semaphore"));
        let honest = Honest::start(counters);
        honest.is_answered(100);
        let resident_kib = daemon.memory_kib("VmRSS");
        Self { daemon, counters, semaphores, honest, resident_kib, _file: file, _turn: turn }
    }

    fn counter(&self) -> Wire {
        Wire::connect(self.counters)
    }

    /// Connections that each hold a resource of their own name, and one of a name that all of them share.
    fn holders(&self, count: usize) -> Vec<Wire> {
        (0..count)
            .map(|number| {
                let mut wire = self.counter();
                assert_eq!(wire.acquire(b"everybody's", 1, u32::MAX).status, OK);
                assert_eq!(wire.acquire(format!("holder {number}").as_bytes(), 1, 1).status, OK);
                wire
            })
            .collect()
    }

    /// Checks the daemon after the hostile clients are gone. `growth_max_mib` is the limit for the growth of its memory
    /// during the siege.
    #[track_caller]
    fn end(mut self, growth_max_mib: u64) {
        assert!(self.daemon.is_running(), "{}", self.daemon.said());
        self.honest.is_answered(20);
        let answers = self.honest.end();
        for address in [self.counters, self.semaphores] {
            eventually("everything that was held is released", || {
                let entries = Wire::connect(address).dump();
                entries.iter().all(|(consumption, _, _)| *consumption == 0)
            });
            eventually("only the connection of this check is left", || {
                Wire::connect(address).stat("curr_connections") == 1
            });
        }
        assert_eq!(self.counter().stat("panics"), 0);
        self.daemon.signal(Signal::SIGUSR1);
        self.daemon.wait_for("the accounting of both ports was checked", |daemon| {
            let checks = daemon.lines_with("checked the accounting");
            (checks.len() == 2).then(|| {
                for check in checks {
                    assert_eq!(number(&check, "failures"), 0, "{check}");
                }
            })
        });
        let growth_kib = self.daemon.memory_kib("VmHWM").saturating_sub(self.resident_kib);
        println!(
            "memory grew by {growth_kib} KiB at most; the honest client got {answers} answers during the siege"
        );
        assert!(growth_kib <= growth_max_mib * KIB_PER_MIB, "memory grew by {growth_kib} KiB");
        self.daemon.signal(Signal::SIGTERM);
        assert_eq!(self.daemon.exit_status().code(), Some(0));
    }
}

/// A client that acquires and releases continuously, and checks that each answer is correct and in time.
struct Honest {
    answers: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Honest {
    fn start(address: SocketAddr) -> Self {
        let (answers, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (answers, is_over) = (Arc::clone(&answers), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut wire = Wire::connect(address);
                let name = b"the honest one's";
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(wire.acquire(name, 3, 3).status, OK);
                    assert_eq!(wire.get(name).number(), 3);
                    assert_eq!(wire.release(name, 3).status, OK);
                    answers.fetch_add(3, Ordering::Relaxed);
                }
            })
        };
        Self { answers, is_over, thread: Some(thread) }
    }

    /// Waits until `more` further answers have arrived.
    #[track_caller]
    fn is_answered(&self, more: u64) {
        let before = self.answers.load(Ordering::Relaxed);
        let thread = self.thread.as_ref().expect("it ends once");
        eventually("the honest client is answered", || {
            assert!(!thread.is_finished(), "the honest client got no correct answer in time");
            self.answers.load(Ordering::Relaxed) >= before + more
        });
    }

    /// Stops it and returns the number of its answers, all of which were correct and in time.
    #[track_caller]
    fn end(&mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it ends once");
        thread.join().expect("the honest client was answered all the time");
        self.answers.load(Ordering::Relaxed)
    }
}

/// The number of connections that fit in this process and in the daemon at once, at most `wanted`.
fn as_many_as_fit(wanted: usize) -> usize {
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let fitting = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(200);
    if fitting < wanted {
        skipped(&format!(
            "for {} of {wanted} connections, there are not enough descriptors",
            wanted - fitting
        ));
    }
    wanted.min(fitting)
}

/// Pseudorandom bytes, the same in every run (xorshift).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Closes a connection with a reset, and discards unsent and unread bytes.
fn reset(wire: Wire) {
    socket2::Socket::from(wire.stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Reads until the server has closed the connection, for any reason; panics if it does not.
#[track_caller]
fn read_to_end(stream: &mut TcpStream) {
    let mut discarded = [0; 4096];
    loop {
        match stream.read(&mut discarded) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("it was not closed: {error}"),
        }
    }
}

/// Writes without reading until the server reads no more, or `bytes_max` are written. Returns the number of bytes.
fn write_unread(wire: &mut Wire, burst: &[u8], bytes_max: usize) -> usize {
    wire.stream.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut written = 0;
    while written < bytes_max {
        // A partially written burst continues at the byte where it stopped.
        match wire.stream.write(&burst[written % burst.len()..]) {
            Ok(bytes) => written += bytes,
            Err(_) => break,
        }
    }
    written
}

#[test]
fn garbage_closes_only_its_own_connection() {
    let siege = Siege::begin();
    let mut noise = Noise(0x5168_ab0c);
    for number in 0..40 {
        let mut wires = siege.holders(10);
        for wire in &mut wires {
            let mut bytes = noise.bytes(20_000);
            // Half of them look like frames at first.
            if number % 2 == 0 {
                bytes[..8].copy_from_slice(&[0x90, noise.next() as u8, 0, 0, 0, 0, 0, noise.next() as u8]);
            }
            // The server may close the connection before everything is written.
            let _ = wire.stream.write_all(&bytes);
            let _ = wire.stream.shutdown(Shutdown::Write);
        }
        for wire in &mut wires {
            read_to_end(&mut wire.stream);
        }
    }
    siege.end(16);
}

#[test]
fn an_announced_body_of_2_gib_takes_no_memory() {
    let siege = Siege::begin();
    let mut wires = siege.holders(as_many_as_fit(500));
    for wire in &mut wires {
        wire.send(&[0x90, ACQUIRE, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        let _ = wire.stream.write_all(&[7; 64 * 1024]);
        let _ = wire.stream.shutdown(Shutdown::Write);
    }
    for wire in &mut wires {
        read_to_end(&mut wire.stream);
    }
    siege.end(16);
}

#[test]
fn connections_that_the_server_ends_need_no_memory_while_they_linger() {
    let siege = Siege::begin();
    let mut wires: Vec<_> = (0..as_many_as_fit(2_000)).map(|_| siege.counter()).collect();
    for wire in &mut wires {
        // No request: the server ends the connection, and reads on for a second.
        wire.send(&[0; 12]);
    }
    siege.honest.is_answered(1000);
    eventually("all are closed", || siege.counter().stat("bad_input") == wires.len() as u64);
    // Without buffers: 2,000 of 16 KiB would not fit.
    siege.end(13);
}

#[test]
fn frames_that_trickle_in_close_their_connections() {
    let siege = Siege::begin();
    let mut wires = siege.holders(as_many_as_fit(300));
    let mut open = wires.len();
    // One byte a second takes a minute, and a frame may take two seconds.
    let mut trickle = frame(NOOP, *b"slow", &[7; 48]).into_iter();
    let mut is_open = vec![true; open];
    while open > 0 {
        let byte = trickle.next().expect("the connections are closed before the frame is complete");
        for (wire, is_open) in wires.iter_mut().zip(&mut is_open) {
            if *is_open && wire.stream.write_all(&[byte]).is_err() {
                *is_open = false;
                open -= 1;
            }
        }
        // This is the pace of the clients, not synchronization.
        std::thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(siege.counter().stat("frame_timeouts"), wires.len() as u64);
    siege.end(16);
}

#[test]
fn unread_dumps_wait_in_little_memory() {
    let siege = Siege::begin();
    let mut filler = siege.counter();
    for number in 0..10_000 {
        assert_eq!(filler.acquire(format!("{number:0>200}").as_bytes(), 1, 1).status, OK);
    }
    let mut wires = siege.holders(as_many_as_fit(300));
    let burst: Vec<u8> = (0..100u32).flat_map(|serial| frame(DUMP, serial.to_be_bytes(), &[])).collect();
    for wire in &mut wires {
        // 100 Dumps of 2 MB each.
        wire.send(&burst);
    }
    siege.honest.is_answered(1000);
    drop(wires);
    drop(filler);
    // Each connection takes 64 KiB of output and a piece of 16 KiB; the names are added to that.
    siege.end(32);
}

#[test]
fn pipelined_requests_of_clients_that_read_nothing_are_left_unread() {
    let siege = Siege::begin();
    let mut wires = siege.holders(50);
    // Twelve bytes that request about 600.
    let burst: Vec<u8> = (0..1_000u32).flat_map(|serial| frame(STATS, serial.to_be_bytes(), &[])).collect();
    let bytes_max = 64 << 20;
    for wire in &mut wires {
        let written = write_unread(wire, &burst, bytes_max);
        assert!(written < bytes_max, "the server read all of {written} bytes of requests");
    }
    siege.honest.is_answered(1000);
    for wire in wires {
        reset(wire);
    }
    // Each connection takes 64 KiB of output, the answers to one read of 16 KiB, and the bytes of that read.
    siege.end(16);
}

#[test]
fn a_flood_of_connections_leaves_nothing_behind() {
    let siege = Siege::begin();
    let attackers: Vec<_> = (0..4)
        .map(|_| {
            let address = siege.counters;
            std::thread::spawn(move || {
                for round in 0..1_500 {
                    let mut wire = Wire::connect(address);
                    if round % 3 > 0 {
                        wire.send(&frame(ACQUIRE, *b"unrd", &named(&[1, u32::MAX], b"flooded")));
                    }
                    // A reset, because otherwise every closed connection would occupy a local port for a minute.
                    reset(wire);
                }
            })
        })
        .collect();
    for attacker in attackers {
        attacker.join().unwrap();
    }
    siege.end(16);
}

#[test]
fn names_of_maximum_length_are_released_with_their_memory() {
    let siege = Siege::begin();
    let (names, name_bytes) = (3_000u32, 65_535);
    let mut greedy = Wire::connect(siege.semaphores);
    let mut name = vec![b'n'; name_bytes];
    for number in 0..names {
        name[..4].copy_from_slice(&number.to_be_bytes());
        assert_eq!(greedy.acquire(&name, 1, 1).status, OK);
    }
    let mut other = Wire::connect(siege.semaphores);
    let bytes_of_names = u64::from(names) * name_bytes as u64;
    let full = other.stat("used_memory");
    assert!(full > bytes_of_names, "{full}");
    reset(greedy);
    eventually("the names are collected", || other.stat("objects") == 0);
    let empty = other.stat("used_memory");
    assert!(empty < full - bytes_of_names, "{empty}");
    drop(other);
    // 190 MiB of names, and for a short time at most twice that.
    siege.end(380);
}

#[test]
fn resources_of_clients_that_reset_their_connections_are_released_each_time() {
    let siege = Siege::begin();
    for round in 0..1_000 {
        let mut wire = siege.counter();
        if round % 2 == 0 {
            // All resources, so the previous client has lost them.
            let patient = |wire: &mut Wire| wire.acquire(b"all of it", 7, 7).status == OK;
            eventually("the resources are free again", || patient(&mut wire));
        } else {
            // The answer cannot be delivered.
            wire.send(&frame(ACQUIRE, *b"gone", &named(&[7, 7], b"all of it")));
        }
        reset(wire);
    }
    siege.end(16);
}

#[test]
fn thousands_of_incomplete_frames_take_only_the_memory_of_what_was_sent() {
    let siege = Siege::begin();
    let mut wires = siege.holders(as_many_as_fit(3_000));
    // A body of maximum length, of which a small part is sent now and another one later.
    let partial = frame(NOOP, *b"part", &vec![7; 128 * 1024]);
    for piece in [&partial[..5], &partial[5..500], &partial[500..1_000]] {
        for wire in &mut wires {
            // Connections whose time limit has passed may be closed already.
            let _ = wire.stream.write_all(piece);
        }
        siege.honest.is_answered(50);
    }
    for wire in &mut wires {
        read_to_end(&mut wire.stream);
    }
    assert_eq!(siege.counter().stat("frame_timeouts"), wires.len() as u64);
    drop(wires);
    // 32 KiB for each, of which an idle connection takes up to 12.
    siege.end(96);
}
