//! The program as a client, run as a user runs it: arguments in; output, exit status and signals out.

mod bench;
mod data;
mod declarations;
mod declared;
mod everywhere;
mod grace;
mod history;
mod leases;
mod lists;
mod names;
mod namespaces;
mod readme;
mod sessions;
mod single_flight;
mod slots;
mod status;
mod supervision;
#[path = "../support/mod.rs"]
mod support;
mod sysv;
mod terminal;
mod wrong;

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use signalbox_model::Status;
use signalbox_protocol::{DumpEntry, Response};
use support::fake_server::{FakeServer, OwnedRequest, Peer, soon};
use support::yrmcdsd::Yrmcdsd;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

/// The program with this server and captured streams. It has its own process group, so that the terminal of the tests
/// does not affect it, and `env` undoes the ignored signals of a test run in the background.
fn program(server: &FakeServer, arguments: &[&str]) -> Command {
    program_at(server.address(), arguments)
}

fn program_at(server: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command
        .args(["--default-signal", env!("CARGO_BIN_EXE_signalbox")])
        .args(arguments)
        .env("SIGNALBOX_SERVER", server.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Runs the program to its end.
async fn ran(server: SocketAddr, arguments: &[&str]) -> Output {
    finished(program_at(server, arguments).spawn().unwrap()).await
}

async fn finished(child: Child) -> Output {
    soon("the program to end", child.wait_with_output()).await.unwrap()
}

fn stdout(output: &Output) -> &str {
    assert_eq!(stderr(output), "");
    assert!(output.status.success(), "{}", output.status);
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The objects that the program prints, one in each line.
async fn objects(server: SocketAddr, arguments: &[&str]) -> Vec<Value> {
    let output = ran(server, &[arguments, &["--json"]].concat()).await;
    stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn assert_fails(output: &Output, status: i32, message: &str) {
    assert!(stderr(output).starts_with("signalbox: "), "{:?}", stderr(output));
    assert!(stderr(output).contains(message), "{:?}", stderr(output));
    assert_eq!(output.status.code(), Some(status));
}

#[tokio::test]
async fn ping_prints_a_time_for_each_answer() {
    let server = FakeServer::bind().await;
    let child = program(&server, &["ping", "-c", "2", "--interval", "0.01"]).spawn().unwrap();
    let mut peer = server.accept().await;
    for _ in 0..2 {
        let request = peer.expect(OwnedRequest::Noop).await;
        peer.answer(&request, Response::Done).await;
    }
    let output = finished(child).await;
    let lines: Vec<_> = stdout(&output).lines().collect();
    assert_eq!(lines.len(), 2);
    let start = format!("answer from {}: number=2 time=", server.address());
    assert!(lines[1].starts_with(&start) && lines[1].ends_with(" ms"), "{lines:?}");
}

#[tokio::test]
async fn without_an_answer_in_time_the_status_is_69() {
    let server = FakeServer::bind().await;
    let child = program(&server, &["ping", "--timeout", "0.1"]).spawn().unwrap();
    let mut peer = server.accept().await;
    peer.expect(OwnedRequest::Noop).await;
    assert_fails(&finished(child).await, 69, "did not respond within 0.1 s");
}

#[tokio::test]
async fn a_help_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let child = program_at(([127, 0, 0, 1], 1).into(), &["--help"]).stdout(full).spawn().unwrap();
    assert_fails(&finished(child).await, 74, "cannot write the output");
}

#[tokio::test]
async fn get_prints_the_number() {
    let server = FakeServer::bind().await;
    let name = OsStr::from_bytes(b"strange \xff name");
    let child = program(&server, &["get"]).arg(name).spawn().unwrap();
    let mut peer = server.accept().await;
    let request = peer.expect(OwnedRequest::Get { name: b"strange \xff name".to_vec() }).await;
    peer.answer(&request, Response::Resources(42)).await;
    assert_eq!(stdout(&finished(child).await), "42\n");
}

#[tokio::test]
async fn stats_are_aligned_or_json_in_the_servers_order() {
    let server = FakeServer::bind().await;
    let items = [("objects", "12".to_owned()), ("a", "0.1\u{1b}".to_owned())];
    for (arguments, expected) in [
        (&["stats"][..], "objects  12\na        0.1\\x1b\n"),
        (&["stats", "--json"], "{\"objects\":12,\"a\":\"0.1\\u001b\"}\n"),
    ] {
        let child = program(&server, arguments).spawn().unwrap();
        let mut peer = server.accept().await;
        let request = peer.expect(OwnedRequest::Stats).await;
        peer.answer(&request, Response::Statistics(&items)).await;
        assert_eq!(stdout(&finished(child).await), expected);
    }
}

/// Runs a dump of the names, each with 3 in use and a peak of 7.
async fn dumped(arguments: &[&str], names: &[&[u8]]) -> Output {
    let server = FakeServer::bind().await;
    let child = program(&server, arguments).spawn().unwrap();
    let mut peer = server.accept().await;
    let request = peer.expect(OwnedRequest::Dump).await;
    peer.answer_dump(&request, names).await;
    finished(child).await
}

#[tokio::test]
async fn a_dump_in_a_pipe_has_one_line_for_each_name() {
    let names: [&[u8]; 6] = [
        b"plain",
        "größe".as_bytes(),
        b"a\tb\nc\\d",
        b"\xff\xfe",
        b"\x1b[31mred\r",
        // Shown as jobs-of-adb, like a name of another user.
        "jobs-of-\u{202e}bda\u{202c}".as_bytes(),
    ];
    let output = dumped(&["dump", "--no-header"], &names).await;
    let marked = r"jobs-of-\xe2\x80\xaebda\xe2\x80\xac";
    let escaped = ["plain", "größe", r"a\tb\nc\\d", r"\xff\xfe", r"\x1b[31mred\x0d", marked];
    assert_eq!(stdout(&output), escaped.map(|name| format!("3\t7\t{name}\n")).concat());
    for (escaped, name) in escaped.into_iter().zip(names) {
        let mut printf = Command::new("bash");
        printf.args(["-c", "printf %b \"$1\"", "bash", escaped]);
        let printed = soon("bash to end", printf.output()).await.unwrap();
        assert_eq!(printed.stdout, name, "{escaped}");
    }
}

#[tokio::test]
async fn a_dump_as_json_has_either_the_name_or_its_bytes() {
    let output = dumped(&["dump", "--json"], &[b"a\"b\t\x7f", b"\xffz"]).await;
    assert_eq!(
        stdout(&output),
        "{\"name\":\"a\\\"b\\t\\u007f\",\"consumption\":3,\"peak\":7}\n\
         {\"name_hex\":\"ff7a\",\"consumption\":3,\"peak\":7}\n"
    );
}

#[tokio::test]
async fn a_dump_into_a_closed_pipe_is_no_failure() {
    let server = FakeServer::bind().await;
    let mut child = program(&server, &["dump"]).spawn().unwrap();
    let mut peer = server.accept().await;
    let request = peer.expect(OwnedRequest::Dump).await;
    drop(child.stdout.take());
    // A process that another test is starting may hold a copy of the pipe's other end for a moment. The line is longer than
    // a pipe can hold, so it cannot be written before that copy is closed, too.
    let entry = DumpEntry { consumption: 3, peak: 7, name: &[b'x'; u16::MAX as usize][..] };
    peer.answer(&request, Response::Entry(entry)).await;
    peer.closed().await;
    let output = finished(child).await;
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[tokio::test]
async fn a_dump_that_breaks_off_is_a_failure() {
    let server = FakeServer::bind().await;
    let child = program(&server, &["dump"]).spawn().unwrap();
    let mut peer = server.accept().await;
    let request = peer.expect(OwnedRequest::Dump).await;
    let entry = DumpEntry { consumption: 3, peak: 7, name: &b"x"[..] };
    peer.answer(&request, Response::Entry(entry)).await;
    drop(peer);
    let output = finished(child).await;
    assert_eq!(output.stdout, b"CONSUMPTION\tPEAK\tNAME\n3\t7\tx\n");
    assert_fails(&output, 69, "the connection was lost");
}

#[tokio::test]
async fn run_holds_while_the_command_runs_and_releases_when_it_ends() {
    let server = FakeServer::bind().await;
    let arguments = [
        "run",
        "job",
        "--counter",
        "--max",
        "5",
        "--resources",
        "2",
        "--",
        "sh",
        "-c",
        "echo started; read _; exit 3",
    ];
    let mut child = program(&server, &arguments).spawn().unwrap();
    let mut peer = server.accept().await;
    peer.grant(b"job", 2, 5).await;
    assert_eq!(line(&mut stdout_of(&mut child)).await, "started");
    child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    let release = peer.expect(OwnedRequest::Release { name: b"job".to_vec(), resources: 2 }).await;
    peer.answer(&release, Response::Done).await;
    let output = finished(child).await;
    assert_eq!((output.status.code(), stderr(&output)), (Some(3), ""));
}

#[tokio::test]
async fn run_starts_no_command_if_nothing_is_available() {
    let server = FakeServer::bind().await;
    for (status, exit, message) in [
        (Status::ResourceNotAvailable, 75, "try again later"),
        (Status::OutOfMemory, 1, "no memory or no room for another name"),
    ] {
        let child = program(&server, &["run", "job", "--counter", "--max", "1", "--", "echo", "started"])
            .spawn()
            .unwrap();
        server.accept().await.refuse(status).await;
        let output = finished(child).await;
        assert_eq!(output.stdout, b"");
        assert_fails(&output, exit, message);
    }
}

/// Runs a command that is granted its resources, to its end.
async fn held_for(command: &[&str]) -> Output {
    let server = FakeServer::bind().await;
    let child =
        program(&server, &["run", "job", "--counter", "--max", "1", "--"]).args(command).spawn().unwrap();
    let mut peer = server.accept().await;
    peer.grant(b"job", 1, 1).await;
    let release = peer.expect(OwnedRequest::Release { name: b"job".to_vec(), resources: 1 }).await;
    peer.answer(&release, Response::Done).await;
    finished(child).await
}

#[tokio::test]
async fn run_ends_as_its_command_ended() {
    assert_eq!(held_for(&["true"]).await.status.code(), Some(0));
    assert_eq!(held_for(&["sh", "-c", "exit 255"]).await.status.code(), Some(255));
    assert_eq!(held_for(&["sh", "-c", "kill -KILL $$"]).await.status.signal(), Some(9));
    assert_fails(&held_for(&["/no/such/command"]).await, 127, "not found");
    assert_fails(&held_for(&["/"]).await, 126, "cannot run command");
}

/// `run` with a shell script, and the server's end of its connection.
struct Running {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
    peer: Peer,
}

impl Running {
    /// Starts the script and waits until it prints `ready`.
    async fn start(options: &[&str], script: &str) -> Self {
        let server = FakeServer::bind().await;
        let mut command = program(&server, &["run", "job", "--counter", "--max", "1"]);
        let mut child = command.args(options).args(["--", "sh", "-c", script]).spawn().unwrap();
        let mut peer = server.accept().await;
        peer.grant(b"job", 1, 1).await;
        let mut stdout = stdout_of(&mut child);
        let stderr = stderr_of(&mut child);
        assert_eq!(line(&mut stdout).await, "ready");
        Self { child, stdout, stderr, peer }
    }

    fn signal(&self, signal: Signal) {
        let number = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(number), signal).unwrap();
    }

    /// Waits for the Release and answers it.
    async fn expect_release(&mut self) {
        let release = self.peer.expect(OwnedRequest::Release { name: b"job".to_vec(), resources: 1 }).await;
        self.peer.answer(&release, Response::Done).await;
    }

    async fn status(&mut self) -> Option<i32> {
        soon("the program to end", self.child.wait()).await.unwrap().code()
    }
}

fn stdout_of(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

fn stderr_of(child: &mut Child) -> Lines<BufReader<ChildStderr>> {
    BufReader::new(child.stderr.take().unwrap()).lines()
}

async fn line(lines: &mut Lines<impl tokio::io::AsyncBufRead + Unpin>) -> String {
    soon("a line", lines.next_line()).await.unwrap().expect("a line, not the end")
}

/// The next message of the program, which shares its standard error with the command.
async fn warning(lines: &mut Lines<impl tokio::io::AsyncBufRead + Unpin>) -> String {
    loop {
        let line = line(lines).await;
        if line.starts_with("signalbox: ") {
            return line;
        }
    }
}

#[tokio::test]
async fn run_forwards_signals_to_the_command() {
    let script = r#"
        for signal in INT HUP QUIT USR1 USR2; do trap "echo $signal" $signal; done
        trap "echo TERM; exit 7" TERM
        echo ready
        while :; do sleep 0.02; done"#;
    let mut running = Running::start(&[], script).await;
    for (signal, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGTERM, "TERM"),
    ] {
        running.signal(signal);
        assert_eq!(line(&mut running.stdout).await, name);
    }
    running.expect_release().await;
    assert_eq!(running.status().await, Some(7));
}

#[tokio::test]
async fn run_releases_when_a_signal_ends_the_command() {
    let mut running = Running::start(&[], "echo ready; exec sleep 60").await;
    running.signal(Signal::SIGTERM);
    running.expect_release().await;
    let status = soon("the program to end", running.child.wait()).await.unwrap();
    assert_eq!(status.signal(), Some(15));
}

#[tokio::test]
async fn run_keeps_ignored_signals_ignored() {
    let server = FakeServer::bind().await;
    let script = format!(
        "trap '' HUP; exec {} run job --counter --max 1 -- sh -c 'echo ready; read _; exit 5'",
        env!("CARGO_BIN_EXE_signalbox")
    );
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).env("SIGNALBOX_SERVER", server.address().to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn().unwrap();
    let mut peer = server.accept().await;
    peer.grant(b"job", 1, 1).await;
    assert_eq!(line(&mut stdout_of(&mut child)).await, "ready");
    // The whole group receives it, as when a terminal is closed.
    let group = Pid::from_raw(-i32::try_from(child.id().unwrap()).unwrap());
    kill(group, Signal::SIGHUP).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    peer.next().await.expect("a Release");
    drop(peer);
    assert_eq!(soon("the program to end", child.wait()).await.unwrap().code(), Some(5));
}

#[tokio::test]
async fn a_lost_connection_ends_the_command() {
    let mut running =
        Running::start(&[], "trap 'echo ended; exit 0' TERM; echo ready; while :; do sleep 0.02; done").await;
    drop(running.peer);
    let warning = warning(&mut running.stderr).await;
    assert!(warning.contains("was lost") && warning.contains("job"), "{warning}");
    assert_eq!(line(&mut running.stdout).await, "ended");
    let status = soon("the program to end", running.child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(69));
}

#[tokio::test]
async fn a_command_that_does_not_end_is_killed() {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = Running::start(&["--kill-after", "0.2"], script).await;
    drop(running.peer);
    let status = soon("the program to end", running.child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(69));
    assert!(warning(&mut running.stderr).await.contains("SIGTERM"));
}

#[tokio::test]
async fn a_command_may_continue_without_its_server() {
    let mut running = Running::start(&["--on-lost", "continue"], "echo ready; read _; exit 3").await;
    drop(running.peer);
    let warning = warning(&mut running.stderr).await;
    assert!(warning.contains("keeps running"), "{warning}");
    running.child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    let status = soon("the program to end", running.child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(3));
    assert_eq!(soon("the end", running.stderr.next_line()).await.unwrap(), None);
}

#[tokio::test]
async fn a_server_that_answers_no_release_does_not_change_the_status() {
    let mut running = Running::start(&["--timeout", "3"], "echo ready; exit 4").await;
    running.peer.next().await.expect("a Release");
    assert_eq!(running.status().await, Some(4));
}

#[tokio::test]
async fn the_man_pages_are_written_for_every_subcommand() {
    let server = FakeServer::bind().await;
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["man", "--dir", dir.path().to_str().unwrap()];
    stdout(&ran(server.address(), &arguments).await);
    let run = std::fs::read_to_string(dir.path().join("signalbox-run.1")).unwrap();
    assert!(run.contains("EXIT STATUS") && run.contains("EXAMPLES"), "{run}");
    let output = ran(server.address(), &["man"]).await;
    assert_eq!(stdout(&output), std::fs::read_to_string(dir.path().join("signalbox.1")).unwrap());
}

/// The real yrmcdsd, if it is installed.
#[tokio::test]
async fn run_and_dump_work_with_yrmcds() {
    let Some(yrmcdsd) = Yrmcdsd::start() else { return };
    let address = yrmcdsd.counters.to_string();
    let signalbox = env!("CARGO_BIN_EXE_signalbox");
    let script = format!(
        "{signalbox} get job && {signalbox} run job --counter --max 2 --resources 2 -- true; echo $?; {signalbox} dump --no-header; exit 9"
    );
    let mut command = Command::new(signalbox);
    command
        .args(["run", "job", "--counter", "--max", "2", "--", "sh", "-c", &script])
        .env("SIGNALBOX_SERVER", &address);
    let output = soon("the program to end", command.output()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n75\n1\t1\tjob\n");
    assert_eq!(output.status.code(), Some(9), "{}", stderr(&output));
    drop(yrmcdsd);
}
