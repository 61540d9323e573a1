//! Clients that are slow, and clients that are many.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{HttpDaemon, ask, read_reply};
use crate::support::daemon::{number, text};
use crate::support::{OK, eventually};

/// Longer than every limit of the listener.
const LONG: Duration = Duration::from_secs(60);

/// Waits until the server closes the connection.
#[track_caller]
fn assert_closed_in_time(mut stream: TcpStream) {
    let begun = Instant::now();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut rest = Vec::new();
    // An answer may come first; a reset is an end too.
    let _ = stream.read_to_end(&mut rest);
    assert!(begun.elapsed() < LONG, "the server waits forever");
}

#[test]
fn a_head_that_never_ends_is_closed_and_others_are_served() {
    let http = HttpDaemon::start();
    let slow: Vec<_> =
        ["", "G", "GET /healthz HTTP/1.1\r\n", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "]
            .map(|start| {
                let mut stream = http.connect();
                stream.write_all(start.as_bytes()).unwrap();
                stream
            })
            .into();
    assert_eq!(http.get("/healthz").status, 200);
    slow.into_iter().for_each(assert_closed_in_time);
}

#[test]
fn a_body_that_never_ends_is_closed() {
    let http = HttpDaemon::start();
    let mut stream = http.connect();
    let head = "POST /api/v1/names HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let reply = read_reply(&mut stream);
    assert_eq!((reply.status, reply.code()), (408, "timeout".to_owned()));
}

#[test]
fn a_client_that_does_not_read_is_closed() {
    let http = HttpDaemon::start();
    let mut stream = http.connect();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    // Until nothing more is taken: the server waits for this client to read.
    while stream.write_all(&request).is_ok() {}
    assert!(connections(&http) >= 2);
    let begun = Instant::now();
    while connections(&http) > 1 {
        assert!(begun.elapsed() < LONG, "the connection is kept forever");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The kernel ends a connection whose peer takes nothing at all. This client always takes something.
#[test]
fn a_client_that_reads_too_slowly_is_closed() {
    let mut http = HttpDaemon::start();
    let mut counter = http.daemon.counter();
    for number in 0..300_u32 {
        let name = [&number.to_be_bytes()[..], &[b'n'; 60_000]].concat();
        assert_eq!(counter.acquire(&name, 1, 1).status, OK);
    }
    let mut stream = http.connect();
    // More answers than the buffers between the two have room for. In the time for one of them, the client takes half of it.
    let request = b"GET /api/v1/names?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    stream.write_all(&request).unwrap();
    let (begun, mut part) = (Instant::now(), [0; 2 * 1024]);
    // The buffers between the two still have output after the server has closed the connection.
    while connections(&http) > 1 {
        assert!(begun.elapsed() < LONG, "the connection is kept forever");
        assert!(stream.read(&mut part).unwrap() > 0, "the answers are too short for this test");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Names of 65,535 bytes that take six times as many in JSON.
fn long_names(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| [format!("{number:03}").as_bytes(), &[0; 65_532]].concat()).collect()
}

#[test]
fn pages_of_long_names_end_early_and_say_where_the_next_begins() {
    let mut http = HttpDaemon::start();
    let mut semaphore = http.daemon.semaphore();
    for name in long_names(7) {
        assert_eq!(semaphore.acquire(&name, 1, 1).status, OK);
    }
    let (mut after, mut found) = (String::new(), Vec::new());
    loop {
        let reply = http.get(&format!("/api/v1/names?limit=1000{after}"));
        assert!(reply.body.len() < 512 << 10, "{} bytes", reply.body.len());
        let page = reply.json();
        found.extend(page["items"].as_array().unwrap().iter().map(|item| item["name"].clone()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    found.sort_by_key(Value::to_string);
    let names = long_names(7).into_iter().map(|name| Value::from(String::from_utf8(name).unwrap()));
    assert_eq!(found, names.collect::<Vec<_>>());
}

#[test]
fn clients_that_do_not_take_their_answers_do_not_stop_others() {
    const LONG_PAGE: &str = "/api/v1/names?kind=semaphore&limit=1000";
    let (mut http, _config) = HttpDaemon::configured("memory_max = '96M'", "");
    let mut semaphore = http.daemon.semaphore();
    for name in long_names(10) {
        assert_eq!(semaphore.acquire(&name, 1, 1).status, OK);
    }
    // Each asks for more than the buffers between the two have room for, and reads nothing.
    let requests = format!("GET {LONG_PAGE} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(50);
    let slow: Vec<_> = (0..48)
        .map(|number| {
            let mut stream = http.connect_from(&format!("127.0.0.{}", 2 + number / 16));
            stream.write_all(requests.as_bytes()).unwrap();
            stream
        })
        .collect();
    for path in ["/healthz", "/metrics", "/api/v1/status", LONG_PAGE, "/api/v1/sessions"] {
        assert_eq!(http.get(path).status, 200, "{path}");
    }
    let memory = &http.get("/api/v1/status").json()["server"]["memory"];
    assert!(memory["used"].as_u64() < memory["max"].as_u64(), "{memory}");
    assert_eq!(http.daemon.semaphore().acquire(b"another", 1, 1).status, OK);
    drop(slow);
}

/// A request of a probe.
const PROBE: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn silent_connections_keep_no_probe_out() {
    let http = HttpDaemon::start();
    let mut silent = Vec::new();
    for address in ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"] {
        silent.extend((0..40).map(|_| http.connect_from(address)));
        for probe in ["127.0.0.1", address] {
            assert_eq!(ask(http.connect_from(probe), PROBE).status, 200, "{probe}");
        }
    }
}

/// All addresses of loopback are one client.
#[test]
fn a_client_with_its_share_loses_the_connection_that_has_been_idle_longest() {
    let mut http = HttpDaemon::start();
    let address = |number: usize| format!("127.0.0.{}", 2 + number % 3);
    let mut idle: Vec<_> = (0..31).map(|number| http.connect_from(&address(number))).collect();
    eventually("half of the connections are in use", || connections(&http) >= 32);
    let mut used = idle.remove(0);
    used.write_all(PROBE).unwrap();
    assert_eq!(read_reply(&mut used).status, 200);
    let mut further: Vec<_> = (0..3)
        .map(|number| {
            let mut stream = http.connect_from(&address(number));
            stream.write_all(PROBE).unwrap();
            assert_eq!(read_reply(&mut stream).status, 200);
            stream
        })
        .collect();
    idle.drain(..2).for_each(assert_closed_in_time);
    for stream in further.iter_mut().chain([&mut used]).chain(idle.last_mut()) {
        stream.write_all(PROBE).unwrap();
        assert_eq!(read_reply(stream).status, 200);
    }
    let line = http.daemon.logged_message("a client has used up its share of a limit");
    assert_eq!(text(&line, "limit"), "HTTP connections");
    assert_eq!(number(&line, "share"), 16);
    let refusals = http.get("/api/v1/refusals").json();
    for reason in ["client_share", "http_connections"] {
        assert!(refusals[reason].as_u64() >= Some(2), "{reason}: {refusals}");
    }
}

#[test]
fn a_connection_that_answers_a_request_is_not_closed_for_another_one() {
    let http = HttpDaemon::start();
    let head = |path, length| {
        format!(
            "POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    let mut used = http.connect_from("127.0.0.2");
    let release = format!("{{\"key\":\"{}\"}}", "0".repeat(32));
    used.write_all(format!("{}{release}", head("lease/release", release.len())).as_bytes()).unwrap();
    assert_eq!(read_reply(&mut used).status, 200);
    let body = r#"{"name": "gpu"}"#;
    let (begin, rest) = body.split_at(10);
    used.write_all(format!("{}{begin}", head("name", body.len())).as_bytes()).unwrap();
    let mut idle: Vec<_> = (0..40).map(|_| http.connect_from("127.0.0.2")).collect();
    assert_closed_in_time(idle.swap_remove(0));
    used.write_all(rest.as_bytes()).unwrap();
    assert_eq!(read_reply(&mut used).status, 404);
}

fn connections(http: &HttpDaemon) -> u64 {
    let text = http.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with("signalbox_http_connections ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A connection for leases may be one of thousands.
#[test]
fn a_client_with_its_share_of_the_memory_in_unfinished_requests_loses_the_oldest() {
    let (mut http, _config) = HttpDaemon::configured("memory_max = '16M'", "");
    let head = "POST /api/v1/lease/release HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let release = format!("{head}Content-Length: 44\r\n\r\n{{\"key\":\"{}\"}}  ", "0".repeat(32));
    let unfinished = format!("{head}X: {}", "x".repeat(60_000));
    let mut crowd: Vec<TcpStream> = Vec::new();
    eventually("the client has used up its share", || {
        for _ in 0..20 {
            let mut stream = http.connect();
            stream.write_all(release.as_bytes()).unwrap();
            assert_eq!(read_reply(&mut stream).status, 200);
            // The server may have closed it.
            let _ = stream.write_all(unfinished.as_bytes());
            crowd.push(stream);
        }
        !http.daemon.lines_with("a client has used up its share of a limit").is_empty()
    });
    let line = http.daemon.logged_message("a client has used up its share of a limit");
    assert_eq!(text(&line, "limit"), "memory_max");
    assert_closed_in_time(crowd.swap_remove(0));
    assert_eq!(http.get("/healthz").status, 200);
    let memory = &http.get("/api/v1/status").json()["server"]["memory"];
    assert!(memory["used"].as_u64() < memory["max"].as_u64(), "{memory}");
}

#[test]
fn a_head_and_a_body_have_a_longest_length() {
    let http = HttpDaemon::start();
    let long = "a".repeat(80_000);
    let reply = http.send(format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    assert!([414, 431].contains(&reply.status), "{}", reply.status);
    let name = "a".repeat(65_535);
    let reply = http.post("/api/v1/name", &[], &format!("{{\"name\": \"{name}\"}}"));
    assert_eq!(reply.status, 404, "the longest name fits");
    let reply = http.post("/api/v1/name", &[], &format!("{{\"name\": \"{}\"}}", "a".repeat(600_000)));
    assert_eq!((reply.status, reply.code()), (413, "body_too_large".to_owned()));
    // The longest body, most of which is space.
    let question = r#"{"name": "a"}"#;
    let longest = question.to_owned() + &" ".repeat(512 * 1024 - question.len());
    assert_eq!(http.post("/api/v1/name", &[], &longest).status, 404);
    for length in ["524289", "9223372036854775807"] {
        let head = format!(
            "POST /api/v1/lease/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        let reply = http.send(head.as_bytes());
        assert_eq!(
            (reply.status, reply.code()),
            (413, "body_too_large".to_owned()),
            "before its body was sent"
        );
    }
    let reply = http.request("GET", &format!("/{}", "a".repeat(50_000)), &[("Host", "localhost")], "");
    assert_eq!(reply.status, 404);
    assert!(reply.body.len() < 4096, "the answer to a long request is short");
    let host = format!("{}.example", "a".repeat(50_000));
    let reply = http.request("GET", "/", &[("Host", &host)], "");
    assert_eq!(reply.status, 421);
    assert!(reply.body.len() < 4096, "the answer to a long request is short");
    let reply = http.request(&"A".repeat(50_000), "/", &[("Host", "localhost")], "");
    assert!(reply.body.len() < 4096, "the answer to a long request is short");
}
