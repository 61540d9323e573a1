//! Places in queues that survive restarts: random histories of clients that wait, a server that crashes, and clients
//! that come back in any order, before and after the end of the reconnect window, with proofs that are right or wrong.
//!
//! What each step may do is derived from the listings before and after it. The state of the window is modelled from
//! `docs/semantics.md`, "Places after a restart". `PROPTEST_CASES=600000 cargo test --release --test model places::`
//! runs it for an hour.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Waker;

use proptest::prelude::*;
use signalbox_core::{
    Answer, BatchLimit, Call, Change, Claim, CommitOutcome, Core, Key, Kind, ListingKind, Mailbox, Message,
    Moment, MonotonicMs, NameHasher, Outcome, Queueing, Record, Token, Waiting, Want,
};
use signalbox_model::UnixSeconds;
use signalbox_model::{
    ConnectionId, GrantId, Namespace, Place, PlaceKey, RequestId, RequestIds, SessionId, SessionKey,
};

use crate::cases;

const CLIENTS: usize = 4;
const NAMES: [(&[u8], u32); 3] = [(b"one", 1), (b"two", 2), (b"other", 2)];
const WINDOW_MS: u32 = 5_000;
/// The time to live of each client's session: one is shorter than the window, and only the longest bounds it.
const TTLS_MS: [u32; CLIENTS] = [3_600_000, 4_000_000, 1_000, 3_600_000];
const KEY: PlaceKey = PlaceKey([7; 16]);

/// The resources that a request asks for, by the index of the name.
type Wanted = BTreeMap<usize, u32>;

#[derive(Clone, Debug)]
enum Step {
    Ask {
        by: usize,
        wanted: Wanted,
        waits: bool,
    },
    Release {
        by: usize,
        which: usize,
    },
    Cancel {
        by: usize,
        which: usize,
    },
    /// The client attaches its session to a new connection, and announces as many repetitions as it has places, or another
    /// number.
    Attach {
        by: usize,
        more: i32,
    },
    /// The client repeats one of its unanswered requests.
    Repeat {
        by: usize,
        which: usize,
        proof: Proof,
    },
    /// The client attaches, and repeats all of its requests with their places.
    Return {
        by: usize,
    },
    /// The client closes its session, and opens another.
    Close {
        by: usize,
    },
    /// Whether changes are stored after each step from now on.
    Store(bool),
    Crash {
        window: bool,
    },
    Time {
        by_ms: u64,
    },
}

/// The place and proof that a repetition presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Own,
    Missing,
    /// One bit of the proof is wrong.
    Forged,
    /// A lower place with the proof of the own one.
    Lower,
    /// The place of a request of another client.
    OfAnotherSession,
    /// The place of another request of this client.
    OfAnotherRequest,
    /// The own place, with a request for other names.
    ForOtherNames,
}

struct Run {
    core: Core,
    now_ms: u64,
    disk: BTreeMap<Key, Record>,
    stores: bool,
    clients: Vec<Client>,
    last_token: u64,
    crashes: u64,
    /// The highest id of the runs before.
    earlier: u64,
    window: Option<Window>,
    /// The id of the last grant of each name that was acknowledged, of requests for this name alone.
    last_granted: BTreeMap<usize, u64>,
    granted: BTreeSet<u64>,
    /// The requests that were sent in this run, by client and number.
    sent: BTreeSet<(usize, u64)>,
    /// The requests that this step ended without a grant, by their places.
    refused: BTreeSet<u64>,
}

/// The reconnect window: its end, and how many repetitions of each session are missing; `None` until the session attaches.
struct Window {
    end_ms: u64,
    awaited: BTreeMap<SessionId, Option<u32>>,
}

struct Client {
    session: SessionId,
    key: SessionKey,
    ttl_ms: u32,
    /// `None` after a crash, until it attaches.
    connection: Option<(ConnectionId, Arc<Mailbox>)>,
    last_request: u64,
    /// The requests that are not answered.
    requests: BTreeMap<u64, Request>,
    grants: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Request {
    wanted: Wanted,
    token: Token,
    place: Option<Place>,
}

/// The places in the queue of each name, in the order of the listing.
type Queues = BTreeMap<usize, Vec<u64>>;

fn proofs() -> impl Strategy<Value = Proof> {
    prop_oneof![
        8 => Just(Proof::Own),
        1 => Just(Proof::Missing),
        1 => Just(Proof::Forged),
        1 => Just(Proof::Lower),
        1 => Just(Proof::OfAnotherSession),
        1 => Just(Proof::OfAnotherRequest),
        1 => Just(Proof::ForOtherNames),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let by = || 0..CLIENTS;
    let which = any::<usize>;
    let name = prop_oneof![4 => Just(0), 2 => Just(1), 1 => Just(2)];
    let one = (name, 1..=2u32).prop_map(|(name, amount)| [(name, amount.min(NAMES[name].1))].into());
    let wanted = prop_oneof![
        6 => one,
        1 => (1..=2u32).prop_map(|amount| [(0, 1), (1, amount)].into()),
        1 => Just([(1, 1), (2, 1)].into()),
    ];
    prop_oneof![
        24 => (by(), wanted, prop::bool::weighted(0.9))
            .prop_map(|(by, wanted, waits)| Step::Ask { by, wanted, waits }),
        8 => (by(), which()).prop_map(|(by, which)| Step::Release { by, which }),
        2 => (by(), which()).prop_map(|(by, which)| Step::Cancel { by, which }),
        3 => (by(), prop_oneof![3 => Just(0), 1 => -1..=1i32]).prop_map(|(by, more)| Step::Attach { by, more }),
        10 => (by(), which(), proofs()).prop_map(|(by, which, proof)| Step::Repeat { by, which, proof }),
        8 => by().prop_map(|by| Step::Return { by }),
        1 => by().prop_map(|by| Step::Close { by }),
        1 => prop::bool::weighted(0.7).prop_map(Step::Store),
        3 => prop::bool::weighted(0.9).prop_map(|window| Step::Crash { window }),
        4 => prop::sample::select(vec![1, 900, 4_000, 5_000]).prop_map(|by_ms| Step::Time { by_ms }),
    ]
}

impl Run {
    fn new() -> Self {
        let mut run = Self {
            core: new_core(0),
            now_ms: 0,
            disk: BTreeMap::new(),
            stores: true,
            clients: Vec::new(),
            last_token: 0,
            crashes: 0,
            earlier: 0,
            window: None,
            last_granted: BTreeMap::new(),
            granted: BTreeSet::new(),
            sent: BTreeSet::new(),
            refused: BTreeSet::new(),
        };
        run.core.keep_journal(Waker::noop().clone(), Some(KEY));
        run.core.begin_serving(run.now().monotonic, run.now());
        run.store();
        run.clients = TTLS_MS.into_iter().map(|ttl_ms| run.open(ttl_ms)).collect();
        run
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.now_ms), unix: UnixSeconds(1_000 + self.now_ms / 1_000) }
    }

    fn token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    fn connect(&self) -> (ConnectionId, Arc<Mailbox>) {
        let (connection, mailbox) = (self.core.open_session().id(), Arc::<Mailbox>::default());
        self.core.join(connection, None, &mailbox);
        (connection, mailbox)
    }

    fn open(&mut self, ttl_ms: u32) -> Client {
        let (connection, mailbox) = self.connect();
        let token = self.token();
        let key = SessionKey(u128::from(token.0).to_be_bytes());
        self.core.open_leased(connection, key, ttl_ms, b"", token, self.now());
        self.store();
        let Some(Message::Answer { outcome: Ok(Answer::Opened(opened)), .. }) = mailbox.take() else {
            panic!("a session is opened")
        };
        Client {
            session: opened.session,
            key,
            ttl_ms,
            connection: Some((connection, mailbox)),
            last_request: 0,
            requests: BTreeMap::new(),
            grants: Vec::new(),
        }
    }

    /// Stores all changes.
    fn store(&mut self) {
        while let Some(batch) = self.core.take_batch(BatchLimit::NONE) {
            for change in batch.changes.iter() {
                match change {
                    Change::Put(record) => _ = self.disk.insert(record.key(), record.clone()),
                    Change::Delete(key) => _ = self.disk.remove(key),
                }
            }
            while self.core.complete(&batch, CommitOutcome::Stored, usize::MAX, self.now()) {}
        }
    }

    /// Everything that is not stored is lost.
    fn crash(&mut self, has_window: bool) {
        self.crashes += 1;
        // Sessions of connections get other numbers in each run.
        self.core = new_core(self.crashes * 1_000_000);
        self.core.set_reconnect_window(if has_window { WINDOW_MS } else { 0 });
        for record in self.disk.values() {
            self.core.restore(record.clone(), self.now()).unwrap();
        }
        // The key of the store counts.
        let other = PlaceKey([8; 16]);
        self.core.keep_journal(Waker::noop().clone(), Some(other));
        self.core.begin_serving(self.now().monotonic, self.now());
        let Some(Record::Mark(mark)) = self.disk.get(&Key::Mark) else { panic!("ids are reserved") };
        self.earlier = *mark;
        self.store();
        self.sent.clear();
        for client in &mut self.clients {
            client.connection = None;
        }
        let sessions = self.disk.keys().filter_map(|key| match key {
            Key::Session(session) => Some((*session, None)),
            _ => None,
        });
        let awaited: BTreeMap<_, _> = sessions.collect();
        self.window = (has_window && !awaited.is_empty())
            .then(|| Window { end_ms: self.now_ms + u64::from(WINDOW_MS), awaited });
    }

    fn waiters(&self) -> Queues {
        let list = |(index, (name, _)): (usize, &(&[u8], u32))| {
            let listed = list(&self.core, name, ListingKind::Waiters);
            (index, listed.into_iter().map(|(id, _)| id).collect())
        };
        NAMES.iter().enumerate().map(list).collect()
    }

    fn is_held_back(&self, place: u64) -> bool {
        self.window.is_some() && place <= self.earlier
    }

    /// Takes a step, and checks what it did.
    fn take(&mut self, step: &Step) {
        let before = self.waiters();
        self.refused.clear();
        let mut arrived = self.run(step);
        arrived.retain(|place| !before.values().flatten().any(|waited| waited == place));
        if self.stores {
            self.store();
        }
        if self.window.as_ref().is_some_and(|window| window.awaited.is_empty()) {
            self.window = None;
        }
        // The end of the window serves waiters in steps.
        while self.core.expire(self.now()) {}
        if self.stores {
            self.store();
        }
        let answered = self.receive();
        self.core.check_ledger().unwrap();
        let after = self.waiters();
        if matches!(step, Step::Crash { .. }) {
            assert!(after.values().all(Vec::is_empty), "waiters are not stored");
            return;
        }
        for (name, queue) in &after {
            assert!(queue.is_sorted_by(|one, next| one < next), "{after:?}");
            self.check_order(&before[name], queue, &arrived);
            self.check_service(*name, queue);
        }
        self.check_answers(answered);
    }

    /// Checks that no waiter has overtaken another, and that no waiter that is held back was granted.
    fn check_order(&self, before: &[u64], after: &[u64], arrived: &BTreeSet<u64>) {
        let has_left = |place: &u64| !after.contains(place) && !self.refused.contains(place);
        for served in before.iter().filter(|place| has_left(place)) {
            let overtaken = before.iter().find(|place| *place < served && after.contains(place));
            assert_eq!(overtaken, None, "{served} overtook it: {before:?}, {after:?}");
            assert!(!self.is_held_back(*served), "{served} was served during the window");
        }
        // A later waiter comes after all earlier ones.
        let is_new = |place: &&u64| arrived.contains(place) && **place > self.earlier;
        for newer in after.iter().filter(is_new) {
            assert!(before.iter().all(|place| place < newer), "{newer} is not after {before:?}");
        }
    }

    /// Checks that no more is held than the capacity, and that no waiter waits that could be served.
    fn check_service(&self, name: usize, queue: &[u64]) {
        let (bytes, capacity) = NAMES[name];
        let inspected = self.core.inspect(Namespace::Semaphores, bytes, self.now());
        let in_use = inspected.map_or(0, |inspected| inspected.in_use);
        assert!(in_use <= capacity, "{in_use} of {capacity}");
        let waiting = list(&self.core, bytes, ListingKind::Waiters);
        if let (Some(head), Some((_, wanted))) = (queue.first(), waiting.first())
            && in_use + wanted <= capacity
        {
            assert!(self.is_held_back(*head), "{head} fits and waits");
        }
    }

    /// The ids of grants are new, and grow within a name.
    fn check_answers(&mut self, mut answered: Vec<(u64, Wanted)>) {
        answered.sort_unstable_by_key(|(id, _)| *id);
        for (id, wanted) in answered {
            assert!(self.granted.insert(id), "{id} was granted before");
            assert!(self.core.verify(GrantId(id), self.now()).is_ok(), "{id} is held");
            if let [(name, _)] = wanted.iter().collect::<Vec<_>>()[..] {
                let last = self.last_granted.insert(*name, id).unwrap_or(0);
                assert!(id > last, "{id} was granted after {last}");
            }
        }
    }

    /// Returns the places of requests that have come to wait.
    fn run(&mut self, step: &Step) -> BTreeSet<u64> {
        let mut arrived = BTreeSet::new();
        match *step {
            Step::Ask { by, ref wanted, waits } => {
                let client = &mut self.clients[by];
                if client.connection.is_none() || client.requests.len() > 4 {
                    return arrived;
                }
                client.last_request += 1;
                let number = client.last_request;
                arrived.extend(self.send(by, number, wanted.clone(), None, waits));
            }
            Step::Release { by, which } => {
                let client = &mut self.clients[by];
                if client.connection.is_none() || client.grants.is_empty() {
                    return arrived;
                }
                let grant = client.grants.swap_remove(which % client.grants.len());
                client.last_request += 1;
                let number = client.last_request;
                let call = self.call(by, number);
                self.core.release_grant(call, GrantId(grant), false, self.now());
            }
            Step::Cancel { by, which } => {
                let Some(number) = self.unanswered(by, which) else { return arrived };
                let Some((connection, _)) = self.clients[by].connection else { return arrived };
                let place = self.clients[by].requests[&number].place;
                let waiting = Waiting::Request(RequestId(number));
                if self.core.cancel(connection, waiting, self.now()).is_ok() {
                    self.refused.extend(place.map(|place| place.id.0));
                }
            }
            Step::Attach { by, more } => self.attach(by, more),
            Step::Repeat { by, which, proof } => {
                let Some(number) = self.unanswered(by, which) else { return arrived };
                if self.clients[by].connection.is_some() {
                    arrived.extend(self.repeat(by, number, proof));
                }
            }
            Step::Return { by } => {
                self.attach(by, 0);
                let numbers: Vec<_> = self.clients[by].requests.keys().copied().collect();
                for number in numbers {
                    // An answer to an earlier one may end the wait of this one.
                    if self.clients[by].requests.contains_key(&number) {
                        arrived.extend(self.repeat(by, number, Proof::Own));
                    }
                }
            }
            Step::Close { by } => {
                let Some((connection, _)) = self.clients[by].connection else { return arrived };
                let token = self.token();
                let places = self.clients[by].requests.values().filter_map(|request| request.place);
                self.refused.extend(places.map(|place| place.id.0));
                self.core.close_leased(connection, token, self.now());
                if let Some(window) = &mut self.window {
                    window.awaited.remove(&self.clients[by].session);
                }
                let ttl_ms = self.clients[by].ttl_ms;
                self.clients[by] = self.open(ttl_ms);
            }
            Step::Store(stores) => self.stores = stores,
            Step::Crash { window } => self.crash(window),
            Step::Time { by_ms } => {
                // No session expires: those that are connected are renewed, and the others return here.
                for _ in 0..by_ms.div_ceil(900) {
                    self.now_ms += by_ms.min(900);
                    for by in 0..CLIENTS {
                        match &self.clients[by].connection {
                            Some((connection, _)) => _ = self.core.keep_alive(*connection, self.now()),
                            None if self.clients[by].ttl_ms < 2_000 => self.attach(by, 0),
                            None => {}
                        }
                    }
                    let is_over = |window: &Window| window.end_ms <= self.now_ms || window.awaited.is_empty();
                    if self.window.as_ref().is_some_and(is_over) {
                        self.window = None;
                    }
                    while self.core.expire(self.now()) {}
                }
            }
        }
        arrived
    }

    fn unanswered(&self, by: usize, which: usize) -> Option<u64> {
        let requests = &self.clients[by].requests;
        requests.keys().nth(which.checked_rem(requests.len())?).copied()
    }

    fn call(&mut self, by: usize, number: u64) -> Call {
        let token = self.token();
        let client = &self.clients[by];
        let connection = client.connection.as_ref().expect("the caller has checked it").0;
        let lowest = client.requests.keys().next().copied().unwrap_or(number).min(number);
        let ids = RequestIds { own: RequestId(number), lowest_unanswered: RequestId(lowest) };
        Call { connection, ids, token }
    }

    fn attach(&mut self, by: usize, more: i32) {
        let (connection, mailbox) = self.connect();
        let client = &self.clients[by];
        let places = client.requests.values().filter(|request| request.place.is_some()).count() as u32;
        let announced = places.saturating_add_signed(more);
        let (session, key) = (client.session, client.key);
        self.receive();
        let attached = self.core.attach(session, connection, &key, announced);
        attached.expect("no session expires").renew(self.now().monotonic);
        self.clients[by].connection = Some((connection, mailbox));
        if let Some(missing) = self.window.as_mut().and_then(|window| window.awaited.get_mut(&session)) {
            *missing = Some(announced);
        }
        self.count(session, 0);
    }

    /// Counts repetitions of a session that is awaited.
    fn count(&mut self, session: SessionId, repetitions: u32) {
        let Some(window) = &mut self.window else { return };
        if let Some(Some(missing)) = window.awaited.get_mut(&session) {
            *missing -= repetitions;
            if *missing == 0 {
                window.awaited.remove(&session);
            }
        }
        if window.awaited.is_empty() {
            self.window = None;
        }
    }

    /// Repeats a request, and checks the place that it gets. Returns the place.
    fn repeat(&mut self, by: usize, number: u64, proof: Proof) -> Option<u64> {
        let request = self.clients[by].requests[&number].clone();
        let own = request.place;
        let presented = match proof {
            Proof::Own | Proof::ForOtherNames => own,
            Proof::Missing => None,
            Proof::Forged => own.map(|place| {
                let mut proof = place.proof;
                proof.0[number as usize % 16] ^= 1;
                Place { proof, ..place }
            }),
            Proof::Lower => own.map(|place| Place { id: GrantId(place.id.0 - 1), ..place }),
            Proof::OfAnotherSession => {
                let others = self.clients.iter().enumerate().filter(|(other, _)| *other != by);
                let others: Vec<_> = others.map(|(_, client)| &client.requests).collect();
                // Preferably, only the session is wrong.
                let same = others.iter().filter_map(|requests| requests.get(&number));
                let same = same.filter(|other| other.wanted == request.wanted);
                let any = others.iter().flat_map(|requests| requests.values());
                same.chain(any).find_map(|other| other.place)
            }
            Proof::OfAnotherRequest => {
                let others = self.clients[by].requests.iter().filter(|(other, _)| **other != number);
                others.map(|(_, request)| request).find_map(|request| request.place)
            }
        };
        let mut wanted = request.wanted;
        let waits_already =
            own.is_some_and(|place| self.waiters().values().flatten().any(|id| *id == place.id.0));
        // A repetition with the number of a request that waits, or that was granted without an answer, is that
        // request, whatever it says.
        let is_known = self.sent.contains(&(by, number)) || self.is_stored(by, number);
        let is_other = proof == Proof::ForOtherNames && !is_known;
        if is_other {
            wanted = if wanted.contains_key(&0) { [(1, 1)].into() } else { [(0, 1)].into() };
        }
        let is_right = presented.is_some() && presented == own && !is_other;
        let is_held_back = is_right && own.is_some_and(|own| self.is_held_back(own.id.0));
        let must_wait = is_held_back && !is_known;
        let got = self.send(by, number, wanted, presented, true);
        assert!(got.is_some() || !must_wait, "{own:?} is held back");
        if let Some(got) = got {
            let is_kept = waits_already || is_right;
            assert_eq!(own.is_some_and(|own| got == own.id.0), is_kept, "{proof:?}: {got} after {own:?}");
            assert!(is_kept || got > self.earlier, "{got} is new");
        }
        got
    }

    /// Whether the grant of a request survived the last crash.
    fn is_stored(&self, by: usize, number: u64) -> bool {
        let (session, request) = (self.clients[by].session, RequestId(number));
        self.disk.values().any(|record| match record {
            Record::Grant(grant) => (grant.session, grant.request) == (session, request),
            _ => false,
        })
    }

    /// Sends a request that is not answered. Returns its place, if it waits.
    fn send(
        &mut self,
        by: usize,
        number: u64,
        wanted: Wanted,
        presented: Option<Place>,
        waits: bool,
    ) -> Option<u64> {
        let call = self.call(by, number);
        self.sent.insert((by, number));
        // A place belongs to the names and amounts that were requested.
        let before = self.clients[by].requests.get(&number).filter(|request| request.wanted == wanted);
        let place = before.and_then(|request| request.place);
        let request = Request { wanted: wanted.clone(), token: call.token, place };
        self.clients[by].requests.insert(number, request);
        let want = |(name, resources): (&usize, &u32)| Want {
            kind: Kind::Of(Namespace::Semaphores),
            name: NAMES[*name].0,
            claim: Claim::new(*resources, NAMES[*name].1).unwrap(),
            slot: None,
            is_shared: false,
        };
        let wants: Vec<_> = wanted.iter().map(want).collect();
        let queueing = Queueing { wait_ms: if waits { 1_000_000_000 } else { 0 }, queue_max: u32::MAX };
        let (outcome, told) = self.core.acquire_grant_at(call, &wants, queueing, presented, self.now());
        if presented.is_some() {
            self.count(self.clients[by].session, 1);
        }
        match outcome {
            Outcome::Waiting => {}
            Outcome::Answered(answer) => self.answered(by, number, Ok(answer)),
            Outcome::Refused(_) => self.answered(by, number, Err(())),
        }
        let told = told?;
        if let Some(request) = self.clients[by].requests.get_mut(&number) {
            request.place = Some(told);
        }
        Some(told.id.0)
    }

    fn answered(&mut self, by: usize, number: u64, outcome: Result<Answer, ()>) {
        let client = &mut self.clients[by];
        client.requests.remove(&number);
        if let Ok(Answer::Granted(granted)) = outcome {
            client.grants.push(granted.grant.0);
        }
    }

    /// Takes all answers. Returns the grants that are new to their clients, with what was wanted.
    fn receive(&mut self) -> Vec<(u64, Wanted)> {
        let mut granted = Vec::new();
        for by in 0..self.clients.len() {
            let Some((_, mailbox)) = self.clients[by].connection.clone() else { continue };
            while let Some(message) = mailbox.take() {
                let Message::Answer { token, outcome } = message else { continue };
                let mut requests = self.clients[by].requests.iter();
                let Some((number, request)) = requests.find(|(_, request)| request.token == token) else {
                    continue;
                };
                let (number, wanted) = (*number, request.wanted.clone());
                if let Ok(Answer::Granted(answer)) = &outcome {
                    granted.push((answer.grant.0, wanted));
                }
                self.answered(by, number, outcome.map_err(|_| ()));
            }
        }
        granted
    }
}

fn new_core(sessions: u64) -> Core {
    let core = Core::new(NonZeroU32::new(10).unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    core.start_sessions_after(sessions);
    core
}

/// The ids and resources of the holders or waiters of a name.
fn list(core: &Core, name: &[u8], kind: ListingKind) -> Vec<(u64, u32)> {
    let mut listed = Vec::new();
    let Ok(mut listing) = core.listing(Namespace::Semaphores, name, kind) else { return listed };
    loop {
        let some = core.list(&mut listing);
        if some.is_empty() {
            return listed;
        }
        listed
            .extend(some.iter().map(|(entry, _)| (entry.grant.map_or(0, |grant| grant.0), entry.resources)));
    }
}

/// Its grant waits for the store, so the repetition gets it, though it is for another name.
#[test]
fn a_repetition_with_the_number_of_a_granted_request_is_that_request() {
    let ask = |by, name| Step::Ask { by, wanted: [(name, 1)].into(), waits: true };
    let mut run = Run::new();
    for step in [
        ask(2, 0),
        ask(1, 0),
        ask(0, 1),
        Step::Store(false),
        Step::Release { by: 2, which: 0 },
        Step::Repeat { by: 1, which: 0, proof: Proof::ForOtherNames },
        Step::Store(true),
    ] {
        run.take(&step);
    }
    assert_eq!(run.clients[1].grants, [2], "the first request of client 2 took 1");
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn requests_keep_their_places_over_crashes(history in prop::collection::vec(steps(), 1..80)) {
        let mut run = Run::new();
        for step in &history {
            run.take(step);
        }
    }
}
