//! The answers of each operation, on both ports, as the two documents specify. These tests run against any server that
//! implements the protocol (see `support`).

use crate::support::*;
use signalbox_model::Namespace;

/// Runs a test on each namespace that is served.
fn on_both(test: impl Fn(Namespace, &mut dyn FnMut() -> Wire)) {
    let server = AnyServer::start();
    for namespace in Namespace::ALL {
        if server.connect(namespace).is_some() {
            test(namespace, &mut || server.connect(namespace).unwrap());
        }
    }
}

/// Runs a test on one namespace, if it is served.
fn on(namespace: Namespace, test: impl Fn(&mut dyn FnMut() -> Wire)) {
    let server = AnyServer::start();
    if server.connect(namespace).is_some() {
        test(&mut || server.connect(namespace).unwrap());
    }
}

#[test]
fn noop_succeeds_without_a_body() {
    on_both(|_, connect| {
        let answer = connect().ask(NOOP, &[]);
        assert_eq!((answer.status, answer.body.len()), (OK, 0));
    });
}

#[test]
fn a_name_that_was_never_acquired_is_not_found() {
    on_both(|_, connect| {
        let mut wire = connect();
        for answer in [wire.get(&unique("absent")), wire.release(&unique("absent"), 1)] {
            assert_eq!((answer.status, &answer.body[..]), (NOT_FOUND, &b"Not found"[..]));
        }
        assert_eq!(wire.release(&unique("absent"), 0).status, NOT_FOUND);
    });
}

#[test]
fn acquire_returns_the_acquired_amount_and_get_the_current_value() {
    on_both(|namespace, connect| {
        let mut wire = connect();
        let name = unique("taken");
        let acquired = wire.acquire(&name, 3, 10);
        assert_eq!((acquired.status, acquired.number()), (OK, 3));
        let value = |taken| if namespace == Namespace::Counters { taken } else { 10 - taken };
        assert_eq!(wire.get(&name).number(), value(3));
        assert_eq!(wire.acquire(&name, 7, 10).number(), 7);
        assert_eq!(wire.get(&name).number(), value(10));
        let refused = wire.acquire(&name, 1, 10);
        assert_eq!((refused.status, &refused.body[..]), (NOT_AVAILABLE, &b"Resource not available"[..]));
        let released = wire.release(&name, 4);
        assert_eq!((released.status, released.body.len()), (OK, 0));
        assert_eq!(wire.get(&name).number(), value(6));
    });
}

#[test]
fn a_connection_cannot_release_more_than_it_holds() {
    on_both(|_, connect| {
        let (mut one, mut other) = (connect(), connect());
        let name = unique("mine");
        assert_eq!(one.acquire(&name, 2, 10).status, OK);
        assert_eq!(other.acquire(&name, 5, 10).status, OK);
        let refused = one.release(&name, 3);
        assert_eq!((refused.status, &refused.body[..]), (NOT_ACQUIRED, &b"Not acquired"[..]));
        assert_eq!(one.release(&name, u32::MAX).status, NOT_ACQUIRED);
        assert_eq!(one.release(&name, 2).status, OK);
        assert_eq!(one.release(&name, 1).status, NOT_ACQUIRED);
        assert_eq!(other.release(&name, 5).status, OK);
    });
}

#[test]
fn each_request_sets_its_own_maximum_of_a_counter() {
    on(Namespace::Counters, |connect| {
        let mut wire = connect();
        let name = unique("moving");
        assert_eq!(wire.acquire(&name, 5, 5).status, OK);
        assert_eq!(wire.acquire(&name, 1, 5).status, NOT_AVAILABLE);
        assert_eq!(wire.acquire(&name, 1, 6).status, OK);
        assert_eq!(wire.acquire(&name, 1, 3).status, NOT_AVAILABLE);
        assert_eq!(wire.get(&name).number(), 6);
    });
}

#[test]
fn a_semaphore_keeps_the_capacity_it_was_created_with() {
    on(Namespace::Semaphores, |connect| {
        let mut wire = connect();
        let name = unique("fixed");
        assert_eq!(wire.acquire(&name, 1, 3).status, OK);
        assert_eq!(wire.acquire(&name, 3, 100).status, NOT_AVAILABLE, "initial is ignored, not raised");
        assert_eq!(wire.acquire(&name, 2, 2).status, OK, "initial is ignored, not lowered");
        assert_eq!(wire.get(&name).number(), 0);
        assert_eq!(wire.acquire(&name, 5, 4).status, INVALID, "but it is checked");
    });
}

#[test]
fn arguments_that_no_state_can_satisfy_are_invalid() {
    on_both(|_, connect| {
        let mut wire = connect();
        let name = unique("wrong");
        let long_name_missing = [&[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0xff][..], b"short"].concat();
        let bodies: [(u8, Vec<u8>); 12] = [
            (ACQUIRE, named(&[0, 1], &name)),
            (ACQUIRE, named(&[2, 1], &name)),
            (ACQUIRE, named(&[1, 0], &name)),
            (ACQUIRE, named(&[1, 1], b"")),
            (ACQUIRE, long_name_missing),
            (ACQUIRE, vec![0; 9]),
            (ACQUIRE, vec![]),
            (RELEASE, named(&[1], b"")),
            (RELEASE, vec![0; 5]),
            (GET, named(&[], b"")),
            (GET, vec![0]),
            (GET, vec![0, 2, b'a']),
        ];
        for (opcode, body) in bodies {
            let answer = wire.ask(opcode, &body);
            assert_eq!(answer.status, INVALID, "{opcode:#04x} {}", body.escape_ascii());
            assert_eq!(answer.body, b"Invalid arguments");
        }
        assert_eq!(wire.get(&name).status, NOT_FOUND, "a refused request makes no name");
        assert_eq!(wire.ask(NOOP, &[]).status, OK, "and the connection stays open");
    });
}

#[test]
fn bytes_beyond_what_an_operation_defines_are_ignored() {
    on_both(|_, connect| {
        let mut wire = connect();
        let name = unique("trailing");
        let with_rest = |mut body: Vec<u8>| {
            body.extend_from_slice(b"and the rest");
            body
        };
        assert_eq!(wire.ask(NOOP, b"a body").status, OK);
        assert_eq!(wire.ask(ACQUIRE, &with_rest(named(&[1, 1], &name))).status, OK);
        assert_eq!(wire.ask(GET, &with_rest(named(&[], &name))).status, OK);
        assert_eq!(wire.ask(RELEASE, &with_rest(named(&[1], &name))).status, OK);
        assert_eq!(wire.ask(STATS, b"a body").status, OK);
    });
}

#[test]
fn names_are_bytes_of_any_value_and_up_to_65535_of_them() {
    on_both(|_, connect| {
        let mut wire = connect();
        for name in [vec![0], vec![0xff; 3], b"a\0b".to_vec(), vec![b'x'; 65535], {
            let mut name = vec![b'x'; 65535];
            name[65534] = b'y';
            name
        }] {
            // The server may be an external one on which an earlier run left the name without holders.
            assert_eq!(wire.acquire(&name, 2, 2).status, OK);
            assert_eq!(wire.acquire(&name, 1, 2).status, NOT_AVAILABLE);
            assert_eq!(wire.release(&name, 2).status, OK);
        }
    });
}

#[test]
fn amounts_reach_the_largest_u32() {
    on_both(|namespace, connect| {
        let mut wire = connect();
        let name = unique("all");
        assert_eq!(wire.acquire(&name, u32::MAX, u32::MAX).number(), u32::MAX);
        let all = if namespace == Namespace::Counters { u32::MAX } else { 0 };
        assert_eq!(wire.get(&name).number(), all);
        assert_eq!(wire.release(&name, u32::MAX - 1).status, OK);
        assert_eq!(wire.acquire(&name, u32::MAX - 1, u32::MAX).status, OK);
    });
}

#[test]
fn flags_and_reserved_bytes_of_a_request_are_ignored() {
    on_both(|_, connect| {
        let mut wire = connect();
        let mut request = frame(NOOP, *b"flag", &[]);
        request[2] = 0xff;
        request[3] = 0xff;
        wire.send(&request);
        let answer = wire.answer();
        assert_eq!((answer.status, answer.reserved, answer.opaque), (OK, 0, *b"flag"));
    });
}

#[test]
fn stats_begin_with_the_fifteen_items_of_yrmcds_in_its_order() {
    on_both(|_, connect| {
        let items = connect().stats();
        let names: Vec<_> = items.iter().take(15).map(|(name, _)| name.as_str()).collect();
        let expected = "objects total_objects used_memory conflicts gc_count last_gc_elapsed total_gc_elapsed \
                        curr_connections total_connections command:noop command:get command:acquire \
                        command:release command:stats command:dump";
        assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
        for (name, value) in &items[..15] {
            assert!(value.parse::<u64>().is_ok(), "{name} = {value}");
        }
    });
}

#[test]
fn dump_lists_names_with_consumption_and_peak_and_ends_with_an_empty_response() {
    on_both(|_, connect| {
        let mut wire = connect();
        let (busy, idle) = (unique("busy"), unique("idle"));
        assert_eq!(wire.acquire(&busy, 5, 10).status, OK);
        assert_eq!(wire.acquire(&busy, 3, 10).status, OK);
        assert_eq!(wire.release(&busy, 1).status, OK);
        assert_eq!(wire.acquire(&idle, 100, 100).status, OK);
        // A semaphore without holders may be swept at any time, a counter not before its interval ends.
        assert_eq!(wire.release(&idle, 99).status, OK);
        assert_eq!(wire.dumped(&busy), Some((7, 8)));
        assert_eq!(wire.dumped(&idle), Some((1, 100)));
        assert_eq!(wire.ask(NOOP, &[]).status, OK);
    });
}

#[test]
fn the_two_ports_have_separate_names() {
    let server = TestServer::start();
    let name = unique("same");
    let (mut counter, mut semaphore) = (server.counter(), server.semaphore());
    assert_eq!(counter.acquire(&name, 1, 1).status, OK);
    assert_eq!(semaphore.get(&name).status, NOT_FOUND);
    assert_eq!(semaphore.acquire(&name, 1, 1).status, OK);
    assert_eq!(counter.release(&name, 1).status, OK);
    assert_eq!(semaphore.get(&name).number(), 0);
}
