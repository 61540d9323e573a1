//! The server of a scenario: its processes, and the requests that the suite sends to them without a proxy.

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

use crate::certificate::Certificate;
use crate::etcd::Etcd;
use crate::{PATIENCE, START_MAX};

/// How many nodes a cluster has.
const NODES: usize = 2;

#[derive(Debug)]
pub struct Installation {
    pub program: PathBuf,
    pub certificate: Certificate,
    pub store: Store,
}

/// Where the servers store what clients hold.
#[derive(Debug)]
pub enum Store {
    /// In memory only, so that no measured time includes a disk.
    Memory,
    Directory,
    /// In etcd, and each server is a cluster.
    Etcd(Etcd),
}

/// One process, or the nodes of a cluster. Dropping it kills them.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    directory: TempDir,
    nodes: Vec<Node>,
    /// A token that may do everything.
    operator: String,
}

#[derive(Debug)]
struct Node {
    configuration: PathBuf,
    log: PathBuf,
    http: SocketAddr,
    semaphore: SocketAddr,
    child: Mutex<Child>,
}

/// The state of a grant, as the server reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It ends after this time without a renewal.
    For(Duration),
    /// It is being revoked, or it lasts as long as a connection.
    Otherwise,
    No,
}

/// Returns a loopback address that is made of the process id, so that no other suite uses it at the same time.
pub fn loopback() -> Ipv4Addr {
    Ipv4Addr::from(0x7f00_0001 | (std::process::id() << 2 & 0x00ff_ffff))
}

impl Server {
    /// Starts a server, on which clients without a token have these rights.
    pub fn start(installation: &Installation, anonymous: &str) -> Result<Self, String> {
        let Installation { program, certificate, store } = installation;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = directory.path().display();
        let operator = token(program, directory.path(), &["create", "operator", "--rights", "all"])?;
        fs::create_dir(directory.path().join("data")).map_err(|error| error.to_string())?;
        let tables = format!(
            "[tls]\ncert = '{}'\nkey = '{}'\n\
             [access]\ntokens = '{path}/tokens.toml'\ntokens_over_plain = true\n\
             anonymous = '{anonymous}'\nnetworks = ['127.0.0.0/8 {anonymous}']\n",
            certificate.file.display(),
            certificate.key.display()
        );
        let start = |number| {
            let (address, [counter, semaphore, http, relays]) = (loopback(), crate::ports::free_ports());
            let state = match store {
                Store::Memory => String::new(),
                Store::Directory => format!("data_dir = '{path}/data'\n"),
                Store::Etcd(Etcd { url, .. }) => format!(
                    "cluster = {{ etcd = '{url}', name = '{}', node = 'node-{number}', bind = '{address}:{relays}' }}\n",
                    directory.path().file_name().expect("it has a name").display()
                ),
            };
            let [configuration, log] =
                ["toml", "log"].map(|end| directory.path().join(format!("node-{number}.{end}")));
            let text = format!(
                "{state}bind_ip = '{address}'\n[counter]\nport = {counter}\n[semaphore]\nport = {semaphore}\n\
                 [http]\nenable = true\nbind_ip = '{address}'\nport = {http}\n{tables}"
            );
            fs::write(&configuration, text).map_err(|error| error.to_string())?;
            let child = Mutex::new(spawn(program, &configuration, &log)?);
            let at = |port| SocketAddr::from((address, port));
            Ok(Node { configuration, log, http: at(http), semaphore: at(semaphore), child })
        };
        let count = if matches!(store, Store::Etcd(_)) { NODES } else { 1 };
        let nodes = (0..count).map(start).collect::<Result<_, String>>()?;
        let server = Self { program: program.clone(), directory, nodes, operator };
        server.await_ready()?;
        Ok(server)
    }

    /// Waits until a node serves, and all others relay to it.
    fn await_ready(&self) -> Result<(), String> {
        let ready = || {
            let are_ready = || self.nodes.iter().all(|node| node.readiness().is_some());
            Ok(self.serving().is_some() && are_ready())
        };
        within(START_MAX, "the server is not ready", ready).map_err(|error| {
            let logs: Vec<_> = self.nodes.iter().map(Node::log).collect();
            format!("{error}:\n{}", logs.join("\n"))
        })
    }

    /// Returns the addresses of each node for HTTP and for the binary protocol.
    pub fn addresses(&self) -> Vec<(SocketAddr, SocketAddr)> {
        self.nodes.iter().map(|node| (node.http, node.semaphore)).collect()
    }

    pub fn is_cluster(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Returns the only node, or the leader. Restarts nodes of a cluster that have ended, as systemd does.
    fn serving(&self) -> Option<&Node> {
        if !self.is_cluster() {
            return self.nodes.first();
        }
        for node in &self.nodes {
            let mut child = node.child();
            if matches!(child.try_wait(), Ok(Some(_)))
                && let Ok(again) = spawn(&self.program, &node.configuration, &node.log)
            {
                *child = again;
            }
        }
        self.nodes.iter().find(|node| node.readiness() == Some(Readiness::Serves))
    }

    fn find_serving(&self) -> Result<&Node, String> {
        let mut found = None;
        within(START_MAX, "no node serves", || {
            found = self.serving();
            Ok(found.is_some())
        })?;
        Ok(found.expect("it was found"))
    }

    /// Sends SIGSTOP to the node that serves, and waits until it is stopped.
    pub fn stop(&self) -> Result<(), String> {
        let node = self.find_serving()?;
        node.signal(Signal::SIGSTOP);
        // Its threads continue until one of them has received the signal.
        let stat = format!("/proc/{}/stat", node.child().id());
        let is_stopped = || Ok(fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
        eventually("the server is not stopped", is_stopped)
    }

    /// Continues the node that was stopped. If it was a leader and has been replaced, it ends, and the suite restarts
    /// it.
    pub fn resume(&self) {
        self.nodes.iter().for_each(|node| node.signal(Signal::SIGCONT));
    }

    /// Kills the only node, or the leader.
    pub fn kill(&self) -> Result<(), String> {
        let node = self.find_serving()?;
        let mut child = node.child();
        child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string()).map(drop)
    }

    /// Kills the node that serves and starts it again. In a cluster, another one leads before it is back.
    pub fn restart(&self) -> Result<(), String> {
        let node = self.find_serving()?;
        let mut child = node.child();
        let _ = child.kill();
        let _ = child.wait();
        *child = spawn(&self.program, &node.configuration, &node.log)?;
        drop(child);
        self.await_ready()
    }

    /// Changes the tokens with `signalbox token`, and makes the nodes reload them. Returns the secret of a new token.
    pub fn token(&self, arguments: &[&str]) -> Result<String, String> {
        let secret = token(&self.program, self.directory.path(), arguments)?;
        for node in &self.nodes {
            let reloads = || node.log().matches("the configuration was read again").count();
            let before = reloads();
            node.signal(Signal::SIGHUP);
            eventually("the server has not read the tokens", || Ok(reloads() > before))?;
        }
        Ok(secret)
    }

    /// Returns the path of a file that a driver may read its token from.
    pub fn token_file(&self) -> PathBuf {
        self.directory.path().join("token")
    }

    /// Sends a request to the node that serves, and returns the status and the body of the answer.
    fn request(&self, method: &str, path: &str, body: &str) -> Result<(u16, Value), String> {
        self.ask(self.find_serving()?, method, path, body).map_err(|error| error.to_string())
    }

    fn ask(&self, node: &Node, method: &str, path: &str, body: &str) -> io::Result<(u16, Value)> {
        let (status, body) = exchange(node.http, method, path, &self.operator, body)?;
        Ok((status, serde_json::from_str(&body).unwrap_or(Value::Null)))
    }

    /// Posts a change or a request for a lease, and returns the status and the body of the answer.
    pub fn post(&self, path: &str, body: &Value) -> Result<(u16, Value), String> {
        self.request("POST", &format!("/api/v1/{path}"), &body.to_string())
    }

    /// Posts a request that must succeed.
    pub fn change(&self, path: &str, body: &Value) -> Result<(), String> {
        let (status, answer) = self.post(path, body)?;
        if status == 200 { Ok(()) } else { Err(format!("the server has refused {path} {body}: {answer}")) }
    }

    /// Returns how many resources of a name are in use, and how many requests wait for it.
    pub fn usage(&self, name: &str) -> Result<(u64, u64), String> {
        let (_, answer) = self.request("GET", &format!("/api/v1/name?name={name}"), "")?;
        let of = |field: &str| {
            let items = answer["items"].as_array().into_iter().flatten();
            items.filter_map(|item| item[field].as_u64()).sum()
        };
        Ok((of("in_use"), of("waiting")))
    }

    /// Returns the state of a grant, or `None` without an answer.
    pub fn grant(&self, fence: &str) -> Option<Held> {
        let node = self.serving()?;
        let (status, answer) = self.ask(node, "GET", &format!("/api/v1/grant?grant={fence}"), "").ok()?;
        match status {
            200 => Some(match (answer["grace_left_ms"].as_u64(), answer["ttl_left_ms"].as_u64()) {
                (None, Some(ttl_ms)) => Held::For(Duration::from_millis(ttl_ms)),
                _ => Held::Otherwise,
            }),
            404 => Some(Held::No),
            _ => None,
        }
    }

    /// Acquires one resource of a name for the suite itself, by a lease that is not renewed. Returns the key of the
    /// lease, or `None` if the name is busy.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Serves,
    Relays,
}

impl Node {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().expect("no thread panics with the lock")
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child().id().cast_signed()), signal);
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns how the node serves clients that connect, or `None` if it is not ready.
    fn readiness(&self) -> Option<Readiness> {
        let (status, text) = exchange(self.http, "GET", "/readyz", "", "").ok()?;
        let how = if text.starts_with("serving") { Readiness::Serves } else { Readiness::Relays };
        (status == 200).then_some(how)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Sends an HTTP request, and returns the status and the body of the answer.
pub fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let token = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{token}{kind}Content-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, body.to_owned()))
}

fn spawn(program: &Path, configuration: &Path, log: &Path) -> Result<Child, String> {
    let log = fs::File::create(log).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(configuration);
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

/// Waits until a condition holds, for [`PATIENCE`] at most.
pub fn eventually(failure: &str, holds: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    within(PATIENCE, failure, holds)
}

pub fn within(
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
