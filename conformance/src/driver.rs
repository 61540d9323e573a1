//! A driver: a process that executes commands and reports what its client believes (README.md, "The driver").

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::{PATIENCE, START_MAX};

/// The output of a driver so far.
#[derive(Debug, Default)]
struct Output {
    /// The answers that no caller has taken yet, by the number of their command.
    answers: HashMap<u64, Value>,
    events: Vec<Value>,
    /// The lines of standard error, and those of standard output that are not JSON.
    errors: String,
    has_ended: bool,
}

/// The output of the driver, and the condition variable that is notified when it grows.
type Shared = Arc<(Mutex<Output>, Condvar)>;

/// A driver. Dropping it kills its processes.
#[derive(Debug)]
pub struct Driver {
    child: Mutex<Child>,
    /// The number of the last command, and the standard input.
    input: Mutex<(u64, ChildStdin)>,
    output: Shared,
    capabilities: Vec<String>,
}

/// A command that was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    id: u64,
    pub at: Instant,
    command: Value,
}

/// How a driver connects to the server (README.md, "The driver").
#[derive(Clone, Debug)]
pub struct Endpoint<'a> {
    /// The base URLs of the HTTP listeners, separated by commas.
    pub urls: String,
    /// The addresses of the semaphore ports, separated by commas.
    pub server: String,
    pub token_file: Option<&'a Path>,
    /// The certificate of the authority, if the driver connects over TLS.
    pub authority: Option<&'a Path>,
}

fn lock(output: &Shared) -> MutexGuard<'_, Output> {
    output.0.lock().expect("no thread panics with the lock")
}

fn read(output: &Shared, stream: impl Read, take: impl Fn(&mut Output, String)) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        take(&mut lock(output), line);
        output.1.notify_all();
    }
}

impl Driver {
    /// Starts a driver, and reads its capabilities.
    pub fn start(command: &[String], endpoint: &Endpoint<'_>) -> Result<Self, String> {
        let mut process = Command::new(&command[0]);
        process.args(&command[1..]).env_remove("SIGNALBOX_TOKEN").env_remove("SIGNALBOX_TOKEN_FILE");
        process.env("SIGNALBOX_URL", &endpoint.urls).env("SIGNALBOX_SERVER", &endpoint.server);
        process.envs(endpoint.token_file.map(|file| ("SIGNALBOX_TOKEN_FILE", file)));
        process.env_remove("SIGNALBOX_CA").envs(endpoint.authority.map(|file| ("SIGNALBOX_CA", file)));
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        process.process_group(0);
        let mut child = process.spawn().map_err(|error| format!("cannot start {:?}: {error}", command[0]))?;
        let input = Mutex::new((0, child.stdin.take().expect("it is piped")));
        let (stdout, stderr) =
            (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
        let output = Shared::default();
        let shared = Arc::clone(&output);
        thread::spawn(move || {
            read(&shared, stdout, |output, line| match serde_json::from_str::<Value>(&line) {
                Ok(value) => match value["id"].as_u64() {
                    Some(id) => drop(output.answers.insert(id, value)),
                    None => output.events.push(value),
                },
                Err(_) => output.errors += &format!("not JSON on standard output: {line}\n"),
            });
            lock(&shared).has_ended = true;
            shared.1.notify_all();
        });
        let shared = Arc::clone(&output);
        thread::spawn(move || read(&shared, stderr, |output, line| output.errors += &(line + "\n")));
        let mut driver = Self { child: Mutex::new(child), input, output, capabilities: Vec::new() };
        let hello = driver.wait("its first line", START_MAX, |output| output.events.first().cloned())?;
        let capabilities = hello["capabilities"].as_array().ok_or("the first line has no capabilities")?;
        driver.capabilities = capabilities.iter().filter_map(|c| Some(c.as_str()?.to_owned())).collect();
        Ok(driver)
    }

    /// Returns whether the driver has a capability. A driver without "supervises" has "clock": its client knows when a
    /// lease ends.
    pub fn can(&self, capability: &str) -> bool {
        let states = |word| self.capabilities.iter().any(|stated| stated == word);
        if capability == "clock" { !states("supervises") } else { states(capability) }
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&self, mut command: Value) -> Result<Sent, String> {
        let mut input = self.input.lock().expect("no thread panics with the lock");
        let (next, stream) = &mut *input;
        *next += 1;
        command["id"] = json!(*next);
        let at = Instant::now();
        let written = writeln!(stream, "{command}").and_then(|()| stream.flush());
        written.map_err(|error| self.failure(&format!("cannot send {command}: {error}")))?;
        Ok(Sent { id: *next, at, command })
    }

    /// Waits for the answer to a command that was sent.
    pub fn answer(&self, sent: &Sent, limit: Duration) -> Result<Value, String> {
        self.wait(&format!("an answer to {}", sent.command), limit, |output| output.answers.remove(&sent.id))
    }

    /// Sends a command, and waits for its answer.
    pub fn call(&self, command: Value) -> Result<(Sent, Value), String> {
        let sent = self.send(command)?;
        let answer = self.answer(&sent, PATIENCE)?;
        Ok((sent, answer))
    }

    /// Returns the first such event of a permit. Waits for it if the driver has not sent it yet.
    pub fn event(&self, event: &str, permit: &str, limit: Duration) -> Result<Value, String> {
        let is_it = |value: &&Value| value["event"] == event && value["permit"] == permit;
        self.wait(&format!("the event \"{event}\" of {permit}"), limit, |output| {
            output.events.iter().find(is_it).cloned()
        })
    }

    /// Returns all events of a permit so far.
    pub fn events(&self, permit: &str) -> Vec<Value> {
        lock(&self.output).events.iter().filter(|value| value["permit"] == permit).cloned().collect()
    }

    fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&mut Output) -> Option<T>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + limit;
        let mut output = lock(&self.output);
        loop {
            if let Some(found) = find(&mut output) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if output.has_ended || left.is_zero() {
                let how =
                    if output.has_ended { "the driver has ended without" } else { "the driver has not sent" };
                drop(output);
                return Err(self.failure(&format!("{how} {what} within {limit:?}")));
            }
            output = self.output.1.wait_timeout(output, left).expect("no thread panics with the lock").0;
        }
    }

    fn failure(&self, what: &str) -> String {
        let errors = &lock(&self.output).errors;
        if errors.is_empty() { what.to_owned() } else { format!("{what}; it has printed:\n{errors}") }
    }

    pub fn process_id(&self) -> u32 {
        self.child.lock().expect("no thread panics with the lock").id()
    }

    /// Signals the driver and the processes that it has started.
    pub fn signal(&self, signal: Signal) {
        let _ = killpg(Pid::from_raw(self.process_id().cast_signed()), signal);
    }

    /// Waits until the driver's standard output ends, because the driver has ended by itself.
    pub fn wait_for_end(&self, limit: Duration) -> Result<(), String> {
        self.wait("the end of its output", limit, |output| output.has_ended.then_some(()))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.get_mut().expect("no thread panics with the lock").wait();
    }
}
