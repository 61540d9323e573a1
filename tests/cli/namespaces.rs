//! Counters and semaphores are never mistaken for each other: the port of plain operations, names without a maximum, and
//! arguments that contradict each other or the server.

use super::{assert_fails, finished, line, program, program_at, ran, stderr, stderr_of, stdout, stdout_of};
use crate::support::daemon::Daemon;
use crate::support::fake_server::FakeServer;
use crate::support::yrmcdsd::Yrmcdsd;

/// Every plain operation that is about a namespace.
const PLAIN: [&[&str]; 5] = [
    &["get", "job"],
    &["stats"],
    &["dump"],
    &["bench", "--count", "10", "--warmup", "0"],
    &["run", "job", "--max", "1", "--", "echo", "started"],
];

/// The arguments with an option of the program itself, not of the command of `run`.
fn with_semaphore<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let (subcommand, rest) = arguments.split_first().unwrap();
    [&[subcommand, "--semaphore"], rest].concat()
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
async fn a_leased_operation_takes_either_port_and_the_option_decides() {
    let mut daemon = Daemon::start();
    let ports = [daemon.address("counter"), daemon.address("semaphore")];
    let mut holder = program_at(
        ports[0],
        &["run", "job", "--max", "1", "--lease", "60", "--", "sh", "-c", "echo ready; read _"],
    )
    .spawn()
    .unwrap();
    assert_eq!(line(&mut stdout_of(&mut holder)).await, "ready");
    for port in ports {
        let counter = ["run", "job", "--max", "1", "--lease", "5", "--", "echo", "started"];
        let output = ran(port, &counter).await;
        assert_eq!(output.stdout, b"");
        assert_fails(&output, 75, "counter \"job\": 1 of 1 in use");
        let output = ran(port, &with_semaphore(&counter)).await;
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
async fn a_name_without_a_maximum_is_a_declared_semaphore() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&ran(server, &["declare", "gpu", "--capacity", "3"]).await);
    let signalbox = env!("CARGO_BIN_EXE_signalbox");
    let in_use_of_gpu = format!("{signalbox} await-idle --semaphore gpu --level 9");
    for (wanted, in_use) in [
        (&["gpu"][..], "1\n"),
        (&["gpu=2/"], "2\n"),
        (&["gpu", "--resources", "2"], "2\n"),
        (&["gpu", "--semaphore"], "1\n"),
        (&["gpu", "seats=10"], "1\n"),
    ] {
        let arguments = [&["run"], wanted, &["--", "sh", "-c", &in_use_of_gpu]].concat();
        assert_eq!(stdout(&ran(server, &arguments).await), in_use, "{wanted:?}");
    }
    let seats = format!("{signalbox} get seats; {in_use_of_gpu}");
    let output = ran(server, &["run", "gpu=3/", "seats=2/10", "--", "sh", "-c", &seats]).await;
    assert_eq!(stdout(&output), "2\n3\n", "a counter and a semaphore together");
}

#[tokio::test]
async fn a_name_that_exists_only_in_the_other_namespace_is_pointed_out() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&ran(server, &["declare", "gpu", "--capacity", "3"]).await);
    assert_eq!(daemon.counter().acquire(b"job", 1, 1).status, 0);
    for name in ["job", "job=2/"] {
        let output = ran(server, &["run", name, "--", "true"]).await;
        assert_fails(&output, 1, "semaphore \"job\" does not exist, but a counter of this name does");
    }
    let output = ran(server, &["run", "none", "--", "true"]).await;
    assert_fails(
        &output,
        1,
        "semaphore \"none\" does not exist; declare it with \"signalbox declare\", or for a counter",
    );
    for list in ["holders", "waiters", "get", "await-idle"] {
        let output = ran(server, &[list, "gpu"]).await;
        assert_fails(
            &output,
            1,
            "counter \"gpu\" does not exist; a semaphore of this name exists; add --semaphore",
        );
    }
    for list in ["holders", "waiters", "await-idle"] {
        let output = ran(server, &[list, "job", "--semaphore"]).await;
        assert_fails(
            &output,
            1,
            "semaphore \"job\" does not exist; a counter of this name exists; omit --semaphore",
        );
    }
    for (arguments, said) in [
        (&["watch", "gpu"][..], "counter \"gpu\" does not exist, but a semaphore of this name does"),
        (
            &["watch", "job", "--semaphore"],
            "semaphore \"job\" does not exist, but a counter of this name does",
        ),
    ] {
        let mut watch = program_at(server, arguments).spawn().unwrap();
        let line = line(&mut stderr_of(&mut watch)).await;
        assert!(line.contains(said) && line.contains("--semaphore"), "{line}");
    }
    for arguments in [&["watch", "job"][..], &["watch", "gpu", "--semaphore"], &["watch", "none"]] {
        let mut watch = program_at(server, arguments).spawn().unwrap();
        let mut events = stdout_of(&mut watch);
        while !line(&mut events).await.starts_with("live") {}
        watch.start_kill().unwrap();
        assert_eq!(stderr(&finished(watch).await), "", "{arguments:?}");
    }
}

#[tokio::test]
async fn a_capacity_that_is_not_the_given_one_is_reported() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    stdout(&ran(server, &["declare", "gpu", "--capacity", "2"]).await);
    let said = "semaphore \"gpu\" has the capacity 2, not 4 as given";
    for arguments in [
        &["run", "gpu=2/4", "--semaphore", "--", "echo", "started"][..],
        &["run", "gpu=2/4", "--semaphore", "--lease", "5", "--", "echo", "started"],
        &["run", "gpu", "--max", "4", "--semaphore", "--", "echo", "started"],
        &["acquire", "gpu=2/4", "--semaphore", "--lease", "0.5"],
    ] {
        let output = ran(server, arguments).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(!output.stdout.is_empty() && stderr(&output).contains(said), "{arguments:?}: {output:?}");
        stdout(&ran(server, &["await-idle", "gpu", "--semaphore"]).await);
    }
    let output = ran(server, &["run", "gpu=2/2", "--semaphore", "--", "echo", "started"]).await;
    assert_eq!(stdout(&output), "started\n", "no message without a contradiction");
}

#[tokio::test]
async fn a_counter_with_the_name_of_a_declared_semaphore_is_reported() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&ran(server, &["declare", "gpu", "gpus", "--capacity", "2"]).await);
    for (wanted, advice) in [
        (&["gpu=2/4"][..], "omit the maximum: gpu=2/"),
        (&["gpu", "--max", "4"], "omit the maximum: gpu"),
        (&["gpu", "--max", "4", "--lease", "5"], "omit the maximum: gpu"),
        (&["seats=3", "gpu=2/4"], "omit the maximum: gpu=2/"),
    ] {
        let output = ran(server, &[&["run"], wanted, &["--", "echo", "started"]].concat()).await;
        assert_eq!((&output.stdout[..], output.status.code()), (&b"started\n"[..], Some(0)), "{output:?}");
        let said = "counter \"gpu\" was acquired, and not the declared semaphore \"gpu\"";
        assert!(stderr(&output).contains(said) && stderr(&output).trim_end().ends_with(advice), "{output:?}");
    }
    for wanted in [&["gp=2/4"][..], &["gpu"], &["gpu=2", "--semaphore"]] {
        let output =
            ran(server, &[&["run"], wanted, &["--lease", "5", "--", "echo", "started"]].concat()).await;
        assert_eq!(stdout(&output), "started\n", "{wanted:?}");
    }
}

#[tokio::test]
async fn a_counter_with_the_name_of_a_semaphore_that_is_not_declared_is_reported() {
    let mut daemon = Daemon::start();
    let (counters, semaphores) = (daemon.address("counter"), daemon.address("semaphore"));
    stdout(&ran(semaphores, &["run", "crate", "--semaphore", "--max", "1", "--", "true"]).await);
    for wanted in [&["--max", "1"][..], &["--max", "1", "--lease", "5"]] {
        let run = [&["run", "crate"], wanted, &["--", "echo", "started"]].concat();
        let output = ran(counters, &run).await;
        assert_eq!((&output.stdout[..], output.status.code()), (&b"started\n"[..], Some(0)), "{output:?}");
        let said = "counter \"crate\" was acquired, and not the semaphore \"crate\"; to acquire the semaphore, add \
                    --semaphore, and give the port of the semaphores";
        assert!(stderr(&output).contains(said), "{output:?}");
    }
}

#[tokio::test]
async fn a_lease_that_the_server_does_not_allow_is_reported() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for (lease, said) in [
        ("2h", "the lease is 3600 s, the longest that the server allows, instead of 7200 s; change --lease"),
        ("0.1", "the shortest that the server allows, instead of 0.1 s; change --lease"),
    ] {
        let output = ran(server, &["run", "job", "--max", "1", "--lease", lease, "--", "true"]).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(stderr(&output).contains(said), "{output:?}");
    }
}

#[tokio::test]
async fn a_name_that_looks_like_something_else_can_still_be_used() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for (arguments, name) in [
        (&["job*", "--max", "1", "--exact"][..], "job*"),
        (&["job=", "--max", "1"], "job="),
        (&["job=1=1"], "job=1"),
        (&["a=b=1"], "a=b"),
        (&["--name=-x", "--max", "1"], "-x"),
        (&["--name=-y=1", "z=1"], "-y"),
    ] {
        let output = ran(server, &[&["run"], arguments, &["--", "echo", "started"]].concat()).await;
        assert_eq!(stdout(&output), "started\n", "{arguments:?}");
        assert_eq!(stdout(&ran(server, &["get", "--", name]).await), "0\n", "{arguments:?}");
    }
    let declared = ran(server, &["declare", "gpu*", "gpu=3", "--exact", "--capacity", "1"]).await;
    assert_eq!(stdout(&declared).lines().count(), 2);
    assert_eq!(stdout(&ran(server, &["await-idle", "job*", "--exact"]).await), "0\n");
}
