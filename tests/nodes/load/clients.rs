//! The clients: workers that acquire slots, others that acquire without leases, runners that only acquire and release, an
//! administrator that declares, and a keeper that holds until the end.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use signalbox_client::blocking::Client;
use signalbox_client::{
    Builder, Declaration, Direct, Error, ErrorKind, IfExists, Namespace, Permit, Resizing, Status,
};

use super::verdict::{Belief, PlainBelief};
use super::{KEPT_NAME, PLAIN_MAXIMUM, PLAIN_NAME, RUNNERS_MAXIMUM, RUNNERS_NAME, SLOTS_NAME};
use crate::support::{ACQUIRE, NOT_AVAILABLE, OK, RELEASE, Wire, frame, named};
use signalbox_model::Operation;

/// The leases of the workers: shorter than the longest faults.
pub const SHORT: Duration = Duration::from_secs(5);

/// The leases of the keeper: no fault is as long.
const LONG: Duration = Duration::from_secs(60);

/// How long an operation waits for an answer.
pub const OPERATION: Duration = Duration::from_secs(6);

/// How long a plain worker waits until a connection is established.
pub const CONNECT: Duration = Duration::from_secs(1);

/// The intervals in which a worker looks whether it still holds its permit.
const LOOK: Duration = Duration::from_millis(3);

/// The state that all clients share.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// The nodes.
    pub addresses: &'a [SocketAddr],
    /// Where they serve HTTP.
    pub http: &'a [SocketAddr],
    pub stop: &'a AtomicBool,
    /// Errors that no fault explains.
    pub unexpected: &'a Mutex<Vec<String>>,
}

impl Run<'_> {
    pub fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// A client of all nodes, which tries this one first; `None` at the end of the run.
    fn connect(&self, first: usize, configure: impl Fn(Builder) -> Builder) -> Option<Client> {
        while self.is_running() {
            let nodes = self.addresses.len();
            let addresses = self.addresses.iter().cycle().skip(first % nodes).take(nodes);
            let mut addresses = addresses.map(|address| address.to_string().parse().unwrap());
            let first = signalbox_client::Client::builder(addresses.next().unwrap());
            match Client::connect_with(configure(addresses.fold(first, Builder::address))) {
                Ok(client) => return Some(client),
                Err(error) => self.note_unexplained(&error),
            }
            sleep(Duration::from_millis(20));
        }
        None
    }

    /// Remembers an error that no fault explains.
    fn note_unexplained(&self, error: &Error) {
        let is_explained = match error.kind() {
            ErrorKind::Status(status) => *status == Status::TimedOut,
            ErrorKind::Connect(_)
            | ErrorKind::ConnectionLost(_)
            | ErrorKind::Unreachable { .. }
            | ErrorKind::Unanswered { .. }
            | ErrorKind::Lost(_) => true,
            _ => false,
        };
        if !is_explained {
            self.unexpected.lock().unwrap().push(format!("{error:?}"));
        }
    }
}

/// When each worker made its last request that was granted or, for a worker without leases, answered.
pub struct Progress(Vec<Mutex<Option<Instant>>>);

impl Progress {
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::default()).collect())
    }

    /// A worker was granted what it asked for at this moment.
    pub fn note(&self, worker: usize, asked: Instant) {
        *self.0[worker].lock().unwrap() = Some(asked);
    }

    /// The workers that were granted nothing that they asked for since this moment.
    pub fn waiting_since(&self, moment: Instant) -> Vec<usize> {
        let is_waiting = |worker: &usize| self.0[*worker].lock().unwrap().is_none_or(|asked| asked < moment);
        (0..self.0.len()).filter(is_waiting).collect()
    }
}

/// Acquires a slot, holds it for a while, and releases it, again and again.
pub struct Worker<'a> {
    run: Run<'a>,
    number: usize,
    random: Rng,
    beliefs: Vec<Belief>,
}

impl<'a> Worker<'a> {
    pub fn new(run: Run<'a>, number: usize, seed: u64) -> Self {
        Self { run, number, random: Rng::with_seed(seed), beliefs: Vec::new() }
    }

    /// Works until the run is over, and returns what it believed.
    pub fn work(mut self, progress: &Progress) -> Vec<Belief> {
        let configure = |builder: Builder| builder.ttl(SHORT).unreachable_after(SHORT);
        while let Some(client) = self.run.connect(self.number, configure) {
            while self.run.is_running() {
                let asked = Instant::now();
                match client.wait(client.semaphore(SLOTS_NAME).declared().timeout(OPERATION).acquire()) {
                    Ok(permit) => {
                        self.hold(&permit, asked);
                        progress.note(self.number, asked);
                        if !self.release(&client, permit) {
                            break;
                        }
                    }
                    Err(error) => {
                        self.run.note_unexplained(&error);
                        sleep(Duration::from_millis(20));
                    }
                }
            }
            client.close();
        }
        self.beliefs
    }

    /// Holds a permit for a random time, or until it is lost.
    fn hold(&mut self, permit: &Permit, asked: Instant) {
        let granted = Instant::now();
        if !permit.is_held() {
            return;
        }
        let [slot] = permit.slots()[..] else { panic!("one slot: {permit:?}") };
        let enough = granted + span(&mut self.random);
        let mut until = granted;
        let mut is_lost = false;
        while !is_lost && until < enough && self.run.is_running() {
            sleep(LOOK);
            // Read before the look, since the permit may be lost between the two.
            let now = Instant::now();
            is_lost = !permit.is_held();
            if !is_lost {
                until = now;
            }
        }
        let (worker, id) = (self.number, permit.id());
        self.beliefs.push(Belief { worker, id, slot, asked, granted, until, is_lost });
    }

    /// Gives a permit back in one of several ways; `false` if the client is to be closed.
    fn release(&mut self, client: &Client, permit: Permit) -> bool {
        match self.random.u8(..20) {
            // The client is closed with the permit, or shortly after.
            0 => false,
            1..5 => true,
            _ => {
                if let Err(error) = client.wait(permit.release()) {
                    self.run.note_unexplained(&error);
                }
                true
            }
        }
    }
}

/// Acquires something and releases it at once, again and again, so that the cluster is busy.
pub struct Runner<'a> {
    run: Run<'a>,
    number: usize,
    /// How many runners hold it.
    held: &'a AtomicU32,
}

impl<'a> Runner<'a> {
    pub fn new(run: Run<'a>, number: usize, held: &'a AtomicU32) -> Self {
        Self { run, number, held }
    }

    /// Works until the run is over, and returns how often it was granted what it asked for.
    pub fn work(self) -> u64 {
        let mut grants = 0;
        let Some(client) = self.run.connect(self.number, |builder| builder.ttl(LONG)) else { return 0 };
        while self.run.is_running() {
            let acquire = client.counter(RUNNERS_NAME).maximum(RUNNERS_MAXIMUM);
            let permit = match client.wait(acquire.timeout(OPERATION).acquire()) {
                Ok(permit) => permit,
                Err(error) => {
                    self.run.note_unexplained(&error);
                    continue;
                }
            };
            let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
            if held > RUNNERS_MAXIMUM {
                let what = format!("{held} runners hold what {RUNNERS_MAXIMUM} may hold: {permit:?}");
                self.run.unexpected.lock().unwrap().push(what);
            }
            self.held.fetch_sub(1, Ordering::SeqCst);
            grants += 1;
            if let Err(error) = client.wait(permit.release()) {
                self.run.note_unexplained(&error);
            }
        }
        client.close();
        grants
    }
}

/// How long a permit is held: mostly a short time, sometimes longer than a failover takes.
pub fn span(random: &mut Rng) -> Duration {
    let ms = if random.u8(..10) < 8 { random.u64(5..200) } else { random.u64(500..4_000) };
    Duration::from_millis(ms)
}

/// Acquires without a lease at any node, and releases, again and again, as a client of yrmcds does.
pub struct PlainWorker<'a> {
    run: Run<'a>,
    number: usize,
    machine: usize,
    random: Rng,
    beliefs: Vec<PlainBelief>,
}

impl<'a> PlainWorker<'a> {
    pub fn new(run: Run<'a>, number: usize, machine: usize, seed: u64) -> Self {
        Self { run, number, machine, random: Rng::with_seed(seed), beliefs: Vec::new() }
    }

    /// Works until the run is over, and returns what it believed.
    pub fn work(mut self, progress: &Progress) -> Vec<PlainBelief> {
        while self.run.is_running() {
            let node = self.random.usize(..self.run.addresses.len());
            let connected = TcpStream::connect_timeout(&self.run.addresses[node], CONNECT);
            let served = connected.map(Wire::over).and_then(|mut wire| {
                wire.stream.set_read_timeout(Some(OPERATION))?;
                self.work_with(&mut wire, node, progress)
            });
            // It may fail in any way at any time.
            if served.is_err() {
                sleep(Duration::from_millis(20));
            }
        }
        self.beliefs
    }

    /// Works with a connection until that is lost, or for a while.
    fn work_with(&mut self, wire: &mut Wire, node: usize, progress: &Progress) -> io::Result<()> {
        while self.run.is_running() && self.random.u8(..20) > 0 {
            let asked = Instant::now();
            wire.stream.write_all(&frame(ACQUIRE, *b"held", &named(&[1, PLAIN_MAXIMUM], PLAIN_NAME)))?;
            let status = wire.try_answer()?.status;
            // They do not wait in a queue, so none of them is sure to be granted something soon.
            progress.note(self.number, asked);
            match status {
                OK => {}
                NOT_AVAILABLE => {
                    sleep(Duration::from_millis(5));
                    continue;
                }
                status => {
                    self.run.unexpected.lock().unwrap().push(format!("a plain Acquire: status {status}"));
                    return Ok(());
                }
            }
            if !self.hold(wire, node)? {
                return Ok(());
            }
            // Often, the end of the connection releases it.
            if self.random.u8(..3) == 0 {
                return Ok(());
            }
            wire.stream.write_all(&frame(RELEASE, *b"held", &named(&[1], PLAIN_NAME)))?;
            wire.try_answer()?;
        }
        Ok(())
    }

    /// Holds for a random time; `false` if the connection was closed before.
    fn hold(&mut self, wire: &mut Wire, node: usize) -> io::Result<bool> {
        let granted = Instant::now();
        let enough = granted + span(&mut self.random);
        wire.stream.set_nonblocking(true)?;
        let mut until = granted;
        let mut is_open = true;
        while is_open && until < enough && self.run.is_running() {
            sleep(LOOK);
            // Read before the look, since the connection may be closed between the two.
            let now = Instant::now();
            is_open =
                matches!(wire.stream.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            if is_open {
                until = now;
            }
        }
        wire.stream.set_nonblocking(false)?;
        let (worker, machine) = (self.number, self.machine);
        self.beliefs.push(PlainBelief { worker, machine, node, granted, until });
        Ok(is_open)
    }
}

/// Declares semaphores and changes their capacities.
pub struct Administrator<'a> {
    run: Run<'a>,
    random: Rng,
    declared: Declared,
}

/// What an administrator knows of each semaphore.
#[derive(Default)]
pub struct Declared(BTreeMap<String, Told>);

#[derive(Default)]
struct Told {
    /// Of the last change that was acknowledged; 0 if none was.
    generation: u64,
    capacity: u32,
    /// The capacities of the requests since then, whose outcome is unknown.
    maybe: Vec<u32>,
}

impl<'a> Administrator<'a> {
    pub fn new(run: Run<'a>, seed: u64) -> Self {
        Self { run, random: Rng::with_seed(seed), declared: Declared::default() }
    }

    /// Works until the run is over, and returns what it was told.
    pub fn work(mut self) -> Declared {
        if let Some(client) = self.run.connect(0, |builder| builder.ttl(SHORT)) {
            let mut direct = None;
            while self.run.is_running() {
                direct = match direct.take() {
                    None => self.within(&client, client.direct()),
                    Some(direct) => self.change(&client, &direct).then_some(direct),
                };
                sleep(Duration::from_millis(20));
            }
            client.close();
        }
        self.declared
    }

    /// The result of an operation; `None` if it failed or took too long.
    fn within<T>(&self, client: &Client, operation: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let outcome = client.wait(async { tokio::time::timeout(OPERATION, operation).await }).ok()?;
        outcome.inspect_err(|error| self.run.note_unexplained(error)).ok()
    }

    /// Makes a change; `false` if its outcome is unknown.
    fn change(&mut self, client: &Client, direct: &Direct) -> bool {
        let known = self.declared.0.len();
        let number = self.random.usize(..(known + 1).min(100));
        let name = format!("declared/{number:02}");
        let capacity = self.random.u32(1..1_000_000);
        let told = self.declared.0.get(&name);
        let operation = if told.is_some_and(|told| told.generation > 0) && self.random.bool() {
            Operation::Resize { name: name.as_bytes(), how: Resizing::To(capacity), expected: None }
        } else {
            let declaration = Declaration { name: name.as_bytes(), capacity, numbered: false, label: b"" };
            Operation::Declare { if_exists: IfExists::Set, declarations: vec![declaration] }
        };
        let state = self.within(client, direct.change(&operation)).map(|changed| changed.states()[0]);
        let told = self.declared.0.entry(name).or_default();
        match state {
            Some(state) => {
                let generation = state.generation.0;
                assert!(generation > told.generation, "{generation} after {}", told.generation);
                assert_eq!(state.capacity, capacity);
                *told = Told { generation, capacity, maybe: Vec::new() };
            }
            None => told.maybe.push(capacity),
        }
        state.is_some()
    }
}

impl Declared {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Panics if something acknowledged is not there.
    pub fn check(&self, client: &Client) {
        let mut found = BTreeMap::new();
        client.wait(async {
            let mut entries = client.direct().await.unwrap().list(b"declared/").await.unwrap();
            while let Some(entry) = entries.next().await {
                let entry = entry.unwrap();
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                found.insert(name, (entry.generation.0, entry.capacity));
            }
        });
        for (name, told) in self.0.iter().filter(|(_, told)| told.generation > 0) {
            let (generation, capacity) =
                *found.get(name).unwrap_or_else(|| panic!("{name} was acknowledged but is lost: {found:?}"));
            let is_known = match generation == told.generation {
                true => capacity == told.capacity,
                false => generation > told.generation && told.maybe.contains(&capacity),
            };
            assert!(
                is_known,
                "{name}: acknowledged {} of {}, maybe {:?}; found {capacity} of {generation}",
                told.capacity, told.generation, told.maybe
            );
        }
    }
}

/// Acquires more and more, and holds all of it.
pub struct Keeper<'a> {
    run: Run<'a>,
}

/// The permits that a keeper holds, and its client.
pub struct Kept {
    client: Option<Client>,
    permits: Vec<Permit>,
}

impl<'a> Keeper<'a> {
    pub fn new(run: Run<'a>) -> Self {
        Self { run }
    }

    /// Works until the run is over, and returns what it holds.
    pub fn work(self) -> Kept {
        let client = self.run.connect(1, |builder| builder.ttl(LONG).unreachable_after(SHORT));
        let mut permits = Vec::new();
        if let Some(client) = &client {
            while self.run.is_running() {
                let acquire = client.counter(KEPT_NAME).maximum(1_000_000);
                match client.wait(acquire.timeout(OPERATION).acquire()) {
                    Ok(permit) => permits.push(permit),
                    Err(error) => self.run.note_unexplained(&error),
                }
                sleep(Duration::from_millis(200));
            }
        }
        Kept { client, permits }
    }
}

impl Kept {
    pub fn len(&self) -> usize {
        self.permits.len()
    }

    /// Panics if a permit was lost, or is unknown to the server.
    pub fn check(&self, client: &Client) {
        let lost: Vec<_> = self.permits.iter().filter(|permit| !permit.is_held()).collect();
        assert!(lost.is_empty(), "{lost:#?}");
        assert!(self.permits.is_sorted_by(|former, latter| former.id() < latter.id()), "ids grow");
        let mut holders = Vec::new();
        client.wait(async {
            let direct = client.direct().await.unwrap();
            let mut entries = direct.holders(Namespace::Counters, KEPT_NAME.as_bytes()).await.unwrap();
            while let Some(entry) = entries.next().await {
                holders.extend(entry.unwrap().grant);
            }
        });
        for permit in &self.permits {
            assert!(holders.contains(&permit.id()), "{permit:?} is lost: {holders:?}");
        }
        assert!(self.client.is_some());
    }
}
