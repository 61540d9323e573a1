//! What a program leaves behind at the server when it closes its client before it ends.

use crate::support::TestServer;
use signalbox::client::Client;

#[test]
fn a_client_that_was_closed_has_no_session() {
    let server = TestServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut wire = server.counter();
    for _ in 0..50 {
        runtime.block_on(async {
            let client = Client::connect(&server.counters.to_string().parse().unwrap()).await.unwrap();
            // Nobody but the client uses the session.
            client.counter("job").maximum(1).try_acquire().await.unwrap().release().await.unwrap();
            client.close().await;
        });
        assert_eq!(wire.stat("sessions"), 0);
    }
}
