//! The parts that exist only while the node serves clients: the server, the thread of its store, and its tasks.

use std::io;
use std::net::{IpAddr, TcpListener as StdTcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::background::{self, announce_rules, expire};
use super::super::clock::Clock;
use super::super::history::History;
use super::super::listener::{RestingListener, serve_port};
use super::super::port::port_config;
use super::super::relay::{Incoming, IsNode, ServeRequests, Served, Trust, serve_relays};
use super::super::rules::Rules;
use super::super::state::Server;
use super::super::store::{Writer, new_place_key};
use super::super::workers::{Workers, watch_saturation};
use super::error::DaemonError;
use crate::config::{ClientCert, Config, PlainRule};
use signalbox_access::Rights;
use signalbox_cluster::etcd::EtcdClient;
use signalbox_cluster::keys::RelaySecret;
use signalbox_cluster::store::ClusterStorage;
use signalbox_cluster::timing::Fence;
use signalbox_core::NameHasher;
use signalbox_model::Namespace;
use signalbox_storage::{FileStorage, Storage, StorageError};

/// How long a stop waits until peers have taken their responses. Further waits follow, for the disk for example, and the
/// service manager waits for 10 s in all (`etc/signalbox.service`).
const STOP_WAIT_MAX: Duration = Duration::from_secs(4);

/// Where declared semaphores and leased sessions are stored.
pub(super) enum Store {
    Memory,
    Directory(PathBuf),
    Cluster(Box<ClusterStorage<EtcdClient>>),
}

impl Store {
    /// Returns the store of a server that is not a node of a cluster.
    pub(super) fn of(config: &Config) -> Self {
        config.data_dir.clone().map_or(Self::Memory, Self::Directory)
    }
}

/// The port for relays of a node that leads.
pub(super) struct RelayPort {
    pub(super) listener: StdTcpListener,
    /// The secret that relays must know.
    pub(super) secret: RelaySecret,
    /// The number of this node's term.
    pub(super) epoch: u32,
    pub(super) is_node: IsNode,
}

/// A server that serves clients.
pub(super) struct Service {
    server: Arc<Server>,
    /// `None`: all state is in memory.
    store: Option<Writer>,
    /// Listeners, the supervision of the workers, expiry and sweeps. They are aborted when this is dropped.
    tasks: JoinSet<()>,
}

impl Service {
    /// Restores the durable state. No client is served yet. `config` is the configuration of the start; for settings
    /// that may have changed since, the one in `rules` counts.
    pub(super) fn restore(
        config: &Config,
        rules: Rules,
        store: Store,
        fence: Option<Fence>,
    ) -> Result<Self, DaemonError> {
        let server = Server::with_rules(config, Clock::system(), NameHasher::new(), fence, rules);
        if let Some(path) = &config.access.audit_log {
            server.audit.open(path.clone()).map_err(cannot_open("access.audit_log", path))?;
        }
        warn_if_open(config);
        let store = match store {
            Store::Directory(directory) => {
                let writer = Writer::start(&server, open_data(&directory)?).map_err(DaemonError::Data)?;
                log_restored(&server, Some(&directory), None);
                Some(writer)
            }
            Store::Cluster(storage) => {
                let epoch = storage.epoch();
                let writer = Writer::start(&server, *storage).map_err(DaemonError::Records)?;
                log_restored(&server, None, Some(epoch));
                Some(writer)
            }
            Store::Memory => {
                server.core.set_place_key(new_place_key().map_err(io::Error::other)?);
                info!(
                    "declared semaphores and leased sessions are kept in memory only, and a restart forgets them; \
                     set data_dir to keep them"
                );
                None
            }
        };
        if let Some(path) = &config.log.grants {
            History::start(&server, path.clone()).map_err(cannot_open("log.grants", path))?;
        }
        server.declare_configured();
        Ok(Self { server, store, tasks: JoinSet::new() })
    }

    /// Starts to serve clients, and those that other nodes relay. `http` serves the requests that other nodes forward.
    pub(super) fn serve(
        &mut self,
        runtime: &Runtime,
        config: &Config,
        listeners: Vec<(Namespace, StdTcpListener)>,
        relays: Option<RelayPort>,
        http: Option<ServeRequests<TcpStream>>,
        workers: &Workers,
    ) -> Result<(), DaemonError> {
        let _entered = runtime.enter();
        if let Some(RelayPort { listener, secret, epoch, is_node }) = relays {
            let namespaces =
                Namespace::ALL.into_iter().filter(|namespace| port_config(config, *namespace).enable);
            let served = Served { namespaces: namespaces.collect(), http };
            let server = Arc::clone(&self.server);
            let trust = if config.cluster.relay_ca.is_some() { Trust::Proofs } else { Trust::Network };
            let incoming = Incoming::new(server, workers.clone(), &secret, epoch, served, trust, is_node);
            self.tasks.spawn(serve_relays(incoming, TcpListener::from_std(listener)?));
        }
        spawn_tasks(&mut self.tasks, &self.server, config, listeners, workers)?;
        Ok(())
    }

    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Stops accepting and reading, and waits for a limited time until the requests that were read are answered.
    pub(super) async fn drain(&mut self, workers: &Workers) {
        let server = &self.server;
        let deadline = Instant::now() + STOP_WAIT_MAX;
        // The listeners end first: the turns that are waited for below are the last ones only if no new connection comes
        // afterwards.
        let _ = tokio::time::timeout_at(deadline, self.tasks.shutdown()).await;
        workers.finish_turns(deadline).await;
        while server.core.shut_down(server.moment()) {
            tokio::task::yield_now().await;
        }
        // A client must receive its grant before its connection is closed.
        while !server.core.is_stored() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.close();
        // When a thread runs the task of `finish_turns`, the turn before it has ended, and deferred output is sent
        // before the task ends. Output that a peer does not take makes its connection busy.
        while !workers.finish_turns(deadline).await || server.is_busy() {
            if Instant::now() >= deadline {
                warn!("some peers did not take their answers in time");
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Writes what is left to the audit log, the store and the history of grants.
    pub(super) fn end(self) {
        self.server.audit.write_counts();
        if let Some(store) = self.store {
            store.end();
        }
        self.server.history.end();
    }
}

fn cannot_open(key: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::Output { key, path: path.to_owned(), source }
}

/// Warns about a server that every client on the network may use.
fn warn_if_open(config: &Config) {
    let is_remote =
        |bind: &[IpAddr]| bind.is_empty() || bind.iter().any(|ip| !ip.to_canonical().is_loopback());
    let is_reachable = is_remote(&config.bind) || (config.http.enable && is_remote(&config.http.bind));
    let needs_certificates =
        config.tls.client_cert == ClientCert::Required && config.tls.plain != PlainRule::Allow;
    let rights = config.access.rights_of_every_client();
    if !is_reachable || needs_certificates || !rights.include(&Rights::READ_AND_ACQUIRE) {
        return;
    }
    let rights = rights.words();
    warn!(
        rights,
        "every client that reaches this server has these rights on everything, without a token or a certificate; limit that \
         with access.anonymous or access.networks, require client certificates, or listen on loopback only (bind_ip, \
         http.bind_ip)"
    );
}

fn open_data(directory: &Path) -> Result<FileStorage, DaemonError> {
    let open = FileStorage::open(directory);
    let storage = open.map_err(|error: StorageError| DaemonError::Data(error.into()))?;
    if storage.was_repaired() {
        warn!("the server was not stopped in an orderly way; the data directory was repaired");
    }
    Ok(storage)
}

/// Logs what was restored from a data directory, or from a cluster at the beginning of an epoch.
fn log_restored(server: &Server, data_dir: Option<&Path>, epoch: Option<u64>) {
    let stats = server.core.ledger_stats();
    info!(
        data_dir = data_dir.map(|directory| display(directory.display())),
        epoch,
        declared = stats.declared,
        sessions = stats.sessions,
        grants = stats.grants,
        "restored the durable state"
    );
}

fn spawn_tasks(
    tasks: &mut JoinSet<()>,
    server: &Arc<Server>,
    config: &Config,
    listeners: Vec<(Namespace, StdTcpListener)>,
    workers: &Workers,
) -> io::Result<()> {
    for (namespace, listener) in listeners {
        let listener = RestingListener::new(listener)?;
        tasks.spawn(serve_port(Arc::clone(server), namespace, listener, workers.clone()));
    }
    for (worker, runtime) in workers.runtimes().enumerate() {
        let count = workers.runtimes().count();
        tasks.spawn_on(watch_saturation(Arc::clone(server), worker, count), runtime);
    }
    tasks.spawn(expire(Arc::clone(server)));
    tasks.spawn(announce_rules(Arc::clone(server)));
    let its_server = Arc::clone(server);
    tasks.spawn(async move { its_server.audit.count_refusals().await });
    tasks.spawn_on(background::declare_idle(Arc::clone(server)), workers.background());
    tasks.spawn_on(background::sweep_for_memory(Arc::clone(server)), workers.background());
    if config.counter.port.enable {
        tasks.spawn_on(background::sweep_counters(Arc::clone(server)), workers.background());
    }
    if config.semaphore.port.enable {
        let interval = Duration::from_secs(config.semaphore.gc_interval_s.into());
        tasks.spawn_on(background::sweep_semaphores(Arc::clone(server), interval), workers.background());
    }
    Ok(())
}
