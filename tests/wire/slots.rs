//! Particular slots, slots out of service, and paused semaphores, over real sockets (`docs/protocol.md`, "AcquireGrant",
//! "Pause" and "SetSlot"). The store is in memory here.

use crate::support::caller::{
    Caller, Changes, LONG, NOW, counted, declare_new, for_ms, list, numbered, one_of, semaphore,
};
use crate::support::failing::Fault;
use crate::support::store::{By, StoredServer};
use crate::support::{NOT_AVAILABLE, NOT_FOUND, OK, eventually};
use signalbox_core::{Moment, MonotonicMs};
use signalbox_model::{
    Claim, DeclaredEntry, DeclaredState, Event, EventKind, Generation, GrantState, Idle, Namespace, Resizing,
    Scope, Status,
};
use signalbox_model::{Declaration, Operation, ServiceChange, UnixSeconds};
use signalbox_protocol::{Claims, Extended, Opaque, ResponseFrame, Wait};
use signalbox_storage::Memory;

const NO_SUCH_SLOT: u8 = Status::NoSuchSlot as u8;
const LONG_MS: u32 = 60_000;

fn start() -> StoredServer {
    StoredServer::start(&Memory::default())
}

fn caller(server: &StoredServer) -> Caller {
    Caller::new(server.server.semaphore())
}

fn callers<const COUNT: usize>(server: &StoredServer) -> [Caller; COUNT] {
    std::array::from_fn(|_| caller(server))
}

/// Any resource of a declared semaphore.
fn any(name: &[u8]) -> Claim<'_> {
    semaphore(1, name)
}

fn slot(number: u16, name: &[u8]) -> Claim<'_> {
    Claim { slot: Some(number), ..any(name) }
}

fn ask_to_pause(caller: &mut Caller, name: &[u8], how: ServiceChange) -> ResponseFrame {
    caller.change(Operation::ChangeService { expected: None, how, name })
}

#[track_caller]
fn pause(caller: &mut Caller, name: &[u8], how: ServiceChange) -> Generation {
    let answer = ask_to_pause(caller, name, how);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.resized().generation
}

fn ask_to_set(caller: &mut Caller, name: &[u8], how: ServiceChange) -> ResponseFrame {
    caller.change(Operation::ChangeService { expected: None, how, name })
}

#[track_caller]
fn set_slot(caller: &mut Caller, name: &[u8], how: ServiceChange) -> Generation {
    let answer = ask_to_set(caller, name, how);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.resized().generation
}

#[track_caller]
fn resize(caller: &mut Caller, name: &[u8], how: Resizing) -> DeclaredState {
    let answer = caller.change(Operation::Resize { expected: None, how, name });
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.resized()
}

fn listed(caller: &mut Caller, name: &[u8]) -> DeclaredEntry<bytes::Bytes> {
    list(caller, name).into_iter().find(|entry| &entry.name[..] == name).unwrap()
}

/// The status of a request that does not wait.
fn try_take(caller: &mut Caller, claim: Claim<'_>) -> u8 {
    let opaque = caller.want(claim, NOW);
    caller.answer(opaque).status
}

/// The slots of a request that has waited.
#[track_caller]
fn slots_of(caller: &mut Caller, opaque: Opaque) -> Vec<u16> {
    let answer = caller.answer(opaque);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.granted().unwrap().slots
}

fn wait_for_waiters(server: &StoredServer, count: u64) {
    let core = server.server.server.core();
    eventually(&format!("{count} requests wait"), || core.ledger_stats().waiters == count);
}

#[test]
fn a_particular_slot_is_granted_in_the_order_of_the_queue() {
    let server = start();
    let [mut admin, mut holder, mut first, mut second, mut plain] = callers(&server);
    declare_new(&mut admin, numbered(b"gpu", 8));
    assert_eq!(holder.take(slot(3, b"gpu")).slots, [3]);
    assert_eq!(holder.take(any(b"gpu")).slots, [0], "others get the lowest free slot");
    let held = holder.take(slot(5, b"gpu"));
    assert_eq!(try_take(&mut first, slot(5, b"gpu")), NOT_AVAILABLE);

    let waits = first.want(slot(5, b"gpu"), LONG);
    wait_for_waiters(&server, 1);
    // Slots 1, 2, 4, 6 and 7 are free, but the first in the queue waits for slot 5, and nothing overtakes it.
    let behind = second.want(any(b"gpu"), LONG);
    wait_for_waiters(&server, 2);
    assert_eq!(plain.wire.acquire(b"gpu", 1, 8).status, NOT_AVAILABLE);
    let waiters = admin.send(&Extended::Waiters { namespace: Namespace::Semaphores, name: b"gpu" });
    let waiters: Vec<_> = std::iter::from_fn(|| admin.answer(waiters).list_entry().unwrap()).collect();
    assert_eq!(waiters.iter().map(|waiter| &waiter.slots[..]).collect::<Vec<_>>(), [&[5][..], &[]]);

    assert_eq!(holder.give_back(held.grant), OK);
    assert_eq!(slots_of(&mut first, waits), [5]);
    assert_eq!(slots_of(&mut second, behind), [1]);
    server.check();
}

#[test]
fn a_request_for_several_names_can_name_their_slots() {
    let server = start();
    let [mut admin, mut caller] = callers(&server);
    declare_new(&mut admin, numbered(b"gpu", 8));
    declare_new(&mut admin, numbered(b"tape", 4));
    let (ids, queueing) = (caller.ids(), NOW);
    let list = [slot(7, b"gpu"), one_of(2, b"licences"), slot(2, b"tape")];
    let request = Extended::AcquireAll { ids, queueing, claims: Claims::new(&list).unwrap(), place: None };
    let granted = caller.ask(&request).all_granted().unwrap();
    assert_eq!(granted.slots, [vec![7], vec![], vec![2]]);
    server.check();
}

#[test]
fn a_slot_that_does_not_exist_is_refused_at_once() {
    let server = start();
    let [mut admin, mut holder, mut waiter] = callers(&server);
    declare_new(&mut admin, numbered(b"gpu", 4));
    declare_new(&mut admin, counted(b"counted", 4));
    assert_eq!(admin.wire.acquire(b"implicit", 1, 4).status, OK);
    for name in [&b"gpu"[..], b"counted", b"implicit"] {
        for queueing in [NOW, LONG] {
            let opaque = waiter.want(slot(4, name), queueing);
            assert_eq!(waiter.answer(opaque).status, NO_SUCH_SLOT, "{}", name.escape_ascii());
        }
    }
    assert_eq!(try_take(&mut waiter, slot(0, b"counted")), NO_SUCH_SLOT);
    let made = Claim { maximum: 4, ..slot(0, b"new") };
    assert_eq!(try_take(&mut waiter, made), NOT_FOUND, "a request for a slot makes no semaphore");
    assert_eq!(admin.wire.get(b"new").status, NOT_FOUND);

    // A slot that a shrink removes will not be granted either.
    holder.take(slot(3, b"gpu"));
    let waits = waiter.want(slot(3, b"gpu"), LONG);
    wait_for_waiters(&server, 1);
    resize(&mut admin, b"gpu", Resizing::To(3));
    assert_eq!(waiter.answer(waits).status, NO_SUCH_SLOT);
    server.check();
}

#[test]
fn a_slot_out_of_service_keeps_its_holder_and_is_not_granted_again() {
    let server = start();
    let [mut admin, mut holder, mut waiter, mut other] = callers(&server);
    declare_new(&mut admin, numbered(b"gpu", 3));
    let held = holder.take(slot(1, b"gpu"));
    let out = set_slot(&mut admin, b"gpu", ServiceChange::SlotOut(1));
    assert_eq!(set_slot(&mut admin, b"gpu", ServiceChange::SlotOut(1)), out, "it is out of service already");
    let entry = listed(&mut admin, b"gpu");
    assert_eq!((entry.capacity, entry.in_use, entry.generation, entry.slots_out), (3, 1, out, vec![1]));
    let verified = holder.ask(&Extended::VerifyGrant { grant: held.grant }).verified().unwrap();
    assert_eq!(verified.state, GrantState::Retiring, "its holder should release it soon");

    let namespace = Namespace::Semaphores;
    let (wait, until) = (Wait::ServerDefault, Idle::Slot(1));
    let idle = admin.send(&Extended::AwaitIdle { wait, until, namespace, name: b"gpu" });
    let waits = waiter.want(slot(1, b"gpu"), LONG);
    wait_for_waiters(&server, 1);
    assert_eq!(holder.give_back(held.grant), OK);
    assert_eq!(admin.answer(idle).status, OK, "no grant has the slot");
    waiter.sync();
    assert_eq!(waiter.ask(&Extended::Cancel(signalbox_protocol::WaitingRequest::Opaque(waits))).status, OK);
    assert_eq!(waiter.answer(waits).status, Status::Canceled.code());

    // Two of the three are left, with slots and without.
    assert_eq!(admin.wire.get(b"gpu").number(), 2);
    assert_eq!(other.take(any(b"gpu")).slots, [0]);
    assert_eq!(other.take(any(b"gpu")).slots, [2]);
    assert_eq!(try_take(&mut other, any(b"gpu")), NOT_AVAILABLE);
    assert_eq!(other.wire.acquire(b"gpu", 1, 3).status, NOT_AVAILABLE);
    let waits = waiter.want(any(b"gpu"), LONG);
    wait_for_waiters(&server, 1);
    assert!(set_slot(&mut admin, b"gpu", ServiceChange::SlotIn(1)) > out);
    assert_eq!(slots_of(&mut waiter, waits), [1]);
    assert!(listed(&mut admin, b"gpu").slots_out.is_empty());
    server.check();
}

#[test]
fn a_paused_semaphore_grants_nothing_and_keeps_its_queue() {
    let server = start();
    let [mut admin, mut holder, mut first, mut second, mut plain] = callers(&server);
    declare_new(&mut admin, counted(b"deploys", 2));
    let held = holder.take(any(b"deploys"));
    let paused = pause(&mut admin, b"deploys", ServiceChange::Pause);
    assert_eq!(pause(&mut admin, b"deploys", ServiceChange::Pause), paused, "it is paused already");
    let entry = listed(&mut admin, b"deploys");
    assert!(entry.paused && (entry.capacity, entry.in_use) == (2, 1), "{entry:?}");
    assert_eq!(admin.wire.get(b"deploys").number(), 0);

    let in_queue = first.want(any(b"deploys"), LONG);
    wait_for_waiters(&server, 1);
    // A request for the whole capacity is not too large: it waits for the end of the pause.
    let all = second.want(Claim { resources: 2, ..any(b"deploys") }, LONG);
    wait_for_waiters(&server, 2);
    assert_eq!(try_take(&mut holder, any(b"deploys")), NOT_AVAILABLE);
    assert_eq!(plain.wire.acquire(b"deploys", 1, 2).status, NOT_AVAILABLE);
    let timed_out = plain.want(any(b"deploys"), for_ms(20));
    assert_eq!(plain.answer(timed_out).status, Status::TimedOut.code());

    // Holders keep what they hold, and what they release is not granted to waiters.
    assert_eq!(verify(&mut holder, held.grant), GrantState::Held);
    assert_eq!(holder.give_back(held.grant), OK);
    assert_eq!(listed(&mut admin, b"deploys").waiting, 2);
    resize(&mut admin, b"deploys", Resizing::To(3));
    assert_eq!(listed(&mut admin, b"deploys").waiting, 2, "a resize does not end the pause");

    assert!(pause(&mut admin, b"deploys", ServiceChange::Resume) > paused);
    assert!(slots_of(&mut first, in_queue).is_empty());
    assert!(slots_of(&mut second, all).is_empty());
    assert!(!listed(&mut admin, b"deploys").paused);
    server.check();
}

fn verify(caller: &mut Caller, grant: signalbox_model::GrantId) -> GrantState {
    caller.ask(&Extended::VerifyGrant { grant }).verified().unwrap().state
}

#[test]
fn a_watch_reports_pauses_and_slots() {
    let server = start();
    let [mut admin, mut watcher] = callers(&server);
    declare_new(&mut admin, numbered(b"gpu", 4));
    watcher.hello("watcher");
    let namespace = Namespace::Semaphores;
    let watch = watcher.send(&Extended::Watch { namespace, scope: Scope::Name(b"gpu") });
    let next = |watcher: &mut Caller| {
        let (_, Event { kind, resources, .. }) = watcher.answer(watch).event().unwrap();
        (kind, resources)
    };
    assert_eq!([next(&mut watcher).0, next(&mut watcher).0], [EventKind::Present, EventKind::Live]);
    pause(&mut admin, b"gpu", ServiceChange::Pause);
    set_slot(&mut admin, b"gpu", ServiceChange::SlotOut(2));
    // None of these changes anything.
    resize(&mut admin, b"gpu", Resizing::To(4));
    pause(&mut admin, b"gpu", ServiceChange::Pause);
    set_slot(&mut admin, b"gpu", ServiceChange::SlotOut(2));
    set_slot(&mut admin, b"gpu", ServiceChange::SlotIn(2));
    pause(&mut admin, b"gpu", ServiceChange::Resume);
    let events =
        [(EventKind::Paused, 0), (EventKind::SlotOut, 2), (EventKind::SlotIn, 2), (EventKind::Resumed, 0)];
    assert_eq!(events.map(|_| next(&mut watcher)), events);
}

#[test]
fn a_pause_and_slots_out_of_service_survive_a_crash() {
    let server = start();
    let [mut admin, mut holder] = callers(&server);
    let session = holder.open(LONG_MS);
    declare_new(&mut admin, counted(b"deploys", 2));
    declare_new(&mut admin, numbered(b"gpu", 4));
    let held = holder.take(slot(2, b"gpu"));
    for number in [0, 2] {
        set_slot(&mut admin, b"gpu", ServiceChange::SlotOut(number));
    }
    pause(&mut admin, b"deploys", ServiceChange::Pause);

    let server = server.crash();
    let [mut admin, mut waiter] = callers(&server);
    let mut holder = caller(&server);
    assert_eq!(holder.attach(session), OK);
    (0..5).for_each(|_| _ = holder.ids());
    assert!(listed(&mut admin, b"deploys").paused);
    assert_eq!(listed(&mut admin, b"gpu").slots_out, [0, 2]);
    assert_eq!(try_take(&mut waiter, any(b"deploys")), NOT_AVAILABLE);
    assert_eq!(admin.wire.get(b"gpu").number(), 2, "slots 1 and 3 are left");
    assert_eq!(holder.give_back(held.grant), OK);
    assert_eq!(admin.wire.get(b"gpu").number(), 2, "slot 2 is out of service");
    assert_eq!([waiter.take(any(b"gpu")).slots, waiter.take(any(b"gpu")).slots], [[1], [3]]);
    let waits = waiter.want(any(b"deploys"), LONG);
    wait_for_waiters(&server, 1);
    pause(&mut admin, b"deploys", ServiceChange::Resume);
    slots_of(&mut waiter, waits);
    server.check();
}

#[test]
fn a_change_that_cannot_be_stored_takes_effect_later_or_is_refused() {
    let server = start();
    let [mut admin, mut holder] = callers(&server);
    declare_new(&mut admin, numbered(b"gpu", 2));
    server.faults.fail_all(Fault::Full);
    let not_stored = Status::NotStored.code();
    assert_eq!(ask_to_set(&mut admin, b"gpu", ServiceChange::SlotOut(0)).status, not_stored);
    assert_eq!(ask_to_pause(&mut admin, b"gpu", ServiceChange::Pause).status, not_stored);
    assert_eq!(holder.take(any(b"gpu")).slots, [0], "the first change is not stored");
    server.faults.stop();
    eventually("the first change is stored", || server.server.server.core().is_stored());
    let entry = listed(&mut admin, b"gpu");
    assert!(!entry.paused && entry.slots_out == [0], "{entry:?}");
    server.check();
}

/// A pause is not part of a declaration, so a reload of the configuration keeps it.
#[test]
fn a_semaphore_of_the_configuration_can_be_paused() {
    let server = start();
    let [mut admin, mut holder] = callers(&server);
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    let configure = |capacity| {
        let declare = Declaration { name: b"lift", capacity, numbered: true, label: b"" };
        assert_eq!(server.server.server.core().declare_configured(&[declare], now), []);
    };
    configure(2);
    pause(&mut admin, b"lift", ServiceChange::Pause);
    set_slot(&mut admin, b"lift", ServiceChange::SlotOut(1));
    configure(2);
    configure(3);
    let entry = listed(&mut admin, b"lift");
    assert!(entry.paused && entry.configured && entry.slots_out == [1], "{entry:?}");
    assert_eq!(try_take(&mut holder, any(b"lift")), NOT_AVAILABLE);
    pause(&mut admin, b"lift", ServiceChange::Resume);
    assert_eq!([holder.take(any(b"lift")).slots, holder.take(any(b"lift")).slots], [[0], [2]]);
    let how = Resizing::To(5);
    let refused = admin.change(Operation::Resize { expected: None, how, name: b"lift" });
    assert_eq!(refused.status, Status::NotPermitted.code());
    server.check();
}

/// The configuration declares a semaphore again while its pause is being stored.
#[test]
fn a_pause_that_is_not_stored_yet_stays_in_a_newer_configuration() {
    for is_stored in [true, false] {
        let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
        let [mut admin, mut holder] = callers(&server);
        let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
        let configure = |capacity| {
            let declare = Declaration { name: b"lift", capacity, numbered: false, label: b"" };
            assert_eq!(server.server.server.core().declare_configured(&[declare], now), []);
        };
        configure(2);
        while server.store().is_some() {}
        let (name, how, expected) = (b"lift", ServiceChange::Pause, None);
        let paused = admin.begin(Operation::ChangeService { name, how, expected });
        admin.sync();
        configure(3);
        if !is_stored {
            server.faults.fail_all(Fault::Full);
        }
        assert_eq!(server.store_next(), is_stored);
        let status = if is_stored { OK } else { Status::NotStored.code() };
        assert_eq!(admin.answer(paused).status, status);
        let entry = listed(&mut admin, b"lift");
        assert_eq!((entry.capacity, entry.paused), (3, true));
        assert_eq!(try_take(&mut holder, any(b"lift")), NOT_AVAILABLE);
        server.faults.stop();
        server.check_ledger();
    }
}
