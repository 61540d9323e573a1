//! A name with several addresses, of which some are silent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use signalbox_client::{Address, Client, ConnectError, Tcp, Transport};
use tokio::net::TcpStream;

use crate::started;
use crate::support::eventually;
use crate::support::proxy::{Mode, Proxy};

/// TCP, with one name that has these addresses.
#[derive(Clone)]
struct Named(Arc<Mutex<Vec<SocketAddr>>>);

impl Named {
    fn new(addresses: &[SocketAddr]) -> Self {
        Self(Arc::new(Mutex::new(addresses.to_vec())))
    }
}

impl Transport for Named {
    type Stream = TcpStream;

    async fn resolve(&self, address: Address) -> Result<Vec<Address>, ConnectError> {
        assert_eq!(address.host(), "box");
        Ok(self.0.lock().unwrap().iter().map(|resolved| address.clone().resolved_to(*resolved)).collect())
    }

    async fn connect(&self, address: Address, limit: Duration) -> Result<TcpStream, ConnectError> {
        Tcp.connect(address, limit).await
    }
}

fn name() -> Address {
    "box:1".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_address_of_a_name_that_is_silent_does_not_keep_a_client_from_the_others() {
    let server = started(|_| ());
    let silent = Proxy::to(server.counters);
    silent.set(Mode::Silent);
    let transport = Named::new(&[silent.address, server.counters]);
    let client = Client::builder(name()).transport(transport).connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    let direct = client.direct().await.unwrap();
    assert!(direct.verify(permit.id()).await.is_ok());
    permit.release().await.unwrap();
    assert!(silent.accepted() > 0, "it was tried first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_moves_to_another_address_of_its_name_which_is_resolved_again() {
    let server = started(|_| ());
    let (first, second) = (Proxy::to(server.counters), Proxy::to(server.counters));
    let transport = Named::new(&[first.address]);
    let ttl = Duration::from_secs(60);
    let client = Client::builder(name()).transport(transport.clone()).ttl(ttl).connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    transport.0.lock().unwrap().push(second.address);
    first.set(Mode::Cut);
    first.set(Mode::Silent);
    let other = client.counter("b").maximum(1).acquire().await.unwrap();
    assert_eq!(second.accepted(), 1, "the session is attached there");
    assert!(permit.is_held());
    assert!(client.direct().await.unwrap().verify(permit.id()).await.is_ok());
    permit.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_name_of_servers_that_do_not_know_the_session_leads_to_the_one_that_does() {
    let (server, stranger) = (started(|_| ()), started(|_| ()));
    let proxy = Proxy::to(server.counters);
    let transport = Named::new(&[proxy.address]);
    let ttl = Duration::from_secs(60);
    let client = Client::builder(name()).transport(transport.clone()).ttl(ttl).connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    *transport.0.lock().unwrap() = vec![stranger.counters, proxy.address];
    proxy.set(Mode::Cut);
    proxy.set(Mode::To(server.counters));
    eventually("the session is attached again", || proxy.accepted() == 2);
    permit.release().await.unwrap();
}
