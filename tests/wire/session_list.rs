//! The list of all sessions, and the revocation of those of a client, over real sockets (`docs/protocol.md`, "Sessions" and
//! "RevokeClient").

use std::collections::HashSet;
use std::iter;
use std::net::IpAddr;

use bytes::Bytes;
use signalbox_model::{
    AddressRange, Claim, Milliseconds, Namespace, Notice, Operation, Revocation, SessionEntry, SessionId,
    SessionKind, Status, TtlLeft, sysv,
};
use signalbox_protocol::{Extended, HELD_SESSIONS_MAX, Opaque, OpenedSession, SysvRequest, WaitingRequest};
use signalbox_storage::Memory;

use crate::proxies::{from_proxy, header_of, trusting};
use crate::support::caller::{Caller, Changes, LONG, one_of, semaphore};
use crate::support::failing::Fault;
use crate::support::store::StoredServer;
use crate::support::{OK, TestServer, Wire, eventually};

const LONG_MS: u32 = 60_000;

type Entry = SessionEntry<Bytes>;

fn list(lister: &mut Caller) -> Vec<Entry> {
    let opaque = lister.send(&Extended::Sessions);
    iter::from_fn(|| lister.answer(opaque).session_entry().unwrap()).collect()
}

#[track_caller]
fn found(lister: &mut Caller, session: u64) -> Entry {
    let entries = list(lister);
    let mut of_session = entries.iter().filter(|entry| entry.session == session);
    let entry = of_session.next().unwrap_or_else(|| panic!("{session} is not in {entries:?}"));
    assert!(of_session.next().is_none(), "no session is listed twice");
    entry.clone()
}

fn address(entry: &Entry) -> &str {
    str::from_utf8(&entry.address).unwrap()
}

fn caller(server: &TestServer) -> Caller {
    Caller::new(server.counter())
}

/// A client at this address of the test's machine.
fn caller_from(server: &TestServer, address: &str) -> Caller {
    Caller::new(Wire::connect_from(address, server.counters))
}

fn revoke(administrator: &mut Caller, first: &str, last: &str, grace_ms: u32) -> Opaque {
    let clients = AddressRange { first: mapped(first), last: mapped(last) };
    let operation = Operation::Revoke { what: Revocation::Addresses(clients), grace: Milliseconds(grace_ms) };
    administrator.begin(operation)
}

fn mapped(address: &str) -> std::net::Ipv6Addr {
    AddressRange::from(address.parse::<IpAddr>().unwrap()).first
}

#[test]
fn the_list_has_leased_sessions_connections_and_processes() {
    let server = TestServer::start();
    let [mut lister, mut holder] = [caller(&server), caller_from(&server, "127.0.0.3")];
    let plain = Wire::connect_from("127.0.0.4", server.counters);
    let own = holder.hello("\u{202e}tricky\u{1b}");
    let leased = holder.open(LONG_MS).session;
    holder.take(one_of(1, b"a"));
    holder.take(one_of(1, b"b"));
    let waiting = holder.want(one_of(1, b"a"), LONG);
    eventually("a request waits", || server.server.core().ledger_stats().waiters == 1);

    let entry = found(&mut lister, leased);
    assert_eq!((entry.kind, entry.attached, &entry.label[..]), (SessionKind::Leased, true, &b"leased"[..]));
    assert_eq!((entry.grants, entry.waiting), (2, 1));
    assert!(address(&entry).starts_with("127.0.0.3:"), "{entry:?}");
    assert!(entry.age_s.is_some_and(|age_s| age_s < LONG_MS / 1000), "{entry:?}");
    let TtlLeft::For(left) = entry.ttl_left else { panic!("{entry:?}") };
    assert!((1..=LONG_MS).contains(&left.0), "{left:?}");

    let entry = found(&mut lister, own);
    assert_eq!((entry.kind, entry.attached, entry.grants), (SessionKind::Connection, true, 0));
    assert_eq!((&entry.label[..], entry.ttl_left), ("\u{202e}tricky\u{1b}".as_bytes(), TtlLeft::Connection));
    assert!(entry.age_s.is_some());

    let ttl = Some(Milliseconds(LONG_MS));
    let user = sysv::Caller { uid: 1, gid: 1 };
    let groups = Vec::new();
    let open = SysvRequest::OpenProcess { ttl, pid: 77, caller: user, groups, label: b"php" };
    let mut bytes = Vec::new();
    open.compose(Opaque(*b"proc"), &mut bytes);
    let mut process = caller_from(&server, "127.0.0.5");
    process.wire.send(&bytes);
    let opened = process.next().opened_process().unwrap();

    let entries = list(&mut lister);
    let kinds: Vec<_> = entries.iter().map(|entry| entry.kind as u8).collect();
    assert!(kinds.is_sorted(), "{entries:?}");
    assert_eq!(entries.len(), 1 + 4 + 1, "the plain client is listed too: {entries:?}");
    assert!(entries.iter().any(|entry| address(entry).starts_with("127.0.0.4:") && entry.label.is_empty()));
    let entry = entries.last().unwrap();
    assert_eq!((entry.kind, entry.session, entry.attached), (SessionKind::Process, opened.process.0, true));
    assert_eq!((&entry.label[..], entry.ttl_left), (&b"php"[..], TtlLeft::Connection));
    assert!(address(entry).starts_with("127.0.0.5:"), "{entry:?}");

    // A session without a connection keeps the address of its last client.
    drop((holder, plain));
    eventually("the leased session is alone", || {
        let entry = found(&mut lister, leased);
        let connections = list(&mut lister).iter().filter(|e| e.kind == SessionKind::Connection).count();
        !entry.attached && address(&entry).starts_with("127.0.0.3:") && connections == 2
    });
    let entry = found(&mut lister, leased);
    assert_eq!((entry.grants, entry.waiting), (2, 1), "{waiting:?} still waits");
    server.server.core().check_ledger().unwrap();
}

#[test]
fn what_sessions_hold_and_wait_for_is_listed_with_plain_acquires_last() {
    let server = TestServer::start();
    let [mut lister, mut holder, mut waiter] = [caller(&server), caller(&server), caller(&server)];
    let own = waiter.hello("waiter");
    let leased = holder.open(LONG_MS).session;
    // More names than the server visits or lists in one step.
    for number in 0..600 {
        assert_eq!(waiter.wire.acquire(format!("plain/{number}").as_bytes(), 1, 9).status, OK);
    }
    assert_eq!(waiter.wire.acquire(b"last", 3, 9).status, OK);
    let grant = holder.take(Claim { maximum: 4, ..semaphore(2, b"pool") }).grant;
    holder.take(one_of(1, b"a"));
    waiter.want(one_of(1, b"a"), LONG);
    eventually("a request waits", || server.server.core().ledger_stats().waiters == 1);

    let id = |number| SessionId::from_number(number).unwrap();
    let mut held = |sessions: &[u64]| {
        let sessions = sessions.iter().copied().map(id).collect();
        let opaque = lister.send(&Extended::Held { sessions });
        let entries = iter::from_fn(|| lister.answer(opaque).held_entry().unwrap());
        entries.collect::<Vec<_>>()
    };
    let entries = held(&[leased, u64::MAX, own]);
    let shown: Vec<_> = entries.iter().map(|held| (held.is_held, &held.name[..])).collect();
    assert_eq!(shown[..3], [(true, &b"pool"[..]), (true, b"a"), (false, b"a")]);
    assert_eq!(shown.len(), 3 + 601);
    let pool = &entries[0];
    assert_eq!(
        (pool.namespace, pool.entry.grant, pool.entry.resources),
        (Namespace::Semaphores, Some(grant), 2)
    );
    assert!(matches!(pool.ttl_left, TtlLeft::For(left) if left.0 <= LONG_MS), "{pool:?}");
    assert_eq!((entries[2].entry.session, entries[2].ttl_left), (own, TtlLeft::Connection));
    let plain = entries.iter().find(|held| &held.name[..] == b"last").unwrap();
    assert_eq!((plain.entry.grant, plain.entry.session, plain.entry.resources), (None, own, 3));
    let names: HashSet<_> = entries[3..].iter().map(|held| &held.name[..]).collect();
    assert_eq!(names.len(), 601, "no name is listed twice");

    assert_eq!(held(&[leased]).len(), 2);
    let unknown = lister.ask(&Extended::Held { sessions: vec![id(u64::MAX)] });
    assert_eq!(unknown.status, Status::NoSuchSession.code());
    for count in [0, HELD_SESSIONS_MAX + 1] {
        let refused = lister.ask(&Extended::Held { sessions: vec![id(leased); count] });
        assert_eq!(refused.status, Status::InvalidArguments.code());
    }
}

#[test]
fn the_number_of_waiting_requests_follows_grants_and_cancels() {
    let server = TestServer::start();
    let [mut lister, mut holder, mut waiter] = [caller(&server), caller(&server), caller(&server)];
    let held = holder.take(one_of(1, b"a"));
    let session = waiter.open(LONG_MS).session;
    let [first, second] = [waiter.want(one_of(1, b"a"), LONG), waiter.want(one_of(1, b"a"), LONG)];
    eventually("both wait", || found(&mut lister, session).waiting == 2);
    assert_eq!(holder.give_back(held.grant), OK);
    assert_eq!(waiter.answer(first).status, OK);
    let entry = found(&mut lister, session);
    assert_eq!((entry.grants, entry.waiting), (1, 1));
    let cancel = waiter.send(&Extended::Cancel(WaitingRequest::Opaque(second)));
    let answers = [waiter.next(), waiter.next()].map(|answer| answer.opaque);
    assert!(answers.contains(&second) && answers.contains(&cancel));
    let entry = found(&mut lister, session);
    assert_eq!((entry.grants, entry.waiting), (1, 0));
    server.server.core().check_ledger().unwrap();
}

#[test]
fn a_restored_session_has_no_age_and_no_address_until_its_client_is_back() {
    let server = StoredServer::start(&Memory::default());
    let mut before = Caller::new(server.server.counter());
    let session = before.open(LONG_MS);
    before.take(one_of(1, b"a"));
    let server = server.crash();
    let mut lister = Caller::new(server.server.counter());
    let entry = found(&mut lister, session.session);
    assert_eq!((entry.attached, entry.age_s, address(&entry), entry.grants), (false, None, "", 1));
    let mut after = caller_from(&server.server, "127.0.0.6");
    assert_eq!(after.attach(session), OK);
    let entry = found(&mut lister, session.session);
    assert_eq!((entry.attached, entry.age_s), (true, None), "when it was opened is not stored");
    assert!(address(&entry).starts_with("127.0.0.6:"), "{entry:?}");
}

#[test]
fn the_list_has_the_addresses_that_a_proxy_states() {
    let server = TestServer::start_with(trusting);
    let mut behind = Caller::new(from_proxy(&server, &header_of("[2001:db8::7]:4660")));
    let session = behind.open(LONG_MS).session;
    let mut lister = caller(&server);
    assert_eq!(address(&found(&mut lister, session)), "[2001:db8::7]:4660");
    let entries = list(&mut behind);
    assert!(entries.iter().any(|entry| entry.session == session), "listing needs no rights");
    let refused = revoke(&mut behind, "::", "ffff::", 0);
    assert_eq!(behind.answer(refused).status, Status::NotPermitted.code());
    let asked = revoke(&mut lister, "2001:db8::", "2001:db8::ffff", 0);
    assert_eq!(lister.answer(asked).revoked(), 1);
    eventually("the session has ended", || server.server.core().ledger_stats().sessions == 0);
}

#[test]
fn a_long_list_has_every_session_once() {
    let server = TestServer::start();
    let sessions: Vec<Caller> = (0..300)
        .map(|_| {
            let mut caller = caller(&server);
            caller.open(LONG_MS);
            caller
        })
        .collect();
    let mut lister = caller(&server);
    let mut ids: Vec<_> = list(&mut lister).iter().map(|entry| (entry.kind as u8, entry.session)).collect();
    assert_eq!(ids.len(), 2 * sessions.len() + 1);
    assert!(ids.is_sorted());
    ids.dedup();
    assert_eq!(ids.len(), 2 * sessions.len() + 1);
}

/// Opens this number of sessions over one connection, each with a grant of the same counter.
fn open_many(caller: &mut Caller, count: u32) -> Vec<OpenedSession> {
    let open = |_| {
        let session = caller.open(LONG_MS);
        caller.take(one_of(u32::MAX, b"many"));
        session
    };
    (0..count).map(open).collect()
}

#[test]
fn all_leased_sessions_of_a_client_end_and_those_of_others_stay() {
    let server = TestServer::start();
    let [mut one, mut other] = ["127.0.0.3", "127.0.0.4"].map(|from| caller_from(&server, from));
    let mut administrator = caller(&server);
    // Enough for several steps.
    let sessions = open_many(&mut one, 700);
    let kept = open_many(&mut other, 3);
    let none = revoke(&mut administrator, "127.0.0.5", "127.0.0.255", 0);
    assert_eq!(administrator.answer(none).revoked(), 0);
    let asked = revoke(&mut administrator, "127.0.0.3", "127.0.0.3", 0);
    assert_eq!(administrator.answer(asked).revoked(), 700);
    eventually("what they held is free", || server.counter().get(b"many").number() == 3);
    for session in [&sessions[0], &sessions[699]] {
        assert_eq!(one.attach(*session), Status::NoSuchSession.code());
    }
    assert_eq!(one.wire.acquire(b"plain", 1, 1).status, OK, "the connection stays");
    assert!(kept.into_iter().all(|session| other.attach(session) == OK));
    let again = revoke(&mut administrator, "127.0.0.3", "127.0.0.3", 0);
    assert_eq!(administrator.answer(again).revoked(), 0);
    server.server.core().check_ledger().unwrap();
}

#[test]
fn the_clients_of_revoked_sessions_have_a_grace_period() {
    let server = TestServer::start();
    let [mut holder, mut administrator] = [caller_from(&server, "127.0.0.3"), caller(&server)];
    holder.hello("holder");
    let session = holder.open(LONG_MS);
    let held = holder.take(one_of(1, b"a"));
    let asked = revoke(&mut administrator, "127.0.0.0", "127.0.0.255", LONG_MS / 2);
    assert_eq!(administrator.answer(asked).revoked(), 1);
    let notice = holder.next().notice().unwrap();
    let Some(Notice::SessionRevoked { session: revoked, end }) = notice else { panic!("{notice:?}") };
    assert!(revoked == session.session && end.after.0 >= LONG_MS / 2, "{notice:?}");
    let TtlLeft::For(left) = found(&mut administrator, session.session).ttl_left else { panic!() };
    assert!(left.0 <= LONG_MS / 2, "{left:?}");
    assert_eq!(holder.give_back(held.grant), OK, "it is held during the grace period");
    let asked = revoke(&mut administrator, "127.0.0.3", "127.0.0.3", 0);
    assert_eq!(administrator.answer(asked).revoked(), 1, "the grace period is cut short");
    eventually("the session has ended", || server.server.core().ledger_stats().sessions == 0);
}

#[test]
fn a_range_of_addresses_that_ends_before_it_begins_is_invalid() {
    let server = TestServer::start();
    let mut administrator = caller(&server);
    let wrong = revoke(&mut administrator, "127.0.0.3", "127.0.0.2", 0);
    assert_eq!(administrator.answer(wrong).status, Status::InvalidArguments.code());
}

#[test]
fn a_revocation_of_clients_is_answered_when_it_is_stored_and_stands_if_the_store_fails() {
    let server = StoredServer::start(&Memory::default());
    let [mut holder, mut administrator] = [(); 2].map(|()| Caller::new(server.server.counter()));
    let session = holder.open(LONG_MS);
    let asked = revoke(&mut administrator, "127.0.0.1", "127.0.0.1", LONG_MS / 2);
    assert_eq!(administrator.answer(asked).revoked(), 1);
    let server = server.crash();
    let mut administrator = Caller::new(server.server.counter());
    let TtlLeft::For(left) = found(&mut administrator, session.session).ttl_left else { panic!() };
    assert!(left.0 <= LONG_MS / 2, "the grace period continues: {left:?}");

    let mut holder = Caller::new(server.server.counter());
    assert_eq!(holder.attach(session), OK);
    server.faults.fail_all(Fault::Full);
    let asked = revoke(&mut administrator, "127.0.0.1", "127.0.0.1", 0);
    assert_eq!(administrator.answer(asked).revoked(), 1);
    server.faults.stop();
    eventually("the session has ended", || server.server.server.core().ledger_stats().sessions == 0);
    server.check_ledger();
}
