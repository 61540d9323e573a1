//! A real HAProxy, with the configuration of `docs/cluster.md`, in front of three nodes.

use std::net::{SocketAddr, TcpStream};

use nix::sys::signal::Signal;
use signalbox_model::Namespace;
use signalbox_protocol::Extended;

use crate::support::caller::Caller;
use crate::support::cluster::TestCluster;
use crate::support::documents::example;
use crate::support::haproxy::HaProxy;
use crate::support::ports::free_ports;
use crate::support::{ACQUIRE, OK, Wire, eventually, frame, named};

const DOCUMENT: &str = include_str!("../../docs/cluster.md");

/// A connection through the proxy that has acquired something. The proxy closes connections while it knows no leader.
fn holder(proxy: SocketAddr, name: &[u8]) -> Wire {
    let mut held = None;
    eventually("a node answers through the proxy", || {
        let mut wire = Wire::connect_from("127.0.0.3", proxy);
        wire.send(&frame(ACQUIRE, *b"held", &named(&[1, 1], name)));
        let is_held = wire.try_answer().is_ok_and(|answer| answer.status == OK);
        held = is_held.then_some(wire);
        is_held
    });
    held.unwrap()
}

#[test]
fn haproxy_as_documented_follows_the_leader_and_ends_connections_to_a_frozen_one() {
    if !HaProxy::is_installed() {
        return;
    }
    let Some(mut cluster) = TestCluster::start(1, 0) else { return };
    let mut addresses = Vec::new();
    for number in 1..=3 {
        let node = cluster.add(&format!("sb{number}"));
        let node = cluster.node(node);
        let text = std::fs::read_to_string(&node.file).unwrap();
        // Here, HAProxy connects from this machine.
        std::fs::write(&node.file, format!("proxies = \"127.0.0.1\"\n{text}")).unwrap();
        addresses.push((format!("10.0.0.{number}:11215"), node.counters.to_string()));
        addresses.push((format!("10.0.0.{number}:11216"), node.semaphores.to_string()));
    }
    (0..3).for_each(|node| cluster.start_node(node));
    let proxies = free_ports::<2>().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    for (port, proxy) in [11215, 11216].into_iter().zip(proxies) {
        addresses.push((format!("10.0.0.4:{port}"), proxy.to_string()));
    }
    let folder = tempfile::tempdir().unwrap();
    let config = example(DOCUMENT, "### HAProxy", "haproxy");
    let _haproxy = HaProxy::start(config, &addresses, folder.path());
    for proxy in proxies {
        eventually("HAProxy listens", || TcpStream::connect(proxy).is_ok());
    }

    let leader = cluster.leader();
    let [mut counters, mut semaphores] = proxies.map(|proxy| holder(proxy, b"job"));
    // The node knows the client's own address.
    let mut lister = Caller::new(Wire::connect_from("127.0.0.3", proxies[0]));
    let counter_holders = Extended::Holders { namespace: Namespace::Counters, name: b"job" };
    let opaque = lister.send(&counter_holders);
    let holder_entry = lister.answer(opaque).list_entry().unwrap().expect("there is a holder");
    let address = counters.stream.local_addr().unwrap().to_string();
    assert_eq!(str::from_utf8(&holder_entry.address).unwrap(), address);

    // The kernel of a frozen leader still accepts connections, and acknowledges everything.
    cluster.daemon(leader).signal(Signal::SIGSTOP);
    assert!(counters.is_closed() && semaphores.is_closed(), "the clients learn that the leader has failed");
    let next = cluster.leader_among(&cluster.others(leader));
    let [mut counters, _semaphores] = proxies.map(|proxy| holder(proxy, b"job"));

    cluster.daemon(leader).signal(Signal::SIGCONT);
    cluster.daemon(leader).exit_status();
    assert_eq!(counters.acquire(b"other", 1, 1).status, OK, "the node that wakes up disturbs no client");

    cluster.daemon(next).signal(Signal::SIGTERM);
    assert!(cluster.daemon(next).exit_status().success());
    assert!(counters.is_closed());
    let mut again = holder(proxies[0], b"job");
    assert_eq!(again.release(b"job", 1).status, OK);
}
