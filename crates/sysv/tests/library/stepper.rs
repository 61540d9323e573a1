//! The program that makes the calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::PATIENCE;
use crate::support::preload;

/// The program.
pub const STEPPER: &str = env!("CARGO_BIN_EXE_sysv-stepper");

/// A program with the library and settings for all keys.
pub fn preloaded(program: impl AsRef<std::ffi::OsStr>, server: impl ToString) -> Command {
    let mut command = Command::new(program);
    preload(&mut command, server);
    command
}

/// A running stepper. It is killed when it is dropped.
pub struct Stepper {
    child: Child,
    commands: Commands<ChildStdin>,
}

/// A stream of commands, and the answers to them.
pub struct Commands<W> {
    commands: W,
    answers: Receiver<String>,
}

/// A fork or a thread of a stepper, over a socket.
pub type Branch = Commands<UnixStream>;

impl Stepper {
    pub fn start(server: impl ToString) -> Self {
        Self::spawn(&mut preloaded(STEPPER, server))
    }

    pub fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout: ChildStdout = child.stdout.take().unwrap();
        let commands = Commands::over(stdin, stdout);
        let stepper = Self { child, commands };
        assert_eq!(stepper.commands.answer(), format!("= {}", stepper.pid()));
        stepper
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`, and the end of the process.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it. Returns what it wrote to its standard error, if that is a pipe.
    pub fn end(mut self) -> String {
        self.send("exit");
        self.child.wait().unwrap();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the process is a child that was not waited for.
        unsafe { libc::kill(self.pid().cast_signed(), signal) };
    }
}

impl std::ops::Deref for Stepper {
    type Target = Commands<ChildStdin>;

    fn deref(&self) -> &Self::Target {
        &self.commands
    }
}

impl std::ops::DerefMut for Stepper {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.commands
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<W: Write> Commands<W> {
    fn over(commands: W, answers: impl Read + Send + 'static) -> Self {
        let (lines, received) = channel();
        thread::spawn(move || {
            for line in BufReader::new(answers).lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        Self { commands, answers: received }
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&mut self, command: impl AsRef<str>) {
        writeln!(self.commands, "{}", command.as_ref()).unwrap();
        self.commands.flush().unwrap();
    }

    /// The next answer.
    #[track_caller]
    pub fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("an answer")
    }

    /// Whether there is no answer yet.
    pub fn is_silent(&self) -> bool {
        self.answers.try_recv().is_err()
    }

    /// Sends a command, and returns its answer.
    #[track_caller]
    pub fn ask(&mut self, command: impl AsRef<str>) -> String {
        self.send(command);
        self.answer()
    }

    /// The id of a new set, with semaphores of these values.
    #[track_caller]
    pub fn set(&mut self, key: i32, values: &str) -> String {
        let count = values.split(',').count();
        let answer = self.ask(format!("get {key} {count} IPC_CREAT|0o600"));
        let id = answer.strip_prefix("= ").unwrap_or_else(|| panic!("{answer}")).to_owned();
        assert_eq!(self.ask(format!("ctl {id} 0 SETALL {values}")), "= 0");
        id
    }

    /// The values of a set.
    #[track_caller]
    pub fn values(&mut self, set: &str) -> String {
        self.ask(format!("ctl {set} 0 GETALL"))
    }

    /// Has a fork or a thread obey commands of its own. Returns also the answer to the command.
    #[track_caller]
    pub fn branch(&mut self, command: &str) -> (Branch, String) {
        let folder = tempfile::tempdir().unwrap();
        let path: &Path = &folder.path().join("socket");
        let listener = UnixListener::bind(path).unwrap();
        self.send(format!("{command} {}", path.display()));
        let (stream, _) = listener.accept().unwrap();
        let answers = stream.try_clone().unwrap();
        (Commands::over(stream, answers), self.answer())
    }
}
