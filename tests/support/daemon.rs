//! The real program, run like a service: its inputs are arguments, files and signals; its outputs are sockets, the log
//! and the exit status.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part of this")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;

pub use super::ports::free_ports;
use super::{PATIENCE, Wire};

/// The path of the program.
pub const SIGNALBOX: &str = env!("CARGO_BIN_EXE_signalbox");

/// Arguments that select any free ports, so that tests can run in parallel with each other and with a local server.
pub const ANY_PORTS: [&str; 4] = ["--counter-port", "0", "--semaphore-port", "0"];

/// What the daemon logs once its ports are bound.
const READY: &str = "signalbox is ready";

/// A daemon that is killed at the end of the test.
pub struct Daemon {
    child: Child,
    stderr: Arc<Mutex<Vec<String>>>,
    /// Reads standard error until the process ends.
    reader: Option<JoinHandle<()>>,
    log_file: Option<PathBuf>,
}

/// `signalbox serve`, logging JSON, without the variables of systemd in its environment.
pub fn serve<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    serve_within::<&str, S>(&[], arguments)
}

/// Like [`serve`], started by a wrapper that replaces itself with the program, such as `setpriv` or `prlimit`.
pub fn serve_within<W: AsRef<OsStr>, S: AsRef<OsStr>>(
    wrapper: &[W],
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = match wrapper.split_first() {
        None => Command::new(SIGNALBOX),
        Some((program, options)) => {
            let mut command = Command::new(program);
            command.args(options).arg(SIGNALBOX);
            command
        }
    };
    command.args(["serve", "--log-format", "json"]).args(arguments);
    for variable in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "JOURNAL_STREAM"] {
        command.env_remove(variable);
    }
    command
}

/// `serve` with a configuration file, on the ports of the file.
pub fn serve_file(file: &Path) -> Command {
    serve([OsStr::new("--config"), file.as_os_str()])
}

/// `serve` with a configuration file, on any free ports.
pub fn serve_file_on_any_ports(file: &Path) -> Command {
    let mut command = serve_file(file);
    command.args(ANY_PORTS);
    command
}

impl Daemon {
    /// Starts the daemon without a file, on any free ports of the loopback interface.
    pub fn start() -> Self {
        Self::spawn(serve(ANY_PORTS))
    }

    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = Arc::clone(&stderr);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                said.lock().unwrap().push(line);
            }
        });
        Self { child, stderr, reader: Some(reader), log_file: None }
    }

    /// A daemon that logs to a file.
    pub fn spawn_with_log_file(command: Command, file: &Path) -> Self {
        let mut daemon = Self::spawn(command);
        daemon.log_file = Some(file.to_owned());
        daemon
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// The content of standard error so far.
    pub fn said(&self) -> String {
        self.stderr.lock().unwrap().join("\n")
    }

    /// The lines of its log so far.
    pub fn log(&self) -> Vec<Value> {
        let text = match &self.log_file {
            Some(file) => fs::read_to_string(file).unwrap_or_default(),
            None => self.said(),
        };
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for an event; panics with the log if it does not happen, or if the daemon ends first.
    #[track_caller]
    pub fn wait_for<T>(&mut self, what: &str, mut find: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = self.child.try_wait().unwrap();
            if let Some(found) = find(self) {
                return found;
            }
            let is_over = ended.is_some() || Instant::now() > deadline;
            assert!(!is_over, "did not happen: {what}; {ended:?}; {:?}; {}", self.log(), self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for a line of the log and returns it.
    #[track_caller]
    pub fn logged(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        self.wait_for(what, |daemon| daemon.log().into_iter().find(&is_it))
    }

    /// Waits for a line whose message contains a text, and returns it.
    #[track_caller]
    pub fn logged_message(&mut self, text: &str) -> Value {
        self.logged(text, |line| message(line).contains(text))
    }

    /// The lines so far whose message contains a text.
    pub fn lines_with(&self, text: &str) -> Vec<Value> {
        self.log().into_iter().filter(|line| message(line).contains(text)).collect()
    }

    /// Sends SIGHUP and waits for a new line that reports the outcome of reading the configuration.
    #[track_caller]
    pub fn reload(&mut self, outcome: &str) -> Value {
        let before = self.lines_with(outcome).len();
        self.signal(Signal::SIGHUP);
        self.wait_for(outcome, |daemon| daemon.lines_with(outcome).get(before).cloned())
    }

    /// Waits until the daemon is ready, and returns that line of the log.
    #[track_caller]
    pub fn ready(&mut self) -> Value {
        self.logged_message(READY)
    }

    /// The addresses of a port, as reported in the log.
    #[track_caller]
    pub fn addresses(&mut self, port: &str) -> Vec<SocketAddr> {
        let ready = self.ready();
        let addresses = text(&ready, port);
        addresses.split(' ').map(|a| a.parse().unwrap_or_else(|e| panic!("{addresses}: {e}"))).collect()
    }

    /// The only address of a port.
    #[track_caller]
    pub fn address(&mut self, port: &str) -> SocketAddr {
        let addresses = self.addresses(port);
        let [address] = addresses[..] else { panic!("one address for {port}: {addresses:?}") };
        address
    }

    #[track_caller]
    pub fn counter(&mut self) -> Wire {
        Wire::connect(self.address("counter"))
    }

    #[track_caller]
    pub fn semaphore(&mut self) -> Wire {
        Wire::connect(self.address("semaphore"))
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the daemon ends; afterwards [`Self::said`] is complete.
    #[track_caller]
    pub fn exit_status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                if let Some(reader) = self.reader.take() {
                    reader.join().unwrap();
                }
                return status;
            }
            assert!(Instant::now() < deadline, "still running: {}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A figure of the process's memory, in KiB: `VmRSS` is the resident memory now, `VmHWM` its peak.
    pub fn memory_kib(&self, figure: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The processor time that the daemon has used, in ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // The command is in parentheses and may contain spaces; utime and stime are fields 14 and 15, counted from 1.
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// The content of this file in the /proc directory of each thread.
    pub fn of_each_thread(&self, file: &str) -> Vec<String> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        threads.map(|thread| fs::read_to_string(thread.unwrap().path().join(file)).unwrap()).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The message of a line of the log.
pub fn message(line: &Value) -> &str {
    line["message"].as_str().unwrap_or_default()
}

/// A text field of a line.
#[track_caller]
pub fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line["fields"][field].as_str().unwrap_or_else(|| panic!("no {field}: {line}"))
}

/// A numeric field of a line, logged as a number or as a text.
#[track_caller]
pub fn number(line: &Value, field: &str) -> u64 {
    let value = &line["fields"][field];
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    number.unwrap_or_else(|| panic!("no number {field}: {line}"))
}

/// Runs a command until it ends by itself.
#[track_caller]
pub fn outcome(mut command: Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("still running: {command:?}: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether no process listens on a port of the loopback interface.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Whether a command runs and succeeds here.
pub fn works(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    let command = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A directory that every account may write to, because the daemon may switch to another account.
pub fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    directory
}

/// A configuration file that is rewritten while the daemon runs.
pub struct ConfigFile {
    directory: tempfile::TempDir,
    name: &'static str,
}

impl ConfigFile {
    pub fn toml(text: &str) -> Self {
        Self::new("signalbox.toml", text)
    }

    pub fn yrmcds(text: &str) -> Self {
        Self::new("yrmcds.conf", text)
    }

    fn new(name: &'static str, text: &str) -> Self {
        let file = Self { directory: open_directory(), name };
        file.write(text);
        file
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self) -> PathBuf {
        self.directory().join(self.name)
    }

    pub fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }
}
