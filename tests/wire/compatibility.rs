//! The intended differences from yrmcds that no other file tests. `docs/compatibility.md` names the test of each
//! difference.

use std::net::Shutdown;
use std::path::Path;

use crate::support::*;
use signalbox::config::{Config, Language, Loaded};

/// A configuration in the format of yrmcds.conf.
fn yrmcds_conf(text: &str) -> Loaded {
    Config::parse(text, Path::new("/etc/yrmcds.conf"), Language::Yrmcds).unwrap()
}

#[test]
fn consumption_never_wraps() {
    let server = TestServer::start();
    let mut wire = server.counter();
    assert_eq!(wire.acquire(b"large", 4_000_000_000, u32::MAX).status, OK);
    assert_eq!(wire.acquire(b"large", 1_000_000_000, u32::MAX).status, NOT_AVAILABLE);
    assert_eq!(wire.get(b"large").number(), 4_000_000_000);
}

#[test]
fn an_unknown_opcode_is_copied_into_the_answer() {
    let server = TestServer::start();
    for mut wire in [server.counter(), server.semaphore()] {
        for opcode in [0x04, 0x0f, 0x12, 0x1f, 0x7f, 0xff] {
            // `ask` compares the opcode of the answer with the one that was sent.
            assert_eq!(wire.ask(opcode, b"").status, UNKNOWN_COMMAND);
        }
    }
}

#[test]
fn a_release_of_zero_succeeds_without_a_holding() {
    let server = TestServer::start();
    for [mut holder, mut other] in
        [[server.counter(), server.counter()], [server.semaphore(), server.semaphore()]]
    {
        assert_eq!(holder.acquire(b"theirs", 1, 1).status, OK);
        let released = other.release(b"theirs", 0);
        assert_eq!((released.status, released.body.len()), (OK, 0));
        assert_eq!(other.release(b"theirs", 1).status, NOT_ACQUIRED);
        assert_eq!(other.release(b"absent", 0).status, NOT_FOUND);
    }
}

#[test]
fn additional_stats_items_follow_the_fifteen_of_yrmcds() {
    let server = TestServer::start();
    for mut wire in [server.counter(), server.semaphore()] {
        let items = wire.stats();
        let fifteenth = items.iter().position(|(name, _)| name == "command:dump");
        assert_eq!(fifteenth, Some(14));
        for name in ["uptime", "refused_connections", "bytes_received", "bytes_sent", "version"] {
            let position = items.iter().position(|(n, _)| n == name);
            assert!(position > fifteenth, "{name} is at position {position:?}");
        }
    }
}

#[test]
fn a_dump_of_semaphores_has_consumption_and_the_peak_since_creation() {
    let server = TestServer::start();
    let mut wire = server.semaphore();
    assert_eq!(wire.acquire(b"pool", 7, 10).status, OK);
    assert_eq!(wire.release(b"pool", 5).status, OK);
    assert_eq!(wire.get(b"pool").number(), 8, "the remaining resources of ten");
    assert_eq!(wire.dumped(b"pool"), Some((2, 7)));
    // The interval boundary of counters does not affect semaphores.
    server.set_clock(1_000_000_500);
    assert_eq!(wire.dumped(b"pool"), Some((2, 7)));
}

#[test]
fn conflicts_is_the_number_of_shards_with_two_names_or_more() {
    let server = TestServer::start();
    let mut wire = server.counter();
    assert_eq!(wire.acquire(b"alone", 1, 1).status, OK);
    assert_eq!(wire.stat("conflicts"), 0);
    for i in 0..2_000u32 {
        assert_eq!(wire.acquire(&i.to_be_bytes(), 1, 1).status, OK);
    }
    // With one name per shard on average, about 520 of 2048 shards have two or more.
    // One count serves all requests of a second.
    eventually("the shards are counted again", || (400..800).contains(&wire.stat("conflicts")));
}

#[test]
fn counters_are_first_swept_at_the_first_interval_boundary() {
    let server = TestServer::start();
    let mut wire = server.counter();
    assert_eq!(wire.stat("gc_count"), 0, "yrmcds sweeps once when it starts");
    server.set_clock(1_000_000_100);
    eventually("the sweep", || wire.stat("gc_count") == 1);
}

#[test]
fn requests_received_before_a_wrong_magic_are_executed() {
    let server = TestServer::start();
    let (mut wire, mut other) = (server.counter(), server.counter());
    let mut bytes = frame(ACQUIRE, *b"good", &named(&[1, 1], b"briefly"));
    bytes.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
    wire.send(&bytes);
    wire.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!((wire.answer().status, wire.answer().status), (OK, INVALID));
    assert!(wire.is_closed());
    eventually("its holding is released", || other.acquire(b"briefly", 1, 1).status == OK);
}

#[test]
fn the_spelling_in_the_documentation_of_yrmcds_works() {
    for key in ["counter.stat_interval", "counter.stats_interval"] {
        let loaded = yrmcds_conf(&format!("counter.enable = true\n{key} = 60\n"));
        assert_eq!(loaded.config.counter.stat_interval_s, 60);
        assert!(loaded.notices.is_empty(), "{:?}", loaded.notices);
    }
}

#[test]
fn an_interval_may_be_shorter_than_ten_seconds() {
    assert_eq!(yrmcds_conf("counter.stat_interval = 1").config.counter.stat_interval_s, 1);
}

#[test]
fn semaphores_are_served_if_the_file_enables_them() {
    let config = yrmcds_conf("semaphore.enable = true\nsemaphore.port = 11216\n").config;
    assert!(config.semaphore.port.enable && config.validate().is_ok());
    assert_eq!(config.semaphore.port.port, 11216);
}

#[test]
fn a_temp_dir_that_does_not_exist_is_accepted() {
    let loaded = yrmcds_conf("temp_dir = /nowhere/at/all\ncounter.enable = true\n");
    assert!(loaded.config.validate().is_ok());
}

#[test]
fn an_address_listed_twice_is_bound_once() {
    let config = yrmcds_conf("virtual_ip = 127.0.0.1\nbind_ip = 127.0.0.1 127.0.0.1\n").config;
    assert_eq!(config.bind.len(), 1);
    assert_eq!(config.floating_ip(), None, "bind_ip contains it");
}

#[test]
fn a_connection_limit_may_have_a_suffix() {
    let config = yrmcds_conf("counter.max_connections = 10K").config;
    assert_eq!(config.counter.port.max_connections, 10_240);
}

#[test]
fn a_comment_after_a_value_is_an_error() {
    let text = "counter.port = 11215 # old";
    assert!(Config::parse(text, Path::new("/etc/yrmcds.conf"), Language::Yrmcds).is_err());
}
