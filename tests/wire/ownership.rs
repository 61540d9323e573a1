//! A server whose store belongs to another server answers nothing that depends on the store.

use signalbox_model::Milliseconds;
use signalbox_protocol::Extended;
use signalbox_storage::Memory;

use crate::support::caller::Caller;
use crate::support::store::{By, StoredServer};
use crate::support::*;

#[test]
fn a_server_that_lost_its_store_answers_no_request_of_the_batch() {
    let memory = Memory::default();
    let server = StoredServer::start_with(&memory, By::Test, |_| {});
    let mut client = Caller::new(server.server.counter());
    client.send(&Extended::OpenSession { ttl: Some(Milliseconds(60_000)), label: b"", key: None });
    client.sync();
    // Another server opens the store, and owns it from then on.
    let _other = memory.open();
    assert!(!server.store_next(), "the batch is not stored");
    // The next response is that to a plain request: the session was neither opened nor refused.
    client.sync();
    assert_eq!(client.wire.acquire(b"plain", 1, 1).status, OK);
    assert_eq!(server.store(), None, "no further batch is taken");
    client.sync();
}
