//! A core, its disk, and clients that remember what they were told.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Waker;

use signalbox::core::{
    Answer, Batch, Call, Change, Claim, CommitOutcome, Core, DeclarationRecord, Declare, DeclaredState,
    GrantId, Granted, IfExists, Key, Listed, ListingKind, Mailbox, Message, Moment, MonotonicMs, NameHasher,
    Namespace, Origin, Outcome, Queueing, Record, Refusal, Removal, RequestId, RequestIds, Resizing, Session,
    SessionId, SessionKey, Token, UnixSeconds, Want,
};

pub const CONNECTIONS: usize = 3;
pub const NAMES: [&[u8]; 2] = [b"a", b"b"];
const SEMAPHORES: Namespace = Namespace::Semaphores;
/// More slots than fit into one word of bits.
pub const MANY: u32 = 66;
const TTL_MS: u32 = 1_000_000;

#[derive(Clone, Debug)]
pub enum Step {
    Ask {
        by: usize,
        request: Request,
        /// The client needs no answer below this request any more.
        forgets: bool,
    },
    /// Sends one of the last requests of the session again.
    Repeat {
        by: usize,
        back: usize,
    },
    Open {
        by: usize,
    },
    Attach {
        by: usize,
        session: usize,
    },
    Close {
        by: usize,
    },
    /// The connection ends, and a new one comes in its place.
    Leave {
        by: usize,
    },
    Configure {
        wanted: Vec<(usize, u32)>,
    },
    PlainAcquire {
        by: usize,
        resources: u32,
    },
    PlainRelease {
        by: usize,
    },
    Take,
    Settle {
        is_stored: bool,
        is_on_disk: bool,
    },
    /// The batch is stored, and one of those is told who wait for that; what is left of it is settled later.
    SettleOne,
    /// The process ends, and another starts; the batch that was being stored may be on disk.
    Crash {
        is_on_disk: bool,
        /// The next process stores its first mark before it is asked for anything.
        is_mark_stored: bool,
    },
    Time {
        by_ms: u64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Acquire { wants: Vec<(&'static [u8], u32)>, waits: bool },
    Release { grant: usize },
    Declare { name: &'static [u8], capacity: u32, numbered: bool, if_exists: IfExists },
    Resize { name: &'static [u8], resizing: Resizing },
    Remove { name: &'static [u8], removal: Removal },
    Revoke { grant: usize, grace_ms: u32 },
}

/// A request as it was sent first.
#[derive(Clone)]
struct Sent {
    request: Request,
    /// The grant that it is about, as it was chosen.
    grant: GrantId,
    ids: RequestIds,
    /// The highest number that any client had been told of then.
    highest: u64,
    /// Its place among all requests.
    place: u64,
    /// That of the semaphore that it removes, as it was then.
    generation: u64,
    answer: Option<Result<Answer, Refusal>>,
}

/// What the clients know of a session.
#[derive(Default)]
struct Client {
    sent: BTreeMap<u64, Sent>,
    floor: u64,
}

struct Leased {
    id: SessionId,
    key: SessionKey,
    /// Its opener was told that it is there, and nobody asked for its end.
    is_told: bool,
}

/// A grant that a client was told of.
struct Told {
    session: SessionId,
    names: Vec<&'static [u8]>,
    /// The slots of each name; empty where no name has numbered ones.
    slots: Box<[Box<[u16]>]>,
    /// Somebody asked for its end, or it may have come by itself.
    may_be_gone: bool,
}

struct Connection {
    session: Session,
    mailbox: Arc<Mailbox>,
    attached: Option<SessionId>,
}

/// Whom an answer is for.
enum Awaited {
    Request(SessionId, u64),
    Open(usize),
}

pub struct Run {
    core: Core,
    disk: BTreeMap<Key, Record>,
    batch: Option<Batch>,
    /// The batch is on disk, and some of it may be settled.
    is_settling: bool,
    now_ms: u64,
    connections: Vec<Connection>,
    leased: Vec<Leased>,
    clients: BTreeMap<SessionId, Client>,
    told: BTreeMap<GrantId, Told>,
    awaited: BTreeMap<Token, Awaited>,
    configured: Vec<(usize, u32)>,
    last_token: u64,
    /// The highest id or generation that a client was told of.
    highest: u64,
    requests: u64,
    crashes: u64,
    /// A batch came to the disk though it was said to have failed.
    is_disk_ahead: bool,
    /// What was on disk before, and had been deleted from it.
    before_failure: Option<(BTreeMap<Key, Record>, BTreeSet<GrantId>)>,
    /// What the configuration said lately may not be stored yet.
    is_configured: bool,
    /// What the last answered change of a declared semaphore was: its place, generation and capacity.
    changes: BTreeMap<&'static [u8], (u64, DeclaredState)>,
    /// The last request that may have ended a declaration.
    removals: BTreeMap<&'static [u8], u64>,
    /// The last removals at once that were asked for.
    evictions: BTreeMap<&'static [u8], u64>,
    /// Generations whose removal was answered.
    removed: BTreeMap<&'static [u8], u64>,
    /// Grants whose records were deleted.
    deleted: BTreeSet<GrantId>,
}

fn new_core() -> Core {
    Core::new(NonZeroU32::new(10).unwrap(), NameHasher::with_seeds(1, 2, 3, 4))
}

fn in_name(name: &[u8]) -> &'static [u8] {
    NAMES.into_iter().find(|own| *own == name).unwrap()
}

impl Run {
    pub fn new() -> Self {
        let mut run = Self {
            core: new_core(),
            disk: BTreeMap::new(),
            batch: None,
            is_settling: false,
            now_ms: 0,
            connections: Vec::new(),
            leased: Vec::new(),
            clients: BTreeMap::new(),
            told: BTreeMap::new(),
            awaited: BTreeMap::new(),
            configured: Vec::new(),
            last_token: 0,
            highest: 0,
            requests: 0,
            crashes: 0,
            is_disk_ahead: false,
            before_failure: None,
            is_configured: false,
            changes: BTreeMap::new(),
            removals: BTreeMap::new(),
            evictions: BTreeMap::new(),
            removed: BTreeMap::new(),
            deleted: BTreeSet::new(),
        };
        run.start(true);
        run
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.now_ms), unix: UnixSeconds(self.now_ms / 1000) }
    }

    fn token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    /// Starts a process from what is on disk.
    fn start(&mut self, is_mark_stored: bool) {
        self.core = new_core();
        self.core.start_sessions_after(self.crashes * 1_000_000);
        for record in self.disk.values() {
            self.core.restore(record.clone(), self.now()).unwrap();
        }
        self.core.keep_journal(Waker::noop().clone(), self.now());
        self.configure();
        self.connections = (0..CONNECTIONS).map(|_| self.connect()).collect();
        if is_mark_stored {
            self.take();
            self.settle(true, true);
        }
    }

    fn connect(&mut self) -> Connection {
        let connection =
            Connection { session: self.core.open_session(), mailbox: Arc::default(), attached: None };
        self.core.join(connection.session.id(), None, &connection.mailbox);
        connection
    }

    fn configure(&self) {
        let declare = |(name, capacity): &(usize, u32)| Declare {
            name: NAMES[*name],
            capacity: *capacity,
            numbered: false,
            label: b"",
        };
        let wanted: Vec<_> = self.configured.iter().map(declare).collect();
        self.core.declare_configured(&wanted, self.now());
    }

    /// Whose the requests of a connection are.
    fn acting(&self, by: usize) -> SessionId {
        self.connections[by].attached.unwrap_or(self.connections[by].session.id().session())
    }

    fn is_leased(&self, session: SessionId) -> bool {
        self.leased.iter().any(|leased| leased.id == session)
    }

    /// Takes a step, and looks whether all is as it must be.
    pub fn step(&mut self, step: &Step) {
        let removing = self.in_use_of_removing();
        self.take_step(step);
        self.read();
        self.check();
        if !matches!(step, Step::Crash { .. }) {
            let after = self.in_use_of_removing();
            for (name, in_use) in removing {
                let grows = after.get(name).is_some_and(|after| *after > in_use);
                assert!(!grows, "{} is granted and was to be removed", name.escape_ascii());
            }
        }
    }

    fn in_use_of_removing(&self) -> BTreeMap<&'static [u8], u32> {
        let mut declared = self.core.list_declared(&mut self.core.declared(b""));
        declared.retain(|declared| declared.record.removing);
        declared.into_iter().map(|declared| (in_name(&declared.record.name), declared.in_use)).collect()
    }

    fn take_step(&mut self, step: &Step) {
        match *step {
            Step::Ask { by, ref request, forgets } => self.ask(by, request, forgets),
            Step::Repeat { by, back } => {
                let session = self.acting(by);
                let client = self.clients.entry(session).or_default();
                let sent: Vec<_> = client.sent.range(client.floor..).map(|(id, _)| *id).collect();
                if let Some(id) = sent.get(sent.len().wrapping_sub(1 + back % 8)) {
                    self.send(by, *id);
                }
            }
            Step::Open { by } => {
                let (token, key) = (self.token(), SessionKey([self.leased.len() as u8 + 1; 16]));
                let id = self.connections[by].session.id();
                let asked = self.core.open_leased(id, key, TTL_MS, b"leased", token, self.now());
                assert_eq!(asked, Outcome::Waiting, "a session is stored before it is told");
                // Sessions are counted one by one.
                let id = SessionId::from_number(self.core.open_session().id().number() - 1).unwrap();
                self.awaited.insert(token, Awaited::Open(self.leased.len()));
                self.leased.push(Leased { id, key, is_told: false });
                self.connections[by].attached = Some(id);
            }
            Step::Attach { by, session } => {
                let told: Vec<_> = self.leased.iter().filter(|leased| leased.is_told).collect();
                let Some(leased) = told.get(session % told.len().max(1)) else { return };
                let (id, key) = (leased.id, leased.key);
                self.core.attach(id, self.connections[by].session.id(), &key, self.now()).unwrap();
                for connection in &mut self.connections {
                    // Whose session it was, has none now.
                    connection.attached.take_if(|attached| *attached == id);
                }
                self.connections[by].attached = Some(id);
            }
            Step::Close { by } => {
                let token = self.token();
                let connection = self.connections[by].session.id();
                if let Some(session) = self.connections[by].attached.take() {
                    self.excuse(|told| told.session == session);
                    self.forget(session);
                    let asked = self.core.close_leased(connection, token, self.now());
                    assert_ne!(asked, Outcome::Answered(Answer::Done), "it is told when it is stored");
                }
            }
            Step::Leave { by } => self.leave(by),
            Step::Configure { ref wanted } => {
                self.requests += 1;
                for name in NAMES {
                    self.removals.insert(name, self.requests);
                }
                self.configured = wanted.clone();
                self.is_configured = true;
                self.configure();
            }
            Step::PlainAcquire { by, resources } => {
                let (claim, now) = (Claim::new(resources, 3).unwrap(), self.now().unix);
                let session = &mut self.connections[by].session;
                let _ = self.core.acquire(SEMAPHORES, NAMES[0], claim, session, now);
            }
            Step::PlainRelease { by } => {
                let now = self.now().unix;
                let session = &mut self.connections[by].session;
                let _ = self.core.release(SEMAPHORES, NAMES[0], 1, session, now);
            }
            Step::Take => self.take(),
            Step::Settle { is_stored, is_on_disk } => self.settle(is_stored, is_on_disk),
            Step::SettleOne => self.settle_step(true, true, 1),
            Step::Crash { is_on_disk, is_mark_stored } => self.crash(is_on_disk, is_mark_stored),
            Step::Time { by_ms } => {
                self.now_ms += by_ms;
                let now = self.now();
                let mailbox_of = |session| {
                    let mut connections = self.connections.iter();
                    let connection = connections.find(|connection| connection.session.id() == session)?;
                    Some(Arc::clone(&connection.mailbox))
                };
                while self.core.expire(now) || self.core.evict(now, mailbox_of) {}
            }
        }
    }

    fn leave(&mut self, by: usize) {
        let now = self.now();
        let id = self.connections[by].session.id();
        while self.core.leave(id, now) {}
        self.excuse(|told| told.session == id.session());
        let new = self.connect();
        let left = std::mem::replace(&mut self.connections[by], new);
        let mut ending = self.core.end_session(left.session);
        while ending.step(1, now.unix) {}
    }

    fn excuse(&mut self, is_meant: impl Fn(&Told) -> bool) {
        for told in self.told.values_mut().filter(|told| is_meant(told)) {
            told.may_be_gone = true;
        }
    }

    fn forget(&mut self, session: SessionId) {
        for leased in self.leased.iter_mut().filter(|leased| leased.id == session) {
            leased.is_told = false;
        }
    }

    fn ask(&mut self, by: usize, request: &Request, forgets: bool) {
        let session = self.acting(by);
        let client = self.clients.entry(session).or_default();
        let own = client.sent.last_key_value().map_or(1, |(id, _)| id + 1);
        if forgets {
            client.floor = own;
        }
        let ids = RequestIds { own: RequestId(own), lowest_unanswered: RequestId(client.floor.max(1)) };
        self.requests += 1;
        let grant = match *request {
            Request::Release { grant } | Request::Revoke { grant, .. } if !self.told.is_empty() => {
                *self.told.keys().rev().nth(grant % self.told.len().min(6)).unwrap()
            }
            _ => GrantId(0),
        };
        let (highest, place) = (self.highest, self.requests);
        let generation = match request {
            Request::Remove { name, .. } => self.declared().get(name).map_or(0, |record| record.generation),
            _ => 0,
        };
        let sent = Sent { request: request.clone(), grant, ids, highest, place, generation, answer: None };
        self.clients.get_mut(&session).unwrap().sent.insert(own, sent);
        self.send(by, own);
    }

    fn send(&mut self, by: usize, own: u64) {
        let (session, token, now) = (self.acting(by), self.token(), self.now());
        let client = &self.clients[&session];
        let (sent, floor) = (client.sent[&own].clone(), client.floor.max(1));
        let ids = RequestIds {
            own: RequestId(own),
            lowest_unanswered: RequestId(floor).max(sent.ids.lowest_unanswered).min(RequestId(own)),
        };
        let call = Call { connection: self.connections[by].session.id(), ids, token };
        self.awaited.insert(token, Awaited::Request(session, own));
        let asked = match sent.request {
            Request::Acquire { ref wants, waits } => {
                let claim = Claim::new(1, 3).unwrap();
                let want = |(name, resources): &(&'static [u8], u32)| Want {
                    namespace: SEMAPHORES,
                    name,
                    claim: Claim::new(*resources, 3.max(*resources)).unwrap_or(claim),
                };
                let wants: Vec<_> = wants.iter().map(want).collect();
                let queueing = Queueing { wait_ms: if waits { 2000 } else { 0 }, queue_max: u32::MAX };
                self.core.acquire_grant(call, &wants, queueing, now)
            }
            Request::Release { .. } => {
                if let Some(told) = self.told.get_mut(&sent.grant).filter(|told| told.session == session) {
                    told.may_be_gone = true;
                }
                self.core.release_grant(call, sent.grant, now)
            }
            Request::Declare { name, capacity, numbered, if_exists } => {
                let declare = Declare { name, capacity, numbered, label: b"" };
                self.core.declare(call, &[declare], if_exists, now)
            }
            Request::Resize { name, resizing } => self.core.resize(call, name, resizing, None, now),
            Request::Remove { name, removal } => {
                self.removals.insert(name, self.requests);
                if let Removal::Now { .. } = removal {
                    self.excuse(|told| told.names.contains(&name));
                    self.evictions.insert(name, self.requests);
                }
                self.core.remove(call, name, removal, None, now)
            }
            Request::Revoke { grace_ms, .. } => {
                if let Some(told) = self.told.get_mut(&sent.grant) {
                    told.may_be_gone = true;
                }
                self.core.revoke_grant(call, sent.grant, grace_ms, now)
            }
        };
        match asked {
            Outcome::Waiting => {}
            Outcome::Answered(answer) => self.answered(token, Ok(answer)),
            Outcome::Refused(refusal) => self.answered(token, Err(refusal)),
        }
    }

    // The disk.

    fn take(&mut self) {
        if self.batch.is_none() {
            self.batch = self.core.take_batch(usize::MAX);
        }
        assert!(self.core.take_batch(usize::MAX).is_none(), "one batch at a time");
    }

    fn write(&mut self) {
        let Some(batch) = &self.batch else { return };
        for change in batch.changes.iter() {
            match change {
                Change::Put(record) => {
                    if let Record::Grant(grant) = record {
                        assert!(
                            !self.deleted.contains(&grant.grant),
                            "what was given back is not held again"
                        );
                    }
                    self.disk.insert(record.key(), record.clone());
                }
                Change::Delete(key) => {
                    if let (Key::Grant(grant), Some(_)) = (key, self.disk.remove(key)) {
                        self.deleted.insert(*grant);
                    }
                }
            }
        }
    }

    fn settle(&mut self, is_stored: bool, is_on_disk: bool) {
        self.settle_step(is_stored, is_on_disk, usize::MAX);
    }

    fn settle_step(&mut self, is_stored: bool, is_on_disk: bool, step: usize) {
        let Some(batch) = self.batch.clone() else { return };
        let is_stored = is_stored || self.is_settling;
        if (is_stored || is_on_disk) && !self.is_settling {
            // What was said to have failed is not on disk any more when something else comes there.
            if let Some(before) = self.before_failure.take() {
                (self.disk, self.deleted) = before;
            }
            if !is_stored {
                self.before_failure = Some((self.disk.clone(), self.deleted.clone()));
            }
            self.write();
        }
        self.is_settling = self.core.complete(
            &batch,
            if is_stored { CommitOutcome::Stored } else { CommitOutcome::RolledBack },
            step,
            self.now(),
        );
        if self.is_settling {
            self.read();
            return;
        }
        self.batch = None;
        self.is_disk_ahead = !is_stored && (is_on_disk || self.is_disk_ahead);
        self.is_configured &= !self.core.is_stored();
        if !is_stored && !self.is_disk_ahead && !self.is_configured {
            self.check_taken_back();
        }
        self.read();
    }

    /// Stores all that there is to store.
    pub fn store_all(&mut self) {
        for _ in 0..10 {
            self.take();
            self.settle(true, true);
        }
        assert!(self.core.is_stored());
        self.check();
        for key in self.disk.keys() {
            if let Key::Grant(_) | Key::Answer(..) = key {
                let session = match (key, &self.disk[key]) {
                    (_, Record::Grant(grant)) => grant.session,
                    (Key::Answer(session, _), _) => *session,
                    _ => unreachable!(),
                };
                assert!(self.disk.contains_key(&Key::Session(session)), "{key:?} is of nobody");
            }
        }
        let declared = self.declared();
        for name in NAMES {
            let on_disk = self.on_disk(name);
            assert_eq!(declared.get(name), on_disk.as_ref(), "what is stored is what is declared");
        }
        for session in self.clients.keys().filter(|session| self.is_leased(**session)) {
            let is_open = self.leased.iter().any(|leased| leased.id == *session && leased.is_told);
            assert!(!is_open || self.disk.contains_key(&Key::Session(*session)));
        }
    }

    fn on_disk(&self, name: &[u8]) -> Option<DeclarationRecord> {
        match self.disk.get(&Key::Declaration(name.into()))? {
            Record::Declaration(record) => Some(record.clone()),
            _ => None,
        }
    }

    fn declared(&self) -> BTreeMap<&'static [u8], DeclarationRecord> {
        let declared = self.core.list_declared(&mut self.core.declared(b""));
        declared.into_iter().map(|declared| (in_name(&declared.record.name), declared.record)).collect()
    }

    /// After a failure, what is declared is what is stored, but for what the configuration says.
    fn check_taken_back(&self) {
        let declared = self.declared();
        for name in NAMES {
            let (found, stored) = (declared.get(name), self.on_disk(name));
            let is_configured = |record: &DeclarationRecord| record.origin == Origin::Configuration;
            if found.is_some_and(is_configured) || stored.as_ref().is_some_and(is_configured) {
                continue;
            }
            // A removal may have come to its end meanwhile.
            if found.is_none() && stored.as_ref().is_some_and(|stored| stored.removing) {
                continue;
            }
            assert_eq!(found, stored.as_ref(), "what could not be stored is taken back");
        }
    }

    fn crash(&mut self, is_on_disk: bool, is_mark_stored: bool) {
        if is_on_disk && !self.is_settling {
            if let Some(before) = self.before_failure.take() {
                (self.disk, self.deleted) = before;
            }
            self.write();
        }
        self.before_failure = None;
        (self.batch, self.is_settling) = (None, false);
        self.crashes += 1;
        self.awaited.clear();
        let leased: Vec<_> = self.leased.iter().map(|leased| leased.id).collect();
        self.excuse(|told| !leased.contains(&told.session));
        self.clients.retain(|session, _| leased.contains(session));
        // A session whose opener was not told yet may be there or not; nobody has its key.
        self.is_disk_ahead = false;
        self.start(is_mark_stored);
    }

    // What clients are told.

    fn read(&mut self) {
        for by in 0..CONNECTIONS {
            let mailbox = Arc::clone(&self.connections[by].mailbox);
            while let Some(message) = mailbox.take() {
                match message {
                    Message::Answer { token, outcome } => self.answered(token, outcome),
                    Message::Close => {
                        self.leave(by);
                        break;
                    }
                    _ => {}
                }
            }
        }
    }

    fn answered(&mut self, token: Token, outcome: Result<Answer, Refusal>) {
        match self.awaited.remove(&token) {
            Some(Awaited::Request(session, own)) => self.answered_request(session, own, outcome),
            Some(Awaited::Open(place)) => match outcome {
                Ok(Answer::Opened(opened)) => {
                    assert_eq!(opened.session, self.leased[place].id);
                    assert!(
                        self.disk.contains_key(&Key::Session(opened.session)),
                        "told before it is stored"
                    );
                    self.leased[place].is_told = true;
                }
                _ => {
                    let id = self.leased[place].id;
                    for connection in &mut self.connections {
                        connection.attached.take_if(|attached| *attached == id);
                    }
                }
            },
            None => {}
        }
    }

    fn answered_request(&mut self, session: SessionId, own: u64, outcome: Result<Answer, Refusal>) {
        let is_leased = self.is_leased(session);
        let Some(sent) = self.clients.get_mut(&session).and_then(|client| client.sent.get_mut(&own)) else {
            return;
        };
        let Ok(answer) = outcome else { return };
        let sent_first = sent.clone();
        if let Some(Ok(before)) = &sent.answer {
            return Self::check_repeated(before, &answer, &self.told);
        }
        sent.answer = Some(Ok(answer.clone()));
        match &answer {
            Answer::Granted(granted) => self.granted(session, &sent_first, granted, is_leased),
            Answer::Declared(settled) => self.settled(&sent_first, settled),
            _ => {}
        }
    }

    fn check_repeated(before: &Answer, answer: &Answer, told: &BTreeMap<GrantId, Told>) {
        match (before, answer) {
            (Answer::Granted(before), Answer::Granted(granted)) => {
                // One that was given back may be forgotten.
                if !told[&before.grant].may_be_gone {
                    let granted = Granted { ttl_left_ms: before.ttl_left_ms, ..granted.clone() };
                    assert_eq!(*before, granted, "a repeated request gets what it got");
                }
            }
            (before, answer) => assert_eq!(before, answer, "a repeated request gets what it got"),
        }
    }

    fn granted(&mut self, session: SessionId, sent: &Sent, granted: &Granted, is_leased: bool) {
        let id = granted.grant;
        assert!(id.0 > sent.highest, "{id} was given before");
        assert!(!self.told.contains_key(&id), "{id} is given twice");
        if is_leased {
            let Some(Record::Grant(record)) = self.disk.get(&Key::Grant(id)) else {
                panic!("{id} is told before it is stored")
            };
            assert_eq!((record.session, record.request), (session, sent.ids.own));
            let slots: usize = record.parts.iter().map(|part| part.slots.len()).sum();
            assert_eq!(slots, granted.slots.iter().map(|slots| slots.len()).sum::<usize>());
        }
        let Request::Acquire { wants, .. } = &sent.request else { panic!("{:?}", sent.request) };
        let names: Vec<_> = wants.iter().map(|(name, _)| *name).collect();
        let is_evicted = |name: &&[u8]| self.evictions.get(*name).is_some_and(|place| *place >= sent.place);
        let may_be_gone = names.iter().any(is_evicted);
        self.told.insert(id, Told { session, names, slots: granted.slots.clone(), may_be_gone });
        self.highest = self.highest.max(id.0);
    }

    fn settled(&mut self, sent: &Sent, settled: &[DeclaredState]) {
        if let Request::Remove { name, .. } = sent.request {
            let removed = self.removed.entry(name).or_default();
            *removed = sent.generation.max(*removed);
        }
        let (Request::Declare { name, .. } | Request::Resize { name, .. }) = sent.request else { return };
        let [settled] = settled else { panic!("{settled:?}") };
        let is_later = self.changes.get(name).is_none_or(|(place, _)| *place < sent.place);
        if is_later {
            self.changes.insert(name, (sent.place, *settled));
        }
        let is_removed = self.removals.get(name).is_some_and(|place| *place >= sent.place);
        let stored = self.on_disk(name);
        assert!(
            is_removed || stored.is_some_and(|stored| stored.generation >= settled.generation),
            "told before it is stored"
        );
        self.highest = self.highest.max(settled.generation);
    }

    // What must hold.

    fn check(&self) {
        self.core.check_ledger().unwrap();
        let mut failures = Vec::new();
        let mut check = self.core.check(SEMAPHORES);
        while check.step(64, &mut failures) {}
        assert_eq!(failures, []);
        for (id, told) in self.told.iter().filter(|(_, told)| !told.may_be_gone) {
            let held = self.core.verify(*id, self.now());
            let held = held.unwrap_or_else(|refusal| panic!("{id} was told and is not held: {refusal:?}"));
            assert_eq!(held.session, told.session);
        }
        let holders = NAMES.map(|name| (name, self.holders(name)));
        for (name, holders) in &holders {
            self.check_slots(name, holders);
        }
        let declared = self.declared();
        for (name, (place, settled)) in &self.changes {
            let is_removed = self.removals.get(name).is_some_and(|removal| removal >= place);
            match declared.get(name) {
                Some(record) => {
                    assert!(record.generation >= settled.generation || is_removed, "generations grow");
                    if record.generation == settled.generation {
                        assert_eq!(record.capacity, settled.capacity);
                    }
                }
                None => assert!(is_removed, "{} was declared", name.escape_ascii()),
            }
        }
        for (name, generation) in &self.removed {
            let stays = |record: &DeclarationRecord| !record.removing && record.generation <= *generation;
            assert!(!declared.get(name).is_some_and(stays), "{} was removed", name.escape_ascii());
        }
        let mut requests = BTreeSet::new();
        for record in self.disk.values() {
            if let Record::Grant(grant) = record {
                let is_new = requests.insert((grant.session, grant.request));
                assert!(is_new, "one request was granted twice");
            }
        }
        if self.core.is_stored() {
            self.check_settled();
            // What is on disk of a batch that was said to have failed is deleted by the next one.
            if self.before_failure.is_none() {
                self.check_stored(&holders);
            }
        }
    }

    /// When everything is stored, the disk has the grants and sessions that the ledger has: no others come back.
    fn check_stored(&self, holders: &[(&'static [u8], Vec<Listed>)]) {
        let mut held = BTreeSet::new();
        for (name, holders) in holders {
            for holder in holders.iter().filter(|holder| self.is_leased(holder.session)) {
                // A waiter for several names is listed with those that it has so far, and is not stored.
                if holder.grant.is_none_or(|grant| self.core.verify(grant, self.now()).is_err()) {
                    continue;
                }
                held.insert((holder.grant, holder.session, *name, holder.resources, &holder.slots));
            }
        }
        let mut stored = BTreeSet::new();
        for record in self.disk.values() {
            let Record::Grant(grant) = record else { continue };
            for part in &grant.parts {
                let name = in_name(&part.name);
                stored.insert((Some(grant.grant), grant.session, name, part.resources, &part.slots));
            }
        }
        assert_eq!(stored, held, "the grants on disk are those that are held");
        let sessions = self.disk.keys().filter(|key| matches!(key, Key::Session(_))).count();
        assert_eq!(sessions as u64, self.core.ledger_stats().sessions, "sessions on disk");
    }

    fn holders(&self, name: &[u8]) -> Vec<Listed> {
        let Ok(mut listing) = self.core.listing(SEMAPHORES, name, ListingKind::Holders) else {
            return Vec::new();
        };
        let mut holders = Vec::new();
        loop {
            let some = self.core.list(&mut listing);
            if some.is_empty() {
                return holders;
            }
            holders.extend(some);
        }
    }

    /// What waits in vain is told so when all is stored, and what nobody holds is gone.
    fn check_settled(&self) {
        for declared in self.core.list_declared(&mut self.core.declared(b"")) {
            let record = &declared.record;
            let name = record.name.escape_ascii();
            assert!(!record.removing || declared.in_use > 0, "{name} is removed and stays");
            assert!(!record.removing || declared.waiting == 0, "{name} is removed and waited for");
            let mut listing = self.core.listing(SEMAPHORES, &record.name, ListingKind::Waiters).unwrap();
            for waiter in self.core.list(&mut listing) {
                assert!(waiter.resources <= record.capacity, "{name} is waited for in vain");
            }
        }
    }

    /// No slot is held twice, and a leased session has the slots that it was told of.
    fn check_slots(&self, name: &[u8], holders: &[Listed]) {
        let mut slots = BTreeSet::new();
        for holder in holders {
            for slot in &holder.slots {
                assert!(slots.insert(*slot), "slot {slot} is held twice");
            }
            let told = holder.grant.and_then(|grant| self.told.get(&grant));
            let Some(told) = told.filter(|told| self.is_leased(told.session)) else { continue };
            let place = told.names.iter().position(|own| *own == name).unwrap();
            let told = told.slots.get(place).map_or(&[][..], |slots| slots);
            assert_eq!(*holder.slots, *told, "the slots of grant {:?}", holder.grant);
        }
    }
}
