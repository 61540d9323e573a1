//! How many resources of a semaphore are available now.

use std::time::Duration;

use crate::started;
use crate::support::{PATIENCE, TestServer};
use signalbox_client::{
    Client, Declaration, IfExists, Namespace, Pausing, Resizing, SlotChange, Status, blocking,
};

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
    direct.declare(&[gpus], IfExists::Fail).await.unwrap();
    assert_eq!(available("gpu").await, 4);
    let held = client.semaphore("gpu").declared().resources(2).acquire().await.unwrap();
    assert_eq!((available("gpu").await, held.slots()), (2, &[0, 1][..]));
    direct.set_slot(b"gpu", SlotChange::Out(0), None).await.unwrap();
    assert_eq!(available("gpu").await, 2, "a slot that is held is in use, and counts once");
    direct.set_slot(b"gpu", SlotChange::Out(3), None).await.unwrap();
    assert_eq!(available("gpu").await, 1);
    direct.pause(b"gpu", Pausing::Pause, None).await.unwrap();
    assert_eq!(available("gpu").await, 0);
    direct.pause(b"gpu", Pausing::Resume, None).await.unwrap();
    direct.resize(b"gpu", Resizing::To(1), None).await.unwrap();
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
