//! Members of etcd that freeze, die or are not there: calls continue with the others, within their time limits.

use std::fs;
use std::time::{Duration, Instant};

use signalbox_cluster::coordinator::{CallError, Coordinator, Transaction};
use signalbox_cluster::etcd::{EtcdClient, Settings};

use crate::support::calls::{always, entry, modified, one, put, read};
use crate::support::etcd::RealEtcd;
use crate::support::ports::free_ports;
use crate::support::{PATIENCE, eventually};

const TIMEOUT: Duration = Duration::from_millis(500);

/// A client that begins with one member and continues with the others.
fn client_from(etcd: &RealEtcd, first: usize) -> EtcdClient {
    let mut endpoints = etcd.endpoints();
    endpoints.rotate_left(first);
    EtcdClient::new(&Settings { endpoints, request_timeout: TIMEOUT, ..etcd.settings() }).unwrap()
}

/// Repeats a transaction until it is answered.
fn repeat(client: &mut EtcdClient, transaction: &Transaction) {
    let began = Instant::now();
    while let Err(error) = client.transact(transaction) {
        let is_unanswered = matches!(error, CallError::Unanswered(_));
        assert!(is_unanswered && began.elapsed() < PATIENCE, "{error}");
    }
}

/// How many connections to a port this process has. Those of other processes are not counted, since etcd connects to itself
/// at times of its own.
fn connections_to(port: u16) -> usize {
    let sockets =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let sockets: Vec<_> = sockets.map(|target| target.to_string_lossy().into_owned()).collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    // The third column is the remote address, the tenth the number of the socket.
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[2].ends_with(&remote) && sockets.contains(&format!("socket:[{}]", row[9]))).count()
}

fn port_of(endpoint: &str) -> u16 {
    endpoint.rsplit(':').next().unwrap().parse().unwrap()
}

#[test]
fn calls_go_on_when_the_leader_of_etcd_dies() {
    let Some(mut etcd) = RealEtcd::start(3) else { return };
    let leader = etcd.leader();
    // A client of the leader, and one whose member forwards to it.
    let mut clients = [leader, (leader + 1) % 3].map(|first| client_from(&etcd, first));
    for client in &mut clients {
        client.transact(&always(vec![put("a", b"1")])).unwrap();
    }
    etcd.kill(leader);
    for client in &mut clients {
        repeat(client, &always(vec![put("a", b"2")]));
    }
    etcd.start_again(leader);
    let mut returned = client_from(&etcd, leader);
    assert_eq!(returned.range(&one("a")).unwrap().entries[0].value, b"2");
}

#[test]
fn a_transaction_that_the_frozen_leader_of_etcd_has_is_repeated_and_performed_once() {
    let Some(etcd) = RealEtcd::start(3) else { return };
    let leader = etcd.leader();
    let mut client = client_from(&etcd, leader);
    let before = client.transact(&always(vec![put("mark", b"0")])).unwrap().revision;
    let next = Transaction {
        compare: vec![modified("mark", before)],
        then: vec![put("mark", b"1")],
        otherwise: vec![read("mark")],
    };
    etcd.freeze(leader);
    // The frozen member gets the request, and performs it when it wakes, or never.
    let first = client.transact(&next);
    assert!(matches!(first, Err(CallError::Unanswered(_))), "{first:?}");
    // The calls continue with the other members.
    repeat(&mut client, &next);
    etcd.thaw(leader);
    let found = client.transact(&next).unwrap();
    assert_eq!(found.read, [Some(entry("mark", b"1", before + 1))], "it was performed once");
}

#[test]
fn a_member_that_is_not_there_costs_one_attempt() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    let [closed] = free_ports();
    let closed = format!("http://127.0.0.1:{closed}");
    let endpoints = vec![closed.clone(), etcd.endpoints()[0].clone()];
    let mut client = EtcdClient::new(&Settings { endpoints, ..etcd.settings() }).unwrap();
    let error = client.range(&one("a")).unwrap_err();
    let CallError::Unanswered(sentence) = &error else { panic!("{error:?}") };
    assert!(sentence.contains(&closed) && sentence.contains("Connection refused"), "{sentence}");
    client.range(&one("a")).unwrap();
    client.range(&one("a")).unwrap();
}

#[test]
fn no_connection_to_a_frozen_member_is_left() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    let port = port_of(&etcd.endpoints()[0]);
    let settings = Settings { request_timeout: Duration::from_millis(100), ..etcd.settings() };
    let mut client = EtcdClient::new(&settings).unwrap();
    client.range(&one("a")).unwrap();
    // The start has asked with a connection of its own, which may still be closing.
    eventually("one connection is left", || connections_to(port) == 1);
    etcd.freeze(0);
    for _ in 0..10 {
        // More than the buffers of the connection take, so that it cannot be closed gracefully.
        let big = (0..10).map(|number| put(&format!("{number}"), &vec![7; 140_000]));
        let error = client.transact(&always(big.collect())).unwrap_err();
        assert!(matches!(&error, CallError::Unanswered(why) if why.contains("100 ms")), "{error:?}");
        assert_eq!(connections_to(port), 0);
    }
    etcd.thaw(0);
    etcd.client().range(&one("a")).unwrap();
}
