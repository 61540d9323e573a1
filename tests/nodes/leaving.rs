//! A node that stops: no client may still be connected to it when other nodes learn that it has left.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};

use nix::sys::ptrace;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use crate::support::cluster::TestCluster;
use crate::support::daemon::{Daemon, message};
use crate::support::{GET, Wire, eventually, frame, named, skipped};

fn is_open(mut client: &StdTcpStream) -> bool {
    client.set_nonblocking(true).unwrap();
    matches!(client.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// A proxy in front of etcd, which shows what a node sends before etcd has it.
struct Window {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Window {
    fn before(etcd: SocketAddr, look: impl Fn(&[u8]) + Clone + Send + Sync + 'static) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((node, _)) = listener.accept().await {
                tokio::spawn(forward(node, etcd, look.clone()));
            }
        });
        Self { address, runtime: Some(runtime) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.runtime.take().expect("only taken here").shutdown_background();
    }
}

async fn forward(mut node: TcpStream, etcd: SocketAddr, look: impl Fn(&[u8]) + Sync) -> std::io::Result<()> {
    let mut etcd = TcpStream::connect(etcd).await?;
    let (mut from_node, mut to_node) = node.split();
    let (mut from_etcd, mut to_etcd) = etcd.split();
    let there = async {
        let mut sent = vec![0; 64 * 1024];
        loop {
            let bytes = from_node.read(&mut sent).await?;
            if bytes == 0 {
                return std::io::Result::Ok(());
            }
            look(&sent[..bytes]);
            to_etcd.write_all(&sent[..bytes]).await?;
        }
    };
    tokio::select! {
        ended = there => ended,
        ended = tokio::io::copy(&mut from_etcd, &mut to_node) => ended.map(drop),
    }
}

#[test]
fn a_leader_releases_the_leadership_after_its_last_client_is_disconnected() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 0) else { return };
    let leader = cluster.add("leader");
    let endpoint = cluster.etcd.endpoints()[0].clone();
    let clients: Arc<Mutex<Vec<StdTcpStream>>> = Arc::default();
    // How many clients were connected when the leader sent the release.
    let connected: Arc<Mutex<Vec<usize>>> = Arc::default();
    let look = {
        let (clients, connected) = (Arc::clone(&clients), Arc::clone(&connected));
        move |sent: &[u8]| {
            let release = br#""state":"released""#;
            if sent.windows(release.len()).any(|bytes| bytes == release) {
                let open = clients.lock().unwrap().iter().filter(|client| is_open(client)).count();
                connected.lock().unwrap().push(open);
            }
        }
    };
    let window = Window::before(endpoint.strip_prefix("http://").unwrap().parse().unwrap(), look);
    cluster.configure(leader, |config| config.replace(&endpoint, &format!("http://{}", window.address)));
    cluster.start_node(leader);
    cluster.leader();
    for _ in 0..10 {
        clients.lock().unwrap().push(cluster.served(leader).stream);
    }
    assert!(connected.lock().unwrap().is_empty());
    cluster.daemon(leader).signal(Signal::SIGTERM);
    assert!(cluster.daemon(leader).exit_status().success());
    assert_eq!(*connected.lock().unwrap(), [0]);
}

/// The messages of a log up to the one that says that the node has left.
fn messages_until_it_left(daemon: &Daemon) -> Vec<String> {
    let log: Vec<_> = daemon.log().iter().map(|line| message(line).to_owned()).collect();
    let left = log.iter().position(|message| message == "the node has left the cluster");
    log[..left.unwrap_or_else(|| panic!("{log:#?}"))].to_vec()
}

#[test]
fn a_relay_leaves_after_its_last_client_is_disconnected() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 1) else { return };
    cluster.leader();
    let relay = cluster.add("relay");
    cluster.configure(relay, |config| format!("log.threshold = \"debug\"\n{config}"));
    cluster.start_node(relay);
    cluster.await_standby(relay);
    let mut clients = [cluster.served(relay), cluster.served(relay)];
    cluster.daemon(relay).signal(Signal::SIGTERM);
    assert!(cluster.daemon(relay).exit_status().success());
    assert!(clients.iter_mut().all(Wire::is_closed));
    // A connection is logged as closed after both of its sockets are.
    let log = messages_until_it_left(cluster.daemon(relay));
    let count = |what: &str| log.iter().filter(|message| *message == what).count();
    assert_eq!(count("relaying a connection"), 2);
    assert_eq!(count("relayed connection closed"), 2, "{log:#?}");
}

/// Thousands of served connections to a node, if this system allows that many open files.
fn served_thousands(cluster: &TestCluster, node: usize) -> Vec<Wire> {
    let (_, files_max) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, files_max, files_max).unwrap();
    // A relay needs two files for each.
    let count = 5000.min(files_max / 4);
    let mut clients = Vec::new();
    for _ in 0..count / 100 {
        let mut new: Vec<_> = (0..100).map(|_| cluster.wire(node)).collect();
        new.iter_mut().for_each(|client| client.send(&frame(GET, *b"many", &named(&[], b"job"))));
        assert!(new.iter_mut().all(|client| client.answer().opaque == *b"many"));
        clients.append(&mut new);
    }
    clients
}

#[test]
fn a_node_that_relays_thousands_of_clients_takes_over_and_stops_in_order() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 2) else { return };
    let leader = cluster.leader();
    let relay = cluster.others(leader)[0];
    let mut clients = served_thousands(&cluster, relay);
    cluster.daemon(leader).signal(Signal::SIGTERM);
    assert!(cluster.daemon(leader).exit_status().success());
    cluster.daemon(relay).ready();
    assert!(clients.iter_mut().all(Wire::is_closed));

    let (relay, leader) = (leader, relay);
    cluster.start_node(relay);
    cluster.await_standby(relay);
    let mut clients = served_thousands(&cluster, relay);
    cluster.daemon(relay).signal(Signal::SIGTERM);
    assert!(cluster.daemon(relay).exit_status().success());
    assert!(clients.iter_mut().all(Wire::is_closed));
    let key = format!("/signalbox/main/n/{}", cluster.node(relay).name);
    assert_eq!(cluster.etcd.control(&["get", &key]).trim(), "", "it has left");
    cluster.served(leader);
}

/// Stops the threads of a process whose names begin with `name`, while the others continue; `None`, with a line on standard error,
/// if that is not permitted.
fn stop_threads(process: Pid, name: &str) -> Option<Vec<Pid>> {
    let mut stopped = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let thread = thread.unwrap().path();
        if !std::fs::read_to_string(thread.join("comm")).unwrap().starts_with(name) {
            continue;
        }
        let id = Pid::from_raw(thread.file_name().unwrap().to_str().unwrap().parse().unwrap());
        if let Err(error) = ptrace::seize(id, ptrace::Options::empty()) {
            skipped(&format!("a single thread cannot be stopped here (ptrace: {error})"));
            return None;
        }
        ptrace::interrupt(id).unwrap();
        let state = || std::fs::read_to_string(thread.join("stat")).unwrap();
        eventually("the thread is stopped", || state().contains(") t "));
        stopped.push(id);
    }
    assert!(!stopped.is_empty());
    Some(stopped)
}

#[test]
fn a_relay_that_cannot_disconnect_its_clients_ends_at_once_and_does_not_leave() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 2) else { return };
    let leader = cluster.leader();
    let relay = cluster.others(leader)[0];
    let mut client = cluster.served(relay);
    let Some(threads) = stop_threads(cluster.daemon(relay).pid(), "worker-") else { return };
    cluster.daemon(relay).signal(Signal::SIGTERM);
    for thread in threads {
        // The process ends only after its tracer, this test, has waited for the threads that it stopped.
        while waitpid(thread, Some(WaitPidFlag::__WALL)).is_ok_and(|status| status.pid().is_some()) {}
    }
    let status = cluster.daemon(relay).exit_status();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    assert!(client.is_closed());
    let said = cluster.daemon(relay).said();
    assert!(said.contains("could not close the connections that it relays"), "{said}");
    // A new leader would wait for it.
    let key = format!("/signalbox/main/n/{}", cluster.node(relay).name);
    assert!(cluster.etcd.control(&["get", &key]).contains(&key));
}
