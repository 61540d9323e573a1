//! Declared semaphores over real sockets (`docs/protocol.md`, "Declare" to "List"): each test on a server that keeps them
//! in memory, and on one that stores them before it answers.

use std::collections::BTreeMap;

use crate::support::caller::{Caller, LONG, NOW, for_ms, on_wire};
use crate::support::store::StoredServer;
use crate::support::{NOT_AVAILABLE, NOT_FOUND, OK, TestServer, eventually};
use signalbox::core::Namespace;
use signalbox::protocol::{
    AS_DECLARED, Claim, Claims, Declaration, Declarations, DeclaredEntry, DeclaredState, Extended,
    Generation, GrantId, GrantState, Granted, Idle, IfExists, Milliseconds, Notice, Opaque, Queueing,
    Removal, Resizing, ResponseFrame, Revocation, Status, Wait, WaitingRequest,
};
use signalbox::storage::Memory;

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

fn semaphore(resources: u32, name: &[u8]) -> Claim<'_> {
    Claim { namespace: on_wire(Namespace::Semaphores), name, resources, maximum: AS_DECLARED, slot: None }
}

fn counted(name: &[u8], capacity: u32) -> Declaration<'_> {
    Declaration { name, capacity, numbered: false, label: b"" }
}

fn numbered(name: &[u8], capacity: u32) -> Declaration<'_> {
    Declaration { name, capacity, numbered: true, label: b"" }
}

fn declare(caller: &mut Caller, if_exists: IfExists, list: &[Declaration<'_>]) -> ResponseFrame {
    let ids = caller.ids();
    caller.ask(&Extended::Declare { ids, if_exists, declarations: Declarations::new(list).unwrap() })
}

/// Declares a semaphore that does not exist.
#[track_caller]
fn declare_new(caller: &mut Caller, declaration: Declaration<'_>) -> DeclaredState {
    let answer = declare(caller, IfExists::Fail, &[declaration]);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.declared().unwrap()[0]
}

fn ask_to_resize(
    caller: &mut Caller,
    name: &[u8],
    how: Resizing,
    expected: Option<Generation>,
) -> ResponseFrame {
    let ids = caller.ids();
    caller.ask(&Extended::Resize { ids, expected, how, name })
}

#[track_caller]
fn resize(caller: &mut Caller, name: &[u8], how: Resizing) -> DeclaredState {
    let answer = ask_to_resize(caller, name, how, None);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.resized().unwrap()
}

fn remove(caller: &mut Caller, name: &[u8], how: Removal) -> u8 {
    let ids = caller.ids();
    caller.ask(&Extended::Remove { ids, expected: None, how, name }).status
}

fn list(caller: &mut Caller, prefix: &[u8]) -> Vec<DeclaredEntry<bytes::Bytes>> {
    let opaque = caller.send(&Extended::List { prefix });
    std::iter::from_fn(|| caller.answer(opaque).declared_entry().unwrap()).collect()
}

/// Capacity, usage and queue length of one semaphore; `None` means that it is not declared.
fn listed(caller: &mut Caller, name: &[u8]) -> Option<(u32, u32, u32)> {
    let entries = list(caller, name);
    let entry = entries.iter().find(|entry| &entry.name[..] == name)?;
    Some((entry.capacity, entry.in_use, entry.waiting))
}

fn await_idle(caller: &mut Caller, name: &[u8], until: Idle, wait: Wait) -> Opaque {
    caller.send(&Extended::AwaitIdle { wait, until, namespace: on_wire(Namespace::Semaphores), name })
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
        let rows = answer.declared().unwrap();
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
        let kept = declare(&mut admin, IfExists::Keep, &both).declared().unwrap();
        assert_eq!((kept[0].capacity, kept[1]), (1, rows[0]), "the existing semaphore is unchanged");
        let set = declare(&mut admin, IfExists::Set, &both).declared().unwrap();
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
        assert_eq!(
            resize(&mut admin, b"a", Resizing::ShrinkBy(4)).capacity,
            0,
            "a capacity cannot be negative"
        );
        assert_eq!(ask_to_resize(&mut admin, b"b", Resizing::To(1), None).status, NOT_FOUND);
        declare_new(&mut admin, numbered(b"n", 65_536));
        assert_eq!(ask_to_resize(&mut admin, b"n", Resizing::GrowBy(1), None).status, INVALID);
        assert_eq!(listed(&mut admin, b"n"), Some((65_536, 0, 0)));
        server.check();
    }
}

#[test]
fn only_one_of_two_administrators_that_expect_the_same_generation_changes_it() {
    for server in AnyServer::each() {
        let [mut one, mut other] = server.callers();
        let seen = declare_new(&mut one, counted(b"a", 3)).generation;
        let first = ask_to_resize(&mut one, b"a", Resizing::To(4), Some(seen)).resized().unwrap();
        let late = ask_to_resize(&mut other, b"a", Resizing::To(2), Some(seen));
        assert_eq!(late.status, code(Status::GenerationDiffers));
        let ids = other.ids();
        let gone = Extended::Remove { ids, expected: Some(seen), how: Removal::IfIdle, name: b"a" };
        assert_eq!(other.ask(&gone).status, code(Status::GenerationDiffers));
        assert_eq!(listed(&mut one, b"a"), Some((4, 0, 0)));
        let ids = other.ids();
        let gone =
            Extended::Remove { ids, expected: Some(first.generation), how: Removal::IfIdle, name: b"a" };
        assert_eq!(other.ask(&gone).status, OK);
        let again = declare_new(&mut one, counted(b"a", 3)).generation;
        assert!(again > first.generation, "generations continue after those of the removed semaphore");
        let late = ask_to_resize(&mut other, b"a", Resizing::To(2), Some(first.generation));
        assert_eq!(late.status, code(Status::GenerationDiffers));
        server.check();
    }
}

#[test]
fn many_administrators_lose_no_change_without_a_mutex() {
    const EACH: u32 = 60;
    for server in AnyServer::each() {
        let [mut admin] = server.callers();
        declare_new(&mut admin, counted(b"a", 1000));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let mut caller = server.caller();
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let how = if number % 2 == 0 { Resizing::GrowBy(3) } else { Resizing::ShrinkBy(1) };
                        resize(&mut caller, b"a", how);
                    }
                });
                let mut caller = server.caller();
                // Read, add one, write if no other administrator wrote in between.
                scope.spawn(move || {
                    for _ in 0..EACH {
                        loop {
                            let seen = list(&mut caller, b"a").remove(0);
                            let how = Resizing::To(seen.capacity + 1);
                            let answer = ask_to_resize(&mut caller, b"a", how, Some(seen.generation));
                            if answer.status == OK {
                                break;
                            }
                            assert_eq!(answer.status, code(Status::GenerationDiffers));
                        }
                    }
                });
            }
        });
        let expected = 1000 + 2 * EACH * 3 - 2 * EACH + 4 * EACH;
        assert_eq!(listed(&mut admin, b"a"), Some((expected, 0, 0)));
        server.check();
    }
}

#[test]
fn a_repeated_change_is_made_once() {
    for server in AnyServer::each() {
        let [mut admin, mut other] = server.callers();
        let session = admin.open(60_000);
        let list = [counted(b"a", 1)];
        let declarations = Declarations::new(&list).unwrap();
        let declare = Extended::Declare { ids: admin.ids(), if_exists: IfExists::Fail, declarations };
        let grow =
            Extended::Resize { ids: admin.ids(), expected: None, how: Resizing::GrowBy(1), name: b"a" };
        let first = [admin.ask(&declare), admin.ask(&grow)].map(|answer| answer.body);
        resize(&mut other, b"a", Resizing::To(50));
        assert_eq!([admin.ask(&declare), admin.ask(&grow)].map(|answer| answer.body), first);
        // On another connection of the session too, and after another client removed the semaphore.
        assert_eq!(other.attach(session), OK);
        assert_eq!([other.ask(&declare), other.ask(&grow)].map(|answer| answer.body), first);
        for _ in 0..5 {
            other.ids();
        }
        let gone = Extended::Remove { ids: other.ids(), expected: None, how: Removal::IfIdle, name: b"a" };
        assert_eq!(other.ask(&gone).status, OK);
        assert_eq!(other.ask(&declare).body, first[0], "the repetition does not declare it again");
        assert_eq!(listed(&mut other, b"a"), None);
        declare_new(&mut other, counted(b"a", 1));
        assert_eq!(other.ask(&gone).status, OK);
        assert_eq!(listed(&mut other, b"a"), Some((1, 0, 0)), "the repetition does not remove it again");
        server.check();
    }
}

#[test]
fn a_change_repeated_while_it_is_stored_answers_the_last_request() {
    for server in AnyServer::each() {
        let [mut admin] = server.callers();
        declare_new(&mut admin, counted(b"a", 1));
        for _ in 0..50 {
            let grow =
                Extended::Resize { ids: admin.ids(), expected: None, how: Resizing::GrowBy(1), name: b"a" };
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
fn a_held_semaphore_is_removed_in_the_requested_way() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut plain] = server.callers();
        declare_new(&mut admin, counted(b"a", 3));
        let held = holder.take(semaphore(1, b"a"));
        assert_eq!(plain.wire.acquire(b"a", 1, 3).status, OK);
        assert_eq!(remove(&mut admin, b"a", Removal::IfIdle), code(Status::InUse));
        assert_eq!(verify(&mut admin, held.grant), HELD);
        assert_eq!(listed(&mut admin, b"a"), Some((3, 2, 0)));

        assert_eq!(remove(&mut admin, b"a", Removal::WithLastHolder), OK);
        assert_eq!(verify(&mut admin, held.grant), RETIRING);
        assert!(list(&mut admin, b"a")[0].removing);
        assert_eq!(plain.wire.acquire(b"a", 1, 3).status, NOT_AVAILABLE);
        let refused = holder.want(semaphore(1, b"a"), LONG);
        assert_eq!(holder.answer(refused).status, code(Status::Removed));
        assert_eq!(ask_to_resize(&mut admin, b"a", Resizing::To(9), None).status, code(Status::Removed));
        assert_eq!(holder.give_back(held.grant), OK);
        assert!(list(&mut admin, b"a")[0].removing, "one holder is left");
        assert_eq!(plain.wire.release(b"a", 1).status, OK);
        assert_eq!(listed(&mut admin, b"a"), None);
        assert_eq!(remove(&mut admin, b"a", Removal::IfIdle), NOT_FOUND);
        assert_eq!(plain.wire.acquire(b"a", 1, 7).status, OK, "an Acquire creates it as usual");
        assert_eq!(plain.wire.get(b"a").number(), 6);
        server.check();
    }
}

#[test]
fn a_removed_semaphore_ends_with_the_connection_of_its_last_holder() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut plain] = server.callers();
        declare_new(&mut admin, counted(b"a", 3));
        holder.take(semaphore(1, b"a"));
        assert_eq!(plain.wire.acquire(b"a", 1, 3).status, OK);
        assert_eq!(remove(&mut admin, b"a", Removal::WithLastHolder), OK);
        drop((holder, plain));
        eventually("it is gone", || listed(&mut admin, b"a").is_none());
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

/// Resources that a waiting AcquireAll has reserved are not a grant yet.
#[test]
fn a_waiter_that_has_reserved_a_semaphore_is_refused_when_it_is_removed_now() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut waiter] = server.callers();
        declare_new(&mut admin, counted(b"a", 1));
        declare_new(&mut admin, counted(b"b", 1));
        holder.take(semaphore(1, b"b"));
        let names = [semaphore(1, b"a"), semaphore(1, b"b")];
        let claims = Claims::new(&names).unwrap();
        let ids = waiter.ids();
        let waiting = waiter.send(&Extended::AcquireAll { ids, queueing: LONG, claims, place: None });
        eventually("one resource is reserved", || {
            listed(&mut admin, b"a").is_some_and(|listed| listed.1 == 1)
        });
        assert_eq!(remove(&mut admin, b"a", Removal::Now { grace: Milliseconds(0) }), OK);
        assert_eq!(waiter.answer(waiting).status, Status::Removed.code());
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
            let gone = Extended::Remove { ids: admin.ids(), expected: None, how, name: &name };
            let list = [numbered(&name, 300)];
            let declarations = Declarations::new(&list).unwrap();
            let again = Extended::Declare { ids: admin.ids(), if_exists: IfExists::Fail, declarations };
            let mut bytes = bytes::BytesMut::new();
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
fn a_shrink_revokes_nothing_and_blocks_grants_until_usage_is_low_enough() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut waiter, mut plain] = server.callers();
        declare_new(&mut admin, counted(b"a", 4));
        let held: Vec<_> = (0..4).map(|_| holder.take(semaphore(1, b"a")).grant).collect();
        let shrunk = resize(&mut admin, b"a", Resizing::To(2));
        assert_eq!((shrunk.capacity, shrunk.in_use), (2, 4));
        assert_eq!(plain.wire.get(b"a").number(), 0);
        let asked = waiter.want(semaphore(1, b"a"), LONG);
        server.wait_for_waiters(1);
        for (grant, in_use) in held[..2].iter().zip([3, 2]) {
            assert_eq!(verify(&mut admin, *grant), HELD);
            assert_eq!(holder.give_back(*grant), OK);
            assert_eq!(
                listed(&mut admin, b"a"),
                Some((2, in_use, 1)),
                "nothing is granted above the capacity"
            );
            assert_eq!(plain.wire.acquire(b"a", 1, 4).status, NOT_AVAILABLE);
        }
        assert_eq!(holder.give_back(held[2]), OK);
        assert_eq!(waiter.answer(asked).status, OK);
        assert_eq!(listed(&mut admin, b"a"), Some((2, 2, 0)));
        server.check();
    }
}

#[test]
fn a_growth_serves_the_waiters_at_once_in_order() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut first, mut second, mut third] = server.callers();
        declare_new(&mut admin, counted(b"a", 2));
        holder.take(semaphore(2, b"a"));
        let asked = first.want(semaphore(1, b"a"), LONG);
        server.wait_for_waiters(1);
        let behind = second.want(semaphore(2, b"a"), LONG);
        server.wait_for_waiters(2);
        let last = third.want(semaphore(1, b"a"), LONG);
        server.wait_for_waiters(3);
        resize(&mut admin, b"a", Resizing::GrowBy(2));
        assert_eq!(first.answer(asked).status, OK);
        server.wait_for_waiters(2);
        assert_eq!(listed(&mut admin, b"a"), Some((4, 3, 2)), "no request overtakes the waiter for two");
        resize(&mut admin, b"a", Resizing::GrowBy(2));
        assert_eq!((second.answer(behind).status, third.answer(last).status), (OK, OK));
        server.check();
    }
}

#[test]
fn waiters_for_more_than_the_new_capacity_are_refused_at_once() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut waiter] = server.callers();
        declare_new(&mut admin, counted(b"a", 5));
        let held = holder.take(semaphore(5, b"a"));
        let requests: Vec<_> = (0..200)
            .map(|number| (1 + number % 5, waiter.want(semaphore(1 + number % 5, b"a"), LONG)))
            .collect();
        server.wait_for_waiters(200);
        resize(&mut admin, b"a", Resizing::To(2));
        for (_, opaque) in requests.iter().filter(|(resources, _)| *resources > 2) {
            assert_eq!(waiter.answer(*opaque).status, NOT_AVAILABLE);
        }
        server.wait_for_waiters(80);
        assert_eq!(listed(&mut admin, b"a"), Some((2, 5, 80)), "the other waiters remain");
        resize(&mut admin, b"a", Resizing::To(1));
        server.wait_for_waiters(40);
        resize(&mut admin, b"a", Resizing::To(0));
        server.wait_for_waiters(0);
        assert_eq!(holder.give_back(held.grant), OK);
        server.check();
    }
}

#[test]
fn waiters_for_a_removed_semaphore_are_refused() {
    for (server, how) in
        AnyServer::each().into_iter().zip([Removal::WithLastHolder, Removal::Now { grace: Milliseconds(30) }])
    {
        let [mut admin, mut holder, mut waiter, mut both] = server.callers();
        declare_new(&mut admin, counted(b"a", 1));
        declare_new(&mut admin, counted(b"0", 1));
        let held = holder.take(semaphore(1, b"a"));
        let asked: Vec<_> = (0..150).map(|_| waiter.want(semaphore(1, b"a"), LONG)).collect();
        server.wait_for_waiters(150);
        let names = [semaphore(1, b"a"), semaphore(1, b"0")];
        let claims = Claims::new(&names).unwrap();
        let ids = both.ids();
        let all = both.send(&Extended::AcquireAll { ids, queueing: LONG, claims, place: None });
        server.wait_for_waiters(151);
        assert_eq!(listed(&mut admin, b"0"), Some((1, 1, 0)), "it is reserved");
        assert_eq!(remove(&mut admin, b"a", how), OK);
        for opaque in asked {
            assert_eq!(waiter.answer(opaque).status, code(Status::Removed));
        }
        assert_eq!(both.answer(all).status, code(Status::Removed));
        assert_eq!(listed(&mut admin, b"0"), Some((1, 0, 0)));
        holder.give_back(held.grant);
        eventually("it is gone", || listed(&mut admin, b"a").is_none());
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

/// A name is not idle if a release and the next grant happen in one step.
#[test]
fn resources_that_go_to_the_next_waiter_at_once_are_not_idle_in_between() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut waiter, mut watcher] = server.callers();
        declare_new(&mut admin, counted(b"a", 1));
        let held = holder.take(semaphore(1, b"a"));
        let asked = waiter.want(semaphore(1, b"a"), LONG);
        server.wait_for_waiters(1);
        let idle = await_idle(&mut watcher, b"a", Idle::Level(0), Wait::ServerDefault);
        watcher.sync();
        assert_eq!(holder.give_back(held.grant), OK);
        let next = waiter.answer(asked).granted().unwrap();
        watcher.sync();
        assert_eq!(waiter.give_back(next.grant), OK);
        assert_eq!(watcher.answer(idle).status, OK);
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
fn slots_of_several_semaphores_are_granted_together() {
    for server in AnyServer::each() {
        let [mut admin, mut holder] = server.callers();
        declare_new(&mut admin, numbered(b"b", 600));
        declare_new(&mut admin, numbered(b"a", 600));
        let all = |caller: &mut Caller, count| {
            let names = [semaphore(count, b"b"), semaphore(count, b"a")];
            let ids = caller.ids();
            caller.ask(&Extended::AcquireAll {
                ids,
                queueing: NOW,
                claims: Claims::new(&names).unwrap(),
                place: None,
            })
        };
        let granted = all(&mut holder, 2).all_granted().unwrap();
        assert_eq!((granted.capacities, granted.slots), (vec![600, 600], vec![vec![0, 1], vec![0, 1]]));
        assert_eq!(all(&mut holder, 513).status, NOT_AVAILABLE, "1024 slots altogether");
        assert_eq!(all(&mut holder, 512).status, OK);
        server.check();
    }
}

/// Random grants, releases and resizes: no two grants have the same slot at any time.
#[test]
fn no_slot_is_held_twice_while_semaphores_shrink_and_grow() {
    for (server, seed) in AnyServer::each().into_iter().zip([1, 2]) {
        let mut random = fastrand::Rng::with_seed(seed);
        let [mut admin, mut holder, mut plain, mut watcher] = server.callers();
        declare_new(&mut admin, numbered(b"a", 80));
        let mut held: BTreeMap<u16, GrantId> = BTreeMap::new();
        let (mut capacity, mut plainly) = (80, 0_u32);
        for step in 0..900 {
            match random.u8(0..10) {
                0 => {
                    capacity = random.u32(0..200);
                    resize(&mut admin, b"a", Resizing::To(capacity));
                }
                1 => {
                    let count = random.u32(1..4);
                    if plain.wire.acquire(b"a", count, 200).status == OK {
                        plainly += count;
                    }
                }
                2 if plainly > 0 => {
                    assert_eq!(plain.wire.release(b"a", plainly).status, OK);
                    plainly = 0;
                }
                3..6 if !held.is_empty() => {
                    let grant = *random.choice(held.values()).unwrap();
                    assert_eq!(holder.give_back(grant), OK);
                    held.retain(|_, other| *other != grant);
                }
                _ => {
                    let count = random.u32(1..12);
                    let opaque = holder.want(semaphore(count, b"a"), NOW);
                    let answer = holder.answer(opaque);
                    let in_use = held.len() as u32 + plainly;
                    let fits = in_use + count <= capacity;
                    assert_eq!(answer.status == OK, fits, "seed {seed}, step {step}: {in_use} of {capacity}");
                    if fits {
                        let granted = answer.granted().unwrap();
                        let free: Vec<_> =
                            (0..).filter(|slot| !held.contains_key(slot)).take(count as usize).collect();
                        assert_eq!(granted.slots, free, "seed {seed}, step {step}");
                        assert!(free.iter().all(|slot| u32::from(*slot) < capacity));
                        held.extend(free.into_iter().map(|slot| (slot, granted.grant)));
                    }
                }
            }
            if step % 50 == 0 {
                for (slot, grant) in &held {
                    let lowered = held.iter().any(|(slot, g)| g == grant && u32::from(*slot) >= capacity);
                    assert_eq!(verify(&mut watcher, *grant), if lowered { RETIRING } else { HELD }, "{slot}");
                }
                server.check();
            }
        }
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
        let (ids, what) = (admin.ids(), Revocation::Grant(high));
        let revoke = Extended::Revoke { ids, what, grace: Milliseconds(60_000) };
        assert_eq!(admin.ask(&revoke).status, OK);
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

#[test]
fn too_many_names_are_refused_and_none_of_them_is_created() {
    let server = TestServer::start_with(|config| config.semaphore.port.max_names = 3);
    let mut admin = Caller::new(server.semaphore());
    declare_new(&mut admin, counted(b"a", 1));
    let list = [b"b", b"c", b"d"].map(|name| counted(name, 1));
    assert_eq!(declare(&mut admin, IfExists::Keep, &list).status, code(Status::OutOfMemory));
    assert_eq!(admin.wire.dump().len(), 1);
    assert_eq!(declare(&mut admin, IfExists::Keep, &list[1..]).status, OK);
}

#[test]
fn a_waiter_that_a_shrink_refuses_no_longer_blocks_the_queue() {
    for server in AnyServer::each() {
        let [mut admin, mut holder, mut waiter] = server.callers();
        declare_new(&mut admin, counted(b"a", 2));
        let held = holder.take(semaphore(1, b"a"));
        let queueing = Queueing { wait: Wait::ServerDefault, queue_max: None };
        let asked = waiter.want(semaphore(2, b"a"), queueing);
        server.wait_for_waiters(1);
        assert_eq!(waiter.wire.acquire(b"a", 1, 2).status, NOT_AVAILABLE, "no request overtakes the waiter");
        resize(&mut admin, b"a", Resizing::To(1));
        assert_eq!(waiter.answer(asked).status, NOT_AVAILABLE);
        assert_eq!(holder.give_back(held.grant), OK);
        assert_eq!(waiter.wire.acquire(b"a", 1, 2).status, OK, "the queue is empty");
        server.check();
    }
}
