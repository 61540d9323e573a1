//! The Perl program of the article about PHP and System V semaphores (`sysv-semaphores.md`), and PHP readers: unmodified
//! programs give the same lines with the kernel's semaphores and with the library.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::server::TestServer;
use crate::stepper::preloaded;
use crate::{PATIENCE, until};

/// A program that answers each command by a line.
struct Program {
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
}

impl Program {
    /// Starts a script; without a server, the kernel has the semaphores.
    fn start(server: Option<SocketAddr>, interpreter: &str, script: &str, argument: &str) -> Self {
        let mut command =
            server.map_or_else(|| Command::new(interpreter), |server| preloaded(interpreter, server));
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/article");
        command.arg(scripts.join(script)).arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the interpreter is installed");
        let commands = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test has ended.
                let _ = sender.send(line);
            }
        });
        Self { child, commands, lines }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the program reads");
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the program answers")
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.line()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }
}

fn are_installed(programs: &[&str]) -> bool {
    let works = |program: &&str| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let missing: Vec<_> = programs.iter().filter(|program| !works(program)).collect();
    assert!(
        missing.is_empty() || std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_none(),
        "{missing:?} are installed"
    );
    if !missing.is_empty() {
        eprintln!("skipped: {missing:?} are not installed");
    }
    missing.is_empty()
}

/// A writer and readers share the set.
fn share(server: Option<SocketAddr>) {
    let mut writer = Program::start(server, "perl", "writer.pl", "");
    assert_eq!([writer.line(), writer.line()], ["value 0 but true", "ready"]);
    let mut observer = Program::start(server, "perl", "writer.pl", "observe");
    assert_eq!(observer.line(), "ready");
    let mut readers = [0; 2].map(|_| Program::start(server, "php", "reader.php", ""));
    readers.iter().for_each(|reader| assert_eq!(reader.line(), "ready"));
    let [one, other] = &mut readers;
    let mut until_waiting = |count: &str| until("the calls wait", || observer.ask("waiting") == count);

    // The writer waits for the reader, and holds back others afterwards.
    assert_eq!(one.ask("acquire"), "acquired");
    writer.tell("lock");
    until_waiting("1");
    assert_eq!(one.ask("release"), "released");
    assert_eq!(writer.line(), "locked");
    assert_eq!(one.ask("try"), "busy");
    one.tell("acquire");
    other.tell("acquire");
    until_waiting("2");
    assert_eq!(writer.ask("unlock"), "unlocked");
    assert_eq!([one.line(), other.line()], ["acquired", "acquired"]);
    assert_eq!(one.ask("release"), "released");
    let again = "sem_release(): SysV semaphore for key 0xbc614e is not currently acquired";
    assert_eq!(one.ask("release"), again);
    assert_eq!(other.ask("release"), "released");

    // The kernel, and the server, give back what a killed writer holds.
    assert_eq!(writer.ask("lock"), "locked");
    one.tell("acquire");
    until_waiting("1");
    drop(writer);
    assert_eq!(one.line(), "acquired");
    assert_eq!(one.ask("release"), "released");

    // The set is removed below a call that waits.
    let mut writer = Program::start(server, "perl", "writer.pl", "");
    assert_eq!([writer.line(), writer.line()], ["value 32767", "ready"]);
    assert_eq!(writer.ask("lock"), "locked");
    one.tell("acquire");
    until_waiting("1");
    assert_eq!(other.ask("remove"), "removed");
    assert_eq!(one.line(), "sem_acquire(): Failed to acquire key 0xbc614e: Identifier removed");
    let gone = other.ask("remove");
    assert!(
        gone.starts_with("sem_remove(): SysV semaphore for key 0xbc614e does not (any longer) exist"),
        "{gone}"
    );
    assert_eq!(writer.ask("unlock"), "failed: Invalid argument");
}

#[test]
fn perl_and_php_share_a_set_of_the_kernel() {
    if !are_installed(&["perl", "php"]) {
        return;
    }
    // What an earlier run may have left.
    let mut left = Program::start(None, "perl", "writer.pl", "remove");
    left.child.wait().expect("it is a child");
    share(None);
}

#[test]
fn perl_and_php_share_a_set_of_the_server() {
    if !are_installed(&["perl", "php"]) {
        return;
    }
    let server = TestServer::start();
    share(Some(server.address));
}
