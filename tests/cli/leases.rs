//! Leases and waiting on the command line, against the real server: `run`, `acquire`, `renew`, `release`, `revoke`.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::{assert_fails, finished, line, program_at, ran, stderr, stderr_of, stdout, stdout_of, warning};
use crate::support::daemon::{Daemon, message};
use crate::support::fake_server::{FakeServer, soon};
use crate::support::proxy::{Mode, Proxy};
use crate::support::yrmcdsd::Yrmcdsd;

/// The lines of a list of holders or waiters; an unknown name has none.
async fn listed(server: SocketAddr, list: &str, name: &str) -> Vec<serde_json::Value> {
    let output = ran(server, &["status", list, name, "--json"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until a name has this many holders or waiters.
pub(super) async fn until_listed(
    server: SocketAddr,
    list: &str,
    name: &str,
    count: usize,
) -> Vec<serde_json::Value> {
    soon(&format!("{count} {list} of {name}"), async {
        loop {
            let entries = listed(server, list, name).await;
            if entries.len() == count {
                return entries;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await
}

fn grant_of(entry: &serde_json::Value) -> String {
    entry["grant"].as_str().expect("a string, because a double would round it").to_owned()
}

#[tokio::test]
async fn several_names_are_acquired_and_released_together() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let signalbox = env!("CARGO_BIN_EXE_signalbox");
    let script = format!("{signalbox} get gpu; {signalbox} get licences; exit 7");
    let output = ran(server, &["run", "gpu=2:4", "licences:10", "--", "sh", "-c", &script]).await;
    assert_eq!((&output.stdout[..], output.status.code()), (&b"2\n1\n"[..], Some(7)), "{}", stderr(&output));
    for name in ["gpu", "licences"] {
        assert_eq!(stdout(&ran(server, &["get", name]).await), "0\n");
    }
    let mut holder = program_at(server, &["run", "b", "--max", "1", "--", "sh", "-c", "echo ready; read _"]);
    let mut holder = holder.spawn().unwrap();
    assert_eq!(line(&mut stdout_of(&mut holder)).await, "ready");
    let output = ran(server, &["run", "a", "b", "--max", "1", "--", "echo", "started"]).await;
    assert_eq!(output.stdout, b"");
    assert_fails(
        &output,
        75,
        "limits \"a\", \"b\": not all are available: \"b\" (1 of 1 in use, 1 requested)",
    );
    assert_eq!(stdout(&ran(server, &["get", "a"]).await), "0\n", "all or none");
    drop(holder);
}

#[tokio::test]
async fn run_limits_its_wait_and_the_length_of_the_queue() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let mut holder =
        program_at(server, &["run", "job", "--max", "1", "--", "sh", "-c", "echo ready; read _"])
            .spawn()
            .unwrap();
    assert_eq!(line(&mut stdout_of(&mut holder)).await, "ready");

    let output = ran(server, &["run", "job", "--max", "1", "--wait", "0.1", "--", "echo", "started"]).await;
    assert_eq!(output.stdout, b"");
    assert_fails(&output, 75, "limit \"job\": not granted within 0.1 s (1 of 1 in use, 1 requested)");

    let waiter = program_at(server, &["run", "job", "--max", "1", "--wait=1h", "--", "echo", "started"])
        .spawn()
        .unwrap();
    until_listed(server, "--waiters", "job", 1).await;
    let arguments =
        ["run", "job", "--max", "1", "--wait", "max", "--queue-max", "1", "--", "echo", "started"];
    assert_fails(
        &ran(server, &arguments).await,
        75,
        "the wait queue has 1 or more requests, the limit of --queue-max",
    );

    holder.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    assert_eq!(stdout(&finished(waiter).await), "started\n");
    assert_eq!(stdout(&ran(server, &["get", "job"]).await), "0\n");
}

#[tokio::test]
async fn a_signal_ends_the_wait_and_leaves_the_queue() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let held = ran(server, &["acquire", "job", "--max", "1", "--lease", "1h"]).await;
    assert!(stdout(&held).contains("SIGNALBOX_KEY"));
    for subcommand in [&["run"][..], &["acquire", "--lease", "1h"]] {
        let mut arguments = subcommand.to_vec();
        arguments.extend(["job", "--max", "1", "--wait", "max"]);
        if subcommand == ["run"] {
            arguments.extend(["--", "echo", "started"]);
        }
        let waiter = program_at(server, &arguments).spawn().unwrap();
        until_listed(server, "--waiters", "job", 1).await;
        kill(Pid::from_raw(waiter.id().unwrap().try_into().unwrap()), Signal::SIGTERM).unwrap();
        let output = finished(waiter).await;
        assert_eq!((output.status.signal(), stderr(&output)), (Some(15), ""));
        assert_eq!(output.stdout, b"");
        assert_eq!(
            listed(server, "--waiters", "job").await.len(),
            0,
            "its place in the queue is free at once"
        );
    }
}

#[tokio::test]
async fn a_signal_ends_the_wait_for_a_server_that_does_not_answer() {
    let server = FakeServer::bind().await;
    let arguments = ["run", "job", "--max", "1", "--lease", "1h", "--timeout", "1h", "--", "echo", "started"];
    let waiter = program_at(server.address(), &arguments).spawn().unwrap();
    let _asked = server.accept().await;
    kill(Pid::from_raw(waiter.id().unwrap().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let output = finished(waiter).await;
    assert_eq!((output.status.signal(), &output.stdout[..]), (Some(15), &b""[..]));
}

#[tokio::test]
async fn a_command_ends_before_its_lease_when_the_server_dies() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "trap 'echo TERM' TERM; echo ready; while :; do sleep 0.02; done";
    let arguments = ["run", "job", "--max", "1", "--lease", "4", "--", "sh", "-c", script];
    let mut child = program_at(server, &arguments).spawn().unwrap();
    let (mut out, mut err) = (stdout_of(&mut child), stderr_of(&mut child));
    assert_eq!(line(&mut out).await, "ready");
    daemon.signal(Signal::SIGKILL);
    assert_eq!(line(&mut out).await, "TERM", "the command has time to end by itself");
    let warning = warning(&mut err).await;
    assert!(warning.contains("job") && warning.contains("sent SIGTERM to the command"), "{warning}");
    // The command ignores SIGTERM, so SIGKILL ended it, long before the ten seconds of --kill-after.
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
    while let Some(line) = err.next_line().await.unwrap() {
        assert!(!line.starts_with("signalbox: "), "no further message: {line}");
    }
}

/// This is the case after a restart without a data directory.
#[tokio::test]
async fn a_command_has_time_to_end_when_a_server_has_lost_its_lease() {
    let (mut first, mut second) = (Daemon::start(), Daemon::start());
    let proxy = Proxy::to(first.address("counter"));
    let script = "trap 'echo TERM; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let options = ["run", "job", "--max", "1", "--lease", "1h", "--kill-after", "1h", "--", "sh", "-c"];
    let mut child = program_at(proxy.address, &[&options[..], &[script]].concat()).spawn().unwrap();
    let mut out = stdout_of(&mut child);
    assert_eq!(line(&mut out).await, "ready");
    proxy.set(Mode::To(second.address("counter")));
    assert_eq!(line(&mut out).await, "TERM");
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
}

#[tokio::test]
async fn a_command_may_continue_without_its_lease() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "echo ready; read _; exit 3";
    let arguments =
        ["run", "job", "--max", "1", "--lease", "2", "--on-lost", "continue", "--", "sh", "-c", script];
    let mut child = program_at(server, &arguments).spawn().unwrap();
    let (mut out, mut err) = (stdout_of(&mut child), stderr_of(&mut child));
    assert_eq!(line(&mut out).await, "ready");
    daemon.signal(Signal::SIGKILL);
    let warning = warning(&mut err).await;
    assert!(warning.contains("the lease of \"job\" ended") && warning.contains("keeps running"), "{warning}");
    child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(3));
}

#[tokio::test]
async fn a_command_survives_a_disconnect_shorter_than_the_lease() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let proxy = Proxy::to(server);
    let script = "echo ready; read _; exit 3";
    let arguments = ["run", "job", "--max", "1", "--lease", "1h", "--", "sh", "-c", script];
    let mut child = program_at(proxy.address, &arguments).spawn().unwrap();
    assert_eq!(line(&mut stdout_of(&mut child)).await, "ready");
    let before = until_listed(server, "--holders", "job", 1).await;
    proxy.set(Mode::Cut);
    soon("the disconnect to be detected", async {
        while !listed(server, "--holders", "job").await[0]["address"].is_null() {}
    })
    .await;
    proxy.set(Mode::To(server));
    soon("the session to be continued", async {
        while listed(server, "--holders", "job").await[0]["address"].is_null() {}
    })
    .await;
    let after = listed(server, "--holders", "job").await;
    assert_eq!(grant_of(&before[0]), grant_of(&after[0]), "the grant was held all the time");
    child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    let output = finished(child).await;
    assert_eq!((output.status.code(), stderr(&output)), (Some(3), ""));
    assert_eq!(stdout(&ran(server, &["get", "job"]).await), "0\n");
}

#[tokio::test]
async fn a_canceled_request_leaves_the_queue_and_its_session_keeps_what_it_holds() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let holder = Script::holding(server, &["job:1", "other:1"]).await;
    let waits = ["run", "job", "--max", "1", "--lease", "1h", "--wait", "max", "--", "true"];
    let first = program_at(server, &waits).spawn().unwrap();
    let waiter = until_listed(server, "--waiters", "job", 1).await.remove(0);
    let second = program_at(server, &waits).spawn().unwrap();
    let later = until_listed(server, "--waiters", "job", 2).await.remove(1);

    assert_eq!(stdout(&ran(server, &["cancel", "--request", &grant_of(&waiter)]).await), "");
    let session = later["session"].as_str().unwrap();
    assert_eq!(stdout(&ran(server, &["cancel", "--session", session]).await), "1\n");
    for mut command in [first, second] {
        assert_eq!(soon("the program to end", command.wait()).await.unwrap().code(), Some(1));
    }
    daemon.logged("the cancellation", |line| {
        message(line) == format!("cancel waiting request {}", grant_of(&waiter))
    });
    assert_eq!(stdout(&ran(server, &["cancel", "--session", holder.session()]).await), "0\n");
    until_listed(server, "--holders", "other", 1).await;
    for (arguments, says) in [
        (["cancel", "--request", holder.grant()], "it does not wait"),
        (["cancel", "--session", "999999999"], "of session 999999999: it does not exist"),
    ] {
        let refused = ran(server, &arguments).await;
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    }
}

#[tokio::test]
async fn a_revocation_ends_the_command_within_its_grace() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for (script, grace, by_session) in [
        // The command ends by itself, long before the grace period ends.
        ("trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.02; done", "1h", false),
        // The command ignores SIGTERM and is killed before the grace period ends, not after the hour of --kill-after.
        ("trap 'echo TERM' TERM; echo ready; while :; do sleep 0.02; done", "2s", false),
        ("trap 'echo TERM' TERM; echo ready; while :; do sleep 0.02; done", "2s", true),
    ] {
        let arguments =
            ["run", "job", "--max", "1", "--lease", "1h", "--kill-after", "1h", "--", "sh", "-c", script];
        let mut child = program_at(server, &arguments).spawn().unwrap();
        let (mut out, mut err) = (stdout_of(&mut child), stderr_of(&mut child));
        assert_eq!(line(&mut out).await, "ready");
        let holder = &until_listed(server, "--holders", "job", 1).await[0];
        let (option, number) = match by_session {
            true => ("--session", holder["session"].as_str().unwrap().to_owned()),
            false => ("--grant", grant_of(holder)),
        };
        assert_eq!(stdout(&ran(server, &["revoke", option, &number, "--grace", grace]).await), "");
        let revocation = format!("revoke {} {number} with a grace period of ", &option[2..]);
        daemon.logged("the revocation", |line| message(line).starts_with(&revocation));
        assert_eq!(line(&mut out).await, "TERM");
        let warning = warning(&mut err).await;
        assert!(warning.contains("an administrator revoked \"job\""), "{warning}");
        assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
        until_listed(server, "--holders", "job", 0).await;
    }
}

#[tokio::test]
async fn a_revocation_without_grace_kills_the_command_at_once() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for graces in [&["0"][..], &["1h", "0"], &["1h", "1s"]] {
        let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
        let arguments =
            ["run", "job", "--max", "1", "--lease", "1h", "--kill-after", "1h", "--", "sh", "-c", script];
        let mut child = program_at(server, &arguments).spawn().unwrap();
        assert_eq!(line(&mut stdout_of(&mut child)).await, "ready");
        let grant = grant_of(&until_listed(server, "--holders", "job", 1).await[0]);
        for grace in graces {
            assert_eq!(stdout(&ran(server, &["revoke", "--grant", &grant, "--grace", grace]).await), "");
        }
        assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69), "{graces:?}");
    }
}

#[tokio::test]
async fn a_script_holds_over_several_commands() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = r#"
        held=$("$1" acquire job --max 3 --resources 2 --lease 5m) || exit
        eval "$held"
        "$1" get job
        "$1" renew
        "$1" status --holders job | cut -f 1 | grep -qx "$SIGNALBOX_GRANT" && echo the same
        "$1" release && "$1" get job
        "$1" renew
        echo $?
        "$1" release --session "$SIGNALBOX_SESSION" --key "$SIGNALBOX_KEY"
        echo $?
        held=$("$1" acquire job --max 1 --lease 5m) && eval "$held"
        lost=$("$1" acquire job --max 1 --lease 5m --wait=0.1)
        echo $? "$lost""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_signalbox")]);
    command.env("SIGNALBOX_SERVER", server.to_string()).stdin(Stdio::null());
    let output = soon("the script to end", command.output()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "2\n300\nthe same\n0\n1\n1\n75 \n", "{}", stderr(&output));
    assert_eq!(
        stderr(&output).matches("does not exist, or its key is wrong").count(),
        2,
        "{}",
        stderr(&output)
    );
}

/// A script that has evaluated what `acquire` printed.
struct Script {
    server: SocketAddr,
    variables: Vec<(&'static str, String)>,
}

impl Script {
    async fn holding(server: SocketAddr, names: &[&str]) -> Self {
        let acquire = [&["acquire"], names, &["--lease", "1h", "--json"]].concat();
        let held: serde_json::Value = serde_json::from_str(stdout(&ran(server, &acquire).await)).unwrap();
        let text = |key: &str| held[key].as_str().map_or(held[key].to_string(), str::to_owned);
        let variables = ["SESSION", "KEY", "GRANT"];
        let names = ["SIGNALBOX_SESSION", "SIGNALBOX_KEY", "SIGNALBOX_GRANT"];
        let values = variables.map(|variable| text(&variable.to_lowercase()));
        Self { server, variables: names.into_iter().zip(values).collect() }
    }

    fn session(&self) -> &str {
        &self.variables[0].1
    }

    fn grant(&self) -> &str {
        &self.variables[2].1
    }

    async fn ran(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = program_at(self.server, arguments);
        finished(command.envs(self.variables.iter().cloned()).spawn().unwrap()).await
    }
}

#[tokio::test]
async fn renew_and_release_fail_if_the_grant_is_gone() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for is_removed in [false, true] {
        stdout(&ran(server, &["declare", "gpu", "--capacity", "2", "--if-exists", "keep"]).await);
        let script = Script::holding(server, &["gpu", "seats:3"]).await;
        assert_eq!(stdout(&script.ran(&["renew"]).await), "3600\n");
        let taken = match is_removed {
            false => ran(server, &["revoke", "--grant", script.grant(), "--grace", "0"]).await,
            true => ran(server, &["remove", "gpu", "--when", "now", "--grace", "0"]).await,
        };
        assert_eq!(stdout(&taken), "");
        let gone = format!("grant {} is no longer held", script.grant());
        let renewed = script.ran(&["renew"]).await;
        assert_eq!(renewed.stdout, b"");
        assert_fails(&renewed, 1, &gone);
        // With --session, SIGNALBOX_GRANT is not read, because it belongs to another session.
        assert_eq!(stdout(&script.ran(&["renew", "--session", script.session()]).await), "3600\n");
        let both = ["renew", "--session", script.session(), "--grant", script.grant()];
        assert_fails(&script.ran(&both).await, 1, &gone);
        assert_fails(&script.ran(&["release"]).await, 1, &gone);
        assert_fails(&script.ran(&["release"]).await, 1, "does not exist, or its key is wrong");
    }
}

#[tokio::test]
async fn renew_warns_while_the_grant_is_being_revoked() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&ran(server, &["declare", "gpu", "--capacity", "2"]).await);
    let revoked = Script::holding(server, &["gpu"]).await;
    let removed = Script::holding(server, &["gpu"]).await;
    stdout(&ran(server, &["revoke", "--grant", revoked.grant(), "--grace", "2000000s"]).await);
    let renewed = revoked.ran(&["renew"]).await;
    assert_eq!((&renewed.stdout[..], renewed.status.code()), (&b"3600\n"[..], Some(0)));
    let warning = format!("grant {} is being revoked, and its holder loses it in 1999", revoked.grant());
    assert!(stderr(&renewed).contains(&warning), "{renewed:?}");
    assert_eq!(stdout(&revoked.ran(&["release"]).await), "", "it stopped in time");

    stdout(&ran(server, &["remove", "gpu", "--when", "last-holder"]).await);
    let renewed = removed.ran(&["renew"]).await;
    let warning = format!("grant {} is still held, but its semaphore is being removed", removed.grant());
    assert_eq!((&renewed.stdout[..], renewed.status.code()), (&b"3600\n"[..], Some(0)));
    assert!(stderr(&renewed).contains(&warning), "{renewed:?}");
    assert_eq!(stdout(&removed.ran(&["release"]).await), "");
}

#[tokio::test]
async fn a_grant_of_another_session_is_not_taken_for_that_of_the_session() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = Script::holding(server, &["seats:3"]).await;
    let other = Script::holding(server, &["seats:3"]).await;
    let message = format!("grant {} is held by session {}", other.grant(), other.session());
    for subcommand in ["renew", "release"] {
        assert_fails(&script.ran(&[subcommand, "--grant", other.grant()]).await, 64, &message);
    }
    assert_eq!(until_listed(server, "--holders", "seats", 2).await.len(), 2, "a mistake changes nothing");
    assert_eq!(stdout(&script.ran(&["renew", "--grant", script.grant()]).await), "3600\n");
}

#[tokio::test]
async fn a_command_in_a_session_knows_its_grant() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "\"$0\" verify --no-header \"$SIGNALBOX_GRANT\" | cut -f 1; echo \"$SIGNALBOX_GRANT\"";
    let command = ["--", "sh", "-c", script, env!("CARGO_BIN_EXE_signalbox")];
    let mut last = 0;
    for held in [&["a:1", "b:1"][..], &["a", "--max", "1", "--lease", "5"]] {
        let output = ran(server, &[&["run"], held, &command].concat()).await;
        let (state, grant) = stdout(&output).split_once('\n').unwrap();
        let grant: u64 = grant.trim().parse().unwrap();
        assert!(state == "held" && grant > last, "{output:?}");
        last = grant;
    }
    let mut without = program_at(
        server,
        &["run", "a", "--counter", "--max", "1", "--", "sh", "-c", "echo \"[$SIGNALBOX_GRANT]\""],
    );
    let without = finished(without.env("SIGNALBOX_GRANT", "7").spawn().unwrap()).await;
    assert_eq!(stdout(&without), "[]\n", "an outer grant is not the command's");
}

#[tokio::test]
async fn acquire_prints_the_session_as_json() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    let arguments = ["acquire", "pool=2:4", "other:1", "--semaphore", "--lease", "1m", "--json"];
    let output = ran(server, &arguments).await;
    let held: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(held["lease"], 60.0);
    let key = held["key"].as_str().unwrap();
    assert_eq!(key.len(), 32);
    let holders = ran(server, &["status", "--holders", "other", "--semaphore", "--json"]).await;
    let holder: serde_json::Value = serde_json::from_str(stdout(&holders)).unwrap();
    assert_eq!((&holder["grant"], &holder["session"]), (&held["grant"], &held["session"]));
    assert!(!stdout(&holders).contains(key), "the list does not contain the key");
    let session = held["session"].as_str().unwrap();
    let mut release = program_at(server, &["release"]);
    release.env("SIGNALBOX_SESSION", session).env("SIGNALBOX_KEY", "0".repeat(32));
    assert_fails(&finished(release.spawn().unwrap()).await, 1, "its key is wrong");
    release.env("SIGNALBOX_KEY", key);
    assert_eq!(stdout(&finished(release.spawn().unwrap()).await), "");
    assert_eq!(stdout(&ran(server, &["get", "pool", "--semaphore"]).await), "4\n");
    let mut help = program_at(server, &["release", "--help"]);
    help.env("SIGNALBOX_SESSION", session).env("SIGNALBOX_KEY", key);
    assert!(!stdout(&finished(help.spawn().unwrap()).await).contains(key));
}

#[tokio::test]
async fn a_grant_that_cannot_be_printed_is_released() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = program_at(server, &["acquire", "job", "--max", "1", "--lease", "1h"]);
    let output = finished(command.stdout(full).spawn().unwrap()).await;
    assert_fails(&output, 74, "the resources were released");
    assert_eq!(stdout(&ran(server, &["get", "job"]).await), "0\n");
}

#[tokio::test]
async fn nothing_is_acquired_for_an_output_that_is_closed() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let acquire = async |output: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec \"$0\" acquire job --max 1 --lease 1h {output}"));
        shell.arg(env!("CARGO_BIN_EXE_signalbox")).env("SIGNALBOX_SERVER", server.to_string());
        soon("the program to end", shell.output()).await.unwrap()
    };
    assert_fails(&acquire(">&-").await, 74, "standard output is closed");
    assert_eq!(listed(server, "--holders", "job").await.len(), 0);
    // The resources are meant to stay held for the whole lease.
    assert_eq!(stdout(&acquire(">/dev/null").await), "");
    assert_eq!(listed(server, "--holders", "job").await.len(), 1);
}

#[tokio::test]
async fn a_server_without_sessions_has_its_own_error() {
    let Some(yrmcdsd) = Yrmcdsd::start() else { return };
    for arguments in [
        &["run", "job", "--max", "1", "--lease", "5", "--", "true"][..],
        &["acquire", "job", "--max", "1", "--lease", "5"],
        &["status", "--holders", "job"],
    ] {
        assert_fails(&ran(yrmcdsd.counters, arguments).await, 69, "does not support this operation");
    }
}
