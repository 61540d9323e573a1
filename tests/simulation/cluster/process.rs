//! A run of a node's process, as the machine and the operator see it: it is shut down, frozen, continued and killed.
//!
//! A frozen process does nothing: its sockets neither read nor write, and its tasks wait. Its clock continues. A process that
//! has ended has closed all its sockets at once, as the kernel does it; the driver then drops its tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use signalbox::server::Server;
use signalbox_cluster::coordinator::{CallError, Transaction};
use signalbox_cluster::keys::Incarnation;
use signalbox_cluster::timing::Fence;
use tokio::sync::Notify;
use turmoil::net::TcpStream;

use super::clock::NodeClock;
use super::etcd::Answer;
use super::world::World;
use crate::random::Random;
use crate::support::etcd::Handle;

/// How long after a freeze a thread has its first turn.
const TURN_MS_MAX: u64 = 20;

/// How long a process that continues may take to close what it must no longer have.
const WAKE_MS_MAX: u64 = 100;

/// A socket, or `None` once the process has ended.
pub type Socket = Arc<Mutex<Option<TcpStream>>>;

/// The addresses of a socket: the peer's and its own.
pub type Ends = (SocketAddr, SocketAddr);

pub struct Process {
    pub world: Arc<World>,
    pub node: usize,
    /// The number of this run, among those of all nodes.
    pub run: u64,
    pub clock: NodeClock,
    pub fence: Fence,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    random: Random,
    is_frozen: bool,
    thawed_ms: Option<u64>,
    is_to_stop: bool,
    is_to_die: bool,
    is_over: bool,
    leading: Option<u32>,
    server: Option<Arc<Server>>,
    sockets: BTreeMap<Ends, Socket>,
    /// The clients that the process relays, by number, with the addresses of their sockets to the leader.
    relayed: BTreeMap<u64, Option<SocketAddr>>,
    relays_begun: u64,
    /// Tasks whose sockets wait for the end of the freeze.
    frozen: Vec<Waker>,
}

impl Process {
    pub fn new(world: Arc<World>, node: usize, run: u64, clock: NodeClock) -> Arc<Self> {
        let fence = {
            let clock = clock.clone();
            Fence::new(move || clock.now())
        };
        let state = Mutex::new(State {
            random: Random::of(world.seed, 2_000_000 + run),
            is_frozen: false,
            thawed_ms: None,
            is_to_stop: false,
            is_to_die: false,
            is_over: false,
            leading: None,
            server: None,
            sockets: BTreeMap::new(),
            relayed: BTreeMap::new(),
            relays_begun: 0,
            frozen: Vec::new(),
        });
        Arc::new(Self { world, node, run, clock, fence, state, changed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes a process")
    }

    /// The id that distinguishes this run from all others.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(format!("{:032x}", self.run))
    }

    pub fn event(&self, what: fmt::Arguments<'_>) {
        self.world.scene.event(format_args!("node {} run {}", self.node, self.run), what);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Waits until the state meets this condition.
    async fn until(&self, is_met: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_met(&self.state()) {
                return;
            }
            changed.await;
        }
    }

    /// The operator stops the process (SIGTERM).
    pub fn stop(&self) {
        self.change(|state| state.is_to_stop = true);
    }

    pub fn is_to_stop(&self) -> bool {
        self.state().is_to_stop
    }

    pub async fn stopped(&self) {
        self.until(|state| state.is_to_stop).await;
        self.awake().await;
    }

    /// The kernel kills the process, in its next step.
    pub fn kill(&self) {
        self.change(|state| state.is_to_die = true);
    }

    pub async fn killed(&self) {
        self.until(|state| state.is_to_die).await;
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        self.event(format_args!("freezes"));
        self.change(|state| state.is_frozen = true);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.event(format_args!("continues"));
        let now_ms = self.world.scene.state().now_ms;
        let wakers = {
            let mut state = self.state();
            state.thawed_ms = Some(now_ms);
            state.is_frozen = false;
            std::mem::take(&mut state.frozen)
        };
        wakers.into_iter().for_each(Waker::wake);
        self.changed.notify_waiters();
    }

    pub fn is_frozen(&self) -> bool {
        self.state().is_frozen
    }

    /// Whether the process runs, and has had time to close what it must no longer have.
    pub fn is_attentive(&self) -> bool {
        let now_ms = self.world.scene.state().now_ms;
        let state = self.state();
        let is_awake = state.thawed_ms.is_none_or(|thawed_ms| now_ms > thawed_ms + WAKE_MS_MAX);
        !state.is_over && !state.is_frozen && is_awake
    }

    /// Waits until the process runs. The threads of a process that continues have their first turns in any order, those of
    /// connections first.
    pub async fn awake(&self) {
        while self.is_frozen() {
            self.until(|state| !state.is_frozen).await;
            let turn_ms = self.state().random.between(0, TURN_MS_MAX);
            tokio::time::sleep(Duration::from_millis(turn_ms)).await;
        }
    }

    /// Whether the process is frozen; if so, the task is woken when it continues.
    pub fn is_frozen_for(&self, task: &Waker) -> bool {
        let mut state = self.state();
        if state.is_frozen {
            state.frozen.push(task.clone());
        }
        state.is_frozen
    }

    /// The process ends at once. To be called within its machine.
    pub fn end(&self, why: impl fmt::Display) {
        let sockets = {
            let mut state = self.state();
            if std::mem::replace(&mut state.is_over, true) {
                return;
            }
            state.server = None;
            std::mem::take(&mut state.sockets)
        };
        self.event(format_args!("ends: {why}"));
        self.close(sockets);
    }

    /// The machine loses power: the driver drops all tasks, and the network drops what they still send.
    pub fn lose_power(&self) {
        self.event(format_args!("loses power"));
        let mut state = self.state();
        state.is_over = true;
        state.server = None;
    }

    pub fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// Closes all connections in the order of their addresses: the runtime would drop their tasks in an order that depends
    /// on earlier events in the process.
    pub fn close_all(&self) {
        let sockets = std::mem::take(&mut self.state().sockets);
        self.close(sockets);
    }

    fn close(&self, sockets: BTreeMap<Ends, Socket>) {
        for socket in sockets.into_values() {
            *socket.lock().expect("nothing panics while it has a socket") = None;
        }
    }

    /// Keeps a socket until the process ends; `false` if it has ended.
    pub fn open(&self, ends: Ends, socket: &Socket) -> bool {
        let mut state = self.state();
        if !state.is_over {
            state.sockets.insert(ends, Arc::clone(socket));
        }
        !state.is_over
    }

    pub fn closed(&self, ends: Ends) {
        self.state().sockets.remove(&ends);
    }

    /// Whether a client's connection is open here.
    pub fn has(&self, client: SocketAddr) -> bool {
        self.state().sockets.keys().any(|(peer, _)| *peer == client)
    }

    /// Begins to relay a client. Returns its number.
    pub fn begin_relay(&self) -> u64 {
        let mut state = self.state();
        state.relays_begun += 1;
        let number = state.relays_begun;
        state.relayed.insert(number, None);
        number
    }

    /// Notes the socket to the leader of the client with this number, or that it has none.
    pub fn relay_by(&self, number: u64, socket: Option<SocketAddr>) {
        if let Some(relayed) = self.state().relayed.get_mut(&number) {
            *relayed = socket;
        }
    }

    pub fn end_relay(&self, number: u64) {
        self.state().relayed.remove(&number);
    }

    /// The socket to the leader of a client that the process relays.
    pub fn relayed_by(&self, number: u64) -> Option<SocketAddr> {
        self.state().relayed.get(&number).copied().flatten()
    }

    /// All sockets to leaders.
    pub fn sockets_to_leaders(&self) -> Vec<SocketAddr> {
        self.state().relayed.values().filter_map(|socket| *socket).collect()
    }

    /// The node leads from now on.
    pub fn lead(&self, epoch: u32) {
        self.event(format_args!("leads in epoch {epoch}"));
        self.state().leading = Some(epoch);
    }

    /// The node has released the leadership.
    pub fn stop_leading(&self) {
        let mut state = self.state();
        state.leading = None;
        state.server = None;
    }

    /// The epoch in which the process leads or has to end.
    pub fn leading(&self) -> Option<u32> {
        self.state().leading
    }

    /// The process serves clients from now on.
    pub fn serve(&self, server: &Arc<Server>) {
        self.state().server = Some(Arc::clone(server));
    }

    pub fn server(&self) -> Option<Arc<Server>> {
        self.state().server.clone()
    }

    /// Has etcd perform a transaction, and waits for the answer for the request timeout.
    pub async fn transact(&self, transaction: &Transaction) -> Answer {
        self.transact_within(self.world.timing.request_timeout(), transaction).await
    }

    /// Has etcd perform a transaction, and waits for the answer for this long.
    pub async fn transact_within(&self, limit: Duration, transaction: &Transaction) -> Answer {
        let mut answer = self.world.etcd.send(self.node, transaction.clone());
        let answered = async {
            match (&mut answer).await {
                Ok(answer) => answer,
                // It is lost.
                Err(_) => std::future::pending().await,
            }
        };
        let mut answered = std::pin::pin!(answered);
        let in_time = tokio::select! {
            biased;
            answer = &mut answered => Some(answer),
            () = self.clock.sleep(limit) => None,
        };
        // A process that was frozen when the answer came, or when the time was over, looks first for an answer.
        self.awake().await;
        let in_time = in_time.or_else(|| if_ready(answered));
        in_time.unwrap_or_else(|| Err(CallError::Unanswered("no answer in time".to_owned())))
    }

    /// Reads from etcd: what it has when the request is sent, or when the answer comes.
    pub async fn read<T>(&self, limit: Duration, look: impl Fn(&mut Handle) -> T) -> Result<T, CallError> {
        let mut etcd = self.world.etcd.at_once();
        let early = look(&mut etcd);
        self.transact_within(limit, &Transaction::default()).await?;
        let is_early = self.state().random.percent(50);
        Ok(if is_early { early } else { look(&mut etcd) })
    }
}

/// The result of a future if it is ready.
fn if_ready<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut context = std::task::Context::from_waker(Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}
