//! A node of a cluster: it joins, waits until it leads, serves clients, and leaves. When it no longer leads, it kills its process.
//!
//! A thread, [`run_leadership`], drives the state machine `signalbox_cluster::leadership`, with a connection to etcd of its own, so
//! that a slow commit delays no renewal. The thread writes no log, because that may block; it sends events to the daemon instead.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::super::lock;
use super::super::node_view::{NodeView, Whereabouts};
use super::super::process::end_at_once;
use super::super::relay::{IsNode, Outgoing, RelayAuthority};
use super::super::state::Server;
use super::super::workers::Workers;
use super::bind::listen_on;
use super::error::DaemonError;
use super::service::RelayPort;
use crate::cluster::{client, node_name, timing};
use crate::config::{ClusterConfig, Config};
use signalbox_cluster::coordinator::{Coordinator, Persistent};
use signalbox_cluster::drain::{DrainedLeader, NextLeader};
use signalbox_cluster::error::Ending;
use signalbox_cluster::etcd::{EtcdClient, Expected, SettingsError};
use signalbox_cluster::keys::{self, Advertised, Incarnation, Keys, RelayEndpoint, RelaySecret, Successor};
use signalbox_cluster::leadership::{self, DrainRequest, Event, Input, Machine, Phase, Step, Term};
use signalbox_cluster::members::{FAST_PERIOD, MemberPoller, OldRelays, RelayWait};
use signalbox_cluster::relays::Relays;
use signalbox_cluster::store::ClusterStorage;
use signalbox_cluster::timing::{BootTime, Fence, Timing};
use signalbox_model::Namespace;
use signalbox_storage::FORMAT;

/// The time between two checks of the fences by the guards.
const GUARD_PERIOD: Duration = Duration::from_millis(20);

/// The number of periods for which relays may be open after their deadline. These periods and the end of the process
/// together must be shorter than the time by which the lease duration exceeds the renew deadline.
const OVERDUE_PERIODS_MAX: u32 = 3;

/// The log line when relays do not close.
const RELAYS_NOT_CLOSED: &str = "this node could not close the connections that it relays: it ends at once";

/// A node before it joins. Its files were read already.
pub(super) struct Prepared {
    config: ClusterConfig,
    node: String,
    etcd: EtcdClient,
    /// For warnings and handovers, with a longer timeout.
    inspector: EtcdClient,
    authority: Option<RelayAuthority>,
    /// The hosts at which clients reach the node.
    advertise: Vec<String>,
}

/// A node that has begun to join a cluster.
pub(super) struct Node {
    keys: Keys,
    timing: Timing,
    /// Inputs to the thread of the leadership, and events from it.
    inputs: Sender<Input>,
    events: UnboundedReceiver<Event>,
    /// Clones of it have connections of their own: a slow commit must not delay a renewal.
    etcd: EtcdClient,
    /// Whether the node leaves the cluster: then the process is not killed when the leadership ends.
    is_leaving: Arc<AtomicBool>,
    incarnation: Incarnation,
    /// For handovers.
    inspector: Persistent<EtcdClient>,
    authority: Option<RelayAuthority>,
    /// The port for relays while the node leads, and its secret.
    relay_port: Option<(TcpListener, RelaySecret)>,
    /// Where clients reach the node.
    advertised: Advertised,
    /// The cluster as the node knows it, and the fence after whose deadline it writes nothing to clients.
    pub(super) view: NodeView,
}

/// A handover whose successor is chosen.
pub(super) struct Handover {
    leader: DrainedLeader<EtcdClient>,
    pub(super) next: NextLeader,
}

impl Prepared {
    /// Reads the files of the section, as the user who has started the process.
    pub(super) fn read(config: &Config) -> Result<Self, DaemonError> {
        let advertise = config.advertised();
        let config = config.cluster.clone();
        let wrong = |error: SettingsError| DaemonError::ClusterSettings(error.to_string());
        let node = node_name(&config).map_err(wrong)?;
        let etcd = client(&config, timing(&config).request_timeout()).map_err(wrong)?;
        let inspector = client(&config, Duration::from_secs(2)).map_err(wrong)?;
        let authority = config.relay_ca.as_deref().map(RelayAuthority::read).transpose();
        let wrong = |error| DaemonError::ClusterSettings(format!("cluster.relay_ca = {error}"));
        Ok(Self { node, etcd, inspector, authority: authority.map_err(wrong)?, advertise, config })
    }

    /// Begins to join. `addresses` are those of the service ports, and other nodes relay clients to `relay_port`.
    pub(super) fn join(
        self,
        addresses: &[(Namespace, SocketAddr)],
        relay_port: Option<TcpListener>,
    ) -> Result<Node, DaemonError> {
        let Self { config, node: name, etcd, inspector, authority, advertise } = self;
        let (keys, timing) = (Keys::new(&config.name), timing(&config));
        let relay_port =
            relay_port.map(|port| io::Result::Ok((port, RelaySecret(keys::random_digits()?)))).transpose()?;
        let endpoint = |(port, secret): &(TcpListener, RelaySecret)| {
            io::Result::Ok(RelayEndpoint { address: port.local_addr()?, secret: secret.clone() })
        };
        let incarnation = Incarnation(keys::random_digits()?);
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
        let poll = || MemberPoller::start(etcd.clone(), keys.clone(), timing.retry_period());
        let view = NodeView {
            renew_deadline: timing.renew_deadline(),
            fence: Fence::new(BootTime::now),
            relays: Relays::new(Fence::new(BootTime::now)),
            phase: Arc::new(Mutex::new(Phase::Joining)),
            members: config.is_eligible.then(poll).transpose()?,
            name,
        };
        let is_leaving = Arc::new(AtomicBool::new(false));
        let (inputs, received) = mpsc::channel();
        let (sender, events) = unbounded_channel();
        let wake = inputs.clone();
        // The thread may have ended already.
        view.relays.on_poll_needed(move || drop(wake.send(Input::PollNow)));
        let report = reporter(sender, Arc::clone(&is_leaving), &view);
        let (client, fence, relays) = (etcd.clone(), view.fence.clone(), view.relays.clone());
        thread::Builder::new()
            .name("leadership".to_owned())
            .spawn(move || run_leadership(machine, client, &fence, &relays, &received, report))?;
        if config.relays() {
            guard_relays(view.relays.clone())?;
        }
        warn_about_etcd(inspector.clone(), &keys, timing)?;
        info!(cluster = keys.prefix(), node = view.name, "joining the cluster");
        let inspector = Persistent::new(inspector, config.etcd.len());
        Ok(Node {
            keys,
            timing,
            inputs,
            events,
            etcd,
            is_leaving,
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
    /// Waits until this node leads; `None`: an operator drains it first.
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
                    Err(DaemonError::Cluster(problem))
                }
            };
        }
    }

    /// Returns the storage of the cluster's records in a term of this node.
    pub(super) fn storage(&self, term: Term) -> ClusterStorage<EtcdClient> {
        ClusterStorage::new(self.etcd.clone(), self.keys.clone(), term, self.view.fence.clone())
    }

    /// Starts the thread that prepares a handover when an operator drains the node. It handles requests until it has chosen a
    /// successor, and sends the handover to `ready`.
    pub(super) fn prepare_handovers(
        &self,
        term: Term,
        ready: oneshot::Sender<Handover>,
    ) -> io::Result<Sender<DrainRequest>> {
        let mut leader = DrainedLeader {
            coordinator: self.inspector.clone(),
            keys: self.keys.clone(),
            name: self.view.name.clone(),
            term,
            incarnation: self.incarnation.clone(),
            timing: self.timing,
        };
        let (requests, received) = mpsc::channel::<DrainRequest>();
        let prepare = move || {
            for request in received {
                info!(to = request.drain.to, "an operator drains this node");
                match leader.choose_successor(&request) {
                    Ok(next) => {
                        // The daemon may be about to stop for another reason.
                        let _ = ready.send(Handover { leader, next });
                        return;
                    }
                    Err(refusal) => {
                        warn!(%refusal, "this node continues to lead");
                        if let Err(error) = leader.refuse(&request, &refusal) {
                            warn!(%error, "the refusal of the handover could not be written to etcd");
                        }
                    }
                }
            }
        };
        thread::Builder::new().name("handover".to_owned()).spawn(prepare)?;
        Ok(requests)
    }

    /// Returns the part of the node that relays clients while the node does not lead.
    pub(super) fn outgoing(&self, config: &Config, workers: &Workers) -> Outgoing<Workers> {
        Outgoing::new(
            self.view.relays.clone(),
            workers.clone(),
            Duration::from_secs(config.cluster.hold_s.into()),
            Duration::from_secs(config.peer_timeout_s.into()),
            self.authority.clone(),
        )
    }

    /// Closes all relayed connections, and permits no further ones. If that fails, this kills the process before it has
    /// left the cluster, so that a new leader waits for it.
    pub(super) async fn close_relays(&self) {
        if let Err(stuck) = self.view.relays.close().await {
            end_at_once(RELAYS_NOT_CLOSED, format!("{stuck}; please report this"));
        }
    }

    /// Lets the port for relays accept connections.
    pub(super) fn listen_for_relays(&self) -> Result<(), DaemonError> {
        let Some((port, _)) = &self.relay_port else { return Ok(()) };
        let bound = listen_on(port);
        bound.map_err(|source| DaemonError::Bind { key: "cluster.bind".to_owned(), source })
    }

    /// Takes the port for relays, to be used in a term of this node.
    pub(super) fn relay_port(&mut self, term: Term) -> Option<RelayPort> {
        let (listener, secret) = self.relay_port.take()?;
        let poller = self.view.members.clone();
        let is_node: IsNode =
            Box::new(move |ip| poller.as_ref().is_some_and(|poller| poller.members().has_relay_at(ip)));
        Some(RelayPort { listener, secret, epoch: term.epoch, is_node })
    }

    /// Waits until no other node relays clients to an earlier leader (invariant C5). Nodes that send heartbeats but do not
    /// report this in time are logged, and not waited for.
    pub(super) async fn await_relays(&mut self, term: Term) {
        let poller = self.view.members.as_ref().expect("a node that leads is eligible");
        poller.set_fast(true);
        let (this, lease_duration) = (self.incarnation.clone(), self.timing.lease_duration());
        let mut wait = RelayWait::new(term, this, lease_duration, BootTime::now());
        loop {
            let relays = wait.check(&poller.members(), BootTime::now());
            match relays {
                OldRelays::Open => tokio::time::sleep(FAST_PERIOD).await,
                OldRelays::Closed => break,
                OldRelays::Faulty(nodes) => {
                    error!(
                        nodes = nodes.join(" "),
                        "these nodes send heartbeats, but do not report that they have closed the connections that they relayed \
                         to the earlier leader; their clients may believe that they still hold resources; check that these \
                         nodes receive etcd's answers, and restart them"
                    );
                    break;
                }
            }
        }
        poller.set_fast(false);
    }

    /// Returns where clients reach the cluster in this term. The addresses of the other nodes are added while the node
    /// serves.
    pub(super) fn whereabouts(&self, term: Term) -> Whereabouts {
        Whereabouts::new(term.epoch, self.timing.renew_deadline(), self.advertised.clone())
    }

    /// Returns where clients reach the other nodes.
    pub(super) fn others(&self) -> Advertised {
        let Some(poller) = &self.view.members else { return Advertised::default() };
        let lease_duration = self.timing.lease_duration();
        poller.members().advertised(&self.incarnation, lease_duration, BootTime::now())
    }

    /// Makes renewals depend on the threads that serve clients, and forwards requests to drain to `drains`. Does not
    /// return: a node that no longer leads kills its process.
    pub(super) async fn serve(
        &mut self,
        workers: &Workers,
        server: &Server,
        drains: &Sender<DrainRequest>,
    ) -> Infallible {
        let mut period = tokio::time::interval(self.timing.retry_period());
        loop {
            tokio::select! {
                Some(event) = self.events.recv() => match event {
                    // Fails if a handover was prepared: its thread has ended, and the node is about to leave.
                    Event::Drain(request) => drop(drains.send(request)),
                    event => self.log(&event),
                },
                _ = period.tick() => {
                    server.set_other_nodes(self.others());
                    if workers.finish_turns(Instant::now() + self.timing.retry_period()).await {
                        // If the thread of the leadership has ended, it has reported that.
                        let _ = self.inputs.send(Input::ThreadsRan(BootTime::now()));
                    }
                }
            }
        }
    }

    /// Stops the guard of the leadership, so that the process is not killed when the leadership ends. No client may
    /// have a connection to this node.
    pub(super) fn stop_guard(&self) {
        self.is_leaving.store(true, Ordering::Release);
        // Nothing more is written to any client.
        self.view.fence.set(BootTime::default());
    }

    /// Leaves the cluster, so that `successor` can lead at once; `None`: any node can. Waits until the leadership is over,
    /// for four request timeouts at most. No client may have a connection to this node.
    pub(super) async fn leave(&mut self, successor: Option<Successor>) {
        self.stop_guard();
        // If the thread of the leadership has ended, it has reported that.
        let _ = self.inputs.send(Input::Release(successor));
        let limit = Instant::now() + self.timing.request_timeout() * 4;
        while let Ok(Some(event)) = tokio::time::timeout_at(limit, self.next()).await {
            if let Event::Phase(Phase::Over(_)) = event {
                return;
            }
        }
    }

    async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        event.iter().for_each(|event| self.log(event));
        event
    }

    /// Logs an event. Endings that are not logged here become the error with which the daemon ends.
    fn log(&self, event: &Event) {
        let node = &self.view.name;
        match event {
            Event::Phase(Phase::Standby { leader: None }) => info!(node, "standby, no node has led yet"),
            Event::Phase(Phase::Standby { leader: Some((leader, epoch)) }) => {
                info!(node, "standby of node \"{leader}\" in epoch {epoch}");
            }
            Event::Phase(Phase::Leading(Term { epoch, record_format, .. })) => {
                info!(node, epoch, record_format, "this node leads the cluster");
            }
            Event::Phase(Phase::Over(ending @ Ending::Released)) => info!(node, "{ending}"),
            Event::Phase(Phase::Over(ending @ Ending::NotReleased(_))) => warn!(node, "{ending}"),
            Event::Phase(_) | Event::Drain(..) => {}
            Event::EtcdFailing(reason) => {
                warn!(reason, "etcd does not answer as it should; its members are tried in turn");
            }
            Event::EtcdRecovered => info!("etcd answers again"),
        }
    }
}

impl Handover {
    /// Confirms the successor. Must be called when everything is stored. Returns the successor for which the leadership
    /// is released; `None`: any node may lead next. Blocks.
    pub(super) fn complete(self) -> Option<Successor> {
        let Self { mut leader, next: NextLeader { successor, .. } } = self;
        let name = successor.node.clone();
        let successor = leader.confirm_successor(successor);
        if successor.is_none() {
            warn!(successor = name, "the successor has left the cluster; any node may lead next");
        }
        successor
    }
}

/// Returns the addresses of each port at these hosts.
fn advertised_at(hosts: &[String], ports: &[(Namespace, SocketAddr)]) -> Advertised {
    let of = |namespace| {
        let ports = ports.iter().filter(|(of, _)| *of == namespace).map(|(_, address)| address.port());
        let ports: BTreeSet<_> = ports.collect();
        let address = |host: &String, port| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        hosts.iter().flat_map(|host| ports.iter().map(move |port| address(host, port))).collect()
    };
    Advertised { counters: of(Namespace::Counters), semaphores: of(Namespace::Semaphores) }
}

/// Returns the error of a node that has ended before it led. Errors that a restart cannot fix have exit statuses of
/// their own, so that a supervisor does not restart the node.
fn not_joined(ending: &Ending) -> DaemonError {
    let problem = ending.to_string();
    match ending {
        Ending::RenewDeadlineDiffers { .. } | Ending::NameInUse { .. } => {
            DaemonError::ClusterSettings(problem)
        }
        Ending::LayoutDiffers { .. }
        | Ending::RecordFormatNewer { .. }
        | Ending::RecordFormatOlder { .. }
        | Ending::Value(_) => DaemonError::ClusterFormat(problem),
        _ => DaemonError::Cluster(problem),
    }
}

/// Drives the state machine of the leadership until it ends.
fn run_leadership(
    mut machine: Machine,
    mut etcd: EtcdClient,
    fence: &Fence,
    relays: &Relays,
    inputs: &Receiver<Input>,
    mut report: impl FnMut(Event),
) {
    loop {
        inputs.try_iter().for_each(|input| machine.handle(input, BootTime::now()));
        machine.set_relay_report(relays.report());
        let now = BootTime::now();
        let step = machine.next(now);
        relays.apply(machine.relay_target());
        fence.set(machine.deadline().unwrap_or_default());
        while let Some(event) = machine.poll_event() {
            report(event);
        }
        match step {
            Step::Send(transaction) => {
                machine.sent(BootTime::now());
                let answer = etcd.transact(&transaction);
                machine.answered(answer, BootTime::now());
            }
            Step::WaitUntil(until) => {
                // The only error is the timeout: `relays` has a sender.
                if let Ok(input) = inputs.recv_timeout(until.since(now)) {
                    machine.handle(input, BootTime::now());
                }
            }
            Step::End => return,
        }
    }
}

/// Returns a function that reports events to the daemon, and kills the process when the node led and no longer does,
/// unless the node is leaving the cluster.
fn reporter(
    sender: UnboundedSender<Event>,
    is_leaving: Arc<AtomicBool>,
    view: &NodeView,
) -> impl FnMut(Event) + Send + 'static + use<> {
    let (fence, known_phase) = (view.fence.clone(), Arc::clone(&view.phase));
    let mut has_led = false;
    move |event| {
        if let Event::Phase(phase) = &event {
            lock(&known_phase).clone_from(phase);
            match phase {
                Phase::Leading(_) if !has_led => {
                    has_led = true;
                    guard(fence.clone(), Arc::clone(&is_leaving));
                }
                Phase::Over(ending) if has_led && !is_leaving.load(Ordering::Acquire) => {
                    kill_process(ending.to_string());
                }
                _ => {}
            }
        }
        // The daemon may be about to end.
        let _ = sender.send(event);
    }
}

/// Starts a thread that kills the process when the deadline of its leadership passes, whatever the other threads do.
fn guard(fence: Fence, is_leaving: Arc<AtomicBool>) {
    let watch = move || {
        while !is_leaving.load(Ordering::Acquire) {
            // Checked again, because a node that leaves sets `is_leaving` and then lets the fence pass.
            if fence.is_past() && !is_leaving.load(Ordering::Acquire) {
                kill_process("etcd has not confirmed the leadership within the renew deadline".to_owned());
            }
            thread::sleep(GUARD_PERIOD);
        }
    };
    if thread::Builder::new().name("fence".to_owned()).spawn(watch).is_err() {
        kill_process("the thread that guards the leadership could not be started".to_owned());
    }
}

/// Starts a thread that closes all relayed connections when the node does not reach etcd in time. If they are still open
/// after [`OVERDUE_PERIODS_MAX`] periods, the thread kills the process: the kernel then closes all connections at once.
fn guard_relays(relays: Relays) -> io::Result<()> {
    let watch = move || {
        let mut periods = 0;
        loop {
            periods = if relays.close_overdue() { periods + 1 } else { 0 };
            if periods > OVERDUE_PERIODS_MAX {
                end_at_once(
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

/// Kills the process of a node that no longer leads.
fn kill_process(reason: String) -> ! {
    end_at_once(
        "this node no longer leads the cluster: it ends at once, and joins again when it is restarted",
        reason,
    )
}

/// Inspects etcd, and logs warnings about it, in a thread of its own.
fn warn_about_etcd(mut inspector: EtcdClient, keys: &Keys, timing: Timing) -> io::Result<()> {
    let expected = Expected::of(keys, timing.renew_deadline());
    thread::Builder::new().name("etcd-check".to_owned()).spawn(move || {
        for warning in inspector.inspect(&expected).1 {
            warn!("etcd: {warning}");
        }
    })?;
    Ok(())
}
