//! The server: a process of its own for each scenario, and the requests that the suite sends to it without a proxy.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{PATIENCE, START_MAX};

/// A server with a data directory, which is killed at the end.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    directory: TempDir,
    pub http: SocketAddr,
    pub semaphore: SocketAddr,
    child: Mutex<Child>,
    /// A token that may do everything.
    operator: String,
}

/// What the server says about a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It ends after this time without a renewal.
    For(Duration),
    /// An administrator takes it away, or it lasts as long as a connection.
    Otherwise,
    No,
}

impl Server {
    /// Starts a server, on which clients without a token have these rights.
    pub fn start(program: &Path, anonymous: &str) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let [counter, semaphore, http] = crate::ports::free_ports();
        let place = directory.path().display();
        // Another suite that runs beside this one has other addresses.
        let address = Ipv4Addr::from(0x7f00_0001 | (std::process::id() << 2 & 0x00ff_ffff));
        let configuration = format!(
            "data_dir = '{place}/data'\nbind_ip = '{address}'\n\
             [http]\nenable = true\nbind_ip = '{address}'\nport = {http}\n[counter]\nport = {counter}\n[semaphore]\nport = {semaphore}\n\
             [access]\ntokens = '{place}/tokens.toml'\nnetworks = ['127.0.0.0/8 {anonymous}']\n"
        );
        let data = directory.path().join("data");
        let written = fs::create_dir(&data)
            .and_then(|()| fs::write(directory.path().join("signalbox.toml"), configuration));
        written.map_err(|error| error.to_string())?;
        let operator = token(program, directory.path(), &["create", "operator", "--rights", "all"])?;
        let child = Mutex::new(spawn(program, directory.path())?);
        let at = |port| SocketAddr::from((address, port));
        let program = program.to_owned();
        let server = Self { program, directory, http: at(http), semaphore: at(semaphore), child, operator };
        server.await_ready()?;
        Ok(server)
    }

    fn await_ready(&self) -> Result<(), String> {
        let ready = || Ok(self.request("GET", "/readyz", "").is_ok_and(|(status, _)| status == 200));
        within(START_MAX, "the server is not ready", ready)
            .map_err(|error| format!("{error}:\n{}", self.log()))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().expect("no thread panics with the lock")
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child().id().cast_signed()), signal);
    }

    /// Kills the server and starts it again.
    pub fn restart(&self) -> Result<(), String> {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
        *child = spawn(&self.program, self.directory.path())?;
        drop(child);
        self.await_ready()
    }

    /// Changes the tokens with `signalbox token`, and lets the server read them. The secret of one that was created.
    pub fn token(&self, arguments: &[&str]) -> Result<String, String> {
        let secret = token(&self.program, self.directory.path(), arguments)?;
        let reloads = || self.log().matches("the configuration was read again").count();
        let before = reloads();
        self.signal(Signal::SIGHUP);
        eventually("the server has not read the tokens", || Ok(reloads() > before))?;
        Ok(secret)
    }

    /// A file that a driver may read its token from.
    pub fn token_file(&self) -> PathBuf {
        self.directory.path().join("token")
    }

    /// Sends a request; the status and the body of its answer.
    pub fn request(&self, method: &str, path: &str, body: &str) -> io::Result<(u16, Value)> {
        let mut stream = TcpStream::connect(self.http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (host, token, length) = (self.http, &self.operator, body.len());
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n{kind}\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }

    /// A change or a lease; the status and the answer.
    pub fn post(&self, path: &str, body: &Value) -> Result<(u16, Value), String> {
        self.request("POST", &format!("/api/v1/{path}"), &body.to_string()).map_err(|error| error.to_string())
    }

    /// A change that must succeed.
    pub fn change(&self, path: &str, body: &Value) -> Result<(), String> {
        let (status, answer) = self.post(path, body)?;
        if status == 200 { Ok(()) } else { Err(format!("the server has refused {path} {body}: {answer}")) }
    }

    /// How much of a name is in use, and how many requests wait for it.
    pub fn usage(&self, name: &str) -> Result<(u64, u64), String> {
        let (_, answer) =
            self.request("GET", &format!("/api/v1/name?name={name}"), "").map_err(|e| e.to_string())?;
        let of = |field: &str| {
            let items = answer["items"].as_array().into_iter().flatten();
            items.filter_map(|item| item[field].as_u64()).sum()
        };
        Ok((of("in_use"), of("waiting")))
    }

    /// What the server says about a grant. `None` without an answer.
    pub fn grant(&self, fence: &str) -> Option<Held> {
        let (status, answer) = self.request("GET", &format!("/api/v1/grant?grant={fence}"), "").ok()?;
        match status {
            200 => Some(match (answer["grace_left_ms"].as_u64(), answer["ttl_left_ms"].as_u64()) {
                (None, Some(ttl_ms)) => Held::For(Duration::from_millis(ttl_ms)),
                _ => Held::Otherwise,
            }),
            404 => Some(Held::No),
            _ => None,
        }
    }

    /// Acquires one of a name for the suite itself, and does not renew it. Its key, or `None` if it is busy.
    pub fn hold(&self, name: &str, ttl_ms: u64) -> Result<Option<String>, String> {
        let key: String = std::iter::repeat_with(|| fastrand::char('0'..='9')).take(32).collect();
        let claims = [json!({"name": name, "maximum": 1})];
        let (status, answer) =
            self.post("lease/acquire", &json!({"key": key, "claims": claims, "ttl_ms": ttl_ms}))?;
        match status {
            200 => Ok(Some(key)),
            409 => Ok(None),
            _ => Err(format!("the suite cannot acquire {name}: {answer}")),
        }
    }

    pub fn release(&self, key: &str) -> Result<(), String> {
        self.change("lease/release", &json!({ "key": key }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn spawn(program: &Path, directory: &Path) -> Result<Child, String> {
    let log = fs::File::create(directory.join("log")).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(directory.join("signalbox.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))
}

fn token(program: &Path, directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg("token").args(arguments).arg("--file").arg(directory.join("tokens.toml"));
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("signalbox token {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Waits until a condition holds.
pub fn eventually(failure: &str, holds: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    within(PATIENCE, failure, holds)
}

fn within(
    limit: Duration,
    failure: &str,
    mut holds: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let began = Instant::now();
    while !holds()? {
        if began.elapsed() > limit {
            return Err(format!("{failure} after {limit:?}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
