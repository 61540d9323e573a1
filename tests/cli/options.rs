//! Options and their values: both spellings mean the same, and no value becomes a NAME.

use super::{assert_fails, ran, stderr, stdout};
use crate::support::daemon::Daemon;
use crate::support::fake_server::FakeServer;

#[tokio::test]
async fn a_value_never_becomes_a_name() {
    let server = FakeServer::bind().await;
    let apart = "is separated from the other names by";
    let unit = "looks like a part of the time; a TIME is one word";
    for (arguments, message) in [
        (&["run", "a", "--max", "1", "--lease", "10", "days", "--", "true"][..], "\"days\" behind --lease"),
        (&["run", "a", "--max", "1", "--lease=10", "days", "--", "true"], unit),
        (&["run", "--lease", "10", "days", "a", "--max", "1", "--", "true"], unit),
        (&["run", "a", "--max", "1", "--wait", "30", "s", "--", "true"], "\"s\" behind --wait"),
        (&["run", "--wait", "5", "min", "a=1", "--", "true"], unit),
        (&["run", "a", "--wait", "--max", "1", "--", "true"], "a value is required for '--wait <TIME|max>'"),
        (&["run", "a", "--max", "1", "--wait", "--", "true"], "--wait"),
        (&["run", "a", "--max", "1", "--wait=", "--", "true"], "--wait"),
        (
            &["run", "a", "--max", "1", "--wait", "forever", "--", "true"],
            "expected max, or a number of seconds",
        ),
        (&["run", "a", "--max", "1", "30s", "--", "true"], apart),
        (&["acquire", "a=1", "--lease", "5", "b=1"], "\"b=1\" is separated from the other names by --lease"),
        (&["declare", "a", "--capacity", "1", "--label", "two", "words"], "quote the value"),
        (&["declare", "a", "--slots", "b", "--capacity", "1"], "by --slots"),
        (&["list", "--timeout", "5", "s"], unit),
    ] {
        let output = ran(server.address(), arguments).await;
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {}", stderr(&output));
        assert_fails(&output, 64, message);
    }
}

#[tokio::test]
async fn names_stand_together_before_or_after_the_options() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for arguments in [
        &["run", "a=1", "b=1", "--lease", "5", "--wait", "1", "--", "true"][..],
        &["run", "--lease", "5", "--wait", "1", "a=1", "b=1", "--", "true"],
        &["run", "--lease=5", "a=1", "b=1", "--wait=1", "--", "true"],
        &["run", "days", "s", "--max", "1", "--lease", "5", "--", "true"],
    ] {
        assert_eq!(stdout(&ran(server, arguments).await), "", "{arguments:?}");
    }
}
