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

/// What a driver has printed so far.
#[derive(Debug, Default)]
struct Output {
    /// The answers that no caller has taken yet, by the number of their command.
    answers: HashMap<u64, Value>,
    events: Vec<Value>,
    /// Its standard error, and lines of standard output that are not JSON.
    errors: String,
    has_ended: bool,
}

/// The output of the driver, and the condition that there is more of it.
type Shared = Arc<(Mutex<Output>, Condvar)>;

/// A driver, which is killed when this is dropped.
#[derive(Debug)]
pub struct Driver {
    child: Mutex<Child>,
    /// The number of the last command, and where commands are written.
    input: Mutex<(u64, ChildStdin)>,
    said: Shared,
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

fn locked(said: &Shared) -> MutexGuard<'_, Output> {
    said.0.lock().expect("no thread panics with the lock")
}

fn read(said: &Shared, input: impl Read, take: impl Fn(&mut Output, String)) {
    for line in BufReader::new(input).lines().map_while(Result::ok) {
        take(&mut locked(said), line);
        said.1.notify_all();
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
        let (output, errors) =
            (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
        let said = Shared::default();
        let from_output = Arc::clone(&said);
        thread::spawn(move || {
            read(&from_output, output, |said, line| match serde_json::from_str::<Value>(&line) {
                Ok(value) => match value["id"].as_u64() {
                    Some(id) => drop(said.answers.insert(id, value)),
                    None => said.events.push(value),
                },
                Err(_) => said.errors += &format!("not JSON on standard output: {line}\n"),
            });
            locked(&from_output).has_ended = true;
            from_output.1.notify_all();
        });
        let from_errors = Arc::clone(&said);
        thread::spawn(move || read(&from_errors, errors, |said, line| said.errors += &(line + "\n")));
        let mut driver = Self { child: Mutex::new(child), input, said, capabilities: Vec::new() };
        let hello = driver.wait("its first line", START_MAX, |said| said.events.first().cloned())?;
        let capabilities = hello["capabilities"].as_array().ok_or("the first line has no capabilities")?;
        driver.capabilities = capabilities.iter().filter_map(|c| Some(c.as_str()?.to_owned())).collect();
        Ok(driver)
    }

    /// Whether the driver has a capability. "clock" is that of a driver without "supervises": its client knows when a lease ends.
    pub fn can(&self, capability: &str) -> bool {
        let says = |word| self.capabilities.iter().any(|said| said == word);
        if capability == "clock" { !says("supervises") } else { says(capability) }
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

    /// Waits for the answer to a command.
    pub fn answer(&self, sent: &Sent, limit: Duration) -> Result<Value, String> {
        self.wait(&format!("an answer to {}", sent.command), limit, |said| said.answers.remove(&sent.id))
    }

    /// Sends a command, and waits for its answer.
    pub fn call(&self, command: Value) -> Result<(Sent, Value), String> {
        let sent = self.send(command)?;
        let answer = self.answer(&sent, PATIENCE)?;
        Ok((sent, answer))
    }

    /// Waits for an event about a permit.
    pub fn event(&self, event: &str, permit: &str, limit: Duration) -> Result<Value, String> {
        let is_it = |value: &&Value| value["event"] == event && value["permit"] == permit;
        self.wait(&format!("the event \"{event}\" of {permit}"), limit, |said| {
            said.events.iter().find(is_it).cloned()
        })
    }

    /// The events about a permit so far.
    pub fn events(&self, permit: &str) -> Vec<Value> {
        locked(&self.said).events.iter().filter(|value| value["permit"] == permit).cloned().collect()
    }

    fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&mut Output) -> Option<T>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + limit;
        let mut said = locked(&self.said);
        loop {
            if let Some(found) = find(&mut said) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if said.has_ended || left.is_zero() {
                let how =
                    if said.has_ended { "the driver has ended without" } else { "the driver has not sent" };
                drop(said);
                return Err(self.failure(&format!("{how} {what} within {limit:?}")));
            }
            said = self.said.1.wait_timeout(said, left).expect("no thread panics with the lock").0;
        }
    }

    fn failure(&self, what: &str) -> String {
        let errors = &locked(&self.said).errors;
        if errors.is_empty() { what.to_owned() } else { format!("{what}; it has printed:\n{errors}") }
    }

    pub fn process_id(&self) -> u32 {
        self.child.lock().expect("no thread panics with the lock").id()
    }

    /// Signals the driver and the processes that it has started.
    pub fn signal(&self, signal: Signal) {
        let _ = killpg(Pid::from_raw(self.process_id().cast_signed()), signal);
    }

    /// Waits until the process has ended by itself.
    pub fn wait_for_end(&self, limit: Duration) -> Result<(), String> {
        self.wait("the end of its output", limit, |said| said.has_ended.then_some(()))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.get_mut().expect("no thread panics with the lock").wait();
    }
}
