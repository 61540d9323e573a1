//! Tests of the Rust client: its guarantees, the examples, and the recipes of the guide.

mod available;
mod end;
mod errors;
mod examples;
mod guide;
mod leased;
mod moving;
mod opening;
mod plain;
#[path = "../support/mod.rs"]
mod support;
mod sysv;
mod terms;

use signalbox::config::Config;
use support::TestServer;

/// Starts a server in another thread: it has its own runtimes, which cannot start within the runtime of a test.
fn started(change: fn(&mut Config)) -> TestServer {
    std::thread::spawn(move || TestServer::start_with(change)).join().unwrap()
}
