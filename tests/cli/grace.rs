//! The grace period of a command that `run` has to end, with the real client and server: the command has ended before another
//! client acquires. The simulation of the client checks the length of the period.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::{line, program_at, ran, stderr_of, stdout, stdout_of, warning};
use crate::support::daemon::Daemon;
use crate::support::fake_server::soon;

const GRACE: &str = "4s";

/// The client of a command sends the server nothing in this time, so a grace period that counted from its last request would
/// be over.
const QUIET: Duration = Duration::from_secs(9);

/// Ignores SIGTERM. Only SIGKILL ends it, or the end of `run`, so that a test that fails leaves no process behind.
const COMMAND: &str = "trap 'echo TERM' TERM; echo $$; while kill -0 $PPID 2>&-; do sleep 0.02; done";

/// Holds "job" by a command, calls `take_away` with the grant, and waits until another command has run with "job". Returns
/// the number of seconds that the first command had.
async fn the_command_ends_before_others_acquire(take_away: impl AsyncFnOnce(SocketAddr, &str)) -> f64 {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&ran(server, &["declare", "job", "--capacity", "1"]).await);
    let holding = ["run", "job", "--lease", "1h", "--kill-after", "1h", "--", "sh", "-c", COMMAND];
    let mut child = program_at(server, &holding).spawn().unwrap();
    let (mut out, mut err) = (stdout_of(&mut child), stderr_of(&mut child));
    let command = line(&mut out).await;
    let holders = ran(server, &["status", "--holders", "--semaphore", "job", "--no-header"]).await;
    take_away(server, stdout(&holders).split('\t').next().unwrap()).await;
    assert_eq!(line(&mut out).await, "TERM");
    let warning = warning(&mut err).await;
    let (_, seconds) = warning.split_once("SIGKILL follows after ").unwrap_or_else(|| panic!("{warning}"));

    // The next command looks in the process table, which alone shows whether the first one has ended.
    let found = format!("if kill -0 {command} 2>&-; then echo the other command runs; else echo alone; fi");
    let waiting = ["run", "job", "--wait", "1m", "--", "sh", "-c", &found];
    assert_eq!(stdout(&ran(server, &waiting).await), "alone\n");
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
    seconds.trim_end_matches(" s").parse().unwrap()
}

#[tokio::test]
async fn a_command_ends_in_the_grace_of_a_revocation_before_others_acquire() {
    let seconds = the_command_ends_before_others_acquire(async |server, grant| {
        sleep(QUIET).await;
        assert_eq!(stdout(&ran(server, &["revoke", "--grant", grant, "--grace", GRACE]).await), "");
    })
    .await;
    assert!(seconds > 2.0, "{seconds}");
}

#[tokio::test]
async fn a_command_ends_in_the_grace_of_a_removal_before_others_acquire() {
    the_command_ends_before_others_acquire(async |server, _| {
        let removed = ran(server, &["remove", "job", "--when", "now", "--grace", GRACE]).await;
        assert_eq!(stdout(&removed), "");
        // The holder of the removed one counts until it has ended.
        let again = ran(server, &["declare", "job", "--capacity", "1", "--no-header"]).await;
        assert!(stdout(&again).starts_with("1\t1\t"), "it is in use: {again:?}");
    })
    .await;
}
