//! A node of a cluster: it joins, waits until it leads, keeps quiet when it does not lead any more, and leaves.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::super::node_view::NodeView;
use super::super::relay::{Outgoing, RelayAuthority};
use super::super::state::Server;
use super::super::whereabouts::Whereabouts;
use super::super::workers::Workers;
use super::super::{ending, socket};
use super::error::DaemonError;
use super::handover;
use super::service::RelayPort;
use crate::cluster::{client, node_name, timing};
use crate::config::{ClusterConfig, Config};
use signalbox_cluster::clock::BootTime;
use signalbox_cluster::coordinator::Persistent;
use signalbox_cluster::etcd::{EtcdClient, Expected, SettingsError};
use signalbox_cluster::fence::Fence;
use signalbox_cluster::handover::{Leader, Request};
use signalbox_cluster::keys::{self, Advertised, Incarnation, Keys, RelayEndpoint, RelaySecret, Successor};
use signalbox_cluster::leadership::{self, Ending, Machine, Phase, Term};
use signalbox_cluster::members::{AwaitedRelays, RelaysOfBefore};
use signalbox_cluster::observatory::Observatory;
use signalbox_cluster::participation::{self, Command, Event, Participation, Pulse};
use signalbox_cluster::relays::Relays;
use signalbox_cluster::store::ClusterStorage;
use signalbox_cluster::timing::Timing;
use signalbox_model::Namespace;
use signalbox_storage::FORMAT;

/// How often the guards look at the fences.
const GUARD_PERIOD: Duration = Duration::from_millis(20);

/// For how many periods relays may be open after their deadline. Together with the end of the process, that has to be shorter
/// than the time by which the lease duration exceeds the renew deadline.
const GUARD_TURNS_MAX: u32 = 3;

/// What the log says when relays do not close.
const RELAYS_NOT_CLOSED: &str = "this node could not close the connections that it relays: it ends at once";

/// The time between two looks at the other nodes, while a new leader waits for them.
const OBSERVATION_PAUSE: Duration = Duration::from_millis(10);

/// The connections to etcd that a node needs, and what it is. Its files are read already.
pub(super) struct Prepared {
    config: ClusterConfig,
    node: String,
    etcd: EtcdClient,
    /// For what concerns an operator; it is allowed more time.
    inspector: EtcdClient,
    authority: Option<RelayAuthority>,
    /// The hosts at which clients reach it.
    advertise: Vec<String>,
}

/// A node that has begun to join a cluster.
pub(super) struct Node {
    keys: Keys,
    timing: Timing,
    pulse: Pulse,
    /// Its part in the leadership.
    participation: Sender<Command>,
    events: UnboundedReceiver<Event>,
    /// Clones of it have connections of their own: a slow commit must not delay a renewal.
    etcd: EtcdClient,
    duty: Arc<Duty>,
    incarnation: Incarnation,
    /// For what concerns an operator.
    inspector: Persistent<EtcdClient>,
    authority: Option<RelayAuthority>,
    /// The port for relays while it leads, and what they have to know.
    relay_port: Option<(TcpListener, RelaySecret)>,
    /// Where clients reach it.
    advertised: Advertised,
    view: NodeView,
}

impl Prepared {
    /// Reads the files of the section, as the user who has started the process.
    pub(super) fn read(config: &Config) -> Result<Self, DaemonError> {
        let advertise = config.advertised();
        let config = config.cluster.clone();
        let wrong = |error: SettingsError| DaemonError::ClusterSettings { problem: error.to_string() };
        let node = node_name(&config).map_err(wrong)?;
        let etcd = client(&config, timing(&config).request_timeout()).map_err(wrong)?;
        let inspector = client(&config, Duration::from_secs(2)).map_err(wrong)?;
        let authority = config.relay_ca.as_deref().map(RelayAuthority::read).transpose();
        let wrong = |error| DaemonError::ClusterSettings { problem: format!("cluster.relay_ca = {error}") };
        Ok(Self { node, etcd, inspector, authority: authority.map_err(wrong)?, advertise, config })
    }

    /// Begins to join. `addresses` are those at which clients reach this node, and `relay_port` is for relays of other nodes.
    pub(super) fn join(
        self,
        addresses: &[(Namespace, SocketAddr)],
        relay_port: Option<TcpListener>,
    ) -> Result<Node, DaemonError> {
        let Self { config, node: name, etcd, inspector, authority, advertise } = self;
        let (keys, timing) = (Keys::new(&config.name), timing(&config));
        let relay_port = relay_port.map(|port| io::Result::Ok((port, RelaySecret::random()?))).transpose()?;
        let endpoint = |(port, secret): &(TcpListener, RelaySecret)| {
            io::Result::Ok(RelayEndpoint { address: port.local_addr()?, secret: secret.clone() })
        };
        let incarnation = Incarnation::random()?;
        let advertised = advertised_at(&advertise, addresses);
        let this = keys::Node {
            incarnation: incarnation.clone(),
            invocation: std::env::var("INVOCATION_ID").unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            record_format: FORMAT,
            addresses: addresses.iter().map(|(_, address)| address.to_string()).collect(),
            is_eligible: config.is_eligible,
            relays: config.relays(),
            relay_endpoint: relay_port.as_ref().map(endpoint).transpose()?,
            drains: true,
            advertised: advertised.clone(),
        };
        let machine = Machine::new(leadership::Settings {
            keys: keys.clone(),
            name: name.clone(),
            node: this,
            timing,
            oldest_record_format: FORMAT,
        });
        let observe = || Observatory::start(etcd.clone(), keys.clone(), timing.retry_period());
        let view = NodeView {
            renew_deadline: timing.renew_deadline(),
            fence: Fence::new(BootTime::now),
            relays: Relays::new(Fence::new(BootTime::now)),
            phase: Arc::new(Mutex::new(Phase::Joining)),
            observatory: config.is_eligible.then(observe).transpose()?,
            name,
        };
        let pulse = Pulse::default();
        let duty = Arc::new(Duty::default());
        let (sender, events) = unbounded_channel();
        let participation = Participation::new(
            machine,
            view.fence.clone(),
            pulse.clone(),
            timing.renew_deadline() / 2,
            view.relays.clone(),
            teller(sender, Arc::clone(&duty), &view),
        );
        let participation = participation::start(participation, etcd.clone(), BootTime::now)?;
        if config.relays() {
            guard_relays(view.relays.clone())?;
        }
        inspect(inspector.clone(), &keys, timing)?;
        info!(cluster = keys.prefix(), node = view.name, "joining the cluster");
        let inspector = Persistent::new(inspector, config.etcd.len());
        Ok(Node {
            keys,
            timing,
            pulse,
            participation,
            events,
            etcd,
            duty,
            incarnation,
            inspector,
            authority,
            relay_port,
            advertised,
            view,
        })
    }
}

impl Node {
    /// Waits until this node leads; `None`: an operator drains it before that.
    pub(super) async fn lead(&mut self) -> Result<Option<Term>, DaemonError> {
        loop {
            return match self.next().await {
                Some(Event::Phase(Phase::Leading(term))) => Ok(Some(term)),
                Some(Event::Phase(Phase::Over(ending))) => Err(not_joined(&ending)),
                Some(Event::Drain(..)) => {
                    info!(node = self.view.name, "an operator drains this node");
                    Ok(None)
                }
                Some(_) => continue,
                None => {
                    let problem = "the thread of the leadership has panicked; please report this".to_owned();
                    Err(DaemonError::Cluster { problem })
                }
            };
        }
    }

    /// The fence that keeps the node quiet when it does not lead.
    pub(super) fn fence(&self) -> &Fence {
        &self.view.fence
    }

    /// The records, once the node leads.
    pub(super) fn storage(&self, term: Term) -> ClusterStorage<EtcdClient> {
        ClusterStorage::new(self.etcd.clone(), self.keys.clone(), term, self.view.fence.clone())
    }

    /// Starts the thread that obeys requests to hand the leadership over. `ready` receives the first handover that is prepared.
    pub(super) fn obey_drains(
        &self,
        term: Term,
        ready: oneshot::Sender<handover::Prepared>,
    ) -> io::Result<Sender<Request>> {
        let leader = Leader {
            coordinator: self.inspector.clone(),
            keys: self.keys.clone(),
            name: self.view.name.clone(),
            term,
            incarnation: self.incarnation.clone(),
            timing: self.timing,
        };
        handover::start(leader, ready)
    }

    /// What it knows of the cluster, for metrics and the status page.
    pub(super) fn view(&self) -> NodeView {
        self.view.clone()
    }

    /// How the node relays clients while it does not lead.
    pub(super) fn outgoing(&self, config: &Config, workers: &Workers) -> Outgoing<Workers> {
        Outgoing::new(
            self.view.relays.clone(),
            workers.clone(),
            Duration::from_secs(config.cluster.hold_s.into()),
            Duration::from_secs(config.peer_timeout_s.into()),
            self.authority.clone(),
        )
    }

    /// Closes what the node relays, for good. Kills the process if that does not succeed. It does not leave the cluster then, so
    /// a new leader waits for it.
    pub(super) async fn close_relays(&self) {
        if let Err(stuck) = self.view.relays.close().await {
            ending::end_at_once(RELAYS_NOT_CLOSED, format!("{stuck}; please report this"));
        }
    }

    /// Has the port for relays accept connections.
    pub(super) fn listen_for_relays(&self) -> Result<(), DaemonError> {
        let Some((port, _)) = &self.relay_port else { return Ok(()) };
        let bound = socket::listen(port);
        bound.map_err(|source| DaemonError::Bind { key: "cluster.bind".to_owned(), source })
    }

    /// The port for relays, once the node leads.
    pub(super) fn relay_port(&mut self, term: Term) -> Option<RelayPort> {
        let (listener, secret) = self.relay_port.take()?;
        Some(RelayPort { listener, secret, epoch: term.epoch })
    }

    /// Waits until no other node relays clients to a leader before this one (invariant C5).
    pub(super) async fn await_relays(&mut self, term: Term) {
        let observatory = self.view.observatory.as_ref().expect("a node that leads may lead");
        observatory.hurry();
        let (this, lease_duration) = (self.incarnation.clone(), self.timing.lease_duration());
        let mut awaited = AwaitedRelays::new(term, this, lease_duration, BootTime::now());
        loop {
            let relays = awaited.look(&observatory.members(), BootTime::now());
            match relays {
                RelaysOfBefore::Open => tokio::time::sleep(OBSERVATION_PAUSE).await,
                RelaysOfBefore::Closed => break,
                RelaysOfBefore::Faulty(nodes) => {
                    error!(
                        nodes = nodes.join(" "),
                        "these nodes give heartbeats, but do not say that they have closed the connections that they relayed to \
                         the leader before: clients of theirs may believe that they still hold something; check that \
                         these nodes receive etcd's answers, and restart them"
                    );
                    break;
                }
            }
        }
        observatory.relax();
    }

    /// Where clients reach the cluster in this term. The other nodes follow when it serves.
    pub(super) fn whereabouts(&self, term: Term) -> Whereabouts {
        Whereabouts::new(term.epoch, self.timing.renew_deadline(), self.advertised.clone())
    }

    /// Where clients reach the other nodes.
    pub(super) fn others(&self) -> Advertised {
        let Some(observatory) = &self.view.observatory else { return Advertised::default() };
        let lease_duration = self.timing.lease_duration();
        observatory.members().advertised(&self.incarnation, lease_duration, BootTime::now())
    }

    /// Renewals depend on the threads that serve clients from now on. Does not end: a node that leads no more kills its
    /// process.
    pub(super) async fn serve(
        &mut self,
        workers: &Workers,
        server: &Server,
        drains: &Sender<Request>,
    ) -> Infallible {
        let mut turn = tokio::time::interval(self.timing.retry_period());
        loop {
            tokio::select! {
                Some(event) = self.events.recv() => match event {
                    // After a handover was prepared, its thread has ended, and the node is about to leave.
                    Event::Drain(request) => drop(drains.send(request)),
                    event => self.note(&event),
                },
                _ = turn.tick() => {
                    server.set_other_nodes(self.others());
                    if workers.finish_turns(Instant::now() + self.timing.retry_period()).await {
                        self.pulse.beat(BootTime::now());
                    }
                }
            }
        }
    }

    /// No client has a connection to this node any more, so nothing depends on its leadership, and the process is not killed if
    /// that ends.
    pub(super) fn has_no_clients(&self) {
        self.duty.end();
        // Nothing more is written to any client.
        self.view.fence.set(BootTime::default());
    }

    /// Leaves the cluster, so that `successor` can lead at once, or any node if that is `None`. No client may have a connection
    /// to this node any more.
    pub(super) async fn leave(&mut self, successor: Option<Successor>) {
        self.has_no_clients();
        // The thread may have ended already, and has told so.
        let _ = self.participation.send(Command::Release(successor));
        let limit = Instant::now() + self.timing.request_timeout() * 4;
        while let Ok(Some(event)) = tokio::time::timeout_at(limit, self.next()).await {
            if let Event::Phase(Phase::Over(_)) = event {
                return;
            }
        }
    }

    async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        event.iter().for_each(|event| self.note(event));
        event
    }

    /// Logs an event. The daemon ends with other endings as its error.
    fn note(&self, event: &Event) {
        let node = &self.view.name;
        match event {
            Event::Phase(Phase::Standby { leader: None }) => info!(node, "standby, nobody has led yet"),
            Event::Phase(Phase::Standby { leader: Some((leader, epoch)) }) => {
                info!(node, "standby of node \"{leader}\" in epoch {epoch}");
            }
            Event::Phase(Phase::Leading(Term { epoch, record_format, .. })) => {
                info!(node, epoch, record_format, "this node leads the cluster");
            }
            Event::Phase(Phase::Over(ending @ Ending::Released)) => info!(node, "{ending}"),
            Event::Phase(Phase::Over(ending @ Ending::NotReleased(_))) => warn!(node, "{ending}"),
            Event::Phase(_) | Event::Drain(..) => {}
            Event::Trouble(reason) => {
                warn!(reason, "etcd does not answer as it should; its members are tried in turn");
            }
            Event::Recovered => info!("etcd answers again"),
        }
    }
}

/// The addresses of each port at these hosts.
fn advertised_at(hosts: &[String], ports: &[(Namespace, SocketAddr)]) -> Advertised {
    let of = |wanted| {
        let ports =
            ports.iter().filter(|(namespace, _)| *namespace == wanted).map(|(_, address)| address.port());
        let ports: BTreeSet<_> = ports.collect();
        let address = |host: &String, port| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        hosts.iter().flat_map(|host| ports.iter().map(move |port| address(host, port))).collect()
    };
    Advertised { counters: of(Namespace::Counters), semaphores: of(Namespace::Semaphores) }
}

/// Why a node does not lead. What a restart cannot change is told apart, because a supervisor should not try it then.
fn not_joined(ending: &Ending) -> DaemonError {
    let problem = ending.to_string();
    match ending {
        Ending::RenewDeadlineDiffers { .. } | Ending::NameInUse { .. } => {
            DaemonError::ClusterSettings { problem }
        }
        Ending::LayoutDiffers { .. }
        | Ending::RecordFormatNewer { .. }
        | Ending::RecordFormatOlder { .. }
        | Ending::Value(_) => DaemonError::ClusterFormat { problem },
        _ => DaemonError::Cluster { problem },
    }
}

/// Whether the process is to be killed when it does not lead any more.
#[derive(Debug, Default)]
struct Duty(AtomicU8);

impl Duty {
    /// It does not lead yet.
    const NONE: u8 = 0;
    /// It leads, and clients rely on that.
    const TO_LEAD: u8 = 1;
    /// It leaves, and does not lead again.
    const ENDED: u8 = 2;

    /// The process leads. Returns whether clients are going to rely on that: not if it is leaving.
    fn begin(&self) -> bool {
        self.0.compare_exchange(Self::NONE, Self::TO_LEAD, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is_to_lead(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::TO_LEAD
    }

    fn end(&self) {
        self.0.store(Self::ENDED, Ordering::Release);
    }
}

/// Tells the daemon the events, and kills the process when it has to lead and does not.
fn teller(
    sender: UnboundedSender<Event>,
    duty: Arc<Duty>,
    view: &NodeView,
) -> impl FnMut(Event) + Send + 'static + use<> {
    let (fence, known_phase) = (view.fence.clone(), Arc::clone(&view.phase));
    move |event| {
        if let Event::Phase(phase) = &event {
            known_phase.lock().unwrap_or_else(PoisonError::into_inner).clone_from(phase);
            match phase {
                Phase::Leading(_) if duty.begin() => guard(fence.clone(), Arc::clone(&duty)),
                Phase::Over(ending) if duty.is_to_lead() => end_at_once(ending.to_string()),
                _ => {}
            }
        }
        // The daemon may be about to end.
        let _ = sender.send(event);
    }
}

/// Kills the process when the deadline of its leadership passes, whatever its other threads do.
fn guard(fence: Fence, duty: Arc<Duty>) {
    let watch = move || {
        while duty.is_to_lead() {
            // A node that leaves moves the fence to the past after its duty has ended.
            if fence.is_past() && duty.is_to_lead() {
                end_at_once("etcd has not confirmed the leadership within the renew deadline".to_owned());
            }
            thread::sleep(GUARD_PERIOD);
        }
    };
    let started = thread::Builder::new().name("fence".to_owned()).spawn(watch);
    if started.is_err() {
        end_at_once("the thread that guards the leadership could not be started".to_owned());
    }
}

/// Closes what the node relays when it does not reach etcd in time. Kills the process if its threads do not do so in time: the
/// kernel closes all connections at once.
fn guard_relays(relays: Relays) -> io::Result<()> {
    let watch = move || {
        let mut turns_overdue = 0;
        loop {
            turns_overdue = if relays.enforce() { turns_overdue + 1 } else { 0 };
            if turns_overdue > GUARD_TURNS_MAX {
                ending::end_at_once(
                    RELAYS_NOT_CLOSED,
                    "etcd has not confirmed its heartbeat within the renew deadline, and closing them takes too long"
                        .to_owned(),
                );
            }
            thread::sleep(GUARD_PERIOD);
        }
    };
    thread::Builder::new().name("relay-guard".to_owned()).spawn(watch)?;
    Ok(())
}

/// Kills the process of a node that led and does not lead any more.
fn end_at_once(reason: String) -> ! {
    ending::end_at_once(
        "this node does not lead the cluster any more: it ends at once, and joins again when it is restarted",
        reason,
    )
}

/// Logs what an operator should know about etcd, in a thread of its own.
fn inspect(mut inspector: EtcdClient, keys: &Keys, timing: Timing) -> io::Result<()> {
    let expected = Expected::of(keys, timing.renew_deadline());
    thread::Builder::new().name("etcd-check".to_owned()).spawn(move || {
        for warning in inspector.inspect(&expected).1 {
            warn!("etcd: {warning}");
        }
    })?;
    Ok(())
}
