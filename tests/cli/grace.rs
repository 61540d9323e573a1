//! The grace period of a command that `run` has to end, with the real client and server: the command has the period to
//! itself, and has ended before another client acquires.

use std::net::SocketAddr;
use std::process::Output;
use std::time::Duration;

use tokio::time::sleep;

use super::{finished, line, program_at, stderr_of, stdout, stdout_of};
use crate::support::daemon::Daemon;
use crate::support::fake_server::soon;

/// The grace period in the arguments of the program, and in seconds.
const GRACE: (&str, f64) = ("10s", 10.0);

/// How long the command holds its semaphore before that is taken away. Its client asks the server nothing in this time: a
/// grace period that counted from its last request would end five seconds after the SIGTERM.
const HELD: Duration = Duration::from_secs(5);

/// How long after its SIGTERM the command must still run: longer than such a grace period, and with a wide margin to the
/// end of the real one, for slow machines.
const STILL_RUNS: Duration = Duration::from_secs(6);

/// Ignores SIGTERM, and answers whenever the file of its argument exists. Only SIGKILL ends it, or the end of `run`, so
/// that a test that fails leaves no process behind.
const COMMAND: &str = r#"
    trap 'echo TERM' TERM
    echo $$
    while kill -0 $PPID 2>&-; do
        if [ -e "$1" ]; then rm "$1"; echo running; fi
        sleep 0.02
    done"#;

/// Runs the program to its end.
async fn ran(server: SocketAddr, arguments: &[&str]) -> Output {
    finished(program_at(server, arguments).spawn().unwrap()).await
}

/// Holds "job" by a command, has it taken away by `take_away`, which is given the grant, and returns when another command
/// has run with it.
async fn the_command_has_its_grace(take_away: impl AsyncFnOnce(SocketAddr, &str)) {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let directory = tempfile::tempdir().unwrap();
    let question = directory.path().join("question");
    assert!(stdout(&ran(server, &["declare", "job", "--capacity", "1"]).await).starts_with("1\t"));
    let holding = ["run", "job", "--lease", "1h", "--kill-after", "1h", "--", "sh", "-c", COMMAND, "sh"];
    let mut child = program_at(server, &holding).arg(&question).spawn().unwrap();
    let (mut out, mut err) = (stdout_of(&mut child), stderr_of(&mut child));
    let command = line(&mut out).await;
    let holders = ran(server, &["holders", "--semaphore", "job"]).await;
    let grant = stdout(&holders).split('\t').next().unwrap();
    sleep(HELD).await;

    take_away(server, grant).await;
    assert_eq!(line(&mut out).await, "TERM");
    let warning = line(&mut err).await;
    let seconds = warning.rsplit("SIGKILL after ").next().unwrap().trim_end_matches(" s");
    let seconds: f64 = seconds.parse().unwrap_or_else(|_| panic!("{warning}"));
    assert!(
        seconds > GRACE.1 / 2.0 && seconds < GRACE.1,
        "nearly all of the grace period is left: {warning}"
    );

    // The next one finds the command ended; whether it was, only the process table says.
    let found = format!("if kill -0 {command} 2>&-; then echo the other command runs; else echo alone; fi");
    let waiting = ["run", "job", "--wait", "1m", "--", "sh", "-c", &found];
    let waiting = program_at(server, &waiting).spawn().unwrap();
    sleep(STILL_RUNS).await;
    std::fs::write(&question, "").unwrap();
    assert_eq!(line(&mut out).await, "running", "the grace period has not ended: {warning}");

    assert_eq!(stdout(&finished(waiting).await), "alone\n");
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
}

#[tokio::test]
async fn a_command_has_the_whole_grace_of_a_revocation_and_ends_before_others_acquire() {
    the_command_has_its_grace(async |server, grant| {
        let revoked = ran(server, &["revoke", "--grant", grant, "--grace", GRACE.0]).await;
        assert_eq!(stdout(&revoked), "");
    })
    .await;
}

#[tokio::test]
async fn a_command_has_the_whole_grace_of_a_removal_and_ends_before_others_acquire() {
    the_command_has_its_grace(async |server, _| {
        let removed = ran(server, &["remove", "job", "--when", "now", "--grace", GRACE.0]).await;
        assert_eq!(stdout(&removed), "");
        // The holder of the removed one counts until it has ended.
        let again = ran(server, &["declare", "job", "--capacity", "1"]).await;
        assert!(stdout(&again).starts_with("1\t1\t"), "it is in use: {again:?}");
    })
    .await;
}
