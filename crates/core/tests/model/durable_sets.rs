//! Durable System V semaphore sets, with a store that fails and a process that crashes.
//!
//! Clients take units of a semaphore and give them back with SEM_UNDO, each call under a number. They lose connections,
//! are killed, repeat calls, and keep an account of the units that they were told they have. An administrator sets the
//! semaphore, or removes the set and creates it again, which clears the accounts. Whatever happens to the server, in the
//! end the adjustments of each client match its account, and the value is what the accounts leave: nothing acknowledged is
//! lost, and no call has an effect twice.
//!
//! `PROPTEST_CASES=100000 cargo test --release --test model durable_sets` takes more histories.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use proptest::prelude::*;
use signalbox_core::{
    Batch, BatchLimit, Change, CommitOutcome, ConnectionEnd, Core, Key, KeyRule, Mailbox, Message, Moment,
    MonotonicMs, NameHasher, Record, SysvCall, SysvOutcome, SysvRecord, Token,
};
use signalbox_model::sysv::{
    Caller, Errno, IPC_CREAT, IPC_EXCL, IPC_NOWAIT, Operation, ProcessId, SEM_UNDO, SetAnswer, SetCommand,
    SetId, UserRole,
};
use signalbox_model::{ConnectionId, Milliseconds, RequestId, RequestIds, SessionKey, UnixSeconds};

use crate::cases;

const KEY: i32 = 0x5167;
const TTL_MS: u32 = 1000;
const CLIENTS: usize = 4;
/// The value of the semaphore when no client holds a unit.
const UNITS: i16 = 3;
const CALLER: Caller = Caller { uid: 0, gid: 0 };
/// The process that sets the semaphore up and reads it in the end.
const OBSERVER: u32 = 9;

#[derive(Clone, Copy, Debug)]
enum Request {
    Take { units: i16, waits: bool },
    GiveBack,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask {
        by: usize,
        request: Request,
    },
    /// A client repeats the call that it has no result of, over a new connection.
    Repeat {
        by: usize,
    },
    /// A client's connection is lost, and it does not connect again at once.
    Lose {
        by: usize,
    },
    /// A client is killed.
    Kill {
        by: usize,
    },
    /// While no client calls, the semaphore is set to all units, by SETVAL or by SETALL.
    Clear {
        all: bool,
    },
    /// While no client calls, the set is removed and created again. The server may crash in between.
    Remake {
        crashes: bool,
    },
    /// The store begins to commit what is pending.
    Take,
    /// The store finishes. If it fails, it may have the changes nevertheless.
    Complete {
        is_stored: bool,
        is_on_disk: bool,
    },
    /// The server crashes, and the next one restores what is on the disk.
    Crash {
        is_on_disk: bool,
    },
    Time {
        by_ms: u64,
    },
}

#[derive(Default)]
struct Client {
    /// Its process on the server, if it has opened one.
    process: Option<(ProcessId, SessionKey)>,
    connection: Option<(ConnectionId, Arc<Mailbox>)>,
    requests: u64,
    /// The call that it has no result of.
    in_flight: Option<(RequestId, Request)>,
    /// The units that it was told it has.
    units: i16,
    pid: u32,
}

struct World {
    core: Core,
    set: SetId,
    clients: Vec<Client>,
    disk: BTreeMap<Key, Record>,
    batch: Option<Batch>,
    /// The changes of a commit that failed, which must be the next ones.
    failed: Option<Arc<Vec<Change>>>,
    now_ms: u64,
    tokens: u64,
    keys: u8,
}

fn operation(change: i16, waits: bool) -> Operation {
    Operation { number: 0, change, flags: SEM_UNDO | if waits { 0 } else { IPC_NOWAIT } }
}

fn write(disk: &mut BTreeMap<Key, Record>, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(record) => _ = disk.insert(record.key(), record.clone()),
            Change::Delete(key) => _ = disk.remove(key),
        }
    }
}

fn new_core() -> Core {
    let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
    let keys = KEY as u32..=KEY as u32;
    core.set_sysv_rules(vec![KeyRule { keys, order: None, is_durable: true }]);
    core
}

impl World {
    fn new() -> Self {
        let clients: Vec<_> =
            (0..CLIENTS as u32).map(|pid| Client { pid: 100 + pid, ..Client::default() }).collect();
        let mut world = Self {
            core: new_core(),
            set: SetId(0),
            clients,
            disk: BTreeMap::new(),
            batch: None,
            failed: None,
            now_ms: 0,
            tokens: 0,
            keys: 0,
        };
        world.core.keep_journal(Waker::noop().clone(), None);
        world.core.begin_serving(world.now().monotonic, world.now());
        world.store_all();
        world.make_set();
        world
    }

    fn make_set(&mut self) {
        let now = self.now();
        let made = self.observe(|core, call| core.sem_get(call, KEY, 1, IPC_CREAT | IPC_EXCL | 0o600, now));
        let Some(SetAnswer::Set(set, 1)) = made else { panic!("{made:?}") };
        self.set = set;
        self.clear(false);
    }

    /// The observer makes a call, and waits until it is stored. `None`: the store fails.
    fn observe(&mut self, call: impl FnOnce(&Core, SysvCall) -> SysvOutcome) -> Option<SetAnswer> {
        let (observer, mailbox) = self.observer();
        let result = match call(&self.core, self.call(observer, RequestId(1))) {
            SysvOutcome::Answered(result) => result,
            SysvOutcome::Waiting => loop {
                if let Some(Message::Operated { result, .. }) = mailbox.take() {
                    break result;
                }
                self.take();
                self.complete(true, true);
            },
            SysvOutcome::Refused(refusal) => panic!("{refusal:?}"),
        };
        self.core.leave_process(observer, ConnectionEnd::Closed, self.now());
        match result {
            Ok(answer) => Some(answer),
            Err(Errno::Io) => None,
            Err(errno) => panic!("{errno:?}"),
        }
    }

    fn clear(&mut self, all: bool) {
        let (set, now) = (self.set, self.now());
        let values = [UNITS as u16];
        let command =
            if all { SetCommand::SetAll(values.into()) } else { SetCommand::SetValue(0, UNITS.into()) };
        if self.observe(|core, call| core.sem_ctl(call, set, &command, now)).is_some() {
            self.clients.iter_mut().for_each(|client| client.units = 0);
        }
    }

    fn remake(&mut self, crashes: bool) {
        let (set, now) = (self.set, self.now());
        if self.observe(|core, call| core.sem_ctl(call, set, &SetCommand::Remove, now)).is_some() {
            self.clients.iter_mut().for_each(|client| client.units = 0);
            if crashes {
                self.crash(false);
            }
            self.make_set();
        }
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.now_ms), unix: UnixSeconds(1_000 + self.now_ms / 1000) }
    }

    fn new_key(&mut self) -> SessionKey {
        self.keys = self.keys.wrapping_add(1);
        SessionKey([self.keys; 16])
    }

    /// A connection of a process of its own.
    fn observer(&mut self) -> (ConnectionId, Arc<Mailbox>) {
        let (connection, mailbox) = (self.core.open_session().id(), Arc::<Mailbox>::default());
        let key = self.new_key();
        let process = (OBSERVER, CALLER, &[][..]);
        self.core
            .open_process((connection, &mailbox), key, Milliseconds(TTL_MS), process, b"observer", self.now())
            .unwrap();
        (connection, mailbox)
    }

    fn call(&self, connection: ConnectionId, own: RequestId) -> SysvCall {
        let ids = RequestIds { own, lowest_unanswered: own };
        SysvCall { connection, ids, token: Token(self.tokens), caller: CALLER }
    }

    /// Connects a client unless it has a connection. If the server does not know its process, no unit was acknowledged to
    /// it.
    fn connect(&mut self, by: usize) {
        if self.clients[by].connection.is_some() {
            return;
        }
        let (connection, mailbox) = (self.core.open_session().id(), Arc::<Mailbox>::default());
        let attached = self.clients[by].process.map(|(process, key)| {
            self.core.attach_process((connection, &mailbox), process, &key, self.now())
        });
        if !matches!(attached, Some(Ok(_))) {
            let key = self.new_key();
            let process = (self.clients[by].pid, CALLER, &[][..]);
            let at = (connection, &mailbox);
            let opened = self
                .core
                .open_process(at, key, Milliseconds(TTL_MS), process, b"client", self.now())
                .unwrap();
            let client = &mut self.clients[by];
            if attached.is_some() {
                assert_eq!(client.units, 0, "client {by} has units, and the server forgot its process");
                client.in_flight = None;
            }
            client.process = Some((opened.process, key));
            client.requests = 0;
        }
        self.clients[by].connection = Some((connection, mailbox));
    }

    fn ask(&mut self, by: usize, request: Request) {
        self.connect(by);
        let has_units = self.clients[by].units > 0;
        if self.clients[by].in_flight.is_none() && (has_units || matches!(request, Request::Take { .. })) {
            self.clients[by].requests += 1;
            self.clients[by].in_flight = Some((RequestId(self.clients[by].requests), request));
            self.send(by);
        }
    }

    fn repeat(&mut self, by: usize) {
        self.lose(by, ConnectionEnd::Lost);
        self.connect(by);
        self.send(by);
    }

    /// Sends the call in flight.
    fn send(&mut self, by: usize) {
        self.tokens += 1;
        let client = &self.clients[by];
        let (Some((number, request)), Some((connection, _))) = (client.in_flight, &client.connection) else {
            return;
        };
        let operations = match request {
            Request::Take { units, waits } => [operation(-units, waits)],
            Request::GiveBack => [operation(client.units, true)],
        };
        let call = self.call(*connection, number);
        match self.core.sem_op(call, self.set, &operations, None, self.now()).0 {
            SysvOutcome::Answered(result) => self.answered(by, result),
            SysvOutcome::Waiting => {}
            SysvOutcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    fn answered(&mut self, by: usize, result: Result<SetAnswer, Errno>) {
        let client = &mut self.clients[by];
        let (_, request) = client.in_flight.take().expect("a call is answered once");
        match (result, request) {
            (Ok(SetAnswer::Done), Request::Take { units, .. }) => client.units += units,
            (Ok(SetAnswer::Done), Request::GiveBack) => client.units = 0,
            (Err(Errno::Again | Errno::Io), _) => {}
            other => panic!("{other:?}"),
        }
        // Other clients may already have the units that a client is giving back.
        let holds = |client: &&Client| !matches!(client.in_flight, Some((_, Request::GiveBack)));
        let units: i16 = self.clients.iter().filter(holds).map(|client| client.units).sum();
        assert!(units <= UNITS, "{units} of {UNITS} units are held");
    }

    fn read_answers(&mut self) {
        for by in 0..CLIENTS {
            let mailbox = self.clients[by].connection.as_ref().map(|(_, mailbox)| Arc::clone(mailbox));
            while let Some(message) = mailbox.as_ref().and_then(|mailbox| mailbox.take()) {
                let Message::Operated { token: _, result } = message else { panic!("{message:?}") };
                self.answered(by, result);
            }
        }
    }

    fn lose(&mut self, by: usize, how: ConnectionEnd) {
        if let Some((connection, _)) = self.clients[by].connection.take() {
            self.core.leave_process(connection, how, self.now());
        }
    }

    fn kill(&mut self, by: usize) {
        // A process without a connection has its units until its time to live is over.
        if self.clients[by].connection.is_none() {
            return;
        }
        self.lose(by, ConnectionEnd::Closed);
        let pid = self.clients[by].pid;
        self.clients[by] = Client { pid, ..Client::default() };
    }

    fn take(&mut self) {
        if self.batch.is_none() {
            self.batch = self.core.take_batch(BatchLimit { changes: 4, ..BatchLimit::NONE });
            if let Some(failed) = self.failed.take() {
                assert_eq!(self.batch.as_ref().map(|batch| &batch.changes), Some(&failed));
            }
        }
    }

    fn complete(&mut self, is_stored: bool, is_on_disk: bool) {
        let Some(batch) = self.batch.take() else { return };
        if is_stored || is_on_disk {
            write(&mut self.disk, &batch.changes);
        }
        let outcome = if is_stored {
            CommitOutcome::Stored
        } else {
            self.failed = Some(Arc::clone(&batch.changes));
            CommitOutcome::Failed
        };
        while self.core.complete(&batch, outcome, 1, self.now()) {
            self.core.check_sysv().unwrap();
        }
    }

    fn store_all(&mut self) {
        while !self.core.is_stored() {
            self.take();
            self.complete(true, true);
        }
    }

    fn crash(&mut self, is_on_disk: bool) {
        self.failed = None;
        if let Some(batch) = self.batch.take().filter(|_| is_on_disk) {
            write(&mut self.disk, &batch.changes);
        }
        // Answers that the server has sent arrive.
        self.read_answers();
        self.core = new_core();
        for record in self.disk.values() {
            self.core.restore(record.clone(), self.now()).unwrap();
        }
        self.core.keep_journal(Waker::noop().clone(), None);
        self.core.begin_serving(self.now().monotonic, self.now());
        self.store_all();
        for by in 0..CLIENTS {
            self.clients[by].connection = None;
            self.connect(by);
            self.send(by);
        }
    }

    fn pass(&mut self, by_ms: u64) {
        self.now_ms += by_ms;
        // A client that is still there returns before its process ends.
        (0..CLIENTS).for_each(|by| self.connect(by));
        while self.core.expire(self.now()) {}
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask { by, request } => self.ask(by, request),
            Step::Repeat { by } => self.repeat(by),
            Step::Lose { by } => self.lose(by, ConnectionEnd::Lost),
            Step::Kill { by } => self.kill(by),
            Step::Clear { .. } | Step::Remake { .. }
                if self.clients.iter().any(|client| client.in_flight.is_some()) => {}
            Step::Clear { all } => self.clear(all),
            Step::Remake { crashes } => self.remake(crashes),
            Step::Take => self.take(),
            Step::Complete { is_stored, is_on_disk } => self.complete(is_stored, is_on_disk),
            Step::Crash { is_on_disk } => self.crash(is_on_disk),
            Step::Time { by_ms } => self.pass(by_ms),
        }
        self.read_answers();
        self.core.check_sysv().unwrap();
    }

    /// The disk works again, every client repeats its call, and the processes of killed clients end.
    fn end(&mut self) {
        self.complete(true, true);
        self.store_all();
        self.crash(true);
        self.store_all();
        self.read_answers();
        self.pass(2 * u64::from(TTL_MS));
        self.store_all();
        self.read_answers();
        self.core.check_sysv().unwrap();

        let (observer, mailbox) = self.observer();
        let call = self.call(observer, RequestId(1));
        let result = match self.core.sem_ctl(call, self.set, &SetCommand::GetValue(0), self.now()) {
            SysvOutcome::Answered(result) => result,
            other => panic!("{other:?} {:?}", mailbox.take()),
        };
        let units: i16 = self.clients.iter().map(|client| client.units).sum();
        assert_eq!(
            result,
            Ok(SetAnswer::Number((UNITS - units) as u32)),
            "the value is what the clients leave"
        );
        let mut listing = self.core.set_users(self.set).unwrap();
        let mut adjustments = BTreeMap::new();
        loop {
            let users = self.core.list_set_users(&mut listing);
            if users.is_empty() {
                break;
            }
            let adjusting = users.iter().filter(|user| user.role == UserRole::Adjusts);
            adjustments.extend(adjusting.map(|user| (user.process, user.operations[0].change)));
        }
        let accounts: BTreeMap<_, _> = self
            .clients
            .iter()
            .filter(|client| client.units != 0)
            .map(|client| (client.process.expect("it called").0, client.units))
            .collect();
        assert_eq!(adjustments, accounts, "each client has what it was told");
        self.only_what_lives_is_stored();
    }

    /// The disk has the set, processes that live, and what belongs to them.
    fn only_what_lives_is_stored(&self) {
        let lives = |process: ProcessId| {
            self.clients.iter().any(|client| client.process.is_some_and(|(own, _)| own == process))
        };
        let mut results = BTreeMap::<ProcessId, usize>::new();
        for record in self.disk.values() {
            let Record::Sysv(record) = record else { continue };
            let process = match record {
                SysvRecord::Set(set) => {
                    assert_eq!(set.key, KEY);
                    continue;
                }
                SysvRecord::Process(process) => process.process,
                SysvRecord::Adjustments(adjustments) => {
                    assert_eq!(adjustments.set, self.set);
                    adjustments.process
                }
                SysvRecord::Result(result) => {
                    *results.entry(result.process).or_default() += 1;
                    result.process
                }
            };
            assert!(lives(process), "{record:?} is of a process that has ended");
        }
        // Stored for each client are the last result and those that its next call deletes: no more than its calls since a crash.
        assert!(results.values().all(|results| *results <= 2), "results pile up: {results:?}");
    }
}

fn steps() -> impl Strategy<Value = Step> {
    let by = || 0..CLIENTS;
    let requests = prop_oneof![
        3 => (1..=2i16, any::<bool>()).prop_map(|(units, waits)| Request::Take { units, waits }),
        2 => Just(Request::GiveBack),
    ];
    prop_oneof![
        20 => (by(), requests).prop_map(|(by, request)| Step::Ask { by, request }),
        5 => by().prop_map(|by| Step::Repeat { by }),
        2 => by().prop_map(|by| Step::Lose { by }),
        2 => by().prop_map(|by| Step::Kill { by }),
        2 => any::<bool>().prop_map(|all| Step::Clear { all }),
        1 => any::<bool>().prop_map(|crashes| Step::Remake { crashes }),
        12 => Just(Step::Take),
        12 => Just(Step::Complete { is_stored: true, is_on_disk: true }),
        3 => any::<bool>().prop_map(|is_on_disk| Step::Complete { is_stored: false, is_on_disk }),
        3 => any::<bool>().prop_map(|is_on_disk| Step::Crash { is_on_disk }),
        2 => prop::sample::select(vec![1, 400, 900]).prop_map(|by_ms| Step::Time { by_ms }),
    ]
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn clients_have_what_they_were_told_whatever_happens_to_the_server(
        history in prop::collection::vec(steps(), 1..60),
    ) {
        take(&history);
    }
}

fn take(history: &[Step]) {
    let mut world = World::new();
    for step in history {
        world.step(*step);
    }
    world.end();
}
