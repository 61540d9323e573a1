//! How many resources of a semaphore are available now.

use std::time::Duration;

use crate::started;
use crate::support::{PATIENCE, TestServer};
use crate::{change_service, declare};
use signalbox_client::{Client, Declaration, Namespace, Resizing, Status, blocking};
use signalbox_model::{Operation, ServiceChange};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_neither_in_use_nor_out_of_service_is_available() {
    let server = started(|_| {});
    let client = Client::connect(&server.counters.to_string().parse().unwrap()).await.unwrap();
    let available = async |name: &str| client.semaphore(name).available().await.unwrap();
    let missing = client.semaphore("gpu").available().await.unwrap_err();
    assert_eq!(missing.status(), Some(Status::NotFound));
    assert!(missing.to_string().starts_with("cannot inspect semaphore \"gpu\": "), "{missing}");

    let one = client.semaphore("made").capacity(3).acquire().await.unwrap();
    assert_eq!(available("made").await, 2);
    drop(one);

    let direct = client.direct().await.unwrap();
    let gpus = Declaration { name: b"gpu", capacity: 4, numbered: true, label: b"" };
    declare(&direct, gpus).await;
    assert_eq!(available("gpu").await, 4);
    let held = client.semaphore("gpu").declared().resources(2).acquire().await.unwrap();
    assert_eq!((available("gpu").await, held.slots()), (2, &[0, 1][..]));
    change_service(&direct, b"gpu", ServiceChange::SlotOut(0)).await;
    assert_eq!(available("gpu").await, 2, "a slot that is held is in use, and counts once");
    change_service(&direct, b"gpu", ServiceChange::SlotOut(3)).await;
    assert_eq!(available("gpu").await, 1);
    change_service(&direct, b"gpu", ServiceChange::Pause).await;
    assert_eq!(available("gpu").await, 0);
    change_service(&direct, b"gpu", ServiceChange::Resume).await;
    let shrink = Operation::Resize { name: b"gpu", how: Resizing::To(1), expected: None };
    direct.change(&shrink).await.unwrap();
    assert_eq!(available("gpu").await, 0, "more is in use than the capacity");
    let usage = direct.inspect(Namespace::Semaphores, b"gpu").await.unwrap();
    assert_eq!((usage.in_use, usage.capacity, usage.available), (2, 1, 0));
    tokio::time::timeout(PATIENCE, held.release()).await.unwrap().unwrap();
}

#[test]
fn a_program_without_a_runtime_asks_too() {
    let server = TestServer::start();
    let client = blocking::Client::connect(&server.counters.to_string().parse().unwrap()).unwrap();
    let permit = client.semaphore("a").capacity(3).timeout(Duration::from_secs(5)).acquire();
    let permit = client.wait(permit).unwrap();
    assert_eq!(client.wait(client.semaphore("a").available()).unwrap(), 2);
    drop(permit);
}
