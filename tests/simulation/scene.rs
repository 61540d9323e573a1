//! The state that the server, the clients and the fault injection share: the time, the current faults, what each
//! client expects to hold, and the trace of all events.
//!
//! Everything runs on one thread; the lock exists because the server requires streams that can change threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::server::{Clock, Server};
use signalbox_model::Namespace;
use signalbox_model::UnixSeconds;
use tokio::sync::Notify;

use crate::disk::Disk;
use crate::flights::Flights;
use crate::grant_expectations::{ExpectedGrant, GrantExpectations};

/// The events that a failure shows.
const EVENTS_SHOWN: usize = 60;

/// What clients currently do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Random operations, while faults happen.
    Work,
    /// Nothing: connected clients leave.
    Rest,
    /// Each client requests something and must get it.
    Ask,
}

/// A name of a namespace; counters are `false`, so that keys have an order.
pub type Key = (bool, Vec<u8>);

pub fn key(namespace: Namespace, name: &[u8]) -> Key {
    (namespace == Namespace::Semaphores, name.to_vec())
}

/// A name in both namespaces that all clients use with the same capacity.
pub struct Shared {
    pub name: Vec<u8>,
    pub capacity: u32,
}

pub struct Scene {
    pub shared: Vec<Shared>,
    /// Signals the server to stop.
    pub stop: Notify,
    /// The server's disk, if it has one.
    pub disk: Option<Disk>,
    state: Mutex<State>,
    unix_s: Arc<AtomicU64>,
}

pub struct State {
    pub now_ms: u64,
    pub phase: Phase,
    pub server: Option<Arc<Server>>,
    /// When the server was started, when it stopped before, and the number of its current life.
    pub server_started_ms: u64,
    server_stopped_ms: u64,
    pub server_life: u64,
    /// The life in which the server accepted each connection.
    lives: BTreeMap<SocketAddr, u64>,
    /// The machines, by number.
    pub machines: Vec<Machine>,
    /// Connections that their client still has open.
    alive: BTreeMap<SocketAddr, usize>,
    /// Connections that the server still has open.
    served: BTreeSet<SocketAddr>,
    /// What each connection's client expects to hold.
    expected: BTreeMap<SocketAddr, BTreeMap<Key, u64>>,
    /// The sums of these expectations by name.
    expected_totals: BTreeMap<Key, u64>,
    /// What clients expect of grants and leases.
    pub grant_expectations: GrantExpectations,
    /// The single flights that clients say are done.
    pub flights: Flights,
    /// Clients that got what they requested.
    pub satisfied: BTreeSet<usize>,
    /// Set when the server was given work since the last check.
    pub is_touched: bool,
    failure: Option<String>,
    trace: u64,
    events: VecDeque<String>,
}

/// A client's machine, and its link to the server.
#[derive(Clone, Copy, Default)]
pub struct Machine {
    /// No message passes.
    pub is_cut_off: bool,
    /// When the link was last cut off, or the server or the machine was last down.
    pub disturbed_ms: u64,
    /// How often the machine was started.
    pub starts: u64,
}

impl Scene {
    pub fn new(machines: usize, shared: Vec<Shared>) -> Arc<Self> {
        Self::with(machines, shared, None)
    }

    /// Like [`Self::new`], but the server may have a disk that stores what leased sessions hold.
    pub fn with(machines: usize, shared: Vec<Shared>, disk: Option<Disk>) -> Arc<Self> {
        let state = State {
            now_ms: 0,
            phase: Phase::Work,
            server: None,
            server_started_ms: 0,
            server_stopped_ms: 0,
            server_life: 1,
            lives: BTreeMap::new(),
            machines: vec![Machine::default(); machines],
            alive: BTreeMap::new(),
            served: BTreeSet::new(),
            expected: BTreeMap::new(),
            expected_totals: BTreeMap::new(),
            grant_expectations: GrantExpectations::default(),
            flights: Flights::default(),
            satisfied: BTreeSet::new(),
            is_touched: true,
            failure: None,
            // The offset of FNV-1a.
            trace: 0xcbf2_9ce4_8422_2325,
            events: VecDeque::new(),
        };
        let unix_s = Arc::new(AtomicU64::new(0));
        Arc::new(Self { shared, stop: Notify::new(), disk, state: Mutex::new(state), unix_s })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes the scene")
    }

    /// The clock that the server reads.
    pub fn clock(&self) -> Clock {
        let unix_s = Arc::clone(&self.unix_s);
        Clock::from_fn(move || UnixSeconds(unix_s.load(Ordering::Relaxed)))
    }

    pub fn set_clock(&self, unix_s: u64) {
        self.unix_s.store(unix_s, Ordering::Relaxed);
    }

    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Records an event. Two runs of a seed must record the same events.
    pub fn event(&self, source: impl fmt::Display, what: fmt::Arguments<'_>) {
        self.state().event(source, what);
    }

    /// Begins a phase.
    pub fn enter(&self, phase: Phase) {
        self.event("all", format_args!("{phase:?}"));
        self.state().phase = phase;
    }

    /// Records an event that must never happen. The first one counts.
    pub fn fail(&self, what: String) {
        self.state().fail(what);
    }

    /// The description of a failure, followed by the last events.
    pub fn with_events(&self, what: String) -> String {
        let mut state = self.state();
        state.fail(what);
        state.failure().expect("it was set in the line above")
    }

    /// A client opened a connection.
    pub fn opened(&self, connection: SocketAddr, machine: usize) {
        let mut state = self.state();
        state.alive.insert(connection, machine);
        // A connection that the server lost before its client used it holds nothing.
        state.expected.insert(connection, BTreeMap::new());
    }

    /// A client closed a connection.
    pub fn closed(&self, connection: SocketAddr) {
        let mut state = self.state();
        state.alive.remove(&connection);
        state.lives.remove(&connection);
        state.forget(connection);
    }

    /// The client of a connection expects to hold this many resources.
    pub fn expect(&self, connection: SocketAddr, key: &Key, resources: u64) {
        let mut state = self.state();
        // The server has ended this connection; its client cannot know that yet, and its expectations no longer count.
        let Some(expected) = state.expected.get_mut(&connection) else { return };
        let before = if resources > 0 {
            expected.insert(key.clone(), resources).unwrap_or(0)
        } else {
            expected.remove(key).unwrap_or(0)
        };
        state.add_expected(key, resources, before);
    }

    /// The client of a connection received a grant from the server in this life.
    pub fn expect_grant(&self, connection: SocketAddr, life: u64, grant: u64, expected_grant: ExpectedGrant) {
        let mut state = self.state();
        // As above; a lease outlives the connection, and the server if that has a disk.
        let is_there = match expected_grant.connection {
            Some(_) => state.server_life == life && state.expected.contains_key(&connection),
            None => state.server_life == life || self.disk.is_some(),
        };
        if is_there {
            state.grant_expectations.expect_grant(grant, expected_grant);
        }
    }

    /// The server acknowledged, in this life, that a lease no longer holds these grants.
    pub fn acknowledge_release(&self, life: u64, grants: impl IntoIterator<Item = u64>) {
        let mut state = self.state();
        let now_ms = state.now_ms;
        // Unless it ended before it could store that.
        if state.server_life == life || self.disk.as_ref().is_some_and(|disk| !disk.is_doubtful(life)) {
            state.grant_expectations.acknowledge_release(grants, now_ms);
        }
    }

    /// Calls a function with the expectations and the time, or returns `None` if this life of the server is over.
    /// Without a disk, session numbers start again with each life, so expectations of two lives must not be mixed.
    pub fn with_expectations<T>(
        &self,
        life: u64,
        call: impl FnOnce(&mut GrantExpectations, u64) -> T,
    ) -> Option<T> {
        let mut state = self.state();
        let now_ms = state.now_ms;
        (state.server_life == life || self.disk.is_some())
            .then(|| call(&mut state.grant_expectations, now_ms))
    }

    /// Whether a grant of this life of the server has a number from before its start.
    pub fn predates_start(&self, life: u64, grant: u64) -> bool {
        let state = self.state();
        state.server_life == life && !state.grant_expectations.is_since_start(grant)
    }

    /// A client received a session that this life of the server created.
    pub fn add_session(&self, life: u64, session: u64) -> Result<(), String> {
        match self.with_expectations(life, |grant_expectations, _| grant_expectations.add_session(session)) {
            Some(false) => Err(format!("session {session} has the number of another")),
            _ => Ok(()),
        }
    }

    /// Whether the resources of a name are numbered slots.
    pub fn is_numbered(&self, key: &Key) -> bool {
        let numbered = self.disk.as_ref().map_or(0, |disk| disk.numbered);
        key.0 && self.shared[..numbered].iter().any(|shared| shared.name == key.1)
    }

    /// The life in which the server accepted a connection. All its answers on that connection are of this life.
    pub fn life_of(&self, connection: SocketAddr) -> u64 {
        self.state().lives.get(&connection).copied().unwrap_or(0)
    }

    pub fn expect_nothing(&self, connection: SocketAddr) {
        self.state().forget(connection);
    }

    /// Whether the link of a machine was intact, and the server up, since that time.
    pub fn was_undisturbed(&self, machine: usize, since_ms: u64) -> bool {
        let state = self.state();
        !state.machines[machine].is_cut_off && state.machines[machine].disturbed_ms < since_ms
    }

    /// The server accepted a connection.
    pub fn accepted(&self, connection: SocketAddr) {
        let mut state = self.state();
        state.is_touched = true;
        state.served.insert(connection);
        let life = state.server_life;
        state.lives.insert(connection, life);
        state.event("server", format_args!("accepts {connection}"));
    }

    /// The server received bytes.
    pub fn received(&self) {
        self.state().is_touched = true;
    }

    /// The server detected the end of a connection and releases what it held.
    pub fn ended(&self, connection: SocketAddr) {
        let mut state = self.state();
        state.is_touched = true;
        state.forget(connection);
    }

    /// The server started again, with what it restored.
    pub fn server_started(&self, server: &Arc<Server>) {
        let mut state = self.state();
        let (now_ms, stopped_ms) = (state.now_ms, state.server_stopped_ms);
        state.server = Some(Arc::clone(server));
        state.server_started_ms = now_ms;
        if let Some(disk) = &self.disk {
            let behind_since_ms = disk.begin_after(state.server_life - 1);
            if let Err(what) = state.grant_expectations.restart(server, stopped_ms..now_ms, behind_since_ms) {
                state.fail(what);
            }
        }
    }

    /// The server stopped: only leases that a disk stores still hold anything.
    pub fn server_stopped(&self) {
        let mut state = self.state();
        state.server = None;
        state.server_life += 1;
        state.server_stopped_ms = state.now_ms;
        let now_ms = state.now_ms;
        state.flights.close(|_| true, now_ms);
        if self.disk.is_some() {
            state.grant_expectations.drop_connections();
        } else {
            state.grant_expectations = GrantExpectations::default();
        }
        state.expected.clear();
        state.expected_totals.clear();
        state.served.clear();
    }

    /// The server dropped a connection.
    pub fn dropped(&self, connection: SocketAddr) {
        let mut state = self.state();
        state.is_touched = true;
        state.forget(connection);
        state.served.remove(&connection);
        let now_ms = state.now_ms;
        state.flights.close(|via| *via == connection, now_ms);
        state.event("server", format_args!("drops {connection}"));
    }

    /// Whether a keepalive probe from the server's machine would be answered.
    pub fn answers_probe(&self, connection: SocketAddr) -> bool {
        let state = self.state();
        state.alive.get(&connection).is_some_and(|machine| !state.machines[*machine].is_cut_off)
    }
}

impl State {
    pub fn event(&mut self, source: impl fmt::Display, what: fmt::Arguments<'_>) {
        let event = format!("{:>7} ms  {source}: {what}", self.now_ms);
        for byte in event.bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.events.len() == EVENTS_SHOWN {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub fn fail(&mut self, what: String) {
        if self.failure.is_none() {
            let events = self.events.iter().fold(String::new(), |all, event| all + "\n" + event);
            self.failure = Some(format!("at {} ms: {what}\nbefore that:{events}", self.now_ms));
        }
    }

    pub fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    pub fn trace(&self) -> u64 {
        self.trace
    }

    pub fn served(&self) -> &BTreeSet<SocketAddr> {
        &self.served
    }

    /// Whether the server may execute what is sent over a connection: it has not dropped it yet.
    pub fn may_execute(&self, connection: SocketAddr) -> bool {
        !self.lives.contains_key(&connection) || self.served.contains(&connection)
    }

    fn add_expected(&mut self, key: &Key, resources: u64, before: u64) {
        let sum = self.expected_totals.get(key).copied().unwrap_or(0) + resources - before;
        if sum > 0 {
            self.expected_totals.insert(key.clone(), sum);
        } else {
            self.expected_totals.remove(key);
        }
    }

    fn forget(&mut self, connection: SocketAddr) {
        self.grant_expectations.drop_connection(connection);
        for (key, resources) in self.expected.remove(&connection).unwrap_or_default() {
            self.add_expected(&key, 0, resources);
        }
    }

    /// What all clients together expect to hold, by name.
    pub fn expected_totals(&self) -> &BTreeMap<Key, u64> {
        &self.expected_totals
    }
}
