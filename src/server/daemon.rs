//! The daemon's life: configuration, sockets, privileges, tasks, end. What signals ask of it meanwhile is in
//! `signals`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::log::{Format, Log, LogError, Settings};
use super::privileges::{self, Identity, PrivilegeError};
use super::signals::{Signals, log_notices};
use super::store::{RestoreError, Writer, WriterError};
use super::workers::Workers;
use super::{Clock, Server, expire, gc, port_name, serve_port, socket, systemd};
use crate::config::{Config, ConfigError, Loaded, PortConfig, Threshold};
use crate::core::{NameHasher, Namespace};
use crate::storage::{self, FileStorage, StorageError};

/// How long a stop waits for answers to be taken; the process is to be gone within 5 s.
const STOP_PATIENCE: Duration = Duration::from_secs(4);

/// What the command line says about the daemon. It is asked again whenever the configuration is read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file; without one, both namespaces are served on loopback.
    pub config_file: Option<PathBuf>,
    /// Addresses to bind instead of the configuration's.
    pub bind: Vec<IpAddr>,
    /// The counters' port instead of the configuration's; 0 is any free port.
    pub counter_port: Option<u16>,
    /// The semaphores' port, likewise.
    pub semaphore_port: Option<u16>,
    /// The log's threshold instead of the configuration's.
    pub log_level: Option<Threshold>,
    /// How log lines look.
    pub log_format: Format,
}

/// Why the daemon did not start, or ended.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The configuration is wrong; nothing was bound.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A port cannot be bound.
    #[error(
        "{key}: the port cannot be bound: {source}; is another server running, or the address not this machine's?"
    )]
    Bind {
        /// The key of the configuration.
        key: String,
        /// What the system said, with the address.
        source: io::Error,
    },
    /// The configured user cannot be taken on.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// The data directory cannot be used.
    #[error("data_dir: {source}")]
    Data {
        /// What is wrong with it, and what to do.
        source: RestoreError,
    },
    /// The system refused something that every process may expect.
    #[error("the server cannot run on this system: {0}")]
    System(#[from] io::Error),
}

impl Options {
    /// Reads the configuration, with the command line's word above the file's, and checks it as a whole.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        let mut loaded = match &self.config_file {
            Some(path) => Config::load(path)?,
            None => Loaded { config: Config::without_file(), notices: Vec::new() },
        };
        let config = &mut loaded.config;
        if !self.bind.is_empty() {
            config.bind.clone_from(&self.bind);
            config.virtual_ip = None;
        }
        config.counter.port.port = self.counter_port.unwrap_or(config.counter.port.port);
        config.semaphore.port.port = self.semaphore_port.unwrap_or(config.semaphore.port.port);
        config.log.threshold = self.log_level.unwrap_or(config.log.threshold);
        config.validate()?;
        Ok(loaded)
    }
}

/// Runs the daemon until it is told to stop.
pub fn run(options: &Options) -> Result<(), DaemonError> {
    // The first thing, so that no signal comes before somebody listens and ends the process by its default.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _entered = runtime.enter();
        Signals::listen()?
    };
    let Loaded { config, notices } = options.load()?;
    let identity = Identity::of(&config)?;
    let log = Log::init(Settings {
        threshold: config.log.threshold,
        file: config.log.file.clone(),
        format: options.log_format,
        owner: identity.owner(),
    })?;
    log_panics();
    log_notices(&notices);
    if privileges::is_ignored(&config) {
        info!("user and group are ignored: only root can take on another identity");
    }
    let outcome = serve(&runtime, signals, options, &config, identity, &log);
    // Whoever started the server is told on standard error; the log file, by which it will be looked for, here.
    if let (Err(error), Some(_)) = (&outcome, &config.log.file) {
        error!(%error, "the server ends");
    }
    outcome
}

fn serve(
    runtime: &Runtime,
    signals: Signals,
    options: &Options,
    config: &Config,
    identity: Identity,
    log: &Log,
) -> Result<(), DaemonError> {
    let files_max = raise_file_limit();
    let listeners = bind(config)?;
    identity.assume()?;

    let server = Server::new(config, Clock::system(), NameHasher::new());
    let writer = config.data_dir.as_deref().map(|directory| start_writer(&server, directory)).transpose()?;
    if writer.is_none() {
        info!(
            "declared semaphores and leased sessions are kept in memory only, and a restart forgets them; \
             set data_dir to keep them"
        );
    }
    server.declare_configured(&config.semaphore.declare);
    let count = config.workers.or_else(|| std::thread::available_parallelism().ok());
    let count = count.unwrap_or(NonZeroUsize::MIN);
    let workers = Workers::start(count)?;
    let tasks = {
        let _entered = runtime.enter();
        spawn_tasks(&server, config, listeners, &workers)?
    };
    runtime.block_on(async {
        log_start(config, &tasks.addresses, count, files_max);
        systemd::notify_ready();
        signals.obey(&server, options, config, log).await;
        stop(&server, tasks, &workers).await;
    });
    if let Some(writer) = writer {
        writer.end();
    }
    info!("stopped");
    Ok(())
}

/// Brings back what was kept in the data directory, and has it kept there from now on.
fn start_writer(server: &Arc<Server>, directory: &Path) -> Result<Writer, DaemonError> {
    let failed = |source: RestoreError| DaemonError::Data { source };
    let open = FileStorage::open(directory, storage::Options::default());
    let storage = open.map_err(|error: StorageError| failed(error.into()))?;
    if storage.was_repaired() {
        warn!("the server was not stopped in an orderly way; the data directory was repaired");
    }
    let writer = Writer::start(server, storage).map_err(|error| match error {
        WriterError::Restore(error) => failed(error),
        WriterError::Thread(error) => DaemonError::System(error),
    })?;
    let stats = server.core.ledger_stats();
    info!(
        data_dir = %directory.display(),
        declared = stats.declared,
        sessions = stats.sessions,
        grants = stats.grants,
        "brought back what was kept"
    );
    Ok(writer)
}

/// The enabled ports, each with its listeners.
fn bind(config: &Config) -> Result<Vec<(Namespace, std::net::TcpListener)>, DaemonError> {
    let mut inherited = systemd::inherited_listeners()?;
    let mut bound = Vec::new();
    for namespace in Namespace::ALL {
        let port_config = port_config(config, namespace);
        if !port_config.enable {
            continue;
        }
        let is_ours = |listener: &mut std::net::TcpListener| {
            listener.local_addr().is_ok_and(|address| address.port() == port_config.port)
        };
        let mut listeners: Vec<_> = inherited.extract_if(.., is_ours).collect();
        if listeners.is_empty() {
            listeners = socket::bind_port(config, port_config.port).map_err(|source| {
                let key = format!("{}.port = {}", port_name(namespace), port_config.port);
                DaemonError::Bind { key, source }
            })?;
        }
        bound.extend(listeners.into_iter().map(|listener| (namespace, listener)));
    }
    for listener in inherited {
        let address = listener.local_addr().map_or_else(|error| error.to_string(), |a| a.to_string());
        warn!(
            address,
            "a socket was handed over for a port that the configuration does not enable; it is closed"
        );
    }
    Ok(bound)
}

pub(super) fn port_config(config: &Config, namespace: Namespace) -> &PortConfig {
    match namespace {
        Namespace::Counters => &config.counter.port,
        Namespace::Semaphores => &config.semaphore.port,
    }
}

/// The tasks that serve nobody in particular, and the addresses that are listened on.
struct Tasks {
    set: JoinSet<()>,
    addresses: Vec<(Namespace, SocketAddr)>,
}

fn spawn_tasks(
    server: &Arc<Server>,
    config: &Config,
    listeners: Vec<(Namespace, std::net::TcpListener)>,
    workers: &Workers,
) -> io::Result<Tasks> {
    let mut tasks = Tasks { set: JoinSet::new(), addresses: Vec::new() };
    for (namespace, listener) in listeners {
        let listener = TcpListener::from_std(listener)?;
        tasks.addresses.push((namespace, listener.local_addr()?));
        tasks.set.spawn(serve_port(Arc::clone(server), namespace, listener, workers.clone()));
    }
    tasks.set.spawn(expire(Arc::clone(server)));
    if config.counter.port.enable {
        let thread = workers.background(Namespace::Counters);
        tasks.set.spawn_on(gc::sweep_counters(Arc::clone(server)), thread);
    }
    if config.semaphore.port.enable {
        let interval = Duration::from_secs(config.semaphore.gc_interval_s.into());
        let thread = workers.background(Namespace::Semaphores);
        tasks.set.spawn_on(gc::sweep_semaphores(Arc::clone(server), interval), thread);
    }
    Ok(tasks)
}

fn log_start(config: &Config, addresses: &[(Namespace, SocketAddr)], workers: NonZeroUsize, files_max: u64) {
    let list = |namespace| {
        let addresses: Vec<_> =
            addresses.iter().filter(|(n, _)| *n == namespace).map(|(_, a)| a.to_string()).collect();
        if addresses.is_empty() { "disabled".to_owned() } else { addresses.join(" ") }
    };
    info!(
        version = env!("CARGO_PKG_VERSION"),
        counter = list(Namespace::Counters),
        semaphore = list(Namespace::Semaphores),
        workers,
        counter_max_connections = config.counter.port.max_connections,
        semaphore_max_connections = config.semaphore.port.max_connections,
        counter_max_names = config.counter.port.max_names,
        semaphore_max_names = config.semaphore.port.max_names,
        files_max,
        "signalbox is ready"
    );
}

/// Stops accepting and reading, and waits a while for what is being answered.
async fn stop(server: &Server, tasks: Tasks, workers: &Workers) {
    info!("stopping");
    systemd::notify_stopping();
    drop(tasks);
    while server.core.shut_down(server.moment()) {
        tokio::task::yield_now().await;
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    // Whoever was granted something is to be told before his connection is closed.
    while !server.core.is_stored() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.close();
    // A turn under way is over when its thread runs something else, and what it had put off is sent when all that waited
    // there has run; what a peer does not take is counted.
    while !workers.finish_turns(deadline).await || server.is_busy() {
        if Instant::now() >= deadline {
            warn!("some peers did not take their answers in time");
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Raises the limit on open files to what the process may have. Gives the limit in force.
fn raise_file_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// Has panics written to the log, where somebody reads them.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        error!(%panic, %backtrace, "a task panicked");
    }));
}
