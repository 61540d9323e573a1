//! Health, the start and the configuration.

use std::io::{Read, Write};

use crate::client::{HttpDaemon, read_reply};
use crate::support::daemon::{ANY_PORTS, Daemon, serve, text};
use crate::support::{DUMP, OK, frame};
use nix::sys::signal::Signal;

#[test]
fn health_and_readiness_are_plain_text() {
    let http = HttpDaemon::start();
    let health = http.get("/healthz");
    assert_eq!((health.status, &*health.text()), (200, "ok\n"));
    let ready = http.get("/readyz");
    assert_eq!((ready.status, &*ready.text()), (200, "serving\n"));
    assert_eq!(ready.header("content-type"), Some("text/plain; charset=utf-8"));
}

#[test]
fn a_probe_may_name_any_host_or_none() {
    let http = HttpDaemon::start();
    for (path, word) in [("/healthz", "ok\n"), ("/readyz", "serving\n")] {
        for rest in [
            "HTTP/1.0\r\n",
            "HTTP/1.0\r\nHost: evil.example\r\n",
            "HTTP/1.1\r\n",
            "HTTP/1.1\r\nHost: evil.example\r\n",
            "HTTP/1.1\r\nHost: a\r\nHost: b\r\n",
            "HTTP/1.1\r\nHost: \r\n",
        ] {
            let reply = http.send(format!("GET {path} {rest}\r\n").as_bytes());
            assert_eq!((reply.status, &*reply.text()), (200, word), "{path} {rest:?}");
            let mut stream = http.connect();
            let head = format!("HEAD {path} {}Connection: close\r\n\r\n", rest);
            stream.write_all(head.as_bytes()).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.contains(" 200 OK\r\n") && text.ends_with("\r\n\r\n"), "{path} {rest:?} {text}");
        }
        let wrong = http.send(format!("OPTIONS {path} HTTP/1.0\r\n\r\n").as_bytes());
        assert_eq!(wrong.code(), "method_not_allowed");
    }
    // What HAProxy sends with `option httpchk` alone.
    let ready = http.send(b"OPTIONS / HTTP/1.0\r\n\r\n");
    assert_eq!((ready.status, &*ready.text()), (200, "serving\n"));
}

#[test]
fn without_a_setting_there_is_no_listener() {
    let mut daemon = Daemon::spawn(serve(ANY_PORTS));
    assert_eq!(text(&daemon.ready(), "http"), "disabled");
}

#[test]
fn every_answer_has_the_headers_that_protect_it() {
    let http = HttpDaemon::start();
    let refused = http.request("GET", "/", &[("Host", "evil.example")], "");
    let paths = ["/", "/healthz", "/metrics", "/api/v1/status", "/api/v1/missing"];
    let replies = paths.map(|path| (path, http.get(path))).into_iter().chain([("another host", refused)]);
    for (path, reply) in replies {
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        for (header, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("cross-origin-embedder-policy", "require-corp"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
        ] {
            assert_eq!(reply.header(header), Some(value), "{path}");
        }
        for absent in ["set-cookie", "access-control-allow-origin"] {
            assert_eq!(reply.header(absent), None, "{path}");
        }
    }
}

#[test]
fn a_connection_serves_several_requests() {
    let http = HttpDaemon::start();
    let mut stream = http.connect();
    for _ in 0..3 {
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(read_reply(&mut stream).status, 200);
    }
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut stream).status, 200);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn errors_are_json_with_a_code() {
    let http = HttpDaemon::start();
    for (path, status, code) in [
        ("/nothing", 404, "not_found"),
        ("/api/v1/name?name=a", 404, "not_found"),
        ("/api/v1/name", 400, "bad_request"),
        ("/api/v1/names?after=x", 400, "bad_request"),
        ("/api/v1/names?limit=1001", 400, "bad_request"),
        ("/api/v1/status?x=1", 400, "bad_request"),
        ("/api/v1/cluster?x=1", 400, "bad_request"),
        ("/api/v1/sessions?x=1", 400, "bad_request"),
        ("/api/v1/names?x=1", 400, "bad_request"),
        ("/api/v1/name?name=a&x=1", 400, "bad_request"),
        ("/api/v1/declared?x=1", 400, "bad_request"),
        ("/api/v1/declarations?x=1", 400, "bad_request"),
        ("/api/v1/tokens?x=1", 400, "bad_request"),
        ("/api/v1/grant?grant=1&x=1", 400, "bad_request"),
        ("/api/v1/sysv/users?id=1&x=1", 400, "bad_request"),
        ("/api/v1/holders?name=a", 400, "bad_request"),
    ] {
        let reply = http.get(path);
        assert_eq!((reply.status, reply.code()), (status, code.to_owned()), "{path}");
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    let host = http.address.to_string();
    let headers = [("Host", &*host), ("Content-Type", "application/json")];
    for headers in [&headers[..], &headers[..1]] {
        for method in ["DELETE", "PUT", "OPTIONS"] {
            for (path, allowed) in [
                ("/api/v1/names", "GET,HEAD,POST"),
                ("/api/v1/resize", "POST"),
                ("/api/v1/lease/renew", "POST"),
                ("/metrics", "GET,HEAD"),
                ("/page.js", "GET,HEAD"),
            ] {
                let reply = http.request(method, path, headers, "");
                assert_eq!((reply.status, reply.code()), (405, "method_not_allowed".to_owned()), "{method}");
                assert_eq!(reply.header("allow"), Some(allowed), "{method} {path}");
            }
            assert_eq!(http.request(method, "/nothing", headers, "").status, 404, "{method}");
        }
    }
    let mut stream = http.connect();
    let head = "POST /api/v1/names HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10";
    write!(stream, "{head}\r\n\r\n{{}}").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let reply = read_reply(&mut stream);
    assert_eq!((reply.status, reply.code()), (400, "bad_request".to_owned()));
}

#[test]
fn a_draining_server_is_not_ready() {
    let mut http = HttpDaemon::start();
    let mut holder = http.daemon.counter();
    for number in 0..20_000 {
        assert_eq!(holder.acquire(format!("{number:0>1000}").as_bytes(), 1, 1).status, OK);
    }
    // A client that does not take its Dump keeps the server from stopping for some seconds.
    let mut reader = http.daemon.counter();
    reader.send(&frame(DUMP, *b"dump", &[]));
    assert!(!reader.answer().body.is_empty());
    let mut stream = http.connect();
    http.daemon.signal(Signal::SIGTERM);
    http.daemon.logged_message("stopping");
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let reply = read_reply(&mut stream);
    assert_eq!((reply.status, &*reply.text()), (503, "draining\n"));
    drop((holder, reader));
}

#[test]
fn the_hosts_of_the_configuration_change_on_reload() {
    let (mut http, file) = HttpDaemon::with("hosts = 'box.example.org'\n");
    let asked = |http: &HttpDaemon, host: &str| http.request("GET", "/", &[("Host", host)], "").status;
    assert_eq!(asked(&http, "Box.Example.org:80"), 200);
    assert_eq!(asked(&http, "other.example.org"), 421);
    let before = std::fs::read_to_string(file.path()).unwrap();
    file.write(&before.replace("box.example.org", "other.example.org"));
    http.daemon.reload("the configuration was read again");
    assert_eq!(asked(&http, "box.example.org"), 421);
    assert_eq!(asked(&http, "other.example.org"), 200);
}

#[test]
fn a_port_that_is_in_use_is_reported() {
    let http = HttpDaemon::start();
    let port = http.address.port().to_string();
    let mut other = Daemon::spawn(serve(ANY_PORTS.into_iter().chain(["--http-port", &port])));
    assert!(!other.exit_status().success());
    assert!(
        other.said().contains(&format!("http.port = {port}: the port cannot be bound")),
        "{}",
        other.said()
    );
}
