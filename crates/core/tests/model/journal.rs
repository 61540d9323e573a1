//! The ledger with a store that fails and a server that crashes: random histories, and the invariants of each of them.
//!
//! There is no model that predicts the answers. The answers that clients received are compared with the disk and with
//! the ledger: nothing is acknowledged before it is stored, acknowledged state survives a crash, an id is given once.
//! `PROPTEST_CASES=1500000 cargo test --release --test model journal::` runs it for an hour.

mod run;

use std::sync::Arc;
use std::task::Waker;

use proptest::prelude::*;
use run::{NAMES, Request, Run, Step};
use signalbox_core::{
    Answer, BatchLimit, Call, Claim, CommitOutcome, Core, GrantRecord, Kind, Moment, MonotonicMs, NameHasher,
    Outcome, PartRecord, Queueing, Record, Service, SessionRecord, Token, Want,
};
use signalbox_model::{
    GrantId, IfExists, Namespace, Refusal, Removal, RequestId, RequestIds, Resizing, ServiceChange,
    SessionId, SessionKey,
};
use signalbox_model::{Milliseconds, UnixSeconds};

use crate::{cases, declaration};

fn requests() -> impl Strategy<Value = Request> {
    let names = || prop_oneof![3 => Just(0), 1 => Just(1)].prop_map(|name: usize| NAMES[name]);
    let amounts = prop_oneof![6 => 1..=2u32, 1 => Just(4)];
    let wants = prop_oneof![
        3 => (names(), amounts).prop_map(|want| vec![want]),
        1 => (1..=2u32).prop_map(|resources| NAMES.map(|name| (name, resources)).to_vec()),
    ];
    let removals = prop_oneof![
        1 => Just(Removal::IfIdle),
        3 => Just(Removal::WithLastHolder),
        2 => prop::sample::select(vec![0, 500]).prop_map(|ms| Removal::Now { grace: Milliseconds(ms) }),
    ];
    let capacities = || prop_oneof![9 => 0..5u32, 1 => Just(2 * run::MANY)];
    let resizings = prop_oneof![
        2 => (0..5u32).prop_map(Resizing::To),
        2 => (1..3u32).prop_map(Resizing::GrowBy),
        1 => (1..3u32).prop_map(Resizing::ShrinkBy),
    ];
    let slots = || prop_oneof![6 => 0..4u16, 1 => Just(70)];
    let service_changes = prop_oneof![
        1 => Just(ServiceChange::Pause),
        1 => Just(ServiceChange::Resume),
        2 => slots().prop_map(ServiceChange::SlotOut),
        1 => slots().prop_map(ServiceChange::SlotIn),
    ];
    let if_exist = prop::sample::select(vec![IfExists::Fail, IfExists::Keep, IfExists::Set, IfExists::Set]);
    let graces_ms = prop::sample::select(vec![0, 500]);
    prop_oneof![
        10 => (wants, any::<bool>()).prop_map(|(wants, waits)| Request::Acquire { wants, slot: None, waits }),
        3 => (names(), slots(), any::<bool>()).prop_map(|(name, slot, waits)| Request::Acquire {
            wants: vec![(name, 1)],
            slot: Some(slot),
            waits,
        }),
        4 => (names(), service_changes).prop_map(|(name, change)| Request::ChangeService { name, change }),
        5 => any::<usize>().prop_map(|grant| Request::Release { grant }),
        5 => (names(), capacities(), prop::bool::weighted(0.6), if_exist).prop_map(
            |(name, capacity, numbered, if_exists)| Request::Declare { name, capacity, numbered, if_exists }
        ),
        4 => (names(), resizings).prop_map(|(name, resizing)| Request::Resize { name, resizing }),
        3 => (names(), removals).prop_map(|(name, removal)| Request::Remove { name, removal }),
        1 => (any::<usize>(), graces_ms).prop_map(|(grant, grace_ms)| Request::Revoke { grant, grace_ms }),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let by = || 0..run::CONNECTIONS;
    let choice = any::<usize>;
    prop_oneof![
        30 => (by(), requests(), prop::bool::weighted(0.2))
            .prop_map(|(by, request, drops_answers)| Step::Ask { by, request, drops_answers }),
        4 => (by(), choice()).prop_map(|(by, back)| Step::Repeat { by, back }),
        5 => by().prop_map(|by| Step::Open { by }),
        4 => (by(), choice()).prop_map(|(by, session)| Step::Attach { by, session }),
        2 => by().prop_map(|by| Step::Close { by }),
        2 => by().prop_map(|by| Step::Leave { by }),
        1 => prop::collection::vec((0..2usize, 0..5u32), 0..=1)
            .prop_map(|wanted| Step::Configure { wanted }),
        3 => (by(), 1..=2u32).prop_map(|(by, resources)| Step::PlainAcquire { by, resources }),
        2 => by().prop_map(|by| Step::PlainRelease { by }),
        12 => Just(Step::Take),
        12 => Just(Step::Complete { is_stored: true, is_on_disk: true }),
        6 => Just(Step::CompleteOne),
        4 => any::<bool>().prop_map(|is_on_disk| Step::Complete { is_stored: false, is_on_disk }),
        3 => (any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(is_on_disk, is_mark_stored)| Step::Crash { is_on_disk, is_mark_stored }),
        3 => prop::sample::select(vec![1, 400, 900]).prop_map(|by_ms| Step::Time { by_ms }),
    ]
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn acknowledged_state_survives_failures_and_crashes(
        holds_many in prop::bool::weighted(0.2),
        history in prop::collection::vec(steps(), 1..60),
    ) {
        let begun = if holds_many { holding_many() } else { Vec::new() };
        take(&[begun, history].concat());
    }
}

/// Takes the steps, checks the invariants after each of them, and checks what a restarted process finds at the end.
fn take(history: &[Step]) {
    let mut run = Run::new();
    for step in history {
        run.step(step);
    }
    run.store_all();
    run.step(&Step::Crash { is_on_disk: true, is_mark_stored: true });
}

// Faults that random histories found.

const STORE: [Step; 2] = [Step::Take, Step::Complete { is_stored: true, is_on_disk: true }];
const FAIL: [Step; 2] = [Step::Take, Step::Complete { is_stored: false, is_on_disk: false }];

fn ask(by: usize, request: Request) -> Step {
    Step::Ask { by, request, drops_answers: false }
}

fn acquire(by: usize, resources: u32) -> Step {
    ask(by, Request::Acquire { wants: vec![(NAMES[0], resources)], slot: None, waits: true })
}

fn remove(by: usize, removal: Removal) -> Step {
    ask(by, Request::Remove { name: NAMES[0], removal })
}

fn declare(by: usize, capacity: u32, if_exists: IfExists) -> Step {
    let request = Request::Declare { name: NAMES[0], capacity, numbered: false, if_exists };
    ask(by, request)
}

#[test]
fn a_declare_that_changes_nothing_is_answered_when_the_existing_declaration_is_stored() {
    take(&[declare(0, 1, IfExists::Fail), declare(1, 1, IfExists::Keep)]);
}

#[test]
fn an_answer_in_flight_to_the_store_is_deleted_with_its_session() {
    take(&[Step::Open { by: 0 }, declare(0, 1, IfExists::Fail), Step::Close { by: 0 }]);
}

#[test]
fn an_answer_in_flight_to_the_store_is_deleted_when_the_client_no_longer_needs_it() {
    let request = Request::Release { grant: 0 };
    let last = Step::Ask { by: 0, request, drops_answers: true };
    let requests = [Step::Open { by: 0 }, declare(0, 1, IfExists::Fail), last];
    take(&[&requests[..], &STORE, &[Step::Close { by: 0 }]].concat());
}

#[test]
fn the_repetition_of_a_resize_that_changed_nothing_is_answered_alike_after_a_crash() {
    let resize = Request::Resize { name: NAMES[0], resizing: Resizing::To(1) };
    let before =
        [&[Step::Open { by: 0 }, declare(0, 1, IfExists::Fail)][..], &STORE, &[ask(0, resize)], &STORE];
    let later = [&[declare(1, 3, IfExists::Set)][..], &STORE];
    let crash = Step::Crash { is_on_disk: true, is_mark_stored: true };
    let after = [crash, Step::Attach { by: 0, session: 0 }, Step::Repeat { by: 0, back: 0 }];
    take(&[before.concat(), later.concat(), after.into()].concat());
}

#[test]
fn an_older_change_does_not_reopen_a_semaphore_that_is_being_removed() {
    let requests = [declare(0, 2, IfExists::Fail), remove(0, Removal::IfIdle), acquire(0, 1)];
    take(&[&requests[..], &STORE].concat());
}

#[test]
fn a_removed_semaphore_ends_with_its_last_holder_if_its_new_declaration_is_not_stored() {
    let removed = [acquire(1, 1), remove(0, Removal::WithLastHolder)];
    let again = [declare(0, 2, IfExists::Set), Step::Leave { by: 1 }];
    take(&[&[declare(0, 2, IfExists::Fail)][..], &STORE, &removed, &STORE, &again, &FAIL].concat());
}

#[test]
fn waiters_that_cannot_be_served_are_refused_when_a_removal_is_not_stored() {
    let requests = [acquire(1, 1), remove(0, Removal::WithLastHolder), acquire(2, 3), acquire(2, 4)];
    take(&[&[declare(0, 3, IfExists::Fail)][..], &STORE, &requests, &FAIL].concat());
}

#[test]
fn an_acknowledged_declaration_stays_if_a_later_removal_is_not_stored() {
    let first = [declare(0, 2, IfExists::Fail)];
    let again = [remove(0, Removal::IfIdle), declare(0, 3, IfExists::Fail), Step::Take];
    let stored = [remove(0, Removal::IfIdle), Step::Complete { is_stored: true, is_on_disk: true }];
    take(&[&first[..], &STORE, &again, &stored, &FAIL].concat());
}

/// Each request takes an id. The next run must not use the ids of this run again, so ids are reserved on disk.
#[test]
fn a_store_that_hangs_does_not_block_grants_without_a_lease() {
    let interval_s = 10.try_into().unwrap();
    let core = Core::new(interval_s, NameHasher::with_seeds(1, 2, 3, 4));
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    core.keep_journal(Waker::noop().clone(), None);
    core.begin_serving(now.monotonic, now);
    let batch = core.take_batch(BatchLimit::NONE).unwrap();
    while core.complete(&batch, CommitOutcome::Stored, 1, now) {}
    let connection = core.open_session();
    core.join(connection.id(), None, &Arc::default());
    let wants = [Want {
        kind: Kind::Of(Namespace::Counters),
        name: b"a",
        claim: Claim::new(1, 1).unwrap(),
        slot: None,
        is_shared: false,
    }];
    for own in 1..=3_000_000 {
        let ids = RequestIds { own: RequestId(own), lowest_unanswered: RequestId(own) };
        let call = Call { connection: connection.id(), ids, token: Token(own) };
        let outcome = core.acquire_grant(call, &wants, Queueing { wait_ms: 0, queue_max: 1 }, now);
        let is_right = match outcome {
            Outcome::Answered(Answer::Granted(_)) => own == 1,
            Outcome::Refused(refusal) => refusal == Refusal::NotAvailable,
            _ => false,
        };
        assert!(is_right, "request {own}: {outcome:?}");
    }
}

/// The releases are acknowledged although the write fails, and the next write stores them.
#[test]
fn releases_that_arrive_while_a_write_fails_are_stored_with_the_next_one() {
    let open = [Step::Open { by: 0 }];
    let acquires: Vec<_> = (0..3).map(|_| acquire(0, 1)).collect();
    let release = |grant| ask(0, Request::Release { grant });
    let begun = [declare(1, 1, IfExists::Fail), Step::Take];
    let failed = [Step::Complete { is_stored: false, is_on_disk: false }];
    for releases in [&[release(0)][..], &[release(0), release(1), release(2)]] {
        let history = [&open[..], &STORE, &acquires, &STORE, &begun, releases, &failed, &STORE].concat();
        take(&history);
    }
}

/// A session holds so many slots of the first name that the free slots are in a second word of 64 bits.
fn holding_many() -> Vec<Step> {
    let (name, capacity) = (NAMES[0], 2 * run::MANY);
    let numbered = Request::Declare { name, capacity, numbered: true, if_exists: IfExists::Fail };
    let begun = [Step::Open { by: 0 }, ask(1, numbered)];
    [&begun[..], &STORE, &[acquire(0, run::MANY)], &STORE].concat()
}

#[test]
fn slots_in_a_second_bitmap_word_are_held_after_a_restart() {
    let crash = Step::Crash { is_on_disk: false, is_mark_stored: true };
    let others = [acquire(1, 1), acquire(1, run::MANY - 2)];
    take(&[&holding_many()[..], &[acquire(0, 1)], &STORE, &[crash], &others].concat());
}

fn session_record(number: u64, ttl_ms: u32) -> Record {
    let session = SessionId::from_number(number).unwrap();
    let (key, label) = (SessionKey([1; 16]), Box::default());
    Record::Session(SessionRecord { session, key, ttl_ms, label, revoked_grace_ms: None })
}

/// Reading the records and the first flush may take longer than a lease.
#[test]
fn leases_and_grace_periods_go_on_when_the_server_begins() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let at = |ms| Moment { monotonic: MonotonicMs(ms), unix: UnixSeconds(0) };
    core.restore(session_record(1, 1000), at(0)).unwrap();
    let Record::Session(other) = session_record(2, 1000) else { unreachable!() };
    core.restore(Record::Session(SessionRecord { revoked_grace_ms: Some(700), ..other }), at(0)).unwrap();
    let part = PartRecord {
        namespace: Namespace::Semaphores,
        name: b"a"[..].into(),
        position: 0,
        resources: 1,
        capacity: 1,
        slots: Box::default(),
    };
    let grant = GrantRecord {
        grant: GrantId(1),
        session: SessionId::from_number(1).unwrap(),
        request: RequestId(1),
        since: UnixSeconds(0),
        revoked_grace_ms: Some(300),
        parts: [part].into(),
    };
    core.restore(Record::Grant(grant), at(0)).unwrap();
    core.keep_journal(Waker::noop().clone(), None);
    core.begin_serving(at(0).monotonic, at(5000));
    let cases =
        [(5000, 2, 1), (5299, 2, 1), (5300, 2, 0), (5699, 2, 0), (5700, 1, 0), (5999, 1, 0), (6000, 0, 0)];
    for (at_ms, sessions, grants) in cases {
        while core.expire(at(at_ms)) {}
        let stats = core.ledger_stats();
        assert_eq!((stats.sessions, stats.grants), (sessions, grants), "at {at_ms} ms");
    }
}

#[test]
fn a_slot_that_two_grants_have_is_not_restored() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    core.restore(Record::Declaration(declaration(b"a", 100, Service::default())), now).unwrap();
    core.restore(session_record(1, 1000), now).unwrap();
    let restore = |grant, slots: &[u16]| {
        let part = PartRecord {
            namespace: Namespace::Semaphores,
            name: b"a"[..].into(),
            position: 0,
            resources: slots.len() as u32,
            capacity: 100,
            slots: slots.into(),
        };
        let record = GrantRecord {
            grant: GrantId(grant),
            session: SessionId::from_number(1).unwrap(),
            request: RequestId(grant),
            since: UnixSeconds(0),
            revoked_grace_ms: None,
            parts: [part].into(),
        };
        core.restore(Record::Grant(record), now)
    };
    restore(2, &[0, 70]).unwrap();
    restore(3, &[1]).unwrap();
    for slots in [&[70][..], &[2, 70], &[3, 2]] {
        let refused = restore(4, slots).unwrap_err();
        assert_eq!(refused, "grant 4 has slots of a that it cannot have");
    }
}

/// The previous process may have given out ids up to the mark on disk.
#[test]
fn nothing_is_granted_before_the_first_mark_is_stored() {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    core.restore(Record::Mark(1000), now).unwrap();
    core.keep_journal(Waker::noop().clone(), None);
    core.begin_serving(now.monotonic, now);
    let connection = core.open_session();
    core.join(connection.id(), None, &Arc::default());
    let wants = [Want {
        kind: Kind::Of(Namespace::Counters),
        name: b"a",
        claim: Claim::new(1, 1).unwrap(),
        slot: None,
        is_shared: false,
    }];
    let acquire = |own| {
        let ids = RequestIds { own: RequestId(own), lowest_unanswered: RequestId(own) };
        let call = Call { connection: connection.id(), ids, token: Token(own) };
        core.acquire_grant(call, &wants, Queueing { wait_ms: 0, queue_max: 1 }, now)
    };
    assert_eq!(acquire(1), Outcome::Refused(Refusal::NotStored));
    let batch = core.take_batch(BatchLimit::NONE).unwrap();
    assert!(!core.complete(&batch, CommitOutcome::Stored, usize::MAX, now));
    let outcome = acquire(2);
    assert!(
        matches!(&outcome, Outcome::Answered(Answer::Granted(granted)) if granted.grant.0 == 1001),
        "{outcome:?}"
    );
}

#[test]
fn a_grant_made_during_a_removal_at_once_may_be_revoked_before_it_is_answered() {
    let once = |by| ask(by, Request::Acquire { wants: vec![(NAMES[0], 1)], slot: None, waits: false });
    let removed = [declare(0, 0, IfExists::Fail), remove(0, Removal::Now { grace: Milliseconds(0) })];
    let requests = [once(0), Step::Open { by: 1 }, once(1)];
    take(&[&requests[..], &removed, &STORE, &[Step::Time { by_ms: 1 }]].concat());
}
