//! What the server, the clients and the one who makes the faults share: the time, what is broken at the moment,
//! who believes to hold what, and the trace of all that happened.
//!
//! Everything runs on one thread; the lock is there because the server asks for streams that can change threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::core::{Namespace, UnixSeconds};
use signalbox::server::{Clock, Server};
use tokio::sync::Notify;

use crate::claims::{Claim, Claims};
use crate::disk::Disk;

/// Events that a failure shows.
const EVENTS_SHOWN: usize = 60;

/// What clients do at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All sorts of things, while faults happen.
    Work,
    /// Nothing: whoever is connected leaves.
    Rest,
    /// Each asks for something and must get it.
    Ask,
}

/// A name of a namespace; counters are `false`, so that keys have an order.
pub type Key = (bool, Vec<u8>);

pub fn key(namespace: Namespace, name: &[u8]) -> Key {
    (namespace == Namespace::Semaphores, name.to_vec())
}

/// A name of both namespaces that everybody uses with the same capacity.
pub struct Shared {
    pub name: Vec<u8>,
    pub capacity: u32,
}

pub struct Scene {
    pub shared: Vec<Shared>,
    /// Semaphores that administrators declare, resize and remove.
    pub declared: Vec<Vec<u8>>,
    /// Tells the server to stop.
    pub stop: Notify,
    /// The server's disk, where it has one.
    pub disk: Option<Disk>,
    state: Mutex<State>,
    unix_s: Arc<AtomicU64>,
}

pub struct State {
    pub now_ms: u64,
    pub phase: Phase,
    pub server: Option<Arc<Server>>,
    /// When the server was started and when it stopped before, and which of its lives this is.
    pub server_started_ms: u64,
    server_stopped_ms: u64,
    pub server_life: u64,
    /// The life in which the server accepted each connection.
    lives: BTreeMap<SocketAddr, u64>,
    /// By machine.
    pub machines: Vec<Machine>,
    /// Connections that their client still has.
    alive: BTreeMap<SocketAddr, usize>,
    /// Connections that the server still has.
    served: BTreeSet<SocketAddr>,
    /// What each connection's client believes to hold.
    beliefs: BTreeMap<SocketAddr, BTreeMap<Key, u64>>,
    /// What they believe of each name, all of them together.
    believed: BTreeMap<Key, u64>,
    /// What clients believe of grants and leases.
    pub claims: Claims,
    /// Clients that got what they asked for.
    pub satisfied: BTreeSet<usize>,
    /// Set when the server was given something to do since it was last looked at.
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
    /// When the link was last cut off, or the server or the machine down.
    pub disturbed_ms: u64,
    /// How often it was started.
    pub starts: u64,
}

impl Scene {
    pub fn new(machines: usize, shared: Vec<Shared>) -> Arc<Self> {
        Self::with(machines, shared, Vec::new(), None)
    }

    /// With semaphores of administrators, and maybe with a server that keeps what leased sessions hold.
    pub fn with(
        machines: usize,
        shared: Vec<Shared>,
        declared: Vec<Vec<u8>>,
        disk: Option<Disk>,
    ) -> Arc<Self> {
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
            beliefs: BTreeMap::new(),
            believed: BTreeMap::new(),
            claims: Claims::default(),
            satisfied: BTreeSet::new(),
            is_touched: true,
            failure: None,
            // The offset of FNV-1a.
            trace: 0xcbf2_9ce4_8422_2325,
            events: VecDeque::new(),
        };
        let unix_s = Arc::new(AtomicU64::new(0));
        Arc::new(Self { shared, declared, stop: Notify::new(), disk, state: Mutex::new(state), unix_s })
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

    /// Notes something that happened. What two runs of a seed note must be the same.
    pub fn event(&self, who: impl fmt::Display, what: fmt::Arguments<'_>) {
        self.state().event(who, what);
    }

    /// Notes that something happened which must never happen. The first one counts.
    pub fn fail(&self, what: String) {
        self.state().fail(what);
    }

    /// A client has a new connection.
    pub fn opened(&self, connection: SocketAddr, machine: usize) {
        let mut state = self.state();
        state.alive.insert(connection, machine);
        // A connection that the server lost before its client knew of it holds nothing.
        state.beliefs.insert(connection, BTreeMap::new());
    }

    /// A client gave up a connection.
    pub fn closed(&self, connection: SocketAddr) {
        let mut state = self.state();
        state.alive.remove(&connection);
        state.lives.remove(&connection);
        state.forget(connection);
    }

    /// The client of a connection believes to hold so much.
    pub fn believe(&self, connection: SocketAddr, key: &Key, resources: u64) {
        let mut state = self.state();
        // Nothing is believed of a connection that the server has ended: its client cannot know that yet.
        let Some(beliefs) = state.beliefs.get_mut(&connection) else { return };
        let before = if resources > 0 {
            beliefs.insert(key.clone(), resources).unwrap_or(0)
        } else {
            beliefs.remove(key).unwrap_or(0)
        };
        state.add_belief(key, resources, before);
    }

    /// The client of a connection was granted something in that life of the server.
    pub fn claim(&self, connection: SocketAddr, life: u64, grant: u64, claim: Claim) {
        let mut state = self.state();
        // As above; a lease outlives the connection, and the server where it has a disk.
        let is_there = match claim.connection {
            Some(_) => state.server_life == life && state.beliefs.contains_key(&connection),
            None => state.server_life == life || self.disk.is_some(),
        };
        if is_there {
            state.claims.claim(grant, claim);
        }
    }

    /// The server has said, in that life of it, that a lease is free of these grants.
    pub fn give_back(&self, life: u64, grants: impl IntoIterator<Item = u64>) {
        let mut state = self.state();
        let now_ms = state.now_ms;
        // Unless it ended before it could write that down.
        if state.server_life == life || self.disk.as_ref().is_some_and(|disk| !disk.is_doubtful(life)) {
            state.claims.give_back(grants, now_ms);
        }
    }

    /// Gives access to what is believed of the server in one life of it and the time; `None`: that one is over. Without
    /// a disk, numbers of sessions begin anew with each, so that what is known of one must not be mixed with what is
    /// known of the next.
    pub fn with_claims<T>(&self, life: u64, call: impl FnOnce(&mut Claims, u64) -> T) -> Option<T> {
        let mut state = self.state();
        let now_ms = state.now_ms;
        (state.server_life == life || self.disk.is_some()).then(|| call(&mut state.claims, now_ms))
    }

    /// Whether a grant that was given in that life of the server has the number of one from before it was started.
    pub fn is_of_before(&self, life: u64, grant: u64) -> bool {
        let state = self.state();
        state.server_life == life && !state.claims.is_of_now(grant)
    }

    /// A client is told of a session that was made for it by that life of the server.
    pub fn meet(&self, life: u64, session: u64) -> Result<(), String> {
        match self.with_claims(life, |claims, _| claims.meet(session)) {
            Some(false) => Err(format!("session {session} has the number of another")),
            _ => Ok(()),
        }
    }

    /// Whether the resources of a name have numbers.
    pub fn is_numbered(&self, key: &Key) -> bool {
        let numbered = self.disk.as_ref().map_or(0, |disk| disk.numbered);
        key.0 && self.shared[..numbered].iter().any(|shared| shared.name == key.1)
    }

    /// In which life of the server it accepted a connection. What comes on it is of that one, whenever it comes.
    pub fn life_of(&self, connection: SocketAddr) -> u64 {
        self.state().lives.get(&connection).copied().unwrap_or(0)
    }

    pub fn believe_nothing(&self, connection: SocketAddr) {
        self.state().forget(connection);
    }

    /// Whether the link of a machine was in order, and the server up, ever since.
    pub fn was_undisturbed(&self, machine: usize, since_ms: u64) -> bool {
        let state = self.state();
        !state.machines[machine].is_cut_off && state.machines[machine].disturbed_ms < since_ms
    }

    /// The server has a new connection.
    pub fn accepted(&self, connection: SocketAddr) {
        let mut state = self.state();
        state.is_touched = true;
        state.served.insert(connection);
        let life = state.server_life;
        state.lives.insert(connection, life);
        state.event("server", format_args!("accepts {connection}"));
    }

    /// The server has received something.
    pub fn received(&self) {
        self.state().is_touched = true;
    }

    /// The server has learnt that a connection is over, and gives back what it held.
    pub fn ended(&self, connection: SocketAddr) {
        let mut state = self.state();
        state.is_touched = true;
        state.forget(connection);
    }

    /// The server is there again, with what it brought back.
    pub fn server_started(&self, server: &Arc<Server>) {
        let mut state = self.state();
        let (now_ms, stopped_ms) = (state.now_ms, state.server_stopped_ms);
        state.server = Some(Arc::clone(server));
        state.server_started_ms = now_ms;
        if let Some(disk) = &self.disk {
            let behind_since_ms = disk.begin_after(state.server_life - 1);
            if let Err(what) = state.claims.go_on(server, stopped_ms..now_ms, behind_since_ms) {
                state.fail(what);
            }
        }
    }

    /// The server has stopped: nobody holds anything any more but by a lease that a disk keeps.
    pub fn server_stopped(&self) {
        let mut state = self.state();
        state.server = None;
        state.server_life += 1;
        state.server_stopped_ms = state.now_ms;
        if self.disk.is_some() {
            state.claims.let_connections_go();
        } else {
            state.claims = Claims::default();
        }
        state.beliefs.clear();
        state.believed.clear();
        state.served.clear();
    }

    /// The server let go of a connection.
    pub fn dropped(&self, connection: SocketAddr) {
        let mut state = self.state();
        state.is_touched = true;
        state.forget(connection);
        state.served.remove(&connection);
        state.event("server", format_args!("drops {connection}"));
    }

    /// Whether a probe that the server's machine sends for a connection would be answered.
    pub fn answers_probe(&self, connection: SocketAddr) -> bool {
        let state = self.state();
        state.alive.get(&connection).is_some_and(|machine| !state.machines[*machine].is_cut_off)
    }
}

impl State {
    pub fn event(&mut self, who: impl fmt::Display, what: fmt::Arguments<'_>) {
        let event = format!("{:>7} ms  {who}: {what}", self.now_ms);
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

    fn add_belief(&mut self, key: &Key, resources: u64, before: u64) {
        let sum = self.believed.get(key).copied().unwrap_or(0) + resources - before;
        if sum > 0 {
            self.believed.insert(key.clone(), sum);
        } else {
            self.believed.remove(key);
        }
    }

    fn forget(&mut self, connection: SocketAddr) {
        self.claims.let_connection_go(connection);
        for (key, resources) in self.beliefs.remove(&connection).unwrap_or_default() {
            self.add_belief(&key, 0, resources);
        }
    }

    /// What clients believe to hold of each name, all of them together.
    pub fn believed(&self) -> &BTreeMap<Key, u64> {
        &self.believed
    }
}
