//! The plain client, tried against a server that answers as each test determines.

use std::io;
use std::time::Duration;

use crate::support::fake_server::{FakeServer, OwnedRequest, Peer, Received, soon};
use signalbox_client::{
    Address, ConnectError, Disconnect, Error, ErrorKind, Maximum, PlainClient, Resources,
};
use signalbox_model::Status;
use signalbox_protocol::{DumpEntry, Response};

async fn connected() -> (PlainClient, Peer) {
    let server = FakeServer::bind().await;
    let client = PlainClient::connect(&server.address().to_string().parse().unwrap()).await.unwrap();
    (client, server.accept().await)
}

fn get(name: &[u8]) -> OwnedRequest {
    OwnedRequest::Get { name: name.to_vec() }
}

/// Sends a Get in a separate task.
fn spawn_get(client: &PlainClient, name: &'static [u8]) -> tokio::task::JoinHandle<Result<Resources, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.get(name).await })
}

/// Checks that a request is still answered.
async fn assert_usable(client: &PlainClient, peer: &mut Peer) {
    let asking = spawn_get(client, b"still usable");
    let request = peer.expect(get(b"still usable")).await;
    peer.answer(&request, Response::Resources(4711)).await;
    assert_eq!(asking.await.unwrap().unwrap(), Resources(4711));
}

#[tokio::test]
async fn requests_and_answers_carry_their_values() {
    let (client, mut peer) = connected().await;
    let server = async {
        let noop = peer.expect(OwnedRequest::Noop).await;
        peer.answer(&noop, Response::Done).await;
        peer.grant(b"a\0\xff", 2, 5).await;
        let release = peer.expect(OwnedRequest::Release { name: b"a\0\xff".to_vec(), resources: 1 }).await;
        peer.answer(&release, Response::Done).await;
        let stats = peer.expect(OwnedRequest::Stats).await;
        peer.answer(&stats, Response::Statistics(&[("objects", "1".to_owned())])).await;
        let dump = peer.expect(OwnedRequest::Dump).await;
        peer.answer_dump(&dump, &[b"a", b"b"]).await;
    };
    let asking = async {
        client.noop().await.unwrap();
        assert_eq!(client.acquire(b"a\0\xff", Resources(2), Maximum(5)).await.unwrap(), Resources(2));
        client.release(b"a\0\xff", Resources(1)).await.unwrap();
        let stats = client.stats().await.unwrap();
        assert_eq!((stats[0].name.as_str(), stats[0].value.as_str()), ("objects", "1"));
        let mut dump = client.dump().await.unwrap();
        for name in ["a", "b"] {
            let entry = dump.next().await.unwrap().unwrap();
            assert_eq!((entry.consumption, entry.peak, &entry.name[..]), (3, 7, name.as_bytes()));
        }
        assert!(dump.next().await.is_none());
        assert!(dump.next().await.is_none(), "a Dump that ended stays so");
    };
    soon("both sides", async { tokio::join!(server, asking) }).await;
}

#[tokio::test]
async fn an_answer_may_overtake_a_dump() {
    let (client, mut peer) = connected().await;
    let mut dump = client.dump().await.unwrap();
    let request = peer.expect(OwnedRequest::Dump).await;
    let entry = Response::Entry(DumpEntry { consumption: 1, peak: 1, name: b"x" });
    peer.answer(&request, entry).await;
    assert_usable(&client, &mut peer).await;
    peer.answer(&request, entry).await;
    peer.answer(&request, Response::Done).await;
    assert_eq!(&dump.next().await.unwrap().unwrap().name[..], b"x");
    assert_eq!(&dump.next().await.unwrap().unwrap().name[..], b"x");
    assert!(dump.next().await.is_none());
}

#[tokio::test]
async fn a_refusal_has_the_status_of_the_server() {
    let (client, mut peer) = connected().await;
    for status in [Status::NotFound, Status::InvalidArguments, Status::ResourceNotAvailable] {
        let asking = spawn_get(&client, b"a");
        let request = peer.next().await.unwrap();
        peer.answer(&request, Response::Failed(status)).await;
        let error = asking.await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Status(found) if *found == status), "{error}");
    }
}

#[tokio::test]
async fn an_unknown_status_is_reported_with_its_message() {
    let (client, mut peer) = connected().await;
    let asking = spawn_get(&client, b"a");
    let request = peer.next().await.unwrap();
    peer.answer_raw(&request, 0x77, b"Too blue").await;
    let error = asking.await.unwrap().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::UnknownStatus { code: 0x77, message } if message == "Too blue"),
        "{error}"
    );
}

#[tokio::test]
async fn a_malformed_body_fails_only_its_call() {
    let (client, mut peer) = connected().await;
    let asking = spawn_get(&client, b"a");
    let request = peer.next().await.unwrap();
    peer.answer_raw(&request, 0, b"abc").await;
    assert!(matches!(asking.await.unwrap().unwrap_err().kind(), ErrorKind::Body(_)));
    assert_usable(&client, &mut peer).await;
}

#[tokio::test]
async fn a_name_too_long_for_the_wire_is_not_sent() {
    let (client, mut peer) = connected().await;
    assert!(matches!(client.get(b"").await.unwrap_err().kind(), ErrorKind::NameLength { bytes: 0 }));
    let long = vec![b'x'; 65536];
    let taken = client.acquire(&long, Resources(1), Maximum(1)).await;
    assert!(matches!(taken.unwrap_err().kind(), ErrorKind::NameLength { bytes: 65536 }));
    assert!(matches!(
        client.release(&long, Resources(1)).await.unwrap_err().kind(),
        ErrorKind::NameLength { .. }
    ));
    assert_usable(&client, &mut peer).await;
}

#[tokio::test]
async fn a_dropped_call_does_not_take_the_answer_of_another() {
    let (client, mut peer) = connected().await;
    let dropped = spawn_get(&client, b"dropped");
    let late = peer.expect(get(b"dropped")).await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());

    let asking = spawn_get(&client, b"kept");
    let request = peer.expect(get(b"kept")).await;
    assert_ne!(request.opaque, late.opaque, "the opaque stays in use while its answer may arrive");
    peer.answer(&late, Response::Resources(1)).await;
    peer.answer(&request, Response::Resources(2)).await;
    assert_eq!(asking.await.unwrap().unwrap(), Resources(2));
}

/// Polls calls a different number of times before it drops them, so that each await point is tested.
#[tokio::test]
async fn calls_dropped_at_any_point_leave_a_usable_connection() {
    let (client, mut peer) = connected().await;
    let answering = tokio::spawn(async move {
        while let Some(request) = peer.next().await {
            match request.asked {
                OwnedRequest::Dump => peer.answer_dump(&request, &[b"a".as_slice(); 100]).await,
                _ => peer.answer(&request, Response::Resources(1)).await,
            }
        }
    });
    for polls in 0..50 {
        poll_times(polls, client.get(b"a")).await;
        poll_times(polls, async {
            while client.dump().await?.next().await.is_some() {}
            Ok::<_, Error>(())
        })
        .await;
    }
    assert_eq!(soon("an answer", client.get(b"a")).await.unwrap(), Resources(1));
    drop(client);
    soon("the server's end", answering).await.unwrap();
}

/// Each caller requests its own number; some drop the call. Answers come in reversed bursts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_on_many_threads_get_their_own_answers() {
    let (client, mut peer) = connected().await;
    let answering = tokio::spawn(async move {
        while let Some(first) = peer.next().await {
            let mut burst = vec![first];
            burst.append(&mut peer.received_already());
            for request in burst.iter().rev() {
                let OwnedRequest::Get { name } = &request.asked else { panic!("{request:?}") };
                let number = u32::from_be_bytes(*name.first_chunk().unwrap());
                peer.answer(request, Response::Resources(number)).await;
            }
        }
    });
    let asking: Vec<_> = (0..50_u32)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for round in 0..200 {
                    let number = task * 1000 + round;
                    if round % 3 == 0 {
                        poll_times(1 + round as usize % 5, client.get(&number.to_be_bytes())).await;
                    } else {
                        assert_eq!(client.get(&number.to_be_bytes()).await.unwrap(), Resources(number));
                    }
                }
            })
        })
        .collect();
    for asking in asking {
        soon("all answers", asking).await.unwrap();
    }
    drop(client);
    soon("the server's end", answering).await.unwrap();
}

async fn poll_times<T>(times: usize, future: impl Future<Output = T>) {
    let mut future = std::pin::pin!(future);
    for _ in 0..times {
        let poll = std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context)));
        if poll.await.is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn unsolicited_answers_are_ignored() {
    let (client, mut peer) = connected().await;
    let asking = spawn_get(&client, b"a");
    let mut request = peer.next().await.unwrap();
    let opaque = request.opaque;
    request.opaque.0[0] ^= 0xff;
    peer.answer(&request, Response::Resources(1)).await;
    let request = Received { opaque, ..request };
    peer.answer(&request, Response::Resources(2)).await;
    peer.answer(&request, Response::Resources(3)).await;
    assert_eq!(asking.await.unwrap().unwrap(), Resources(2));
    assert_usable(&client, &mut peer).await;
}

#[tokio::test]
async fn the_rest_of_a_dropped_dump_is_discarded() {
    let (client, mut peer) = connected().await;
    let mut dump = client.dump().await.unwrap();
    let request = peer.expect(OwnedRequest::Dump).await;
    peer.answer(&request, Response::Entry(DumpEntry { consumption: 1, peak: 1, name: b"first" })).await;
    assert_eq!(&dump.next().await.unwrap().unwrap().name[..], b"first");
    drop(dump);
    peer.answer_dump(&request, &[b"rest".as_slice(); 1000]).await;
    assert_usable(&client, &mut peer).await;
}

#[tokio::test]
async fn an_unread_dump_applies_backpressure_until_it_is_dropped() {
    let (client, mut peer) = connected().await;
    let dump = client.dump().await.unwrap();
    let request = peer.expect(OwnedRequest::Dump).await;
    let mut entry = Vec::new();
    let name = vec![b'x'; 65535];
    Response::Entry(DumpEntry { consumption: 1, peak: 1, name: &name }).compose(
        request.opcode,
        request.opaque,
        &mut entry,
    );
    let unsent = peer.send_until_stuck(&entry, 2000).await;
    let unsent = unsent.expect("the client stops reading while the caller takes no entries");
    drop(dump);
    peer.send(&unsent).await;
    peer.answer(&request, Response::Done).await;
    assert_usable(&client, &mut peer).await;
}

#[tokio::test]
async fn a_refused_dump_returns_the_refusal_and_ends() {
    let (client, mut peer) = connected().await;
    let mut dump = client.dump().await.unwrap();
    let request = peer.expect(OwnedRequest::Dump).await;
    peer.answer(&request, Response::Failed(Status::UnknownCommand)).await;
    assert!(matches!(
        dump.next().await.unwrap().unwrap_err().kind(),
        ErrorKind::Status(Status::UnknownCommand)
    ));
    assert!(dump.next().await.is_none());
    assert_usable(&client, &mut peer).await;
}

#[tokio::test]
async fn a_malformed_entry_ends_the_dump_and_not_the_connection() {
    let (client, mut peer) = connected().await;
    let mut dump = client.dump().await.unwrap();
    let request = peer.expect(OwnedRequest::Dump).await;
    peer.answer_raw(&request, 0, b"short").await;
    assert!(matches!(dump.next().await.unwrap().unwrap_err().kind(), ErrorKind::Body(_)));
    assert!(dump.next().await.is_none());
    peer.answer_dump(&request, &[b"rest".as_slice(); 200]).await;
    assert_usable(&client, &mut peer).await;
}

#[tokio::test]
async fn a_lost_connection_fails_waiting_and_later_calls() {
    let (client, mut peer) = connected().await;
    let asking: Vec<_> = [b"a", b"b", b"c"].into_iter().map(|name| spawn_get(&client, name)).collect();
    let mut dump = client.dump().await.unwrap();
    for _ in 0..4 {
        peer.next().await.unwrap();
    }
    drop(peer);
    for asking in asking {
        let error = soon("the end of the wait", asking).await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectionLost(Disconnect::ClosedByServer)), "{error}");
    }
    assert!(matches!(dump.next().await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionLost(_)));
    assert!(dump.next().await.is_none());
    assert!(matches!(soon("closed()", client.closed()).await, Disconnect::ClosedByServer));
    assert!(matches!(client.noop().await.unwrap_err().kind(), ErrorKind::ConnectionLost(_)));
}

#[tokio::test]
async fn an_invalid_response_ends_the_connection() {
    let (client, mut peer) = connected().await;
    let asking = spawn_get(&client, b"a");
    peer.next().await.unwrap();
    peer.send(b"HTTP/1.1 400 Bad Request\r\n").await;
    assert!(matches!(
        asking.await.unwrap().unwrap_err().kind(),
        ErrorKind::ConnectionLost(Disconnect::Protocol(_))
    ));
    peer.closed().await;
}

#[tokio::test]
async fn the_last_client_closes_the_connection() {
    let (client, mut peer) = connected().await;
    let clone = client.clone();
    drop(client);
    assert_usable(&clone, &mut peer).await;
    drop(clone);
    peer.closed().await;
}

#[tokio::test]
async fn a_dump_keeps_the_connection_open_until_it_is_dropped() {
    let (client, mut peer) = connected().await;
    let mut dump = client.dump().await.unwrap();
    drop(client);
    let request = peer.expect(OwnedRequest::Dump).await;
    peer.answer_dump(&request, &[b"a"]).await;
    assert!(dump.next().await.unwrap().is_ok());
    drop(dump);
    peer.closed().await;
}

/// More requests than the connection and the kernel can buffer: callers wait to send, and all are answered.
#[tokio::test]
async fn more_requests_than_fit_wait_and_are_answered() {
    let (client, mut peer) = connected().await;
    let asking: Vec<_> = (0..400_u32)
        .map(|number| {
            let client = client.clone();
            let name = [&number.to_be_bytes()[..], &[b'x'; 60_000]].concat();
            tokio::spawn(async move { client.get(&name).await })
        })
        .collect();
    for _ in 0..asking.len() {
        let request = peer.next().await.unwrap();
        let OwnedRequest::Get { name } = &request.asked else { panic!("{request:?}") };
        let number = u32::from_be_bytes(*name.first_chunk().unwrap());
        peer.answer(&request, Response::Resources(number)).await;
    }
    for (number, asking) in (0..).zip(asking) {
        assert_eq!(asking.await.unwrap().unwrap(), Resources(number));
    }
}

#[tokio::test]
async fn callers_that_wait_to_send_learn_of_a_lost_connection() {
    let (near, far) = tokio::io::duplex(1);
    let client = PlainClient::over(near);
    let asking: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get(&[b'x'; 60_000]).await })
        })
        .collect();
    tokio::task::yield_now().await;
    drop(far);
    for asking in asking {
        let result = soon("the end of the wait", asking).await.unwrap();
        assert!(matches!(result.unwrap_err().kind(), ErrorKind::ConnectionLost(_)));
    }
}

#[tokio::test]
async fn a_failed_stream_reports_its_error() {
    struct Broken;
    impl tokio::io::AsyncRead for Broken {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }
    let client = PlainClient::over(tokio::io::join(Broken, tokio::io::sink()));
    let loss = soon("closed()", client.closed()).await;
    assert!(matches!(loss, Disconnect::Io(error) if error.kind() == io::ErrorKind::ConnectionReset));
}

#[test]
fn a_runtime_shutdown_fails_waiting_calls() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let serving = runtime();
    let (near, _far) = tokio::io::duplex(64);
    let client = serving.block_on(async { PlainClient::over(near) });
    drop(serving);
    let result = runtime().block_on(async { soon("the end of the wait", client.noop()).await });
    assert!(matches!(result.unwrap_err().kind(), ErrorKind::ConnectionLost(Disconnect::Stopped)));
}

#[tokio::test]
async fn a_port_without_a_listener_is_reported_with_its_address() {
    let server = FakeServer::bind().await;
    let address = server.address();
    drop(server);
    let error = PlainClient::connect(&address.to_string().parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { address: tried, .. } if tried == address), "{error}");
}

#[tokio::test]
async fn an_unknown_host_is_reported_by_name() {
    let address: Address = "no-such-host.invalid".parse().unwrap();
    let result = PlainClient::connect_within(&address, Duration::from_secs(15)).await;
    assert!(matches!(result, Err(ConnectError::Resolve { .. } | ConnectError::TimedOut { .. })));
}
