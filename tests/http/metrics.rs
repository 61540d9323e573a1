//! `/metrics`: its content, and that Prometheus accepts it.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::client::HttpDaemon;
use crate::support::daemon::works;
use crate::support::ports::free_ports;
use crate::support::{PATIENCE, eventually, skipped};

const PAGE: &str = include_str!("../../docs/metrics.md");

/// The samples of a scrape, by their names and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, value)| (series.to_owned(), value.parse().unwrap()))
        .collect()
}

#[track_caller]
fn value(http: &HttpDaemon, series: &str) -> f64 {
    let text = http.get("/metrics").text();
    *samples(&text).get(series).unwrap_or_else(|| panic!("no {series} in:\n{text}"))
}

#[test]
fn the_page_lists_every_metric_with_its_type() {
    let (mut http, _file) = HttpDaemon::with("names = 'job'\n");
    http.command(&["declare", "gpu", "--capacity", "4"]);
    let host = http.address.to_string();
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    let reply = http.request("GET", "/metrics", &[("Host", &host), ("Accept", accept)], "");
    assert_eq!(
        reply.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    let text = reply.text();
    assert!(text.ends_with("# EOF\n"));
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut served: Vec<_> = types
        .map(|(name, kind)| match kind {
            "counter" => (format!("{name}_total"), kind.to_owned()),
            "info" => (format!("{name}_info"), kind.to_owned()),
            _ => (name.to_owned(), kind.to_owned()),
        })
        .collect();
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows
        .filter_map(|row| row.split_once("` | ").map(|(name, rest)| (name, rest.split(' ').next().unwrap())));
    let mut listed: Vec<_> = rows.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect();
    // Those of a cluster are in tests/nodes/visible.rs.
    listed.retain(|(name, _)| {
        !name.starts_with("signalbox_cluster_") && !name.starts_with("signalbox_relayed_")
    });
    served.sort();
    listed.sort();
    assert_eq!(served, listed);
}

#[test]
fn a_client_that_asks_for_nothing_gets_the_older_format() {
    let http = HttpDaemon::start();
    let reply = http.get("/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = reply.text();
    assert!(text.contains("\n# TYPE signalbox_commands_total counter\n"), "{text}");
    assert!(text.contains("# TYPE signalbox_build_info gauge\n"), "{text}");
    assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
}

#[test]
fn acquires_are_counted_by_result() {
    let (mut http, _config) = HttpDaemon::configured("counter.max_names = 2", "");
    let mut counter = http.daemon.counter();
    for name in [b"a", b"a", b"b", b"c"] {
        counter.acquire(name, 1, 1);
    }
    for (result, expected) in [("granted", 2.0), ("not_available", 1.0), ("limit", 1.0)] {
        let series = format!("signalbox_acquire_total{{namespace=\"counter\",result=\"{result}\"}}");
        eventually(&series, || value(&http, &series) == expected);
    }
    assert_eq!(value(&http, "signalbox_names{namespace=\"counter\"}"), 2.0);
}

#[test]
fn waits_are_in_the_histogram() {
    let mut http = HttpDaemon::start();
    assert_eq!(value(&http, "signalbox_wait_seconds_count"), 0.0);
    http.command(&["declare", "gpu", "--capacity", "1"]);
    http.command(&["acquire", "gpu", "--lease", "1h"]);
    let server = http.daemon.address("counter").to_string();
    let mut waiting = Command::new(crate::support::daemon::SIGNALBOX)
        .args(["run", "gpu", "--wait", "max", "--", "true"])
        .env("SIGNALBOX_SERVER", &server)
        .spawn()
        .unwrap();
    eventually("it waits", || value(&http, "signalbox_waiters") == 1.0);
    assert_eq!(value(&http, "signalbox_semaphore_waiters{name=\"gpu\"}"), 1.0);
    let since = value(&http, "signalbox_oldest_wait_timestamp_seconds");
    assert!(since >= value(&http, "process_start_time_seconds"), "{since}");
    assert_eq!(value(&http, "signalbox_semaphore_oldest_wait_timestamp_seconds{name=\"gpu\"}"), since);
    http.command(&["resize", "gpu", "2"]);
    assert!(waiting.wait().unwrap().success());
    eventually("its wait is counted", || value(&http, "signalbox_wait_seconds_count") == 1.0);
    assert_eq!(value(&http, "signalbox_wait_seconds_bucket{le=\"+Inf\"}"), 1.0);
    assert!(value(&http, "signalbox_wait_seconds_sum") < PATIENCE.as_secs_f64());
}

#[test]
fn names_have_series_only_if_they_are_selected_and_up_to_the_cap() {
    let (mut http, _file) = HttpDaemon::with("names = 'job/'\nnames_max = 2\n");
    let mut counter = http.daemon.counter();
    for (name, resources) in
        [(&b"job/c"[..], 4), (b"job/a", 1), (b"job/b", 2), (b"job/\xff\"\n", 8), (b"secret", 16)]
    {
        counter.acquire(name, resources, 100);
    }
    for number in 0..4 {
        http.command(&["declare", &format!("sem/{number}"), "--capacity", "3"]);
    }
    let other = "signalbox_counter_in_use{other=\"true\"}";
    eventually("the walk has found the names", || samples(&http.get("/metrics").text()).contains_key(other));
    let text = http.get("/metrics").text();
    let found = samples(&text);
    assert_eq!(found["signalbox_counter_in_use{name=\"job/a\"}"], 1.0);
    assert_eq!(found["signalbox_counter_in_use{name=\"job/b\"}"], 2.0);
    assert_eq!(found[other], 12.0);
    assert_eq!(found["signalbox_semaphore_capacity{name=\"sem/0\"}"], 3.0);
    assert_eq!(found["signalbox_semaphore_capacity{other=\"true\"}"], 6.0);
    for absent in ["job/c", "sem/2", "secret"] {
        assert!(!text.contains(absent), "{absent}");
    }
}

#[test]
fn paused_semaphores_are_shown_also_those_without_series() {
    let (mut http, _file) = HttpDaemon::with("names_max = 2\n");
    for name in ["a", "b", "c", "d"] {
        http.command(&["declare", name, "--capacity", "1"]);
    }
    for name in ["b", "c", "d"] {
        http.command(&["pause", name]);
    }
    let other = "signalbox_semaphore_paused{other=\"true\"}";
    eventually("the walk has found them", || samples(&http.get("/metrics").text()).get(other) == Some(&2.0));
    for (name, expected) in [("a", 0.0), ("b", 1.0)] {
        assert_eq!(value(&http, &format!("signalbox_semaphore_paused{{name=\"{name}\"}}")), expected);
    }
    let found = samples(&http.get("/metrics").text());
    assert!(found.keys().all(|series| !series.contains("oldest_wait")), "no request waits: {found:?}");
}

#[test]
fn the_ends_of_certificates_and_tokens_have_series() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (cert, key, tokens) = (file("cert.pem"), file("key.pem"), file("tokens.toml"));
    let output = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "3",
        ])
        .args([
            "-subj",
            "/CN=server",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            &key,
            "-out",
            &cert,
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let create = |name: &str, further: &[&str]| {
        let mut command = Command::new(crate::support::daemon::SIGNALBOX);
        command.args(["token", "create", name, "--rights", "read", "--file", &tokens]).args(further);
        assert!(command.output().unwrap().status.success());
    };
    create("web", &["--expires-in", "1h"]);
    create("batch", &["--expires-in", "2h"]);
    create("forever", &["--expires-in", "never"]);
    let lines = format!("tls.cert = '{cert}'\ntls.key = '{key}'\naccess.tokens = '{tokens}'\n");
    let (http, _file) = HttpDaemon::configured(&lines, "");
    let start = value(&http, "process_start_time_seconds");
    let left = |series: &str| value(&http, series) - start;
    let day = 86_400.0;
    let certificate = left("signalbox_certificate_expiry_timestamp_seconds{key=\"tls.cert\"}");
    assert!((2.0 * day..=3.0 * day).contains(&certificate), "{certificate}");
    for (name, hours) in [("web", 1.0), ("batch", 2.0)] {
        let token = left(&format!("signalbox_token_expiry_timestamp_seconds{{token=\"{name}\"}}"));
        assert!((0.0..=hours * 3600.0).contains(&token), "{name}: {token}");
    }
    assert!(!http.get("/metrics").text().contains("forever"), "a token without an end has none");
}

#[test]
fn long_names_are_summed_up_when_their_labels_have_no_room() {
    let (mut http, _file) = HttpDaemon::with("names = 'job/'\n");
    let mut counter = http.daemon.counter();
    for number in 0..20_u8 {
        let name = [&b"job/"[..], &[number; 4], &[0xff; 16_000]].concat();
        assert_eq!(counter.acquire(&name, 1, 1).status, 0);
    }
    let other = "signalbox_counter_in_use{other=\"true\"}";
    let mut text = String::new();
    eventually("the walk has found the names", || {
        text = http.get("/metrics").text();
        samples(&text).contains_key(other)
    });
    // Each label is 80 KB, so each of two families has room for three.
    assert_eq!(samples(&text)[other], 17.0);
    assert!(text.len() < 1 << 20, "{} bytes", text.len());
}

/// Whether the programs of Prometheus are installed.
fn has_prometheus() -> bool {
    let is_there = works("promtool", &["--version"]) && works("prometheus", &["--version"]);
    if !is_there {
        assert!(std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_none(), "prometheus is not installed");
        skipped("prometheus is not installed");
    }
    is_there
}

#[test]
fn promtool_accepts_the_metrics() {
    if !has_prometheus() {
        return;
    }
    let (mut http, _file) = HttpDaemon::with("names = 'job'\n");
    http.command(&["declare", "gpu", "--capacity", "4"]);
    http.daemon.counter().acquire(b"job\xff\\\"\n<>", 1, 2);
    let text = http.get("/metrics").text();
    let mut checked = Command::new("promtool")
        .args(["check", "metrics", "--extended"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    checked.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = checked.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

/// Checks that docs/metrics.md lists the metric of a series; a histogram has several series.
fn assert_listed(series: &str) {
    let suffix = ["_bucket", "_sum", "_count"].into_iter().find_map(|suffix| series.strip_suffix(suffix));
    let listed = |metric: &str| PAGE.contains(&format!("| `{metric}` |"));
    assert!(listed(series) || suffix.is_some_and(listed), "docs/metrics.md does not list {series}");
}

#[test]
fn the_alert_rules_pass_their_tests_and_use_metrics_that_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let rules = std::fs::read_to_string(root.join("etc/prometheus-rules.yml")).unwrap();
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let used: Vec<_> = words.filter(|word| word.starts_with("signalbox_")).collect();
    assert!(used.len() >= 6, "{used:?}");
    used.into_iter().for_each(assert_listed);
    if !has_prometheus() {
        return;
    }
    let output = Command::new("promtool")
        .args(["test", "rules", "tests/data/prometheus-rules-test.yml"])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_dashboard_uses_metrics_that_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("etc/grafana-dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 10);
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            let words =
                target["expr"].as_str().unwrap().split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let used: Vec<_> =
                words.filter(|word| word.starts_with("signalbox_") || word.starts_with("process_")).collect();
            assert!(!used.is_empty(), "{target}");
            used.into_iter().for_each(assert_listed);
        }
    }
}

/// A Prometheus that is killed at the end of the test.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prometheus_scrapes_a_server_under_load() {
    if !has_prometheus() {
        return;
    }
    let mut http = HttpDaemon::start();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("prometheus.yml");
    let text = format!(
        "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\nscrape_configs:\n  - job_name: signalbox\n    static_configs:\n      \
         - targets: ['{}']\n",
        http.address
    );
    std::fs::write(&config, text).unwrap();
    let [port] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let prometheus = Command::new("prometheus")
        .args(["--web.listen-address", &address, "--log.level", "error"])
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _prometheus = Prometheus(prometheus);
    let mut counter = http.daemon.counter();
    let mut acquires = 0_u32;
    let query = format!("http://{address}");
    let asked = |expression: &str| {
        let output =
            Command::new("promtool").args(["query", "instant", &query, expression]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually("Prometheus has the count of Acquires", || {
        for _ in 0..500 {
            assert_eq!(counter.acquire(b"load", 1, u32::MAX).status, 0);
            acquires += 1;
        }
        asked("signalbox_acquire_total{result=\"granted\",namespace=\"counter\"} > 1000").contains("=> ")
    });
    assert!(asked("up{job=\"signalbox\"}").contains("=> 1 "), "{}", asked("up"));
}
