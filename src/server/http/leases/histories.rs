//! Random histories of requests over connections in memory and a clock in steps: requests and answers are delayed, repeated,
//! reordered and lost, and the clocks of clients are slow. The clients know only `docs/http.md`. In every history,
//! no more clients believe that they hold a name than may hold it, a release ends its lease and no later acquire with its key
//! begins one, another request with the key of a lease does not get it, a request of a single flight is answered `done` only if
//! a worker has released with `done` since, every request is answered in time, and in the end nothing is held.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::super::super::background::expire;
use super::super::super::clock::Clock;
use super::super::super::state::Server;
use super::super::access::Peer;
use super::super::connections::{Connections, OpenConnection};
use super::super::listener::serve_requests;
use super::super::request::Requester;
use super::super::shared::{Shared, Stage};
use crate::config::Config;
use signalbox_core::{Call, Mailbox, NameHasher};
use signalbox_model::{GrantId, Milliseconds, Operation, PlaceKey, RequestIds, Revocation};

/// The names, how many may hold each, and how many clients compete for them. Requests for the second are a single flight.
const NAMES: [(&str, usize); 2] = [("a", 2), ("page", 1)];
const SHARED: usize = 1;
const CLIENTS: usize = 5;

const TTL_MS: u64 = 3_000;
/// The longest that a request waits for a change, and what clients ask for.
const POLL_MS_MAX: u64 = TTL_MS / 3;
const POLLS_MS: [u64; 4] = [900, 900, 25_000, 0];

/// How much longer than `POLL_MS_MAX` a client waits for an answer.
const ANSWER_MS: u64 = 2_000;

/// How long the clients work, and the longest delay of a message.
const WORK_S: u64 = 60;
const DELAY_MS_MAX: u64 = 20_000;

/// The time for which a released key begins no lease.
const RELEASED: Duration = Duration::from_secs(60);

/// How much slower than the server's clock a client's may be, in thousandths.
const SLOWER_MAX: u64 = 40;

/// The state that all clients share.
struct World {
    connections: Arc<Connections>,
    random: RefCell<Rng>,
    ends: Instant,
    /// The name that each client believes it holds, and until when, on the server's clock.
    believed: RefCell<[Option<(usize, Instant)>; CLIENTS]>,
    /// The keys that were released with `done`, and when that was answered first.
    done: RefCell<HashMap<String, Option<Instant>>>,
    /// When each key was released first, if that was answered.
    released: RefCell<HashMap<String, Instant>>,
    /// When the newest request with each key arrived.
    arrived: RefCell<HashMap<String, Instant>>,
    /// All messages, whose answers are checked also if their clients have given up.
    messages: RefCell<Vec<JoinHandle<()>>>,
    /// How many leases were held, how many acquires came after their release, and how many were answered `done`.
    counts: RefCell<[u32; 3]>,
}

type Reply = (u16, Value);

/// A connection to a server in this process.
pub(super) fn connect(connections: &Arc<Connections>) -> DuplexStream {
    let (near, far) = duplex(64 * 1024);
    let peer = Peer::of_test();
    let (connection, closed) = OpenConnection::begin(connections, peer.client.address);
    let connection = Arc::new(connection);
    tokio::spawn(async move {
        let _closed = closed;
        serve_requests(&connection, far, peer).await
    });
    near
}

/// A request with this body, which is the last one of its connection.
pub(super) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

impl World {
    fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().u64(..bound)
    }

    /// Most messages arrive soon, and some late.
    fn delay(&self) -> Duration {
        let most = if self.below(10) > 0 { 50 } else { DELAY_MS_MAX };
        Duration::from_millis(self.below(most))
    }

    /// Sends a request once or twice; `None`: no answer came in time.
    async fn post(self: &Rc<Self>, path: &'static str, body: Value) -> Option<Reply> {
        let (sender, mut replies) = mpsc::unbounded_channel();
        for _ in 0..1 + u64::from(self.below(5) == 0) {
            let (world, body, sender) = (Rc::clone(self), body.clone(), sender.clone());
            let message = spawn_local(async move {
                sleep(world.delay()).await;
                let reply = world.deliver(path, &body).await;
                sleep(world.delay()).await;
                if let Some(reply) = reply.filter(|_| world.below(10) > 0) {
                    // The client may have given up.
                    let _ = sender.send(reply);
                }
            });
            self.messages.borrow_mut().push(message);
        }
        drop(sender);
        timeout(Duration::from_millis(POLL_MS_MAX + ANSWER_MS), replies.recv()).await.ok().flatten()
    }

    /// A request arrives over a connection of its own; `None`: that ends before the answer.
    async fn deliver(&self, path: &'static str, body: &Value) -> Option<Reply> {
        let mut near = connect(&self.connections);
        let key = body["key"].as_str().or(body["keys"][0].as_str()).unwrap();
        let was_released = self.released.borrow().get(key).copied();
        let server = self.connections.shared.stage().server().unwrap();
        let (arrived, from) = (Instant::now(), server.monotonic());
        self.arrived.borrow_mut().insert(key.to_owned(), arrived);
        near.write_all(&post(&format!("lease/{path}"), body.to_string().as_bytes())).await.ok()?;
        if self.below(10) == 0 {
            sleep(Duration::from_millis(self.below(POLL_MS_MAX))).await;
            return None;
        }
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.ok()?;
        let (head, answer) = answer.split_once("\r\n\r\n")?;
        let status = head[9..12].parse().unwrap();
        let took = arrived.elapsed();
        assert!(took <= Duration::from_millis(POLL_MS_MAX + 10), "{path} was answered after {took:?}");
        let is_remembered = was_released.is_some_and(|released| released + RELEASED > Instant::now());
        if path == "release" {
            assert_eq!(status, 200, "{answer}");
            self.released.borrow_mut().entry(key.to_owned()).or_insert(arrived);
            let lease = server.core.keyed_lease(&super::key(key).unwrap(), from);
            assert_eq!(lease, None, "it was released");
        } else if path == "renew" && self.arrived.borrow().get(key) == Some(&arrived) {
            // No newer request has renewed it.
            let lease = server.core.keyed_lease(&super::key(key).unwrap(), from);
            let left_ms = lease.map_or(0, |lease| lease.left_ms);
            assert!(u64::from(left_ms) <= TTL_MS, "it lasts {left_ms} ms from its last request on");
        } else if path == "acquire" && is_remembered {
            assert_eq!(status, 410, "{answer}");
            self.counts.borrow_mut()[1] += 1;
        }
        Some((status, serde_json::from_str(answer).unwrap()))
    }

    /// Records that a client believes it holds one resource of a name until this time.
    fn believe(&self, client: usize, belief: Option<(usize, Instant)>) {
        let mut believed = self.believed.borrow_mut();
        believed[client] = belief;
        for (name, (text, maximum)) in NAMES.iter().enumerate() {
            let believes = |(of, until): &&(usize, Instant)| *of == name && *until > Instant::now();
            let believers = believed.iter().flatten().filter(believes).count();
            assert!(believers <= *maximum, "{believers} clients believe that they hold {text}");
        }
    }

    /// An operator revokes a grant. Its client learns of it in its next renewal, and before its lease is over.
    fn revoke(&self, grant: &Value) {
        let server = self.connections.shared.stage().server().unwrap();
        let requester = Requester::open(&server, Mailbox::default(), None);
        let what = Revocation::Grant(GrantId(grant.as_str().unwrap().parse().unwrap()));
        let grace = Milliseconds((TTL_MS + self.below(TTL_MS)) as u32);
        let call = Call { connection: requester.connection(), ids: RequestIds::FIRST, token: super::TOKEN };
        // The grant may have ended already.
        server.core.execute(call, &Operation::Revoke { what, grace }, server.moment());
    }

    /// Whether a worker may have released with `done` since then.
    fn may_be_done(&self, since: Instant) -> bool {
        self.done.borrow().values().any(|answered| answered.is_none_or(|answered| answered >= since))
    }
}

/// A client with leases, one after the other.
struct Client {
    world: Rc<World>,
    number: usize,
    /// How much slower its clock is, in thousandths.
    slower: u64,
}

impl Client {
    async fn work(self) {
        while Instant::now() < self.world.ends {
            let key = format!("{:032x}", self.world.random.borrow_mut().u128(..));
            let name = self.world.below(NAMES.len() as u64) as usize;
            let held = self.acquire(&key, name).await;
            if let Some((grant, until)) = &held {
                self.hold(&key, name, grant, *until).await;
            }
            self.world.believe(self.number, None);
            // Some are killed before.
            if self.world.below(10) > 0 {
                let is_done = name == SHARED && held.is_some() && self.world.below(3) > 0;
                self.release(&key, is_done).await;
            }
        }
    }

    /// The grant, and until when the client may believe in it; `None`: it is refused, or the client gives up.
    async fn acquire(&self, key: &str, name: usize) -> Option<(Value, Instant)> {
        let wait_ms = if self.world.below(4) == 0 { 0 } else { 30_000 };
        let (mut body, began) = (asking(key, name), Instant::now());
        (body["wait_ms"], body["poll_ms"]) = (wait_ms.into(), self.poll_ms().into());
        while self.world.below(20) > 0 {
            let sent = Instant::now();
            match self.world.post("acquire", body.clone()).await {
                Some((200, answer)) if answer["state"] == "done" => {
                    assert!(name == SHARED && wait_ms > 0 && self.world.may_be_done(began), "answered done");
                    self.world.counts.borrow_mut()[2] += 1;
                    return None;
                }
                Some((200, answer)) => {
                    let until = self.valid_until(sent, &answer);
                    if until <= Instant::now() {
                        continue;
                    }
                    self.world.counts.borrow_mut()[0] += 1;
                    self.world.believe(self.number, Some((name, until)));
                    return Some((answer["grant"].clone(), until));
                }
                Some((202, _)) | None => {}
                Some((409, answer)) => {
                    let code = answer["error"]["code"].as_str().unwrap();
                    assert!(["busy", "timed_out", "revoked"].contains(&code), "{answer}");
                    return None;
                }
                Some(other) => panic!("{other:?}"),
            }
        }
        None
    }

    /// Renews until it has worked enough, or has to stop.
    async fn hold(&self, key: &str, name: usize, grant: &Value, mut until: Instant) {
        let enough = Instant::now() + Duration::from_millis(self.world.below(4 * TTL_MS));
        while Instant::now() < enough.min(until) {
            if self.world.below(8) == 0 {
                // A mistake: another request with the key. It may be late, and begin a lease that expires.
                let mut other = asking(key, name);
                other["ttl_ms"] = (TTL_MS - 1).into();
                let other = timeout_at(enough.min(until), self.world.post("acquire", other)).await;
                if let Ok(Some((200, answer))) = other {
                    assert_ne!(answer["grant"], *grant, "another request has the lease");
                }
            }
            if self.world.below(20) == 0 {
                self.world.revoke(grant);
            }
            let sent = Instant::now();
            let renewal = self.world.post("renew", json!({"keys": [key], "poll_ms": self.poll_ms()}));
            match timeout_at(enough.min(until), renewal).await {
                Ok(Some((200, answer))) => {
                    let lease = &answer["leases"][0];
                    let valid_until = self.valid_until(sent, lease);
                    until = match lease["state"].as_str() {
                        _ if lease["grant"] != *grant => return,
                        Some("held") => until.max(valid_until),
                        // It works for as long as it may.
                        Some("revoking") => valid_until,
                        _ => return,
                    };
                    self.world.believe(self.number, Some((name, until)));
                }
                Ok(None) | Err(_) => {}
                Ok(Some(other)) => panic!("{other:?}"),
            }
        }
    }

    /// Repeats a release until it is answered.
    async fn release(&self, key: &str, is_done: bool) {
        if is_done {
            self.world.done.borrow_mut().insert(key.to_owned(), None);
        }
        while self.world.post("release", json!({"key": key, "done": is_done})).await.is_none() {}
        if is_done {
            self.world.done.borrow_mut().insert(key.to_owned(), Some(Instant::now()));
        }
    }

    fn poll_ms(&self) -> u64 {
        POLLS_MS[self.world.below(POLLS_MS.len() as u64) as usize]
    }

    /// When the time of an answer is over on the client's clock. It is that of a lease which was renewed when the request arrived,
    /// unless that is revoked.
    fn valid_until(&self, sent: Instant, answer: &Value) -> Instant {
        let valid_ms = answer["valid_ms"].as_u64().unwrap();
        assert!(answer["state"] != "held" || valid_ms == TTL_MS * 96 / 100, "{answer}");
        sent + Duration::from_millis(valid_ms * 1000 / (1000 - self.slower))
    }
}

/// A request for one resource of a name.
fn asking(key: &str, name: usize) -> Value {
    let (text, maximum) = NAMES[name];
    let claims = [json!({"name": text, "maximum": maximum})];
    json!({"key": key, "claims": claims, "ttl_ms": TTL_MS, "share": name == SHARED})
}

/// A server that serves leases.
pub(super) fn start(seed: u64) -> (Arc<Server>, Arc<Connections>) {
    let config = Config::default();
    let server = Server::new(&config, Clock::system(), NameHasher::with_seeds(seed, 2, 3, 4));
    server.core.set_place_key(PlaceKey([7; 16]));
    let shared = Arc::new(Shared::of_test(&config));
    shared.set_stage(Stage::Serving(Arc::clone(&server)));
    (server, Connections::new(shared))
}

/// Runs one history. Returns how many requests were answered `done`.
async fn run(seed: u64) -> u32 {
    let (server, connections) = start(seed);
    let expiring = spawn_local(expire(Arc::clone(&server)));
    let world = Rc::new(World {
        connections,
        random: RefCell::new(Rng::with_seed(seed)),
        ends: Instant::now() + Duration::from_secs(WORK_S),
        believed: RefCell::default(),
        done: RefCell::default(),
        released: RefCell::default(),
        arrived: RefCell::default(),
        messages: RefCell::default(),
        counts: RefCell::default(),
    });
    let start = |number| {
        let client = Client { world: Rc::clone(&world), number, slower: world.below(SLOWER_MAX + 1) };
        spawn_local(client.work())
    };
    let clients: Vec<_> = (0..CLIENTS).map(start).collect();
    for client in clients {
        client.await.unwrap();
    }
    // Messages that were sent arrive, and leases that they begin expire.
    sleep(Duration::from_millis(2 * DELAY_MS_MAX + 2 * TTL_MS)).await;
    for message in world.messages.take() {
        message.await.unwrap();
    }
    assert_eq!(server.core.ledger_stats().sessions, 0);
    let claims = NAMES.map(|(name, maximum)| json!({"name": name, "resources": maximum, "maximum": maximum}));
    let reply = world.deliver("acquire", &json!({"key": "0".repeat(32), "claims": claims})).await;
    assert!(reply.is_none_or(|(status, _)| status == 200));
    let [held, late, done] = *world.counts.borrow();
    assert!(held >= 10 && late > 0, "{held} leases were held, and {late} acquires came after their release");
    expiring.abort();
    done
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn no_more_believe_than_may_hold() {
    let done = Cell::new(0);
    let history = |seed| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        done.set(done.get() + LocalSet::new().block_on(&runtime, run(seed)));
        Ok(())
    };
    TestRunner::new(config()).run(&any::<u64>().no_shrink(), history).unwrap();
    assert!(done.get() > 0, "no request was answered done");
}
