//! A running stepper: a program that makes calls as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::describe;
use super::history::{Failure, Result};

/// How long a test waits for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Stepper {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Stepper {
    /// Starts one; `prepare` sets its environment.
    pub fn start(prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sysv-stepper"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().expect("the stepper starts");
        let commands = child.stdin.take().expect("it is piped");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut stepper = Self { child, commands, answers };
        let _ = stepper.answer();
        stepper.tell("catch");
        let _ = stepper.answer();
        stepper
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, command: &str) {
        // One write, because two would wake the program twice.
        self.commands.write_all(format!("{command}\n").as_bytes()).expect("the stepper reads");
    }

    /// Whether an answer is there.
    pub fn has_answer(&self) -> bool {
        if !self.answers.buffer().is_empty() {
            return true;
        }
        let mut wanted =
            [nix::poll::PollFd::new(self.answers.get_ref().as_fd(), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut wanted, nix::poll::PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// The next answer.
    pub fn answer(&mut self) -> std::result::Result<Result, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| describe(error.to_string()))?;
        match line.trim_end().split_once(' ') {
            Some(("=", value)) => Ok(Result::Value(value.parse().unwrap_or(0))),
            Some(("!", errno)) => Ok(Result::Failed(errno.to_owned())),
            _ => Err(describe(format!("the stepper answered {line:?}"))),
        }
    }

    /// Tells a command that does not wait, and returns the text of its answer; `None`: it failed.
    pub fn ask(&mut self, command: &str) -> Option<String> {
        self.tell(command);
        self.text()
    }

    /// Sends several commands that do not wait, and returns the texts of their answers.
    pub fn ask_all(&mut self, commands: &[String]) -> Vec<Option<String>> {
        self.tell(&commands.join("\n"));
        commands.iter().map(|_| self.text()).collect()
    }

    fn text(&mut self) -> Option<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the stepper answers");
        line.trim_end().strip_prefix("= ").map(str::to_owned)
    }

    pub fn signal(&self) {
        let pid = nix::unistd::Pid::from_raw(self.pid().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR1).expect("it runs");
    }

    /// Kills it, and waits until its end has had all its effects in the kernel.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }

    /// Waits until something is so.
    pub fn until(
        &self,
        what: &str,
        mut is_so: impl FnMut(&Self) -> bool,
    ) -> std::result::Result<(), Failure> {
        let begun = Instant::now();
        while !is_so(self) {
            if begun.elapsed() > PATIENCE {
                return Err(describe(format!("never came true: {what}")));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        self.kill();
        let _ = self.answers.read_to_end(&mut Vec::new());
    }
}
