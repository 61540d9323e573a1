//! The turns of a connection, one by one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use super::super::client_address::{Client, ClientAddress};
use super::super::clock::Clock;
use super::parts::OUTPUT_BYTES_MAX;
use super::*;
use crate::config::Config;
use signalbox_core::{Answer, Call, Claim, Kind, NameHasher, Opened, Outcome, Queueing, Token, Want};
use signalbox_model::{Namespace, RequestId, RequestIds, Scope, SessionKey};
use signalbox_protocol::{Credentials, Extended, Features, Opaque, Opcode, Request};

fn connection<'a>(
    server: &'a Server,
    session: &Session,
    stream: DuplexStream,
) -> Connection<'a, DuplexStream> {
    let address = ClientAddress::of_peer(SocketAddr::from(([127, 0, 0, 1], 1)));
    let client = Client { address, certificate: Arc::default() };
    let extended = ExtendedState::new(server, session.id(), Arc::default(), client, Namespace::Counters);
    let port = server.port(Namespace::Counters);
    let turns = Arc::default();
    Connection::new(server, port, turns, stream, Inbound::new(false), extended)
}

/// Two requests. Their two answers are as long as they are.
fn two_requests() -> Vec<u8> {
    let mut requests = Vec::new();
    Request::Noop.compose(Opaque([1; 4]), &mut requests);
    Request::Noop.compose(Opaque([2; 4]), &mut requests);
    requests
}

#[tokio::test]
async fn a_connection_is_busy_while_its_peer_does_not_take_output_also_when_more_is_read_or_the_server_stops()
{
    let requests = two_requests();
    let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
    let mut session = server.core.open_session();
    let (mut peer, stream) = duplex(requests.len());
    let mut connection = connection(&server, &session, stream);
    let mut turn = || {
        let turn = connection.poll_turn(&mut session, &mut Context::from_waker(Waker::noop()));
        assert!(!matches!(turn, Poll::Ready(Err(_))), "the connection continues");
    };

    peer.write_all(&requests).await.unwrap();
    turn();
    assert!(!server.is_busy(), "the answers are deferred");
    turn();
    assert!(!server.is_busy(), "the peer's socket has taken them");
    peer.write_all(&requests).await.unwrap();
    turn();
    turn();
    assert!(server.is_busy(), "the socket is full");
    peer.write_all(&requests).await.unwrap();
    turn();
    assert!(server.is_busy(), "the socket is still full after another read");
    server.close();
    turn();
    turn();
    assert!(server.is_busy(), "the last answers are not deferred");
}

#[tokio::test]
async fn plain_requests_for_a_watched_name_yield_to_others() {
    let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
    let watcher = server.core.open_session();
    server.core.join(watcher.id(), None, &Arc::default());
    let all = Scope::Prefix(&[][..]);
    server.core.watch(watcher.id(), Token(0), Namespace::Counters, all, server.moment()).unwrap();
    let mut session = server.core.open_session();
    let (mut peer, stream) = duplex(OUTPUT_BYTES_MAX);
    let mut connection = connection(&server, &session, stream);
    let mut requests = Vec::new();
    for _ in 0..steps::LEDGER_REQUESTS {
        Request::Acquire { name: b"watched", resources: 1, maximum: 1 }
            .compose(Opaque([1; 4]), &mut requests);
        Request::Release { name: b"watched", resources: 1 }.compose(Opaque([2; 4]), &mut requests);
    }
    peer.write_all(&requests).await.unwrap();
    let traffic = &server.port(Namespace::Counters).metrics.traffic;
    let mut turn = || {
        let turn = connection.poll_turn(&mut session, &mut Context::from_waker(Waker::noop()));
        assert!(!matches!(turn, Poll::Ready(Err(_))), "the connection continues");
        traffic.commands(Opcode::Acquire) + traffic.commands(Opcode::Release)
    };
    let first = turn();
    let second = turn();
    assert_eq!(second - first, steps::LEDGER_REQUESTS as u64);
    assert_eq!(second, 2 * steps::LEDGER_REQUESTS as u64);
}

fn want(name: &[u8]) -> Want<'_> {
    let (kind, claim) = (Kind::Of(Namespace::Counters), Claim::new(1, 1).unwrap());
    Want { kind, name, claim, slot: None, is_shared: false }
}

#[tokio::test]
async fn a_connection_that_attaches_to_a_session_with_many_names_yields_to_others() {
    let mut config = Config::default();
    config.access.networks = vec!["127.0.0.0/8 acquire limit:web/".parse().unwrap()];
    let server = Server::new(&config, Clock::system(), NameHasher::new());
    let holder = server.core.open_session();
    server.core.join(holder.id(), None, &Arc::default());
    let (key, now) = (SessionKey([1; 16]), server.moment());
    let opened = server.core.open_leased(holder.id(), key, 60_000, b"", Token(0), now);
    let Outcome::Answered(Answer::Opened(Opened { session: leased, .. })) = opened else {
        panic!("{opened:?}")
    };
    let queueing = Queueing { wait_ms: 0, queue_max: 0 };
    for id in 1..=4_096 {
        let ids = RequestIds { own: RequestId(id), lowest_unanswered: RequestId(id) };
        let call = Call { connection: holder.id(), ids, token: Token(id) };
        let names = [format!("web/{id}a"), format!("web/{id}b")];
        let wants = names.each_ref().map(|name| want(name.as_bytes()));
        let outcome = server.core.acquire_grant(call, &wants, queueing, now);
        assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
    }

    let mut session = server.core.open_session();
    let (mut peer, stream) = duplex(OUTPUT_BYTES_MAX);
    let mut connection = connection(&server, &session, stream);
    let mut requests = Vec::new();
    for opaque in 1..=4 {
        let attach = Extended::AttachSession { session: leased.number(), key, repetitions: 0 };
        attach.compose(Opaque([opaque; 4]), &mut requests);
    }
    peer.write_all(&requests).await.unwrap();
    let mut turn = || {
        let turn = connection.poll_turn(&mut session, &mut Context::from_waker(Waker::noop()));
        assert!(!matches!(turn, Poll::Ready(Err(_))), "the connection continues");
        server.port(Namespace::Counters).metrics.extended_commands.value()
    };
    assert_eq!([turn(), turn(), turn(), turn()], [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_the_right_or_with_a_wrong_token_is_slowed_down() {
    let mut config = Config::default();
    config.access.networks = vec!["127.0.0.0/8 none".parse().unwrap()];
    let (mut get, mut keep_alive, mut hello) = (Vec::new(), Vec::new(), Vec::new());
    Request::Get { name: b"name" }.compose(Opaque([1; 4]), &mut get);
    Extended::KeepAlive.compose(Opaque([1; 4]), &mut keep_alive);
    let (credentials, features) = (Credentials(b"sbx_"), Features::default());
    Extended::Hello { version: 1, label: b"", credentials, features }.compose(Opaque([1; 4]), &mut hello);
    for request in [get, keep_alive, hello] {
        let server = Server::new(&config, Clock::system(), NameHasher::new());
        let mut session = server.core.open_session();
        let (mut peer, stream) = duplex(OUTPUT_BYTES_MAX);
        let mut connection = connection(&server, &session, stream);
        let mut turns_and_commands = || {
            for _ in 0..3 {
                let turn = connection.poll_turn(&mut session, &mut Context::from_waker(Waker::noop()));
                assert!(!matches!(turn, Poll::Ready(Err(_))), "the connection continues");
            }
            let metrics = &server.port(Namespace::Counters).metrics;
            metrics.traffic.commands(Opcode::Get) + metrics.extended_commands.value()
        };
        peer.write_all(&request).await.unwrap();
        assert_eq!(turns_and_commands(), 1);
        peer.write_all(&request).await.unwrap();
        assert_eq!(turns_and_commands(), 1, "it is not read");
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!(turns_and_commands(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dump_does_not_pause_while_the_server_stops() {
    let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
    let mut session = server.core.open_session();
    let (claim, now) = (Claim::new(1, 1).unwrap(), server.clock.now());
    // Each name fills a chunk, so the Dump would pause twice.
    for number in 0..steps::DUMP_CHUNKS * 2 {
        let name = format!("{number:0width$}", width = steps::DUMP_CHUNK_BYTES);
        server.core.acquire(Namespace::Counters, name.as_bytes(), claim, &mut session, now).unwrap();
    }
    let (mut peer, stream) = duplex(OUTPUT_BYTES_MAX);
    let mut connection = connection(&server, &session, stream);
    let mut requests = Vec::new();
    Request::Dump.compose(Opaque([1; 4]), &mut requests);
    peer.write_all(&requests).await.unwrap();
    assert!(connection.poll_turn(&mut session, &mut Context::from_waker(Waker::noop())).is_ready());
    assert!(connection.activity.is_streaming());

    server.close();
    let begun = Instant::now();
    let read = async {
        let mut answers = Vec::new();
        while peer.read_buf(&mut answers).await.is_ok() {
            answers.clear();
        }
    };
    let end = tokio::select! {
        end = connection.run(&mut session) => end,
        () = read => unreachable!("the connection is still there"),
    };
    assert!(matches!(end, End::Shutdown), "{end:?}");
    assert_eq!(begun.elapsed(), Duration::ZERO);
}
