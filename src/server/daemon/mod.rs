//! The life of the daemon: it reads the configuration, binds the ports, serves, waits for signals, and stops.
//!
//! `bind` has the sockets, `service` what exists only while clients are served, and `signals` what signals do to a running
//! daemon. In a cluster, `node` joins it, and the process serves clients only while it is the leader. The sockets, the
//! worker threads and the log belong to the process.

mod bind;
mod error;
mod node;
mod options;
mod service;
mod signals;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::{debug, error, info, warn};

use super::clock::Clock;
use super::expirations;
use super::http::{self, Http};
use super::log::Log;
use super::process::{self, Identity};
use super::relay::{Outgoing, relay_port};
use super::rules::Rules;
use super::tls::Tls;
use super::workers::Workers;
use crate::config::{Config, Loaded};
use bind::{Bound, bind, listen};
pub use error::DaemonError;
use node::{Handover, Node, Prepared};
pub use options::Options;
use options::log_notices;
use service::{Service, Store};
use signalbox_cluster::drain::NextLeader;
use signalbox_cluster::leadership::Term;
use signalbox_model::Namespace;
use signals::Signals;

/// How long the worker threads may take to end.
const WORKERS_END_MAX: Duration = Duration::from_millis(500);

/// Runs the daemon until a signal stops it.
pub fn run(options: &Options) -> Result<(), DaemonError> {
    // Done first, because a signal that arrives earlier ends the process at once.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _entered = runtime.enter();
        Signals::listen()?
    };
    let Loaded { config, notices, .. } = options.load()?;
    let identity = Identity::of(&config)?;
    let open_log = || Log::init(config.log.threshold, config.log.file.clone(), options.log_format);
    let log = identity.act(open_log)??;
    log_panics();
    log_notices(&notices);
    if process::is_ignored(&config) {
        info!("user and group are ignored: only root can switch to another account");
    }
    let outcome = serve(&runtime, signals, options, &config, identity, &log);
    // Standard error has the error in any case. An administrator also looks for it in the log file.
    if let (Err(error), Some(_)) = (&outcome, &config.log.file) {
        error!(%error, "the server ends");
    }
    outcome
}

fn serve(
    runtime: &Runtime,
    mut signals: Signals,
    options: &Options,
    config: &Config,
    identity: Identity,
    log: &Log,
) -> Result<(), DaemonError> {
    process::disable_core_dumps()?;
    let tls = Tls::read(&config.tls)?.map(Arc::new);
    let mut rules = Rules::of(config, tls, Clock::system());
    let files_max = process::raise_file_limit();
    let Bound { ports: listeners, http, relays } = bind(config)?;
    let cluster = config.cluster.is_enabled().then(|| Prepared::read(config)).transpose()?;
    rules.cluster_expirations = expirations::of_cluster(&config.cluster).into();
    identity.assume()?;
    process::disable_core_dumps()?;
    // The tokens are read as the configured account, because that account reads the file again on SIGHUP.
    rules.access.load_tokens(&config.access).map_err(DaemonError::Tokens)?;

    let count = config.workers.threads(std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let workers = Workers::start(count)?;
    workers.background().spawn(rules.clone().watch_expirations());
    let address = |(namespace, listener): &(Namespace, std::net::TcpListener)| {
        listener.local_addr().map(|address| (*namespace, address))
    };
    let addresses: Vec<_> = listeners.iter().map(address).collect::<io::Result<_>>()?;
    let http_addresses = http::addresses(&http)?;
    let http = Http::start(config, http, rules.clone())?;
    let (mut outgoing, mut leader) = (None, None);
    if let Some(cluster) = cluster {
        let mut node = cluster.join(&addresses, relays)?;
        outgoing = config.cluster.relays().then(|| Arc::new(node.outgoing(config, &workers)));
        http.join(node.view.clone(), outgoing.as_ref());
        let stopped = signals.handle(None, &rules, options, config, log);
        match lead(runtime, &mut node, &listeners, outgoing.as_ref(), stopped) {
            Ok(Some(term)) => leader = Some((node, term)),
            not_leading => {
                if not_leading.is_ok() {
                    info!("stopping");
                    notify(NotifyState::Stopping);
                }
                // No client is connected, so another node may lead at once.
                runtime.block_on(node.leave(None));
                not_leading?;
                info!("stopped");
                return Ok(());
            }
        }
    }
    let store = match &leader {
        None => Store::of(config),
        Some((node, term)) => Store::Cluster(node.storage(*term).into()),
    };
    let fence = leader.as_ref().map(|(node, _)| node.view.fence.clone());
    let relays = leader.as_mut().and_then(|(node, term)| {
        // Leases and the reconnect window start with the first commit after the records are restored. So this wait comes
        // first: no client could connect during it.
        runtime.block_on(node.await_relays(*term));
        node.relay_port(*term)
    });
    let mut service = Service::restore(config, rules.clone(), store, fence)?;
    if let Some((node, term)) = &leader {
        service.server().set_whereabouts(node.whereabouts(*term));
    }
    // HTTP is served before `service.serve` is called, because other nodes forward requests after that.
    http.serve(service.server());
    service.serve(runtime, config, listeners, relays, http.serve_requests(), &workers)?;
    if let Some(outgoing) = outgoing {
        outgoing.on_leading(service.server());
    }

    let server = Arc::clone(service.server());
    let (ready, prepared) = oneshot::channel();
    let mut leader = match leader {
        Some((node, term)) => Some((node.prepare_handovers(term, ready)?, node)),
        None => None,
    };
    let handover = runtime.block_on(async {
        log_start(config, &addresses, &http_addresses, count, files_max);
        notify(NotifyState::Ready);
        let serve = async {
            let handover = tokio::select! {
                () = signals.handle(Some(&server), &rules, options, config, log) => None,
                Ok(handover) = prepared => Some(handover),
            };
            http.drain();
            match &handover {
                None => {
                    info!("stopping");
                    service.server().announce_move_to_others();
                }
                Some(handover) => {
                    let NextLeader { successor, node } = &handover.next;
                    info!(successor = successor.node, "handing over, and stopping");
                    service.server().announce_move(node.advertised.clone());
                }
            }
            notify(NotifyState::Stopping);
            service.drain(&workers).await;
            handover
        };
        match &mut leader {
            // `node.serve` also runs while the server drains: a leader whose threads do not report does not renew, and
            // would be killed.
            Some((drains, node)) => tokio::select! {
                handover = serve => handover,
                never = node.serve(&workers, &server, drains) => match never {},
            },
            None => serve.await,
        }
    });
    service.end();
    if let Some((_, node)) = &mut leader {
        if workers.end(WORKERS_END_MAX) {
            node.stop_guard();
            let successor = handover.and_then(Handover::complete);
            runtime.block_on(node.leave(successor));
        } else {
            warn!("connections of clients are left, so other nodes wait until the leadership expires");
        }
    }
    info!("stopped");
    Ok(())
}

/// Waits until this node leads its cluster, and then lets its ports listen; `None`: a signal or an operator who drains
/// the node came first. Until then, the node relays clients to the leader if it is configured to. The relayed
/// connections are closed before this returns a term or `None`. `stopped` handles signals, and ends when one stops the
/// daemon.
fn lead(
    runtime: &Runtime,
    node: &mut Node,
    listeners: &[(Namespace, std::net::TcpListener)],
    outgoing: Option<&Arc<Outgoing<Workers>>>,
    stopped: impl Future<Output = ()>,
) -> Result<Option<Term>, DaemonError> {
    let accepting = outgoing.map(|outgoing| accept_for_relays(runtime, outgoing, listeners)).transpose()?;
    // A standby is ready: units that are ordered after this one can connect to the node that leads.
    notify(NotifyState::Ready);
    let term = runtime.block_on(async {
        tokio::select! {
            term = node.lead() => term,
            () = stopped => Ok(None),
        }
    });
    drop(accepting);
    runtime.block_on(node.close_relays());
    let term = term?;
    if term.is_some() {
        // Clients wait while the records are loaded.
        listen(listeners)?;
        node.listen_for_relays()?;
    }
    Ok(term)
}

/// Accepts clients and relays them, until the tasks are dropped. Connections that were accepted before continue.
fn accept_for_relays(
    runtime: &Runtime,
    outgoing: &Arc<Outgoing<Workers>>,
    listeners: &[(Namespace, std::net::TcpListener)],
) -> Result<JoinSet<()>, DaemonError> {
    let mut tasks = JoinSet::new();
    listen(listeners)?;
    let _entered = runtime.enter();
    for (namespace, listener) in listeners {
        let listener = TcpListener::from_std(listener.try_clone()?)?;
        tasks.spawn(relay_port(Arc::clone(outgoing), *namespace, listener));
    }
    Ok(tasks)
}

fn log_start(
    config: &Config,
    addresses: &[(Namespace, SocketAddr)],
    http: &[SocketAddr],
    workers: NonZeroUsize,
    files_max: u64,
) {
    let shown = |addresses: Vec<String>| {
        if addresses.is_empty() { "disabled".to_owned() } else { addresses.join(" ") }
    };
    let list = |namespace| {
        shown(addresses.iter().filter(|(n, _)| *n == namespace).map(|(_, a)| a.to_string()).collect())
    };
    info!(
        version = env!("CARGO_PKG_VERSION"),
        counter = list(Namespace::Counters),
        semaphore = list(Namespace::Semaphores),
        http = shown(http.iter().map(SocketAddr::to_string).collect()),
        workers,
        counter_max_connections = config.counter.port.max_connections,
        semaphore_max_connections = config.semaphore.port.max_connections,
        counter_max_names = config.counter.port.max_names,
        semaphore_max_names = config.semaphore.port.max_names,
        files_max,
        "signalbox is ready"
    );
}

/// Notifies systemd; without it, this does nothing.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        debug!(%error, "systemd could not be notified");
    }
}

fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        error!(%panic, %backtrace, "a task panicked");
    }));
}
