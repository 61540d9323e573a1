//! Inspect, DeleteCounter and the port in the answer to Hello (`docs/protocol.md`).

use signalbox_model::{EventKind, Inspected, Namespace, Operation, Scope, Status};
use signalbox_protocol::Extended;

use crate::support::caller::{Caller, LONG, one_of};
use crate::support::{NOT_FOUND, OK, TestServer, eventually};

fn inspect(caller: &mut Caller, namespace: Namespace, name: &[u8]) -> Result<Inspected, u8> {
    let answer = caller.ask(&Extended::Inspect { namespace: Some(namespace), name });
    if answer.status == OK { Ok(answer.inspected().unwrap()) } else { Err(answer.status) }
}

#[test]
fn a_name_of_either_kind_is_inspected_on_either_port() {
    let server = TestServer::start();
    let (mut counters, mut semaphores) = (server.counter(), server.semaphore());
    assert_eq!(counters.acquire(b"a", 3, 5).status, OK);
    assert_eq!(counters.release(b"a", 1).status, OK);
    assert_eq!(semaphores.acquire(b"b", 3, 5).status, OK);
    let mut waiter = Caller::new(server.counter());
    waiter.want(one_of(2, b"a"), LONG);
    eventually("the request waits", || server.server.core().ledger_stats().waiters == 1);
    for wire in [server.counter(), server.semaphore()] {
        let mut caller = Caller::new(wire);
        let a = inspect(&mut caller, Namespace::Counters, b"a");
        assert_eq!(
            a,
            Ok(Inspected {
                in_use: 2,
                peak: 3,
                waiting: 1,
                capacity: 0,
                available: 0,
                namespace: Namespace::Counters
            })
        );
        let b = inspect(&mut caller, Namespace::Semaphores, b"b");
        assert_eq!(
            b,
            Ok(Inspected {
                in_use: 3,
                peak: 3,
                waiting: 0,
                capacity: 5,
                available: 2,
                namespace: Namespace::Semaphores
            })
        );
        assert_eq!(inspect(&mut caller, Namespace::Semaphores, b"a"), Err(NOT_FOUND));
    }
}

#[test]
fn a_counter_is_deleted_only_while_it_is_not_in_use() {
    let server = TestServer::start();
    let (mut plain, mut caller) = (server.counter(), Caller::new(server.semaphore()));
    let delete = |caller: &mut Caller, name: &[u8]| caller.change(Operation::DeleteCounter { name }).status;
    assert_eq!(delete(&mut caller, b"a"), NOT_FOUND);
    caller.hello("watcher");
    let scope = Scope::Name(&b"a"[..]);
    let watch = caller.send(&Extended::Watch { namespace: Namespace::Counters, scope });
    assert_eq!(caller.answer(watch).event().unwrap().1.kind, EventKind::Live);
    let mut deleter = Caller::new(server.counter());
    for name in [&b"a"[..], b"b"] {
        assert_eq!(plain.acquire(name, 2, 2).status, OK);
        assert_eq!(delete(&mut deleter, name), Status::InUse.code());
    }
    let mut waiter = Caller::new(server.counter());
    waiter.want(one_of(2, b"a"), LONG);
    eventually("the request waits", || server.server.core().ledger_stats().waiters == 1);
    assert_eq!(delete(&mut deleter, b"a"), Status::InUse.code());
    assert_eq!(plain.release(b"a", 2).status, OK);
    let granted = waiter.next().granted().unwrap();
    assert_eq!(delete(&mut deleter, b"a"), Status::InUse.code(), "the waiter was granted it");
    assert_eq!(waiter.give_back(granted.grant), OK);
    assert_eq!(delete(&mut deleter, b"a"), OK);
    assert_eq!(delete(&mut deleter, b"a"), NOT_FOUND);
    assert_eq!(plain.stat("objects"), 1, "the other counter");
    let kinds: Vec<_> = (0..6).map(|_| caller.answer(watch).event().unwrap().1.kind).collect();
    assert_eq!(kinds.last(), Some(&EventKind::Removed), "{kinds:?}");
    assert_eq!(plain.acquire(b"a", 1, 1).status, OK, "the name can be used again");
    server.server.core().check_ledger().unwrap();
    server.assert_books_balance();
}
