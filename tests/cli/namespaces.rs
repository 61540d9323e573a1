//! How names of limits, counters and semaphores are resolved, the port of plain operations, and arguments that contradict
//! each other or the server.

use super::{assert_fails, finished, line, program, program_at, ran, stderr, stdout, stdout_of};
use crate::support::daemon::Daemon;
use crate::support::fake_server::FakeServer;
use crate::support::yrmcdsd::Yrmcdsd;

/// Every plain operation that is about a namespace.
const PLAIN: [&[&str]; 5] = [
    &["get", "job"],
    &["stats"],
    &["dump"],
    &["bench", "--count", "10", "--warmup", "0"],
    &["run", "job", "--counter", "--max", "1", "--", "echo", "started"],
];

/// The arguments with an option of the program itself, not of the command of `run`.
fn with_semaphore<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let (subcommand, rest) = arguments.split_first().unwrap();
    [&[subcommand, "--semaphore"], rest].concat().into_iter().filter(|word| *word != "--counter").collect()
}

#[tokio::test]
async fn a_plain_operation_on_a_port_of_the_other_namespace_is_refused() {
    let mut daemon = Daemon::start();
    let (counters, semaphores) = (daemon.address("counter"), daemon.address("semaphore"));
    for arguments in PLAIN {
        let output = ran(counters, &with_semaphore(arguments)).await;
        assert_eq!(output.stdout, b"", "{arguments:?}");
        assert_fails(
            &output,
            64,
            "serves counters, and --semaphore requests semaphores; give the port of the semaphores",
        );
        assert!(stderr(&output).contains("which is another thing, omit --semaphore"), "{output:?}");
        let output = ran(semaphores, arguments).await;
        assert_eq!(output.stdout, b"", "{arguments:?}");
        assert_fails(
            &output,
            64,
            "serves semaphores, and counters were requested; give the port of the counters",
        );
        assert!(stderr(&output).contains("which is another thing, add --semaphore"), "{output:?}");
    }
    let objects = daemon.semaphore().stats().into_iter().find(|(name, _)| name == "total_objects");
    assert_eq!(objects, Some(("total_objects".to_owned(), "0".to_owned())), "nothing was created");
    let answer = ran(semaphores, &["ping"]).await;
    assert!(stdout(&answer).starts_with("answer from"), "a ping is about no namespace");
    let started = ran(semaphores, &with_semaphore(PLAIN[4])).await;
    assert_eq!(stdout(&started), "started\n");
}

#[tokio::test]
async fn a_limit_is_used_over_either_port() {
    let mut daemon = Daemon::start();
    let ports = [daemon.address("counter"), daemon.address("semaphore")];
    let mut holder =
        program_at(ports[0], &["run", "job", "--max", "1", "--", "sh", "-c", "echo ready; read _"])
            .spawn()
            .unwrap();
    assert_eq!(line(&mut stdout_of(&mut holder)).await, "ready");
    for port in ports {
        let run = ["run", "job", "--max", "1", "--", "echo", "started"];
        let output = ran(port, &run).await;
        assert_eq!(output.stdout, b"");
        assert_fails(&output, 75, "limit \"job\": 1 of 1 in use");
        let output = ran(port, &[&["run", "--lease", "5", "--semaphore"], &run[1..]].concat()).await;
        assert_eq!(stdout(&output), "started\n");
    }
}

#[tokio::test]
async fn a_server_that_does_not_say_what_its_port_serves_has_no_semaphore_option() {
    let server = FakeServer::bind().await;
    let message = "does not say whether it serves counters or semaphores";
    for arguments in PLAIN {
        let child = program(&server, &with_semaphore(arguments)).spawn().unwrap();
        server.accept().await.closed().await;
        assert_fails(&finished(child).await, 64, message);
    }
    let Some(yrmcdsd) = Yrmcdsd::start() else { return };
    for arguments in PLAIN {
        assert_fails(&ran(yrmcdsd.counters, &with_semaphore(arguments)).await, 64, message);
    }
}

#[tokio::test]
async fn a_limit_is_what_is_declared_or_has_a_maximum() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&ran(server, &["declare", "gpu", "--capacity", "3", "--slots"]).await);
    for (wanted, slots) in [
        (&["gpu"][..], "0"),
        (&["gpu=2"], "0,1"),
        (&["gpu", "--resources", "2"], "0,1"),
        (&["gpu", "--max", "3"], "0"),
        (&["gpu=2:4"], "0,1"),
        (&["gpu=2", "tenant:8"], "0,1:"),
        (&["gpu", "--semaphore"], "0"),
        (&["tenant", "--max", "8"], ""),
        (&["tenant:8"], ""),
        (&["gpu:2", "--counter", "--lease", "5"], ""),
    ] {
        let arguments = [&["run"], wanted, &["--", "sh", "-c", "echo $SIGNALBOX_SLOTS"]].concat();
        assert_eq!(stdout(&ran(server, &arguments).await).trim_end(), slots, "{wanted:?}");
    }
    for wanted in [&["gpu", "--max", "2"][..], &["tenant:8", "gpu:2"], &["gpu:2", "--wait", "max"]] {
        let arguments = [&["run"], wanted, &["--", "echo", "started"]].concat();
        let said = "a declared semaphore with the capacity 3, more than the requested maximum";
        assert_fails(&ran(server, &arguments).await, 1, said);
    }
    let acquired = ran(server, &["acquire", "gpu", "--max", "3", "--lease", "1m", "--json"]).await;
    assert!(stdout(&acquired).contains(r#""slots":[[0]]"#), "{acquired:?}");
    let names = |option: &'static str| async move {
        stdout(&ran(server, &["status", option, "gpu", "--no-header"]).await).to_owned()
    };
    assert_eq!(names("--holders").await.lines().count(), 1);
    assert_eq!(names("--waiters").await, "");
    assert!(names("--timeout=5").await.contains("kind        semaphore"));
}

#[tokio::test]
async fn a_limit_that_is_neither_declared_nor_has_a_maximum_is_refused_with_advice() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let output = ran(server, &["run", "none", "--", "true"]).await;
    assert_fails(
        &output,
        1,
        "limit \"none\" is not declared; declare it with \"signalbox declare\", or give",
    );
    let mut holder =
        program_at(server, &["run", "job:1", "--", "sh", "-c", "echo ready; read _"]).spawn().unwrap();
    assert_eq!(line(&mut stdout_of(&mut holder)).await, "ready");
    let output = ran(server, &["run", "job=2", "--", "true"]).await;
    assert_fails(&output, 1, "limit \"job\" is not declared, but clients use it with a maximum; declare it");
    let output = ran(server, &["declare", "job", "--capacity", "1"]).await;
    assert_fails(&output, 1, "clients hold or wait for the counter of this name");
    for option in ["--holders", "--waiters", "--json"] {
        assert_fails(
            &ran(server, &["status", option, "none"]).await,
            1,
            "limit \"none\" does not exist; check the name",
        );
    }
    for (kind, said) in [
        ("--semaphore", "semaphore \"job\" does not exist; a counter of this name exists"),
        ("--counter", "counter \"gpu\" does not exist; a semaphore of this name exists"),
    ] {
        stdout(&ran(server, &["declare", "gpu", "--capacity", "3", "--if-exists", "keep"]).await);
        let name = if kind == "--counter" { "gpu" } else { "job" };
        assert_fails(&ran(server, &["status", "--holders", kind, name]).await, 1, said);
    }
    let output = ran(server, &["run", "gpu", "--counter", "--", "true"]).await;
    assert_fails(&output, 64, "counter \"gpu\" needs a maximum; add --max N");
}

#[tokio::test]
async fn a_request_without_a_maximum_says_so_inside_a_run_of_the_same_name_too() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let inner = ["run", "job", "--", "true"];
    let inner = [&["--", env!("CARGO_BIN_EXE_signalbox")], &inner[..]].concat();
    let output = ran(server, &[&["run", "job", "--max", "5"], &inner[..]].concat()).await;
    assert_fails(&output, 1, "--max");
}

#[tokio::test]
async fn a_watch_reports_a_limit_whatever_it_becomes() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for name in ["job", "jo*"] {
        let mut watch = program_at(server, &["watch", name]).spawn().unwrap();
        let mut events = stdout_of(&mut watch);
        while !line(&mut events).await.contains("\tlive\t") {}
        stdout(&ran(server, &["run", "job:1", "--", "true"]).await);
        assert!(line(&mut events).await.contains("\tgranted\t"));
        assert!(line(&mut events).await.contains("\treleased\t"));
        stdout(&ran(server, &["declare", "job", "--capacity", "1"]).await);
        stdout(&ran(server, &["run", "job:1", "--", "true"]).await);
        let mut event = line(&mut events).await;
        while !event.contains("\tgranted\t") {
            event = line(&mut events).await;
        }
        watch.start_kill().unwrap();
        assert_eq!(stderr(&finished(watch).await), "");
        stdout(&ran(server, &["remove", "job"]).await);
    }
}

#[tokio::test]
async fn a_capacity_that_is_not_the_given_one_is_reported() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    stdout(&ran(server, &["declare", "gpu", "--capacity", "2"]).await);
    let said = "semaphore \"gpu\" has the capacity 2, not 4 as given";
    for arguments in [
        &["run", "gpu=2:4", "--semaphore", "--lease", "5", "--", "echo", "started"][..],
        &["acquire", "gpu=2:4", "--semaphore", "--lease", "0.5"],
    ] {
        let output = ran(server, arguments).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(!output.stdout.is_empty() && stderr(&output).contains(said), "{arguments:?}: {output:?}");
        stdout(&ran(server, &["await-idle", "gpu", "--semaphore"]).await);
    }
    let output =
        ran(server, &["run", "gpu=2:2", "--semaphore", "--lease", "5", "--", "echo", "started"]).await;
    assert_eq!(stdout(&output), "started\n", "no message without a contradiction");
}

#[tokio::test]
async fn a_lease_that_the_server_does_not_allow_is_refused_or_reported() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for arguments in [
        &["run", "job", "--max", "1", "--lease", "2h", "--", "echo", "started"][..],
        &["acquire", "job:1", "--lease", "2h"],
    ] {
        let output = ran(server, arguments).await;
        assert_fails(&output, 64, "3600 s");
        assert_eq!(output.stdout, b"");
    }
    let output = ran(server, &["run", "job", "--max", "1", "--lease", "0.1", "--", "true"]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stderr(&output).contains("instead of 0.1 s"), "{output:?}");
}

#[tokio::test]
async fn a_name_that_looks_like_something_else_can_still_be_used() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for (arguments, name) in [
        (&["job*", "--max", "1", "--exact"][..], "job*"),
        (&["job=", "job=1.5", "--max", "1", "--exact"], "job="),
        (&["job:7", "--max", "1", "--exact"], "job:7"),
        (&["host:web", "--max", "1"], "host:web"),
        (&["--name=-x", "--max", "1"], "-x"),
        (&["--name=-y:1", "z:1"], "-y"),
    ] {
        let output = ran(server, &[&["run"], arguments, &["--", "echo", "started"]].concat()).await;
        assert_eq!(stdout(&output), "started\n", "{arguments:?}");
        assert_eq!(stdout(&ran(server, &["get", "--", name]).await), "0\n", "{arguments:?}");
    }
    let declared =
        ran(server, &["declare", "gpu*", "gpu=3", "--exact", "--capacity", "1", "--no-header"]).await;
    assert_eq!(stdout(&declared).lines().count(), 2);
    assert_eq!(stdout(&ran(server, &["await-idle", "job*", "--exact"]).await), "0\n");
}
