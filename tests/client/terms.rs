//! Permits with a label or a time to live of their own.

use std::time::Duration;

use crate::started;
use crate::support::fake_server::soon;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{TestServer, eventually};
use signalbox_client::{Builder, Client, Direct, ListEntry, Lost, Namespace, Permit, Series, TtlLeft};

const LONG: Duration = Duration::from_secs(60);

fn builder(address: std::net::SocketAddr) -> Builder {
    Client::builder(address.to_string().parse().unwrap()).label("a client").ttl(LONG)
}

fn sessions(server: &TestServer) -> u64 {
    server.server.core().ledger_stats().sessions
}

fn grants(server: &TestServer) -> u64 {
    server.server.core().ledger_stats().grants
}

/// The sessions and labels of a list.
async fn entries(listing: Series<ListEntry<bytes::Bytes, Vec<u16>>>) -> Vec<(u64, String)> {
    let (mut listing, mut entries) = (listing, Vec::new());
    while let Some(entry) = listing.next().await {
        let entry = entry.unwrap();
        entries.push((entry.session, String::from_utf8(entry.label.to_vec()).unwrap()));
    }
    entries
}

async fn ttl_of(direct: &Direct, permit: &Permit) -> Duration {
    match direct.verify(permit.id()).await.unwrap().ttl_left {
        TtlLeft::For(left) => left.into(),
        TtlLeft::Connection => panic!("a permit belongs to a leased session"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn labels_that_are_used_in_turn_keep_their_sessions() {
    let server = started(|_| {});
    let client = builder(server.counters).connect().await.unwrap();
    let mut permits = Vec::new();
    let mut opened = Vec::new();
    for _ in 0..2 {
        for label in ["job 1", "job 2", "job 3"] {
            permits.push(client.semaphore("gpu").capacity(6).label(label).acquire().await.unwrap());
        }
        opened.push(sessions(&server));
    }
    assert_eq!(grants(&server), 6);
    assert_eq!(opened[0], opened[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_permit_has_the_label_that_its_request_gave_it() {
    let server = started(|_| {});
    let client = builder(server.counters).connect().await.unwrap();
    let direct = client.direct().await.unwrap();
    let request = || client.semaphore("gpu").capacity(3);
    let plain = request().acquire().await.unwrap();
    let seven = request().label("job 7").acquire().await.unwrap();
    let again = request().label("job 7").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.semaphore("gpu").declared().label("job 8").acquire().await }
    });
    eventually("it waits", || server.server.core().ledger_stats().waiters == 1);
    let holders = entries(direct.holders(Namespace::Semaphores, b"gpu").await.unwrap()).await;
    let labels: Vec<_> = holders.iter().map(|(_, label)| &label[..]).collect();
    assert_eq!(labels, ["a client", "job 7", "job 7"]);
    assert_eq!(holders[1].0, holders[2].0, "requests with the same label share a session");
    assert_eq!(sessions(&server), 3);
    let waiters = entries(direct.waiters(Namespace::Semaphores, b"gpu").await.unwrap()).await;
    assert_eq!(waiters[0].1, "job 8");

    drop((seven, again));
    let eight = soon("the next permit", waiting).await.unwrap().unwrap();
    eventually("the session of job 7 is closed", || sessions(&server) == 2);
    assert!(plain.is_held() && eight.is_held());
    let seven = request().label("job 7").try_acquire().await.unwrap();
    assert_eq!((sessions(&server), grants(&server)), (3, 3));
    client.close().await;
    assert_eq!((sessions(&server), grants(&server)), (0, 0), "all sessions are closed");
    assert_eq!(soon("the loss", seven.lost()).await, Lost::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_permit_has_the_time_to_live_that_its_request_gave_it() {
    let server = started(|_| {});
    let proxy = Proxy::to(server.counters);
    let client = builder(proxy.address).connect().await.unwrap();
    let direct = builder(server.counters).build().unwrap().direct().await.unwrap();
    let long = client.counter("a").maximum(2).acquire().await.unwrap();
    let short = client.counter("a").maximum(2).ttl(Duration::from_secs(1)).acquire().await.unwrap();
    assert!(ttl_of(&direct, &long).await > LONG / 2);
    assert!(ttl_of(&direct, &short).await <= Duration::from_secs(1));
    proxy.set(Mode::Silent);
    assert_eq!(soon("the loss", short.lost()).await, Lost::Unreachable);
    assert!(long.is_held(), "its lease is longer");
    proxy.set(Mode::To(server.counters));
    let again = client.counter("a").maximum(2).ttl(Duration::from_secs(1)).acquire();
    let again = soon("a permit in another session", again).await.unwrap();
    assert!(again.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_labelled_permit_is_handed_over_without_the_others() {
    let server = started(|_| {});
    let client = builder(server.counters).connect().await.unwrap();
    let plain = client.counter("a").maximum(3).acquire().await.unwrap();
    let labelled = client.counter("a").maximum(3).label("job 7").acquire().await.unwrap();
    let handed = labelled.hand_over().await.unwrap();
    assert!(plain.is_held());
    let another = client.counter("a").maximum(3).label("job 7").acquire().await.unwrap();
    let direct = client.direct().await.unwrap();
    assert_ne!(direct.verify(another.id()).await.unwrap().session, handed.session);
    client.close().await;
    assert_eq!((sessions(&server), grants(&server)), (1, 1), "what was handed over is left");
    direct.attach_session(handed.session, handed.key).await.unwrap();
    direct.close_session().await.unwrap();
    assert_eq!(grants(&server), 0);
}

#[test]
fn permits_with_labels_are_released_before_a_program_ends() {
    let server = TestServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let permits = runtime.block_on(async {
        let client = builder(server.counters).connect().await.unwrap();
        let labelled = client.counter("a").maximum(2).label("job 7").acquire().await.unwrap();
        (client.counter("a").maximum(2).acquire().await.unwrap(), labelled)
    });
    drop(runtime);
    drop(permits);
    assert_eq!((sessions(&server), grants(&server)), (0, 0));
}
