//! What nodes show of their cluster over HTTP, as real processes on a real etcd.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::cluster::TestCluster;
use crate::support::daemon::stderr;
use crate::support::ports::free_ports;
use crate::support::{OK, PATIENCE, eventually};

/// The page of metrics.
const METRICS: &str = include_str!("../../docs/metrics.md");

/// A cluster of two nodes that listen for HTTP at these addresses.
fn with_http() -> Option<(TestCluster, [SocketAddr; 2])> {
    let mut cluster = TestCluster::start_relaying(1, 0)?;
    let ports: [u16; 2] = free_ports();
    for (number, port) in ports.into_iter().enumerate() {
        let node = cluster.add(&format!("node-{number}"));
        let mut file = OpenOptions::new().append(true).open(&cluster.node(node).file).unwrap();
        writeln!(file, "[http]\nenable = true\nport = {port}").unwrap();
        cluster.start_node(node);
        // The one that is started first leads.
        cluster.leader();
    }
    cluster.daemon(1).logged_message("standby of node");
    Some((cluster, ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)))))
}

#[test]
fn a_standby_that_refuses_clients_is_not_ready() {
    let Some(mut cluster) = TestCluster::start(1, 1) else { return };
    cluster.leader();
    let [port] = free_ports();
    let node = cluster.add("node-1");
    let mut file = OpenOptions::new().append(true).open(&cluster.node(node).file).unwrap();
    writeln!(file, "[http]\nenable = true\nport = {port}").unwrap();
    cluster.start_node(node);
    cluster.daemon(node).logged_message("standby of node");
    let standby = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(get(standby, "/readyz"), (503, "standby\n".to_owned()));
    assert_eq!(metric(standby, "signalbox_cluster_reaches_leader"), Some(0.0));
    assert_eq!(metric(standby, "signalbox_cluster_epoch"), Some(1.0));
}

/// The status and the body of an answer.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
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
    let Some((mut cluster, [leader, standby])) = with_http() else { return };
    let mut client = cluster.wire(1);
    assert_eq!(client.acquire(b"job", 1, 1).status, OK);

    assert_eq!(get(leader, "/readyz"), (200, "serving\n".to_owned()));
    assert_eq!(get(standby, "/readyz"), (200, "relaying\n".to_owned()));
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

    let shown = cluster.administer(1, &["status", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_else(|_| panic!("{}", stderr(&shown)));
    let ages = shown["nodes"].as_array().unwrap().iter().map(|node| node["heartbeat_age_ms"].as_u64());
    assert!(ages.clone().all(|age| age.is_some()), "{shown}");

    // Without a leader, a standby is not ready.
    cluster.daemon(0).signal(Signal::SIGSTOP);
    eventually("the standby leads", || get(standby, "/readyz") == (200, "serving\n".to_owned()));
    let shown = cluster.administer(1, &["status", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["nodes"][0]["heartbeat_age_ms"], Value::Null, "{shown}");
    assert_eq!(metric(standby, "signalbox_cluster_epoch"), Some(2.0));
    cluster.daemon(0).signal(Signal::SIGKILL);
}
