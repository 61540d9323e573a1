//! Histories of concurrent clients of a real server, over real sockets, are linearizable: an order of the operations
//! explains every answer.
//!
//! In each round some clients compete for a few names. Names do not depend on each other, so each is checked
//! separately. `SIGNALBOX_ROUNDS=10000 cargo test --release --test wire linearizability::` runs more rounds.

mod history;
mod search;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use crate::support::{
    ACQUIRE, Answer as Response, GET, NOT_ACQUIRED, NOT_AVAILABLE, NOT_FOUND, OK, RELEASE, TestServer, Wire,
    eventually, frame, named,
};
use history::{Answer, Call, Name, Operation};
use search::{Verdict, check};
use signalbox_model::Namespace;

const CLIENTS: usize = 5;
const NAMES: usize = 2;
const OPERATIONS: usize = 12;

/// Partial orders that are tried for one history.
const TRIES_MAX: usize = 500_000;

/// The history of one name in one round.
struct Recorder {
    name: Name,
    bytes: Vec<u8>,
    operations: Mutex<Vec<Operation>>,
}

struct Round<'a> {
    server: &'a TestServer,
    namespace: Namespace,
    names: Vec<Recorder>,
    connections: AtomicUsize,
    started: Instant,
}

impl Round<'_> {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap()
    }

    fn record(&self, name: usize, operation: Operation) {
        self.names[name].operations.lock().unwrap().push(operation);
    }

    fn connect(&self) -> (usize, Wire) {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        (number, Wire::connect(self.server.address(self.namespace)))
    }

    /// One client's round.
    fn play(&self, mut chance: Chance) {
        let (mut connection, mut wire) = self.connect();
        for _ in 0..OPERATIONS {
            let name = chance.below(NAMES);
            let call = match chance.below(20) {
                0..=9 => Call::Acquire { resources: chance.below(2) as u32 + 1 },
                10..=14 => Call::Release { resources: chance.below(2) as u32 + 1 },
                15..=18 => Call::Get,
                _ => Call::Close,
            };
            if let Call::Close = call {
                let lost = (chance.below(2) == 0)
                    .then_some((name, Call::Acquire { resources: chance.below(2) as u32 + 1 }));
                self.close(connection, wire, lost);
                (connection, wire) = self.connect();
            } else {
                let invoked_ns = self.now_ns();
                let answer = self.ask(&mut wire, name, call);
                let returned_ns = self.now_ns();
                self.record(name, Operation { connection, call, answer, invoked_ns, returned_ns });
            }
        }
        self.close(connection, wire, None);
    }

    fn bytes_of(&self, name: usize, call: Call) -> (u8, Vec<u8>) {
        let Recorder { name, bytes, .. } = &self.names[name];
        match call {
            Call::Acquire { resources } => (ACQUIRE, named(&[resources, name.limit], bytes)),
            Call::Release { resources } => (RELEASE, named(&[resources], bytes)),
            Call::Get => (GET, named(&[], bytes)),
            Call::Close => unreachable!("closing sends nothing"),
        }
    }

    fn ask(&self, wire: &mut Wire, name: usize, call: Call) -> Answer {
        let (opcode, body) = self.bytes_of(name, call);
        answer_of(call, &wire.ask(opcode, &body))
    }

    /// Closes a connection, optionally with an operation in flight whose answer is not read.
    fn close(&self, connection: usize, mut wire: Wire, lost: Option<(usize, Call)>) {
        let invoked_ns = self.now_ns();
        // Both may take effect until the end of the round, and the reader of the last value observes them.
        let returned_ns = u64::MAX;
        if let Some((name, call)) = lost {
            let (opcode, body) = self.bytes_of(name, call);
            wire.send(&frame(opcode, *b"lost", &body));
            self.record(name, Operation { connection, call, answer: Answer::Lost, invoked_ns, returned_ns });
        }
        for name in 0..NAMES {
            let (call, answer) = (Call::Close, Answer::Done);
            self.record(name, Operation { connection, call, answer, invoked_ns, returned_ns });
        }
    }

    /// Waits until nothing is in use, and records that this was seen.
    fn observe_the_end(&self) {
        let (connection, mut wire) = self.connect();
        for name in 0..NAMES {
            eventually("everything is released", || {
                let invoked_ns = self.now_ns();
                let answer = self.ask(&mut wire, name, Call::Get);
                let limit = if self.names[name].name.is_semaphore { self.names[name].name.limit } else { 0 };
                if answer != Answer::Value(limit) && answer != Answer::NotFound {
                    return false;
                }
                let returned_ns = self.now_ns();
                let call = Call::Get;
                self.record(name, Operation { connection, call, answer, invoked_ns, returned_ns });
                true
            });
        }
    }
}

fn answer_of(call: Call, response: &Response) -> Answer {
    match (response.status, call) {
        (OK, Call::Get) => Answer::Value(response.number()),
        (OK, _) => Answer::Done,
        (NOT_AVAILABLE, _) => Answer::NotAvailable,
        (NOT_ACQUIRED, _) => Answer::NotAcquired,
        (NOT_FOUND, _) => Answer::NotFound,
        _ => panic!("{call:?} was answered by {response:?}"),
    }
}

/// A xorshift generator: the operations of each client are repeatable, their timing is not.
struct Chance(u64);

impl Chance {
    fn of(round: usize, client: usize) -> Self {
        Self(((round * CLIENTS + client + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % end
    }
}

fn play_round(server: &TestServer, number: usize, started: Instant) -> Vec<Recorder> {
    let namespace = Namespace::ALL[number % 2];
    let recorder = |name: usize| Recorder {
        name: Name { limit: (number / 2 + name) as u32 % 4 + 2, is_semaphore: number % 2 == 1 },
        bytes: format!("round {number} name {name}").into_bytes(),
        operations: Mutex::default(),
    };
    let names = (0..NAMES).map(recorder).collect();
    let round = Round { server, namespace, names, connections: AtomicUsize::new(0), started };
    let barrier = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (round, barrier) = (&round, &barrier);
            scope.spawn(move || {
                barrier.wait();
                round.play(Chance::of(number, client));
            });
        }
    });
    round.observe_the_end();
    round.names
}

#[test]
fn histories_of_concurrent_clients_are_linearizable() {
    let asked = std::env::var("SIGNALBOX_ROUNDS").ok();
    let rounds = asked.map_or(1000, |rounds| rounds.parse().expect("SIGNALBOX_ROUNDS is a number"));
    let server = TestServer::start();
    let started = Instant::now();
    let (mut histories, mut operations, mut unknown) = (0, 0, 0);
    for number in 0..rounds {
        for recorder in play_round(&server, number, started) {
            let mut history = recorder.operations.into_inner().unwrap();
            history.sort_by_key(|operation| operation.invoked_ns);
            histories += 1;
            operations += history.len();
            match check(recorder.name, &history, TRIES_MAX) {
                Verdict::Linearizable => {}
                Verdict::Unknown => unknown += 1,
                Verdict::NotLinearizable => {
                    let text = history.iter().fold(String::new(), |text, o| text + &format!("\n{o:?}"));
                    panic!("no order of round {number} explains what was seen of {:?}:{text}", recorder.name);
                }
            }
        }
        server.assert_books_balance();
    }
    println!("{histories} histories of {operations} operations, of which {unknown} are unknown");
    assert!(unknown * 50 <= histories, "{unknown} of {histories} histories are unknown");
}

// Tests of the checker.

const COUNTER: Name = Name { limit: 2, is_semaphore: false };

/// An operation from one time to another.
fn operation(connection: usize, call: Call, answer: Answer, invoked_ns: u64, returned_ns: u64) -> Operation {
    Operation { connection, call, answer, invoked_ns, returned_ns }
}

const ONE: Call = Call::Acquire { resources: 1 };
const TWO: Call = Call::Acquire { resources: 2 };
const BACK: Call = Call::Release { resources: 1 };

#[test]
fn linearizable_histories_are_accepted() {
    let sequential = [
        operation(0, TWO, Answer::Done, 0, 1),
        operation(1, ONE, Answer::NotAvailable, 2, 3),
        operation(0, BACK, Answer::Done, 4, 5),
        operation(1, ONE, Answer::Done, 6, 7),
        operation(2, Call::Get, Answer::Value(2), 8, 9),
    ];
    // Refused by one that was answered later.
    let overlapping = [operation(0, TWO, Answer::Done, 0, 9), operation(1, ONE, Answer::NotAvailable, 1, 2)];
    let late_close = [
        operation(0, TWO, Answer::Done, 0, 1),
        operation(0, Call::Close, Answer::Done, 2, u64::MAX),
        operation(1, ONE, Answer::NotAvailable, 3, 4),
        operation(1, ONE, Answer::Done, 5, 6),
    ];
    let lost_and_happened = [
        operation(0, TWO, Answer::Lost, 0, u64::MAX),
        operation(0, Call::Close, Answer::Done, 1, u64::MAX),
        operation(1, ONE, Answer::NotAvailable, 2, 3),
        operation(1, Call::Get, Answer::Value(0), 4, 5),
    ];
    let lost_and_never_happened = [
        operation(0, TWO, Answer::Lost, 0, u64::MAX),
        operation(0, Call::Close, Answer::Done, 0, u64::MAX),
        operation(1, ONE, Answer::Done, 1, 2),
        operation(1, Call::Get, Answer::Value(1), 3, 4),
    ];
    let histories: [&[Operation]; 5] =
        [&sequential, &overlapping, &late_close, &lost_and_happened, &lost_and_never_happened];
    for history in histories {
        assert_eq!(check(COUNTER, history, 1000), Verdict::Linearizable, "{history:#?}");
    }
}

#[test]
fn histories_that_are_not_linearizable_are_rejected() {
    let over_grant = [
        operation(0, TWO, Answer::Done, 0, 3),
        operation(1, ONE, Answer::Done, 1, 2),
        operation(1, Call::Get, Answer::Value(3), 4, 5),
    ];
    let stale_read = [operation(0, ONE, Answer::Done, 0, 1), operation(1, Call::Get, Answer::Value(0), 2, 3)];
    let lost_release = [
        operation(0, TWO, Answer::Done, 0, 1),
        operation(0, BACK, Answer::Done, 2, 3),
        operation(1, ONE, Answer::NotAvailable, 4, 5),
    ];
    let refused_for_nothing = [operation(0, ONE, Answer::NotAvailable, 0, 1)];
    let lost_holding = [operation(0, ONE, Answer::Done, 0, 1), operation(0, BACK, Answer::NotAcquired, 2, 3)];
    let never_given_back = [
        operation(0, TWO, Answer::Done, 0, 1),
        operation(0, Call::Close, Answer::Done, 2, 3),
        operation(1, ONE, Answer::NotAvailable, 4, 5),
    ];
    // A value seen, and then an older one.
    let backwards = [
        operation(0, ONE, Answer::Done, 0, 9),
        operation(1, Call::Get, Answer::Value(1), 1, 2),
        operation(2, Call::Get, Answer::NotFound, 3, 4),
    ];
    let histories: [&[Operation]; 7] = [
        &over_grant,
        &stale_read,
        &lost_release,
        &refused_for_nothing,
        &lost_holding,
        &never_given_back,
        &backwards,
    ];
    for history in histories {
        assert_eq!(check(COUNTER, history, 1000), Verdict::NotLinearizable, "{history:#?}");
    }
}

#[test]
fn an_exhausted_budget_is_not_a_pass() {
    let history: Vec<_> = (0..10).map(|connection| operation(connection, BACK, Answer::Lost, 0, 1)).collect();
    assert_eq!(check(COUNTER, &history, 3), Verdict::Unknown);
}
