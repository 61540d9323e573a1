//! The effect of closing a client before the program ends.

use crate::support::TestServer;
use signalbox_client::Client;

#[test]
fn a_closed_client_leaves_no_session() {
    let server = TestServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut wire = server.counter();
    for _ in 0..50 {
        runtime.block_on(async {
            let client = Client::connect(&server.counters.to_string().parse().unwrap()).await.unwrap();
            // Only the client uses the session.
            client.counter("job").maximum(1).try_acquire().await.unwrap().release().await.unwrap();
            client.close().await;
        });
        assert_eq!(wire.stat("sessions"), 0);
    }
}
