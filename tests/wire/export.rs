//! Exports of a running server (`docs/protocol.md`, "Export"). The store is in memory here; `tests/daemon/backup.rs`
//! tests the daemon under load.

use signalbox_model::{Limit, ReachedLimit, Status};
use signalbox_protocol::{Extended, Features, Opaque, ResponseFrame};
use signalbox_storage::{Memory, read_export};

use crate::proxies::{from_proxy, header_of, trusting};
use crate::support::caller::{Caller, one_of};
use crate::support::failing::Fault;
use crate::support::store::{By, StoredServer};
use crate::support::{NOOP, OK, TestServer, eventually, frame};

const LONG_MS: u32 = 60_000;

fn features(caller: &mut Caller) -> Features {
    caller.introduce("", Features::default()).features
}

/// The text of an export, or the frame that failed.
fn export(caller: &mut Caller) -> Result<Vec<u8>, ResponseFrame> {
    let opaque = caller.send(&Extended::Export);
    let mut text = Vec::new();
    loop {
        let frame = caller.answer(opaque);
        if frame.status != OK {
            return Err(frame);
        }
        match frame.export_part().unwrap() {
            Some(part) => text.extend_from_slice(&part),
            None => return Ok(text),
        }
    }
}

#[test]
fn an_export_has_what_was_acknowledged_and_restores_it() {
    let server = StoredServer::start(&Memory::default());
    let [mut holder, mut administrator] = [(); 2].map(|()| Caller::new(server.server.counter()));
    assert!(features(&mut administrator).contains(Features::EXPORT));
    let session = holder.open(LONG_MS);
    let grants: Vec<_> =
        (0..500_u32).map(|number| holder.take(one_of(1, format!("job/{number}").as_bytes())).grant).collect();
    let text = export(&mut administrator).unwrap();
    let records = read_export(&mut &text[..]).unwrap();
    assert_eq!(records, server.memory.records());
    assert!(text.len() > 64 * 1024, "it has several parts");
    assert_eq!(administrator.wire.get(b"job/1").number(), 1, "the connection continues");

    // A second server that begins with these records.
    let memory = Memory::default();
    let changes: Vec<_> = records.into_iter().map(signalbox_core::Change::Put).collect();
    signalbox_storage::Storage::commit(&mut memory.open(), &changes).unwrap();
    let restored = StoredServer::start(&memory);
    let mut after = Caller::new(restored.server.counter());
    assert_eq!(after.attach(session), OK);
    for grant in &grants {
        assert_eq!(after.ask(&Extended::VerifyGrant { grant: *grant }).status, OK);
    }
    // Its ids continue to grow.
    let mut other = Caller::new(restored.server.counter());
    let later = other.open(LONG_MS);
    assert!(later.session > session.session);
    assert!(other.take(one_of(1, b"later")).grant > *grants.last().unwrap());
    restored.check();
}

#[test]
fn a_server_without_a_store_exports_nothing() {
    let server = TestServer::start();
    let mut administrator = Caller::new(server.counter());
    assert!(!features(&mut administrator).contains(Features::EXPORT));
    assert_eq!(export(&mut administrator).unwrap_err().status, Status::NotFound.code());
}

#[test]
fn only_administrators_export() {
    let server = StoredServer::start_with(&Memory::default(), By::Thread, trusting);
    let mut remote = Caller::new(from_proxy(&server.server, &header_of("192.0.2.7:4660")));
    assert_eq!(export(&mut remote).unwrap_err().status, Status::NotPermitted.code());
}

#[test]
fn an_export_of_a_store_that_cannot_be_read_fails_and_the_server_goes_on() {
    let server = StoredServer::start(&Memory::default());
    let [mut holder, mut administrator] = [(); 2].map(|()| Caller::new(server.server.counter()));
    server.faults.fail_all(Fault::Flush { kept: false });
    let refused = holder.ask(&Extended::OpenSession { ttl: None, label: b"", key: None });
    assert_eq!(refused.status, Status::NotStored.code());
    assert_eq!(export(&mut administrator).unwrap_err().status, Status::ExportFailed.code());
    assert_eq!(administrator.wire.acquire(b"plain", 1, 1).status, OK);
}

/// Begins an export. When this returns, the server has executed the request.
fn begin(caller: &mut Caller) -> Opaque {
    let opaque = Opaque(*b"exp\x01");
    let mut bytes = frame(NOOP, *b"noop", &[]);
    Extended::Export.compose(opaque, &mut bytes);
    // Both arrive together, so both are executed before the first is answered.
    caller.wire.send(&bytes);
    assert_eq!(caller.wire.answer().opaque, *b"noop");
    opaque
}

#[test]
fn two_exports_are_read_at_once_and_a_third_is_refused() {
    // Nothing makes a snapshot, so the exports wait.
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut other, mut third] = [(); 3].map(|()| Caller::new(server.server.counter()));
    let begun = [&mut one, &mut other].map(|caller| (begin(caller), caller));
    let refused = export(&mut third).unwrap_err();
    assert_eq!(refused.status, Status::LimitReached.code());
    assert_eq!(
        refused.reached_limit(),
        Some(ReachedLimit { limit: Limit::Exports, max: 2, is_share: false })
    );
    server.store();
    for (opaque, caller) in begun {
        while caller.answer(opaque).export_part().unwrap().is_some() {}
    }
    eventually("another one can begin", || {
        let opaque = begin(&mut third);
        server.store();
        let first = third.answer(opaque);
        let is_begun = first.status == OK;
        while is_begun && third.answer(opaque).export_part().unwrap().is_some() {}
        is_begun
    });
}
