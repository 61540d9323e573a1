//! Tests of the Rust client: its guarantees, the examples, and the recipes of the guide.

mod address;
mod available;
mod end;
mod errors;
mod examples;
mod guide;
mod leased;
mod moving;
mod names;
mod opening;
mod plain;
mod race;
#[path = "../support/mod.rs"]
mod support;
mod sysv;
mod terms;

use std::time::Duration;

use signalbox::config::Config;
use signalbox_client::{Declaration, Direct, IfExists, Milliseconds, Operation, Revocation, ServiceChange};
use support::TestServer;

/// Starts a server in another thread: it has its own runtimes, which cannot start within the runtime of a test.
fn started(change: fn(&mut Config)) -> TestServer {
    std::thread::spawn(move || TestServer::start_with(change)).join().unwrap()
}

async fn revoke(direct: &Direct, what: Revocation<'_>, grace: Duration) {
    let grace = Milliseconds::saturating_from(grace);
    direct.change(&Operation::Revoke { what, grace }).await.unwrap();
}

/// Declares a semaphore, which must not be declared yet.
async fn declare(direct: &Direct, declaration: Declaration<'_>) {
    let (if_exists, declarations) = (IfExists::Fail, vec![declaration]);
    direct.change(&Operation::Declare { if_exists, declarations }).await.unwrap();
}

async fn change_service(direct: &Direct, name: &[u8], how: ServiceChange) {
    direct.change(&Operation::ChangeService { name, how, expected: None }).await.unwrap();
}
