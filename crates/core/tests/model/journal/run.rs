//! A core, its disk, and clients that remember the answers that they received.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Waker;

use signalbox_core::{
    Answer, Batch, BatchLimit, Call, Change, Claim, CommitOutcome, Core, DeclarationRecord,
    DeclaredSemaphore, Granted, Key, Kind, Listed, ListingKind, Mailbox, Message, Moment, MonotonicMs,
    NameHasher, Outcome, Queueing, Record, Service, Session, Token, Want,
};
use signalbox_model::{Declaration, Operation, Revocation, UnixSeconds};
use signalbox_model::{
    DeclaredState, GrantId, IfExists, Namespace, Refusal, Removal, RequestId, RequestIds, Resizing,
    ServiceChange, SessionId, SessionKey,
};

use crate::{Changes, declaring, removing, revoking};

pub const CONNECTIONS: usize = 3;
pub const NAMES: [&[u8]; 2] = [b"a", b"b"];
const SEMAPHORES: Namespace = Namespace::Semaphores;
/// More slots than one word of the slot bitmap has.
pub const MANY: u32 = 66;
const TTL_MS: u32 = 1_000_000;

#[derive(Clone, Debug)]
pub enum Step {
    Ask {
        by: usize,
        request: Request,
        /// The client no longer needs the answers of earlier requests.
        drops_answers: bool,
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
    /// The connection ends, and a new one replaces it.
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
    Complete {
        is_stored: bool,
        is_on_disk: bool,
    },
    /// The batch is stored and one of its requests is answered; the rest of it is completed later.
    CompleteOne,
    /// The process ends and another one starts. The batch that was being stored may be on disk.
    Crash {
        is_on_disk: bool,
        /// The next process stores its first mark before it receives requests.
        is_mark_stored: bool,
    },
    Time {
        by_ms: u64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Acquire { wants: Vec<(&'static [u8], u32)>, slot: Option<u16>, waits: bool },
    Release { grant: usize },
    Declare { name: &'static [u8], capacity: u32, numbered: bool, if_exists: IfExists },
    Resize { name: &'static [u8], resizing: Resizing },
    ChangeService { name: &'static [u8], change: ServiceChange },
    Remove { name: &'static [u8], removal: Removal },
    Revoke { grant: usize, grace_ms: u32 },
}

/// A request as it was first sent.
#[derive(Clone)]
struct Sent {
    request: Request,
    /// The grant that it names.
    grant: GrantId,
    ids: RequestIds,
    /// The highest id that any client had received when it was sent.
    highest: u64,
    /// Its position among all requests.
    position: u64,
    /// The generation of the semaphore that it removes, when it was sent.
    generation: u64,
    answer: Option<Result<Answer, Refusal>>,
}

/// The knowledge of the clients about a session.
#[derive(Default)]
struct Client {
    sent: BTreeMap<u64, Sent>,
    floor: u64,
}

struct Leased {
    id: SessionId,
    key: SessionKey,
    /// The client that opened it was answered, and no request has ended it.
    is_acknowledged: bool,
}

/// A grant that was acknowledged to a client.
struct AcknowledgedGrant {
    session: SessionId,
    names: Vec<&'static [u8]>,
    /// The slots of each name; empty if no name has numbered slots.
    slots: Box<[Box<[u16]>]>,
    /// A request or an event that may have ended it was sent.
    may_have_ended: bool,
}

struct Connection {
    session: Session,
    mailbox: Arc<Mailbox>,
    attached: Option<SessionId>,
}

/// The parts of a declared semaphore that were out of service before a step.
struct OutOfService {
    paused: bool,
    in_use: u32,
    slots_out: Box<[u16]>,
    /// The slots that grants held.
    held: BTreeSet<u16>,
}

/// Whether a semaphore is in the state that a change leaves.
fn is_made(change: ServiceChange, record: &DeclarationRecord) -> bool {
    let Service { paused, slots_out } = &record.service;
    match change {
        ServiceChange::Pause => *paused,
        ServiceChange::Resume => !paused,
        ServiceChange::SlotOut(slot) => slots_out.contains(&slot),
        ServiceChange::SlotIn(slot) => !slots_out.contains(&slot),
    }
}

/// The request that an answer belongs to.
enum Awaited {
    Request(SessionId, u64),
    Open(usize),
}

pub struct Run {
    core: Core,
    disk: BTreeMap<Key, Record>,
    batch: Option<Batch>,
    /// The batch is on disk, and a part of it may be completed.
    is_completing: bool,
    now_ms: u64,
    connections: Vec<Connection>,
    leased: Vec<Leased>,
    clients: BTreeMap<SessionId, Client>,
    acknowledged: BTreeMap<GrantId, AcknowledgedGrant>,
    awaited: BTreeMap<Token, Awaited>,
    configured: Vec<(usize, u32)>,
    last_token: u64,
    /// The highest id or generation that a client received.
    highest: u64,
    requests: u64,
    crashes: u64,
    /// The changes of the batch that failed last, which must be the next ones, and the grants that were deleted before it.
    failed: Option<(Arc<Vec<Change>>, BTreeSet<GrantId>)>,
    /// The last answered change of each declared semaphore: its position, generation and capacity, and what it took out of
    /// service or put back.
    changes: BTreeMap<&'static [u8], (u64, DeclaredState, Option<ServiceChange>)>,
    /// The last request that may have ended a declaration.
    removals: BTreeMap<&'static [u8], u64>,
    /// The last requested removals at once.
    evictions: BTreeMap<&'static [u8], u64>,
    /// Generations whose removal was answered.
    removed: BTreeMap<&'static [u8], u64>,
    /// Grants whose records were deleted.
    deleted: BTreeSet<GrantId>,
}

fn new_core() -> Core {
    Core::new(NonZeroU32::new(10).unwrap(), NameHasher::with_seeds(1, 2, 3, 4))
}

fn static_name(name: &[u8]) -> &'static [u8] {
    NAMES.into_iter().find(|own| *own == name).unwrap()
}

impl Run {
    pub fn new() -> Self {
        let mut run = Self {
            core: new_core(),
            disk: BTreeMap::new(),
            batch: None,
            is_completing: false,
            now_ms: 0,
            connections: Vec::new(),
            leased: Vec::new(),
            clients: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            awaited: BTreeMap::new(),
            configured: Vec::new(),
            last_token: 0,
            highest: 0,
            requests: 0,
            crashes: 0,
            failed: None,
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
        self.core.keep_journal(Waker::noop().clone(), None);
        self.core.begin_serving(self.now().monotonic, self.now());
        self.configure();
        self.connections = (0..CONNECTIONS).map(|_| self.connect()).collect();
        if is_mark_stored {
            self.take();
            self.complete(true, true);
        }
    }

    fn connect(&mut self) -> Connection {
        let connection =
            Connection { session: self.core.open_session(), mailbox: Arc::default(), attached: None };
        self.core.join(connection.session.id(), None, &connection.mailbox);
        connection
    }

    fn configure(&self) {
        let declare = |(name, capacity): &(usize, u32)| Declaration {
            name: NAMES[*name],
            capacity: *capacity,
            numbered: false,
            label: b"",
        };
        let wanted: Vec<_> = self.configured.iter().map(declare).collect();
        self.core.declare_configured(&wanted, self.now());
    }

    /// The session that the requests of a connection belong to.
    fn acting(&self, by: usize) -> SessionId {
        self.connections[by].attached.unwrap_or(self.connections[by].session.id().session())
    }

    fn is_leased(&self, session: SessionId) -> bool {
        self.leased.iter().any(|leased| leased.id == session)
    }

    /// Takes a step and checks the invariants.
    pub fn step(&mut self, step: &Step) {
        let (removing, out) = (self.in_use_of_removing(), self.out_of_service());
        self.take_step(step);
        self.read();
        self.check();
        if !matches!(step, Step::Crash { .. }) {
            let after = self.in_use_of_removing();
            for (name, in_use) in removing {
                let grows = after.get(name).is_some_and(|after| *after > in_use);
                assert!(!grows, "{} is granted while it is being removed", name.escape_ascii());
            }
            for (name, before) in out {
                self.check_service(name, &before);
            }
        }
    }

    /// The parts of each declared semaphore that are out of service; empty while changes wait for the store.
    fn out_of_service(&self) -> BTreeMap<&'static [u8], OutOfService> {
        if !self.core.is_stored() {
            return BTreeMap::new();
        }
        let out = |declared: &DeclaredSemaphore| {
            let name = static_name(&declared.record.name);
            let Service { paused, slots_out } = declared.record.service.clone();
            (name, OutOfService { paused, in_use: declared.in_use, slots_out, held: self.held_slots(name) })
        };
        self.core.list_declared(&mut self.core.declared(b"")).iter().map(out).collect()
    }

    fn held_slots(&self, name: &[u8]) -> BTreeSet<u16> {
        self.holders(name).iter().flat_map(|(holder, _)| holder.slots.iter().copied()).collect()
    }

    /// Checks that a step granted nothing that was out of service before it: a change takes effect when it is stored.
    fn check_service(&self, name: &'static [u8], before: &OutOfService) {
        let held = self.held_slots(name);
        let is_taken = |slot: &&u16| held.contains(slot) && !before.held.contains(slot);
        let taken = before.slots_out.iter().find(is_taken);
        assert_eq!(taken, None, "a slot of {} is granted while it is out of service", name.escape_ascii());
        let after = self.core.declared_semaphore(name);
        if before.paused
            && let Some(after) = after.filter(|after| after.record.service.paused)
        {
            assert!(after.in_use <= before.in_use, "{} is granted while it is paused", name.escape_ascii());
        }
    }

    fn in_use_of_removing(&self) -> BTreeMap<&'static [u8], u32> {
        let mut declared = self.core.list_declared(&mut self.core.declared(b""));
        declared.retain(|declared| declared.record.removing);
        declared.into_iter().map(|declared| (static_name(&declared.record.name), declared.in_use)).collect()
    }

    fn take_step(&mut self, step: &Step) {
        match *step {
            Step::Ask { by, ref request, drops_answers } => self.ask(by, request, drops_answers),
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
                let outcome = self.core.open_leased(id, key, TTL_MS, b"leased", token, self.now());
                if outcome == Outcome::Refused(Refusal::NotStored) {
                    return;
                }
                assert_eq!(outcome, Outcome::Waiting, "a session is stored before it is acknowledged");
                // Session ids are consecutive.
                let id = SessionId::from_number(self.core.open_session().id().number() - 1).unwrap();
                self.awaited.insert(token, Awaited::Open(self.leased.len()));
                self.leased.push(Leased { id, key, is_acknowledged: false });
                self.connections[by].attached = Some(id);
            }
            Step::Attach { by, session } => {
                let acknowledged: Vec<_> =
                    self.leased.iter().filter(|leased| leased.is_acknowledged).collect();
                let Some(leased) = acknowledged.get(session % acknowledged.len().max(1)) else { return };
                let (id, key) = (leased.id, leased.key);
                let lease = self.core.attach(id, self.connections[by].session.id(), &key, 0).unwrap();
                lease.renew(self.now().monotonic);
                for connection in &mut self.connections {
                    // The connection that was attached loses the session.
                    connection.attached.take_if(|attached| *attached == id);
                }
                self.connections[by].attached = Some(id);
            }
            Step::Close { by } => {
                let token = self.token();
                let connection = self.connections[by].session.id();
                if let Some(session) = self.connections[by].attached.take() {
                    self.allow_end(|grant| grant.session == session);
                    self.forget(session);
                    let outcome = self.core.close_leased(connection, token, self.now());
                    assert_ne!(
                        outcome,
                        Outcome::Answered(Answer::Done),
                        "a close is answered after it is stored"
                    );
                }
            }
            Step::Leave { by } => self.leave(by),
            Step::Configure { ref wanted } => {
                self.requests += 1;
                for name in NAMES {
                    self.removals.insert(name, self.requests);
                }
                self.configured = wanted.clone();
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
            Step::Complete { is_stored, is_on_disk } => self.complete(is_stored, is_on_disk),
            Step::CompleteOne => self.complete_step(true, true, 1),
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
        self.allow_end(|grant| grant.session == id.session());
        let new = self.connect();
        let left = std::mem::replace(&mut self.connections[by], new);
        let mut ending = self.core.end_session(left.session);
        while ending.step(1, now.unix) {}
    }

    fn allow_end(&mut self, is_meant: impl Fn(&AcknowledgedGrant) -> bool) {
        for grant in self.acknowledged.values_mut().filter(|grant| is_meant(grant)) {
            grant.may_have_ended = true;
        }
    }

    fn forget(&mut self, session: SessionId) {
        for leased in self.leased.iter_mut().filter(|leased| leased.id == session) {
            leased.is_acknowledged = false;
        }
    }

    fn ask(&mut self, by: usize, request: &Request, drops_answers: bool) {
        let session = self.acting(by);
        let client = self.clients.entry(session).or_default();
        let own = client.sent.last_key_value().map_or(1, |(id, _)| id + 1);
        if drops_answers {
            client.floor = own;
        }
        let ids = RequestIds { own: RequestId(own), lowest_unanswered: RequestId(client.floor.max(1)) };
        self.requests += 1;
        let grant = match *request {
            Request::Release { grant } | Request::Revoke { grant, .. } if !self.acknowledged.is_empty() => {
                *self.acknowledged.keys().rev().nth(grant % self.acknowledged.len().min(6)).unwrap()
            }
            _ => GrantId(0),
        };
        let (highest, position) = (self.highest, self.requests);
        let generation = match request {
            Request::Remove { name, .. } => self.declared().get(name).map_or(0, |record| record.generation),
            _ => 0,
        };
        let sent = Sent { request: request.clone(), grant, ids, highest, position, generation, answer: None };
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
        let outcome = match sent.request {
            Request::Acquire { ref wants, slot, waits } => {
                let claim = Claim::new(1, 3).unwrap();
                let of_slot = Claim::of_existing(NonZeroU32::MIN);
                let want = |(name, resources): &(&'static [u8], u32)| Want {
                    kind: Kind::Of(SEMAPHORES),
                    name,
                    claim: match slot {
                        Some(_) => of_slot,
                        None => Claim::new(*resources, 3.max(*resources)).unwrap_or(claim),
                    },
                    slot,
                    is_shared: false,
                };
                let wants: Vec<_> = wants.iter().map(want).collect();
                let queueing = Queueing { wait_ms: if waits { 2000 } else { 0 }, queue_max: u32::MAX };
                self.core.acquire_grant(call, &wants, queueing, now)
            }
            Request::Release { .. } => {
                if let Some(acknowledged) =
                    self.acknowledged.get_mut(&sent.grant).filter(|grant| grant.session == session)
                {
                    acknowledged.may_have_ended = true;
                }
                self.core.release_grant(call, sent.grant, false, now)
            }
            Request::Declare { name, capacity, numbered, if_exists } => {
                let declare = Declaration { name, capacity, numbered, label: b"" };
                self.core.change(call, declaring(if_exists, &[declare]), now)
            }
            Request::Resize { name, resizing } => {
                self.core.change(call, Operation::Resize { name, how: resizing, expected: None }, now)
            }
            Request::ChangeService { name, change } => {
                self.core.change(call, Operation::ChangeService { name, how: change, expected: None }, now)
            }
            Request::Remove { name, removal } => {
                self.removals.insert(name, self.requests);
                if let Removal::Now { .. } = removal {
                    self.allow_end(|grant| grant.names.contains(&name));
                    self.evictions.insert(name, self.requests);
                }
                self.core.change(call, removing(name, removal), now)
            }
            Request::Revoke { grace_ms, .. } => {
                if let Some(grant) = self.acknowledged.get_mut(&sent.grant) {
                    grant.may_have_ended = true;
                }
                self.core.change(call, revoking(Revocation::Grant(sent.grant), grace_ms), now)
            }
        };
        match outcome {
            Outcome::Waiting => {}
            Outcome::Answered(answer) => self.answered(token, Ok(answer)),
            Outcome::Refused(refusal) => self.answered(token, Err(refusal)),
        }
    }

    fn take(&mut self) {
        if self.batch.is_none() {
            self.batch = self.core.take_batch(BatchLimit { changes: 4, ..BatchLimit::NONE });
            if let Some((failed, deleted)) = self.failed.take() {
                assert_eq!(self.batch.as_ref().map(|batch| &batch.changes), Some(&failed));
                self.deleted = deleted;
            }
        }
        assert!(self.core.take_batch(BatchLimit::NONE).is_none(), "one batch at a time");
    }

    fn write(&mut self) {
        let Some(batch) = &self.batch else { return };
        for change in batch.changes.iter() {
            match change {
                Change::Put(record) => {
                    if let Record::Grant(grant) = record {
                        assert!(!self.deleted.contains(&grant.grant), "a released grant is not held again");
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

    fn complete(&mut self, is_stored: bool, is_on_disk: bool) {
        self.complete_step(is_stored, is_on_disk, usize::MAX);
    }

    fn complete_step(&mut self, is_stored: bool, is_on_disk: bool, step: usize) {
        let Some(batch) = self.batch.clone() else { return };
        let is_stored = is_stored || self.is_completing;
        let deleted = self.deleted.clone();
        if (is_stored || is_on_disk) && !self.is_completing {
            self.write();
        }
        self.is_completing = self.core.complete(
            &batch,
            if is_stored { CommitOutcome::Stored } else { CommitOutcome::Failed },
            step,
            self.now(),
        );
        self.read();
        if self.is_completing {
            return;
        }
        self.batch = None;
        if !is_stored {
            self.failed = Some((Arc::clone(&batch.changes), deleted));
            self.check_failed();
        }
    }

    /// Stores everything that is pending.
    pub fn store_all(&mut self) {
        while !self.core.is_stored() {
            self.take();
            self.complete(true, true);
        }
        self.check();
        for key in self.disk.keys() {
            if let Key::Grant(_) | Key::Answer(..) = key {
                let session = match (key, &self.disk[key]) {
                    (_, Record::Grant(grant)) => grant.session,
                    (Key::Answer(session, _), _) => *session,
                    _ => unreachable!(),
                };
                assert!(self.disk.contains_key(&Key::Session(session)), "{key:?} has no session");
            }
        }
        let declared = self.declared();
        for name in NAMES {
            let on_disk = self.on_disk(name);
            assert_eq!(declared.get(name), on_disk.as_ref(), "the disk has exactly the declarations");
        }
        for session in self.clients.keys().filter(|session| self.is_leased(**session)) {
            let is_open = self.leased.iter().any(|leased| leased.id == *session && leased.is_acknowledged);
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
        declared.into_iter().map(|declared| (static_name(&declared.record.name), declared.record)).collect()
    }

    /// After a failure, no client waits for the store, and a leased session holds only what it was told or what an earlier
    /// process had stored.
    fn check_failed(&self) {
        for connection in &self.connections {
            let is_storing = self.core.is_storing_for(connection.session.id(), &connection.mailbox);
            assert!(!is_storing, "a client waits for the store");
        }
        for name in NAMES {
            for (holder, _) in self.holders(name) {
                if !self.is_leased(SessionId::new(holder.session)) {
                    continue;
                }
                let Some(grant) = holder.grant.filter(|id| self.core.verify(*id, self.now()).is_ok()) else {
                    continue;
                };
                let is_known =
                    self.acknowledged.contains_key(&grant) || self.disk.contains_key(&Key::Grant(grant));
                assert!(is_known, "{grant} is held, and its client was told that it is not stored");
            }
        }
    }

    fn crash(&mut self, is_on_disk: bool, is_mark_stored: bool) {
        if is_on_disk && !self.is_completing {
            self.write();
        }
        self.failed = None;
        (self.batch, self.is_completing) = (None, false);
        self.crashes += 1;
        self.awaited.clear();
        let leased: Vec<_> = self.leased.iter().map(|leased| leased.id).collect();
        self.allow_end(|grant| !leased.contains(&grant.session));
        self.clients.retain(|session, _| leased.contains(session));
        // A session whose open was not answered yet may exist or not; no client has its key.
        self.start(is_mark_stored);
    }

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
            Some(Awaited::Open(position)) => match outcome {
                Ok(Answer::Opened(opened)) => {
                    assert_eq!(opened.session, self.leased[position].id);
                    assert!(
                        self.disk.contains_key(&Key::Session(opened.session)),
                        "acknowledged before it is stored"
                    );
                    self.leased[position].is_acknowledged = true;
                }
                _ => {
                    let id = self.leased[position].id;
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
            return Self::check_repeated(before, &answer, &self.acknowledged);
        }
        sent.answer = Some(Ok(answer.clone()));
        match &answer {
            Answer::Granted(granted) => self.granted(session, &sent_first, granted, is_leased),
            Answer::Declared(states) => self.changed(&sent_first, states),
            _ => {}
        }
    }

    fn check_repeated(before: &Answer, answer: &Answer, acknowledged: &BTreeMap<GrantId, AcknowledgedGrant>) {
        match (before, answer) {
            (Answer::Granted(before), Answer::Granted(granted)) => {
                // The answer of a released grant may be dropped.
                if !acknowledged[&before.grant].may_have_ended {
                    let granted = Granted { ttl_left_ms: before.ttl_left_ms, ..granted.clone() };
                    assert_eq!(*before, granted, "a repeated request gets the same answer");
                }
            }
            (before, answer) => assert_eq!(before, answer, "a repeated request gets the same answer"),
        }
    }

    fn granted(&mut self, session: SessionId, sent: &Sent, granted: &Granted, is_leased: bool) {
        let id = granted.grant;
        assert!(id.0 > sent.highest, "{id} was used before");
        assert!(!self.acknowledged.contains_key(&id), "{id} is used twice");
        if is_leased {
            let Some(Record::Grant(record)) = self.disk.get(&Key::Grant(id)) else {
                panic!("{id} is acknowledged before it is stored")
            };
            assert_eq!((record.session, record.request), (session, sent.ids.own));
            let slots: usize = record.parts.iter().map(|part| part.slots.len()).sum();
            assert_eq!(slots, granted.slots.iter().map(|slots| slots.len()).sum::<usize>());
        }
        let Request::Acquire { wants, .. } = &sent.request else { panic!("{:?}", sent.request) };
        let names: Vec<_> = wants.iter().map(|(name, _)| *name).collect();
        let is_evicted =
            |name: &&[u8]| self.evictions.get(*name).is_some_and(|position| *position >= sent.position);
        let may_have_ended = names.iter().any(is_evicted);
        self.acknowledged
            .insert(id, AcknowledgedGrant { session, names, slots: granted.slots.clone(), may_have_ended });
        self.highest = self.highest.max(id.0);
    }

    fn changed(&mut self, sent: &Sent, states: &[DeclaredState]) {
        if let Request::Remove { name, .. } = sent.request {
            let removed = self.removed.entry(name).or_default();
            *removed = sent.generation.max(*removed);
        }
        let (Request::Declare { name, .. }
        | Request::Resize { name, .. }
        | Request::ChangeService { name, .. }) = sent.request
        else {
            return;
        };
        let change = match sent.request {
            Request::ChangeService { change, .. } => Some(change),
            _ => None,
        };
        let [state] = states else { panic!("{states:?}") };
        let is_later = self.changes.get(name).is_none_or(|(position, ..)| *position < sent.position);
        if is_later {
            self.changes.insert(name, (sent.position, *state, change));
        }
        let is_removed = self.removals.get(name).is_some_and(|position| *position >= sent.position);
        let stored = self.on_disk(name);
        assert!(
            is_removed || stored.is_some_and(|stored| stored.generation >= state.generation.0),
            "acknowledged before it is stored"
        );
        self.highest = self.highest.max(state.generation.0);
    }

    fn check(&self) {
        self.core.check_ledger().unwrap();
        let mut failures = Vec::new();
        let mut check = self.core.check(SEMAPHORES);
        while check.step(64, &mut failures) {}
        assert_eq!(failures, []);
        for (id, acknowledged) in self.acknowledged.iter().filter(|(_, grant)| !grant.may_have_ended) {
            let held = self.core.verify(*id, self.now());
            let held =
                held.unwrap_or_else(|refusal| panic!("{id} was acknowledged and is not held: {refusal:?}"));
            assert_eq!(held.session, acknowledged.session.number());
        }
        let holders = NAMES.map(|name| (name, self.holders(name)));
        for (name, holders) in &holders {
            self.check_slots(name, holders);
        }
        let declared = self.declared();
        for (name, (position, state, change)) in &self.changes {
            let is_removed = self.removals.get(name).is_some_and(|removal| removal >= position);
            match declared.get(name) {
                Some(record) => {
                    assert!(record.generation >= state.generation.0 || is_removed, "generations grow");
                    if record.generation == state.generation.0 {
                        assert_eq!(record.capacity, state.capacity);
                        assert!(
                            change.is_none_or(|change| is_made(change, record)),
                            "{change:?} was answered"
                        );
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
            self.check_declarations();
            self.check_stored(&holders);
        }
    }

    /// When everything is stored, the disk has exactly the grants and sessions of the ledger.
    fn check_stored(&self, holders: &[(&'static [u8], Vec<Listed>)]) {
        let mut held = BTreeSet::new();
        for (name, holders) in holders {
            for (holder, _) in holders {
                let session = SessionId::new(holder.session);
                if !self.is_leased(session) {
                    continue;
                }
                // A waiter for several names is listed with the names that it has reserved, and is not stored.
                if holder.grant.is_none_or(|grant| self.core.verify(grant, self.now()).is_err()) {
                    continue;
                }
                held.insert((holder.grant, session, *name, holder.resources, &holder.slots));
            }
        }
        let mut stored = BTreeSet::new();
        for record in self.disk.values() {
            let Record::Grant(grant) = record else { continue };
            for part in &grant.parts {
                let name = static_name(&part.name);
                stored.insert((Some(grant.grant), grant.session, name, part.resources, &part.slots));
            }
        }
        assert_eq!(stored, held, "the disk has exactly the grants that are held");
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

    /// When everything is stored, no waiter waits for more than the capacity, a removed semaphore without holders is gone,
    /// and the disk has the declarations of the ledger.
    fn check_declarations(&self) {
        for declared in self.core.list_declared(&mut self.core.declared(b"")) {
            let record = &declared.record;
            let name = record.name.escape_ascii();
            assert!(!record.removing || declared.in_use > 0, "{name} is removed and unused, but exists");
            assert_eq!(self.on_disk(&record.name).as_ref(), Some(record), "{name} on disk");
            assert!(!record.removing || declared.waiting == 0, "{name} is removed and has waiters");
            let mut listing = self.core.listing(SEMAPHORES, &record.name, ListingKind::Waiters).unwrap();
            for (waiter, _) in self.core.list(&mut listing) {
                assert!(waiter.resources <= record.capacity, "a waiter for {name} exceeds its capacity");
            }
        }
    }

    /// No slot is held twice, and a leased session holds the slots that were acknowledged to it.
    fn check_slots(&self, name: &[u8], holders: &[Listed]) {
        let mut slots = BTreeSet::new();
        for (holder, _) in holders {
            for slot in &holder.slots {
                assert!(slots.insert(*slot), "slot {slot} is held twice");
            }
            let acknowledged = holder.grant.and_then(|grant| self.acknowledged.get(&grant));
            let Some(acknowledged) = acknowledged.filter(|acknowledged| self.is_leased(acknowledged.session))
            else {
                continue;
            };
            let position = acknowledged.names.iter().position(|own| *own == name).unwrap();
            let acknowledged = acknowledged.slots.get(position).map_or(&[][..], |slots| slots);
            assert_eq!(*holder.slots, *acknowledged, "the slots of grant {:?}", holder.grant);
        }
    }
}
