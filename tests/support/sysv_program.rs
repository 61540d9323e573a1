//! A Perl program whose System V semaphores are on a server: `signalbox sysv run`, with the library.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::daemon::{SIGNALBOX, works};
use super::{PATIENCE, skipped};

/// Evaluates Perl expressions, one per line.
const CONSOLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/sysv/tests/library/consoles/console.pl");

/// A running program, which is killed when it is dropped.
pub struct SysvProgram {
    process: Child,
    expressions: ChildStdin,
    answers: Receiver<String>,
}

impl SysvProgram {
    /// Whether Perl is installed; if not, says that the test is skipped. If `SIGNALBOX_REQUIRE_PEERS` is set, as in CI, that
    /// is a failure.
    pub fn is_possible() -> bool {
        if works("perl", &["-MIPC::SysV", "-e", "1"]) {
            return true;
        }
        let is_required = std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_some();
        assert!(!is_required, "Perl is missing: apt-get install perl");
        skipped("Perl is not installed (apt-get install perl)");
        false
    }

    /// Starts the program, with all keys on the server at these addresses.
    pub fn start(servers: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(SIGNALBOX);
        command.args(["sysv", "run", "--server", servers, "--keys", "all", "--library"]).arg(Self::library());
        Self::of(command.args(["--", "perl", CONSOLE]).envs(variables.iter().copied()))
    }

    /// Starts the program with the library alone, with all keys on this server. `errors` gets its standard error.
    pub fn preloaded(server: &str, variables: &[(&str, &str)], errors: File) -> Self {
        let mut command = Command::new("perl");
        command.arg(CONSOLE).env("LD_PRELOAD", Self::library());
        command.env("SIGNALBOX_SYSV_SERVER", server).env("SIGNALBOX_SYSV_KEYS", "all");
        Self::of(command.envs(variables.iter().copied()).stderr(errors))
    }

    fn of(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (expressions, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (lines, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The test may be over.
                let _ = lines.send(line);
            }
        });
        let program = Self { process, expressions, answers };
        assert_eq!(program.answer(), "ready");
        program
    }

    /// Makes a set of one semaphore with this key and value; `$v{set}` has its id.
    #[track_caller]
    pub fn make_set(&mut self, key: i32, value: u16) {
        let made = self.ask(&format!("outcome($v{{set}} = semget({key}, 1, IPC_CREAT | 0600))"));
        assert!(made.parse::<u32>().is_ok(), "{made}");
        assert_eq!(self.ask(&format!("outcome(semctl($v{{set}}, 0, SETVAL, {value}) && 'set')")), "set");
    }

    /// Uses the set with this key.
    #[track_caller]
    pub fn find_set(&mut self, key: i32) {
        let found = self.ask(&format!("outcome($v{{set}} = semget({key}, 1, 0))"));
        assert!(found.parse::<u32>().is_ok(), "{found}");
    }

    /// Starts to add to the semaphore, with an adjustment. The answer is `done` once that has succeeded.
    pub fn add(&mut self, change: i16) {
        self.tell(&format!("semop($v{{set}}, ops(0, {change}, SEM_UNDO)) ? 'done' : \"failed: $!\""));
    }

    /// The value of the semaphore, or why it is unknown.
    #[track_caller]
    pub fn value(&mut self) -> String {
        // Perl returns 0 as `0 but true`.
        let value = self.ask("outcome(semctl($v{set}, 0, GETVAL, 0))");
        value.replace("0 but true", "0")
    }

    /// Evaluates an expression.
    #[track_caller]
    pub fn ask(&mut self, expression: &str) -> String {
        self.tell(expression);
        self.answer()
    }

    fn tell(&mut self, expression: &str) {
        writeln!(self.expressions, "{expression}").unwrap();
    }

    /// The next value.
    #[track_caller]
    pub fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("an answer")
    }

    /// Whether there is no answer yet.
    pub fn is_silent(&self) -> bool {
        self.answers.try_recv().is_err()
    }

    /// The library, which cargo builds beside the tests.
    pub fn library() -> PathBuf {
        let library = std::env::current_exe().unwrap().with_file_name("libsignalbox_sysv.so");
        assert!(library.exists(), "{} is missing", library.display());
        library
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for SysvProgram {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
