//! Nodes that relay clients to the leader, as real processes on a real etcd.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use ring::hmac;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use signalbox_model::{Milliseconds, Operation, Revocation, Status};
use signalbox_protocol::Extended;

use crate::certificates::{Authority, for_loopback};
use crate::support::caller::Caller;
use crate::support::cluster::{RENEW_DEADLINE, TestCluster};
use crate::support::daemon::{stderr, text};
use crate::support::sysv_program::SysvProgram;
use crate::support::{ACQUIRE, GET, OK, PATIENCE, Wire, connect_from, eventually, frame, named};

/// The leader of a cluster, and a node that relays to it.
fn leader_and_relay(cluster: &TestCluster) -> (usize, usize) {
    let leader = cluster.leader();
    (leader, cluster.others(leader)[0])
}

#[test]
fn every_node_serves_every_client() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 3) else { return };
    let (leader, relay) = leader_and_relay(&cluster);
    let mut direct = cluster.wire(leader);
    let mut relayed = cluster.wire(relay);
    assert_eq!(relayed.acquire(b"job", 1, 1).status, OK);
    assert_ne!(direct.acquire(b"job", 1, 1).status, OK, "the nodes count together");
    assert_eq!(relayed.dumped(b"job"), Some((1, 1)), "what is listed is the leader's");
    let connections = direct.stat("total_connections");
    assert!(connections >= 2, "{connections}");

    // The leader knows the client by its own address, so that it is an administrator on loopback.
    let server = cluster.node(relay).counters.to_string();
    let listed = cluster.run(["sessions", "--server", &server, "--json"]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    let holders = cluster.run(["status", "--holders", "job", "--json"]);
    let holders: Value = serde_json::from_slice(&holders.stdout).unwrap();
    let client = relayed.stream.local_addr().unwrap().to_string();
    assert!(holders.to_string().contains(&client), "{client}: {holders}");

    // What a relayed client holds is released when it leaves.
    drop(relayed);
    eventually("the leader knows that the client has gone", || direct.acquire(b"job", 1, 1).status == OK);
}

#[test]
fn a_relayed_client_that_has_sent_its_last_request_is_answered() {
    let Some(cluster) = TestCluster::start_relaying(1, 2) else { return };
    let (_, relay) = leader_and_relay(&cluster);
    let mut stream = TcpStream::connect(cluster.wire(relay).stream.peer_addr().unwrap()).unwrap();
    const REQUESTS: usize = 20_000;
    let mut requests = frame(ACQUIRE, *b"last", &named(&[1, 5], b"job"));
    for _ in 0..REQUESTS {
        requests.extend(frame(GET, *b"last", &named(&[], b"job")));
    }
    let mut reader = stream.try_clone().unwrap();
    let read = std::thread::spawn(move || {
        let mut answers = Vec::new();
        reader.read_to_end(&mut answers).map(|_| answers)
    });
    stream.write_all(&requests).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answers = read.join().unwrap().expect("the connection ends in good order");
    // Each has a header and a number of resources.
    assert_eq!(answers.len(), (1 + REQUESTS) * 16, "every request is answered");
}

#[test]
fn relayed_clients_are_disconnected_before_the_next_leader_answers() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 3) else { return };
    let (leader, relay) = leader_and_relay(&cluster);
    let mut holder = cluster.served(relay);
    assert_eq!(holder.acquire(b"job", 1, 1).status, OK);
    cluster.freeze(leader);
    // A client that connects while no node leads waits.
    let other = cluster.others(leader)[1];
    let mut next = cluster.wire(other);
    assert_eq!(next.acquire(b"job", 1, 1).status, OK, "it was released");
    // Without a wait: the client that was relayed to the frozen leader has been disconnected already.
    holder.stream.set_nonblocking(true).unwrap();
    assert!(matches!(holder.stream.read(&mut [0]), Ok(0)), "closed before the next leader answered");
    cluster.daemon(leader).signal(Signal::SIGKILL);
}

#[test]
fn a_relay_that_was_frozen_forwards_nothing_more() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 3) else { return };
    let (leader, relay) = leader_and_relay(&cluster);
    let mut holder = cluster.served(relay);
    assert_eq!(holder.acquire(b"job", 1, 1).status, OK);
    cluster.freeze(relay);
    holder.send(&frame(GET, *b"late", &named(&[], b"job")));
    cluster.daemon(leader).signal(Signal::SIGKILL);
    let next = cluster.leader_among(&cluster.others(leader));
    assert_ne!(next, relay);
    assert_eq!(cluster.served(next).acquire(b"job", 1, 1).status, OK, "it was released");
    cluster.daemon(relay).signal(Signal::SIGCONT);
    assert!(holder.try_answer().is_err(), "nothing was forwarded");
    // It continues as a relay to the new leader.
    assert_eq!(cluster.served(relay).get(b"job").status, OK);
}

#[test]
fn leases_begin_again_when_the_next_leader_answers() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 0) else { return };
    for number in 0..3 {
        let node = cluster.add(&format!("node-{number}"));
        cluster.configure(node, |config| config.replace("renew_deadline = 2", "renew_deadline = 5"));
        cluster.start_node(node);
    }
    let leader = cluster.leader();
    let (relay, next) = (cluster.others(leader)[0], cluster.others(leader)[1]);
    for node in [relay, next] {
        cluster.await_standby(node);
    }
    // This one must not wait for the relay, too.
    cluster.daemon(leader).ready();
    // The next leader waits for this one for the lease duration, 5.6 s.
    cluster.freeze(relay);
    let server = cluster.node(leader).counters.to_string();
    let acquired = cluster.run(["acquire", "job", "--max", "1", "--lease", "3s", "--server", &server]);
    assert!(acquired.status.success(), "{}", stderr(&acquired));
    cluster.daemon(leader).signal(Signal::SIGTERM);
    assert!(cluster.daemon(leader).exit_status().success());
    cluster.daemon(next).ready();
    let server = cluster.node(next).counters.to_string();
    let holders = cluster.run(["status", "--holders", "job", "--json", "--server", &server]);
    assert!(holders.status.success(), "{}", stderr(&holders));
    assert!(!holders.stdout.is_empty(), "its lease is not over: {}", cluster.daemon(next).said());
}

#[test]
fn a_client_waits_for_a_leader_for_a_limited_time() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 2) else { return };
    let (leader, relay) = leader_and_relay(&cluster);
    let began = Instant::now();
    cluster.daemon(leader).signal(Signal::SIGKILL);
    // It comes while no node leads.
    let mut waiting = cluster.wire(relay);
    assert_eq!(waiting.acquire(b"job", 1, 1).status, OK);
    assert!(began.elapsed() > RENEW_DEADLINE / 2, "no node led before: {:?}", began.elapsed());
    drop(waiting);

    // A node that may not lead, alone.
    cluster.configure(leader, |config| config.replace("hold = 60", "eligible = false\nhold = 1"));
    cluster.start_node(leader);
    cluster.await_standby(leader);
    assert_eq!(cluster.served(leader).get(b"warm-up").status, OK, "it relays");
    cluster.daemon(relay).signal(Signal::SIGTERM);
    cluster.daemon(relay).exit_status();
    let mut waiting = cluster.wire(leader);
    let began = Instant::now();
    waiting.send(&frame(GET, *b"none", &named(&[], b"job")));
    assert!(waiting.is_closed());
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    cluster.daemon(leader).logged_message("no leader has served them within cluster.hold");
    let said = cluster.daemon(leader).said();
    assert!(!said.contains("this node leads"), "{said}");
}

#[test]
fn one_client_at_a_time_tries_to_reach_a_leader_that_has_failed() {
    const PAUSE: Duration = Duration::from_millis(20);
    let Some(mut cluster) = TestCluster::start_relaying(1, 1) else { return };
    let leader = cluster.leader();
    // It does not take over.
    let relay = cluster.add("relay");
    cluster.configure(relay, |config| format!("{config}eligible = false\n"));
    cluster.start_node(relay);
    cluster.await_standby(relay);
    cluster.kill(leader);
    // A listener on its port closes each connection.
    let port = TcpListener::bind(cluster.node(leader).relays).unwrap();
    port.set_nonblocking(true).unwrap();
    let began = Instant::now();
    let _clients: Vec<_> = (0..50).map(|_| cluster.wire(relay)).collect();
    let mut attempts = 0;
    while attempts < 5 {
        assert!(began.elapsed() < PATIENCE, "the relay tries again");
        match port.accept() {
            Ok(_) => attempts += 1,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let most = 1 + began.elapsed().div_duration_f64(PAUSE) as u32;
    assert!(attempts <= most, "{attempts} attempts, and {most} at most");
}

/// The first messages of a relay, as `docs/protocol.md` has them.
struct Opening {
    stream: TcpStream,
    nonce: [u8; 16],
}

impl Opening {
    fn begin(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut challenge = [0; 20];
        stream.read_exact(&mut challenge).unwrap();
        Self { stream, nonce: challenge[4..].try_into().unwrap() }
    }

    /// Sends a statement with a proof, and returns the outcome; `None` if there is no answer.
    fn send(&mut self, statement: &[u8], proof: &[u8]) -> Option<u8> {
        self.stream.write_all(&[statement, proof].concat()).unwrap();
        let mut verdict = [0; 33];
        self.stream.read_exact(&mut verdict).ok().map(|()| verdict[0])
    }
}

/// The flag of a relay that encrypts the connection.
const ENCRYPTED: u8 = 1;
const NOT_ENCRYPTED: u8 = 0;

/// The statement of a relay in epoch 1, for a connection to the port of the counters.
fn statement_of(flags: u8, client: [u8; 4]) -> [u8; 24] {
    let mut statement = [0; 24];
    statement[0] = flags;
    statement[2..6].copy_from_slice(&1_u32.to_be_bytes());
    statement[16..18].fill(0xff);
    statement[18..22].copy_from_slice(&client);
    statement
}

/// The secret of a node that leads.
fn secret_of(cluster: &mut TestCluster, leader: usize) -> hmac::Key {
    let key = format!("/signalbox/main/n/{}", cluster.node(leader).name);
    let node = cluster.etcd.control(&["get", &key, "--print-value-only"]);
    let node: Value = serde_json::from_str(node.trim()).unwrap();
    let secret = node["relay_endpoint"]["secret"].as_str().unwrap();
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

fn prove(secret: &hmac::Key, nonce: &[u8], statement: &[u8]) -> hmac::Tag {
    hmac::sign(secret, &[b"signalbox relay opening", nonce, statement].concat())
}

/// TLS with a leader, whose certificate this authority has signed.
fn tls_over(stream: TcpStream, authority: &Authority) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(connection, stream)
}

#[test]
fn a_proof_holds_for_one_connection_and_one_address() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 2) else { return };
    let (leader, _) = leader_and_relay(&cluster);
    let address = cluster.node(leader).relays;
    let secret = secret_of(&mut cluster, leader);
    let statement = |client| statement_of(0, client);
    let prove = |nonce: &[u8], statement: &[u8]| prove(&secret, nonce, statement);
    let (own, local) = (statement([192, 0, 2, 7]), statement([127, 0, 0, 1]));
    let mut first = Opening::begin(address);
    let proof = prove(&first.nonce, &own);
    assert_eq!(first.send(&own, proof.as_ref()), Some(0), "it is accepted");
    assert_eq!(Wire::over(first.stream.try_clone().unwrap()).acquire(b"job", 1, 1).status, OK);
    let holders = cluster.run(["status", "--holders", "job", "--json"]);
    let holders = String::from_utf8_lossy(&holders.stdout).into_owned();
    assert!(holders.contains("192.0.2.7"), "the leader knows the client: {holders}");

    let mut faked = Opening::begin(address);
    assert_ne!(faked.nonce, first.nonce, "no proof can be used twice");
    let proof_of_another = prove(&faked.nonce, &own);
    assert_eq!(faked.send(&local, proof_of_another.as_ref()), None, "the address is another one");
    let refused = cluster.daemon(leader).logged_message("a relayed connection was not accepted");
    assert!(text(&refused, "refused").contains("does not know this leader's secret"), "{refused}");
    assert_eq!(Opening::begin(address).send(&own, proof.as_ref()), None, "the proof was used before");
    let request_of_a_client = frame(GET, *b"none", &named(&[], &[b'x'; 60]));
    assert_eq!(Opening::begin(address).send(&request_of_a_client, &[]), None, "it is not for clients");
    let mut outdated = Opening::begin(address);
    let mut earlier = own;
    earlier[2..6].copy_from_slice(&7_u32.to_be_bytes());
    let proof = prove(&outdated.nonce, &earlier);
    assert_eq!(outdated.send(&earlier, proof.as_ref()), Some(2), "it does not lead in that epoch");
}

/// Each of them may take 5 s to send a proof.
#[test]
fn silent_connections_to_the_port_for_relays_make_room_for_nodes_and_for_others() {
    const SILENT: usize = 1_500;
    let Some(mut cluster) = TestCluster::start_relaying(1, 2) else { return };
    let (leader, relay) = leader_and_relay(&cluster);
    let address = cluster.node(leader).relays;
    let begun = Instant::now();
    let mut silent = std::collections::VecDeque::new();
    for number in 0..SILENT {
        silent.push_back(connect_from("127.0.0.9", address));
        // The server closes the oldest ones.
        if number >= 200 {
            let mut oldest = silent.pop_front().unwrap();
            oldest.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut said = Vec::new();
            oldest.read_to_end(&mut said).expect("it was closed for a newer one");
        }
    }
    let mut relayed = cluster.served(relay);
    assert_eq!(relayed.acquire(b"job", 1, 1).status, OK);
    let open = silent.iter_mut().map(is_open).filter(|is_open| *is_open).count();
    // If this takes longer on a slow machine, the server closes all of them.
    if begun.elapsed() < Duration::from_secs(4) {
        assert_eq!(open, 64, "the newest of its address");
    }
    let line = cluster.daemon(leader).logged_message("too many connections to cluster.bind");
    assert!(text(&line, "relay").starts_with("127.0.0.9:"), "{line}");
}

/// Whether the peer has not closed a connection. What it has sent is skipped.
fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let rest = std::io::copy(stream, &mut std::io::sink());
    rest.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn the_loss_of_a_relay_is_not_the_end_of_a_client_process() {
    if !SysvProgram::is_possible() {
        return;
    }
    let Some(mut cluster) = TestCluster::start_relaying(1, 3) else { return };
    let (leader, relay) = leader_and_relay(&cluster);
    let value = |cluster: &mut TestCluster| {
        let server = cluster.node(leader).counters.to_string();
        let shown = cluster.run(["sysv", "show", "42", "--json", "--server", &server]);
        let shown: Value = serde_json::from_slice(&shown.stdout).ok()?;
        shown["values"][0]["value"].as_u64()
    };
    let server = cluster.node(relay).counters.to_string();
    let mut ending = SysvProgram::start(&server, &[]);
    ending.make_set(42, 2);
    ending.add(-1);
    assert_eq!(ending.answer(), "done");
    let mut staying = SysvProgram::start(&server, &[("SIGNALBOX_SYSV_TTL", "60s")]);
    staying.find_set(42);
    staying.add(-1);
    assert_eq!(staying.answer(), "done");
    assert_eq!(value(&mut cluster), Some(0));
    // A process that ends behind a relay is known to have ended.
    ending.kill();
    eventually("its adjustment is done", || value(&mut cluster) == Some(1));
    // A relay that is killed says nothing about the process behind it.
    let mut direct = cluster.wire(leader);
    let connections = direct.stat("curr_connections");
    cluster.kill(relay);
    eventually("the leader knows of the loss", || direct.stat("curr_connections") < connections);
    assert_eq!(value(&mut cluster), Some(1), "its adjustment waits for its time to live");
    staying.kill();
}

#[test]
fn clients_with_and_without_tls_are_relayed_over_tls() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 0) else { return };
    let (authority, files) = for_loopback();
    let ca = authority.file().display().to_string();
    for number in 0..2 {
        let node = cluster.add(&format!("node-{number}"));
        let file = cluster.node(node).file.clone();
        let config = std::fs::read_to_string(&file).unwrap();
        // A client that shows a certificate must not be one of a relay, which has none.
        let tls = format!(
            "[tls]\ncert = {:?}\nkey = {:?}\nclient_ca = {ca:?}\nclient_cert = \"required\"\n",
            files.certificate, files.key
        );
        std::fs::write(&file, format!("{config}advertise = \"127.0.0.1\"\nrelay_ca = {ca:?}\n{tls}"))
            .unwrap();
        cluster.start_node(node);
    }
    let (leader, relay) = leader_and_relay(&cluster);
    cluster.await_standby(relay);

    let established = |cluster: &TestCluster| cluster.wire(leader).stat("tls_connections");
    let before = established(&cluster);
    let mut plain = cluster.served(relay);
    assert_eq!(plain.acquire(b"job", 1, 1).status, OK);
    assert_eq!(established(&cluster), before + 1, "the relay has encrypted it");
    let server = cluster.node(relay).counters.to_string();
    let [certificate, key] = [&files.certificate, &files.key].map(|file| file.display().to_string());
    let tls = ["--ca", &ca, "--cert", &certificate, "--cert-key", &key];
    let over_tls = [&["get", "job", "--server", &server][..], &tls].concat();
    let shown = cluster.run(over_tls);
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), "1", "{}", stderr(&shown));
    assert_eq!(established(&cluster), before + 2, "the client's own TLS reaches the leader");

    // A client whose relay encrypts what it sends is told no addresses: to these, it would send its token in clear.
    let whereabouts = |node| Caller::new(cluster.served(node)).ask(&Extended::Where).whereabouts().unwrap();
    let (encrypted, direct) = (whereabouts(relay), whereabouts(leader));
    assert!(
        encrypted.is_relayed && encrypted.leader.is_empty() && encrypted.others.is_empty(),
        "{encrypted:?}"
    );
    assert!(!direct.leader.is_empty(), "{direct:?}");

    // An attacker between the nodes who has forwarded the first messages of a relay cannot continue in its place.
    let statement = statement_of(ENCRYPTED, [127, 0, 0, 1]);
    for begins_tls in [false, true] {
        let (secret, mut opening) =
            (secret_of(&mut cluster, leader), Opening::begin(cluster.node(leader).relays));
        let proof = prove(&secret, &opening.nonce, &statement);
        assert_eq!(opening.send(&statement, proof.as_ref()), Some(0));
        let mut request = frame(GET, *b"none", &named(&[], b"job"));
        // Where the proof of the relay should be.
        request.extend([0; 32]);
        let mut answer = Vec::new();
        if begins_tls {
            let mut tls = tls_over(opening.stream, &authority);
            let _ = tls.write_all(&request);
            let _ = tls.read_to_end(&mut answer);
            assert_eq!(answer, b"", "it is not served");
        } else {
            let _ = opening.stream.write_all(&request);
            let _ = opening.stream.read_to_end(&mut answer);
            // Only what it lacks.
            assert_eq!((answer[2], answer.len() < 64), (Status::TlsRequired.code(), true), "{answer:?}");
        }
    }
    // Nor as a client that the relay does not encrypt: its address gives it no rights.
    let statement = statement_of(NOT_ENCRYPTED, [127, 0, 0, 1]);
    let (secret, mut opening) =
        (secret_of(&mut cluster, leader), Opening::begin(cluster.node(leader).relays));
    let proof = prove(&secret, &opening.nonce, &statement);
    assert_eq!(opening.send(&statement, proof.as_ref()), Some(0));
    let mut stranger = Caller::new(Wire::over(opening.stream));
    stranger.hello("stranger");
    let (what, grace) = (Revocation::Identity(b"worker"), Milliseconds(0));
    assert_eq!(stranger.change(Operation::Revoke { what, grace }).status, Status::NotPermitted.code());
    cluster.daemon(leader).logged("the leader says so", |line| {
        line["fields"]["error"].as_str().is_some_and(|error| error.contains("it was not begun by the relay"))
    });

    // Where the leader refuses clients without TLS, it tells them so.
    for node in [relay, leader] {
        cluster.configure(node, |config| config.replace("[tls]\n", "[tls]\nplain = \"refuse\"\n"));
    }
    cluster.daemon(leader).reload("the configuration was read again");
    let refused = cluster.run(["get", "job", "--server", &server]);
    assert!(stderr(&refused).contains("TLS"), "{}", stderr(&refused));
    assert_eq!(plain.get(b"job").status, OK, "a connection that is there stays");
}
