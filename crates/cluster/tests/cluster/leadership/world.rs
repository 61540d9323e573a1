//! Nodes with clocks of their own, and a store that gets requests late, after they were given up, or not at all.
//!
//! After each event, this is checked, besides the assertions of the machine itself:
//! - at no time do two nodes believe that they may answer clients;
//! - epochs grow by one, and each takeover writes the commit marker (C2);
//! - a takeover without a release comes at least the lease duration, by the clock of the node that takes over, after the
//!   last sign of life that this node saw, and there was no later one (C4);
//! - a node whose deadline has passed, or which released its leadership, never answers clients again (C3);
//! - when a leader answers clients, no node relays to a leader before it, and none ever does again (C5). A node that is
//!   frozen has its connections still open, and forwards nothing when it wakes.
//! - a leader writes no format of records that a node of the cluster does not read. Runs of two versions are mixed: one
//!   reads a newer format than the other.
//!
//! Nodes commit nothing here: `commits.rs` and the simulation of whole nodes test that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use serde::de::DeserializeOwned;
use signalbox_cluster::admin::finalize;
use signalbox_cluster::coordinator::{CallError, Revision, Transaction, TransactionAnswer};
use signalbox_cluster::error::{AdminError, Ending};
use signalbox_cluster::keys::{
    Format, Heartbeat, LAYOUT, Leadership, LeadershipState, Marker, Node, Successor, decode, encode,
};
use signalbox_cluster::leadership::{Machine, Phase, Settings, Step, Term};
use signalbox_cluster::members::Reading;
use signalbox_cluster::timing::BootTime;

use super::relays::NodeRelays;
use super::store::Store;
use super::{RECORD_FORMAT, keys, node, settings, timing};

/// True time, in microseconds from the start of the history.
pub type Micros = u64;
pub const MS: Micros = 1000;

/// A clock of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// How much faster than true time it is, in thousandths.
    pub permille: i64,
    /// The time that it shows at the start.
    pub offset_ms: u64,
}

impl Rate {
    pub fn local(self, time: Micros) -> BootTime {
        let span = time * u64::try_from(1000 + self.permille).unwrap();
        BootTime(Duration::from_millis(self.offset_ms) + Duration::from_nanos(span))
    }

    /// The first time at which the clock shows this or more.
    fn when(self, local: BootTime) -> Micros {
        let span = local.since(BootTime(Duration::from_millis(self.offset_ms))).as_nanos();
        let rate = u128::try_from(1000 + self.permille).unwrap();
        u64::try_from(span.div_ceil(rate)).unwrap_or(u64::MAX)
    }

    /// True time in which the clock advances by this span.
    pub fn takes(self, span: Duration) -> Micros {
        self.when(BootTime(Duration::from_millis(self.offset_ms) + span))
    }
}

/// The share of a node's requests that fail in some way, in percent, and the latency of the others.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Requests that are never applied.
    pub lost_requests: u8,
    /// Requests that are applied, and whose answer is lost.
    pub lost_answers: u8,
    /// Requests that are applied up to 7 s after they were sent.
    pub late_requests: u8,
    /// The longest latency of others, in milliseconds, in each direction.
    pub latency_ms: u64,
}

pub const CALM: Weather = Weather { lost_requests: 0, lost_answers: 0, late_requests: 0, latency_ms: 10 };

/// A fault of a history. Its node is an index modulo the number of nodes.
#[derive(Clone, Debug)]
pub enum Fault {
    /// `None` is all nodes.
    Weather {
        node: Option<usize>,
        weather: Weather,
    },
    /// All of the node stands still, except for its clock.
    Freeze {
        node: usize,
        ms: u64,
    },
    /// A `Freeze` that begins when the node sends its next request. The answer finds it frozen, and further requests may be
    /// lost.
    FreezeInFlight {
        node: usize,
        ms: u64,
        is_cut_off: bool,
    },
    Crash {
        node: usize,
        down_ms: u64,
    },
    /// An orderly stop.
    Stop {
        node: usize,
        down_ms: u64,
    },
    /// etcd has no leader.
    Outage {
        ms: u64,
    },
    /// Another machine starts a node of the same name.
    Namesake {
        node: usize,
    },
    /// An operator wants the newer format of records to be written.
    Finalize,
    /// The store gets an earlier state again.
    Restore {
        backup: usize,
    },
}

/// Random numbers for latencies and losses.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end.max(1)
    }

    fn hits(&mut self, percent: u8) -> bool {
        self.below(100) < u64::from(percent)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Step {
        node: usize,
        run: u32,
    },
    Apply {
        request: usize,
    },
    Deliver {
        request: usize,
    },
    TimeOut {
        request: usize,
    },
    Start {
        node: usize,
    },
    /// Connections of clients come and go.
    Relay {
        node: usize,
        run: u32,
    },
    /// The node reads the keys of the others.
    Observe {
        node: usize,
        run: u32,
    },
    Observed {
        node: usize,
        run: u32,
        reading: usize,
    },
}

/// A request on its way.
#[derive(Clone, Debug)]
struct Request {
    node: usize,
    run: u32,
    sent: BootTime,
    transaction: Transaction,
    answer: Option<TransactionAnswer>,
}

/// A value with its revision.
type Written = (Vec<u8>, Revision);

struct Essence {
    leadership: Option<Written>,
    marker: Option<Written>,
    heartbeats: HashMap<Vec<u8>, Written>,
}

/// The machine of a node. It outlives the processes of the node.
struct Host {
    name: String,
    clock: Rate,
    weather: Weather,
    /// The process; `None` while there is none.
    machine: Option<Machine>,
    run: u32,
    in_flight: Option<usize>,
    frozen_until: Micros,
    /// How long it freezes when it sends its next request, and whether it is cut off then.
    freezes_in_flight: Option<(u64, bool)>,
    /// The term in which this run leads.
    term: Option<Term>,
    /// The time between an end of the process and its next start.
    down_ms: u64,
    /// For each key, the last revision that this run saw, and when it first saw it.
    seen: HashMap<Vec<u8>, (Revision, BootTime)>,
    /// The deadline of this run when it was checked last.
    former_deadline: Option<BootTime>,
    relays: NodeRelays,
    /// The end of its last freeze.
    woke_at: Micros,
    why_ended: Option<Ending>,
}

pub struct World {
    pub now: Micros,
    pub store: Store,
    hosts: Vec<Host>,
    requests: Vec<Request>,
    queue: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    scheduled: u64,
    dice: Dice,
    /// Which runs have the newer version; all have it after the faults.
    versions: Option<Dice>,
    outage_until: Micros,
    runs: u32,
    backups: Vec<Store>,
    /// The readings of nodes about each other, until they arrive.
    readings: Vec<Option<Reading>>,
    is_restored: bool,
    /// Terms that began, with the time and the node.
    pub terms: Vec<(Micros, usize, u32)>,
    pub statistics: BTreeMap<&'static str, u64>,
}

impl World {
    pub fn new(clocks: &[Rate], seed: u64) -> Self {
        let mut world = Self {
            now: 0,
            store: Store::default(),
            hosts: Vec::new(),
            requests: Vec::new(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            dice: Dice(seed),
            versions: Some(Dice(!seed)),
            outage_until: 0,
            runs: 0,
            backups: Vec::new(),
            readings: Vec::new(),
            is_restored: false,
            terms: Vec::new(),
            statistics: BTreeMap::new(),
        };
        let renew_deadline_ms = timing().renew_deadline().as_millis().try_into().unwrap();
        let format = Format { layout: LAYOUT, record_format: RECORD_FORMAT, renew_deadline_ms };
        world.store.set(keys().format(), Some(encode(&format)));
        for (index, clock) in clocks.iter().enumerate() {
            let name = char::from(b'a' + u8::try_from(index).unwrap()).to_string();
            let start = world.dice.below(500) * MS;
            world.add(name, *clock, start);
        }
        world
    }

    fn add(&mut self, name: String, clock: Rate, start: Micros) {
        let node = self.hosts.len();
        self.hosts.push(Host {
            name,
            clock,
            weather: CALM,
            machine: None,
            run: 0,
            in_flight: None,
            frozen_until: 0,
            freezes_in_flight: None,
            former_deadline: None,
            relays: NodeRelays::new(),
            woke_at: 0,
            term: None,
            down_ms: 100,
            seen: HashMap::new(),
            why_ended: None,
        });
        self.at(start, Event::Start { node });
    }

    fn at(&mut self, time: Micros, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse((time, self.scheduled, event)));
    }

    fn count(&mut self, what: &'static str) {
        *self.statistics.entry(what).or_default() += 1;
    }

    /// Lets everything happen that is due within this time.
    pub fn run_for(&mut self, span: Micros) {
        let until = self.now + span;
        while let Some(Reverse((time, ..))) = self.queue.peek()
            && *time <= until
        {
            let Reverse((time, _, event)) = self.queue.pop().unwrap();
            self.now = time.max(self.now);
            self.set_clocks();
            self.happen(event);
            self.check_beliefs();
            self.check_relays();
        }
        self.now = until;
        self.check_beliefs();
    }

    pub fn fault(&mut self, fault: &Fault) {
        let nodes = self.hosts.len();
        match *fault {
            Fault::Weather { node: Some(node), weather } => self.hosts[node % nodes].weather = weather,
            Fault::Weather { node: None, weather } => {
                self.hosts.iter_mut().for_each(|host| host.weather = weather);
            }
            Fault::Freeze { node, ms } => {
                let host = &mut self.hosts[node % nodes];
                host.frozen_until = host.frozen_until.max(self.now + ms * MS);
            }
            Fault::FreezeInFlight { node, ms, is_cut_off } => {
                self.hosts[node % nodes].freezes_in_flight = Some((ms, is_cut_off));
            }
            Fault::Crash { node, down_ms } => self.crash(node % nodes, down_ms),
            Fault::Stop { node, down_ms } => {
                let node = node % nodes;
                let successor = self.successor(node);
                self.stop_for(successor, node, down_ms);
            }
            Fault::Outage { ms } => self.outage_until = self.now + ms * MS,
            Fault::Namesake { node } => {
                if nodes < 7 {
                    let (name, clock) =
                        (self.hosts[node % nodes].name.clone(), self.hosts[node % nodes].clock);
                    // On another machine.
                    let clock = Rate { permille: -clock.permille, ..clock };
                    self.add(name, clock, self.now);
                }
            }
            Fault::Finalize => match finalize(&mut self.store, &keys(), RECORD_FORMAT + 1) {
                Ok(finalized) if finalized.from < finalized.to => self.count("finalized"),
                Ok(_) => {}
                Err(AdminError::Unready { .. }) => self.count("not finalized"),
                Err(AdminError::NoNodes) => {}
                Err(error) => panic!("{error}"),
            },
            Fault::Restore { backup } => {
                if let Some(store) = self.backups.get(backup % self.backups.len().max(1)) {
                    self.store = store.clone();
                    self.is_restored = true;
                    self.count("restored");
                }
            }
        }
        self.backups.push(self.store.clone());
    }

    fn crash(&mut self, node: usize, down_ms: u64) {
        let host = &mut self.hosts[node];
        if host.machine.take().is_some() {
            host.in_flight = None;
            host.term = None;
            host.frozen_until = 0;
            // The kernel closes its connections.
            host.relays = NodeRelays::new();
            self.at(self.now + down_ms * MS, Event::Start { node });
        }
    }

    /// Chooses the successor of a node that stops: none, or any other node, whose run may have ended.
    fn successor(&mut self, node: usize) -> Option<Successor> {
        let other = self.dice.below(self.hosts.len() as u64) as usize;
        if other == node {
            return None;
        }
        let host = &self.hosts[other];
        Some(Successor { node: host.name.to_owned(), incarnation: super::node(host.run).incarnation })
    }

    /// Stops a node in an orderly way, without a successor. Its connections are closed at once.
    pub fn stop(&mut self, node: usize, down_ms: u64) {
        self.stop_for(None, node, down_ms);
    }

    fn stop_for(&mut self, successor: Option<Successor>, node: usize, down_ms: u64) {
        let now = self.now;
        if now < self.hosts[node].frozen_until {
            return;
        }
        let host = &mut self.hosts[node];
        let run = host.run;
        if let Some(machine) = &mut host.machine {
            machine.release(successor);
            host.relays.close_all();
            host.term = None;
            host.down_ms = down_ms;
            self.at(now, Event::Step { node, run });
        }
    }

    fn happen(&mut self, event: Event) {
        // A frozen node does all it has to do when it wakes, in random order.
        if let Some(node) = self.concerned(event)
            && self.now < self.hosts[node].frozen_until
        {
            let later = self.hosts[node].frozen_until + self.dice.below(3);
            self.hosts[node].woke_at = later;
            return self.at(later, event);
        }
        match event {
            Event::Start { node } => self.start(node),
            Event::Step { node, run } => self.step(node, run),
            Event::Apply { request } => self.apply(request),
            Event::Deliver { request } => self.answer(request, true),
            Event::TimeOut { request } => self.answer(request, false),
            Event::Relay { node, run } => self.relay(node, run),
            Event::Observe { node, run } => self.observe(node, run),
            Event::Observed { node, run, reading } => self.observed(node, run, reading),
        }
    }

    fn set_clocks(&self) {
        self.hosts.iter().for_each(|host| host.relays.set_clock(host.clock.local(self.now)));
    }

    fn runs(&self, node: usize, run: u32) -> bool {
        self.hosts[node].run == run && self.hosts[node].machine.is_some()
    }

    /// Connections of clients come and go, and those that are over close.
    fn relay(&mut self, node: usize, run: u32) {
        if !self.runs(node, run) {
            return;
        }
        let relays = &mut self.hosts[node].relays;
        let has_closed = relays.close_what_is_over();
        match self.dice.below(10) {
            0 => relays.close_one(),
            1..=4 if relays.open() => self.count("relays"),
            _ => {}
        }
        if has_closed {
            self.count("relays that were closed");
        }
        if self.hosts[node].relays.needs_poll() && self.hosts[node].in_flight.is_none() {
            self.at(self.now, Event::Step { node, run });
        }
        // The guard's period, and the time that tasks take.
        let pause = self.dice.below(40) * MS;
        self.at(self.now + pause, Event::Relay { node, run });
    }

    /// Reads the store as it is now. The reading arrives later, or not at all.
    fn observe(&mut self, node: usize, run: u32) {
        if !self.runs(node, run) {
            return;
        }
        let host = &self.hosts[node];
        let (weather, is_fast) = (host.weather, host.relays.waits());
        let is_answered = self.now >= self.outage_until && !self.dice.hits(weather.lost_requests);
        if is_answered {
            let reading = self.readings.len();
            let reading_now = Reading::read(&mut self.store, &keys());
            self.readings.push(Some(reading_now.expect("the store answers")));
            let latency = 100 + self.dice.below(weather.latency_ms * MS);
            self.at(self.now + latency, Event::Observed { node, run, reading });
        }
        let period = if is_fast { Duration::from_millis(10) } else { timing().retry_period() };
        let pause = self.hosts[node].clock.takes(period);
        self.at(self.now + pause, Event::Observe { node, run });
    }

    fn observed(&mut self, node: usize, run: u32, reading: usize) {
        let reading = self.readings[reading].take().expect("it arrives once");
        if !self.runs(node, run) {
            return;
        }
        let host = &mut self.hosts[node];
        let local = host.clock.local(self.now);
        if host.relays.observe(reading, local) && host.believes(self.now) {
            self.count("leaders that answer");
        }
    }

    /// C5.
    fn check_relays(&self) {
        let answering = self.hosts.iter().filter(|host| host.relays.answers && host.believes(self.now));
        let Some(epoch) = answering.filter_map(|host| host.relays.epoch()).max() else { return };
        for host in self.hosts.iter().filter(|_| !self.is_restored) {
            assert!(
                !host.relays.forwards_below(epoch),
                "at {} ms, {} forwards to a leader before epoch {epoch}, whose leader answers",
                self.now / MS,
                host.name
            );
            // A node that has just woken has not closed them yet.
            let is_awake = self.now >= host.frozen_until && self.now >= host.woke_at + 50 * MS;
            assert!(
                !(is_awake && host.relays.is_open_below(epoch)),
                "at {} ms, {} has connections to a leader before epoch {epoch}, whose leader answers",
                self.now / MS,
                host.name
            );
        }
    }

    /// The node that has to be awake for this.
    fn concerned(&self, event: Event) -> Option<usize> {
        match event {
            Event::Step { node, .. }
            | Event::Relay { node, .. }
            | Event::Observe { node, .. }
            | Event::Observed { node, .. } => Some(node),
            Event::Deliver { request } | Event::TimeOut { request } => Some(self.requests[request].node),
            Event::Apply { .. } | Event::Start { .. } => None,
        }
    }

    fn start(&mut self, node: usize) {
        if self.hosts[node].machine.is_some() {
            return;
        }
        self.runs += 1;
        let run = self.runs;
        let is_newer = self.versions.as_mut().is_none_or(|versions| versions.hits(70));
        let host = &mut self.hosts[node];
        let record_format = RECORD_FORMAT + u32::from(is_newer);
        let this = Node { record_format, ..super::node(run) };
        let settings = Settings { node: this, ..settings(&host.name, run) };
        host.machine = Some(Machine::new(settings));
        host.run = run;
        host.in_flight = None;
        host.term = None;
        host.down_ms = 100;
        host.seen.clear();
        host.former_deadline = None;
        host.relays = NodeRelays::new();
        host.relays.set_clock(host.clock.local(self.now));
        self.at(self.now, Event::Step { node, run });
        self.at(self.now, Event::Relay { node, run });
        self.at(self.now, Event::Observe { node, run });
    }

    fn step(&mut self, node: usize, run: u32) {
        let host = &mut self.hosts[node];
        let Some(machine) = host.machine.as_mut().filter(|_| host.run == run) else { return };
        let local = host.clock.local(self.now);
        host.relays.before_step(machine, local);
        let step = machine.next(local);
        host.relays.apply(machine);
        if let (Phase::Leading(term), None) = (machine.phase(), host.term) {
            assert!(machine.deadline().is_some_and(|deadline| deadline > local), "told too late");
            host.term = Some(term);
            host.relays.lead(term, run, local);
            self.count("terms");
            self.terms.push((self.now, node, term.epoch));
            self.check_formats();
            self.at(self.now, Event::Step { node, run });
            return;
        }
        match step {
            Step::Send(transaction) => {
                assert_eq!(machine.next(local), Step::Send(transaction.clone()), "asked twice");
                machine.sent(local);
                let request = self.send(node, transaction);
                let host = &mut self.hosts[node];
                host.in_flight = Some(request);
                if let Some((ms, is_cut_off)) = host.freezes_in_flight.take() {
                    host.frozen_until = self.now + ms * MS;
                    if is_cut_off {
                        host.weather.lost_requests = 100;
                    }
                }
            }
            Step::WaitUntil(local) => {
                let time = host.clock.when(local).max(self.now + 1);
                if host.in_flight.is_none() {
                    self.at(time, Event::Step { node, run });
                }
            }
            Step::End => {
                let Phase::Over(ending) = machine.phase() else { panic!("{machine:?}") };
                assert_eq!(machine.deadline(), None, "{ending}");
                host.machine = None;
                host.in_flight = None;
                host.term = None;
                host.relays = NodeRelays::new();
                let pause = if matches!(ending, Ending::NameInUse { .. }) { 1000 } else { host.down_ms };
                self.count(match ending {
                    Ending::Released => "released",
                    Ending::NotReleased(_) => "not released",
                    Ending::DeadlinePassed(_) => "deadline passed",
                    Ending::Superseded { .. } => "superseded",
                    Ending::NameInUse { .. } => "name in use",
                    Ending::NameTaken(_) => "name taken",
                    Ending::Forgotten(_) => "forgotten",
                    Ending::WentBack { .. } => "went back",
                    Ending::RecordFormatNewer { .. } => "too old",
                    ref other => panic!("{other}"),
                });
                self.hosts[node].why_ended = Some(ending);
                self.at(self.now + pause * MS, Event::Start { node });
            }
        }
    }

    fn send(&mut self, node: usize, transaction: Transaction) -> usize {
        let host = &self.hosts[node];
        let (weather, clock, run) = (host.weather, host.clock, host.run);
        let request = self.requests.len();
        let sent = clock.local(self.now);
        self.requests.push(Request { node, run, sent, transaction, answer: None });
        let latency = 100 + self.dice.below(weather.latency_ms * MS);
        if self.dice.hits(weather.late_requests) {
            let late = self.dice.below(7000) * MS;
            self.at(self.now + late, Event::Apply { request });
        } else if !self.dice.hits(weather.lost_requests) {
            self.at(self.now + latency, Event::Apply { request });
        }
        let timeout = clock.takes(timing().request_timeout());
        self.at(self.now + timeout, Event::TimeOut { request });
        request
    }

    fn apply(&mut self, index: usize) {
        if self.now < self.outage_until {
            // Lost, or applied as soon as etcd has a leader.
            if self.dice.hits(50) {
                let time = self.outage_until + self.dice.below(50 * MS);
                self.at(time, Event::Apply { request: index });
            }
            return;
        }
        let before = self.essence();
        let request = &mut self.requests[index];
        let answer = self.store.transact(&request.transaction);
        request.answer = Some(answer);
        let weather = self.hosts[request.node].weather;
        if !self.is_restored {
            self.check_transaction(index, &before);
        }
        if !self.dice.hits(weather.lost_answers) {
            let latency = 100 + self.dice.below(weather.latency_ms * MS);
            self.at(self.now + latency, Event::Deliver { request: index });
        }
    }

    /// The answer arrives, or the node gives up waiting for it.
    fn answer(&mut self, index: usize, is_here: bool) {
        let request = self.requests[index].clone();
        let (node, run) = (request.node, request.run);
        let host = &mut self.hosts[node];
        let Some(machine) = host.machine.as_mut().filter(|_| host.run == run) else { return };
        let answer = match (is_here, request.answer) {
            (true, Some(answer)) => Ok(answer),
            _ => Err(CallError::Unanswered("timed out".to_owned())),
        };
        let local = host.clock.local(self.now);
        if host.in_flight != Some(index) {
            return;
        }
        host.in_flight = None;
        for entry in answer.iter().flat_map(|answer| answer.read.iter().flatten()) {
            let seen = host.seen.entry(entry.key.clone()).or_insert((entry.modified, local));
            if seen.0 != entry.modified {
                *seen = (entry.modified, local);
            }
        }
        // The answers to a takeover or a renewal that succeeds have no reads.
        let has_read = answer.as_ref().is_ok_and(|answer| !answer.read.is_empty());
        let has_led = machine.deadline().is_some();
        machine.answered(answer, local);
        host.relays.apply(machine);
        if has_read && machine.deadline().is_some() {
            self.count(if has_led { "renewals without an answer" } else { "takeovers without an answer" });
        }
        self.at(self.now, Event::Step { node, run });
    }

    fn check_beliefs(&mut self) {
        for host in &mut self.hosts {
            let local = host.clock.local(self.now);
            let deadline = host.machine.as_ref().and_then(Machine::deadline);
            let has_passed = host.former_deadline.is_some_and(|former| former <= local);
            assert!(
                !(has_passed && deadline > host.former_deadline),
                "{} answers clients again after its deadline",
                host.name
            );
            if !has_passed {
                host.former_deadline = deadline.or(host.former_deadline);
            }
        }
        let believers: Vec<_> = self.hosts.iter().filter(|host| host.believes(self.now)).collect();
        assert!(
            believers.len() < 2 || self.is_restored,
            "at {} ms, {} and {} both answer clients",
            self.now / MS,
            believers[0].name,
            believers[1].name,
        );
    }

    /// The keys that takeovers and releases change, and the heartbeats.
    fn essence(&self) -> Essence {
        let (leadership, marker) = (keys().leadership(), keys().marker());
        Essence {
            leadership: self.store.seen(&leadership),
            marker: self.store.seen(&marker),
            heartbeats: (0..self.hosts.len())
                .map(|host| keys().heartbeat(&self.hosts[host].name))
                .map(|key| (self.store.seen(&key), key))
                .filter_map(|(seen, key)| Some((key, seen?)))
                .collect(),
        }
    }

    /// Every node of the cluster reads the format that leaders write (C8).
    fn check_formats(&self) {
        let reads = |node: &Node| node.record_format;
        let nodes: Vec<_> = self.store.values(&keys().nodes()).iter().map(reads).collect();
        for host in self.hosts.iter().filter(|host| host.believes(self.now) && !self.is_restored) {
            let written = host.term.map_or(0, |term| term.record_format);
            let is_read = nodes.iter().all(|reads| written <= *reads);
            assert!(is_read, "{} writes format {written}, and nodes read {nodes:?}", host.name);
        }
    }

    fn check_transaction(&mut self, index: usize, before: &Essence) {
        self.check_formats();
        let after = (self.store.seen(&keys().leadership()), self.store.seen(&keys().marker()));
        if after == (before.leadership.clone(), before.marker.clone()) {
            return;
        }
        let request = self.requests[index].clone();
        let former: Option<Leadership> = before.leadership.as_ref().map(|(value, _)| parsed(value));
        let found: Leadership = parsed(&after.0.as_ref().unwrap().0);
        let old: Option<Marker> = before.marker.as_ref().map(|(value, _)| parsed(value));
        let new: Marker = parsed(&after.1.as_ref().unwrap().0);
        let host = &self.hosts[request.node];
        let is_alive = host.run == request.run && host.machine.is_some();
        if found.state == LeadershipState::Released {
            assert_eq!(Some(found.epoch), former.map(|former| former.epoch));
            assert_eq!(Some(new), old);
            assert!(!is_alive || !host.believes(self.now), "a released leader answers clients");
            return;
        }
        // A takeover.
        assert_eq!(found.epoch, former.as_ref().map_or(0, |former| former.epoch) + 1);
        assert_eq!(found.incarnation, node(request.run).incarnation);
        assert_eq!(new, Marker { epoch: found.epoch, commit: 0 });
        if let Some(Leadership { state: LeadershipState::Released, successor: Some(successor), .. }) = &former
        {
            if successor.incarnation == found.incarnation {
                self.count("takeovers by a successor");
            } else if is_alive {
                let since = self.hosts[request.node].seen[&keys().leadership()].1;
                let waited = request.sent.since(since);
                let is_patient = waited >= timing().lease_duration();
                assert!(is_patient, "{} waited for {waited:?}, not for the successor", host.name);
                self.count("takeovers in place of a successor");
            }
        }
        let Some(former) = former.filter(|former| former.state == LeadershipState::Held) else { return };
        if is_alive {
            self.check_patience(&request, &former, before);
        }
        self.count("takeovers without a release");
    }

    /// C4.
    fn check_patience(&self, request: &Request, former: &Leadership, before: &Essence) {
        let host = &self.hosts[request.node];
        let mut last_change = host.seen[&keys().leadership()].1;
        let key = keys().heartbeat(&former.node);
        if let Some((value, modified)) = before.heartbeats.get(&key)
            && parsed::<Heartbeat>(value).incarnation == former.incarnation
        {
            let (seen, since) = host.seen[&key];
            assert_eq!(seen, *modified, "the last heartbeat was not seen");
            last_change = last_change.max(since);
        }
        let waited = request.sent.since(last_change);
        assert!(waited >= timing().lease_duration(), "{} waited for {waited:?}", host.name);
    }

    /// From now on nothing fails: nodes that are down start, and what is on its way is applied or lost.
    pub fn calm(&mut self) {
        self.versions = None;
        self.outage_until = 0;
        for Reverse((time, order, event)) in std::mem::take(&mut self.queue) {
            match event {
                Event::Apply { request } => {
                    if self.dice.hits(50) {
                        self.apply(request);
                        self.check_beliefs();
                    }
                }
                // A frozen node wakes.
                _ if self.concerned(event).is_some_and(|node| self.now < self.hosts[node].frozen_until) => {
                    self.queue.push(Reverse((self.now, order, event)));
                }
                _ => self.queue.push(Reverse((time, order, event))),
            }
        }
        for node in 0..self.hosts.len() {
            self.hosts[node].weather = CALM;
            self.hosts[node].frozen_until = 0;
            self.hosts[node].freezes_in_flight = None;
            if self.hosts[node].machine.is_none() {
                self.start(node);
            } else {
                let run = self.hosts[node].run;
                self.at(self.now, Event::Step { node, run });
            }
        }
    }

    /// The node that leads.
    pub fn leader(&self) -> Option<usize> {
        (0..self.hosts.len()).find(|node| self.hosts[*node].believes(self.now))
    }

    /// The nodes that could take over.
    pub fn standbys(&self) -> usize {
        let is_standby = |host: &&Host| {
            host.machine.as_ref().is_some_and(|machine| matches!(machine.phase(), Phase::Standby { .. }))
        };
        self.hosts.iter().filter(is_standby).count()
    }

    /// Describes the state of each node, for the message of a failure.
    pub fn describe(&self) -> String {
        let lines = self.hosts.iter().enumerate().map(|(index, host)| {
            let phase = host.machine.as_ref().map(Machine::phase);
            let failure = host.machine.as_ref().and_then(Machine::last_failure);
            format!("{index} {} {phase:?} {failure:?}, ended before by {:?}\n", host.name, host.why_ended)
        });
        lines.collect()
    }
}

impl Host {
    /// Whether the node may write to clients.
    fn believes(&self, now: Micros) -> bool {
        let deadline = self.machine.as_ref().and_then(Machine::deadline);
        deadline.is_some_and(|deadline| self.clock.local(now) < deadline)
    }
}

fn parsed<T: DeserializeOwned>(value: &[u8]) -> T {
    decode(b"", value).unwrap()
}
