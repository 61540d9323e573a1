//! Servers to compare: each is a separate process on the loopback interface, which is killed when it is dropped.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use signalbox_bench::{Plan, Yrmcds};
use signalbox_client::{Address, Tls, TlsFiles};
use tempfile::TempDir;

use super::certificates::{Authority, Files};
use super::dialects::{ACQUIRE_SCRIPT, AnyDialect, RELEASE_SCRIPT, Scripts, resp};
use super::ports::free_ports;
use super::{floor, splice, tls_floor};

/// Threads that serve connections of the floor: one, which is the cheapest while it can keep up.
pub const FLOOR_THREADS: usize = 1;

/// yrmcdsd's own default. With two threads, it sometimes did not answer a connection with sixteen requests in flight.
const YRMCDSD_WORKERS: usize = 10;

/// All load comes from one address.
const NO_SHARES: &str = "client_share = 100\n";

/// Seconds between sweeps where the sweep is not what is measured: the server's default.
const GC_INTERVAL_S: u32 = 10;

/// The servers that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Floor,
    Signalbox,
    Yrmcdsd,
    RedisIncr,
    RedisLua,
    Poolcounter,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Floor, Self::Signalbox, Self::Yrmcdsd, Self::RedisIncr, Self::RedisLua, Self::Poolcounter];

    /// Its name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Signalbox => "signalbox",
            Self::Yrmcdsd => "yrmcdsd",
            Self::RedisIncr => "Redis INCR",
            Self::RedisLua => "Redis Lua",
            Self::Poolcounter => "poolcounterd",
        }
    }

    /// The package that has it and the program, for those of others.
    fn package(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Floor | Self::Signalbox => None,
            Self::Yrmcdsd => Some(("yrmcds", "yrmcdsd")),
            Self::RedisIncr | Self::RedisLua => Some(("redis-server", "redis-server")),
            Self::Poolcounter => Some(("poolcounter", "poolcounterd")),
        }
    }

    /// Describes what is missing to start it, if anything is.
    pub fn missing(self) -> Option<String> {
        let (package, program) = self.package()?;
        find(program).is_none().then(|| {
            format!("{} is left out: {program} is not installed (apt-get install {package})", self.label())
        })
    }

    /// Whether it takes several requests at a time. A connection of poolcounterd holds one lock at most.
    pub fn takes_in_flight(self, requests: usize) -> bool {
        self != Self::Poolcounter || requests == 1
    }

    /// Starts it and waits until it accepts connections.
    pub fn start(self) -> Server {
        match self {
            Self::Floor => start_floor(),
            Self::Signalbox => start_signalbox(GC_INTERVAL_S),
            Self::Yrmcdsd => start_yrmcdsd(),
            Self::RedisIncr => start_redis(|_| AnyDialect::RedisCounter),
            Self::RedisLua => start_redis(|address| AnyDialect::RedisScript(load_scripts(address))),
            Self::Poolcounter => start_poolcounter(),
        }
    }
}

/// A running server.
pub struct Server {
    process: Child,
    pub address: SocketAddr,
    /// Where signalbox serves semaphores.
    pub semaphores: Option<SocketAddr>,
    pub dialect: AnyDialect,
    /// The settings of connections over TLS.
    tls: Option<(Tls, Address)>,
    /// Kept open, because yrmcdsd may overlook a connection that reuses the descriptor of one that was just closed.
    _first: TcpStream,
    _folder: Option<TempDir>,
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The plan for this server: over TLS if it is one with TLS.
    pub fn plan(&self, plan: Plan) -> Plan {
        Plan { tls: self.tls.clone(), ..plan }
    }

    /// The server, whose connections are over TLS.
    fn over_tls(mut self, authority: &Authority) -> Self {
        let tls = Tls::load(&TlsFiles { ca: Some(authority.file()), identity: None });
        let address = self.address.to_string().parse().expect("an address of a socket is one");
        self.tls = Some((tls.expect("the files were made for this"), address));
        self
    }

    /// Takes over a process once it accepts connections.
    pub fn accepting(mut process: Child, address: SocketAddr, folder: Option<TempDir>) -> Self {
        let deadline = Instant::now() + Duration::from_secs(20);
        let first = loop {
            if let Ok(stream) = TcpStream::connect(address) {
                break stream;
            }
            let ended = process.try_wait().expect("a child's status can be asked for");
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "{address} accepts nothing; ended: {ended:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        let dialect = AnyDialect::Yrmcds(Yrmcds::default());
        Self { process, address, semaphores: None, dialect, tls: None, _first: first, _folder: folder }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start_floor() -> Server {
    start_self([floor::ARGUMENT.as_ref(), FLOOR_THREADS.to_string().as_ref()])
}

/// A bare relay to a server of yrmcds' protocol.
pub fn start_splice(to: SocketAddr) -> Server {
    start_self([splice::ARGUMENT.as_ref(), to.to_string().as_ref()])
}

/// The floor over TLS.
pub fn start_tls_floor(authority: &Authority, files: &Files) -> Server {
    start_self([tls_floor::ARGUMENT.as_ref(), files.certificate.as_os_str(), files.key.as_os_str()])
        .over_tls(authority)
}

/// signalbox over TLS.
pub fn start_tls_signalbox(authority: &Authority, files: &Files) -> Server {
    start_signalbox_with(&files.lines()).over_tls(authority)
}

/// The benchmark's own binary, as the server that these arguments select.
pub fn start_self<const N: usize>(arguments: [&OsStr; N]) -> Server {
    let binary = std::env::current_exe().expect("a running program has a file");
    let mut process = Command::new(binary)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the benchmark's own binary starts");
    let mut line = String::new();
    let stdout = process.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("the floor prints its port");
    let address = line.trim().parse().unwrap_or_else(|error| panic!("the floor said {line:?}: {error}"));
    Server::accepting(process, address, None)
}

/// signalbox, which sweeps semaphores this often.
pub fn start_signalbox(gc_interval_s: u32) -> Server {
    let folder = tempfile::tempdir().expect("there is a directory for scratch files");
    start_signalbox_in(folder, NO_SHARES, gc_interval_s)
}

/// signalbox, with further lines at the top of its configuration.
pub fn start_signalbox_with(further: &str) -> Server {
    start_signalbox_with_shares(&format!("{NO_SHARES}{further}"))
}

/// signalbox, with further lines at the top of its configuration, and with shares of clients.
pub fn start_signalbox_with_shares(further: &str) -> Server {
    let folder = tempfile::tempdir().expect("there is a directory for scratch files");
    start_signalbox_in(folder, further, GC_INTERVAL_S)
}

/// signalbox, with a data directory in a folder for scratch files.
pub fn start_durable_signalbox(folder: TempDir) -> Server {
    let data = format!("{NO_SHARES}data_dir = '{}'\n", folder.path().join("data").display());
    start_signalbox_in(folder, &data, GC_INTERVAL_S)
}

fn start_signalbox_in(folder: TempDir, further: &str, gc_interval_s: u32) -> Server {
    let [counters, semaphores] = free_ports();
    let config = folder.path().join("signalbox.toml");
    let text = format!(
        "bind_ip = '127.0.0.1'\n{further}\
         [counter]\nport = {counters}\n\
         [semaphore]\nport = {semaphores}\ngc_interval = {gc_interval_s}\n"
    );
    fs::write(&config, text).expect("a scratch file can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_signalbox"));
    command.envs(service_environment()).arg("serve").arg("--config").arg(&config);
    let process = quiet(&mut command);
    let mut server = Server::accepting(process, SocketAddr::from(([127, 0, 0, 1], counters)), Some(folder));
    server.semaphores = Some(SocketAddr::from(([127, 0, 0, 1], semaphores)));
    server
}

/// The environment that the systemd unit gives the server, where the benchmark's own does not say otherwise.
fn service_environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    let unit = include_str!("../../etc/signalbox.service");
    let settings = unit.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('='));
    settings.filter(|(name, _)| std::env::var_os(name).is_none())
}

fn start_yrmcdsd() -> Server {
    let folder = tempfile::tempdir().expect("there is a directory for scratch files");
    let [port, repl_port, counter_port] = free_ports();
    let config = folder.path().join("yrmcds.conf");
    // yrmcdsd binds its virtual address in addition to bind_ip, so the two must differ.
    let text = format!(
        "bind_ip = 127.0.0.2\nvirtual_ip = 127.0.0.1\nport = {port}\nrepl_port = {repl_port}\n\
         workers = {YRMCDSD_WORKERS}\ntemp_dir = {}\ncounter.enable = true\ncounter.port = {counter_port}\n",
        folder.path().display()
    );
    fs::write(&config, text).expect("a scratch file can be written");
    let process = quiet(program("yrmcdsd").arg("-f").arg(&config));
    Server::accepting(process, SocketAddr::from(([127, 0, 0, 1], counter_port)), Some(folder))
}

fn start_redis(dialect: impl FnOnce(SocketAddr) -> AnyDialect) -> Server {
    let folder = tempfile::tempdir().expect("there is a directory for scratch files");
    let [port] = free_ports();
    let process = quiet(
        program("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .current_dir(folder.path()),
    );
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut server = Server::accepting(process, address, Some(folder));
    server.dialect = dialect(address);
    server
}

fn load_scripts(address: SocketAddr) -> Scripts {
    let mut stream = TcpStream::connect(address).expect("it accepted a connection before");
    let mut load = |script: &str| {
        let mut command = Vec::new();
        resp(&[b"SCRIPT", b"LOAD", script.as_bytes()], &mut command);
        stream.write_all(&command).expect("Redis takes a command");
        // "$40", the hash of 40 digits, each with two bytes at its end.
        let mut answer = [0; 5 + 42];
        stream.read_exact(&mut answer).expect("Redis answers with the hash");
        String::from_utf8_lossy(&answer[5..45]).into_owned()
    };
    Scripts { acquire: load(ACQUIRE_SCRIPT), release: load(RELEASE_SCRIPT) }
}

/// It has one port, and cannot listen where connections of one before it linger; so each gets an address of loopback
/// of its own.
fn start_poolcounter() -> Server {
    static STARTED: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = 1 + STARTED.fetch_add(1, Ordering::Relaxed) % 250;
    let address = SocketAddr::from(([127, 128 | high, low, number], 7531));
    let process = quiet(program("poolcounterd").args(["-l", &address.ip().to_string()]));
    let mut server = Server::accepting(process, address, None);
    server.dialect = AnyDialect::PoolCounter;
    server
}

pub fn program(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| panic!("{name} was found before")))
}

/// A program on the PATH, or where Debian keeps daemons.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    directories.map(|directory| directory.join(name)).find(|file| file.is_file())
}

pub fn quiet(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
