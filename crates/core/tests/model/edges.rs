//! Cases that mutation testing (`tests/mutants/run`) has shown: random histories rarely reach them, or do not check
//! them.

mod history;
mod steps;

use std::sync::Arc;
use std::task::Waker;

use signalbox_core::{
    Answer, AnswerRecord, BatchLimit, Call, Change, Claim, ClaimListing, Claimed, CommitOutcome, Core,
    GRANT_SLOTS_MAX, Granted, Kind, LedgerLimits, Mailbox, MemoryLimit, Message, Moment, MonotonicMs,
    NameEntry, NameHasher, Outcome, Queueing, Record, Service, Session, SessionRecord, Token, Want,
};
use signalbox_model::{
    ConnectionId, DeclaredState, Event, EventKind, IfExists, Limit, Namespace, Refusal, Removal, RequestId,
    RequestIds, Scope, ServiceChange, SessionId, SessionKey,
};
use signalbox_model::{
    Declaration, Generation, Idle, Milliseconds, Operation, ReachedLimit, Revocation, UnixSeconds,
};

use crate::{Changes, declaration, declaring, removing, revoking};

const START: Moment = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
const SEMAPHORES: Namespace = Namespace::Semaphores;
const NAME: &[u8] = b"a";

/// A core with connections. A connection calls each request by its number.
struct Server {
    core: Core,
    connections: Vec<(Session, Arc<Mailbox>)>,
    requests: u64,
    /// The client needs the replies to all requests from this one on.
    lowest_unanswered: Option<u64>,
}

impl Server {
    fn new() -> Self {
        let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
        let connections: Vec<_> = (0..2).map(|_| (core.open_session(), Arc::default())).collect();
        for (session, mailbox) in &connections {
            core.join(session.id(), None, mailbox);
        }
        Self { core, connections, requests: 0, lowest_unanswered: None }
    }

    /// A core with connections and a store.
    fn with_store() -> Self {
        let server = Self::new();
        server.core.keep_journal(Waker::noop().clone(), None);
        server.core.begin_serving(START.monotonic, START);
        server.store();
        server
    }

    /// Stores everything, and returns the changes.
    fn store(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(batch) = self.core.take_batch(BatchLimit::NONE) {
            changes.extend(batch.changes.iter().cloned());
            while self.core.complete(&batch, CommitOutcome::Stored, 1, START) {}
        }
        changes
    }

    fn id(&self, by: usize) -> ConnectionId {
        self.connections[by].0.id()
    }

    fn messages(&self, by: usize) -> Vec<Message> {
        std::iter::from_fn(|| self.connections[by].1.take()).collect()
    }

    fn call(&mut self, by: usize) -> Call {
        self.requests += 1;
        let lowest = self.lowest_unanswered.unwrap_or(self.requests);
        let ids = RequestIds { own: RequestId(self.requests), lowest_unanswered: RequestId(lowest) };
        Call { connection: self.id(by), ids, token: Token(self.requests) }
    }

    /// Opens a leased session for a connection.
    fn open(&self, by: usize) -> SessionId {
        self.core.open_leased(self.id(by), SessionKey([by as u8 + 1; 16]), 1000, b"", Token(0), START);
        self.store();
        match &self.messages(by)[..] {
            [Message::Answer { outcome: Ok(Answer::Opened(opened)), .. }] => opened.session,
            other => panic!("{other:?}"),
        }
    }

    /// Requests one resource of each of these semaphores.
    fn acquire(&mut self, by: usize, names: &[&[u8]]) -> Outcome {
        let claim = Claim::new(1, 1000).unwrap();
        let wants: Vec<_> = names
            .iter()
            .map(|name| Want { kind: Kind::Of(SEMAPHORES), name, claim, slot: None, is_shared: false })
            .collect();
        let queueing = Queueing { wait_ms: u32::MAX, queue_max: u32::MAX };
        let call = self.call(by);
        self.core.acquire_grant(call, &wants, queueing, START)
    }

    fn granted(&mut self, by: usize, names: &[&[u8]]) -> Granted {
        match self.acquire(by, names) {
            Outcome::Answered(Answer::Granted(granted)) => granted,
            other => panic!("{other:?}"),
        }
    }

    fn declare(&mut self, by: usize, capacity: u32, numbered: bool) -> Outcome {
        let declare = Declaration { name: NAME, capacity, numbered, label: b"" };
        let call = self.call(by);
        self.core.change(call, declaring(IfExists::Set, &[declare]), START)
    }

    /// The configuration declares only a semaphore with this many slots; `None`: it declares nothing.
    fn configure(&self, slots: Option<u32>) {
        let declare = slots.map(|capacity| Declaration { name: NAME, capacity, numbered: true, label: b"" });
        assert_eq!(self.core.declare_configured(declare.as_slice(), START), []);
    }

    fn change_service(&mut self, by: usize, change: ServiceChange) -> Outcome {
        let call = self.call(by);
        self.core.change(call, Operation::ChangeService { name: NAME, how: change, expected: None }, START)
    }

    /// The service of the declared semaphore: whether it is paused, and its slots that are out of service.
    fn service(&self) -> Service {
        let listed = self.core.list_declared(&mut self.core.declared(b""));
        listed[0].record.service.clone()
    }
}

fn at(ms: u64) -> Moment {
    Moment { monotonic: MonotonicMs(ms), ..START }
}

fn session_record(number: u64, ttl_ms: u32) -> SessionRecord {
    let session = SessionId::from_number(number).unwrap();
    let (key, label) = (SessionKey([1; 16]), Box::default());
    SessionRecord { session, key, ttl_ms, label, revoked_grace_ms: None }
}

#[test]
fn a_grant_has_slots_from_the_request_on_that_numbers_them() {
    let mut server = Server::with_store();
    assert_eq!(server.declare(0, 2, false), Outcome::Waiting);
    server.store();
    assert_eq!(server.declare(0, 2, true), Outcome::Waiting);
    assert_eq!(*server.granted(0, &[NAME]).slots, [[0].into()]);
    server.store();
    assert_eq!(*server.granted(0, &[NAME]).slots, [[1].into()]);
}

/// Holders of a semaphore that was removed at once are evicted after a restart too, whatever happened to the name since.
#[test]
fn the_grace_period_of_a_removal_stays_or_goes_with_its_holders() {
    let mut server = Server::with_store();
    server.declare(0, 2, false);
    server.granted(0, &[NAME]);
    server.store();
    let remove = |server: &mut Server, removal| {
        let call = server.call(1);
        assert_eq!(server.core.change(call, removing(NAME, removal), START), Outcome::Waiting);
    };
    let declared = |server: &Server| {
        let listed = server.core.list_declared(&mut server.core.declared(b""));
        listed[0].record.evicted_grace_ms
    };
    remove(&mut server, Removal::Now { grace: Milliseconds(1000) });
    server.store();
    server.declare(0, 2, false);
    server.store();
    assert_eq!(declared(&server), Some(1000));

    // The configuration declares it, and removes it with its last holder.
    let configured = Declaration { name: NAME, capacity: 3, numbered: false, label: b"" };
    server.core.declare_configured(&[configured], START);
    assert_eq!(declared(&server), Some(1000));
    server.core.declare_configured(&[], START);
    assert_eq!(declared(&server), None);
}

#[test]
fn the_revocation_of_a_grant_is_stored() {
    let mut server = Server::with_store();
    server.open(0);
    assert_eq!(server.acquire(0, &[NAME]), Outcome::Waiting);
    server.store();
    let grant = match &server.messages(0)[..] {
        [Message::Answer { outcome: Ok(Answer::Granted(granted)), .. }] => granted.grant,
        other => panic!("{other:?}"),
    };
    let call = server.call(1);
    assert_eq!(server.core.change(call, revoking(Revocation::Grant(grant), 500), START), Outcome::Waiting);
    let revoked_grace_ms = |change: &Change| match change {
        Change::Put(Record::Grant(record)) => Some((record.grant, record.revoked_grace_ms)),
        _ => None,
    };
    let stored: Vec<_> = server.store().iter().filter_map(revoked_grace_ms).collect();
    assert_eq!(stored, [(grant, Some(500))]);
}

#[test]
fn a_request_that_waits_for_a_commit_is_refused_when_its_session_is_revoked() {
    let mut server = Server::with_store();
    let session = server.open(0);
    assert_eq!(server.declare(0, 2, false), Outcome::Waiting);
    let declared = Token(server.requests);
    let call = server.call(1);
    server.core.change(call, revoking(Revocation::Session(session), 0), START);
    while server.core.expire(START) {}
    let answers = |messages: Vec<Message>| {
        let answer = |message| match message {
            Message::Answer { token, outcome } if token == declared => Some(outcome),
            _ => None,
        };
        messages.into_iter().filter_map(answer).collect::<Vec<_>>()
    };
    assert_eq!(answers(server.messages(0)), [Err(Refusal::Revoked)]);
    server.store();
    assert_eq!(answers(server.messages(0)), [], "it is answered once");
}

#[test]
fn a_request_whose_grant_is_revoked_before_it_is_stored_is_refused_for_that_reason() {
    let mut server = Server::with_store();
    let session = server.open(0);
    assert_eq!(server.acquire(0, &[NAME]), Outcome::Waiting);
    let refused = Message::Answer { token: Token(server.requests), outcome: Err(Refusal::Revoked) };
    let claims = server.core.list_claims(&mut ClaimListing::of(vec![session]));
    let [Claimed { listed: (NameEntry { grant: Some(grant), .. }, _), .. }] = claims[..] else {
        panic!("{claims:?}")
    };
    let call = server.call(1);
    server.core.change(call, revoking(Revocation::Grant(grant), 0), START);
    server.store();
    let messages = server.messages(0);
    assert!(messages.contains(&refused), "{messages:?}");
}

/// Each step releases so few names that others wait for a short time only.
#[test]
fn a_session_whose_grants_have_many_names_ends_in_steps() {
    const NAMES: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"];
    const GRANTS: usize = 64;
    let mut server = Server::new();
    for _ in 0..GRANTS {
        server.granted(0, &NAMES);
    }
    let mut steps = 1;
    while server.core.leave(server.id(0), START) {
        steps += 1;
    }
    assert!(steps >= 7, "{steps} steps release {} resources", GRANTS * NAMES.len());
}

#[test]
fn a_connection_ends_that_made_many_requests_and_needs_their_replies() {
    let mut server = Server::new();
    server.lowest_unanswered = Some(1);
    for _ in 0..100 {
        server.granted(0, &[NAME]);
    }
    while server.core.leave(server.id(0), START) {}
    assert_eq!(server.core.ledger_stats().grants, 0);
    assert_eq!(server.core.check_ledger(), Ok(()));
}

#[test]
fn an_idle_wait_that_a_limit_refuses_is_counted() {
    let mut server = Server::new();
    server.core.set_ledger_limits(LedgerLimits { waiters_max: 0, ..LedgerLimits::NONE });
    server.granted(0, &[NAME]);
    let waiting = (server.id(1), Token(1));
    let outcome = server.core.await_idle(waiting, (SEMAPHORES, NAME), Idle::Level(0), 1, START);
    let limit = ReachedLimit { limit: Limit::Waiters, max: 0, is_share: false };
    assert_eq!(outcome, Outcome::Refused(Refusal::LimitReached(limit)));
    assert_eq!(server.core.ledger_stats().limited, 1);
}

#[test]
fn without_memory_nothing_is_added_and_what_was_answered_is_answered_again() {
    const FULL: MemoryLimit = MemoryLimit { in_use: || 11, max: 10 };
    let refusal = Refusal::LimitReached(ReachedLimit { limit: Limit::Memory, max: 10, is_share: false });
    let mut server = Server::new();
    let call = server.call(0);
    let claim = Claim::new(1, 1).unwrap();
    let wants = [Want { kind: Kind::Of(SEMAPHORES), name: NAME, claim, slot: None, is_shared: false }];
    let queueing = Queueing { wait_ms: 1000, queue_max: u32::MAX };
    let outcome = server.core.acquire_grant(call, &wants, queueing, START);
    let Outcome::Answered(Answer::Granted(granted)) = &outcome else { panic!("{outcome:?}") };

    server.core.set_ledger_limits(LedgerLimits { memory: FULL, ..LedgerLimits::NONE });
    assert_eq!(server.core.acquire_grant(call, &wants, queueing, START), outcome, "the same request");
    assert_eq!(server.acquire(1, &[NAME]), Outcome::Refused(refusal));
    let (id, key) = (server.id(1), SessionKey([1; 16]));
    let opened = server.core.open_leased(id, key, 1000, b"", Token(0), START);
    assert_eq!(opened, Outcome::Refused(refusal));
    assert_eq!(server.declare(1, 1, false), Outcome::Refused(refusal));
    let watched = server.core.watch(id, Token(9), SEMAPHORES, Scope::Name(NAME), START);
    assert_eq!(watched.err(), Some(refusal));
    let idle = server.core.await_idle((id, Token(8)), (SEMAPHORES, NAME), Idle::Level(0), 1, START);
    assert_eq!(idle, Outcome::Refused(refusal));
    assert_eq!(server.core.ledger_stats().limited, 5);
    let call = server.call(0);
    assert_eq!(server.core.release_grant(call, granted.grant, false, START), Outcome::Answered(Answer::Done));

    // The refusal was not remembered.
    server.core.set_ledger_limits(LedgerLimits::NONE);
    server.granted(1, &[NAME]);
    assert_eq!(server.core.check_ledger(), Ok(()));
}

#[test]
fn events_of_other_watches_stay_when_one_ends() {
    let mailbox = Mailbox::default();
    let event = Event {
        kind: EventKind::Granted,
        namespace: SEMAPHORES,
        name: NAME.into(),
        grant: None,
        session: None,
        resources: 1,
        in_use: 1,
        waiting: 0,
    };
    let messages = [1, 2, 2].map(|watch| Message::Event { token: Token(watch), event: event.clone() });
    for message in messages.clone() {
        mailbox.put(message);
    }
    mailbox.drop_events(Token(1));
    let left: Vec<_> = std::iter::from_fn(|| mailbox.take()).collect();
    assert_eq!(left, messages[1..]);
}

#[test]
fn a_sweep_finds_more_when_the_interval_ends() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    for (now, boundary) in [(0, 10), (9, 10), (10, 20), (25, 30), (u64::MAX, u64::MAX)] {
        assert_eq!(core.next_boundary(UnixSeconds(now)), UnixSeconds(boundary), "at {now}");
    }
}

#[test]
fn a_mark_above_all_ids_is_not_restored() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    for (mark, is_restored) in [(1, true), (u64::MAX - 1, false), (u64::MAX, false)] {
        assert_eq!(core.restore(Record::Mark(mark), START).is_ok(), is_restored, "{mark}");
    }
}

#[test]
fn a_revoked_session_ends_after_a_restart_too() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let (session, key) = (SessionId::from_number(1).unwrap(), SessionKey([1; 16]));
    let revoked_grace_ms = Some(500);
    let record = SessionRecord { session, key, ttl_ms: 1000, label: Box::default(), revoked_grace_ms };
    core.restore(Record::Session(record), START).unwrap();
    core.keep_journal(Waker::noop().clone(), None);
    core.begin_serving(START.monotonic, START);
    for (at_ms, sessions) in [(499, 1), (500, 0)] {
        while core.expire(Moment { monotonic: MonotonicMs(at_ms), ..START }) {}
        assert_eq!(core.ledger_stats().sessions, sessions, "at {at_ms} ms");
    }
}

#[test]
fn a_client_that_closes_its_session_is_answered_when_the_end_is_stored() {
    let server = Server::with_store();
    server.open(0);
    assert_eq!(server.core.close_leased(server.id(0), Token(7), START), Outcome::Waiting);
    assert_eq!(server.messages(0), []);
    server.store();
    let closed = matches!(server.messages(0)[..], [Message::Answer { token: Token(7), outcome: Ok(_) }]);
    assert!(closed, "after the end is stored");
    assert_eq!(server.core.ledger_stats().expired_sessions, 0, "a session that was closed has not expired");
}

#[test]
fn a_sweep_reports_how_many_names_it_removed() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let mut session = core.open_session();
    for name in [b"a", b"b", b"c"] {
        core.acquire(SEMAPHORES, name, Claim::new(1, 1).unwrap(), &mut session, START.unix).unwrap();
    }
    for name in [b"a", b"b"] {
        core.release(SEMAPHORES, name, 1, &mut session, START.unix).unwrap();
    }
    let mut sweep = core.sweep(SEMAPHORES);
    while sweep.step(1, START.unix) {}
    assert_eq!(sweep.collected(), 2);
}

/// A semaphore with two slots.
fn two_slots() -> Server {
    let mut server = Server::new();
    assert!(matches!(server.declare(0, 2, true), Outcome::Answered(_)));
    server
}

#[test]
fn a_slot_out_of_service_makes_no_room_when_its_holder_leaves() {
    let mut server = two_slots();
    let granted = server.granted(0, &[NAME]);
    assert_eq!(*granted.slots, [[0].into()]);
    let call = server.call(0);
    let out = server.core.change(
        call,
        Operation::ChangeService { name: NAME, how: ServiceChange::SlotOut(0), expected: None },
        START,
    );
    assert!(matches!(out, Outcome::Answered(_)));
    let call = server.call(0);
    assert!(matches!(server.core.release_grant(call, granted.grant, false, START), Outcome::Answered(_)));
    assert_eq!(server.core.check_ledger(), Ok(()));
    assert_eq!(*server.granted(0, &[NAME]).slots, [[1].into()]);
    assert_eq!(server.acquire(0, &[NAME]), Outcome::Waiting, "the other slot is out of service");
}

#[test]
fn a_request_that_waits_for_a_slot_is_not_overtaken() {
    let mut server = two_slots();
    assert_eq!(*server.granted(0, &[NAME]).slots, [[0].into()]);
    let want = Want {
        kind: Kind::Of(SEMAPHORES),
        name: NAME,
        claim: Claim::new(1, 1).unwrap(),
        slot: Some(0),
        is_shared: false,
    };
    let queueing = Queueing { wait_ms: u32::MAX, queue_max: u32::MAX };
    let call = server.call(1);
    assert_eq!(server.core.acquire_grant(call, &[want], queueing, START), Outcome::Waiting);
    assert_eq!(server.acquire(0, &[NAME]), Outcome::Waiting, "slot 1 is free, but another request is first");
}

#[test]
fn a_pause_that_is_stored_after_the_configuration_changed_the_semaphore_refuses_no_waiter() {
    let mut server = Server::with_store();
    server.configure(Some(1));
    server.store();
    let granted = server.granted(0, &[NAME]);
    assert_eq!(server.acquire(1, &[NAME]), Outcome::Waiting);
    assert_eq!(server.change_service(0, ServiceChange::Pause), Outcome::Waiting);
    server.configure(Some(2));
    server.store();
    while server.core.expire(START) {}
    assert_eq!(server.messages(1), [], "it waits");
    let call = server.call(0);
    assert!(matches!(server.core.release_grant(call, granted.grant, false, START), Outcome::Answered(_)));
    assert_eq!(server.change_service(0, ServiceChange::Resume), Outcome::Waiting);
    server.store();
    assert!(matches!(server.messages(1)[..], [Message::Answer { outcome: Ok(Answer::Granted(_)), .. }]));
}

#[test]
fn a_semaphore_that_the_configuration_removes_is_not_paused_until_its_last_holder_leaves() {
    let mut server = Server::with_store();
    server.configure(Some(1));
    server.granted(0, &[NAME]);
    assert_eq!(server.change_service(0, ServiceChange::Pause), Outcome::Waiting);
    server.store();
    assert!(server.service().paused);
    server.configure(None);
    assert_eq!(server.service(), Service::default());
}

#[test]
fn a_semaphore_that_the_configuration_removes_has_a_new_generation() {
    let mut server = Server::new();
    let generation = |server: &Server| {
        let listed = server.core.list_declared(&mut server.core.declared(b""));
        (listed[0].record.removing, listed[0].record.generation)
    };
    server.configure(Some(1));
    server.granted(0, &[NAME]);
    let (_, before) = generation(&server);
    server.configure(None);
    let (is_removing, after) = generation(&server);
    assert!(is_removing && after > before, "{before}, {after}");
}

#[test]
fn a_request_for_a_semaphore_that_ends_with_its_last_holder_is_refused() {
    let mut server = Server::new();
    server.declare(0, 1, false);
    server.granted(0, &[NAME]);
    let call = server.call(1);
    let removed = server.core.change(call, removing(NAME, Removal::WithLastHolder), START);
    assert!(matches!(removed, Outcome::Answered(Answer::Declared(_))), "{removed:?}");
    assert_eq!(server.acquire(1, &[NAME]), Outcome::Refused(Refusal::Removed));
}

#[test]
fn a_request_that_could_not_be_stored_is_counted() {
    let mut server = Server::with_store();
    server.open(0);
    assert_eq!(server.acquire(0, &[NAME]), Outcome::Waiting);
    let batch = server.core.take_batch(BatchLimit::NONE).unwrap();
    while server.core.complete(&batch, CommitOutcome::Failed, 1, START) {}
    let refused = Message::Answer { token: Token(server.requests), outcome: Err(Refusal::NotStored) };
    assert_eq!(server.messages(0), [refused]);
    assert_eq!(server.core.ledger_stats().not_stored, 1);
}

#[test]
fn a_grant_has_as_many_slots_as_a_grant_may_have() {
    let mut server = Server::new();
    let count = GRANT_SLOTS_MAX as u32;
    assert!(matches!(server.declare(0, count, true), Outcome::Answered(_)));
    let want = Want {
        kind: Kind::Of(SEMAPHORES),
        name: NAME,
        claim: Claim::new(count, count).unwrap(),
        slot: None,
        is_shared: false,
    };
    let call = server.call(0);
    match server.core.acquire_grant(call, &[want], Queueing { wait_ms: 0, queue_max: 0 }, START) {
        Outcome::Answered(Answer::Granted(granted)) => assert_eq!(granted.slots[0].len(), GRANT_SLOTS_MAX),
        other => panic!("{other:?}"),
    }
}

/// An unused semaphore may still have the capacity that its last holder gave it.
#[test]
fn an_unused_semaphore_has_its_declared_capacity_before_the_declaration_is_stored() {
    let mut server = Server::with_store();
    let (session, _) = &mut server.connections[1];
    server.core.acquire(SEMAPHORES, NAME, Claim::new(1, 5).unwrap(), session, START.unix).unwrap();
    server.core.release(SEMAPHORES, NAME, 1, session, START.unix).unwrap();
    assert_eq!(server.declare(0, 2, false), Outcome::Waiting);
    server.granted(0, &[NAME]);
    server.granted(0, &[NAME]);
    assert_eq!(server.acquire(0, &[NAME]), Outcome::Waiting, "2 of 2 are in use");
}

#[test]
fn all_holders_lose_the_semaphores_whose_grace_periods_end_at_the_same_time() {
    let mut server = Server::new();
    for (by, name) in [b"a", b"b"].into_iter().enumerate() {
        let declare = Declaration { name, capacity: 1, numbered: false, label: b"" };
        let call = server.call(by);
        server.core.change(call, declaring(IfExists::Fail, &[declare]), START);
        let (session, _) = &mut server.connections[by];
        server.core.acquire(SEMAPHORES, name, Claim::new(1, 1).unwrap(), session, START.unix).unwrap();
        let call = server.call(by);
        server.core.change(call, removing(name, Removal::Now { grace: Milliseconds(1000) }), START);
    }
    let mailbox_of = |connection| {
        let of = server.connections.iter().find(|(session, _)| session.id() == connection);
        of.map(|(_, mailbox)| Arc::clone(mailbox))
    };
    let are_closed = || server.connections.iter().map(|(_, mailbox)| mailbox.is_closed()).collect::<Vec<_>>();
    for (ms, closed) in [(0, false), (999, false), (1000, true)] {
        while server.core.evict(at(ms), mailbox_of) {}
        while server.core.expire(at(ms)) {}
        assert_eq!(are_closed(), [closed; 2], "at {ms} ms");
    }
}

#[test]
fn the_rest_of_the_longest_lease_is_a_number_of_milliseconds() {
    let server = Server::new();
    server.core.open_leased(server.id(0), SessionKey([1; 16]), u32::MAX, b"", Token(0), START);
    // `u32::MAX` stands for a session without a lease.
    assert_eq!(server.core.keep_alive(server.id(0), START), Ok(u32::MAX - 1));
}

#[test]
fn every_suspension_of_the_machine_extends_a_lease() {
    const SUSPENSIONS: u64 = 64;
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    core.restore(Record::Session(session_record(1, 1_000_000)), START).unwrap();
    core.keep_journal(Waker::noop().clone(), None);
    core.begin_serving(START.monotonic, START);
    let mut ms = 0;
    for _ in 0..=SUSPENSIONS {
        while core.expire(at(ms)) {}
        ms += 10_000;
    }
    let end = 1_000_000 + SUSPENSIONS * 10_000;
    for ms in (ms - 10_000..=end).step_by(1000) {
        while core.expire(at(ms)) {}
        assert_eq!(core.ledger_stats().sessions, u64::from(ms < end), "at {ms} ms");
    }
}

#[test]
fn leases_that_were_renewed_are_looked_at_in_steps() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    for number in 1..=200 {
        core.restore(Record::Session(session_record(number, 1000)), START).unwrap();
    }
    core.keep_journal(Waker::noop().clone(), None);
    core.begin_serving(at(500).monotonic, at(500));
    let mut steps = 1;
    while core.expire(at(1000)) {
        steps += 1;
    }
    assert!(steps >= 3, "{steps} steps look at 200 leases");
    assert_eq!(core.ledger_stats().sessions, 200);
}

/// The end of each of them takes long: all its replies must be deleted from the store.
#[test]
fn sessions_with_many_replies_end_in_a_step_each() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    for number in 1..=4 {
        let record = session_record(number, 1000);
        let session = record.session;
        core.restore(Record::Session(record), START).unwrap();
        for request in 1..=1024 {
            let answer = AnswerRecord { session, request: RequestId(request), answer: Box::default() };
            core.restore(Record::Answer(answer), START).unwrap();
        }
    }
    core.keep_journal(Waker::noop().clone(), None);
    core.begin_serving(START.monotonic, START);
    for sessions in (0..4).rev() {
        assert_eq!(core.expire(at(1000)), sessions > 0);
        assert_eq!(core.ledger_stats().sessions, sessions);
    }
}

#[test]
fn a_request_that_is_repeated_after_a_restart_gets_the_same_answer() {
    let mut server = Server::new();
    let (record, state) =
        (session_record(100, 1000), DeclaredState { generation: Generation(3), capacity: 2, in_use: 1 });
    let (session, key) = (record.session, SessionKey([1; 16]));
    let answer = AnswerRecord { session, request: RequestId(1), answer: [state].into() };
    let error = server.core.restore(Record::Answer(answer.clone()), START).unwrap_err();
    assert_eq!(error, "an answer belongs to session 100, which does not exist");
    server.core.restore(Record::Session(record), START).unwrap();
    server.core.restore(Record::Answer(answer), START).unwrap();
    server.core.attach(session, server.id(0), &key, 0).unwrap();
    // The semaphore was removed since.
    assert_eq!(server.declare(0, 2, false), Outcome::Answered(Answer::Declared([state].into())));
    assert!(server.core.list_declared(&mut server.core.declared(b"")).is_empty());
}

#[test]
fn a_slot_that_is_twice_out_of_service_is_not_restored() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let restore = |slots_out: &[u16]| {
        let service = Service { paused: false, slots_out: slots_out.into() };
        core.restore(Record::Declaration(declaration(NAME, 3, service)), START)
    };
    for slots_out in [&[1, 1][..], &[1, 0]] {
        assert_eq!(restore(slots_out).unwrap_err(), "a has slots out of service that it cannot have");
    }
    restore(&[0, 1]).unwrap();
}

/// A check of a store compares records.
#[test]
fn records_of_sessions_are_equal_if_all_their_fields_are() {
    let record = session_record(1, 1000);
    assert_eq!(record, record.clone());
    for other in [
        session_record(2, 1000),
        session_record(1, 2000),
        SessionRecord { key: SessionKey([2; 16]), ..record.clone() },
        SessionRecord { label: b"a"[..].into(), ..record.clone() },
        SessionRecord { revoked_grace_ms: Some(0), ..record.clone() },
    ] {
        assert_ne!(record, other);
    }
}
