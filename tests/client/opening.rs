//! The opening of a session whose answer is lost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{PATIENCE, TestServer, eventually};
use signalbox_client::{Client, Namespace, TtlLeft};

fn sessions(server: &TestServer) -> u64 {
    server.server.core().ledger_stats().sessions
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
}

/// Starts a proxy that loses the answers on the first connection, except the one to Hello, and closes it when the server has
/// opened a session. The server's side stays open, so the server does not notice. Also returns the number of connections.
fn losing_the_first_answers(server: &TestServer) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (target, core) = (server.counters, Arc::clone(&server.server));
    let count = Arc::new(AtomicUsize::new(0));
    let connections = Arc::clone(&count);
    thread::spawn(move || {
        let mut kept = Vec::new();
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(target).unwrap();
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || copy(near_too, far_too));
            if connections.fetch_add(1, Ordering::SeqCst) == 0 {
                let mut hello = [0; 4096];
                let length = (&far).read(&mut hello).unwrap();
                (&near).write_all(&hello[..length]).unwrap();
                eventually("the server opens a session", || core.core().ledger_stats().sessions == 1);
                near.shutdown(std::net::Shutdown::Both).unwrap();
                kept.push(far);
            } else {
                thread::spawn(move || copy(far, near));
            }
        }
    });
    (address, count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_whose_answer_was_lost_is_the_one_that_the_client_uses() {
    let server = thread::spawn(TestServer::start).join().unwrap();
    let (address, connections) = losing_the_first_answers(&server);
    let ttl = Duration::from_secs(60);
    let client = Client::builder(address.to_string().parse().unwrap()).ttl(ttl).build().unwrap();
    let acquired = client.counter("a").maximum(1).acquire();
    let permit = tokio::time::timeout(PATIENCE, acquired).await.unwrap().unwrap();
    assert_eq!(connections.load(Ordering::SeqCst), 2, "the first connection was lost, the second is used");
    assert_eq!(sessions(&server), 1, "no session is left behind");
    let direct = client.direct().await.unwrap();
    let holder = direct.holders(Namespace::Counters, b"a").await.unwrap().next().await.unwrap().unwrap();
    let verified = direct.verify(permit.id()).await.unwrap();
    assert_eq!(verified.session, holder.session);
    assert!(matches!(verified.ttl_left, TtlLeft::For(left) if Duration::from(left) > ttl / 2));
    permit.release().await.unwrap();
    client.close().await;
    assert_eq!(sessions(&server), 0);
}
