//! Single flight on the command line: `run --share`, `acquire --share` and `release --done`.

use super::leases::until_listed;
use super::{assert_fails, finished, line, program_at, ran, stderr, stdout, stdout_of};
use crate::support::daemon::Daemon;
use std::net::SocketAddr;
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;

/// A command that works until it reads its exit status.
const WORK: &str = "echo ready; read status; exit $status";

async fn worker(server: SocketAddr, wait: &[&str]) -> Child {
    let arguments = [&["run", "page", "--share"], wait, &["--", "sh", "-c", WORK]].concat();
    let mut worker = program_at(server, &arguments).spawn().unwrap();
    assert_eq!(line(&mut stdout_of(&mut worker)).await, "ready");
    worker
}

async fn end(mut worker: Child, status: &str) -> Output {
    worker.stdin.take().unwrap().write_all(status.as_bytes()).await.unwrap();
    finished(worker).await
}

fn waiter(server: SocketAddr, options: &[&str]) -> Child {
    let arguments =
        [&["run", "page", "--share", "--wait", "max"], options, &["--", "echo", "started"]].concat();
    program_at(server, &arguments).spawn().unwrap()
}

#[tokio::test]
async fn those_that_wait_start_nothing_if_the_command_succeeds() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let works = worker(server, &[]).await;
    let waiting = [waiter(server, &[]), waiter(server, &["--done-status", "3"])];
    let script = ["acquire", "page", "--share", "--wait", "max", "--lease", "1m", "--done-status", "4"];
    let script = program_at(server, &script).spawn().unwrap();
    until_listed(server, "--waiters", "page", 3).await;
    assert_eq!(end(works, "0\n").await.status.code(), Some(0));
    for (child, status) in waiting.into_iter().zip([0, 3]).chain([(script, 4)]) {
        let output = finished(child).await;
        assert_eq!((output.status.code(), &output.stdout[..], stderr(&output)), (Some(status), &b""[..], ""));
    }
    assert_eq!(end(worker(server, &[]).await, "0\n").await.status.code(), Some(0), "a later one works");
}

#[tokio::test]
async fn the_next_one_works_if_the_command_fails() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let works = worker(server, &[]).await;
    let next = waiter(server, &[]);
    until_listed(server, "--waiters", "page", 1).await;
    assert_eq!(end(works, "7\n").await.status.code(), Some(7));
    assert_eq!(stdout(&finished(next).await), "started\n");
}

#[tokio::test]
async fn a_script_says_that_its_work_is_done() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let with_variables = |output: &Output, arguments: &[&str]| {
        let mut program = program_at(server, arguments);
        let assignments = stdout(output).lines().filter_map(|line| line.strip_prefix("export "));
        program.envs(assignments.filter_map(|line| line.split_once('=')));
        program.stdout(Stdio::piped()).spawn().unwrap()
    };
    let held = ran(server, &["acquire", "page", "--share", "--lease", "1m"]).await;
    let waiting = waiter(server, &[]);
    until_listed(server, "--waiters", "page", 1).await;
    let released = finished(with_variables(&held, &["release", "--done"])).await;
    assert_eq!((released.status.code(), stderr(&released)), (Some(0), ""));
    assert_eq!(stdout(&finished(waiting).await), "");
    let ordinary = ran(server, &["acquire", "page", "--max", "1", "--lease", "1m"]).await;
    let refused = finished(with_variables(&ordinary, &["release", "--done"])).await;
    assert_fails(&refused, 64, "was not acquired with --share");
    let released = finished(with_variables(&ordinary, &["release"])).await;
    assert_eq!(released.status.code(), Some(0), "it was held until now");
}

#[tokio::test]
async fn a_single_flight_is_for_one_resource_of_one_name() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for wrong in [
        &["page:2"][..],
        &["page", "other"],
        &["page=2:2"],
        &["page", "--max", "2"],
        &["page", "--slot", "1"],
    ] {
        let arguments = [&["run", "--share"], wrong, &["--", "echo", "started"]].concat();
        let output = ran(server, &arguments).await;
        assert_fails(&output, 64, "--share requires one NAME");
        assert_eq!(output.stdout, b"");
    }
}

#[tokio::test]
async fn a_counter_needs_no_maximum() {
    let mut daemon = Daemon::start();
    let output = ran(daemon.address("counter"), &["run", "page", "--share", "--counter", "--", "true"]).await;
    assert_eq!(stdout(&output), "");
}
