//! Arbitrary requests for sessions, grants and declared semaphores, with a store that works or fails. The invariants of
//! the ledger and of the names hold at every check, and at the end nothing is left.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Waker;

use signalbox::core::{
    Answer, Batch, BatchLimit, Call, Claim, CommitOutcome, ConnectionId, Core, Declare, GrantId, IfExists,
    Mailbox, Message, Moment, MonotonicMs, NameHasher, Namespace, Outcome, Queueing, Removal, RequestId,
    RequestIds, Resizing, Session, SessionId, SessionKey, Token, UnixSeconds, Until, Waiting, Want,
};

/// The maximum number of steps in an input: longer inputs take long and find nothing new.
const STEPS_MAX: usize = 120;

/// Steps between two checks, which visit every shard.
const CHECK_EVERY: usize = 16;

const CONNECTIONS: usize = 3;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"\0", b"a name too long to stand within its object"];

/// Each step is four bytes: the operation, the connection, the target, and the amount. The first byte of the input
/// selects whether there is a store.
pub fn run(data: &[u8]) {
    let Some((mode, steps)) = data.split_first() else { return };
    let mut world = World::new(mode & 1 != 0);
    for (serial, step) in steps.chunks_exact(4).take(STEPS_MAX).enumerate() {
        let [operation, who, target, amount]: [u8; 4] = step.try_into().expect("a chunk is four bytes");
        world.execute(operation, usize::from(who), target, amount);
        world.read();
        if serial % CHECK_EVERY == 0 {
            world.assert_invariants();
        }
    }
    world.end_and_assert_nothing_is_left();
}

struct Connection {
    session: Session,
    mailbox: Arc<Mailbox>,
}

struct World {
    core: Core,
    connections: Vec<Connection>,
    leased: Vec<(SessionId, SessionKey)>,
    /// The last request number of each session: a connection's session, or a leased one that a connection is attached
    /// to.
    requests: BTreeMap<SessionId, u64>,
    attached: [Option<SessionId>; CONNECTIONS],
    grants: Vec<GrantId>,
    generations: Vec<u64>,
    batch: Option<Batch>,
    is_completing: bool,
    last_token: u64,
    now_ms: u64,
}

impl World {
    fn new(has_store: bool) -> Self {
        let interval_s = NonZeroU32::new(10).expect("ten is not zero");
        let core = Core::new(interval_s, NameHasher::with_seeds(1, 2, 3, 4));
        let mut world = Self {
            core,
            connections: Vec::new(),
            leased: Vec::new(),
            requests: BTreeMap::new(),
            attached: [None; CONNECTIONS],
            grants: Vec::new(),
            generations: Vec::new(),
            batch: None,
            is_completing: false,
            last_token: 0,
            now_ms: 0,
        };
        if has_store {
            world.core.keep_journal(Waker::noop().clone(), world.now());
            world.store_all();
        }
        for _ in 0..CONNECTIONS {
            let connection = world.connect();
            world.connections.push(connection);
        }
        world
    }

    fn connect(&self) -> Connection {
        let connection = Connection { session: self.core.open_session(), mailbox: Arc::default() };
        self.core.join(connection.session.id(), None, &connection.mailbox);
        connection
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.now_ms), unix: UnixSeconds(1_000_000 + self.now_ms / 1000) }
    }

    fn id(&self, by: usize) -> ConnectionId {
        self.connections[by].session.id()
    }

    fn token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    /// A request with a new number, or with one that was used before.
    fn call(&mut self, by: usize, back: u8) -> Call {
        let session = self.attached[by].unwrap_or(self.id(by).session());
        let last = self.requests.entry(session).or_insert(0);
        let own = if back == 0 { *last + 1 } else { last.saturating_sub(u64::from(back) - 1).max(1) };
        *last = (*last).max(own);
        let lowest_unanswered = own.saturating_sub(8).max(1);
        Call {
            connection: self.id(by),
            ids: RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest_unanswered) },
            token: self.token(),
        }
    }

    fn execute(&mut self, operation: u8, who: usize, target: u8, amount: u8) {
        let (by, now) = (who % CONNECTIONS, self.now());
        // One in four repeats a request, or reuses the number of another one.
        let back = if who & 0xc0 == 0xc0 { (who as u8 >> 4) & 3 } else { 0 };
        let namespace = Namespace::ALL[usize::from(target & 1)];
        let place = usize::from(target >> 1) % NAMES.len();
        let name = NAMES[place];
        let small = u32::from(amount % 6);
        match operation % 20 {
            0 | 1 => {
                let wants = [want(namespace, name, amount)];
                self.acquire(by, back, &wants[..], target);
            }
            2 => {
                let other = NAMES[(place + 1 + usize::from(amount >> 6) % (NAMES.len() - 1)) % NAMES.len()];
                let wants = [want(namespace, name, amount), want(Namespace::Semaphores, other, amount >> 3)];
                self.acquire(by, back, &wants[..], target);
            }
            3 | 4 => {
                let Some(grant) = chosen(&self.grants, amount) else { return };
                let call = self.call(by, back);
                let asked = self.core.release_grant(call, grant, now);
                self.heard(asked);
            }
            5 => self.open(by, amount),
            6 => {
                let Some((session, key)) = chosen(&self.leased, amount) else { return };
                if self.core.attach(session, self.id(by), &key, now).is_ok() {
                    self.attached.iter_mut().for_each(|attached| _ = attached.take_if(|it| *it == session));
                    self.attached[by] = Some(session);
                }
            }
            7 => {
                let token = self.token();
                let asked = self.core.close_leased(self.id(by), token, now);
                self.attached[by] = None;
                self.heard(asked);
            }
            8 => self.leave(by),
            9 => {
                let waiting = match amount & 1 {
                    0 => Waiting::Request(RequestId(u64::from(amount >> 1))),
                    _ => Waiting::Token(Token(self.last_token.saturating_sub(u64::from(amount >> 1)))),
                };
                let _ = self.core.cancel(self.id(by), waiting, now);
            }
            10 => {
                let grace_ms = u32::from(target) * 10;
                let call = self.call(by, back);
                let asked = match (amount & 3, chosen(&self.grants, amount >> 2)) {
                    (0, _) => {
                        let connections = [0, 1, 2].map(|other| self.id(other).session());
                        let leased = self.leased.iter().map(|(session, _)| *session);
                        let sessions: Vec<_> = connections.into_iter().chain(leased).collect();
                        let Some(session) = chosen(&sessions, amount >> 2) else { return };
                        self.core.revoke_session(call, session, grace_ms, now)
                    }
                    (_, Some(grant)) => self.core.revoke_grant(call, grant, grace_ms, now),
                    _ => return,
                };
                self.heard(asked);
            }
            11 => self.declare(by, back, (place, target), amount),
            12 => {
                let resizing = match target >> 5 & 3 {
                    0 | 3 => Resizing::To(small),
                    1 => Resizing::Grow(small),
                    _ => Resizing::Shrink(small),
                };
                let (call, generation) = (self.call(by, back), self.generation(amount));
                let asked = self.core.resize(call, name, resizing, generation, now);
                self.heard(asked);
            }
            13 => {
                let removal = match amount & 3 {
                    0 => Removal::IfIdle,
                    1 => Removal::WithLastHolder,
                    _ => Removal::Now { grace_ms: u32::from(amount >> 2) * 20 },
                };
                let (call, generation) = (self.call(by, back), self.generation(target >> 3));
                let asked = self.core.remove(call, name, removal, generation, now);
                self.heard(asked);
            }
            14 => self.configure(amount),
            15 => {
                let until =
                    if amount & 1 == 0 { Until::Level(small) } else { Until::Slot(u16::from(amount >> 1)) };
                let who = (self.id(by), self.token());
                let asked = self.core.await_idle(who, (namespace, name), until, u32::from(target) * 20, now);
                self.heard(asked);
            }
            16 => {
                let session = &mut self.connections[by].session;
                if amount & 0x80 == 0 {
                    let claim = want(namespace, name, amount).claim;
                    let _ = self.core.acquire(namespace, name, claim, session, now.unix);
                } else {
                    let _ = self.core.release(namespace, name, small, session, now.unix);
                }
            }
            17 => self.pass(u64::from(amount) * u64::from(target) / 4),
            18 if self.batch.is_none() => self.batch = self.core.take_batch(BatchLimit::NONE),
            18 | 19 => self.complete(amount & 3 != 3, if amount & 0x80 == 0 { usize::MAX } else { 1 }),
            _ => unreachable!("the remainder of a division by 20"),
        }
    }

    fn acquire(&mut self, by: usize, back: u8, wants: &[Want<'_>], target: u8) {
        let queueing =
            Queueing { wait_ms: u32::from(target >> 4) * 100, queue_max: u32::from(target >> 3 & 3) + 1 };
        let call = self.call(by, back);
        let asked = self.core.acquire_grant(call, wants, queueing, self.now());
        self.heard(asked);
    }

    fn open(&mut self, by: usize, amount: u8) {
        let token = self.token();
        let key = SessionKey(u128::from(token.0).to_be_bytes());
        let asked =
            self.core.open_leased(self.id(by), key, 500 + u32::from(amount) * 10, b"", token, self.now());
        self.heard(asked);
        if let Some(lease) = self.core.lease(self.id(by)) {
            drop(lease);
            self.attached[by] = self.leased.last().map(|(session, _)| *session);
        }
    }

    fn declare(&mut self, by: usize, back: u8, (place, target): (usize, u8), amount: u8) {
        let declare = |place: usize| Declare {
            name: NAMES[place % NAMES.len()],
            capacity: u32::from(amount % 6),
            numbered: amount & 0x40 != 0,
            label: b"",
        };
        let count = usize::from(target >> 4 & 1) + 1;
        let wanted: Vec<_> = (place..place + count).map(declare).collect();
        let if_exists = [IfExists::Fail, IfExists::Keep, IfExists::Set][usize::from(target >> 5) % 3];
        let call = self.call(by, back);
        let asked = self.core.declare(call, &wanted, if_exists, self.now());
        self.heard(asked);
    }

    fn configure(&mut self, amount: u8) {
        let declare = |(place, name): (usize, &&'static [u8])| {
            let bits = amount >> (2 * place) & 3;
            let numbered = bits == 3;
            (bits > 0).then_some(Declare { name, capacity: u32::from(bits) + 1, numbered, label: b"" })
        };
        let wanted: Vec<_> = NAMES.iter().enumerate().filter_map(declare).collect();
        let _ = self.core.declare_configured(&wanted, self.now());
    }

    fn generation(&self, amount: u8) -> Option<u64> {
        if amount & 7 == 7 { chosen(&self.generations, amount >> 3) } else { None }
    }

    fn leave(&mut self, by: usize) {
        let now = self.now();
        while self.core.leave(self.id(by), now) {}
        let new = self.connect();
        let left = std::mem::replace(&mut self.connections[by], new);
        let mut ending = self.core.end_session(left.session);
        while ending.step(1, now.unix) {}
        self.attached[by] = None;
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        let now = self.now();
        let mailbox_of = |session| {
            let mut connections = self.connections.iter();
            connections
                .find(|connection| connection.session.id() == session)
                .map(|it| Arc::clone(&it.mailbox))
        };
        while self.core.expire(now) || self.core.evict(now, mailbox_of) {}
    }

    fn complete(&mut self, is_stored: bool, step: usize) {
        let Some(batch) = &self.batch else { return };
        // A batch that is completed in part is stored.
        let is_stored = is_stored || step == 1 || self.is_completing;
        self.is_completing = self.core.complete(
            batch,
            if is_stored { CommitOutcome::Stored } else { CommitOutcome::RolledBack },
            step,
            self.now(),
        );
        if !self.is_completing {
            self.batch = None;
        }
    }

    fn store_all(&mut self) {
        self.complete(true, usize::MAX);
        while let Some(batch) = self.core.take_batch(BatchLimit::NONE) {
            while self.core.complete(&batch, CommitOutcome::Stored, 64, self.now()) {}
        }
    }

    fn heard(&mut self, asked: Outcome) {
        if let Outcome::Answered(answer) = asked {
            self.answered(answer);
        }
    }

    fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Granted(granted) => self.grants.push(granted.grant),
            Answer::Opened(opened) => self.leased.push((opened.session, opened.key)),
            Answer::Declared(settled) => self.generations.extend(settled.iter().map(|it| it.generation)),
            Answer::Done | Answer::Revoked { .. } | Answer::Idle { .. } => {}
        }
    }

    fn read(&mut self) {
        for by in 0..CONNECTIONS {
            let mailbox = Arc::clone(&self.connections[by].mailbox);
            while let Some(message) = mailbox.take() {
                match message {
                    Message::Answer { outcome, .. } => _ = outcome.map(|answer| self.answered(answer)),
                    Message::Close => {
                        self.leave(by);
                        break;
                    }
                    _ => {}
                }
            }
        }
    }

    fn assert_invariants(&self) {
        assert_eq!(self.core.check_ledger(), Ok(()));
        for namespace in Namespace::ALL {
            let mut failures = Vec::new();
            let mut check = self.core.check(namespace);
            while check.step(1000, &mut failures) {}
            assert_eq!(failures, [], "{namespace:?}");
        }
    }

    fn end_and_assert_nothing_is_left(&mut self) {
        self.core.declare_configured(&[], self.now());
        // A new connection, so that no request number has been used.
        self.leave(0);
        for name in NAMES {
            let call = self.call(0, 0);
            let _ = self.core.remove(call, name, Removal::Now { grace_ms: 0 }, None, self.now());
        }
        for _ in 0..3 {
            self.store_all();
            // Longer than any wait, lease and grace, and not at once: a gap would be added to the leases.
            for _ in 0..12 {
                self.pass(1000);
                self.read();
            }
        }
        for by in 0..CONNECTIONS {
            self.leave(by);
        }
        self.store_all();
        self.assert_invariants();
        let stats = self.core.ledger_stats();
        let left = (stats.sessions, stats.grants, stats.waiters, stats.declared);
        assert_eq!(left, (0, 0, 0, 0), "sessions, grants, waiters, declared semaphores");
        for namespace in Namespace::ALL {
            let mut sweep = self.core.sweep(namespace);
            while sweep.step(1000, UnixSeconds(u64::MAX)) {}
            assert_eq!(self.core.stats(namespace).objects, 0, "{namespace:?}");
        }
    }
}

/// Few resources of few, so that many wait; now and then as declared, and as much as there can be.
fn want(namespace: Namespace, name: &'static [u8], amount: u8) -> Want<'static> {
    let resources = u32::from(amount % 4).max(1);
    let claim = match amount >> 4 & 3 {
        0 | 1 => Claim::new(resources, 3),
        2 => NonZeroU32::new(resources).map(Claim::of_existing),
        _ => Claim::new(u32::MAX - resources, u32::MAX),
    };
    Want { namespace, name, claim: claim.expect("no more than the maximum is wanted"), slot: None }
}

fn chosen<T: Copy>(list: &[T], amount: u8) -> Option<T> {
    // The newest ones are the most interesting.
    list.iter().rev().nth(usize::from(amount) % list.len().max(1)).copied()
}
