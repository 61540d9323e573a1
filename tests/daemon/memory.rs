//! The memory budget: clients that fill it, and what still works then. One client may have all of it here;
//! `shares.rs` has the shares.

use std::io::Write;

use crate::support::caller::{Caller, LONG, one_of};
use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;
use signalbox_model::Status;
use signalbox_protocol::{Claims, Extended};

const MIB: u64 = 1 << 20;

/// The budget of each test.
const BUDGET: u64 = 48 * MIB;

/// What the process may need beyond that and its program: stacks, fragments, and requests in progress.
const BEYOND: u64 = 24 * MIB;

const OUT_OF_MEMORY: u8 = Status::OutOfMemory as u8;
const LIMIT_REACHED: u8 = Status::LimitReached as u8;

fn server() -> (Daemon, ConfigFile) {
    let file = ConfigFile::toml("memory_max = '48M'\nframe_timeout = 3600\nclient_share = 100\n");
    (Daemon::spawn(serve_file_on_any_ports(&file.path())), file)
}

/// A name of this length that differs from those of other numbers.
fn name(number: u32, bytes: usize) -> Vec<u8> {
    let mut name = vec![b'n'; bytes];
    name[..4].copy_from_slice(&number.to_be_bytes());
    name
}

/// Checks that the process stayed within its budget, that it accepts requests again, and that it stops as usual.
#[track_caller]
fn end(mut daemon: Daemon) {
    let mut wire = daemon.counter();
    eventually("a request that needs memory is accepted again", || wire.acquire(b"again", 1, 1).status == OK);
    assert_eq!(wire.stat("memory_max"), BUDGET);
    assert!(wire.stat("refused_memory") > 0);
    daemon.logged_message("memory_max is reached");
    daemon.logged_message("there is memory again");
    // Without the program, whose size depends on how it was built.
    let peak = (daemon.memory_kib("VmHWM") - daemon.memory_kib("RssFile")) * 1024;
    assert!(peak < BUDGET + BEYOND, "{} MiB", peak / MIB);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_status().code(), Some(0));
}

#[test]
fn waiting_requests_with_long_names_fill_the_budget_and_no_more() {
    let (mut daemon, _file) = server();
    let mut honest = daemon.counter();
    assert_eq!(honest.acquire(b"held", 1, 1).status, OK);
    let mut attackers = Vec::new();
    loop {
        let mut attacker = Caller::new(daemon.counter());
        attacker.hello("attacker");
        for _ in 0..100 {
            let names: Vec<_> = (1..64).map(|number| name(number, 1900)).collect();
            let claims: Vec<_> =
                [one_of(1, b"held")].into_iter().chain(names.iter().map(|name| one_of(1, name))).collect();
            let ids = attacker.ids();
            let claims = Claims::new(&claims).unwrap();
            attacker.send(&Extended::AcquireAll { ids, queueing: LONG, claims, place: None });
        }
        // It is answered after what the core has refused.
        attacker.wire.send(&frame(NOOP, *b"last", &[]));
        let answer = attacker.next();
        attackers.push(attacker);
        if answer.status == LIMIT_REACHED {
            assert_eq!(&answer.body[..], format!("Limit reached: memory_max={BUDGET}").as_bytes());
            // A short request may fit although a long one does not.
            if honest.acquire(format!("another {}", attackers.len()).as_bytes(), 1, 1).status == OUT_OF_MEMORY
            {
                break;
            }
        }
        assert!(attackers.len() < 200, "the budget is never full");
    }
    assert_eq!(honest.get(b"held").number(), 1);
    assert!(honest.stat("used_memory") > BUDGET - MIB);
    // The waiting requests could continue now, and nothing that they need makes the server grow.
    assert_eq!(honest.release(b"held", 1).status, OK);
    drop(attackers);
    end(daemon);
}

#[test]
fn long_names_fill_the_budget_and_are_swept_at_once() {
    let (mut daemon, _file) = server();
    let mut greedy = daemon.counter();
    let names = (0..).take_while(|number| {
        let answer = greedy.acquire(&name(*number, 60_000), 1, 1);
        assert!(matches!(answer.status, OK | OUT_OF_MEMORY), "{answer:?}");
        answer.status == OK
    });
    let names = names.count() as u64;
    assert!((BUDGET / 2 / 60_000..BUDGET / 60_000).contains(&names), "{names}");
    // Counters without consumption are kept to the end of a day, but not when memory is short.
    for number in 0..names as u32 {
        assert_eq!(greedy.release(&name(number, 60_000), 1).status, OK);
    }
    end(daemon);
}

#[test]
fn incomplete_frames_fill_the_budget_and_short_requests_still_arrive() {
    let (mut daemon, _file) = server();
    let mut honest = daemon.counter();
    assert_eq!(honest.acquire(b"held", 1, 1).status, OK);
    let mut attackers = Vec::new();
    let long = frame(ACQUIRE, *b"long", &named(&[1, 1], &name(0, 65_000)));
    // They have an hour to complete the frame.
    eventually("connections with incomplete frames are closed", || {
        for _ in 0..40 {
            let mut attacker = daemon.counter();
            // The server may close the connection before everything is written.
            let _ = attacker.stream.write_all(&long[..long.len() - 1]);
            attackers.push(attacker);
        }
        honest.stat("refused_memory") > 0
    });
    assert_eq!(honest.release(b"held", 1).status, OK);
    drop(attackers);
    end(daemon);
}
