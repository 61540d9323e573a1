//! Waiting requests return in their order after the daemon was killed or stopped, and started again on its data
//! directory.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;
use signalbox_client::{Client, Namespace, Permit};

const NAME: &[u8] = b"lock";

/// Longer than a test.
const TTL: Duration = Duration::from_secs(60);

/// A configuration with a data directory, for this port of the semaphores. 0 means any port. The window ends when all
/// are back, which takes long on a busy machine.
fn configure(file: &ConfigFile, port: u16) {
    file.write(&format!(
        "data_dir = '{}'\nworkers = 1\ncounter.enable = false\nsemaphore.port = {}\n[session]\nreconnect_window = 20\n",
        file.directory().join("data").display(),
        port.max(1)
    ));
}

async fn client(address: SocketAddr) -> Client {
    Client::builder(address.to_string().parse().unwrap()).ttl(TTL).connect().await.unwrap()
}

async fn acquire(client: &Client) -> Permit {
    client.semaphore(NAME).capacity(1).acquire().await.unwrap()
}

async fn until_waiting(client: &Client, count: u32) {
    let direct = client.direct().await.unwrap();
    let wait = async {
        while direct.inspect(Namespace::Semaphores, NAME).await.unwrap().waiting != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{count} requests wait"));
}

/// Makes `count` requests wait for a permit, in the sessions of `clients` clients in turn. The daemon ends by this signal
/// and is started again, and then the permit is released. Returns the order in which the requests are granted, and the
/// ids of their grants.
fn granted_after_a_restart(count: u32, clients: usize, signal: Signal) -> Vec<(u32, u64)> {
    let file = ConfigFile::toml("");
    configure(&file, 0);
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    daemon.ready();
    let address = daemon.address("semaphore");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let holder = client(address).await;
        let permit = acquire(&holder).await;
        let granted = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        let mut some = Vec::new();
        for _ in 0..clients {
            some.push(client(address).await);
        }
        for number in 0..count {
            let (client, granted) = (some[number as usize % clients].clone(), Arc::clone(&granted));
            waiting.push(tokio::spawn(async move {
                let permit = acquire(&client).await;
                granted.lock().unwrap().push((number, permit.id().0));
                permit.release().await.unwrap();
            }));
            until_waiting(&holder, number + 1).await;
        }
        daemon.signal(signal);
        daemon.exit_status();
        configure(&file, address.port());
        let mut daemon = Daemon::spawn(serve_file(&file.path()));
        daemon.ready();
        permit.release().await.unwrap();
        for task in waiting {
            tokio::time::timeout(PATIENCE, task).await.expect("each is granted").unwrap();
        }
        for client in some.into_iter().chain([holder]) {
            client.close().await;
        }
        Arc::into_inner(granted).unwrap().into_inner().unwrap()
    })
}

fn assert_kept(count: u32, clients: usize, signal: Signal) {
    let granted = granted_after_a_restart(count, clients, signal);
    let order: Vec<_> = granted.iter().map(|(number, _)| *number).collect();
    assert_eq!(order, (0..count).collect::<Vec<_>>());
    assert!(granted.is_sorted_by(|(_, one), (_, next)| one < next), "fencing tokens grow: {granted:?}");
}

#[test]
fn eight_waiting_clients_return_in_their_order_after_a_kill() {
    assert_kept(8, 8, Signal::SIGKILL);
}

#[test]
fn eight_waiting_clients_return_in_their_order_after_a_stop() {
    assert_kept(8, 8, Signal::SIGTERM);
}

#[test]
fn a_hundred_waiting_clients_return_in_their_order_after_a_kill() {
    assert_kept(100, 100, Signal::SIGKILL);
}

#[test]
fn a_hundred_requests_of_few_sessions_return_in_their_order_after_a_kill() {
    assert_kept(100, 7, Signal::SIGKILL);
}
