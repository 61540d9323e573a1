//! How `run` ends: with its command, with the processes that the command started, and whatever standard error does.
//! docs/run.md is the contract.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::leases::until_listed;
use super::{assert_fails, finished, line, program_at, ran, stderr, stderr_of, stdout, stdout_of, warning};
use crate::support::daemon::{Daemon, works};
use crate::support::fake_server::soon;
use crate::support::skipped;

const SIGNALBOX: &str = env!("CARGO_BIN_EXE_signalbox");

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().unwrap().try_into().unwrap()), signal).unwrap();
}

/// Whether the process exists; one that has ended but was not waited for does not count.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Starts a script with a shell under `run`, and returns the ids of processes that it prints, one per line.
async fn running(
    server: SocketAddr,
    options: &[&str],
    script: &str,
    processes: usize,
) -> (Child, Vec<String>) {
    let arguments = [&["run", "job", "--max", "1"], options, &["--", "sh", "-c", script]].concat();
    let mut child = program_at(server, &arguments).spawn().unwrap();
    let mut out = stdout_of(&mut child);
    let mut pids = Vec::new();
    for _ in 0..processes {
        pids.push(line(&mut out).await);
    }
    (child, pids)
}

async fn revoke_holder(server: SocketAddr) {
    let holder = until_listed(server, "--holders", "job", 1).await.remove(0);
    assert_eq!(stdout(&ran(server, &["revoke", "--grant", holder["grant"].as_str().unwrap()]).await), "");
}

/// Like a suspension: `run` does nothing until the lease is over and others have the resources.
#[tokio::test]
async fn a_command_whose_lease_is_over_takes_no_further_step() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "trap 'echo asked' TERM; echo started; while :; do :; done";
    let arguments = ["run", "job", "--max", "1", "--lease", "1", "--", "sh", "-c", script];
    let mut child = program_at(server, &arguments).spawn().unwrap();
    let mut out = stdout_of(&mut child);
    assert_eq!(line(&mut out).await, "started");
    signal(&child, Signal::SIGSTOP);
    stdout(&ran(server, &["run", "job", "--max", "1", "--wait", "max", "--", "true"]).await);
    signal(&child, Signal::SIGCONT);
    assert_eq!(finished(child).await.status.code(), Some(69));
    assert_eq!(out.next_line().await.unwrap(), None, "the command did something on SIGTERM");
}

/// Three processes: one that ends on SIGTERM, one that ignores it, and one that ignores it in a session of its own, whose
/// parent has ended.
const DESCENDANTS: &str = "\
    sh -c 'echo $$; exec sleep 3600' & \
    sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' & \
    sh -c 'setsid sh -c \"trap \\\"\\\" TERM; echo \\$\\$; while :; do sleep 0.1; done\" &'; \
    wait";

#[tokio::test]
async fn sigterm_ends_the_command_and_its_descendants_before_the_release() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for options in [&["--kill-after", "1"][..], &["--kill-after", "1", "--lease", "1h"]] {
        let (mut child, pids) = running(server, options, DESCENDANTS, 3).await;
        signal(&child, Signal::SIGTERM);
        let found =
            pids.iter().map(|pid| format!("grep -qs '^State:.[^ZX]' /proc/{pid}/status && echo {pid}; "));
        let next = ["run", "job", "--max", "1", "--wait", "1m", "--", "sh", "-c"];
        let script = found.collect::<String>() + "true";
        let next = ran(server, &[&next[..], &[&script]].concat()).await;
        assert_eq!(stdout(&next), "", "none runs when the next command runs");
        assert_eq!(soon("the program to end", child.wait()).await.unwrap().signal(), Some(15));
    }
}

#[tokio::test]
async fn process_groups_do_not_matter() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let own_group = ["run", "job", "--max", "1", "--", "setsid", "sh", "-c", "exit 4"];
    assert_eq!(ran(server, &own_group).await.status.code(), Some(4), "the command leads a group of its own");

    // One that ignores SIGTERM, and is alone when the command has ended.
    let script = "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' & exec sleep 3600";
    for by_signal in [true, false] {
        let (mut child, pids) = running(server, &["--lease", "1h", "--kill-after", "1"], script, 1).await;
        match by_signal {
            true => signal(&child, Signal::SIGTERM),
            false => revoke_holder(server).await,
        }
        soon("the program to end", child.wait()).await.unwrap();
        assert!(!runs(&pids[0]));
    }

    let script = "exec 3<&0; setsid sh -c 'echo $$; read _' <&3 3<&- & exit 3";
    let (mut child, _) = running(server, &["--wait-children"], script, 1).await;
    let mut input = child.stdin.take().unwrap();
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), child.wait()).await.is_err());
    input.write_all(b"\n").await.unwrap();
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(3));
}

#[tokio::test]
async fn a_loss_ends_the_descendants_too() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let (mut child, pids) = running(server, &["--lease", "1h", "--kill-after", "1"], DESCENDANTS, 3).await;
    revoke_holder(server).await;
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
    assert!(pids.iter().all(|pid| !runs(pid)), "{pids:?}");
}

#[tokio::test]
async fn descendants_of_a_command_that_ends_by_itself_are_left_alone_or_waited_for() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "sh -c 'echo $$; read _' <&3 3<&- & exit 3";
    let script = format!("exec 3<&0; {script}");
    let (mut child, pids) = running(server, &[], &script, 1).await;
    let mut input = child.stdin.take().unwrap();
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(3));
    assert_eq!(stdout(&ran(server, &["get", "job"]).await), "0\n", "the resources are released");
    assert!(runs(&pids[0]));
    input.write_all(b"\n").await.unwrap();

    let (mut child, _) = running(server, &["--wait-children"], &script, 1).await;
    let mut input = child.stdin.take().unwrap();
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), child.wait()).await.is_err());
    assert_eq!(stdout(&ran(server, &["get", "job"]).await), "1\n", "the resources are held");
    input.write_all(b"\n").await.unwrap();
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(3));
    assert_eq!(stdout(&ran(server, &["get", "job"]).await), "0\n");

    let (mut child, pids) = running(server, &["--wait-children"], &script, 1).await;
    let _input = child.stdin.take().unwrap();
    signal(&child, Signal::SIGTERM);
    soon("the program to end", child.wait()).await.unwrap();
    assert!(!runs(&pids[0]), "SIGTERM ends those that it waits for");
}

/// A pipe to which nothing more can be written.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'x'; 512]).is_ok() {}
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

#[tokio::test]
async fn standard_error_that_blocks_delays_no_signal() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let (_reader, writer) = full_pipe();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let arguments =
        ["run", "job", "--max", "1", "--lease", "1h", "--kill-after", "1", "--", "sh", "-c", script];
    let mut child = program_at(server, &arguments).stderr(writer).spawn().unwrap();
    let command = line(&mut stdout_of(&mut child)).await;
    revoke_holder(server).await;
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
    assert!(!runs(&command));
}

#[tokio::test]
async fn a_signal_ends_an_acquire_whose_output_nobody_reads() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let (_reader, writer) = full_pipe();
    let arguments = ["acquire", "job", "--max", "1", "--lease", "1h"];
    let child = program_at(server, &arguments).stdout(writer).spawn().unwrap();
    soon("the session to be handed over", async {
        while !until_listed(server, "--holders", "job", 1).await[0]["address"].is_null() {}
    })
    .await;
    signal(&child, Signal::SIGTERM);
    assert_eq!(finished(child).await.status.signal(), Some(15));
    until_listed(server, "--holders", "job", 0).await;
}

#[tokio::test]
async fn a_limit_of_the_system_has_a_status_of_its_own() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let mut statuses = Vec::new();
    for descriptors in 4..24 {
        let mut shell = Command::new("sh");
        // Without the descriptors that the test has inherited.
        let script = format!("ulimit -n {descriptors}; exec \"$0\" run job --max 1 -- true 3>&- 4>&- 5>&-");
        shell.args(["-c", &script, SIGNALBOX]).env("SIGNALBOX_SERVER", server.to_string());
        let output = soon("the program to end", shell.output()).await.unwrap();
        if !output.status.success() {
            assert_fails(&output, 71, "raise the limits");
        }
        statuses.push(output.status.success());
    }
    assert!(statuses.is_sorted() && !statuses[4] && statuses[19], "{statuses:?}");
}

#[tokio::test]
async fn a_wait_in_the_background_of_a_terminal_is_not_stopped() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let (mut holder, _) = running(server, &[], "echo ready; read _", 1).await;
    let script = format!(
        "stty tostop; {SIGNALBOX} run job --max 1 --wait max -- echo started >&3 2>&0 & wait $! && echo done >&3"
    );
    let (_keys, shell) = on_terminal(server, &script);
    until_listed(server, "--waiters", "job", 1).await;
    // The first line would have been shown by then.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    holder.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    let output = finished(shell).await;
    assert_eq!(std::str::from_utf8(&output.stdout).unwrap(), "started\ndone\n");
}

#[tokio::test]
async fn the_end_of_the_command_is_known_although_sigchld_is_ignored_or_all_signals_are_blocked() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for disposition in ["--ignore-signal=CHLD", "--block-signal"] {
        let mut command = Command::new("env");
        command.args([disposition, SIGNALBOX, "run", "job", "--max", "1", "--", "sh", "-c", "exit 7"]);
        let output = command.env("SIGNALBOX_SERVER", server.to_string()).output();
        assert_eq!(soon("the program to end", output).await.unwrap().status.code(), Some(7), "{disposition}");
    }
}

/// A shell with job control that runs a script on a terminal. Bytes that are written to the file are keys, and `>&3` in the
/// script is the standard output of the shell.
fn on_terminal(server: SocketAddr, script: &str) -> (File, Child) {
    let pty = nix::pty::openpty(None, None).unwrap();
    // A test that runs in the background of a script ignores SIGINT.
    let mut shell = Command::new("env");
    shell
        .args(["--default-signal=INT,QUIT", "setsid", "--ctty", "--wait", "sh", "-mc"])
        .arg(format!("exec 3>&1 >/dev/null; {script}"));
    shell.env("SIGNALBOX_SERVER", server.to_string()).kill_on_drop(true);
    shell.stdin(pty.slave).stdout(Stdio::piped()).stderr(Stdio::piped());
    (File::from(pty.master), shell.spawn().unwrap())
}

#[tokio::test]
async fn ctrl_c_reaches_a_command_that_has_left_the_process_group() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    // Without a trap, dash loses a SIGINT that comes while it starts `sleep`.
    let command = r#"trap "trap - INT; kill -INT $$" INT; echo ready >&3; while :; do sleep 0.1; done"#;
    let script = format!("{SIGNALBOX} run job --max 1 -- timeout 1h sh -c '{command}'; echo $? >&3");
    let (mut keys, mut shell) = on_terminal(server, &script);
    assert_eq!(line(&mut stdout_of(&mut shell)).await, "ready");
    keys.write_all(b"\x03").unwrap();
    assert!(!soon("the shell to end", shell.wait()).await.unwrap().success());
    until_listed(server, "--holders", "job", 0).await;
}

/// Whether the process is stopped.
fn is_stopped(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('T')
}

#[tokio::test]
async fn ctrl_z_stops_the_program_only_after_its_command() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = format!(
        "{SIGNALBOX} run job --max 1 -- sh -c 'echo $$ >&3; exec sleep 1h'; echo stopped >&3; read _; fg >/dev/null"
    );
    let (mut keys, mut shell) = on_terminal(server, &script);
    let mut out = stdout_of(&mut shell);
    let command = line(&mut out).await;
    keys.write_all(b"\x1a").unwrap();
    assert_eq!(line(&mut out).await, "stopped", "job control works");
    assert!(is_stopped(&command));
    keys.write_all(b"\n").unwrap();
    soon("the command to continue", async {
        while is_stopped(&command) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    keys.write_all(b"\x03").unwrap();
    soon("the shell to end", shell.wait()).await.unwrap();
    // A process that continues needs the lease.
    for command in [
        "sh -c 'trap \"\" TSTP; echo $PPID >&3; while :; do sleep 0.1; done'",
        "sh -c 'export P=$PPID; setsid sh -c \"echo \\$P >&3; exec sleep 1h\"; true'",
    ] {
        let (mut keys, mut shell) = on_terminal(server, &format!("{SIGNALBOX} run job --max 1 -- {command}"));
        let program = line(&mut stdout_of(&mut shell)).await;
        keys.write_all(b"\x1a").unwrap();
        warning(&mut stderr_of(&mut shell)).await;
        assert!(!is_stopped(&program), "{command}");
        kill(Pid::from_raw(program.parse().unwrap()), Signal::SIGTERM).unwrap();
        soon("the shell to end", shell.wait()).await.unwrap();
    }
}

/// A stopped process handles SIGTERM only once it is continued, and need not be killed.
#[tokio::test]
async fn a_stopped_command_and_its_stopped_descendants_handle_sigterm() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "\
        sh -c 'trap \"exit 3\" TERM; echo $$; kill -STOP $$; while :; do sleep 0.1; done' & \
        trap 'wait $!; exit $?' TERM; echo $$; kill -STOP $$; while :; do sleep 0.1; done";
    let (mut child, pids) = running(server, &["--kill-after", "1h"], script, 2).await;
    soon("the processes to stop", async {
        while !pids.iter().all(|pid| is_stopped(pid)) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    signal(&child, Signal::SIGTERM);
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(3));
}

/// Its lease is still renewed, and SIGKILL follows.
#[tokio::test]
async fn a_command_that_is_stopped_while_it_has_to_end_is_killed() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    // It stops again when it is continued.
    let script = "trap 'while :; do kill -STOP $$; done' TERM; echo $$; while :; do sleep 0.1; done";
    let (mut child, pids) = running(server, &["--kill-after", "3"], script, 1).await;
    signal(&child, Signal::SIGTERM);
    soon("the command to stop", async {
        while runs(&pids[0]) && !is_stopped(&pids[0]) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    // As Ctrl-Z does.
    signal(&child, Signal::SIGTSTP);
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn a_signal_that_ends_the_command_ends_what_it_leaves_behind() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "trap 'exit 3' INT HUP QUIT; sleep 3600 & echo $!; while :; do sleep 0.1; done";
    for sent in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let (mut child, pids) = running(server, &[], script, 1).await;
        signal(&child, sent);
        assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(3), "{sent}");
        assert!(!runs(&pids[0]), "{sent}");
    }
}

#[tokio::test]
async fn a_process_that_is_started_after_sigterm_is_asked_to_end_too() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "\
        trap 'sleep 3600 & until grep -qx sleep /proc/$!/comm; do :; done; exit 3' TERM; \
        echo ready; while :; do sleep 0.1; done";
    let (mut child, _) = running(server, &["--kill-after", "1h"], script, 1).await;
    signal(&child, Signal::SIGTERM);
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(3));
}

/// This includes a process whose parent ends, so that it becomes a child of the program.
#[tokio::test]
async fn each_process_is_asked_to_end_once() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    // Once the program has reaped a process that ended after the command, it has handled the end of the command too.
    let script = r#"
        export COMMAND=$$
        trap : TERM
        sh -c '
            asked=0; trap "asked=\$((asked + 1))" TERM; echo $COMMAND
            while [ $asked = 0 ]; do sleep 0.01; done
            echo asked
            while [ -e /proc/$COMMAND ]; do sleep 0.01; done
            until [ "$other" ]; do other=$(sh -c "sleep 0 >&- & echo \$!"); done
            while [ -e /proc/$other ]; do sleep 0.01; done
            echo $asked
        ' &
        while :; do sleep 0.1; done"#;
    let arguments = ["run", "job", "--max", "1", "--kill-after", "1h", "--", "sh", "-c", script];
    let mut child = program_at(server, &arguments).spawn().unwrap();
    let mut out = stdout_of(&mut child);
    let command = line(&mut out).await;
    signal(&child, Signal::SIGTERM);
    assert_eq!(line(&mut out).await, "asked");
    kill(Pid::from_raw(command.parse().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(line(&mut out).await, "1");
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn signals_that_are_seldom_sent_end_the_command_too() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for sent in [Signal::SIGALRM, Signal::SIGXCPU, Signal::SIGABRT, Signal::SIGPWR] {
        let (mut child, pids) = running(server, &[], "echo $$; exec sleep 3600", 1).await;
        signal(&child, sent);
        assert_eq!(soon("the program to end", child.wait()).await.unwrap().signal(), Some(15), "{sent}");
        assert!(!runs(&pids[0]), "{sent}");
    }
}

#[tokio::test]
async fn a_file_for_messages_that_may_not_grow_ends_nothing() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let file = tempfile::NamedTempFile::new().unwrap();
    let script = format!(
        "ulimit -f 0; exec {SIGNALBOX} run job --max 1 --lease 1h --kill-after 1 -- \
         sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.02; done'"
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("SIGNALBOX_SERVER", server.to_string()).kill_on_drop(true);
    let mut child = shell.stdout(Stdio::piped()).stderr(file.reopen().unwrap()).spawn().unwrap();
    let command = line(&mut stdout_of(&mut child)).await;
    revoke_holder(server).await;
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
    assert!(!runs(&command));
    let script = format!("ulimit -f 0; exec {SIGNALBOX} acquire job --max 1 --lease 1h");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("SIGNALBOX_SERVER", server.to_string()).stdout(file.reopen().unwrap());
    assert_eq!(soon("the program to end", shell.status()).await.unwrap().code(), Some(74));
    until_listed(server, "--holders", "job", 0).await;
}

/// Processes of the other namespace have the ids of the descendants here.
#[tokio::test]
async fn a_proc_of_another_namespace_is_not_believed() {
    let isolated = ["--pid", "--fork", "--kill-child"];
    if !works("unshare", &[&isolated[..], &["true"]].concat()) {
        return skipped("namespaces of processes are not allowed here");
    }
    let mut daemon = Daemon::start();
    let mut command = Command::new("unshare");
    command.args(isolated).args([SIGNALBOX, "run", "job", "--max", "1", "--", "true"]);
    let output = command.env("SIGNALBOX_SERVER", daemon.address("counter").to_string()).output();
    let output = soon("the program to end", output).await.unwrap();
    assert!(output.status.success() && !output.stderr.is_empty(), "it warns: {output:?}");
}

fn executable(path: &Path, text: &str) {
    File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_script_without_an_interpreter_is_run_by_a_shell() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    executable(&script, "echo \"$1\"; exit 4");
    let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    for name in [script.to_str().unwrap(), "script"] {
        let mut command = program_at(server, &["run", "job", "--max", "1", "--", name, "an argument"]);
        let output = finished(command.env("PATH", &search).spawn().unwrap()).await;
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(4), &b"an argument\n"[..]),
            "{output:?}"
        );
    }
}

#[tokio::test]
async fn a_request_that_does_not_fit_beside_the_outer_ones_is_refused_at_once() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let nested = |outer: &[&'static str], inner: &[&'static str]| {
        let inner = [&[SIGNALBOX, "run"], inner, &["--wait", "max", "--", "echo", "started"]].concat();
        let arguments = [&["run"], outer, &["--"], &inner[..]].concat();
        async move { ran(server, &arguments).await }
    };
    for outer in [&["job", "--max", "1"][..], &["job", "--max", "1", "--lease", "1h"]] {
        let refused = nested(outer, &["job", "--max", "1"]).await;
        assert_eq!(refused.status.code(), Some(75), "{refused:?}");
        assert!(stderr(&refused).contains("the commands around this one hold 1 of 1"), "{refused:?}");
        let granted = nested(outer, &["job", "--max", "2"]).await;
        assert_eq!(stdout(&granted), "started\n", "there is room beside the outer one");
        let between =
            nested(outer, &["other", "--max", "1", "--wait", "max", "--", SIGNALBOX, "run", "job:1"]);
        assert!(stderr(&between.await).contains("the commands around this one"), "also two levels above");
    }
    // An outer `acquire` of the script holds it too; its own session is no argument against another `acquire`.
    let script = format!(
        "held=$({SIGNALBOX} acquire job --max 1 --lease 1h) && eval \"$held\"; {SIGNALBOX} run job --max 1 --wait max -- true; \
         echo $?; {SIGNALBOX} acquire job --max 1 --lease 1h --wait 0.1; echo $?"
    );
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", &script]).env("SIGNALBOX_SERVER", server.to_string()).output();
    assert_eq!(soon("the script to end", output).await.unwrap().stdout, b"75\n75\n");
}

#[tokio::test]
async fn a_command_has_only_what_is_held_for_it() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    for (options, expected) in [(&["--counter"][..], ""), (&[], "SIGNALBOX_GRANT\n")] {
        let script = "env | grep -o '^SIGNALBOX_\\(SESSION\\|KEY\\|GRANT\\|SLOTS\\)' || true";
        let arguments = [&["run", "job", "--max", "1"], options, &["--", "sh", "-c", script]].concat();
        let mut command = program_at(server, &arguments);
        for variable in ["SESSION", "KEY", "GRANT", "SLOTS"] {
            command.env(format!("SIGNALBOX_{variable}"), "1");
        }
        assert_eq!(stdout(&finished(command.spawn().unwrap()).await), expected);
    }
}

#[tokio::test]
async fn the_first_process_of_a_container_ends_everything_before_the_release() {
    let isolated = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    if !works("unshare", &[&isolated[..], &["true"]].concat()) {
        return skipped("namespaces of processes are not allowed here");
    }
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let started = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(isolated).arg(SIGNALBOX).args(arguments).env("SIGNALBOX_SERVER", server.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().unwrap()
    };
    // One that ends by itself, and leaves a zombie to its new parent and a process that has to be killed.
    let script = "(sleep 0 &); told=$(mktemp -u); mkfifo $told; \
                  setsid sh -c 'trap \"\" TERM; echo ready; echo >$0; while :; do sleep 0.1; done' $told & \
                  read _ <$told; rm $told; \
                  while [ \"$(ps -o stat= --ppid 1 | grep -c Z)\" != 0 ]; do sleep 0.1; done; exit 5";
    let mut child = started(&["run", "job", "--max", "1", "--kill-after", "1", "--", "sh", "-c", script]);
    let mut out = stdout_of(&mut child);
    assert_eq!(line(&mut out).await, "ready");
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(5));
    assert_eq!(stdout(&ran(server, &["get", "job"]).await), "0\n");
    // Programs that do nothing else with signals.
    let mut child = started(&["watch", "job"]);
    let parent = child.id().unwrap().to_string();
    let mut inner = String::new();
    soon("the inner process", async {
        while inner.is_empty() {
            inner = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    soon("the program to end", async {
        // A signal that comes before the handler is discarded.
        while child.try_wait().unwrap().is_none() {
            let _ = kill(Pid::from_raw(inner.trim().parse().unwrap()), Signal::SIGTERM);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(child.wait().await.unwrap().code(), Some(128 + 15));
}

#[tokio::test]
async fn a_command_of_another_user_is_announced_and_its_end_is_not_awaited_for_ever() {
    if !nix::unistd::geteuid().is_root() {
        return skipped("only root can make a program of another user");
    }
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("as-root");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let copy = folder.path().join("signalbox");
    fs::copy(SIGNALBOX, &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(copy);
    command
        .args(["run", "job", "--max", "1", "--"])
        .arg(&program)
        .env("SIGNALBOX_SERVER", server.to_string());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    assert!(warning(&mut stderr_of(&mut child)).await.contains("runs as another user"));
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn the_recipe_of_a_script_releases_when_a_signal_ends_it() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let documented = include_str!("../../docs/cli.md");
    let (_, recipe) = documented.split_once("### acquire, renew, release").unwrap();
    let recipe = recipe.split("```").nth(1).unwrap().trim_start_matches("sh\n");
    let recipe = recipe.replace("signalbox ", &format!("{SIGNALBOX} "));
    for shell in [&["dash"][..], &["bash"], &["busybox", "sh"]] {
        if !works(shell[0], &[&shell[1..], &["-c", "true"]].concat()) {
            skipped(&format!("{} is missing", shell[0]));
            continue;
        }
        for (name, signal) in [("HUP", Signal::SIGHUP), ("INT", Signal::SIGINT), ("TERM", Signal::SIGTERM)] {
            let steps = "step_one() { echo ready; sleep 0.1; while :; do sleep 0.1; done; }\n";
            let mut command = Command::new("env");
            command.arg("--default-signal").args(shell).args(["-c", &format!("{steps}{recipe}")]);
            command.env("SIGNALBOX_SERVER", server.to_string()).stdout(Stdio::piped()).stdin(Stdio::null());
            let mut child = command.process_group(0).kill_on_drop(true).spawn().unwrap();
            assert_eq!(line(&mut stdout_of(&mut child)).await, "ready");
            until_listed(server, "--holders", "deploys", 1).await;
            kill(Pid::from_raw(-i32::try_from(child.id().unwrap()).unwrap()), signal).unwrap();
            let status = soon("the script to end", child.wait()).await.unwrap();
            assert_eq!(status.code(), Some(128 + signal as i32), "{shell:?} on {name}");
            until_listed(server, "--holders", "deploys", 0).await;
        }
    }
}

#[tokio::test]
async fn a_command_reads_what_happens_to_its_resources() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "exec 3</dev/fd/$SIGNALBOX_EVENTS_FD; echo begins; \
        while read -r event left <&3; do echo $event $left; [ $event != lost ] || exit 3; done";
    let options =
        ["run", "job", "--max", "1", "--lease", "1h", "--on-lost", "continue", "--", "sh", "-c", script];
    let mut child = program_at(server, &options).spawn().unwrap();
    let mut out = stdout_of(&mut child);
    assert_eq!(line(&mut out).await, "begins");
    revoke_holder(server).await;
    let revoking = line(&mut out).await;
    let left = revoking.strip_prefix("revoking ").unwrap().parse::<u32>().unwrap();
    assert!((1..=10_000).contains(&left), "{left}");
    let holder = until_listed(server, "--holders", "job", 1).await.remove(0);
    ran(server, &["revoke", "--grant", holder["grant"].as_str().unwrap(), "--grace", "0"]).await;
    assert_eq!(line(&mut out).await.trim_end(), "lost");
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(3));
}

/// The last event comes before SIGTERM, and nothing waits for a command that does not read.
#[tokio::test]
async fn a_command_without_a_session_is_told_of_the_loss_too() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let script = "trap 'read -r event </dev/fd/$SIGNALBOX_EVENTS_FD; echo $event; exit 3' TERM; echo begins; \
        while :; do sleep 0.05; done";
    let mut child = program_at(server, &["run", "job", "--counter", "--max", "1", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let mut out = stdout_of(&mut child);
    assert_eq!(line(&mut out).await, "begins");
    drop(daemon);
    assert_eq!(line(&mut out).await, "lost");
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(69));
}
