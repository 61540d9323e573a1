//! `signalbox bench` against a server in the test: its figures are consistent, and it leaves nothing behind.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::support::TestServer;
use crate::support::daemon::Daemon;
use serde_json::Value;

fn bench(server: SocketAddr, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_signalbox"))
        .args(["bench", "--warmup", "0"])
        .args(arguments)
        .env("SIGNALBOX_SERVER", server.to_string())
        .output()
        .unwrap()
}

/// The report of a successful bench.
#[track_caller]
fn report(server: SocketAddr, arguments: &[&str]) -> Value {
    let output = bench(server, &[arguments, &["--json"]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "there is no progress output without a terminal");
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).map_or(0, |value| value.as_u64().unwrap_or_else(|| panic!("{path}: {value}")))
}

/// Checks that no name is in use, before the end of the bench's connections could also have released them.
fn assert_nothing_is_in_use(server: &TestServer) {
    let entries = server.counter().dump();
    assert!(entries.iter().all(|(consumption, _, _)| *consumption == 0), "{entries:?}");
    server.assert_books_balance();
}

#[test]
fn the_counts_of_a_bench_are_consistent_with_the_server() {
    let server = TestServer::start();
    let arguments = ["--count", "10001", "--connections", "7", "--in-flight", "3", "--threads", "2"];
    let report = report(server.counters, &[&arguments[..], &["--mix", "pair=4,get=1,noop=1"]].concat());
    let answered = |operation: &str| number(&report, &format!("/latency_us/{operation}/answers"));
    assert_eq!(number(&report, "/answers"), 10_001);
    assert_eq!(answered("all"), 10_001);
    assert_eq!(answered("acquire") + answered("release") + answered("get") + answered("noop"), 10_001);
    let released_at_end = number(&report, "/released_at_end");
    assert_eq!(answered("acquire"), answered("release") + released_at_end, "no request was refused");
    assert_eq!(number(&report, "/statuses/acquire/No error"), answered("acquire"));

    let mut wire = server.counter();
    assert_eq!(wire.stat("command:acquire"), answered("acquire"));
    assert_eq!(wire.stat("command:release"), answered("release") + released_at_end);
    assert_eq!(wire.stat("command:get"), answered("get"));
}

#[test]
fn a_bench_releases_all_that_it_acquired() {
    let server = TestServer::start();
    report(server.counters, &["--duration", "0.2", "--in-flight", "16", "--names", "50"]);
    assert_nothing_is_in_use(&server);
    let released = server.counter().stat("command:release");
    assert_eq!(
        server.counter().stat("command:acquire"),
        released,
        "the bench released them itself, not by closing its connections"
    );
}

#[test]
fn a_refused_acquire_is_counted_by_its_status_and_not_released() {
    let server = TestServer::start();
    let mut holder = server.counter();
    assert_eq!(holder.acquire(b"bench-0000000000", 1, 1).status, crate::support::OK);
    let arguments = ["--count", "100", "--distribution", "one", "--max", "1"];
    let text = String::from_utf8(bench(server.counters, &arguments).stdout).unwrap();
    assert!(text.lines().any(|line| line == "acquire\t100\tResource not available"), "{text}");
    let report = report(server.counters, &arguments);
    assert_eq!(number(&report, "/statuses/acquire/Resource not available"), 100);
    assert_eq!(number(&report, "/failures"), 100);
    assert_eq!(number(&report, "/released_at_end"), 0);
    assert_eq!(holder.stat("command:release"), 0);
}

#[test]
fn a_given_rate_is_kept() {
    let server = TestServer::start();
    let started = Instant::now();
    let report = report(server.counters, &["--rate", "2000", "--count", "1000", "--connections", "10"]);
    let elapsed = started.elapsed();
    assert_eq!(number(&report, "/answers"), 1000);
    assert_eq!(number(&report, "/unsent"), 0);
    // The last of 1000 requests is due 499.5 ms after the first.
    let elapsed_s = report["elapsed_s"].as_f64().unwrap();
    assert!(elapsed_s > 0.499, "{elapsed_s}");
    assert!(elapsed >= Duration::from_millis(499), "{elapsed:?}");
    let us = |key: &str| report.pointer(key).unwrap().as_f64().unwrap();
    let (own_delay_us, latency_us) = (us("/own_delay_us/max"), us("/latency_us/all/max"));
    assert!(0.0 < own_delay_us && own_delay_us <= latency_us, "the latencies include the delay: {report}");
}

#[test]
fn latency_under_a_given_rate_counts_from_when_a_request_was_due() {
    let server = TestServer::start();
    // One connection with one request at a time, at a rate that no server reaches: all later requests wait.
    let report = report(server.counters, &["--rate", "50000000", "--count", "20000", "--connections", "1"]);
    let elapsed_us = 1e6 * report["elapsed_s"].as_f64().unwrap();
    let p50_us = report.pointer("/latency_us/all/p50").unwrap().as_f64().unwrap();
    // If latencies counted from the sending of a request, they would not overlap, and the median of 20,000 would be at
    // most a ten-thousandth of the run. Counted from the due time, it is about half of the run, or less if the server
    // slowed down.
    assert!(p50_us > elapsed_us / 100.0, "{report}");
}

#[test]
fn a_bench_reports_the_cost_of_the_server_process() {
    let mut daemon = Daemon::start();
    let (address, pid) = (daemon.address("counter"), daemon.pid().to_string());
    let report = report(address, &["--count", "1000", "--pid", &pid]);
    assert!(report.pointer("/server_process/cpu_ns_per_answer").unwrap().as_f64().unwrap() > 0.0);
    assert!(number(&report, "/server_process/resident_bytes") > 1_000_000);
}

#[test]
fn the_text_report_shows_the_main_figures() {
    let server = TestServer::start();
    let output = bench(server.counters, &["--count", "100", "--connections", "5", "--distribution", "zipf"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("5 connections x 1 in flight") && text.contains("100 answers in "), "{text}");
    let cells = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().split('\t');
    let columns = ["LATENCY", "ANSWERS", "MEAN", "P50", "P90", "P99", "P99.9", "MAX"];
    assert_eq!(cells("LATENCY").collect::<Vec<_>>(), columns);
    assert_eq!(cells("all").nth(1), Some("100"), "{text}");
    assert!(cells("all").skip(2).all(|time| time.parse().is_ok_and(|us: f64| us > 0.0)), "{text}");
}

#[track_caller]
fn assert_refused(server: SocketAddr, arguments: &[&str], status: i32, message: &str) {
    let output = bench(server, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("signalbox: ") && stderr.contains(message), "{stderr:?}");
    assert_eq!(output.status.code(), Some(status));
}

#[test]
fn of_several_addresses_the_one_that_answers_is_used() {
    let server = TestServer::start();
    let several = format!("127.0.0.1:1,no-such-host.invalid,{}", server.counters);
    let report = report(server.counters, &["--server", &several, "--count", "100"]);
    assert_eq!(report["server"], server.counters.to_string());
    let nobody = ["--server", "127.0.0.1:1,127.0.0.2:1", "--timeout", "0.3"];
    let message = "none of the servers 127.0.0.1:1,127.0.0.2:1 has answered within 0.3 s";
    assert_refused(server.counters, &nobody, 69, message);
}

#[test]
fn a_server_that_closes_connections_ends_the_bench() {
    let server = TestServer::start_with(|config| config.counter.port.max_connections = 2);
    assert_refused(server.counters, &["--connections", "3", "--duration", "5"], 69, "a connection was lost");
}
