//! Clients of a cluster whose connection is relayed: when their session moves to an address of the leader, and when it stays.
//! A script plays the nodes, which are all at one address.

use std::collections::HashSet;
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use bytes::BytesMut;
use signalbox_client::Client;
use signalbox_model::{GrantId, Milliseconds, Namespace, SessionKey, TtlLeft};
use signalbox_protocol::{
    Extended, ExtendedOpcode, ExtendedResponse, Features, Granted, HelloAnswer, OpenedSession, RequestCodec,
    Response, Shares, Whereabouts,
};

use crate::support::{PATIENCE, eventually};

const TTL: Milliseconds = Milliseconds(60_000);

/// An event on a connection. Connections are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Seen {
    Request(usize, ExtendedOpcode),
    End(usize),
}

/// Nodes of a cluster that answer that each connection is relayed, and that the leader is at their own address.
struct Nodes {
    address: SocketAddr,
    leader: Vec<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: HashSet<Seen>,
    connections: usize,
    /// Requests that are not answered for now.
    held: HashSet<(usize, ExtendedOpcode)>,
    grants: u64,
}

impl Nodes {
    fn start(held: &[(usize, ExtendedOpcode)]) -> Arc<Self> {
        Self::start_with(held, &[])
    }

    /// The leader has these addresses before that of the nodes.
    fn start_with(held: &[(usize, ExtendedOpcode)], before: &[&str]) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { held: held.iter().copied().collect(), ..State::default() };
        let leader = before.iter().map(ToString::to_string).chain([address.to_string()]).collect();
        let this = Arc::new(Self { address, leader, state: Mutex::new(state) });
        let nodes = Arc::clone(&this);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                nodes.state.lock().unwrap().connections += 1;
                let nodes = Arc::clone(&nodes);
                thread::spawn(move || nodes.serve(number, stream));
            }
        });
        this
    }

    fn serve(&self, number: usize, mut stream: TcpStream) {
        let (mut received, mut chunk) = (BytesMut::new(), [0; 4096]);
        // A client that resets the connection has ended it as well.
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            received.extend_from_slice(&chunk[..count]);
            let Some(mut frames) = RequestCodec::default().decode(&mut received).unwrap() else { continue };
            while let Some(frame) = frames.next() {
                let request = frame.parse_extended().unwrap();
                let opcode = request.opcode();
                let mut out = Vec::new();
                self.answer(&request).compose(opcode.code(), frame.opaque(), &mut out);
                if let Extended::Where = request {
                    out.clear();
                    self.where_is_the_leader().compose(opcode.code(), frame.opaque(), &mut out);
                }
                let mut state = self.state.lock().unwrap();
                state.seen.insert(Seen::Request(number, opcode));
                drop(state);
                eventually("the answer is not held", || {
                    !self.state.lock().unwrap().held.contains(&(number, opcode))
                });
                match stream.write_all(&out) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => break,
                    written => written.unwrap(),
                }
            }
        }
        self.state.lock().unwrap().seen.insert(Seen::End(number));
    }

    fn answer(&self, request: &Extended<'_>) -> ExtendedResponse<'static> {
        match request {
            Extended::Hello { .. } => ExtendedResponse::Hello(HelloAnswer {
                version: 1,
                features: Features::GRANTS.union(Features::CLUSTER).union(Features::WHERE),
                session: 1,
                wait_max: TTL,
                wait_default: TTL,
                ttl_min: TTL,
                ttl_max: TTL,
                names_max: 64,
                requests_max: 1024,
                port: Namespace::Counters,
                shares: Shares { connections: 1, sessions: 1, waiters: 1, watches: 1, memory: 1 },
            }),
            Extended::OpenSession { .. } => {
                ExtendedResponse::Opened(OpenedSession { session: 2, key: SessionKey([7; 16]), ttl: TTL })
            }
            Extended::AttachSession { .. } | Extended::KeepAlive => ExtendedResponse::Ttl(TTL),
            Extended::AcquireGrant { claim, .. } => {
                let mut state = self.state.lock().unwrap();
                state.grants += 1;
                ExtendedResponse::Granted(Granted {
                    grant: GrantId(state.grants),
                    resources: claim.resources,
                    capacity: claim.maximum,
                    ttl_left: TtlLeft::For(TTL),
                    slots: &[],
                })
            }
            _ => ExtendedResponse::Plain(Response::Done),
        }
    }

    fn where_is_the_leader(&self) -> ExtendedResponse<'static> {
        ExtendedResponse::Where(Whereabouts {
            epoch: 1,
            renew_deadline: Milliseconds(30_000),
            is_relayed: true,
            leader: self.leader.clone().leak(),
            others: &[],
        })
    }

    fn client(&self) -> Client {
        Client::builder(self.address.to_string().parse().unwrap()).build().unwrap()
    }

    fn has_seen(&self, seen: Seen) -> bool {
        self.state.lock().unwrap().seen.contains(&seen)
    }

    async fn sees(&self, seen: Seen) {
        let wait = async {
            while !self.has_seen(seen) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not in time: {seen:?}"));
    }

    fn hold(&self, number: usize, opcode: ExtendedOpcode) {
        self.state.lock().unwrap().held.insert((number, opcode));
    }

    fn release(&self, number: usize, opcode: ExtendedOpcode) {
        self.state.lock().unwrap().held.remove(&(number, opcode));
    }
}

/// An example is one address that all nodes advertise.
#[tokio::test]
async fn an_address_of_the_leader_that_leads_to_a_relay_is_used_once() {
    let nodes = Nodes::start(&[]);
    let client = nodes.client();
    for _ in 0..50 {
        let permit = client.counter("a").maximum(1).acquire().await.unwrap();
        permit.release().await.unwrap();
    }
    nodes.sees(Seen::Request(1, ExtendedOpcode::Where)).await;
    for _ in 0..200 {
        let permit = client.counter("a").maximum(1).acquire().await.unwrap();
        permit.release().await.unwrap();
    }
    let state = nodes.state.lock().unwrap();
    assert_eq!(state.connections, 2, "the session has moved once: {:?}", state.seen);
}

#[tokio::test]
async fn the_next_address_of_the_leader_is_tried_where_one_does_not_answer() {
    let nodes = Nodes::start_with(&[], &["127.0.0.1:1"]);
    let client = nodes.client();
    let _permit = client.counter("a").maximum(1).acquire().await.unwrap();
    nodes.sees(Seen::Request(1, ExtendedOpcode::AttachSession)).await;
}

#[tokio::test]
async fn a_session_that_is_being_closed_does_not_move() {
    let nodes = Nodes::start(&[(1, ExtendedOpcode::Hello), (0, ExtendedOpcode::CloseSession)]);
    let client = nodes.client();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    nodes.sees(Seen::Request(1, ExtendedOpcode::Hello)).await;
    permit.release().await.unwrap();
    let closing = tokio::spawn(client.close());
    nodes.sees(Seen::Request(0, ExtendedOpcode::CloseSession)).await;
    nodes.release(1, ExtendedOpcode::Hello);
    // The client gives the other connection up, and keeps the one over which the answer comes.
    nodes.sees(Seen::End(1)).await;
    assert!(!nodes.has_seen(Seen::Request(1, ExtendedOpcode::AttachSession)));
    nodes.release(0, ExtendedOpcode::CloseSession);
    tokio::time::timeout(PATIENCE, closing).await.unwrap().unwrap();
}

/// A request that waits has its place on the server, however long ago it was sent. It may fail only if no server is
/// reachable, and one was all the time.
#[tokio::test]
async fn a_request_that_has_waited_for_long_goes_on_when_its_session_moves() {
    let nodes = Nodes::start(&[
        (1, ExtendedOpcode::Hello),
        (1, ExtendedOpcode::AttachSession),
        (1, ExtendedOpcode::AcquireGrant),
    ]);
    let unreachable_after = Duration::from_secs(2);
    let client = Client::builder(nodes.address.to_string().parse().unwrap());
    let client = client.unreachable_after(unreachable_after).build().unwrap();
    client.counter("a").maximum(1).acquire().await.unwrap().release().await.unwrap();
    nodes.hold(0, ExtendedOpcode::AcquireGrant);
    let waiter = client.clone();
    let waiting = tokio::spawn(async move { waiter.counter("a").maximum(1).acquire().await });
    nodes.sees(Seen::Request(1, ExtendedOpcode::Hello)).await;
    tokio::time::sleep(unreachable_after + Duration::from_millis(100)).await;
    nodes.release(1, ExtendedOpcode::Hello);
    nodes.sees(Seen::Request(1, ExtendedOpcode::AttachSession)).await;
    nodes.release(1, ExtendedOpcode::AttachSession);
    nodes.sees(Seen::Request(1, ExtendedOpcode::AcquireGrant)).await;
    nodes.release(1, ExtendedOpcode::AcquireGrant);
    drop(tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap());
}

/// The server may release it and serve the next waiter before its answer arrives.
#[tokio::test]
async fn a_permit_is_lost_when_its_session_is_being_closed() {
    let nodes = Nodes::start(&[(1, ExtendedOpcode::CloseSession)]);
    let client = nodes.client();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    // Its session has moved, and stays.
    nodes.sees(Seen::Request(1, ExtendedOpcode::Where)).await;
    let closing = tokio::spawn(client.clone().close());
    nodes.sees(Seen::Request(1, ExtendedOpcode::CloseSession)).await;
    assert!(!permit.is_held());
    nodes.release(1, ExtendedOpcode::CloseSession);
    tokio::time::timeout(PATIENCE, closing).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_permit_is_handed_over_while_its_session_moves() {
    let nodes = Nodes::start(&[(1, ExtendedOpcode::Hello), (1, ExtendedOpcode::AttachSession)]);
    let client = nodes.client();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    nodes.release(1, ExtendedOpcode::Hello);
    nodes.sees(Seen::Request(1, ExtendedOpcode::AttachSession)).await;
    let mut handing = Box::pin(permit.hand_over());
    // The client is told to hand over before the answer lets it attach.
    assert!(poll_fn(|context| Poll::Ready(handing.as_mut().poll(context).is_pending())).await);
    nodes.release(1, ExtendedOpcode::AttachSession);
    let handed = tokio::time::timeout(PATIENCE, handing).await.unwrap().unwrap();
    assert_eq!((handed.session, handed.grant), (2, GrantId(1)));
}
