//! Programs that end right after they have dropped their permits: nothing stays held until the lease ends.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::TestServer;
use signalbox_client::{Client, blocking};

/// The server that a child process connects to, and how the child uses the client.
const SERVER: &str = "SIGNALBOX_TEST_END_SERVER";
const PROGRAM: &str = "SIGNALBOX_TEST_END_PROGRAM";

/// Longer than the test may take.
const LEASE: Duration = Duration::from_secs(600);

async fn connected(server: &str) -> Client {
    Client::builder(server.parse().unwrap()).ttl(LEASE).connect().await.unwrap()
}

async fn hold_and_drop(server: String) {
    let client = connected(&server).await;
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    drop(permit);
}

/// The permit outlives the client.
async fn drop_the_client_first(server: String) {
    let client = connected(&server).await;
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    drop(client);
    drop(permit);
}

/// A task still holds the permit when its runtime is shut down.
async fn leave_to_a_task(server: String) {
    let (sender, held) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let client = connected(&server).await;
        let _permit = client.counter("a").maximum(1).acquire().await.unwrap();
        sender.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    held.await.unwrap();
}

/// What `#[tokio::main]` expands to.
fn on_threads(program: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(program);
}

fn on_one_thread(program: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(program);
}

/// Uses the server at this address.
type Program = fn(String);

const PROGRAMS: [(&str, Program); 7] = [
    ("threads", |server| on_threads(hold_and_drop(server))),
    ("one thread", |server| on_one_thread(hold_and_drop(server))),
    ("permit last, threads", |server| on_threads(drop_the_client_first(server))),
    ("permit last, one thread", |server| on_one_thread(drop_the_client_first(server))),
    ("task, threads", |server| on_threads(leave_to_a_task(server))),
    ("task, one thread", |server| on_one_thread(leave_to_a_task(server))),
    ("blocking", |server| {
        let client = blocking::Client::connect(&server.parse().unwrap()).unwrap();
        let permit = client.wait(client.counter("a").maximum(1).acquire()).unwrap();
        drop(permit);
    }),
];

/// Runs in a process of its own, which ends as soon as the program has returned.
#[test]
fn child() {
    let (Ok(server), Ok(program)) = (std::env::var(SERVER), std::env::var(PROGRAM)) else { return };
    let (_, run) =
        PROGRAMS.into_iter().find(|(name, _)| *name == program).expect("the parent names a program");
    run(server);
    std::process::exit(0);
}

#[test]
fn a_program_that_ends_after_dropping_its_permit_leaves_nothing_held() {
    let server = TestServer::start();
    for (name, _) in PROGRAMS {
        for run in 0..10 {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "end::child", "--quiet"])
                .envs([(SERVER, server.counters.to_string()), (PROGRAM, name.to_owned())])
                .stdout(Stdio::null())
                .status();
            assert!(status.unwrap().success(), "{name}");
            let left = server.server.core().ledger_stats();
            assert_eq!((left.grants, left.sessions), (0, 0), "{name}, run {run}");
        }
    }
}
