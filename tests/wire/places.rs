//! Places of waiting requests over real sockets (`docs/protocol.md`, "Places"). The server crashes, and its store is in
//! memory. `crates/core/tests/model/places.rs` has the order in random histories, `tests/daemon/queue_order.rs` the real client.

use crate::support::caller::{Caller, LONG, NOW, one_of};
use crate::support::store::StoredServer;
use crate::support::{NOT_AVAILABLE, OK, TestServer};
use signalbox_model::{Claim, GrantId, Namespace, Place, RequestIds, Status};
use signalbox_protocol::{Extended, Features, Opaque, OpenedSession, Queueing, ResponseFrame};
use signalbox_storage::Memory;

const LONG_MS: u32 = 60_000;
const QUEUED: u8 = Status::Queued as u8;

fn caller(server: &StoredServer) -> Caller {
    Caller::new(server.server.counter())
}

/// Sends a Hello that requests places. Returns whether the server will send them.
fn want_places(caller: &mut Caller) -> bool {
    caller.introduce("", Features::PLACES).features.contains(Features::PLACES)
}

/// A client with a leased session that is told its places.
fn leased(server: &StoredServer) -> (Caller, OpenedSession) {
    let mut caller = caller(server);
    assert!(want_places(&mut caller));
    let session = caller.open(LONG_MS);
    (caller, session)
}

/// A connection that continues a session and announces repetitions.
#[track_caller]
fn returned(server: &StoredServer, session: OpenedSession, repetitions: u32) -> Caller {
    let mut caller = caller(server);
    assert!(want_places(&mut caller));
    let OpenedSession { session, key, .. } = session;
    assert_eq!(caller.ask(&Extended::AttachSession { session, key, repetitions }).status, OK);
    caller
}

/// A request that waits, with its place.
struct Waiting {
    ids: RequestIds,
    place: Place,
}

/// Sends a request that has to wait. Returns its opaque too.
#[track_caller]
fn wait(caller: &mut Caller, ids: RequestIds, claim: Claim<'_>, place: Option<Place>) -> (Opaque, Waiting) {
    let opaque = caller.send(&Extended::AcquireGrant { ids, claim, queueing: LONG, place, is_shared: false });
    let queued = caller.answer(opaque);
    assert_eq!((queued.status, queued.body.len()), (QUEUED, 24), "{queued:?}");
    (opaque, Waiting { ids, place: queued.queued().unwrap() })
}

fn granted(caller: &mut Caller, opaque: Opaque) -> u64 {
    let answer = caller.answer(opaque);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.granted().unwrap().grant.0
}

fn waiting(caller: &mut Caller, name: &[u8]) -> Vec<u64> {
    let namespace = Namespace::Counters;
    let opaque = caller.send(&Extended::Waiters { namespace, name });
    let mut entries = Vec::new();
    loop {
        let frame: ResponseFrame = caller.answer(opaque);
        let Some(entry) = frame.list_entry().unwrap() else { return entries };
        entries.push(entry.grant.unwrap().0);
    }
}

#[test]
fn repeated_requests_wait_in_their_order_and_before_new_ones() {
    let server = StoredServer::start(&Memory::default());
    let (mut holder, holding) = leased(&server);
    let held = holder.take(one_of(1, b"a"));
    let [mut first, mut second] = [leased(&server), leased(&server)];
    let sent = [&mut first, &mut second].map(|(caller, _)| {
        let ids = caller.ids();
        wait(caller, ids, one_of(1, b"a"), None).1
    });
    let server = server.crash();
    let (mut newer, _) = leased(&server);
    let ids = newer.ids();
    let (last, new) = wait(&mut newer, ids, one_of(1, b"a"), None);
    let [Waiting { ids: first_ids, place: first_place }, Waiting { ids: second_ids, place: second_place }] =
        sent;

    let mut second = returned(&server, second.1, 1);
    let (behind, kept) = wait(&mut second, second_ids, one_of(1, b"a"), Some(second_place));
    assert_eq!(kept.place, second_place, "it is told again");
    // The name is free now, but no waiter gets it: an earlier one may still come.
    let mut holder = returned(&server, holding, 0);
    holder.ids();
    assert_eq!(holder.give_back(held.grant), OK);
    assert_eq!(waiting(&mut holder, b"a"), [second_place.id.0, new.place.id.0]);
    let refused = holder.want(one_of(2, b"a"), NOW);
    assert_eq!(holder.answer(refused).status, NOT_AVAILABLE);
    assert!(holder.take(one_of(1, b"other")).grant > held.grant, "another name is not delayed");

    let mut first = returned(&server, first.1, 1);
    // With the last repetition the window ends, and the first in the order is granted.
    let (ahead, _) = wait(&mut first, first_ids, one_of(1, b"a"), Some(first_place));
    let mut ids = vec![granted(&mut first, ahead)];
    first.ids();
    assert_eq!(first.give_back(GrantId(ids[0])), OK);
    ids.push(granted(&mut second, behind));
    second.ids();
    assert_eq!(second.give_back(GrantId(ids[1])), OK);
    ids.push(granted(&mut newer, last));
    assert!(ids[0] > new.place.id.0 && ids.is_sorted_by(|one, next| one < next), "ids grow: {ids:?}");
    server.check();
}

/// Each of its requests has one answer.
#[test]
fn a_client_that_does_not_ask_is_told_no_place() {
    let server = StoredServer::start(&Memory::default());
    let [mut holder, mut waiter] = [caller(&server), caller(&server)];
    waiter.hello("a simple one");
    waiter.open(LONG_MS);
    let held = holder.take(one_of(1, b"a"));
    let opaque = waiter.want(one_of(1, b"a"), LONG);
    waiter.sync();
    assert_eq!(holder.give_back(held.grant), OK);
    granted(&mut waiter, opaque);
    // A client whose session ends with its connection is told no place either.
    let (mut holder, mut waiter) = (caller(&server), caller(&server));
    assert!(want_places(&mut waiter));
    holder.take(one_of(1, b"b"));
    waiter.want(one_of(1, b"b"), LONG);
    waiter.sync();
}

#[test]
fn a_server_without_a_data_directory_tells_no_places() {
    let server = TestServer::start();
    let [mut holder, mut waiter] = [Caller::new(server.counter()), Caller::new(server.counter())];
    assert!(!want_places(&mut waiter));
    waiter.open(LONG_MS);
    holder.take(one_of(1, b"a"));
    let queueing = Queueing { queue_max: Some(1), ..LONG };
    waiter.want(one_of(1, b"a"), queueing);
    waiter.sync();
}
