//! What nodes show of their cluster over HTTP, as real processes on a real etcd.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::cluster::TestCluster;
use crate::support::daemon::{SIGNALBOX, stderr};
use crate::support::{OK, PATIENCE, eventually};

/// The page of metrics.
const METRICS: &str = include_str!("../../docs/metrics.md");

/// Adds a node with further lines of its file, starts it, and returns its address for HTTP.
fn start_with(cluster: &mut TestCluster, lines: &str) -> SocketAddr {
    let number = cluster.nodes();
    let node = cluster.add(&format!("node-{number}"));
    cluster.configure(node, |text| text + lines);
    cluster.start_node(node);
    cluster.http_addresses()[node]
}

#[test]
fn a_standby_that_refuses_clients_is_not_ready() {
    let Some(mut cluster) = TestCluster::start(1, 1) else { return };
    cluster.leader();
    let standby = start_with(&mut cluster, "");
    cluster.await_standby(1);
    assert_eq!(get(standby, "/readyz"), (503, "standby\n".to_owned()));
    assert_eq!(metric(standby, "signalbox_cluster_reaches_leader"), Some(0.0));
    assert_eq!(metric(standby, "signalbox_cluster_epoch"), Some(1.0));
}

#[test]
fn a_standby_reads_its_tokens_again() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 1) else { return };
    cluster.leader();
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let change_tokens = |arguments: &[&str]| {
        let output = Command::new(SIGNALBOX).arg("token").args(arguments).arg("--file").arg(&tokens).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    let secret = change_tokens(&["create", "prometheus", "--rights", "read"]);
    let access = format!("[access]\nnetworks = ['127.0.0.0/8 none']\ntokens = '{}'\n", tokens.display());
    let standby = start_with(&mut cluster, &access);
    cluster.await_standby(1);
    let status =
        |secret: &str| get_with(standby, "/metrics", &format!("Authorization: Bearer {secret}\r\n")).0;
    assert_eq!((status(&secret), get(standby, "/metrics").0), (200, 403));
    change_tokens(&["revoke", "prometheus"]);
    let next = change_tokens(&["create", "next", "--rights", "read"]);
    cluster.daemon(1).reload("the configuration was read again");
    assert_eq!((status(&secret), status(&next)), (401, 200));
}

#[test]
fn a_standby_leads_with_the_configuration_that_it_has_read_last() {
    let Some(mut cluster) = TestCluster::start(1, 1) else { return };
    let leader = cluster.leader();
    start_with(&mut cluster, "");
    cluster.await_standby(1);
    cluster.configure(1, |text| text.replace("[counter]\n", "[counter]\nmax_connections = 77\n"));
    cluster.daemon(1).reload("the configuration was read again");
    // Whatever is read from now on cannot be used.
    cluster.configure(1, |_| "wrong".to_owned());
    cluster.kill(leader);
    cluster.daemon(1).ready();
    assert_eq!(cluster.wire(1).stat("max_connections"), 77);
}

/// The status and the body of an answer.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    get_with(address, path, "")
}

/// Like [`get`], with further headers.
fn get_with(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The value of a metric without labels.
fn metric(address: SocketAddr, name: &str) -> Option<f64> {
    let (_, text) = get(address, "/metrics");
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value)
}

#[test]
fn every_node_shows_the_cluster() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 0) else { return };
    let leader = start_with(&mut cluster, "");
    // The one that is started first leads.
    cluster.leader();
    let standby = start_with(&mut cluster, "");
    cluster.await_standby(1);
    let mut client = cluster.wire(1);
    assert_eq!(client.acquire(b"job", 1, 1).status, OK);

    assert_eq!(get(leader, "/readyz"), (200, "serving\n".to_owned()));
    assert_eq!(get(standby, "/readyz"), (200, "relaying\n".to_owned()));
    for (node, state) in [(leader, "serving"), (standby, "relaying")] {
        assert!(get(node, "/api/v1/status").1.contains(&format!("\"state\":\"{state}\"")), "{state}");
    }
    for (node, leads) in [(leader, 1.0), (standby, 0.0)] {
        assert_eq!(metric(node, "signalbox_cluster_leader"), Some(leads));
        assert_eq!(metric(node, "signalbox_cluster_epoch"), Some(1.0));
        assert_eq!(metric(node, "signalbox_cluster_reaches_leader"), Some(1.0));
        assert_eq!(metric(node, "signalbox_relayed_connections"), Some(1.0 - leads));
        assert_eq!(
            metric(node, "signalbox_relayed_connections_accepted_total").map(|n| n > 0.0),
            Some(leads == 0.0)
        );
        assert!(metric(node, "signalbox_cluster_heartbeat_age_seconds").is_some_and(|age| age < 60.0));
    }
    let listed = METRICS.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let (_, served) = get(standby, "/metrics");
    for name in listed.filter(|name| name.starts_with("signalbox_cluster_")) {
        assert!(served.contains(name), "{name}");
    }

    for node in [leader, standby] {
        eventually("it has seen what is relayed", || {
            let (status, body) = get(node, "/api/v1/cluster");
            assert_eq!(status, 200, "{body}");
            let shown: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((&shown["leader"], &shown["epoch"]), (&"node-0".into(), &1.into()));
            let nodes = shown["nodes"].as_array().unwrap();
            let [first, second] = &nodes[..] else { return false };
            assert_eq!((&first["node"], &first["leads"]), (&"node-0".into(), &true.into()));
            assert_eq!((&second["node"], &second["leads"]), (&"node-1".into(), &false.into()));
            second["relayed_connections"] == 1
        });
    }

    let shown = cluster.status(1);
    let ages = shown["nodes"].as_array().unwrap().iter().map(|node| node["heartbeat_age_ms"].as_u64());
    assert!(ages.clone().all(|age| age.is_some()), "{shown}");

    // The figures of one node, asked for by its name.
    let own = cluster.administer(1, &["status", "node-0", "--json"]);
    assert_eq!(own.status.code(), Some(0), "{}", stderr(&own));
    let own: Value = serde_json::from_slice(&own.stdout).unwrap();
    for key in ["node", "state", "version", "addresses", "advertised", "drains"] {
        assert_eq!(own[key], shown["nodes"][0][key], "{key}");
    }
    assert_eq!((&shown["nodes"][1]["state"], &shown["nodes"][1]["relays"]), (&"stands by".into(), &1.into()));
    let own = cluster.administer(1, &["status", "node-1"]);
    assert_eq!(own.status.code(), Some(0), "{}", stderr(&own));
    let unknown = cluster.administer(1, &["status", "node-7"]);
    assert_eq!(unknown.status.code(), Some(64));
    assert!(stderr(&unknown).contains("the cluster has no node \"node-7\"; it has \"node-0\", \"node-1\""));

    // Without a leader, a standby is not ready.
    cluster.daemon(0).signal(Signal::SIGSTOP);
    eventually("the standby leads", || get(standby, "/readyz") == (200, "serving\n".to_owned()));
    let shown = cluster.status(1);
    assert_eq!(shown["nodes"][0]["heartbeat_age_ms"], Value::Null, "{shown}");
    assert_eq!(metric(standby, "signalbox_cluster_epoch"), Some(2.0));
    cluster.daemon(0).signal(Signal::SIGKILL);
}
