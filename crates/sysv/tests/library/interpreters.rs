//! Programs of interpreters, which obey one command a line and answer it with one line.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::PATIENCE;

/// A running script. It is killed when it is dropped.
pub struct Program {
    child: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    /// Runs an interpreter, which the command names, with a script of this directory.
    pub fn start<A: AsRef<OsStr>>(
        mut interpreter: Command,
        script: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library");
        interpreter.arg(scripts.join(script)).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = interpreter.spawn().expect("the interpreter is installed");
        let commands = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = sender.send(line);
            }
        });
        Self { child, commands, lines }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("it has not been told to end");
        writeln!(commands, "{command}").expect("the program reads");
    }

    #[track_caller]
    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the program answers")
    }

    /// Whether it has not answered yet.
    pub fn is_silent(&self) -> bool {
        self.lines.try_recv().is_err()
    }

    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.line()
    }

    /// `kill -9`, and the end of the process.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }

    /// The end of its commands, and then of the process by itself.
    pub fn end(&mut self) {
        self.commands = None;
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether these programs can be started; if not, the test says so and is skipped.
pub fn are_installed(programs: &[impl AsRef<Path>]) -> bool {
    let works = |program: &&Path| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let missing: Vec<_> = programs.iter().map(AsRef::as_ref).filter(|program| !works(program)).collect();
    missing.is_empty() || skipped(&format!("{missing:?} are not installed"))
}

/// Reports why a test is skipped, and returns false. Panics if no test may be skipped.
#[track_caller]
pub fn skipped(why: &str) -> bool {
    assert!(std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_none(), "{why}");
    eprintln!("skipped: {why}");
    false
}

/// The Python for which `.ci/run` has installed `sysv_ipc`, in the target directory.
pub fn python() -> PathBuf {
    let program = std::env::current_exe().expect("the test runs");
    let target = program.ancestors().nth(3).expect("cargo builds in PROFILE/deps of the target directory");
    target.join("tools/python/bin/python3")
}
