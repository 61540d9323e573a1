//! etcd as the nodes reach it: requests arrive, are performed and answered between two steps, each after a random delay.
//!
//! etcd is not a machine of the simulated network, so a request lives on when the node that sent it has died. A request
//! may arrive seconds late, and it or its answer may be lost; the node then knows only that there was no answer in time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox_cluster::coordinator::{CallError, Operation, Transaction, TransactionAnswer};
use signalbox_cluster::keys::{Keys, Leadership, LeadershipState, decode};
use signalbox_cluster::store::{load, record_key};
use signalbox_core::{Key, Record};
use tokio::sync::oneshot;

use crate::random::Random;
use crate::scene::Scene;
use crate::support::etcd::{FakeEtcd, FakeStore, Handle};

/// The longest delay of a late request.
const LATE_MS_MAX: u64 = 7000;

/// Within this time after a refusal, a commit is retried and stored, unless that is disturbed.
const STORES_AGAIN_MS: u64 = 10_000;

pub type Answer = Result<TransactionAnswer, CallError>;

/// How etcd and the network treat all requests. Shares are in percent.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The longest delay of requests and of answers.
    pub delay_ms_max: u64,
    /// Requests that arrive up to 7 s late.
    pub late_percent: u64,
    pub lost_requests_percent: u64,
    pub lost_answers_percent: u64,
    /// Commits that are refused.
    pub refused_percent: u64,
}

pub const CALM: Weather = Weather {
    delay_ms_max: 15,
    late_percent: 0,
    lost_requests_percent: 0,
    lost_answers_percent: 0,
    refused_percent: 0,
};

/// Which messages between a node and etcd are lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    pub loses_requests: bool,
    pub loses_answers: bool,
}

pub struct Etcd {
    scene: Arc<Scene>,
    keys: Keys,
    store: FakeEtcd,
    state: Mutex<State>,
}

struct State {
    random: Random,
    weather: Weather,
    /// By node; the last one is the operator's.
    links: Vec<Link>,
    /// Requests of each link that were lost, or late.
    lost: Vec<u64>,
    /// Until then, etcd has no leader.
    leaderless_until_ms: u64,
    /// When a commit was last refused.
    refused_ms: Option<u64>,
    requests: BTreeMap<u64, Request>,
    sent: u64,
    /// The content of the leadership key.
    epoch: u32,
    is_held: bool,
}

struct Request {
    node: usize,
    /// When the present stage is over.
    at_ms: u64,
    stage: Stage,
    reply: oneshot::Sender<Answer>,
}

enum Stage {
    Arriving(Transaction),
    Returning(Answer),
}

impl Etcd {
    pub fn new(scene: Arc<Scene>, keys: Keys, links: usize, random: Random) -> Self {
        let state = State {
            random,
            weather: CALM,
            links: vec![Link::default(); links],
            lost: vec![0; links],
            leaderless_until_ms: 0,
            refused_ms: None,
            requests: BTreeMap::new(),
            sent: 0,
            epoch: 0,
            is_held: false,
        };
        Self { scene, keys, store: FakeEtcd::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes etcd")
    }

    /// A node sends a transaction. The answer comes after some time, or never.
    pub fn send(&self, node: usize, transaction: Transaction) -> oneshot::Receiver<Answer> {
        let now_ms = self.scene.state().now_ms;
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        let State { random, weather, links, lost, .. } = &mut *state;
        let is_late = random.percent(weather.late_percent);
        let is_lost = random.percent(weather.lost_requests_percent) || links[node].loses_requests;
        lost[node] += u64::from(is_late || is_lost);
        let delay_ms = random.between(0, if is_late { LATE_MS_MAX } else { weather.delay_ms_max });
        state.sent += 1;
        let number = state.sent;
        if !is_lost {
            let stage = Stage::Arriving(transaction);
            state.requests.insert(number, Request { node, at_ms: now_ms + delay_ms, stage, reply });
        }
        answer
    }

    /// Performs and answers what is due.
    pub fn before_step(&self) {
        let now_ms = self.scene.state().now_ms;
        loop {
            let mut state = self.state();
            let due = state.requests.iter().filter(|(_, request)| request.at_ms <= now_ms);
            let Some((_, number)) = due.map(|(number, request)| (request.at_ms, *number)).min() else {
                return;
            };
            let request = state.requests.remove(&number).expect("it was found in the line above");
            let next = state.advance(request, now_ms, &self.keys, |transaction| self.perform(transaction));
            state.requests.extend(next.map(|request| (number, request)));
            drop(state);
            self.note_leadership();
        }
    }

    fn perform(&self, transaction: &Transaction) -> Answer {
        self.store.with_store(|store| store.apply(transaction))
    }

    /// Checks that epochs grow by one.
    fn note_leadership(&self) {
        let Some(entry) = self.with_store(|store| store.get(&self.keys.leadership())) else { return };
        let found: Leadership = decode(&entry.key, &entry.value).expect("only nodes write it");
        let mut state = self.state();
        let (epoch, was_held) = (state.epoch, state.is_held);
        let is_held = found.state == LeadershipState::Held;
        if (epoch, was_held) == (found.epoch, is_held) {
            return;
        }
        (state.epoch, state.is_held) = (found.epoch, is_held);
        drop(state);
        self.scene.event("etcd", format_args!("{:?} epoch {} by {}", found.state, found.epoch, found.node));
        let is_right = if is_held { found.epoch == epoch + 1 } else { was_held && found.epoch == epoch };
        if !is_right {
            self.scene.fail(format!("epoch {epoch} (held: {was_held}) is followed by {found:?}"));
        }
    }

    /// The epoch of the last takeover.
    pub fn epoch(&self) -> u32 {
        self.state().epoch
    }

    pub fn with_store<T>(&self, look: impl FnOnce(&FakeStore) -> T) -> T {
        self.store.with_store(|store| look(store))
    }

    /// Whether a record is stored.
    pub fn has(&self, key: &Key) -> bool {
        self.with_store(|store| store.get(&record_key(&self.keys, key)).is_some())
    }

    /// All records.
    pub fn records(&self) -> Vec<Record> {
        let revision = self.with_store(FakeStore::revision);
        let mut records = Vec::new();
        let mut read = |range: &_| self.with_store(|store| store.range(range));
        load(&self.keys, revision, &mut read, &mut |record| records.push(record))
            .expect("every record can be read");
        records
    }

    /// A connection that always answers at once, for work that a node does in one moment.
    pub fn at_once(&self) -> Handle {
        self.store.client()
    }

    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    pub fn set_link(&self, node: usize, link: Link) {
        self.state().links[node] = link;
    }

    /// A count of a node's requests that were lost or late. It grows with each of them, by one or more.
    pub fn lost(&self, node: usize) -> u64 {
        self.state().lost[node]
    }

    /// etcd loses its leader for this time.
    pub fn lose_leader(&self, ms: u64) {
        let now_ms = self.scene.state().now_ms;
        let mut state = self.state();
        state.leaderless_until_ms = state.leaderless_until_ms.max(now_ms + ms);
    }

    /// etcd has a leader again.
    pub fn recover(&self) {
        self.state().leaderless_until_ms = 0;
    }

    /// Whether commits were refused at this time or shortly before, or have been since.
    pub fn has_refused_since(&self, since_ms: u64) -> bool {
        self.state().refused_ms.is_some_and(|refused_ms| refused_ms + STORES_AGAIN_MS >= since_ms)
    }

    /// Whether a node and etcd reach each other, and etcd has a leader.
    pub fn is_reachable(&self, node: usize) -> bool {
        let now_ms = self.scene.state().now_ms;
        let state = self.state();
        let Link { loses_requests, loses_answers } = state.links[node];
        !loses_requests && !loses_answers && state.leaderless_until_ms <= now_ms
    }
}

/// Whether a leader stores records: it writes the commit marker, and does not take the leadership.
fn is_commit(transaction: &Transaction, keys: &Keys) -> bool {
    let writes = |of: Vec<u8>| {
        let is_of = |operation: &Operation| matches!(operation, Operation::Put { key, .. } if *key == of);
        transaction.then.iter().any(is_of)
    };
    writes(keys.marker()) && !writes(keys.leadership())
}

impl State {
    /// A stage of a request is over. Returns the request if it has another one.
    fn advance(
        &mut self,
        mut request: Request,
        now_ms: u64,
        keys: &Keys,
        perform: impl FnOnce(&Transaction) -> Answer,
    ) -> Option<Request> {
        let Self { random, weather, links, lost, leaderless_until_ms, refused_ms, .. } = self;
        let delay_ms = random.between(0, weather.delay_ms_max);
        match request.stage {
            Stage::Arriving(_) if now_ms < *leaderless_until_ms => match random.between(0, 2) {
                0 => {
                    lost[request.node] += 1;
                    return None;
                }
                1 => {
                    let error = CallError::Unanswered("etcd has no leader".to_owned());
                    request.stage = Stage::Returning(Err(error));
                    request.at_ms = now_ms + delay_ms;
                }
                // It is performed by the next leader.
                _ => {
                    lost[request.node] += 1;
                    request.at_ms = *leaderless_until_ms + delay_ms;
                }
            },
            Stage::Arriving(transaction)
                if is_commit(&transaction, keys) && random.percent(weather.refused_percent) =>
            {
                *refused_ms = Some(now_ms);
                request.stage = Stage::Returning(Err(CallError::Refused("it has no space".to_owned())));
                request.at_ms = now_ms + delay_ms;
            }
            Stage::Arriving(transaction) => {
                let answer = perform(&transaction);
                if random.percent(weather.lost_answers_percent) {
                    return None;
                }
                request.stage = Stage::Returning(answer);
                request.at_ms = now_ms + delay_ms;
            }
            Stage::Returning(answer) => {
                if !links[request.node].loses_answers {
                    // The node may no longer exist.
                    let _ = request.reply.send(answer);
                }
                return None;
            }
        }
        Some(request)
    }
}
