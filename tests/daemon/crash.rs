//! The daemon under load is killed at random moments and restarted on the same data directory, many times: acknowledged
//! state exists, and nothing exists twice.
//!
//! Each of eight clients has a leased session and at most one request in flight when the daemon is killed. After the
//! restart each client repeats that request with its ids, and then the state of the daemon must equal what the clients
//! know. A failure prints its round; the moments of the kills are not reproducible. `SIGNALBOX_CRASHES` sets the number
//! of rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use crate::support::caller::{Changes, NOW, declaring};
use crate::support::daemon::*;
use crate::support::*;
use nix::sys::signal::Signal;
use signalbox_model::{
    AS_DECLARED, Claim, Declaration, DeclaredEntry, GrantId, IfExists, Milliseconds, Namespace, Operation,
    Removal, RequestId, RequestIds, Resizing, Status,
};
use signalbox_protocol::{Extended, Opaque, OpenedSession, ResponseFrame};

const ROUNDS: u32 = 50;
const CLIENTS: usize = 8;

/// Numbered, and never resized.
const FIXED: &[u8] = b"fixed";
const FIXED_CAPACITY: u32 = 12;
/// Numbered, and resized by the first client.
const MOVING: &[u8] = b"moving";
/// All clients grow it by one repeatedly: each growth counts once.
const GROWING: &[u8] = b"growing";

/// Longer than all rounds.
const TTL: Milliseconds = Milliseconds(3_600_000);

/// The request of a client.
#[derive(Clone, Debug)]
enum Op {
    Open,
    Close,
    Take {
        name: &'static [u8],
        namespace: Namespace,
        resources: u32,
    },
    Release(GrantId),
    Grow,
    Resize(u32),
    /// The client's own semaphore.
    Declare {
        capacity: u32,
        numbered: bool,
    },
    ResizeOwn(u32),
    RemoveOwn,
}

/// A grant that was acknowledged to a client.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    name: &'static [u8],
    slots: Vec<u16>,
}

/// A client and the state that was acknowledged to it.
struct Client {
    number: usize,
    own: Vec<u8>,
    session: Option<OpenedSession>,
    request: u64,
    /// Sent and not answered.
    pending: Option<Op>,
    held: BTreeMap<GrantId, Held>,
    /// Acknowledged releases.
    released: BTreeSet<GrantId>,
    /// Capacity and generation of its own semaphore.
    declared: Option<(u32, u64)>,
    moving: u32,
    growths: u32,
    /// The highest grant id or generation that it received.
    highest: u64,
    answers: u64,
    random: fastrand::Rng,
}

/// The grants of a name: session, resources and slots.
type Holders = BTreeMap<GrantId, (u64, u32, Vec<u16>)>;

struct Connection {
    wire: Wire,
    serial: u32,
}

impl Connection {
    fn open(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { wire: Wire::over(std::net::TcpStream::connect(address)?), serial: 0 })
    }

    fn ask(&mut self, request: &Extended<'_>) -> io::Result<ResponseFrame> {
        self.serial += 1;
        let opaque = Opaque(self.serial.to_be_bytes());
        let mut bytes = Vec::new();
        request.compose(opaque, &mut bytes);
        self.wire.stream.write_all(&bytes)?;
        self.next(opaque)
    }

    fn next(&mut self, opaque: Opaque) -> io::Result<ResponseFrame> {
        let Answer { opcode, status, opaque: answered, body, .. } = self.wire.try_answer()?;
        assert_eq!(Opaque(answered), opaque);
        Ok(ResponseFrame { opcode, status, opaque, body: body.into() })
    }

    fn list(&mut self) -> io::Result<BTreeMap<Vec<u8>, DeclaredEntry<bytes::Bytes>>> {
        let mut answer = self.ask(&Extended::List { prefix: b"" })?;
        let mut entries = BTreeMap::new();
        while let Some(entry) = answer.declared_entry().unwrap() {
            entries.insert(entry.name.to_vec(), entry);
            answer = self.next(answer.opaque)?;
        }
        Ok(entries)
    }

    fn holders(&mut self, namespace: Namespace, name: &[u8]) -> io::Result<Holders> {
        let mut answer = self.ask(&Extended::Holders { namespace, name })?;
        let mut holders = BTreeMap::new();
        if answer.status == NOT_FOUND {
            return Ok(holders);
        }
        while let Some(entry) = answer.list_entry().unwrap() {
            let before = holders.insert(entry.grant.unwrap(), (entry.session, entry.resources, entry.slots));
            assert!(before.is_none(), "a grant is listed twice");
            answer = self.next(answer.opaque)?;
        }
        Ok(holders)
    }
}

impl Client {
    fn new(number: usize) -> Self {
        Self {
            number,
            own: format!("own-{number}").into_bytes(),
            session: None,
            request: 0,
            pending: None,
            held: BTreeMap::new(),
            released: BTreeSet::new(),
            declared: None,
            moving: 0,
            growths: 0,
            highest: 0,
            answers: 0,
            random: fastrand::Rng::with_seed(number as u64),
        }
    }

    /// Sends one request after the other until the daemon is killed.
    fn work(&mut self, address: SocketAddr) -> io::Result<()> {
        let mut connection = Connection::open(address)?;
        self.resume(&mut connection)?;
        loop {
            let op = self.choose();
            self.do_one(&mut connection, op)?;
        }
    }

    fn choose(&mut self) -> Op {
        if self.session.is_none() {
            return Op::Open;
        }
        let random = &mut self.random;
        match random.u8(0..100) {
            0 => Op::Close,
            1..45 if self.held.len() < 4 => {
                let (name, namespace) = *random
                    .choice(&[
                        (FIXED, Namespace::Semaphores),
                        (MOVING, Namespace::Semaphores),
                        (b"counter", Namespace::Counters),
                    ])
                    .unwrap();
                Op::Take { name, namespace, resources: random.u32(1..4) }
            }
            1..70 if !self.held.is_empty() => {
                Op::Release(*self.held.keys().nth(random.usize(0..self.held.len())).unwrap())
            }
            70..80 if self.number == 0 => Op::Resize(random.u32(1..40)),
            _ if random.u8(0..3) == 0 => Op::Grow,
            _ => match self.declared {
                None => Op::Declare { capacity: random.u32(0..100), numbered: random.bool() },
                Some(_) if random.u8(0..4) == 0 => Op::RemoveOwn,
                Some(_) => Op::ResizeOwn(random.u32(0..100)),
            },
        }
    }

    fn do_one(&mut self, connection: &mut Connection, op: Op) -> io::Result<()> {
        if !matches!(op, Op::Open | Op::Close) {
            self.request += 1;
        }
        self.pending = Some(op.clone());
        let answer = self.send(connection, &op)?;
        self.pending = None;
        self.note(&op, &answer, false);
        Ok(())
    }

    /// Sends the request with the ids of the last request.
    fn send(&self, connection: &mut Connection, op: &Op) -> io::Result<ResponseFrame> {
        let ids =
            RequestIds { own: RequestId(self.request), lowest_unanswered: RequestId(self.request.max(1)) };
        let own = &self.own[..];
        let expected = None;
        let change = |operation| Extended::Change { ids, operation };
        let resize = |name, how| change(Operation::Resize { expected, how, name });
        match *op {
            Op::Open => connection.ask(&Extended::OpenSession { ttl: Some(TTL), label: b"", key: None }),
            Op::Close => connection.ask(&Extended::CloseSession),
            Op::Take { name, namespace, resources } => {
                let maximum = if namespace == Namespace::Counters { 20 } else { AS_DECLARED };
                let claim = Claim { namespace: Some(namespace), name, resources, maximum, slot: None };
                connection.ask(&Extended::AcquireGrant {
                    ids,
                    claim,
                    queueing: NOW,
                    place: None,
                    is_shared: false,
                })
            }
            Op::Release(grant) => connection.ask(&Extended::ReleaseGrant { ids, grant, is_done: false }),
            Op::Grow => connection.ask(&resize(GROWING, Resizing::GrowBy(1))),
            Op::Resize(to) => connection.ask(&resize(MOVING, Resizing::To(to))),
            Op::ResizeOwn(to) => connection.ask(&resize(own, Resizing::To(to))),
            Op::Declare { capacity, numbered } => {
                let list = [Declaration { name: own, capacity, numbered, label: b"own" }];
                connection.ask(&change(declaring(IfExists::Fail, &list)))
            }
            Op::RemoveOwn => {
                let how = Removal::WithLastHolder;
                connection.ask(&change(Operation::Remove { expected, how, name: own }))
            }
        }
    }

    /// Processes an answer. Only a repeated request may have been executed before.
    fn note(&mut self, op: &Op, answer: &ResponseFrame, is_repeated: bool) {
        self.answers += 1;
        let is_new = |highest: u64, id: u64| id > highest || is_repeated;
        if let (Op::Take { .. }, NOT_AVAILABLE) = (op, answer.status) {
            return;
        }
        if let Op::Release(grant) = op {
            // The reply to a stored Release is not cached: the grant no longer exists and cannot be released twice.
            let was_done = is_repeated && answer.status == NOT_ACQUIRED;
            assert!(answer.status == OK || was_done, "{op:?}: {answer:?}");
            self.held.remove(grant);
            self.released.insert(*grant);
            return;
        }
        assert_eq!(answer.status, OK, "client {}: {op:?}, repeated: {is_repeated}: {answer:?}", self.number);
        match *op {
            Op::Open => {
                self.session = Some(answer.opened().unwrap());
                self.request = 0;
            }
            Op::Close => self.end_session(),
            Op::Take { name, resources, namespace } => {
                let granted = answer.granted().unwrap();
                assert!(is_new(self.highest, granted.grant.0), "{granted:?} after {}", self.highest);
                self.highest = self.highest.max(granted.grant.0);
                let slots = if namespace == Namespace::Semaphores { resources as usize } else { 0 };
                assert_eq!(granted.slots.len(), slots);
                self.held.insert(granted.grant, Held { name, slots: granted.slots });
            }
            Op::Grow | Op::Resize(_) | Op::ResizeOwn(_) => {
                let declared = answer.resized();
                // A resize to the same capacity changes nothing, and the generation stays.
                let is_change = match *op {
                    Op::Resize(_) => self.moving != declared.capacity,
                    Op::ResizeOwn(_) => self.declared != Some((declared.capacity, declared.generation.0)),
                    _ => true,
                };
                assert!(
                    !is_change || is_new(self.highest, declared.generation.0),
                    "{declared:?} after {}",
                    self.highest
                );
                self.highest = self.highest.max(declared.generation.0);
                match *op {
                    Op::Grow => self.growths += 1,
                    Op::Resize(_) => self.moving = declared.capacity,
                    _ => self.declared = Some((declared.capacity, declared.generation.0)),
                }
            }
            Op::Declare { capacity, .. } => {
                let declared = answer.declared()[0];
                assert!(is_new(self.highest, declared.generation.0), "{declared:?} after {}", self.highest);
                self.highest = self.highest.max(declared.generation.0);
                self.declared = Some((capacity, declared.generation.0));
            }
            Op::RemoveOwn => self.declared = None,
            Op::Release(_) => {}
        }
    }

    fn end_session(&mut self) {
        self.session = None;
        self.released.extend(std::mem::take(&mut self.held).into_keys());
    }

    /// Attaches to the session again, which must exist unless its close was in flight.
    fn resume(&mut self, connection: &mut Connection) -> io::Result<()> {
        let Some(session) = self.session else { return Ok(()) };
        let attach = Extended::AttachSession { session: session.session, key: session.key, repetitions: 0 };
        let status = connection.ask(&attach)?.status;
        if status == Status::NoSuchSession.code() && matches!(self.pending, Some(Op::Close)) {
            self.pending = None;
            self.end_session();
            return Ok(());
        }
        assert_eq!(status, OK, "client {}: its session does not exist", self.number);
        Ok(())
    }

    /// Repeats the request that was not answered, twice, with the same result.
    fn repeat(&mut self, connection: &mut Connection) -> io::Result<()> {
        let Some(op) = self.pending.take() else { return Ok(()) };
        if let Op::Open | Op::Close = op {
            // An Open has no ids, and a session whose key no client knows expires. A Close is not repeated.
            return Ok(());
        }
        let answer = self.send(connection, &op)?;
        let again = self.send(connection, &op)?;
        let without_times =
            |answer: &ResponseFrame| answer.granted().map(|granted| (granted.grant, granted.slots));
        let is_same = if let Op::Take { .. } = op {
            answer.status == again.status
                && (answer.status != OK || without_times(&answer) == without_times(&again))
        } else {
            (answer.status, &answer.body) == (again.status, &again.body)
        };
        assert!(is_same, "client {}: {op:?}: {answer:?}, then {again:?}", self.number);
        self.note(&op, &answer, true);
        Ok(())
    }
}

/// Checks the invariants after a restart, before unanswered requests are repeated.
fn check_acknowledged(clients: &[Client], connection: &mut Connection) -> io::Result<()> {
    let pending =
        |is: fn(&Op) -> bool| clients.iter().filter(|c| c.pending.as_ref().is_some_and(is)).count() as u32;
    let listed = connection.list()?;
    assert_eq!(listed[FIXED].capacity, FIXED_CAPACITY);
    let growths: u32 = clients.iter().map(|client| client.growths).sum();
    let in_flight = pending(|op| matches!(op, Op::Grow));
    let grown = listed[GROWING].capacity;
    assert!(
        (growths..=growths + in_flight).contains(&grown),
        "{growths} and {in_flight} in flight, but {grown}"
    );
    for client in clients {
        let entry = listed.get(&client.own[..]).map(|entry| (entry.capacity, entry.generation.0));
        let is_changing =
            matches!(client.pending, Some(Op::Declare { .. } | Op::ResizeOwn(_) | Op::RemoveOwn));
        assert!(entry == client.declared || is_changing, "{entry:?}, not {:?}", client.declared);
        let known = entry.map_or(0, |(_, generation)| generation);
        assert!(known >= client.declared.map_or(0, |(_, generation)| generation) || is_changing);
        for (grant, held) in &client.held {
            let is_ending = matches!(&client.pending, Some(Op::Close))
                || matches!(&client.pending, Some(Op::Release(id)) if id == grant);
            let answer = connection.ask(&Extended::VerifyGrant { grant: *grant })?;
            if answer.status != OK {
                assert!(is_ending, "client {}: {grant:?} of {held:?} is lost", client.number);
                continue;
            }
            assert_eq!(answer.verified().unwrap().session, client.session.unwrap().session);
        }
        for grant in client.released.iter().rev().take(50) {
            let status = connection.ask(&Extended::VerifyGrant { grant: *grant })?.status;
            assert_eq!(status, NOT_ACQUIRED, "client {}: {grant:?} is held again", client.number);
        }
    }
    if clients[0].moving != 0 && !matches!(clients[0].pending, Some(Op::Resize(_))) {
        assert_eq!(listed[MOVING].capacity, clients[0].moving);
    }
    Ok(())
}

/// Checks that the daemon has exactly the state that the clients know, when every request is answered.
fn check_nothing_else(clients: &[Client], connection: &mut Connection) -> io::Result<()> {
    let listed = connection.list()?;
    let own: BTreeSet<_> = clients.iter().filter(|c| c.declared.is_some()).map(|c| c.own.clone()).collect();
    let others = listed.keys().filter(|name| name.starts_with(b"own-")).cloned().collect::<BTreeSet<_>>();
    assert_eq!(others, own);
    let growths: u32 = clients.iter().map(|client| client.growths).sum();
    assert_eq!(listed[GROWING].capacity, growths, "each growth counts once");
    for (name, namespace) in
        [(FIXED, Namespace::Semaphores), (MOVING, Namespace::Semaphores), (b"counter", Namespace::Counters)]
    {
        let holders = connection.holders(namespace, name)?;
        let mut slots: Vec<_> = holders.values().flat_map(|(_, _, slots)| slots.clone()).collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "a slot is held twice: {holders:?}");
        let in_use: u32 = holders.values().map(|(_, resources, _)| resources).sum();
        if name == FIXED {
            assert!(in_use <= FIXED_CAPACITY && slots.iter().all(|slot| u32::from(*slot) < FIXED_CAPACITY));
        }
        if namespace == Namespace::Semaphores {
            assert_eq!((listed[name].in_use, slots.len() as u32), (in_use, in_use));
        }
        let mut known = BTreeMap::new();
        for client in clients {
            for (grant, held) in client.held.iter().filter(|(_, held)| held.name == name) {
                known.insert(*grant, (client.session.unwrap().session, held.slots.clone()));
            }
        }
        let found: BTreeMap<_, _> =
            holders.into_iter().map(|(grant, (session, _, slots))| (grant, (session, slots))).collect();
        assert_eq!(found, known, "{}", name.escape_ascii());
    }
    Ok(())
}

#[test]
fn acknowledged_state_survives_every_crash_and_nothing_exists_twice() {
    let rounds = std::env::var("SIGNALBOX_CRASHES").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let file = ConfigFile::toml(&format!(
        "workers = 2\ndata_dir = '{}'\nsession.max_ttl = 3600\n",
        directory.path().join("data").display()
    ));
    let mut clients: Vec<_> = (0..CLIENTS).map(Client::new).collect();
    let mut random = fastrand::Rng::new();
    for round in 0..=rounds {
        eprintln!("round {round}");
        let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
        let address = daemon.address("semaphore");
        let mut admin = Connection::open(address).unwrap();
        if round == 0 {
            let declare = |name, capacity, numbered| Declaration { name, capacity, numbered, label: b"" };
            let list =
                [declare(FIXED, FIXED_CAPACITY, true), declare(MOVING, 20, true), declare(GROWING, 0, false)];
            let operation = declaring(IfExists::Fail, &list);
            let request = Extended::Change { ids: RequestIds::FIRST, operation };
            assert_eq!(admin.ask(&request).unwrap().status, OK);
        }
        check_acknowledged(&clients, &mut admin).unwrap();
        for client in &mut clients {
            let mut connection = Connection::open(address).unwrap();
            client.resume(&mut connection).unwrap();
            client.repeat(&mut connection).unwrap();
        }
        check_nothing_else(&clients, &mut admin).unwrap();
        if round == rounds {
            daemon.signal(Signal::SIGUSR1);
            daemon.logged_message("checked the accounting");
            break;
        }
        std::thread::scope(|scope| {
            for client in &mut clients {
                // It ends with the daemon.
                scope.spawn(move || client.work(address).expect_err("it runs until the daemon is killed"));
            }
            std::thread::sleep(Duration::from_millis(random.u64(0..200)));
            daemon.signal(Signal::SIGKILL);
            daemon.exit_status();
        });
    }
    let answers: u64 = clients.iter().map(|client| client.answers).sum();
    eprintln!("{answers} answers in {rounds} rounds");
    assert!(answers > u64::from(rounds), "there was too little load");
}
