//! The shares of clients: one address takes what it can, and another one is still served.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::support::caller::{Caller, LONG, NOW, one_of};
use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;
use serde_json::Value;
use signalbox_model::{
    GrantId, Limit, Milliseconds, Namespace, ReachedLimit, RequestId, RequestIds, Scope, Status,
};
use signalbox_protocol::{Claims, Credentials, Extended, Features, OpenedSession, ResponseFrame};

/// The address of the honest client. The attacker has 127.0.0.1.
const HONEST: &str = "127.0.0.2";

/// The daemon, its configuration, and a directory in which it may keep data.
struct Attacked {
    daemon: Daemon,
    file: ConfigFile,
}

impl Attacked {
    /// `settings` are lines of the section `[session]`.
    fn begin(settings: &str) -> Self {
        Self::begin_with("", settings)
    }

    fn begin_with(top: &str, settings: &str) -> Self {
        let file = ConfigFile::toml(&format!("{top}\n[session]\n{settings}\n"));
        Self { daemon: Daemon::spawn(serve_file_on_any_ports(&file.path())), file }
    }

    fn attacker(&mut self) -> Caller {
        let mut caller = Caller::new(self.daemon.counter());
        caller.hello("attacker");
        caller
    }

    fn honest(&mut self) -> Caller {
        let address = self.daemon.address("counter");
        let mut caller = Caller::new(Wire::connect_from(HONEST, address));
        caller.hello("honest");
        caller
    }

    /// Checks that the refusals of the attacker were counted, and logged once.
    #[track_caller]
    fn end(mut self, limit: &str) {
        assert!(self.honest().wire.stat("refused_shares") > 1);
        let line = self.daemon.logged_message("a client has used up its share of a limit");
        assert_eq!((text(&line, "client"), text(&line, "limit")), ("127.0.0.1", limit));
        assert!(number(&line, "share") > 0);
        self.daemon.signal(Signal::SIGTERM);
        assert_eq!(self.daemon.exit_status().code(), Some(0));
        let lines: Vec<Value> = self.daemon.lines_with("a client has used up its share of a limit");
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
}

fn open(caller: &mut Caller) -> ResponseFrame {
    caller.ask(&Extended::OpenSession { ttl: Some(Milliseconds(3_600_000)), label: b"", key: None })
}

#[track_caller]
fn assert_share(answer: &ResponseFrame, limit: Limit, max: u64) {
    assert_eq!(answer.status, Status::LimitReached.code(), "{answer:?}");
    assert_eq!(answer.reached_limit(), Some(ReachedLimit { limit, max, is_share: true }), "{answer:?}");
}

/// Opens sessions that each have a grant, until the share of the client is exhausted.
fn open_with_grants(caller: &mut Caller, share: u64) -> Vec<OpenedSession> {
    let mut sessions = Vec::new();
    loop {
        let answer = open(caller);
        if answer.status != OK {
            assert_share(&answer, Limit::Sessions, share);
            return sessions;
        }
        sessions.push(answer.opened().unwrap());
        caller.take(one_of(u32::MAX, b"held"));
    }
}

#[test]
fn a_client_that_opens_sessions_ends_its_own_unused_ones_and_nobody_else_s() {
    let mut attacked = Attacked::begin("max_sessions = 200");
    let mut honest = attacked.honest();
    let kept = honest.open(3_600_000);
    // It is no longer attached to the session, and holds nothing by it.
    honest.open(3_600_000);
    let mut attacker = attacked.attacker();
    let opened: Vec<_> = (0..2_000).map(|_| open(&mut attacker).opened().unwrap()).collect();
    assert_eq!(attacker.wire.stat("sessions"), 100);
    assert_eq!(attacker.attach(opened[0]), Status::NoSuchSession as u8, "the oldest have ended");
    assert_eq!(attacker.attach(opened[1_999 - 97]), OK);
    assert_eq!(honest.attach(kept), OK);

    // What has a grant does not end.
    let sessions = open_with_grants(&mut attacker, 24);
    assert_eq!(attacker.wire.stat("sessions"), 100);
    assert_share(&open(&mut attacker), Limit::Sessions, 24);
    assert_eq!(attacker.attach(sessions[0]), OK);
    for _ in 0..24 {
        assert_eq!(open(&mut honest).status, OK);
    }
    attacked.end("session.max_sessions");
}

/// The time is a lower bound, which a slow machine does not miss.
#[test]
fn a_client_whose_sessions_replace_its_own_is_slowed_down() {
    const REPLACED: u32 = 200;
    let mut attacked = Attacked::begin("max_sessions = 200");
    let mut attacker = attacked.attacker();
    for _ in 0..100 {
        assert_eq!(open(&mut attacker).status, OK);
    }
    let begun = Instant::now();
    // All at once, so that they take much less time than the pauses.
    for _ in 0..REPLACED {
        attacker.send(&Extended::OpenSession { ttl: None, label: b"", key: None });
    }
    for _ in 0..REPLACED {
        assert_eq!(attacker.next().status, OK, "its own sessions make room");
    }
    assert_eq!(attacker.wire.ask(NOOP, &[]).status, OK);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(REPLACED.into()), "a millisecond for each: {took:?}");
    assert_eq!(attacker.wire.stat("sessions"), 100);
    assert_eq!(attacker.wire.stat("refused_shares"), 0, "none of them is refused");
}

#[test]
fn shares_of_sessions_hold_after_a_restart() {
    let directory = open_directory();
    let top = format!("data_dir = '{}'", directory.path().display());
    let mut attacked = Attacked::begin_with(&top, "max_sessions = 200");
    let mut attacker = attacked.attacker();
    for _ in 0..500 {
        assert_eq!(open(&mut attacker).status, OK);
    }
    assert_eq!(open_with_grants(&mut attacker, 24).len(), 100);
    attacked.daemon.signal(Signal::SIGTERM);
    assert_eq!(attacked.daemon.exit_status().code(), Some(0));

    attacked.daemon = Daemon::spawn(serve_file_on_any_ports(&attacked.file.path()));
    let mut attacker = attacked.attacker();
    assert_eq!(attacker.wire.stat("sessions"), 100);
    // Sessions to which no client has returned count against no share.
    assert_eq!(open_with_grants(&mut attacker, 24).len(), 24);
    let mut honest = attacked.honest();
    for _ in 0..24 {
        assert_eq!(open(&mut honest).status, OK);
    }
    assert_share(&open(&mut attacker), Limit::Sessions, 24);
    attacked.end("session.max_sessions");
}

#[test]
fn a_client_with_its_share_of_the_watches_leaves_the_rest_to_others() {
    let mut attacked = Attacked::begin("max_watches = 200");
    let watch = Extended::Watch { namespace: Namespace::Counters, scope: Scope::Name(b"watched") };
    let mut watchers: Vec<_> = (0..4).map(|_| attacked.attacker()).collect();
    for number in 0..100 {
        // The answer is the event that ends the snapshot.
        assert_eq!(watchers[number % 4].ask(&watch).status, OK);
    }
    for watcher in &mut watchers {
        assert_share(&watcher.ask(&watch), Limit::Watches, 24);
    }
    // All at once, so that they take much less time than the pauses, of a millisecond for each.
    let (begun, watcher) = (Instant::now(), &mut watchers[0]);
    let refused: Vec<_> = (0..200).map(|_| watcher.send(&watch)).collect();
    refused.into_iter().for_each(|opaque| assert_share(&watcher.answer(opaque), Limit::Watches, 24));
    assert_eq!(watcher.wire.ask(NOOP, &[]).status, OK);
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    let mut honest = attacked.honest();
    assert_eq!(honest.ask(&watch).status, OK);
    attacked.end("session.max_watches");
}

#[test]
fn a_client_with_its_share_of_the_waiting_requests_leaves_the_queue_to_others() {
    let mut attacked = Attacked::begin("max_waiters = 200");
    let mut holder = attacked.honest();
    let held = holder.take(one_of(1, b"wanted")).grant;
    let mut attacker = attacked.attacker();
    for _ in 0..100 {
        attacker.want(one_of(1, b"wanted"), LONG);
    }
    for _ in 0..10 {
        let refused = attacker.want(one_of(1, b"wanted"), LONG);
        assert_share(&attacker.answer(refused), Limit::Waiters, 24);
    }
    let mut honest = attacked.honest();
    let wanted = honest.want(one_of(1, b"wanted"), LONG);
    honest.sync();
    // The queue is more than half full, and this client has less than its share.
    assert_eq!(attacker.wire.stat("waiters"), 101);
    drop(attacker);
    assert_eq!(holder.give_back(held), OK);
    assert_eq!(honest.answer(wanted).status, OK);
    attacked.end("session.max_waiters");
}

#[test]
fn a_client_that_opens_and_closes_connections_without_end_is_refused_some() {
    let mut attacked = Attacked::begin_with("short_connections = 100", "");
    let mut kept: Vec<_> = (0..100).map(|_| attacked.daemon.counter()).collect();
    let mut served = 0;
    let mut refused = || {
        let mut wire = attacked.daemon.counter();
        wire.send(&frame(NOOP, [0; 4], &[]));
        let is_refused = wire.is_closed();
        served += u32::from(!is_refused);
        is_refused
    };
    // More than half of the limit are in use soon, on a slow machine too.
    assert!((0..100_000).any(|_| refused()), "none is refused");
    assert!((0..100_000).any(|_| refused()), "not one alone is refused");
    eventually("the client is served again", || !refused());
    assert!(served >= 50, "fewer than half of the limit: {served}");
    // Connections that stay are served, and so are other clients.
    kept.iter_mut().for_each(|wire| assert_eq!(wire.ask(NOOP, &[]).status, OK));
    let mut honest = attacked.honest();
    assert_eq!(honest.wire.ask(NOOP, &[]).status, OK);
    attacked.end("short_connections");
}

#[test]
fn a_client_with_its_share_of_the_connections_leaves_the_rest_to_others() {
    let file = ConfigFile::toml("counter.max_connections = 100\n");
    let mut attacked = Attacked { daemon: Daemon::spawn(serve_file_on_any_ports(&file.path())), file };
    let mut crowd: Vec<_> = (0..50).map(|_| attacked.daemon.counter()).collect();
    crowd.iter_mut().for_each(|wire| assert_eq!(wire.ask(NOOP, &[]).status, OK));
    for _ in 0..20 {
        assert!(attacked.daemon.counter().is_closed());
    }
    let mut honest: Vec<_> = (0..16).map(|_| attacked.honest()).collect();
    assert_eq!(honest[0].wire.stat("curr_connections"), 66);
    // It has used up its share as well now, as more than half of the connections are in use.
    assert!(Wire::connect_from(HONEST, attacked.daemon.address("counter")).is_closed());
    assert_eq!(honest[0].wire.stat("refused_connections"), 21);
    drop(crowd);
    eventually("the connections have ended", || honest[0].wire.stat("curr_connections") == 16);
    assert_eq!(attacked.daemon.counter().ask(NOOP, &[]).status, OK);
    for client in ["127.0.0.1", HONEST] {
        attacked.daemon.logged("the refusals begin", |line| line["fields"]["client"] == client);
    }
}

#[test]
fn clients_with_tokens_have_shares_of_their_own_behind_one_address() {
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    let mut create = |name: &str| {
        let mut command = std::process::Command::new(SIGNALBOX);
        command.args(["token", "create", name, "--rights", "read,acquire", "--file", file.to_str().unwrap()]);
        let output = outcome(command);
        assert!(output.status.success(), "{output:?}");
        output.stdout.trim_ascii().to_owned()
    };
    let tokens = ["greedy", "modest"].map(&mut create);
    let mut attacked =
        Attacked::begin(&format!("max_sessions = 200\n[access]\ntokens = '{}'", file.display()));
    let [mut greedy, mut modest] = tokens.map(|token| {
        let mut caller = Caller::new(attacked.daemon.counter());
        let hello = Extended::Hello {
            version: 1,
            label: b"with a token",
            credentials: Credentials(&token),
            features: Features::default(),
        };
        assert_eq!(caller.ask(&hello).status, OK);
        caller
    });
    assert_eq!(open_with_grants(&mut greedy, 24).len(), 100);
    // It has the same address, and nothing yet.
    assert_eq!(open_with_grants(&mut modest, 24).len(), 24);
    assert_share(&open(&mut greedy), Limit::Sessions, 24);
    let mut anonymous = attacked.attacker();
    assert_eq!(open(&mut anonymous).status, OK, "it counts for its address");
}

/// The memory budget of the tests below, and the share of a client in it.
const BUDGET: u64 = 64 << 20;
const BUDGET_SHARE: u64 = BUDGET / 100 * 12 + BUDGET % 100 * 12 / 100;

/// The length of long names.
const NAME_BYTES: u64 = 60_000;

fn long_name(client: u8, number: u32) -> Vec<u8> {
    let mut name = vec![client; NAME_BYTES as usize];
    name[..4].copy_from_slice(&number.to_be_bytes());
    name
}

/// Acquires long names until that is refused. Returns how many there are.
fn acquire_long_names(wire: &mut Wire, client: u8) -> u32 {
    let is_acquired = |number: &u32| {
        let answer = wire.acquire(&long_name(client, *number), 1, 1);
        assert!(matches!(answer.status, OK | OUT_OF_MEMORY), "{answer:?}");
        answer.status == OK
    };
    (0..).take_while(is_acquired).count() as u32
}

const OUT_OF_MEMORY: u8 = Status::OutOfMemory as u8;

#[test]
fn a_client_with_its_share_of_the_memory_in_holdings_leaves_the_rest_to_others() {
    let mut attacked = Attacked::begin_with("memory_max = '64M'", "");
    let mut greedy = attacked.daemon.counter();
    let names = acquire_long_names(&mut greedy, b'a');
    assert!(u64::from(names) < BUDGET / 2 / NAME_BYTES, "{names}");
    assert!(u64::from(names) > BUDGET_SHARE / NAME_BYTES, "{names}");
    // Its other connections have no share of their own.
    let mut other = attacked.daemon.counter();
    assert_eq!(other.acquire(&long_name(b'o', 0), 1, 1).status, OUT_OF_MEMORY);
    let mut honest = Wire::connect_from(HONEST, attacked.daemon.address("counter"));
    let of_honest = acquire_long_names(&mut honest, b'h');
    assert!(
        (BUDGET_SHARE / NAME_BYTES..=BUDGET_SHARE / NAME_BYTES + 1).contains(&u64::from(of_honest)),
        "{of_honest}"
    );
    assert_eq!(honest.stat("refused_memory"), 0);
    // Released names do not count.
    for number in 0..names {
        assert_eq!(greedy.release(&long_name(b'a', number), 1).status, OK);
    }
    assert_eq!(other.acquire(b"short", 1, 1).status, OK);
    drop(honest);
    for client in ["127.0.0.1", HONEST] {
        attacked.daemon.logged("the refusals begin", |line| {
            line["fields"]["client"] == client && line["fields"]["limit"] == "memory_max"
        });
    }
}

#[test]
fn a_client_with_its_share_of_the_memory_in_waiting_requests_leaves_the_rest_to_others() {
    let mut attacked = Attacked::begin_with("memory_max = '64M'", "");
    let mut holder = attacked.honest();
    holder.take(one_of(1, b"held"));
    let names: Vec<_> = (1..64).map(|number| long_name(b'w', number)[..1900].to_vec()).collect();
    let claims: Vec<_> =
        [one_of(1, b"held")].into_iter().chain(names.iter().map(|name| one_of(1, name))).collect();
    let mut attackers = Vec::new();
    let mut refused = 0;
    while refused < 10 {
        assert!(attackers.len() < 100, "a client has no share of the memory");
        let mut attacker = attacked.attacker();
        for _ in 0..20 {
            let (ids, claims) = (attacker.ids(), Claims::new(&claims).unwrap());
            attacker.send(&Extended::AcquireAll { ids, queueing: LONG, claims, place: None });
        }
        attacker.wire.send(&frame(NOOP, *b"last", &[]));
        // The refused ones are answered before that.
        loop {
            let answer = attacker.next();
            if answer.status == OK {
                break;
            }
            assert_share(&answer, Limit::Memory, BUDGET_SHARE);
            refused += 1;
        }
        attackers.push(attacker);
    }
    let mut honest = attacked.honest();
    assert!(honest.wire.stat("used_memory") > BUDGET / 2 - (1 << 20));
    assert_eq!(open(&mut honest).status, OK);
    honest.take(one_of(1, b"another"));
    assert_eq!(honest.wire.stat("refused_memory"), 0);
    // Its requests no longer wait, and no longer count.
    drop(attackers);
    eventually("the waiting requests have ended", || honest.wire.stat("waiters") == 0);
    assert_eq!(open(&mut attacked.attacker()).status, OK);
    attacked.end("memory_max");
}

#[test]
fn a_client_with_its_share_of_the_memory_in_incomplete_requests_leaves_the_rest_to_others() {
    let mut attacked = Attacked::begin_with("memory_max = '16M'", "");
    let mut honest = attacked.honest();
    let request = frame(ACQUIRE, *b"long", &named(&[1, 1], &long_name(b'h', 0)));
    let (most, rest) = request.split_at(50_000);
    // Another client's request, which has begun before all others.
    let mut slow = Wire::connect_from(HONEST, attacked.daemon.address("counter"));
    slow.send(most);
    let mut crowd = Vec::new();
    eventually("the client has used up its share", || {
        for _ in 0..20 {
            let mut wire = attacked.daemon.counter();
            // The server may have closed it.
            let _ = wire.stream.write_all(most);
            crowd.push(wire);
        }
        honest.wire.stat("refused_shares") > 1
    });
    assert!(crowd[0].is_closed(), "its oldest ones are closed");
    assert_eq!(honest.wire.stat("refused_memory"), 0);
    slow.send(rest);
    assert_eq!(slow.answer().status, OK);
    attacked.end("memory_max");
}

#[test]
fn a_client_with_its_share_of_the_memory_in_remembered_replies_leaves_the_rest_to_others() {
    let mut attacked = Attacked::begin_with("memory_max = '64M'", "");
    let mut holder = attacked.honest();
    holder.take(one_of(1, b"held"));
    // A session that has no replies yet when the share is exhausted.
    let mut last = attacked.attacker();
    last.open(3_600_000);
    let mut attacker = attacked.attacker();
    let ids = |own| RequestIds { own: RequestId(own), lowest_unanswered: RequestId(1) };
    let mut sessions = 0;
    let mut is_exhausted = false;
    while !is_exhausted {
        sessions += 1;
        assert!(sessions < 4_000, "a client has no share of the memory");
        attacker.open(3_600_000);
        // Each is refused, and the reply is remembered.
        for own in 1..=1_000 {
            let claim = one_of(1, b"held");
            attacker.send(&Extended::AcquireGrant {
                ids: ids(own),
                claim,
                queueing: NOW,
                place: None,
                is_shared: false,
            });
        }
        for _ in 1..=1_000 {
            let answer = attacker.next();
            if answer.status == Status::LimitReached.code() {
                assert_share(&answer, Limit::Memory, BUDGET_SHARE);
                is_exhausted = true;
            }
        }
    }
    // Far enough above half of the budget that what is freed meanwhile does not matter.
    for number in 0..40_u8 {
        assert_eq!(holder.wire.acquire(&[number; 60_000], 1, 1).status, OK);
    }
    assert_share(&open(&mut attacker), Limit::Memory, BUDGET_SHARE);
    // The share is exhausted, so refusals are not remembered: a request with the same number is another one.
    let release = Extended::ReleaseGrant { ids: ids(1), grant: GrantId(1), is_done: false };
    assert_eq!(last.ask(&release).status, Status::NotAcquired.code());
    let (claim, queueing) = (one_of(1, b"free"), NOW);
    let answer =
        last.ask(&Extended::AcquireGrant { ids: ids(1), claim, queueing, place: None, is_shared: false });
    assert_share(&answer, Limit::Memory, BUDGET_SHARE);
    let mut honest = attacked.honest();
    assert_eq!(open(&mut honest).status, OK);
    honest.take(one_of(1, b"another"));
    assert_eq!(honest.wire.stat("refused_memory"), 0);
    attacked.end("memory_max");
}

#[test]
fn sighup_changes_the_shares() {
    let mut attacked = Attacked::begin("max_sessions = 200");
    let mut caller = attacked.attacker();
    assert_eq!(open_with_grants(&mut caller, 24).len(), 100);
    attacked.file.write("client_share = 100\n[session]\nmax_sessions = 200\n");
    attacked.daemon.reload("the configuration was read again");
    assert_eq!(open(&mut caller).status, OK);
    assert_eq!(caller.wire.stat("client_share"), 100);
}

#[test]
fn many_connections_of_one_client_that_ask_for_statistics_take_turns() {
    let mut attacked = Attacked::begin("");
    let requests: Vec<u8> = (0..500).flat_map(|_| frame(STATS, *b"stat", &[])).collect();
    let mut crowd: Vec<_> = (0..100).map(|_| attacked.daemon.counter()).collect();
    for wire in &mut crowd {
        wire.send(&requests);
    }
    // Statistics that a client does not read delay neither other clients nor its other connections.
    let mut honest = attacked.honest();
    for _ in 0..10 {
        assert_eq!(honest.wire.stat("curr_connections"), 101);
    }
    // Each gets its turn, although no other one has read all that it asked for.
    for wire in &mut crowd {
        assert_eq!(wire.answer().status, OK);
    }
    drop(crowd);
    eventually("the connections are closed", || honest.wire.stat("curr_connections") == 1);
}
