//! The life of a node's process: it joins, relays, takes over, restores, serves, and ends. It follows
//! `src/server/daemon/node.rs`, `crates/cluster/src/members.rs` and `src/server/store.rs`, and runs the same parts without their
//! threads.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use signalbox::config::Config;
use signalbox::server::{
    Clock, Incoming, Outgoing, SameThread, Served, Server, Trust, expire, relay_port, serve_port,
    serve_relays, sweep_counters, sweep_semaphores,
};
use signalbox_cluster::coordinator::Persistent;
use signalbox_cluster::drain::{DrainedLeader, NextLeader};
use signalbox_cluster::keys::{Incarnation, Node, RelayEndpoint, RelaySecret, Successor};
use signalbox_cluster::leadership::{Event, Input, Machine, Phase, Settings, Step, Term};
use signalbox_cluster::members::{FAST_PERIOD, Members, OldRelays, Reading, RelayWait};
use signalbox_cluster::relays::Relays;
use signalbox_cluster::store::ClusterStorage;
use signalbox_cluster::timing::Fence;
use signalbox_core::{Moment, MonotonicMs, NameHasher};
use signalbox_storage::{FORMAT, Storage};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use turmoil::net::TcpListener;

use super::blocking::{self, Remote};
use super::process::Process;
use super::socket::{NodeListener, NodeNetwork};
use super::world::{World, node_name};
use crate::network::port_of;
use crate::random::Random;
use crate::support::etcd::Handle;
use signalbox_model::{Namespace, UnixSeconds};

/// How long a leader's calls for a handover wait for an answer, and how many members of etcd they ask, as in the daemon.
const INSPECTION_MAX: Duration = Duration::from_secs(2);
const MEMBERS: usize = 3;

/// How often the guards check the fences, the pause before a commit is repeated, and the one after a commit that failed.
const GUARD_PERIOD: Duration = Duration::from_millis(20);
const COMMIT_PAUSE: Duration = Duration::from_millis(20);
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// How long an orderly stop waits for the store.
const STOP_MAX: Duration = Duration::from_secs(4);

/// The values of the daemon.
const RELAYS_PORT: u16 = 11218;
const OVERDUE_PERIODS_MAX: u32 = 3;
const HOLD: Duration = Duration::from_secs(5);
const PEER_TIMEOUT: Duration = Duration::from_secs(35);

const SWEEP: Duration = Duration::from_millis(200);

/// A machine of the cluster: it starts a process, which runs until it ends or is killed. The driver restarts the machine
/// then.
pub async fn run(world: Arc<World>, node: usize) -> turmoil::Result {
    let (process, random) = world.start_process(node);
    let restart_ms = world.restart_ms;
    sleep(Duration::from_millis(restart_ms)).await;
    process.event(format_args!("starts"));
    world.has_started(&process);
    tokio::task::spawn_local(live(Arc::clone(&process), random));
    process.killed().await;
    process.end("killed");
    // The driver drops all tasks of the process after this step.
    std::future::pending().await
}

/// How a process relays clients, and what it knows of the other nodes.
struct Standby {
    relays: Relays,
    outgoing: Arc<Outgoing<NodeNetwork>>,
    secret: RelaySecret,
    incarnation: Incarnation,
    members: Arc<Mutex<Members>>,
    is_fast: Arc<AtomicBool>,
}

/// The parts of a process that serves clients.
struct Service {
    server: Arc<Server>,
    started: Instant,
    tasks: JoinSet<()>,
    /// The task that reports that the threads run.
    reports: AbortHandle,
    term: Term,
}

async fn live(process: Arc<Process>, mut random: Random) {
    let timing = process.world.timing;
    let incarnation = process.incarnation();
    let secret = RelaySecret(format!("{:032x}", process.run));
    let address = SocketAddr::new(turmoil::lookup(node_name(process.node)), RELAYS_PORT);
    let machine = Machine::new(Settings {
        keys: process.world.keys.clone(),
        name: node_name(process.node),
        node: Node {
            incarnation: incarnation.clone(),
            version: "simulated".to_owned(),
            is_eligible: true,
            relays: true,
            relay_endpoint: Some(RelayEndpoint { address, secret: secret.clone() }),
            drains: true,
            record_format: FORMAT,
            ..Node::default()
        },
        timing,
        oldest_record_format: FORMAT,
    });
    let relays = {
        let clock = process.clock.clone();
        Relays::new(Fence::new(move || clock.now()))
    };
    let (sender, mut events) = unbounded_channel();
    let report = reporter(Arc::clone(&process), sender);
    let (inputs, received) = unbounded_channel();
    let wake = inputs.clone();
    // The task may have ended.
    relays.on_poll_needed(move || drop(wake.send(Input::PollNow)));
    tokio::task::spawn_local(run_leadership(Arc::clone(&process), machine, relays.clone(), received, report));
    tokio::task::spawn_local(guard_relays(Arc::clone(&process), relays.clone()));
    let network = NodeNetwork::of(&process);
    let standby = Standby {
        outgoing: Arc::new(Outgoing::new(relays.clone(), network, HOLD, PEER_TIMEOUT, None)),
        relays,
        secret,
        incarnation,
        members: Arc::default(),
        is_fast: Arc::default(),
    };
    let (members, is_fast) = (Arc::clone(&standby.members), Arc::clone(&standby.is_fast));
    tokio::task::spawn_local(poll_members(Arc::clone(&process), members, is_fast));
    let mut accepting = JoinSet::new();
    for namespace in Namespace::ALL {
        let listener = listen(&process, port_of(namespace), false).await;
        accepting.spawn(relay_port(Arc::clone(&standby.outgoing), namespace, listener));
    }
    let serving = async {
        let term = lead(&process, &mut events).await?;
        accepting.shutdown().await;
        close_relays(&process, &standby).await;
        serve(&process, term, &inputs, &standby, &mut random).await
    };
    let service = tokio::select! {
        biased;
        () = process.stopped() => None,
        service = serving => service,
    };
    let mut prepared = None;
    match service {
        Some(mut service) => {
            prepared = tokio::select! {
                biased;
                () = process.stopped() => None,
                prepared = prepare_handover(&process, service.term, &mut events) => Some(prepared),
            };
            drain(&process, &mut service).await;
        }
        None => close_relays(&process, &standby).await,
    }
    process.awake().await;
    process.close_all();
    let successor = match prepared {
        Some(prepared) => hand_over(&process, prepared).await,
        None => None,
    };
    process.stop_leading();
    process.fence.set(Default::default());
    // The task may have ended.
    let _ = inputs.send(Input::Release(successor));
}

/// Waits until the node leads; `None` if an operator drains it first.
async fn lead(process: &Process, events: &mut UnboundedReceiver<Event>) -> Option<Term> {
    loop {
        // The sender is dropped when the process ends.
        let Some(event) = events.recv().await else { return std::future::pending().await };
        process.awake().await;
        match event {
            Event::Phase(Phase::Leading(term)) => return Some(term),
            Event::Drain(..) => {
                process.event(format_args!("leaves, because an operator drains it"));
                return None;
            }
            _ => {}
        }
    }
}

/// Handles requests of an operator, as the daemon's thread does, until a successor is chosen.
async fn prepare_handover(
    process: &Process,
    term: Term,
    events: &mut UnboundedReceiver<Event>,
) -> (DrainedLeader<Remote>, NextLeader) {
    loop {
        let request = match events.recv().await {
            Some(Event::Drain(request)) => request,
            Some(_) => continue,
            // The process ends.
            None => std::future::pending().await,
        };
        process.awake().await;
        process.event(format_args!("prepares a handover to {:?}", request.drain.to));
        let (keys, timing) = (process.world.keys.clone(), process.world.timing);
        let (name, incarnation) = (node_name(process.node), process.incarnation());
        let choose = move |remote| {
            let coordinator = Persistent::new(remote, MEMBERS);
            let mut leader = DrainedLeader { coordinator, keys, name, term, incarnation, timing };
            match leader.choose_successor(&request) {
                Ok(next) => Ok((leader, next)),
                Err(refusal) => Err((leader.refuse(&request, &refusal), refusal)),
            }
        };
        match blocking::run(process, INSPECTION_MAX, choose).await {
            Ok(prepared) => return prepared,
            Err((written, refusal)) => {
                process.event(format_args!("continues to lead: {refusal}; written to etcd: {written:?}"));
            }
        }
    }
}

/// Confirms the run for which the leadership is released, once everything is stored.
async fn hand_over(
    process: &Process,
    (mut leader, next): (DrainedLeader<Remote>, NextLeader),
) -> Option<Successor> {
    let complete = move |remote| {
        leader.coordinator = Persistent::new(remote, MEMBERS);
        leader.confirm_successor(next.successor)
    };
    let successor = blocking::run(process, INSPECTION_MAX, complete).await;
    process.event(format_args!("hands over to {:?}", successor.as_ref().map(|successor| &successor.node)));
    process.world.drains.handed_over();
    successor
}

async fn listen(process: &Arc<Process>, port: u16, is_for_relays: bool) -> NodeListener {
    let bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await;
    let inner = bound.expect("nothing else on the machine uses the port");
    NodeListener { inner, process: Arc::clone(process), is_for_relays }
}

/// Drives the state machine of the leadership, as the daemon's thread does.
async fn run_leadership(
    process: Arc<Process>,
    mut machine: Machine,
    relays: Relays,
    mut inputs: UnboundedReceiver<Input>,
    mut report: impl FnMut(Event),
) {
    loop {
        process.awake().await;
        while let Ok(input) = inputs.try_recv() {
            machine.handle(input, process.clock.now());
        }
        machine.set_relay_report(relays.report());
        let now = process.clock.now();
        let step = machine.next(now);
        relays.apply(machine.relay_target());
        process.fence.set(machine.deadline().unwrap_or_default());
        while let Some(event) = machine.poll_event() {
            report(event);
        }
        match step {
            Step::Send(transaction) => {
                machine.sent(process.clock.now());
                let answer = process.transact(&transaction).await;
                machine.answered(answer, process.clock.now());
            }
            Step::WaitUntil(until) => tokio::select! {
                biased;
                Some(input) = inputs.recv() => {
                    process.awake().await;
                    machine.handle(input, process.clock.now());
                }
                () = process.clock.sleep(until.since(now)) => {}
            },
            Step::End => return,
        }
    }
}

/// Closes all relayed connections for good. If that fails, the process ends, and this never returns.
async fn close_relays(process: &Process, standby: &Standby) {
    if let Err(stuck) = standby.relays.close().await {
        process.awake().await;
        process.end(stuck);
        // The driver drops all tasks of the process after this step.
        std::future::pending().await
    }
}

/// Closes all relayed connections when the deadline passes. Ends the process if its tasks do not close them.
async fn guard_relays(process: Arc<Process>, relays: Relays) {
    let mut periods = 0;
    loop {
        periods = if relays.close_overdue() { periods + 1 } else { 0 };
        if periods > OVERDUE_PERIODS_MAX {
            return process.end("it could not close the connections that it relays");
        }
        process.clock.sleep(GUARD_PERIOD).await;
        process.awake().await;
    }
}

/// Does what the thread of `MemberPoller` does.
async fn poll_members(process: Arc<Process>, members: Arc<Mutex<Members>>, is_fast: Arc<AtomicBool>) {
    loop {
        process.awake().await;
        let limit = process.world.timing.request_timeout();
        if let Ok(reading) = process.read(limit, |etcd| Reading::read(etcd, &process.world.keys)).await {
            let reading = reading.expect("it answers at once and always");
            members.lock().expect("nothing panics with it").update(reading, process.clock.now());
        }
        let is_fast = is_fast.load(Ordering::Relaxed);
        let pause = if is_fast { FAST_PERIOD } else { process.world.timing.retry_period() };
        process.clock.sleep(pause).await;
    }
}

/// Waits until no other node relays clients to a leader before this one.
async fn await_relays(process: &Process, term: Term, standby: &Standby) {
    standby.is_fast.store(true, Ordering::Relaxed);
    let (incarnation, lease_duration) = (standby.incarnation.clone(), process.world.timing.lease_duration());
    let mut wait = RelayWait::new(term, incarnation, lease_duration, process.clock.now());
    let mut is_waiting = false;
    loop {
        process.awake().await;
        let members = standby.members.lock().expect("nothing panics with it").clone();
        match wait.check(&members, process.clock.now()) {
            OldRelays::Closed => return,
            OldRelays::Open if !is_waiting => {
                is_waiting = true;
                process.event(format_args!("waits for relays"));
            }
            OldRelays::Open => {}
            OldRelays::Faulty(nodes) => {
                return process.event(format_args!("waits no longer for the relays of {nodes:?}"));
            }
        }
        sleep(FAST_PERIOD).await;
    }
}

/// Handles events as the daemon does: guards the leadership, and ends the process when the leadership ends.
fn reporter(process: Arc<Process>, sender: UnboundedSender<Event>) -> impl FnMut(Event) {
    move |event| {
        match &event {
            Event::Phase(Phase::Leading(term)) => {
                process.lead(term.epoch);
                tokio::task::spawn_local(guard(Arc::clone(&process)));
            }
            Event::Phase(Phase::Over(ending)) => process.end(ending),
            Event::Phase(phase) => process.event(format_args!("is {phase:?}")),
            Event::EtcdFailing(reason) => process.event(format_args!("etcd fails: {reason}")),
            Event::EtcdRecovered => process.event(format_args!("etcd answers again")),
            Event::Drain(_) => {}
        }
        // A process that stops does not receive it.
        let _ = sender.send(event);
    }
}

/// Ends the process when the deadline passes.
async fn guard(process: Arc<Process>) {
    while process.leading().is_some() {
        if process.fence.is_past() {
            return process.end("the renew deadline has passed");
        }
        process.clock.sleep(GUARD_PERIOD).await;
        process.awake().await;
    }
}

/// Restores the records, and serves clients. `None` if the process has ended.
async fn serve(
    process: &Arc<Process>,
    term: Term,
    inputs: &UnboundedSender<Input>,
    standby: &Standby,
    random: &mut Random,
) -> Option<Service> {
    let world = &process.world;
    await_relays(process, term, standby).await;
    sleep(Duration::from_millis(random.between(0, world.load_ms_max))).await;
    while process.is_frozen() || !world.etcd.is_reachable(process.node) {
        sleep(GUARD_PERIOD).await;
    }
    let config = world.config();
    let hasher = NameHasher::with_seeds(random.next(), 2, 3, 4);
    let fence = Some(process.fence.clone());
    let started = Instant::now();
    let server = Server::with_fence(&config, wall_clock(world, random), hasher, fence);
    let mut storage =
        ClusterStorage::new(world.etcd.at_once(), world.keys.clone(), term, process.fence.clone());
    let changed = Arc::new(Changed::default());
    if let Err(error) = server.restore(&mut storage, Waker::from(Arc::clone(&changed))) {
        process.end(format_args!("cannot restore: {error}"));
        return None;
    }
    if process.is_over() {
        return None;
    }
    process.serve(&server);
    world.has_restored(process, &server);
    world.answers(term.epoch);
    let mut tasks = JoinSet::new();
    for namespace in Namespace::ALL {
        let listener = listen(process, port_of(namespace), false).await;
        tasks.spawn(serve_port(Arc::clone(&server), namespace, listener, SameThread));
    }
    let listener = listen(process, RELAYS_PORT, true).await;
    let server_of_relays = Arc::clone(&server);
    let served = Served { namespaces: Namespace::ALL.to_vec(), http: None };
    let (network, secret) = (NodeNetwork::of(process), &standby.secret);
    let no_node = Box::new(|_| false);
    let incoming =
        Incoming::new(server_of_relays, network, secret, term.epoch, served, Trust::Network, no_node);
    tasks.spawn(serve_relays(incoming, listener));
    tasks.spawn(expire(Arc::clone(&server)));
    tasks.spawn(sweep_counters(Arc::clone(&server)));
    tasks.spawn(sweep_semaphores(Arc::clone(&server), SWEEP));
    standby.outgoing.on_leading(&server);
    tokio::task::spawn_local(commit(Arc::clone(process), Arc::clone(&server), storage, changed));
    let reports =
        tokio::task::spawn_local(report_threads(Arc::clone(process), inputs.clone())).abort_handle();
    Some(Service { server, started, tasks, reports, term })
}

/// The node's wall clock, which differs from those of other nodes.
fn wall_clock(world: &Arc<World>, random: &mut Random) -> Clock {
    let offset_s = random.between(1_000_000_000, 1_000_100_000);
    let scene = Arc::clone(&world.scene);
    Clock::from_fn(move || UnixSeconds(offset_s + scene.state().now_ms / 1000))
}

/// Reports that the threads that serve clients run.
async fn report_threads(process: Arc<Process>, inputs: UnboundedSender<Input>) {
    loop {
        process.awake().await;
        // The task may have ended.
        let _ = inputs.send(Input::ThreadsRan(process.clock.now()));
        process.clock.sleep(process.world.timing.retry_period()).await;
    }
}

/// Wakes the task that commits.
#[derive(Default)]
struct Changed(Notify);

impl Wake for Changed {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Does what the writer's thread does.
async fn commit(
    process: Arc<Process>,
    server: Arc<Server>,
    mut storage: ClusterStorage<Handle>,
    changed: Arc<Changed>,
) {
    loop {
        process.awake().await;
        let Some(batch) = server.core().take_batch(storage.batch_limit()) else {
            changed.0.notified().await;
            continue;
        };
        let commit = storage.begin(&batch.changes);
        let committed = loop {
            let answer = process.transact(commit.transaction()).await;
            match storage.answered(&commit, answer) {
                Some(committed) => break committed,
                None => process.clock.sleep(COMMIT_PAUSE).await,
            }
        };
        match server.committed(&batch, committed) {
            Ok(()) => {}
            Err(error) if error.is_ownership_lost() => return process.end(error),
            Err(error) => {
                process.event(format_args!("{error}"));
                sleep(FAILURE_PAUSE).await;
            }
        }
    }
}

/// Answers waiting requests, and closes all connections, as the daemon does before it leaves.
async fn drain(process: &Arc<Process>, service: &mut Service) {
    process.event(format_args!("drains"));
    service.tasks.shutdown().await;
    let now = || {
        let elapsed = service.started.elapsed();
        Moment { monotonic: MonotonicMs(elapsed.as_millis() as u64), unix: UnixSeconds(0) }
    };
    while service.server.core().shut_down(now()) {}
    let until = Instant::now() + STOP_MAX;
    while !service.server.core().is_stored() && Instant::now() < until {
        sleep(Duration::from_millis(1)).await;
        process.awake().await;
    }
    // Answers are sent.
    sleep(Duration::from_millis(1)).await;
    process.awake().await;
    service.reports.abort();
}

/// The configuration of every node.
pub fn config(administrators: Vec<std::net::IpAddr>) -> Config {
    Config { admin_from: administrators, ..Config::default() }
}
