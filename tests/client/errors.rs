//! Errors of the client name what was requested.

use std::time::Duration;

use crate::revoke;
use crate::support::TestServer;
use crate::support::fake_server::soon;
use signalbox_client::{
    Claim, Client, Error, ErrorKind, Lost, Namespace, PlainClient, Resizing, Revocation, Status,
};
use signalbox_model::Operation;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn errors_name_what_was_requested() {
    // In another thread: a server has its own runtimes, which cannot start within the runtime of a test.
    let server = std::thread::spawn(TestServer::start).join().unwrap();
    let address = server.counters.to_string().parse().unwrap();
    let client = Client::connect(&address).await.unwrap();
    let held = client.counter("a").maximum(2).resources(2).acquire().await.unwrap();
    let is = |error: Error, text: &str| {
        let expected = format!("cannot {text}: {}", error.kind());
        assert_eq!(error.to_string(), expected);
    };
    let busy = client.counter("a").maximum(2).try_acquire().await.unwrap_err();
    is(busy, "acquire 1 of counter \"a\" (maximum 2)");
    let both = [Claim::declared("none").resources(3), Claim::counter("a", 4)];
    let missing = client.acquire_all(both).acquire().await.unwrap_err();
    assert_eq!(missing.status(), Some(Status::NotFound));
    is(missing, "acquire 3 of semaphore \"none\" and 1 of counter \"a\" (maximum 4)");
    let late = client.counter("a").maximum(2).timeout(Duration::from_millis(20)).acquire().await;
    is(late.unwrap_err(), "acquire 1 of counter \"a\" (maximum 2) within 0.02 s");
    let direct = client.direct().await.unwrap();
    let gone = direct.inspect(Namespace::Semaphores, b"none").await.unwrap_err();
    is(gone, "inspect semaphore \"none\"");
    let grow = Operation::Resize { name: b"none", how: Resizing::GrowBy(2), expected: None };
    let unknown = direct.change(&grow).await.unwrap_err();
    is(unknown, "resize semaphore \"none\" by +2");
    let listed = direct.holders(Namespace::Counters, b"none").await.unwrap().next().await.unwrap();
    is(listed.unwrap_err(), "list the holders of counter \"none\"");
    let plain = PlainClient::connect(&address).await.unwrap();
    is(plain.get(b"none").await.unwrap_err(), "get \"none\"");

    revoke(&direct, Revocation::Grant(held.id()), Duration::ZERO).await;
    let lost = soon("the loss", held.guard(std::future::pending::<()>())).await.unwrap_err();
    assert_eq!(lost.lost(), Some(Lost::Revoked));
    is(lost, "hold 2 of counter \"a\" (maximum 2)");
    is(held.release().await.unwrap_err(), "release 2 of counter \"a\" (maximum 2)");
    let held = client.semaphore("b").capacity(1).acquire().await.unwrap();
    revoke(&direct, Revocation::Grant(held.id()), Duration::ZERO).await;
    soon("the loss", held.lost()).await;
    is(held.hand_over().await.unwrap_err(), "hand over 1 of semaphore \"b\" (capacity 1)");
    drop(direct);

    let nowhere = Client::builder("127.0.0.1:1".parse().unwrap()).unreachable_after(Duration::ZERO).build();
    let unreachable = nowhere.unwrap().semaphore("b").declared().acquire().await.unwrap_err();
    assert!(matches!(unreachable.kind(), ErrorKind::Unreachable { .. }), "{unreachable}");
    is(unreachable, "acquire 1 of semaphore \"b\"");
}
