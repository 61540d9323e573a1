//! Units of the journal stay within what a store accepts, whatever clients did; and a start finds nothing half done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use signalbox_core::{
    Answer, BatchLimit, Call, Change, Claim, CommitOutcome, Core, Key, KeyRule, Kind, Mailbox, Message,
    Moment, MonotonicMs, NameHasher, Outcome, Queueing, Record, Service, SysvCall, SysvKey, SysvOutcome,
    Token, Want,
};
use signalbox_model::sysv::{Caller, IPC_CREAT, IPC_EXCL, Operation, SEM_UNDO, SetAnswer, SetCommand, SetId};
use signalbox_model::{
    ConnectionId, Declaration, GrantId, IfExists, Milliseconds, Namespace, Refusal, Removal, RequestId,
    RequestIds, SessionKey, UnixSeconds,
};

use crate::{Changes, declaration, declaring, removing};

const START: Moment = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
const TTL_MS: u32 = 1000;

struct Server {
    core: Core,
    disk: BTreeMap<Key, Record>,
    /// How often a semaphore set was stored.
    sets_stored: usize,
}

impl Server {
    fn start(disk: BTreeMap<Key, Record>) -> Self {
        let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
        core.set_sysv_rules(vec![KeyRule { keys: 1..=9, order: None, is_durable: true }]);
        core.start_sessions_after(1_000_000 * disk.len() as u64);
        for record in disk.values() {
            core.restore(record.clone(), START).unwrap();
        }
        core.keep_journal(Waker::noop().clone(), None);
        core.begin_serving(START.monotonic, START);
        Self { core, disk, sets_stored: 0 }
    }

    /// Stores one batch. Returns whether there was one.
    fn store_one(&mut self) -> bool {
        let Some(batch) = self.core.take_batch(BatchLimit::UNIT) else { return false };
        assert!(batch.changes.len() <= BatchLimit::UNIT.changes, "{} changes", batch.changes.len());
        for change in batch.changes.iter() {
            match change {
                Change::Put(record) => {
                    self.sets_stored += usize::from(matches!(record.key(), Key::Sysv(SysvKey::Set(_))));
                    self.disk.insert(record.key(), record.clone());
                }
                Change::Delete(key) => _ = self.disk.remove(key),
            }
        }
        while self.core.complete(&batch, CommitOutcome::Stored, 64, START) {}
        true
    }

    fn store(&mut self) {
        while self.store_one() {}
    }

    fn crash(self) -> Self {
        let mut server = Self::start(self.disk);
        server.store();
        server
    }

    fn connect(&self) -> (ConnectionId, Arc<Mailbox>) {
        (self.core.open_session().id(), Arc::default())
    }

    /// A connection of a process of its own.
    fn process(&self) -> (ConnectionId, Arc<Mailbox>) {
        let (connection, mailbox) = self.connect();
        let process = (7, CALLER, &[][..]);
        let key = SessionKey([1; 16]);
        self.core
            .open_process((connection, &mailbox), key, Milliseconds(TTL_MS), process, b"", START)
            .unwrap();
        (connection, mailbox)
    }

    /// Has a process make its only call, and does not wait until it is stored.
    fn call(&self, call: impl FnOnce(&Core, SysvCall) -> SysvOutcome) -> Arc<Mailbox> {
        let (connection, mailbox) = self.process();
        let ids = RequestIds { own: RequestId(1), lowest_unanswered: RequestId(1) };
        let outcome = call(&self.core, SysvCall { connection, ids, token: Token(1), caller: CALLER });
        assert_eq!(outcome, SysvOutcome::Waiting);
        mailbox
    }

    fn result(&mut self, mailbox: &Mailbox) -> SetAnswer {
        self.store();
        match mailbox.take() {
            Some(Message::Operated { result: Ok(answer), .. }) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn make_set(&mut self, key: i32, semaphores: u32) -> SetId {
        let made =
            self.call(|core, call| core.sem_get(call, key, semaphores, IPC_CREAT | IPC_EXCL | 0o600, START));
        match self.result(&made) {
            SetAnswer::Set(set, _) => set,
            other => panic!("{other:?}"),
        }
    }

    fn control(&mut self, set: SetId, command: SetCommand) {
        let done = self.call(|core, call| core.sem_ctl(call, set, &command, START));
        assert_eq!(self.result(&done), SetAnswer::Done);
    }

    fn value(&self, set: SetId) -> u32 {
        let (connection, _) = self.process();
        let ids = RequestIds { own: RequestId(1), lowest_unanswered: RequestId(1) };
        let call = SysvCall { connection, ids, token: Token(1), caller: CALLER };
        match self.core.sem_ctl(call, set, &SetCommand::GetValue(0), START) {
            SysvOutcome::Answered(Ok(SetAnswer::Number(value))) => value,
            other => panic!("{other:?}"),
        }
    }

    /// Lets this many processes add 1 to the first semaphore, which their ends undo.
    fn adjust(&mut self, set: SetId, processes: usize) {
        let operation = Operation { number: 0, change: 1, flags: SEM_UNDO };
        for _ in 0..processes {
            self.call(|core, call| core.sem_op(call, set, &[operation], None, START).0);
        }
        self.store();
    }

    fn adjustments(&self) -> usize {
        self.disk.keys().filter(|key| matches!(key, Key::Sysv(SysvKey::Adjustments(..)))).count()
    }

    /// All processes end.
    fn end_processes(&mut self) {
        let later = Moment { monotonic: MonotonicMs(u64::from(TTL_MS)), ..START };
        while self.core.expire(later) {}
        self.store();
    }
}

const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// Semaphores of a set, and processes with adjustments of it. The second set is the largest possible, so few processes do.
const SETS: [(u32, usize); 2] = [(1, 4_200), (32_000, 40)];

#[test]
fn a_value_that_is_set_clears_the_adjustments_of_any_number_of_processes() {
    for (semaphores, processes) in SETS {
        let all = vec![5; semaphores as usize];
        for command in [SetCommand::SetValue(0, 5), SetCommand::SetAll(all.into())] {
            let mut server = Server::start(BTreeMap::new());
            let set = server.make_set(1, semaphores);
            server.adjust(set, processes);
            server.control(set, command);
            server.adjust(set, 2);
            let mut server = server.crash();
            assert_eq!(server.value(set), 7);
            server.end_processes();
            assert_eq!(server.value(set), 5, "only what came after the clearance is undone");
            assert_eq!(server.adjustments(), 0);
        }
    }
}

#[test]
fn a_set_with_any_number_of_adjustments_is_removed_although_the_server_crashes() {
    for (semaphores, processes) in SETS {
        for batches in [1, 2, 100] {
            let mut server = Server::start(BTreeMap::new());
            let set = server.make_set(1, semaphores);
            server.adjust(set, processes);
            let removed = server.call(|core, call| core.sem_ctl(call, set, &SetCommand::Remove, START));
            for _ in 0..batches {
                server.store_one();
            }
            assert!(matches!(removed.take(), Some(Message::Operated { result: Ok(SetAnswer::Done), .. })));
            let server = server.crash();
            assert_eq!(server.adjustments(), 0, "after {batches} batches");
            assert!(!server.disk.keys().any(|key| matches!(key, Key::Sysv(SysvKey::Set(_)))));
        }
    }
}

#[test]
fn thousands_of_waiting_calls_are_completed_by_one() {
    let mut server = Server::start(BTreeMap::new());
    let set = server.make_set(1, 1);
    let take = Operation { number: 0, change: -1, flags: SEM_UNDO };
    let waiting: Vec<_> = (0..4_200)
        .map(|_| server.call(|core, call| core.sem_op(call, set, &[take], None, START).0))
        .collect();
    server.store();
    server.call(|core, call| core.sem_ctl(call, set, &SetCommand::SetValue(0, 4_250), START));
    // After each batch, a crash would leave a set from which exactly those have taken whose results are stored.
    let results = |server: &Server| {
        server.disk.keys().filter(|key| matches!(key, Key::Sysv(SysvKey::Result(..)))).count()
    };
    let before = results(&server);
    while server.store_one() {
        let taken = (results(&server) - before).saturating_sub(1);
        let after = Server::start(server.disk.clone());
        assert_eq!(after.value(set) as usize, 4_250 - taken);
    }
    assert!(waiting.iter().all(|mailbox| mailbox.take().is_some()));
    // A set may be far larger than a result.
    let sets_stored = server.sets_stored;
    assert!(sets_stored < 100, "the set is stored with many results at a time, and {sets_stored} times");
    let mut server = server.crash();
    assert_eq!(server.value(set), 50);
    server.end_processes();
    assert_eq!(server.value(set), 4_250);
}

#[test]
fn any_number_of_grants_is_evicted_or_ends_with_its_session() {
    for (count, name_bytes) in [(100, 60_000), (4_200, 8)] {
        for is_evicted in [true, false] {
            end_grants(count, name_bytes, is_evicted);
        }
    }
}

fn end_grants(count: usize, name_bytes: usize, is_evicted: bool) {
    let mut server = Server::start(BTreeMap::new());
    server.store();
    let (connection, mailbox) = server.connect();
    server.core.join(connection, None, &mailbox);
    let mut requests = 0;
    let mut call = || {
        requests += 1;
        let ids = RequestIds { own: RequestId(requests), lowest_unanswered: RequestId(requests) };
        Call { connection, ids, token: Token(requests) }
    };
    let declare = Declaration { name: b"gpu", capacity: 10_000, numbered: false, label: b"" };
    server.core.change(call(), declaring(IfExists::Fail, &[declare]), START);
    server.core.open_leased(connection, SessionKey([1; 16]), 1_000_000, b"", Token(0), START);
    server.store();
    for n in 0..count {
        let [one, other] = [2 * n, 2 * n + 1].map(|n| vec![n as u8; name_bytes]);
        let names = [&b"gpu"[..], &one, &other];
        let claim = Claim::new(1, 10_000).unwrap();
        let want =
            |name| Want { kind: Kind::Of(Namespace::Semaphores), name, claim, slot: None, is_shared: false };
        let queueing = Queueing { wait_ms: 0, queue_max: 0 };
        let outcome = server.core.acquire_grant(call(), &names.map(want), queueing, START);
        assert_eq!(outcome, Outcome::Waiting);
    }
    server.store();
    let grants = |server: &Server| server.disk.keys().filter(|key| matches!(key, Key::Grant(_))).count();
    assert_eq!(grants(&server), count);
    let ended = if is_evicted {
        let removal = Removal::Now { grace: Milliseconds(1_000) };
        server.core.change(call(), removing(b"gpu", removal), START)
    } else {
        server.core.close_leased(connection, call().token, START)
    };
    assert_eq!(ended, Outcome::Waiting);
    server.store();
    while server.core.evict(START, |_| None) {
        server.store();
    }
    let later = Moment { monotonic: MonotonicMs(1_000), ..START };
    while server.core.expire(later) {}
    server.store();
    assert_eq!(grants(&server), 0);
    assert_eq!(server.core.verify(GrantId(1), START), Err(Refusal::NotAcquired));
}

/// Only the failure of the batch that opens a session ends it.
#[test]
fn an_opening_that_is_repeated_while_it_is_stored_keeps_its_session() {
    let mut server = Server::start(BTreeMap::new());
    server.store();
    let key = SessionKey([1; 16]);
    let connections = [server.connect(), server.connect()];
    for (connection, mailbox) in &connections {
        server.core.join(*connection, None, mailbox);
    }
    let open = |server: &Server, by: usize| {
        server.core.open_leased(connections[by].0, key, 1_000_000, b"", Token(1), START)
    };
    assert_eq!(open(&server, 0), Outcome::Waiting);
    let first = server.core.take_batch(BatchLimit::UNIT).unwrap();
    assert_eq!(open(&server, 1), Outcome::Waiting);
    while server.core.complete(&first, CommitOutcome::Stored, 1, START) {}
    let opened = match connections[1].1.take() {
        Some(Message::Answer { outcome: Ok(Answer::Opened(opened)), .. }) => opened.session,
        other => panic!("{other:?}"),
    };
    // The next batch fails.
    let now = START;
    assert!(matches!(open(&server, 1), Outcome::Answered(Answer::Opened(_))), "it is stored");
    let ids = RequestIds { own: RequestId(1), lowest_unanswered: RequestId(1) };
    let call = Call { connection: connections[1].0, ids, token: Token(2) };
    let declare = Declaration { name: b"a", capacity: 1, numbered: false, label: b"" };
    assert_eq!(server.core.change(call, declaring(IfExists::Fail, &[declare]), now), Outcome::Waiting);
    let second = server.core.take_batch(BatchLimit::UNIT).unwrap();
    while server.core.complete(&second, CommitOutcome::Failed, 1, now) {}
    assert_eq!(server.core.ledger_stats().sessions, 1);
    assert!(server.core.attach(opened, connections[0].0, &key, 0).is_ok());
}

/// Neither journal waits until the other one is stored.
#[test]
fn changes_of_the_ledger_and_of_the_sets_are_stored_in_turn() {
    let mut server = Server::start(BTreeMap::new());
    server.store();
    let set = server.make_set(5, 1);
    let (connection, mailbox) = server.connect();
    server.core.join(connection, None, &mailbox);
    let names = [b"a", b"b", b"c"];
    for (number, name) in (1..).zip(names) {
        let ids = RequestIds { own: RequestId(number), lowest_unanswered: RequestId(1) };
        let call = Call { connection, ids, token: Token(number) };
        let declare = Declaration { name, capacity: 1, numbered: false, label: b"" };
        server.core.change(call, declaring(IfExists::Fail, &[declare]), START);
    }
    let operation = Operation { number: 0, change: 1, flags: SEM_UNDO };
    for _ in names {
        server.call(|core, call| core.sem_op(call, set, &[operation], None, START).0);
    }
    let one = BatchLimit { changes: 1, ..BatchLimit::UNIT };
    let of_sets: Vec<_> = std::iter::from_fn(|| {
        let batch = server.core.take_batch(one)?;
        while server.core.complete(&batch, CommitOutcome::Stored, 64, START) {}
        Some(batch.changes.iter().all(|change| {
            let (Change::Put(Record::Sysv(_)) | Change::Delete(Key::Sysv(_))) = change else { return false };
            true
        }))
    })
    .collect();
    let turns = of_sets.windows(2).take(4).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(turns, 4, "{of_sets:?}");
}

#[test]
fn semaphores_with_any_slots_out_of_service_are_declared_together() {
    const SEMAPHORES: u8 = 64;
    let name = |number| [&[number][..], &[b'n'; 1_900]].concat();
    let record = |number| {
        let service = Service { paused: false, slots_out: (0..=u16::MAX).step_by(2).collect() };
        Record::Declaration(declaration(&name(number), 65_536, service))
    };
    let records = (0..SEMAPHORES).map(record).map(|record| (record.key(), record));
    let mut server = Server::start(records.collect());
    server.store();
    let (connection, mailbox) = server.connect();
    server.core.join(connection, None, &mailbox);
    let ids = RequestIds { own: RequestId(1), lowest_unanswered: RequestId(1) };
    let call = Call { connection, ids, token: Token(1) };
    let names: Vec<_> = (0..SEMAPHORES).map(name).collect();
    let declares: Vec<_> = names
        .iter()
        .map(|name| Declaration { name, capacity: 65_536, numbered: true, label: b"changed" })
        .collect();
    assert_eq!(server.core.change(call, declaring(IfExists::Set, &declares), START), Outcome::Waiting);
    server.store();
    let is_changed = |record: &&Record| matches!(record, Record::Declaration(of) if *of.label == *b"changed");
    assert_eq!(server.disk.values().filter(is_changed).count(), usize::from(SEMAPHORES));
}
