//! Declared semaphores over real sockets (`docs/protocol.md`, "Declare" to "List"): each test on a server that keeps them
//! in memory, and on one that stores them before it answers.

use std::collections::BTreeMap;

use crate::support::caller::{
    Caller, Changes, LONG, counted, declare, declare_new, declaring, for_ms, list, numbered, semaphore,
};
use crate::support::store::StoredServer;
use crate::support::{NOT_AVAILABLE, NOT_FOUND, OK, TestServer, eventually};
use signalbox_model::{
    Claim, Declaration, DeclaredState, Generation, GrantId, GrantState, Idle, IfExists, Milliseconds,
    Namespace, Notice, Operation, Removal, Resizing, Revocation, Status,
};
use signalbox_protocol::{Extended, Granted, Opaque, ResponseFrame, Wait, WaitingRequest};
use signalbox_storage::Memory;

/// The server that a test runs on.
enum AnyServer {
    InMemory(Box<TestServer>),
    Stored(Box<StoredServer>),
}

impl AnyServer {
    fn each() -> [Self; 2] {
        let stored = StoredServer::start(&Memory::default());
        [Self::InMemory(Box::new(TestServer::start())), Self::Stored(Box::new(stored))]
    }

    fn test_server(&self) -> &TestServer {
        match self {
            Self::InMemory(server) => server,
            Self::Stored(stored) => &stored.server,
        }
    }

    fn caller(&self) -> Caller {
        Caller::new(self.test_server().semaphore())
    }

    fn callers<const COUNT: usize>(&self) -> [Caller; COUNT] {
        std::array::from_fn(|_| self.caller())
    }

    fn wait_for_waiters(&self, count: u64) {
        let core = self.test_server().server.core();
        eventually(&format!("{count} requests wait"), || core.ledger_stats().waiters == count);
    }

    fn check(&self) {
        self.test_server().server.core().check_ledger().unwrap();
        self.test_server().assert_books_balance();
    }
}

const INVALID: u8 = Status::InvalidArguments as u8;

fn code(status: Status) -> u8 {
    status.code()
}

fn ask_to_resize(
    caller: &mut Caller,
    name: &[u8],
    how: Resizing,
    expected: Option<Generation>,
) -> ResponseFrame {
    caller.change(Operation::Resize { expected, how, name })
}

#[track_caller]
fn resize(caller: &mut Caller, name: &[u8], how: Resizing) -> DeclaredState {
    let answer = ask_to_resize(caller, name, how, None);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.resized()
}

fn remove(caller: &mut Caller, name: &[u8], how: Removal) -> u8 {
    caller.change(Operation::Remove { expected: None, how, name }).status
}

/// Capacity, usage and queue length of one semaphore; `None` means that it is not declared.
fn listed(caller: &mut Caller, name: &[u8]) -> Option<(u32, u32, u32)> {
    let entries = list(caller, name);
    let entry = entries.iter().find(|entry| &entry.name[..] == name)?;
    Some((entry.capacity, entry.in_use, entry.waiting))
}

fn await_idle(caller: &mut Caller, name: &[u8], until: Idle, wait: Wait) -> Opaque {
    caller.send(&Extended::AwaitIdle { wait, until, namespace: Namespace::Semaphores, name })
}

/// The state of a grant, or the status if it is not held.
fn verify(caller: &mut Caller, grant: GrantId) -> Result<GrantState, u8> {
    let answer = caller.ask(&Extended::VerifyGrant { grant });
    if answer.status == OK { Ok(answer.verified().unwrap().state) } else { Err(answer.status) }
}

const HELD: Result<GrantState, u8> = Ok(GrantState::Held);
const RETIRING: Result<GrantState, u8> = Ok(GrantState::Retiring);
const GONE: Result<GrantState, u8> = Err(Status::NotAcquired as u8);

#[test]
fn several_semaphores_are_declared_together_or_not_at_all() {
    for server in AnyServer::each() {
        let [mut admin] = server.callers();
        let labelled = Declaration { label: b"two lifts", ..counted(b"lift", 2) };
        let answer = declare(&mut admin, IfExists::Fail, &[labelled, numbered(b"lane", 3)]);
        let rows = answer.declared();
        assert_eq!(rows.iter().map(|row| (row.capacity, row.in_use)).collect::<Vec<_>>(), [(2, 0), (3, 0)]);
        assert!(rows[0].generation != rows[1].generation);
        let entries = list(&mut admin, b"");
        let fields: Vec<_> = entries
            .iter()
            .map(|e| (&e.name[..], &e.label[..], e.numbered, e.capacity, e.generation))
            .collect();
        let (lane, lift) = (rows[1].generation, rows[0].generation);
        assert_eq!(
            fields,
            [(&b"lane"[..], &b""[..], true, 3, lane), (b"lift", b"two lifts", false, 2, lift)],
            "in the order of their names"
        );

        let both = [counted(b"new", 1), counted(b"lift", 9)];
        assert_eq!(declare(&mut admin, IfExists::Fail, &both).status, code(Status::AlreadyExists));
        assert_eq!(
            listed(&mut admin, b"new"),
            None,
            "the semaphore that did not exist is not declared either"
        );
        let kept = declare(&mut admin, IfExists::Keep, &both).declared();
        assert_eq!((kept[0].capacity, kept[1]), (1, rows[0]), "the existing semaphore is unchanged");
        let set = declare(&mut admin, IfExists::Set, &both).declared();
        assert_eq!(set[0], kept[0], "an equal declaration changes nothing");
        assert!(set[1].generation > kept[1].generation && set[1].capacity == 9);
        assert_eq!(&list(&mut admin, b"lift")[0].label[..], b"", "the last declaration sets the label too");
        server.check();
    }
}

#[test]
fn an_existing_semaphore_can_be_declared_and_gets_the_declared_capacity() {
    for server in AnyServer::each() {
        let [mut admin, mut plain, mut holder] = server.callers();
        assert_eq!(plain.wire.acquire(b"a", 2, 5).status, OK);
        let held = holder.take(Claim { maximum: 5, ..semaphore(1, b"a") });
        let answer = declare(&mut admin, IfExists::Fail, &[numbered(b"a", 5)]);
        assert_eq!(answer.status, code(Status::InUse), "the holders have no slot numbers");
        let state = declare_new(&mut admin, counted(b"a", 2));
        assert_eq!((state.capacity, state.in_use), (2, 3));
        assert_eq!(verify(&mut admin, held.grant), HELD, "the grant belongs to the same semaphore");
        assert_eq!(plain.wire.acquire(b"a", 1, 5).status, NOT_AVAILABLE);
        assert_eq!(plain.wire.release(b"a", 2).status, OK);
        assert_eq!(holder.take(semaphore(1, b"a")).capacity, 2);
        server.check();
    }
}

#[test]
fn a_capacity_is_set_raised_and_lowered() {
    for server in AnyServer::each() {
        let [mut admin] = server.callers();
        let mut generation = declare_new(&mut admin, counted(b"a", 3)).generation;
        for (how, capacity) in [
            (Resizing::To(7), 7),
            (Resizing::GrowBy(3), 10),
            (Resizing::ShrinkBy(4), 6),
            (Resizing::ShrinkBy(6), 0),
            (Resizing::To(u32::MAX), u32::MAX),
        ] {
            let state = resize(&mut admin, b"a", how);
            assert_eq!(state.capacity, capacity, "{how:?}");
            assert!(state.generation > generation);
            generation = state.generation;
        }
        assert_eq!(ask_to_resize(&mut admin, b"a", Resizing::GrowBy(1), None).status, INVALID);
        resize(&mut admin, b"a", Resizing::To(3));
        assert_eq!(ask_to_resize(&mut admin, b"a", Resizing::ShrinkBy(4), None).status, INVALID);
        assert_eq!(listed(&mut admin, b"a").map(|(capacity, ..)| capacity), Some(3));
        assert_eq!(ask_to_resize(&mut admin, b"b", Resizing::To(1), None).status, NOT_FOUND);
        declare_new(&mut admin, numbered(b"n", 65_536));
        assert_eq!(ask_to_resize(&mut admin, b"n", Resizing::GrowBy(1), None).status, INVALID);
        assert_eq!(listed(&mut admin, b"n"), Some((65_536, 0, 0)));
        server.check();
    }
}

#[test]
fn a_change_repeated_while_it_is_stored_answers_the_last_request() {
    for server in AnyServer::each() {
        let [mut admin] = server.callers();
        declare_new(&mut admin, counted(b"a", 1));
        for _ in 0..50 {
            let grow = Extended::Change {
                ids: admin.ids(),
                operation: Operation::Resize { expected: None, how: Resizing::GrowBy(1), name: b"a" },
            };
            let (first, second) = (admin.send(&grow), admin.send(&grow));
            let mut answers = BTreeMap::new();
            for _ in 0..2 {
                let answer = admin.next();
                answers.insert(answer.opaque.0, answer);
            }
            assert_eq!(answers[&second.0].status, OK);
            let one = &answers[&first.0];
            assert!(one.status == code(Status::Canceled) || one.body == answers[&second.0].body, "{one:?}");
        }
        assert_eq!(listed(&mut admin, b"a"), Some((51, 0, 0)));
        server.check();
    }
}

#[test]
fn holders_of_a_semaphore_that_is_removed_now_lose_it_after_a_notice() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut plain] = server.callers();
        let own = plain.hello("plain");
        holder.hello("holder");
        declare_new(&mut admin, numbered(b"a", 100));
        let held: Vec<_> = (0..90).map(|_| holder.take(semaphore(1, b"a")).grant).collect();
        assert_eq!(plain.wire.acquire(b"a", 1, 3).status, OK);
        let grace = Milliseconds(60);
        assert_eq!(remove(&mut admin, b"a", Removal::Now { grace }), OK);
        for _ in &held {
            let notice = holder.next().notice().unwrap();
            assert!(matches!(notice, Some(Notice::GrantRevoked { .. })), "{notice:?}");
        }
        let notice = plain.next().notice().unwrap();
        assert!(
            matches!(notice, Some(Notice::SessionRevoked { session, .. }) if session == own),
            "{notice:?}"
        );
        eventually("it is gone", || listed(&mut admin, b"a").is_none());
        // A second notice may follow at the end of the grace period.
        while plain.wire.try_answer().is_ok() {}
        assert!(plain.wire.is_closed(), "a plain holding has no grant that could be revoked alone");
        for grant in held {
            assert_eq!(verify(&mut admin, grant), GONE);
        }
        server.check();
    }
}

#[test]
fn long_names_are_listed() {
    for server in AnyServer::each() {
        let mut admin = server.caller();
        let names: Vec<Vec<u8>> = (b'a'..b'g').map(|byte| vec![byte; 40_000]).collect();
        for name in &names {
            declare_new(&mut admin, counted(name, 1));
        }
        let listed: Vec<_> = list(&mut admin, b"").into_iter().map(|entry| entry.name.to_vec()).collect();
        assert_eq!(listed, names);
    }
}

/// A connection that releases its plain holdings in time is not closed, so it keeps everything else.
#[test]
fn a_holder_that_releases_in_time_stays_connected_after_a_removal_now() {
    for server in AnyServer::each() {
        let [mut admin, mut polite, mut late] = server.callers();
        polite.hello("polite");
        declare_new(&mut admin, counted(b"a", 3));
        assert_eq!(polite.wire.acquire(b"a", 1, 3).status, OK);
        assert_eq!(polite.wire.acquire(b"other", 1, 1).status, OK);
        assert_eq!(late.wire.acquire(b"a", 1, 3).status, OK);
        assert_eq!(remove(&mut admin, b"a", Removal::Now { grace: Milliseconds(300) }), OK);
        let notice = polite.next().notice().unwrap();
        assert!(matches!(notice, Some(Notice::SessionRevoked { .. })), "{notice:?}");
        assert_eq!(polite.wire.release(b"a", 1).status, OK);
        eventually("it is gone", || listed(&mut admin, b"a").is_none());
        assert!(late.wire.is_closed());
        assert_eq!(polite.wire.release(b"other", 1).status, OK, "it keeps its other holdings");
        server.check();
    }
}

/// The holders at the removal lose it, even if the name is declared again at once.
#[test]
fn holders_of_a_semaphore_that_is_removed_now_lose_it_even_if_it_is_declared_again() {
    for server in AnyServer::each() {
        for round in 0..20 {
            let [mut admin, mut holder] = server.callers();
            let name = format!("a{round}").into_bytes();
            declare_new(&mut admin, numbered(&name, 300));
            let held: Vec<_> = (0..200).map(|_| holder.take(semaphore(1, &name)).grant).collect();
            let how = Removal::Now { grace: Milliseconds(0) };
            let gone = Extended::Change {
                ids: admin.ids(),
                operation: Operation::Remove { expected: None, how, name: &name },
            };
            let operation = declaring(IfExists::Fail, &[numbered(&name, 300)]);
            let again = Extended::Change { ids: admin.ids(), operation };
            let mut bytes = Vec::new();
            gone.compose(Opaque(*b"gone"), &mut bytes);
            again.compose(Opaque(*b"next"), &mut bytes);
            admin.wire.send(&bytes);
            assert_eq!((admin.next().status, admin.next().status), (OK, OK));
            let new = holder.take(semaphore(1, &name));
            eventually("the earlier grants are revoked", || {
                held.iter().all(|grant| verify(&mut admin, *grant) == GONE)
            });
            assert_eq!(verify(&mut admin, new.grant), HELD, "a later grant is not revoked");
            assert_eq!(listed(&mut admin, &name), Some((300, 1, 0)));
        }
        server.check();
    }
}

#[test]
fn list_returns_all_fields_of_the_semaphores_with_a_prefix() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut waiter] = server.callers();
        let names: Vec<_> = (0..300).map(|number| format!("many/{number:03}").into_bytes()).collect();
        for some in names.chunks(60) {
            let some: Vec<_> = some.iter().map(|name| counted(name, 1)).collect();
            assert_eq!(declare(&mut admin, IfExists::Fail, &some).status, OK);
        }
        declare_new(&mut admin, counted(b"manx", 1));
        let held = holder.take(semaphore(1, b"many/007"));
        waiter.want(semaphore(1, b"many/007"), LONG);
        waiter.want(semaphore(1, b"many/007"), LONG);
        server.wait_for_waiters(2);
        let entries = list(&mut admin, b"many/");
        assert_eq!(entries.iter().map(|entry| entry.name.to_vec()).collect::<Vec<_>>(), names);
        assert!(entries.windows(2).all(|pair| pair[0].generation < pair[1].generation));
        for entry in &entries {
            let figures = (entry.capacity, entry.in_use, entry.waiting);
            assert_eq!(figures, if &entry.name[..] == b"many/007" { (1, 1, 2) } else { (1, 0, 0) });
            assert_eq!((entry.numbered, entry.removing, entry.configured), (false, false, false));
        }
        assert_eq!(list(&mut admin, b"").len(), 301);
        assert_eq!(list(&mut admin, b"many/29").len(), 10);
        assert!(list(&mut admin, b"none").is_empty());
        assert_eq!(holder.give_back(held.grant), OK);
        server.check();
    }
}

#[test]
fn await_idle_waits_until_less_is_in_use() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut plain, mut watcher, mut zero] = server.callers();
        declare_new(&mut admin, counted(b"a", 4));
        let held: Vec<_> = (0..3).map(|_| holder.take(semaphore(1, b"a")).grant).collect();
        assert_eq!(plain.wire.acquire(b"a", 1, 4).status, OK);
        let at_once = await_idle(&mut watcher, b"a", Idle::Level(4), Wait::NotAtAll);
        assert_eq!(watcher.answer(at_once).in_use().unwrap(), 4);
        let not_now = await_idle(&mut watcher, b"a", Idle::Level(3), Wait::NotAtAll);
        assert_eq!(watcher.answer(not_now).status, NOT_AVAILABLE);
        let unknown = await_idle(&mut watcher, b"b", Idle::Level(3), Wait::NotAtAll);
        assert_eq!(watcher.answer(unknown).status, NOT_FOUND);

        resize(&mut admin, b"a", Resizing::To(2));
        let level = await_idle(&mut watcher, b"a", Idle::Level(2), Wait::ServerDefault);
        let none = await_idle(&mut zero, b"a", Idle::Level(0), Wait::ServerDefault);
        watcher.sync();
        zero.sync();
        assert_eq!(holder.give_back(held[0]), OK);
        watcher.sync();
        assert_eq!(plain.wire.release(b"a", 1).status, OK);
        assert_eq!(watcher.answer(level).in_use().unwrap(), 2, "plain Releases count as well");
        let late = await_idle(&mut watcher, b"a", Idle::Level(1), Wait::UpTo(Milliseconds(30)));
        assert_eq!(watcher.answer(late).status, code(Status::TimedOut));
        let canceled = await_idle(&mut watcher, b"a", Idle::Level(1), Wait::ServerDefault);
        let cancel = Extended::Cancel(WaitingRequest::Opaque(canceled));
        let asked = watcher.send(&cancel);
        let mut answers = [watcher.next(), watcher.next()];
        answers.sort_by_key(|answer| answer.opaque.0);
        assert_eq!(
            answers.map(|answer| (answer.opaque, answer.status)),
            [(canceled, code(Status::Canceled)), (asked, OK)]
        );
        drop(holder);
        assert_eq!(zero.answer(none).in_use().unwrap(), 0, "the end of a connection counts too");
        server.check();
    }
}

#[test]
fn await_idle_waits_until_one_slot_is_free() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut watcher] = server.callers();
        declare_new(&mut admin, numbered(b"a", 3));
        let held: Vec<_> = (0..3).map(|_| holder.take(semaphore(1, b"a"))).collect();
        resize(&mut admin, b"a", Resizing::To(1));
        let asked = await_idle(&mut watcher, b"a", Idle::Slot(2), Wait::ServerDefault);
        watcher.sync();
        assert_eq!(holder.give_back(held[1].grant), OK);
        watcher.sync();
        assert_eq!(held[2].slots, [2]);
        assert_eq!(holder.give_back(held[2].grant), OK);
        assert_eq!(watcher.answer(asked).in_use().unwrap(), 1);
        let above = await_idle(&mut watcher, b"a", Idle::Slot(65_535), Wait::NotAtAll);
        assert_eq!(watcher.answer(above).status, OK);
        let first = await_idle(&mut watcher, b"a", Idle::Slot(0), Wait::UpTo(Milliseconds(20)));
        assert_eq!(watcher.answer(first).status, code(Status::TimedOut));
        server.check();
    }
}

#[test]
fn a_grant_gets_the_lowest_free_slots() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut plain] = server.callers();
        declare_new(&mut admin, numbered(b"a", 65_536));
        let slots = |granted: &Granted<Vec<u16>>| granted.slots.clone();
        let first = holder.take(semaphore(3, b"a"));
        let second = holder.take(semaphore(1024, b"a"));
        assert_eq!(slots(&first), [0, 1, 2]);
        assert_eq!(slots(&second), (3..1027).collect::<Vec<_>>());
        let more = holder.want(semaphore(1025, b"a"), LONG);
        assert_eq!(holder.answer(more).status, NOT_AVAILABLE, "more slots than one grant may have");
        assert_eq!(holder.give_back(first.grant), OK);
        assert_eq!(slots(&holder.take(semaphore(4, b"a"))), [0, 1, 2, 1027]);
        // Plain Acquires use the same capacity, without slot numbers.
        assert_eq!(plain.wire.acquire(b"a", 65_536 - 1028, 65_536).status, OK);
        assert_eq!(holder.give_back(second.grant), OK);
        assert_eq!(slots(&holder.take(semaphore(2, b"a"))), [3, 4]);
        assert_eq!(plain.wire.release(b"a", 65_536 - 1028).status, OK);
        let mut grants: Vec<_> = (0..62).map(|_| holder.take(semaphore(1024, b"a")).slots).collect();
        assert_eq!(grants.pop().unwrap().len(), 1024);
        server.check();
    }
}

#[test]
fn a_grant_is_verified_as_held_retiring_or_released() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut service] = server.callers();
        declare_new(&mut admin, numbered(b"a", 4));
        let low = holder.take(semaphore(2, b"a")).grant;
        let high = holder.take(semaphore(2, b"a")).grant;
        assert_eq!([verify(&mut service, low), verify(&mut service, high)], [HELD, HELD]);
        resize(&mut admin, b"a", Resizing::To(3));
        assert_eq!([verify(&mut service, low), verify(&mut service, high)], [HELD, RETIRING]);
        resize(&mut admin, b"a", Resizing::To(4));
        assert_eq!([verify(&mut service, low), verify(&mut service, high)], [HELD, HELD]);
        let (what, grace) = (Revocation::Grant(high), Milliseconds(60_000));
        assert_eq!(admin.change(Operation::Revoke { what, grace }).status, OK);
        assert_eq!([verify(&mut service, low), verify(&mut service, high)], [HELD, RETIRING]);
        assert_eq!(holder.give_back(high), OK);
        assert_eq!([verify(&mut service, low), verify(&mut service, high)], [HELD, GONE]);

        // Removed and declared again while it is held: the grant belongs to the removed semaphore.
        assert_eq!(remove(&mut admin, b"a", Removal::WithLastHolder), OK);
        assert_eq!(verify(&mut service, low), RETIRING);
        let again = declare_new(&mut admin, numbered(b"a", 4));
        assert_eq!((again.capacity, again.in_use), (4, 2));
        let new = holder.take(semaphore(1, b"a"));
        assert_eq!(new.slots, [2], "no slot that an earlier grant still holds");
        assert_eq!([verify(&mut service, low), verify(&mut service, new.grant)], [RETIRING, HELD]);
        resize(&mut admin, b"a", Resizing::To(10));
        assert_eq!(verify(&mut service, low), RETIRING);
        assert_eq!(holder.give_back(low), OK);
        assert_eq!([verify(&mut service, low), verify(&mut service, new.grant)], [GONE, HELD]);
        server.check();
    }
}

#[test]
fn plain_clients_are_served_from_the_declared_capacity() {
    for server in AnyServer::each() {
        let [mut admin, mut plain, mut other] = server.callers();
        declare_new(&mut admin, counted(b"a", 3));
        assert_eq!(plain.wire.get(b"a").number(), 3);
        assert_eq!(plain.wire.acquire(b"a", 2, 100).status, OK);
        assert_eq!(
            other.wire.acquire(b"a", 2, 100).status,
            NOT_AVAILABLE,
            "the request does not set the limit"
        );
        assert_eq!(other.wire.acquire(b"a", 1, 1).status, OK);
        assert_eq!(plain.wire.get(b"a").number(), 0);
        let granted = plain.want(Claim { maximum: 50, ..semaphore(1, b"a") }, for_ms(20));
        assert_eq!(plain.answer(granted).status, code(Status::TimedOut), "nor does the request for a grant");
        assert_eq!(plain.wire.release(b"a", 2).status, OK);
        drop(other);
        eventually("everything is released", || plain.wire.get(b"a").number() == 3);
        let sweeps = plain.wire.stat("gc_count");
        eventually("it is swept", || plain.wire.stat("gc_count") > sweeps + 2);
        assert_eq!(listed(&mut admin, b"a"), Some((3, 0, 0)));
        assert_eq!(plain.wire.get(b"a").number(), 3, "no sweep collects a declared semaphore");
        assert_eq!(plain.wire.dumped(b"a"), Some((0, 3)));
        server.check();
    }
}

#[test]
fn a_grant_with_the_declared_capacity_does_not_create_an_undeclared_name() {
    for server in AnyServer::each() {
        let [mut caller] = server.callers();
        let asked = caller.want(semaphore(1, b"a"), LONG);
        assert_eq!(caller.answer(asked).status, NOT_FOUND);
        assert_eq!(caller.wire.get(b"a").status, NOT_FOUND);
        server.check();
    }
}
