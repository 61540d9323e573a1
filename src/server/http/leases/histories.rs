//! Random histories of requests over connections in memory and a clock in steps: requests and answers are delayed, repeated,
//! reordered and lost, and the clocks of clients are slow. The clients know only `docs/http.md`. However it goes,
//! no more of them believe that they hold than may hold, a release lets no later acquire of its key begin a lease, and in the
//! end nothing is held.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::super::super::clock::Clock;
use super::super::super::expiry::expire;
use super::super::super::state::Server;
use super::super::connections::Place;
use super::super::listener::serve_requests;
use super::super::peer::Peer;
use super::super::shared::{Shared, Stage};
use crate::config::Config;
use signalbox_core::NameHasher;
use signalbox_model::PlaceKey;

/// How many may hold the name, and how many clients compete for it.
const MAXIMUM: usize = 2;
const CLIENTS: usize = 5;

const TTL_MS: u64 = 3_000;
const POLL_MS: u64 = 900;

/// How much longer than that a client waits for an answer.
const ANSWER_MS: u64 = 2_000;

/// How long the clients work, and the longest delay of a message.
const WORK_S: u64 = 60;
const DELAY_MS_MAX: u64 = 20_000;

/// For how long a released key begins no lease.
const RELEASED: Duration = Duration::from_secs(60);

/// How much slower than the server's clock a client's may be, in thousandths.
const SLOWER_MAX: u64 = 40;

/// What all clients share.
struct World {
    shared: Arc<Shared>,
    random: RefCell<Rng>,
    ends: Instant,
    /// Until when each client believes that it holds, on the server's clock.
    believed: RefCell<[Option<Instant>; CLIENTS]>,
    /// When each key was released first, if that was answered.
    released: RefCell<HashMap<String, Instant>>,
    /// How many leases were held, and how many acquires came after their release.
    held: RefCell<(u32, u32)>,
}

type Reply = (u16, Value);

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
            spawn_local(async move {
                sleep(world.delay()).await;
                let reply = world.deliver(path, &body).await;
                sleep(world.delay()).await;
                if let Some(reply) = reply.filter(|_| world.below(10) > 0) {
                    // The client may have given up.
                    let _ = sender.send(reply);
                }
            });
        }
        drop(sender);
        timeout(Duration::from_millis(POLL_MS + ANSWER_MS), replies.recv()).await.ok().flatten()
    }

    /// A request arrives over a connection of its own; `None`: that ends before the answer.
    async fn deliver(&self, path: &'static str, body: &Value) -> Option<Reply> {
        let (mut near, far) = duplex(64 * 1024);
        let peer = Peer::of_test();
        let (place, _closed) = Place::take(&self.shared, peer.client.address);
        let (shared, place) = (Arc::clone(&self.shared), Arc::new(place));
        tokio::spawn(async move { serve_requests(&shared, &place, far, peer).await });
        let key = body["key"].as_str().unwrap_or_default();
        let was_released = self.released.borrow().get(key).copied();
        let text = body.to_string();
        let request = format!(
            "POST /api/v1/lease/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{text}",
            text.len()
        );
        let arrived = Instant::now();
        near.write_all(request.as_bytes()).await.ok()?;
        if self.below(10) == 0 {
            sleep(Duration::from_millis(self.below(POLL_MS))).await;
            return None;
        }
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.ok()?;
        let (head, answer) = answer.split_once("\r\n\r\n")?;
        let status = head[9..12].parse().unwrap();
        let is_remembered = was_released.is_some_and(|released| released + RELEASED > Instant::now());
        if path == "release" {
            assert_eq!(status, 200, "{answer}");
            self.released.borrow_mut().entry(key.to_owned()).or_insert(arrived);
        } else if path == "acquire" && is_remembered {
            assert_eq!(status, 410, "{answer}");
            self.held.borrow_mut().1 += 1;
        }
        Some((status, serde_json::from_str(answer).unwrap()))
    }

    /// A client believes that it holds until this time.
    fn believe(&self, client: usize, until: Option<Instant>) {
        let mut believed = self.believed.borrow_mut();
        believed[client] = until;
        let believers = believed.iter().flatten().filter(|until| **until > Instant::now()).count();
        assert!(believers <= MAXIMUM, "{believers} clients believe that they hold");
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
            if let Some((grant, until)) = self.acquire(&key).await {
                self.hold(&key, &grant, until).await;
            }
            self.world.believe(self.number, None);
            // Some are killed before.
            if self.world.below(10) > 0 {
                self.release(&key).await;
            }
        }
    }

    /// The grant, and until when the client may believe in it; `None`: it is refused, or the client gives up.
    async fn acquire(&self, key: &str) -> Option<(Value, Instant)> {
        let wait_ms = if self.world.below(4) == 0 { 0 } else { 30_000 };
        let body = json!({
            "key": key, "claims": [{"name": "a", "maximum": MAXIMUM}], "ttl_ms": TTL_MS, "wait_ms": wait_ms, "poll_ms": POLL_MS
        });
        while self.world.below(20) > 0 {
            let sent = Instant::now();
            match self.world.post("acquire", body.clone()).await {
                Some((200, answer)) => {
                    let until = self.valid_until(sent, &answer);
                    if until <= Instant::now() {
                        continue;
                    }
                    self.world.held.borrow_mut().0 += 1;
                    self.world.believe(self.number, Some(until));
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
    async fn hold(&self, key: &str, grant: &Value, mut until: Instant) {
        let enough = Instant::now() + Duration::from_millis(self.world.below(4 * TTL_MS));
        while Instant::now() < enough.min(until) {
            let sent = Instant::now();
            let renewal = self.world.post("renew", json!({"keys": [key], "poll_ms": POLL_MS}));
            match timeout_at(enough.min(until), renewal).await {
                Ok(Some((200, answer))) => {
                    let lease = &answer["leases"][0];
                    if lease["state"] != "held" || lease["grant"] != *grant {
                        return;
                    }
                    until = until.max(self.valid_until(sent, lease));
                    self.world.believe(self.number, Some(until));
                }
                Ok(None) | Err(_) => {}
                Ok(Some(other)) => panic!("{other:?}"),
            }
        }
    }

    /// Repeats a release until it is answered.
    async fn release(&self, key: &str) {
        while self.world.post("release", json!({ "key": key })).await.is_none() {}
    }

    /// When the time of an answer is over on the client's clock.
    fn valid_until(&self, sent: Instant, answer: &Value) -> Instant {
        let valid_ms = answer["valid_ms"].as_u64().unwrap();
        sent + Duration::from_millis(valid_ms * 1000 / (1000 - self.slower))
    }
}

async fn run(seed: u64) {
    let config = Config::default();
    let server = Server::new(&config, Clock::system(), NameHasher::with_seeds(seed, 2, 3, 4));
    server.core.set_place_key(PlaceKey([7; 16]));
    let shared = Arc::new(Shared::of_test(&config));
    shared.set_stage(Stage::Serving(Arc::clone(&server)));
    let expiring = spawn_local(expire(Arc::clone(&server)));
    let world = Rc::new(World {
        shared,
        random: RefCell::new(Rng::with_seed(seed)),
        ends: Instant::now() + Duration::from_secs(WORK_S),
        believed: RefCell::default(),
        released: RefCell::default(),
        held: RefCell::default(),
    });
    let start = |number| {
        let client = Client { world: Rc::clone(&world), number, slower: world.below(SLOWER_MAX + 1) };
        spawn_local(client.work())
    };
    let clients: Vec<_> = (0..CLIENTS).map(start).collect();
    for client in clients {
        client.await.unwrap();
    }
    // What was sent arrives, and what that began expires.
    sleep(Duration::from_millis(2 * DELAY_MS_MAX + 2 * TTL_MS)).await;
    assert_eq!(server.core.ledger_stats().sessions, 0);
    let all = json!({"name": "a", "resources": MAXIMUM, "maximum": MAXIMUM});
    let reply = world.deliver("acquire", &json!({"key": "0".repeat(32), "claims": [all]})).await;
    assert!(reply.is_none_or(|(status, _)| status == 200));
    let (held, late) = *world.held.borrow();
    assert!(held >= 10 && late > 0, "{held} leases were held, and {late} acquires came after their release");
    expiring.abort();
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_more_believe_than_may_hold(seed in any::<u64>().no_shrink()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, run(seed));
    }
}
