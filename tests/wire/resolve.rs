//! Names whose namespace the server finds out (`docs/protocol.md`, "Limits").

use signalbox_model::{AS_DECLARED, Claim, IfExists, Namespace, Operation, Removal, Status};
use signalbox_protocol::{Claims, Extended};

use crate::support::caller::{
    Caller, LONG, NOW, counted, declare, declare_new, limit, numbered, one_of, semaphore,
};
use crate::support::{OK, TestServer, eventually};

/// The kind to which the server resolves a name, and what is in use of it.
fn resolved(caller: &mut Caller, name: &[u8]) -> (Namespace, u32) {
    let answer = caller.ask(&Extended::Inspect { namespace: None, name });
    assert_eq!(answer.status, OK, "{answer:?}");
    let inspected = answer.inspected().unwrap();
    (inspected.namespace, inspected.in_use)
}

#[test]
fn a_declared_name_is_the_semaphore_and_another_one_the_counter() {
    for connect in [TestServer::counter, TestServer::semaphore] {
        let server = TestServer::start();
        let mut caller = Caller::new(connect(&server));
        declare(&mut caller, IfExists::Keep, &[numbered(b"gpu", 3)]);
        let asked = caller.want(limit(AS_DECLARED, b"gpu"), NOW);
        let granted = caller.answer(asked).granted().unwrap();
        assert_eq!((granted.capacity, granted.slots.len()), (3, 1));
        let asked = caller.want(limit(3, b"gpu"), NOW);
        assert_eq!(caller.answer(asked).granted().unwrap().capacity, 3);
        let asked = caller.want(limit(5, b"tenant"), NOW);
        let granted = caller.answer(asked).granted().unwrap();
        assert_eq!((granted.capacity, granted.slots.len()), (5, 0));
        assert_eq!(resolved(&mut caller, b"gpu"), (Namespace::Semaphores, 2));
        assert_eq!(resolved(&mut caller, b"tenant"), (Namespace::Counters, 1));
    }
}

#[test]
fn a_maximum_below_the_capacity_is_refused_with_the_capacity() {
    let server = TestServer::start();
    let mut caller = Caller::new(server.counter());
    declare_new(&mut caller, counted(b"deploys", 3));
    let asked = caller.want(limit(2, b"deploys"), LONG);
    let refused = caller.answer(asked);
    assert_eq!(refused.status, Status::MaximumTooSmall.code());
    assert_eq!(refused.capacity(), Some(3));
    // Nothing of either kind was taken.
    assert_eq!(resolved(&mut caller, b"deploys"), (Namespace::Semaphores, 0));
    let asked = caller.want(limit(4, b"deploys"), NOW);
    assert_eq!(caller.answer(asked).granted().unwrap().capacity, 3);
}

#[test]
fn a_name_that_is_not_declared_needs_a_maximum() {
    let server = TestServer::start();
    let mut caller = Caller::new(server.counter());
    for claim in [limit(AS_DECLARED, b"nobody"), Claim { slot: Some(0), ..limit(3, b"nobody") }] {
        let asked = caller.want(claim, LONG);
        assert_eq!(caller.answer(asked).status, Status::NotFound.code());
    }
    // A semaphore that is not declared belongs to clients of yrmcds, and is not a limit.
    let mut plain = server.semaphore();
    assert_eq!(plain.acquire(b"plain", 1, 3).status, OK);
    let asked = caller.want(limit(AS_DECLARED, b"plain"), NOW);
    assert_eq!(caller.answer(asked).status, Status::NotFound.code());
    let asked = caller.want(limit(3, b"plain"), NOW);
    assert_eq!(caller.answer(asked).status, OK);
    assert_eq!(resolved(&mut caller, b"plain"), (Namespace::Counters, 1));
}

#[test]
fn a_name_is_not_declared_while_grants_of_its_counter_are_held_or_waited_for() {
    let server = TestServer::start();
    let [mut holder, mut waiter, mut admin] = [(); 3].map(|()| Caller::new(server.counter()));
    let held = holder.take(limit(1, b"a"));
    let asked = waiter.want(limit(1, b"a"), LONG);
    eventually("it waits", || server.server.core().ledger_stats().waiters == 1);
    let in_use = Status::CounterInUse.code();
    for if_exists in [IfExists::Fail, IfExists::Keep, IfExists::Set] {
        assert_eq!(declare(&mut admin, if_exists, &[counted(b"b", 1), counted(b"a", 1)]).status, in_use);
    }
    assert_eq!(resolved(&mut admin, b"a").0, Namespace::Counters);
    holder.give_back(held.grant);
    let second = waiter.answer(asked).granted().unwrap();
    assert_eq!(declare(&mut admin, IfExists::Fail, &[counted(b"a", 1)]).status, in_use);
    waiter.give_back(second.grant);
    // Plain clients do not prevent it: their port decides the namespace.
    let mut plain = server.counter();
    assert_eq!(plain.acquire(b"a", 1, 1).status, OK);
    assert_eq!(declare(&mut admin, IfExists::Fail, &[counted(b"a", 1)]).status, OK);
    let asked = waiter.want(limit(1, b"a"), NOW);
    assert_eq!(waiter.answer(asked).status, OK);
    assert_eq!(resolved(&mut admin, b"a"), (Namespace::Semaphores, 1));
}

#[test]
fn a_semaphore_that_is_being_removed_is_the_limit_until_its_last_holder_has_left() {
    let server = TestServer::start();
    let [mut holder, mut other] = [(); 2].map(|()| Caller::new(server.counter()));
    declare_new(&mut other, counted(b"a", 2));
    let held = holder.take(limit(AS_DECLARED, b"a"));
    other.change(Operation::Remove { name: b"a", how: Removal::WithLastHolder, expected: None });
    let asked = other.want(limit(2, b"a"), NOW);
    assert_eq!(other.answer(asked).status, Status::Removed.code());
    holder.give_back(held.grant);
    let asked = other.want(limit(2, b"a"), NOW);
    assert_eq!(other.answer(asked).status, OK);
    assert_eq!(resolved(&mut other, b"a"), (Namespace::Counters, 1));
}

#[test]
fn a_name_of_several_is_resolved_when_its_turn_comes() {
    let server = TestServer::start();
    let [mut holder, mut waiter, mut admin] = [(); 3].map(|()| Caller::new(server.counter()));
    let held = holder.take(one_of(1, b"a"));
    let asked = {
        let claims = [limit(4, b"b"), limit(1, b"a")];
        let claims = Claims::new(&claims).unwrap();
        let ids = waiter.ids();
        waiter.send(&Extended::AcquireAll { ids, queueing: LONG, claims, place: None })
    };
    eventually("it waits", || server.server.core().ledger_stats().waiters == 1);
    // Nothing of "b" was taken, so it can be declared.
    assert_eq!(declare(&mut admin, IfExists::Fail, &[counted(b"b", 2)]).status, OK);
    holder.give_back(held.grant);
    let granted = waiter.answer(asked).all_granted().unwrap();
    assert_eq!(granted.capacities, [2, 1]);
    assert_eq!(resolved(&mut admin, b"b"), (Namespace::Semaphores, 1));
    // The other of its two resources is still free.
    holder.take(semaphore(1, b"b"));
}
