//! The cost of System V calls through the library: `cargo bench --package signalbox-sysv --bench calls`
//!
//! - **Call to round trip**: `semop` of an unmodified program, and a request that does nothing over a blocking socket, in
//!   turn, to the same server: latency, and CPU of program and server together. The ratio of the medians counts; the
//!   target is 1.25.
//! - **Kill to wake-up**: from the kill of a process that holds a unit with SEM_UNDO until the call that waits for it
//!   returns. The target is a median of 2 ms.
//! - **Post**: the time that the core needs for a post that completes the last of 10,000 waiting calls. The target is 1 ms.
//!
//! The program starts itself again for each part that needs a process of its own: the server, and programs with the
//! library preloaded.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::{Core, Mailbox, Moment, MonotonicMs, NameHasher, SysvCall, SysvOutcome, Token};
use signalbox_model::sysv::{Caller, IPC_CREAT, IPC_EXCL, Operation, SetAnswer};
use signalbox_model::{Milliseconds, RequestId, RequestIds, SessionKey, UnixSeconds};

/// Tells a copy of this program which part it is.
const PART: &str = "SIGNALBOX_BENCH_PART";

const KEY: libc::key_t = 0x5b0c_1000;
const PAIRS: usize = 31;
const CALLS: u32 = 2_000;
const KILLS: usize = 51;
const WAITERS: u64 = 10_000;
const POSTS: usize = 101;

fn main() {
    match std::env::var(PART).as_deref() {
        Ok("server") => serve(),
        Ok("calls") => make_calls(),
        Ok("holder") => hold(),
        Ok("waiter") => wait(),
        _ => measure(),
    }
}

fn measure() {
    let mut server = Part::start("server", None);
    let address = server.line();
    report_calls(&server, &address);
    report_kills(&address);
    report_posts();
}

/// A copy of this program.
struct Part {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Part {
    /// Starts a part; one that makes calls has the library, and the server's address.
    fn start(part: &str, server: Option<&str>) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.env(PART, part).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(server) = server {
            support::preload(&mut command, server);
        }
        let mut child = command.spawn().expect("this program starts");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the part writes");
        assert!(!line.is_empty(), "the part has ended");
        line.trim_end().to_owned()
    }

    fn number(&mut self) -> u64 {
        self.line().parse().expect("a number")
    }

    /// The CPU time that it has used, in clock ticks of the kernel.
    fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let fields = stat.rsplit(") ").next().expect("the fields after the name").split(' ');
        fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.kill();
    }
}

fn report_calls(server: &Part, address: &str) {
    let mut calls = Part::start("calls", Some(address));
    let (mut latency, mut cpu) = ([Vec::new(), Vec::new()], [0, 0]);
    for _ in 0..PAIRS {
        for (kind, name) in ["call", "noop"].into_iter().enumerate() {
            let before = server.cpu_ticks() + calls.cpu_ticks();
            writeln!(calls.input, "{name}").expect("the part reads");
            latency[kind].push(calls.number());
            cpu[kind] += server.cpu_ticks() + calls.cpu_ticks() - before;
        }
    }
    let [call, noop] = latency.map(median);
    let ratio = |one: u64, other: u64| one as f64 / other as f64;
    println!("semop                {:7.1} us", call as f64 / 1e3);
    println!("round trip           {:7.1} us", noop as f64 / 1e3);
    println!("latency ratio        {:7.2}", ratio(call, noop));
    println!("CPU ratio            {:7.2}   ({} and {} ticks)", ratio(cpu[0], cpu[1]), cpu[0], cpu[1]);
}

fn report_kills(address: &str) {
    let mut waiter = Part::start("waiter", Some(address));
    let mut spans = Vec::new();
    for _ in 0..KILLS {
        let mut holder = Part::start("holder", Some(address));
        holder.line();
        writeln!(waiter.input, "wait").expect("the part reads");
        waiter.line();
        // Long enough for the call to wait.
        std::thread::sleep(Duration::from_millis(5));
        let begun = now_ns();
        holder.kill();
        spans.push(waiter.number() - begun);
    }
    println!("kill to wake-up      {:7.2} ms (median of {KILLS})", median(spans) as f64 / 1e6);
}

fn report_posts() {
    for (what, several) in [("one operation", false), ("two operations", true)] {
        let mut spans: Vec<u64> = (0..POSTS).map(|_| post(several)).collect();
        spans.sort_unstable();
        println!(
            "post, {WAITERS} waiting calls of {what:14} {:7.1} us (median), {:7.1} us (longest)",
            spans[POSTS / 2] as f64 / 1e3,
            spans[POSTS - 1] as f64 / 1e3
        );
    }
}

/// The time of a post that completes the last of many calls.
fn post(several: bool) -> u64 {
    let core = Core::new(10.try_into().expect("not zero"), NameHasher::with_seeds(1, 2, 3, 4));
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    let (connection, mailbox) = (core.open_session().id(), Arc::<Mailbox>::default());
    let caller = Caller { uid: 0, gid: 0 };
    let process = (1, caller, &[][..]);
    core.open_process((connection, &mailbox), SessionKey([0; 16]), Milliseconds(1), process, b"", now)
        .expect("no limit");
    let call = |number: u64| SysvCall {
        connection,
        ids: RequestIds { own: RequestId(number), lowest_unanswered: RequestId(number) },
        token: Token(number),
        caller,
    };
    let SysvOutcome::Answered(Ok(SetAnswer::Set(set, _))) =
        core.sem_get(call(1), 1, 2, IPC_CREAT | IPC_EXCL | 0o600, now)
    else {
        panic!("a new set");
    };
    let operation = |number, change| Operation { number, change, flags: 0 };
    for waiter in 0..WAITERS {
        let amount = if waiter + 1 == WAITERS { 1 } else { 2 };
        let operations = [operation(0, -amount), operation(1, 0)];
        let operations = &operations[..if several { 2 } else { 1 }];
        let outcome = core.sem_op(call(2 + waiter), set, operations, None, now).0;
        assert_eq!(outcome, SysvOutcome::Waiting);
    }
    let begun = now_ns();
    core.sem_op(call(2 + WAITERS), set, &[operation(0, 1)], None, now);
    let span = now_ns() - begun;
    assert!(mailbox.take().is_some(), "the last call is done");
    span
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// The part that serves.
fn serve() {
    let server = support::TestServer::start();
    println!("{}", server.address);
    let _ = std::io::stdin().read(&mut [0]);
}

/// The part that makes calls and round trips, as it is told, and answers their median latency.
fn make_calls() {
    let set = semget();
    let mut bare =
        TcpStream::connect(std::env::var("SIGNALBOX_SYSV_SERVER").expect("it is set")).expect("a server");
    bare.set_nodelay(true).expect("a socket option");
    // A request that does nothing, of yrmcds' protocol.
    let noop = [0x90, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for line in std::io::stdin().lines() {
        let is_call = line.expect("the driver writes") == "call";
        let mut spans = Vec::with_capacity(CALLS as usize);
        for call in 0..CALLS {
            let begun = now_ns();
            if is_call {
                semop(set, if call % 2 == 0 { 1 } else { -1 }, 0);
            } else {
                bare.write_all(&noop).expect("the server reads");
                bare.read_exact(&mut [0; 12]).expect("the server answers");
            }
            spans.push(now_ns() - begun);
        }
        println!("{}", median(spans));
    }
}

/// The part that holds a unit until it is killed.
fn hold() {
    let set = semget();
    semop(set, 1, libc::SEM_UNDO);
    println!("holds");
    let _ = std::io::stdin().read(&mut [0]);
}

/// The part that waits until no unit is held, as it is told, and answers when that was.
fn wait() {
    let set = semget();
    for _ in std::io::stdin().lines() {
        println!("waits");
        semop(set, 0, 0);
        println!("{}", now_ns());
    }
}

fn semget() -> libc::c_int {
    // SAFETY: semget has no arguments in memory.
    let set = unsafe { libc::semget(KEY, 1, libc::IPC_CREAT | 0o600) };
    assert!(set >= 0x4000_0000, "the library is loaded");
    set
}

fn semop(set: libc::c_int, change: i16, flags: libc::c_int) {
    let mut operation = libc::sembuf { sem_num: 0, sem_op: change, sem_flg: flags as i16 };
    // SAFETY: the pointer is to one operation, as the number says.
    let result = unsafe { libc::semop(set, &raw mut operation, 1) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The time of the machine's monotonic clock, which all processes share, in nanoseconds.
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
