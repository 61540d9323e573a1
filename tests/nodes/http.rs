//! Leases over HTTP (`docs/http.md`, "Leases") at all nodes, as real processes on a real etcd.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

#[path = "../http/client.rs"]
mod client;

use self::client::{Reply, read_reply};
use crate::certificates::{Authority, Files, for_loopback};
use crate::support::cluster::{RENEW_DEADLINE, TestCluster};
use crate::support::daemon::{SIGNALBOX, outcome, stderr};
use crate::support::{PATIENCE, connect_from, eventually};

/// A key that no other lease of this process has.
pub fn key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{:032x}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A request for one of a counter, of which one client may hold one.
fn one(key: &str, name: &str, more: &Value) -> Value {
    let mut body = json!({"key": key, "claims": [{"name": name, "maximum": 1}], "ttl_ms": 30_000});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The bytes of a request, with further headers.
fn request(path: &str, headers: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    let head = "Host: localhost\r\nContent-Type: application/json\r\n";
    format!("POST /api/v1/{path} HTTP/1.1\r\n{head}{headers}Content-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

impl TestCluster {
    /// Begins a request of a client on this address to a node, which may wait.
    fn begin_http(&mut self, node: usize, client: &str, path: &str, body: &Value) -> TcpStream {
        let mut stream = connect_from(client, self.node(node).http);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&request(path, "", body)).unwrap();
        stream
    }

    #[track_caller]
    fn http(&mut self, node: usize, client: &str, path: &str, body: &Value) -> Reply {
        read_reply(&mut self.begin_http(node, client, path, body))
    }

    /// Acquires a free name, and returns the answer.
    #[track_caller]
    fn hold(&mut self, node: usize, key: &str, name: &str) -> Value {
        let held = self.http(node, LOCAL, "lease/acquire", &one(key, name, &json!({})));
        assert_eq!(held.status, 200, "{}", held.text());
        held.json()
    }

    /// The state of a lease after a renewal.
    #[track_caller]
    fn renewed(&mut self, node: usize, key: &str) -> Value {
        let renewed = self.http(node, LOCAL, "lease/renew", &json!({"keys": [key]}));
        assert_eq!(renewed.status, 200, "{}", renewed.text());
        renewed.json()["leases"][0].clone()
    }

    #[track_caller]
    fn give_back(&mut self, node: usize, key: &str) {
        let released = self.http(node, LOCAL, "lease/release", &json!({ "key": key }));
        assert_eq!((released.status, released.text()), (200, "{}".to_owned()));
    }

    /// Waits until this number of requests wait for a change at the node that leads.
    #[track_caller]
    fn await_parked(&mut self, leader: usize, count: usize) {
        let address = self.node(leader).http;
        let shown = format!("\nsignalbox_http_parked_requests {count}\n");
        eventually("requests wait", || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            read_reply(&mut stream).text().contains(&shown)
        });
    }
}

const LOCAL: &str = "127.0.0.1";

fn grant(answer: &Value) -> u64 {
    answer["grant"].as_str().unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

#[test]
fn every_node_serves_leases() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 3) else { return };
    let leader = cluster.leader();
    let others = cluster.others(leader);
    let (one_node, other_node) = (others[0], others[1]);
    let holder = key();
    let held = cluster.hold(one_node, &holder, "job");
    assert_eq!(cluster.renewed(leader, &holder)["grant"], held["grant"], "it is the leader's");
    let checked = cluster.http(other_node, LOCAL, "grant", &json!({"grant": held["grant"]}));
    assert_eq!((checked.status, &checked.json()["state"]), (200, &json!("held")));
    // The leader answers reads too, except those about the node itself.
    let listed = cluster.http(other_node, LOCAL, "held", &json!({"session": checked.json()["session"]}));
    assert_eq!(
        (listed.status, &listed.json()["items"][0]["name"]),
        (200, &json!("job")),
        "{}",
        listed.text()
    );
    let name = cluster.node(leader).name.clone();
    for (path, state, node) in [("status", "relaying", None), ("leader", "serving", Some(name))] {
        let status = cluster.http(other_node, LOCAL, path, &json!({})).json();
        let serving = status["server"].is_object().then(|| status["cluster"]["node"].as_str().unwrap());
        assert_eq!((&status["state"], serving), (&json!(state), node.as_deref()), "{status}");
    }
    let again =
        cluster.http(other_node, LOCAL, "lease/acquire", &one(&holder, "job", &json!({"label": "x"})));
    assert_eq!((again.status, again.code()), (409, "different_request".to_owned()));

    // Many clients wait, and the node has one connection to the leader for all of them.
    const WAITING: usize = 40;
    let wait = json!({"wait_ms": 20_000, "poll_ms": 10_000});
    let mut waiting: Vec<_> = (0..WAITING)
        .map(|number| {
            let waiting =
                cluster.begin_http(other_node, "127.0.0.2", "lease/acquire", &one(&key(), "job", &wait));
            cluster.await_parked(leader, number + 1);
            waiting
        })
        .collect();
    let nodes = cluster.status(leader)["nodes"].clone();
    let relays: Vec<_> =
        nodes.as_array().unwrap().iter().map(|node| node["relays"].as_u64().unwrap()).collect();
    assert!(relays.iter().all(|relays| *relays <= 1), "{nodes}");
    let sessions = cluster.run(["sessions", "--json"]);
    let client = waiting[0].local_addr().unwrap().to_string();
    let shown = String::from_utf8_lossy(&sessions.stdout).into_owned();
    assert!(shown.contains(&client), "the leader knows the client {client}: {shown}");

    // One gives up. The others are served in their order.
    drop(waiting.pop());
    cluster.await_parked(leader, WAITING - 1);
    cluster.give_back(one_node, &holder);
    let first = read_reply(&mut waiting[0]);
    assert_eq!(first.status, 200, "{}", first.text());
    assert!(grant(&first.json()) > grant(&held));
    let header = first.header("cache-control");
    assert_eq!(header, Some("no-store"), "as in each answer");
}

/// The files of a cluster whose nodes encrypt what they relay, with these rules.
fn start_encrypted(
    access: &str,
    relays_encrypt: bool,
) -> Option<(TestCluster, Authority, Files, tempfile::TempDir)> {
    let mut cluster = TestCluster::start_relaying(1, 0)?;
    let (authority, files) = for_loopback();
    let folder = tempfile::tempdir().unwrap();
    let ca = authority.file().display().to_string();
    for number in 0..2 {
        let node = cluster.add(&format!("node-{number}"));
        let relay_ca = if relays_encrypt { format!("relay_ca = {ca:?}\n") } else { String::new() };
        cluster.configure(node, |config| {
            format!(
                "{config}{relay_ca}[tls]\ncert = {:?}\nkey = {:?}\nclient_ca = {ca:?}\n[access]\n{access}\
                 tokens = \"{}/tokens.toml\"\n",
                files.certificate,
                files.key,
                folder.path().display()
            )
        });
    }
    Some((cluster, authority, files, folder))
}

fn create_token(folder: &tempfile::TempDir) -> String {
    let mut command = std::process::Command::new(SIGNALBOX);
    command
        .args(["token", "create", "web", "--rights", "acquire", "--file"])
        .arg(folder.path().join("tokens.toml"));
    let created = outcome(command);
    assert!(created.status.success(), "{}", stderr(&created));
    String::from_utf8(created.stdout).unwrap().trim().to_owned()
}

/// Starts two nodes whose rules give rights to the nodes' own address, to one client by its address, to one by its certificate,
/// and to each client with a token. Returns the statuses of acquires at the node that does not lead: by a client without
/// rights, by the one with the address, by the one with the certificate, and by the first with a token.
fn acquires_with_rights(relays_encrypt: bool) -> Option<[u16; 4]> {
    let rules = "anonymous = \"none\"\nnetworks = [\"127.0.0.1 acquire\", \"127.0.0.3 acquire\", \"127.0.0.0/8 none\"]\n\
                 certificates = [\"dns:worker acquire\"]\n";
    let (mut cluster, authority, _, folder) = start_encrypted(rules, relays_encrypt)?;
    let token = create_token(&folder);
    (0..2).for_each(|node| cluster.start_node(node));
    let leader = cluster.leader();
    let node = cluster.others(leader)[0];
    cluster.await_standby(node);
    let ask = |cluster: &mut TestCluster, client: &str, headers: &str| {
        let mut stream = connect_from(client, cluster.node(node).http);
        let body = one(&key(), &key(), &json!({}));
        stream.write_all(&request("lease/acquire", headers, &body)).unwrap();
        read_reply(&mut stream).status
    };
    let without = ask(&mut cluster, "127.0.0.2", "");
    let by_address = ask(&mut cluster, "127.0.0.3", "");
    let by_token = ask(&mut cluster, "127.0.0.2", &format!("Authorization: Bearer {token}\r\n"));
    // A proxy does not have the rights of its address.
    assert_eq!(ask(&mut cluster, "127.0.0.3", "X-Forwarded-For: 127.0.0.3\r\n"), 403);
    let worker = authority.sign("worker", "DNS:worker");
    let mut stream = tls_as(connect_from("127.0.0.2", cluster.node(node).http), &authority, &worker);
    stream.write_all(&request("lease/acquire", "", &one(&key(), &key(), &json!({})))).unwrap();
    let by_certificate = read_reply(&mut stream).status;
    Some([without, by_address, by_certificate, by_token])
}

fn tls_as(
    stream: TcpStream,
    authority: &Authority,
    files: &Files,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
    let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key).unwrap())
        .unwrap();
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(connection, stream)
}

#[test]
fn a_forwarded_request_has_the_rights_of_its_client() {
    let Some(statuses) = acquires_with_rights(true) else { return };
    assert_eq!(statuses, [403, 200, 200, 200]);
}

#[test]
fn without_relay_ca_what_nodes_state_gives_no_rights_and_tokens_do_not_leave_the_node() {
    let Some(statuses) = acquires_with_rights(false) else { return };
    assert_eq!(statuses, [403, 403, 403, 401]);
}

/// A lease that is held over a change of the leader, and requests that wait over it: at a node that stays, and repeated with
/// their places. `end` ends the leader.
fn changes_of_the_leader_are_survived(end: impl Fn(&mut TestCluster, usize)) {
    let Some(mut cluster) = TestCluster::start_relaying(1, 3) else { return };
    let leader = cluster.leader();
    let others = cluster.others(leader);
    others.iter().for_each(|node| cluster.await_standby(*node));
    let holder = key();
    let held = cluster.hold(others[0], &holder, "job");
    let wait = json!({"wait_ms": 60_000, "poll_ms": 200});
    // In the queue, one after the other, at all nodes.
    let mut queue: Vec<(String, Value)> = Vec::new();
    for number in 0..4 {
        let key = key();
        let queued = cluster.http(number % 3, LOCAL, "lease/acquire", &one(&key, "job", &wait));
        assert_eq!(
            (queued.status, &queued.json()["position"]),
            (202, &json!(number + 1)),
            "{}",
            queued.text()
        );
        queue.push((key, queued.json()["place"].clone()));
    }
    // This one is not answered until the leader has changed.
    let mut kept = cluster.begin_http(
        others[1],
        LOCAL,
        "lease/renew",
        &json!({"keys": [holder], "poll_ms": RENEW_DEADLINE.as_millis() as u64 * 4}),
    );
    cluster.await_parked(leader, 1);
    end(&mut cluster, leader);

    // They repeat their requests in the other order, even while no node leads.
    let mut parked: Vec<TcpStream> = Vec::new();
    for (number, (key, place)) in queue.iter().enumerate().rev() {
        let wait = json!({"wait_ms": 60_000, "poll_ms": 10_000, "place": place});
        parked.push(cluster.begin_http(others[number % 2], LOCAL, "lease/acquire", &one(key, "job", &wait)));
    }
    parked.reverse();
    let kept = read_reply(&mut kept);
    assert_eq!(kept.status, 200, "it was repeated at the next leader: {}", kept.text());
    assert_eq!(
        (&kept.json()["leases"][0]["state"], &kept.json()["leases"][0]["grant"]),
        (&json!("held"), &held["grant"])
    );
    let next = cluster.leader_among(&others);
    cluster.await_parked(next, parked.len());
    let (mut holder, mut before) = (holder, grant(&held));
    for (number, waiting) in parked.iter_mut().enumerate() {
        cluster.give_back(others[number % 2], &holder);
        let reply = read_reply(waiting);
        assert_eq!(reply.status, 200, "number {number} of the queue: {}", reply.text());
        let granted = grant(&reply.json());
        assert!(granted > before, "{granted} after {before}");
        (holder, before) = (queue[number].0.clone(), granted);
    }
}

#[test]
fn leases_and_the_queue_survive_a_failover() {
    changes_of_the_leader_are_survived(TestCluster::kill);
}

#[test]
fn leases_and_the_queue_survive_a_drain() {
    changes_of_the_leader_are_survived(|cluster, leader| {
        let name = cluster.node(leader).name.clone();
        let drained = cluster.administer(leader, &["drain", &name]);
        assert!(drained.status.success(), "{}", stderr(&drained));
        cluster.daemon(leader).exit_status();
    });
}

#[test]
fn without_a_leader_a_request_waits_for_a_limited_time() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 1) else { return };
    let leader = cluster.leader();
    let node = cluster.add("relay");
    cluster.configure(node, |config| config.replace("hold = 60", "eligible = false\nhold = 1"));
    cluster.start_node(node);
    cluster.await_standby(node);
    let holder = key();
    cluster.hold(node, &holder, "job");
    // A leader that is frozen does not delay requests longer than one that has ended.
    cluster.freeze(leader);
    let began = Instant::now();
    let refused = cluster.http(node, LOCAL, "lease/renew", &json!({"keys": [holder]}));
    assert_eq!((refused.status, refused.code()), (503, "not_serving".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    cluster.daemon(leader).signal(Signal::SIGKILL);
    cluster.daemon(leader).exit_status();
    cluster.start_node(leader);
    eventually("the node forwards to the next leader", || {
        let renewed = cluster.http(node, LOCAL, "lease/renew", &json!({"keys": [holder]}));
        renewed.status == 200 && renewed.json()["leases"][0]["state"] == "held"
    });
}

#[test]
fn forwarded_requests_count_for_the_share_of_their_client_at_the_leader() {
    const MAX: usize = 40;
    let Some(mut cluster) = TestCluster::start_relaying(1, 0) else { return };
    for number in 0..3 {
        let node = cluster.add(&format!("node-{number}"));
        cluster.configure(node, |config| {
            config.replace("[http]\n", &format!("[http]\nlease_connections_max = {MAX}\n"))
        });
        cluster.start_node(node);
    }
    let leader = cluster.leader();
    let others = cluster.others(leader);
    others.iter().for_each(|node| cluster.await_standby(*node));
    let holder = key();
    cluster.hold(others[0], &holder, "job");
    let wait = json!({"wait_ms": 20_000, "poll_ms": 10_000});
    let mut waiting = Vec::new();
    for number in 0..MAX / 2 {
        waiting.push(cluster.begin_http(others[0], "127.0.0.2", "lease/acquire", &one(&key(), "job", &wait)));
        cluster.await_parked(leader, number + 1);
    }
    // It has as many at one node as it may have, and the other one has room for it.
    let more = cluster.http(others[1], "127.0.0.2", "lease/acquire", &one(&key(), "job", &wait));
    assert_eq!((more.status, more.code()), (503, "busy".to_owned()));
    assert!(more.header("retry-after").is_some());
    let now = cluster.http(
        others[1],
        "127.0.0.2",
        "lease/acquire",
        &one(&key(), "job", &json!({"wait_ms": 1_000})),
    );
    assert_eq!(now.status, 202, "what does not wait is answered: {}", now.text());
    // Loopback of a node is the address of the node, so this is another client.
    waiting.push(cluster.begin_http(leader, "127.0.0.3", "lease/acquire", &one(&key(), "job", &wait)));
    cluster.await_parked(leader, MAX / 2 + 1);
    // Requests end with their clients.
    drop(waiting);
    cluster.await_parked(leader, 0);
}
