//! The lifetime of names and their statistics: intervals, peaks, the sweep.

use crate::support::*;

#[test]
fn the_peak_of_a_counter_covers_the_current_interval() {
    let server = TestServer::start();
    let mut wire = server.counter();
    assert_eq!(wire.acquire(b"peaky", 8, 10).status, OK);
    assert_eq!(wire.release(b"peaky", 5).status, OK);
    assert_eq!(wire.dumped(b"peaky"), Some((3, 8)));
    server.set_clock(1_000_000_099);
    assert_eq!(wire.dumped(b"peaky"), Some((3, 8)), "the last second of the interval");
    server.set_clock(1_000_000_100);
    assert_eq!(wire.dumped(b"peaky"), Some((3, 3)), "unchanged since the boundary");
    assert_eq!(wire.release(b"peaky", 2).status, OK);
    assert_eq!(wire.dumped(b"peaky"), Some((1, 3)), "the value at the beginning of the interval counts");
    assert_eq!(wire.acquire(b"peaky", 4, 10).status, OK);
    assert_eq!(wire.dumped(b"peaky"), Some((5, 5)));
}

#[test]
fn a_refused_acquire_does_not_raise_the_peak() {
    let server = TestServer::start();
    for mut wire in [server.counter(), server.semaphore()] {
        assert_eq!(wire.acquire(b"full", 2, 3).status, OK);
        assert_eq!(wire.acquire(b"full", 2, 3).status, NOT_AVAILABLE);
        assert_eq!(wire.dumped(b"full"), Some((2, 2)));
    }
}

#[test]
fn a_counter_at_zero_exists_until_the_interval_of_its_last_change_ends() {
    let server = TestServer::start();
    let mut wire = server.counter();
    assert_eq!(wire.acquire(b"idle", 4, 4).status, OK);
    assert_eq!(wire.acquire(b"held", 1, 1).status, OK);
    assert_eq!(wire.release(b"idle", 4).status, OK);
    assert_eq!(wire.dumped(b"idle"), Some((0, 4)));
    server.set_clock(1_000_000_100);
    eventually("the sweep collects it", || wire.get(b"idle").status == NOT_FOUND);
    assert_eq!(wire.get(b"held").number(), 1, "a held name is not collected");
    assert_eq!(wire.stat("objects"), 1);
    assert!(wire.stat("gc_count") >= 1);
    // Changed in this interval, it stays through a sweep that collects another.
    assert_eq!(wire.acquire(b"young", 1, 1).status, OK);
    server.set_clock(1_000_000_250);
    assert_eq!(wire.release(b"young", 1).status, OK);
    eventually("another sweep passes", || wire.stat("gc_count") >= 2);
    assert_eq!(wire.dumped(b"young"), Some((0, 1)));
}

#[test]
fn a_clock_set_back_loses_no_peak_and_collects_nothing() {
    let server = TestServer::start();
    let mut wire = server.counter();
    assert_eq!(wire.acquire(b"steady", 5, 5).status, OK);
    assert_eq!(wire.release(b"steady", 4).status, OK);
    server.set_clock(999_999_000);
    assert_eq!(wire.dumped(b"steady"), Some((1, 5)));
    assert_eq!(wire.release(b"steady", 1).status, OK);
    assert_eq!(wire.dumped(b"steady"), Some((0, 5)));
}

#[test]
fn a_fully_released_semaphore_keeps_its_capacity_until_it_is_swept() {
    let server = TestServer::start_with(|_| {});
    let mut wire = server.semaphore();
    assert_eq!(wire.acquire(b"made", 1, 3).status, OK);
    assert_eq!(wire.release(b"made", 1).status, OK);
    // Either it exists with its capacity, or it was swept and an Acquire creates it again.
    let found = wire.get(b"made");
    assert!(found.status == NOT_FOUND || found.number() == 3, "{found:?}");
    eventually("the sweep collects it", || wire.get(b"made").status == NOT_FOUND);
    assert_eq!(wire.acquire(b"made", 1, 9).status, OK);
    assert_eq!(wire.get(b"made").number(), 8);
}

#[test]
fn a_held_semaphore_outlives_sweeps() {
    let server = TestServer::start();
    let mut wire = server.semaphore();
    assert_eq!(wire.acquire(b"kept", 1, 3).status, OK);
    let sweeps = wire.stat("gc_count");
    eventually("sweeps pass", || wire.stat("gc_count") >= sweeps + 3);
    assert_eq!(wire.get(b"kept").number(), 2);
}

#[test]
fn statistics_are_live() {
    let server = TestServer::start();
    let mut wire = server.counter();
    assert_eq!(wire.stat("objects"), 0);
    assert_eq!(wire.acquire(b"a", 1, 1).status, OK);
    assert_eq!(wire.acquire(&[b'b'; 1000], 1, 1).status, OK);
    assert_eq!(wire.acquire(b"a", 1, 1).status, NOT_AVAILABLE);
    assert_eq!((wire.stat("objects"), wire.stat("total_objects")), (2, 2));
    assert_eq!(wire.stat("command:acquire"), 3);
    assert_eq!(wire.stat("curr_connections"), 1);
    let other = server.counter();
    eventually("the other connection is counted", || wire.stat("curr_connections") == 2);
    drop(other);
    eventually("its end is counted", || wire.stat("curr_connections") == 1);
    assert_eq!(wire.stat("total_connections"), 2);
    let before = wire.stat("command:stats");
    assert_eq!(wire.stat("command:stats"), before + 1, "an answer counts its own request");
}
