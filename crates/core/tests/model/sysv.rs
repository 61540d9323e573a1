//! System V semaphore sets where they go beyond the kernel's rules, call by call. `crates/sysv/tests/differential` compares random
//! histories with the kernel.

use std::sync::Arc;

use signalbox_core::{
    ClientKey, ClientShare, ConnectionEnd, Core, KeyRule, Mailbox, MemoryLimit, Message, Moment, MonotonicMs,
    NameHasher, SetCheck, SysvCall, SysvLimits, SysvOutcome, Token,
};
use signalbox_model::sysv::{
    Caller, Errno, IPC_CREAT, IPC_EXCL, IPC_NOWAIT, OpenedProcess, Operation, Order, Ownership, SEM_UNDO,
    SetAnswer, SetCommand, SetId, UserRole,
};
use signalbox_model::{
    ConnectionId, Limit, Milliseconds, ReachedLimit, Refusal, RequestId, RequestIds, SessionKey, UnixSeconds,
};

const TTL_MS: u32 = 30_000;
const KEY: i32 = 0xbc_614e;

/// A core with processes, each of which has one connection.
struct World {
    core: Core,
    processes: Vec<Process>,
    now_ms: u64,
}

struct Process {
    connection: ConnectionId,
    mailbox: Arc<Mailbox>,
    opened: OpenedProcess,
    caller: Caller,
    requests: u64,
}

fn take(number: u16, amount: i16) -> Operation {
    Operation { number, change: -amount, flags: 0 }
}

fn post(number: u16, amount: i16) -> Operation {
    Operation { number, change: amount, flags: 0 }
}

fn zero(number: u16) -> Operation {
    Operation { number, change: 0, flags: 0 }
}

fn nowait(operation: Operation) -> Operation {
    Operation { flags: operation.flags | IPC_NOWAIT, ..operation }
}

fn undo(operation: Operation) -> Operation {
    Operation { flags: operation.flags | SEM_UNDO, ..operation }
}

impl World {
    /// Processes with the numbers 100, 101, and so on.
    fn new(count: u32) -> Self {
        let core = Core::new(10.try_into().unwrap(), NameHasher::with_seeds(1, 2, 3, 4));
        let mut world = Self { core, processes: Vec::new(), now_ms: 0 };
        for pid in 100..100 + count {
            world.start(pid, Caller { uid: 0, gid: 0 }, &[]);
        }
        world
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.now_ms), unix: UnixSeconds(1_000 + self.now_ms / 1000) }
    }

    fn start(&mut self, pid: u32, caller: Caller, groups: &[u32]) -> usize {
        self.start_of(Arc::default(), pid, caller, groups)
    }

    /// Starts a process of the client with this mailbox.
    fn start_of(&mut self, mailbox: Arc<Mailbox>, pid: u32, caller: Caller, groups: &[u32]) -> usize {
        let connection = self.core.open_session().id();
        let process = (pid, caller, groups);
        let key = SessionKey([pid as u8; 16]);
        let opened = self
            .core
            .open_process((connection, &mailbox), key, Milliseconds(TTL_MS), process, b"test", self.now())
            .unwrap();
        self.processes.push(Process { connection, mailbox, opened, caller, requests: 0 });
        self.processes.len() - 1
    }

    fn call(&mut self, by: usize) -> SysvCall {
        let process = &mut self.processes[by];
        process.requests += 1;
        let own = RequestId(process.requests);
        SysvCall {
            connection: process.connection,
            ids: RequestIds { own, lowest_unanswered: RequestId(1) },
            token: Token(process.requests),
            caller: process.caller,
        }
    }

    fn get(&mut self, by: usize, key: i32, count: u32, flags: u32) -> Result<SetId, Errno> {
        let call = self.call(by);
        match self.core.sem_get(call, key, count, flags | 0o600, self.now()) {
            SysvOutcome::Answered(Ok(SetAnswer::Set(set, _))) => Ok(set),
            SysvOutcome::Answered(Err(errno)) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    fn set(&mut self, count: u32) -> SetId {
        self.get(0, KEY, count, IPC_CREAT | IPC_EXCL).unwrap()
    }

    fn op(&mut self, by: usize, set: SetId, operations: &[Operation]) -> SysvOutcome {
        let call = self.call(by);
        let outcome = self.core.sem_op(call, set, operations, None, self.now()).0;
        self.check();
        outcome
    }

    fn done(&mut self, by: usize, set: SetId, operations: &[Operation]) {
        assert_eq!(self.op(by, set, operations), SysvOutcome::Answered(Ok(SetAnswer::Done)));
    }

    fn waits(&mut self, by: usize, set: SetId, operations: &[Operation]) {
        assert_eq!(self.op(by, set, operations), SysvOutcome::Waiting);
    }

    fn fails(&mut self, by: usize, set: SetId, operations: &[Operation], errno: Errno) {
        assert_eq!(self.op(by, set, operations), SysvOutcome::Answered(Err(errno)));
    }

    fn control(&mut self, by: usize, set: SetId, command: SetCommand) -> Result<SetAnswer, Errno> {
        let call = self.call(by);
        let outcome = self.core.sem_ctl(call, set, &command, self.now());
        self.check();
        let SysvOutcome::Answered(result) = outcome else { panic!("{outcome:?}") };
        result
    }

    fn set_value(&mut self, set: SetId, number: u32, value: i32) {
        assert_eq!(self.control(0, set, SetCommand::SetValue(number, value)), Ok(SetAnswer::Done));
    }

    fn values(&mut self, set: SetId) -> Vec<u16> {
        match self.control(0, set, SetCommand::GetAll) {
            Ok(SetAnswer::Values(values)) => values.into(),
            other => panic!("{other:?}"),
        }
    }

    /// The results of calls of a process that waited.
    fn results(&self, by: usize) -> Vec<Result<(), Errno>> {
        let messages = std::iter::from_fn(|| self.processes[by].mailbox.take());
        let result = |message| match message {
            Message::Operated { result, .. } => result.map(|answer| assert_eq!(answer, SetAnswer::Done)),
            other => panic!("{other:?}"),
        };
        messages.map(result).collect()
    }

    fn leave(&mut self, by: usize, how: ConnectionEnd) {
        self.core.leave_process(self.processes[by].connection, how, self.now());
        self.expire();
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.expire();
    }

    fn expire(&self) {
        while self.core.expire(self.now()) {
            self.check();
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.core.check_sysv(), Ok(()));
    }
}

const DONE: [Result<(), Errno>; 1] = [Ok(())];

#[test]
fn a_set_is_found_by_its_key_or_created() {
    let mut world = World::new(1);
    assert_eq!(world.get(0, KEY, 3, 0), Err(Errno::NoEnt));
    assert_eq!(world.get(0, KEY, 0, IPC_CREAT), Err(Errno::Inval), "a new set has semaphores");
    assert_eq!(world.get(0, KEY, 32_001, IPC_CREAT), Err(Errno::Inval));
    let set = world.get(0, KEY, 3, IPC_CREAT | IPC_EXCL).unwrap();
    assert_eq!(world.get(0, KEY, 3, IPC_CREAT | IPC_EXCL), Err(Errno::Exist));
    for count in 0..=3 {
        assert_eq!(world.get(0, KEY, count, IPC_CREAT), Ok(set));
    }
    assert_eq!(world.get(0, KEY, 4, 0), Err(Errno::Inval), "it has fewer");
    assert_eq!(world.values(set), [0, 0, 0]);
    let private = [(); 2].map(|()| world.get(0, 0, 1, 0).unwrap());
    assert!(private[0] != private[1] && !private.contains(&set), "sets without a key are new");
    assert_eq!(world.control(0, set, SetCommand::Remove), Ok(SetAnswer::Done));
    assert_ne!(world.get(0, KEY, 3, IPC_CREAT), Ok(set), "another id");
    assert_eq!(world.control(0, set, SetCommand::GetAll), Err(Errno::Inval));
    assert_eq!(
        world.op(0, SetId(5), &[post(0, 1)]),
        SysvOutcome::Answered(Err(Errno::Inval)),
        "an id of a kernel"
    );
}

#[test]
fn limits_of_sets_and_processes_are_obeyed() {
    let mut world = World::new(2);
    let limits =
        SysvLimits { processes_max: 2, sets_max: 2, semaphores_max: 5, waiters_max: 1, ..SysvLimits::NONE };
    world.core.set_sysv_limits(limits);
    let set = world.set(3);
    assert_eq!(world.get(0, 1, 3, IPC_CREAT), Err(Errno::NoSpc), "too many semaphores");
    assert!(world.get(0, 1, 2, IPC_CREAT).is_ok());
    assert_eq!(world.get(0, 2, 1, IPC_CREAT), Err(Errno::NoSpc), "too many sets");
    world.waits(0, set, &[take(0, 1)]);
    world.fails(1, set, &[take(0, 1)], Errno::NoMem);
    let (connection, mailbox) = (world.core.open_session().id(), Arc::default());
    let process = (1, Caller { uid: 0, gid: 0 }, &[][..]);
    let opened = world.core.open_process(
        (connection, &mailbox),
        SessionKey([0; 16]),
        Milliseconds(1),
        process,
        b"",
        world.now(),
    );
    assert!(matches!(opened, Err(Refusal::LimitReached(_))), "{opened:?}");
}

#[test]
fn operations_are_performed_in_their_order_and_all_or_none() {
    let mut world = World::new(1);
    let set = world.set(2);
    world.done(0, set, &[zero(0), post(0, 1)]);
    world.fails(0, set, &[post(0, 1), nowait(zero(0))], Errno::Again);
    assert_eq!(world.values(set), [1, 0]);
    world.done(0, set, &[take(0, 1), zero(0), post(1, 5), take(1, 5), post(0, 2)]);
    assert_eq!(world.values(set), [2, 0]);
    world.done(0, set, &[post(0, 32_765)]);
    world.fails(0, set, &[take(0, 1), post(0, 2)], Errno::Range);
    assert_eq!(world.values(set), [32_767, 0]);
    world.fails(0, set, &[], Errno::Inval);
    world.fails(0, set, &vec![post(1, 0); 501], Errno::TooBig);
    world.done(0, set, &vec![zero(1); 500]);
    world.fails(0, set, &[zero(2)], Errno::FBig);
}

#[test]
fn a_call_with_several_operations_counts_for_the_one_that_it_waits_for() {
    let mut world = World::new(4);
    let set = world.set(2);
    world.set_value(set, 0, 1);
    world.set_value(set, 1, 1);
    world.waits(1, set, &[post(0, 1), zero(1)]);
    world.waits(2, set, &[zero(0), zero(1)]);
    world.waits(3, set, &[take(1, 3), post(0, 1)]);
    for (number, growth, zeros) in [(0, 0, 1), (1, 1, 1)] {
        let counted = |count| Ok(SetAnswer::Number(count));
        assert_eq!(world.control(0, set, SetCommand::GetNCount(number)), counted(growth));
        assert_eq!(world.control(0, set, SetCommand::GetZCount(number)), counted(zeros));
    }
}

/// The kernel tries all calls that wait for several zeros after each change that leaves a 0 in the set.
#[test]
fn a_call_that_waits_for_several_zeros_counts_for_the_first_one_again() {
    let mut world = World::new(3);
    let set = world.set(4);
    world.set_value(set, 0, 1);
    world.waits(1, set, &[zero(3), zero(0)]);
    world.waits(2, set, &[nowait(zero(2)), zero(0)]);
    let counted = |count| Ok(SetAnswer::Number(count));
    assert_eq!(world.control(0, set, SetCommand::GetZCount(0)), counted(2));
    world.set_value(set, 3, 1);
    assert_eq!(world.control(0, set, SetCommand::GetZCount(0)), counted(1));
    assert_eq!(world.control(0, set, SetCommand::GetZCount(3)), counted(1));
    world.set_value(set, 2, 1);
    assert_eq!(world.results(2), [Err(Errno::Again)], "it may not wait for this one");
    assert_eq!(world.control(0, set, SetCommand::GetZCount(0)), counted(0));
}

#[test]
fn a_client_with_its_share_of_the_waiting_calls_leaves_the_rest_to_others() {
    let mut world = World::new(1);
    let share = ClientShare { percent: 25, least: 1 };
    world.core.set_sysv_limits(SysvLimits { waiters_max: 8, client_share: share, ..SysvLimits::NONE });
    let set = world.set(1);
    let start = |world: &mut World, client| {
        let mailbox =
            Arc::new(Mailbox::of(([192, 0, 2, client], 4660).into(), Some(ClientKey([client; 16]))));
        world.start_of(mailbox, 100, Caller { uid: 0, gid: 0 }, &[])
    };
    let greedy: Vec<_> = (0..5).map(|_| start(&mut world, 1)).collect();
    let other = start(&mut world, 2);
    for by in &greedy[..4] {
        world.waits(*by, set, &[take(0, 1)]);
    }
    let call = world.call(greedy[4]);
    let (outcome, limit) = world.core.sem_op(call, set, &[take(0, 1)], None, world.now());
    assert_eq!(outcome, SysvOutcome::Answered(Err(Errno::NoMem)));
    let share = ReachedLimit { limit: Limit::Waiters, max: 2, is_share: true };
    assert_eq!(limit, Some(Refusal::LimitReached(share)));
    world.waits(other, set, &[take(0, 1)]);
    // Three of the client's calls are performed, so it has less than its share.
    world.done(0, set, &[post(0, 3)]);
    world.waits(greedy[4], set, &[take(0, 1)]);
}

/// 60,000 bytes of 100,000 are in use, so that each client has a share of 12,000.
#[test]
fn a_client_with_its_share_of_the_memory_in_processes_and_results_leaves_the_rest_to_others() {
    const MEMORY: MemoryLimit = MemoryLimit { in_use: || 60_000, max: 100_000 };
    let mut world = World::new(1);
    let set = world.set(2);
    let mailboxes = [1, 2].map(|client| {
        Arc::new(Mailbox::of(([192, 0, 2, client], 4660).into(), Some(ClientKey([client; 16]))))
    });
    let [greedy, blocked, other] = [0, 0, 1].map(|client: usize| {
        world.start_of(Arc::clone(&mailboxes[client]), 100, Caller { uid: 0, gid: 0 }, &[])
    });
    let client_share = ClientShare { percent: 12, least: 1 };
    world.core.set_sysv_limits(SysvLimits { memory: MEMORY, client_share, ..SysvLimits::NONE });
    // The failures of the first calls are remembered, and those of the last ones are not.
    let fail = |world: &mut World| {
        let call = world.call(greedy);
        (call, world.core.sem_op(call, set, &[nowait(take(0, 1))], None, world.now()).0)
    };
    let (first, failed) = fail(&mut world);
    assert_eq!(failed, SysvOutcome::Answered(Err(Errno::Again)));
    for _ in 0..300 {
        fail(&mut world);
    }
    let (last, _) = fail(&mut world);
    world.set_value(set, 0, 1);
    let repeat = |call| world.core.sem_op(call, set, &[nowait(take(0, 1))], None, world.now()).0;
    assert_eq!(repeat(first), failed);
    assert_eq!(repeat(last), SysvOutcome::Answered(Ok(SetAnswer::Done)));

    let share = Refusal::LimitReached(ReachedLimit { limit: Limit::Memory, max: 12_000, is_share: true });
    let call = world.call(blocked);
    let (outcome, limit) = world.core.sem_op(call, set, &[take(1, 1)], None, world.now());
    assert_eq!((outcome, limit), (SysvOutcome::Answered(Err(Errno::NoMem)), Some(share)));
    let connection = world.core.open_session().id();
    let process = (101, Caller { uid: 0, gid: 0 }, &[][..]);
    let key = SessionKey([9; 16]);
    let opened = world.core.open_process(
        (connection, &mailboxes[0]),
        key,
        Milliseconds(TTL_MS),
        process,
        b"",
        world.now(),
    );
    assert_eq!(opened.err(), Some(share));
    world.waits(other, set, &[take(1, 1)]);
    // The client no longer needs its results.
    let mut call = world.call(greedy);
    call.ids.lowest_unanswered = call.ids.own;
    world.core.sem_ctl(call, set, &SetCommand::GetAll, world.now());
    world.waits(blocked, set, &[take(1, 1)]);
}

/// For adjustments, only the limit of all clients together applies, not the share of one.
#[test]
fn without_memory_a_process_gets_no_new_adjustments_and_goes_on_with_those_that_it_has() {
    let mut world = World::new(1);
    let mailbox = Arc::new(Mailbox::of(([192, 0, 2, 1], 4660).into(), Some(ClientKey([1; 16]))));
    let [adjusting, greedy, further] =
        [(); 3].map(|()| world.start_of(Arc::clone(&mailbox), 100, Caller { uid: 0, gid: 0 }, &[]));
    let (set, other) = (world.set(2), world.get(0, 1, 1, IPC_CREAT | IPC_EXCL).unwrap());
    world.done(adjusting, set, &[undo(post(0, 3))]);
    let client_share = ClientShare { percent: 12, least: 1 };
    let with = |in_use| {
        let memory = MemoryLimit { in_use, max: 10_000 };
        SysvLimits { memory, client_share, ..SysvLimits::NONE }
    };
    // The three processes of the client count for more than its share.
    world.core.set_sysv_limits(with(|| 6_000));
    let call = world.call(greedy);
    let (waiting, limit) = world.core.sem_op(call, set, &[take(1, 1)], None, world.now());
    assert_eq!(waiting, SysvOutcome::Answered(Err(Errno::NoMem)));
    assert!(matches!(limit, Some(Refusal::LimitReached(ReachedLimit { is_share: true, .. }))), "{limit:?}");
    world.done(greedy, set, &[undo(post(0, 1))]);

    world.core.set_sysv_limits(with(|| 10_001));
    world.fails(further, set, &[undo(post(0, 1))], Errno::NoMem);
    world.fails(0, set, &[undo(post(0, 1))], Errno::NoMem);
    world.fails(adjusting, other, &[undo(post(0, 1))], Errno::NoMem);
    assert_eq!(world.values(set), [4, 0], "what fails changes nothing");
    world.done(further, set, &[post(0, 1)]);
    // A process with adjustments of the set needs no more memory, also for another semaphore of it.
    world.done(adjusting, set, &[undo(take(0, 1)), undo(post(1, 2))]);
    assert_eq!(world.values(set), [4, 2]);
    world.leave(adjusting, ConnectionEnd::Closed);
    assert_eq!(world.values(set), [2, 0], "3 less 1, and 2");

    world.core.set_sysv_limits(with(|| 0));
    world.done(further, set, &[undo(post(0, 1))]);
    world.leave(further, ConnectionEnd::Closed);
    assert_eq!(world.values(set), [2, 0]);
}

#[test]
fn a_wait_ends_with_its_time_a_cancellation_or_the_set() {
    let mut world = World::new(4);
    let set = world.set(1);
    for (by, wait_ms) in [(1, Some(10)), (2, None), (3, None)] {
        let call = world.call(by);
        let outcome = world.core.sem_op(call, set, &[take(0, 1)], wait_ms, world.now()).0;
        assert_eq!(outcome, SysvOutcome::Waiting);
    }
    let call = world.call(0);
    let outcome = world.core.sem_op(call, set, &[take(0, 1)], Some(0), world.now()).0;
    assert_eq!(outcome, SysvOutcome::Answered(Err(Errno::Again)));
    world.pass(9);
    assert_eq!(world.results(1), []);
    world.pass(1);
    assert_eq!(world.results(1), [Err(Errno::Again)]);
    let (connection, token) = (world.processes[2].connection, Token(world.processes[2].requests));
    assert!(world.core.cancel_sem_op(connection, token, world.now()));
    assert!(!world.core.cancel_sem_op(connection, token, world.now()), "once");
    assert_eq!(world.results(2), [Err(Errno::Intr)]);
    assert_eq!(world.control(0, set, SetCommand::Remove), Ok(SetAnswer::Done));
    assert_eq!(world.results(3), [Err(Errno::IdRm)]);
    world.fails(3, set, &[take(0, 1)], Errno::Inval);
}

#[test]
fn adjustments_have_a_range_too() {
    let mut world = World::new(2);
    let set = world.set(1);
    for _ in 0..2 {
        world.set_value(set, 0, 0);
        world.done(1, set, &[undo(post(0, 32_767))]);
        world.done(0, set, &[take(0, 32_767)]);
        // -32768 is in the range.
        world.done(1, set, &[undo(post(0, 1))]);
        world.fails(1, set, &[undo(post(0, 1))], Errno::Range);
        assert_eq!(world.values(set), [1]);
    }
}

#[test]
fn a_process_lives_as_long_as_its_machine_does_not_end_it() {
    let mut world = World::new(1);
    let set = world.set(1);
    for (how, ends_after_ms) in [(ConnectionEnd::Closed, 0), (ConnectionEnd::Lost, u64::from(TTL_MS))] {
        let by = world.start(200, Caller { uid: 0, gid: 0 }, &[]);
        world.done(by, set, &[undo(post(0, 1))]);
        world.leave(by, how);
        if ends_after_ms > 0 {
            world.pass(ends_after_ms - 1);
            assert_eq!(world.values(set), [1]);
            world.pass(1);
        }
        assert_eq!(world.values(set), [0]);
    }
}

#[test]
fn a_process_that_was_lost_goes_on_with_its_waiting_call() {
    let mut world = World::new(2);
    let set = world.set(1);
    world.waits(1, set, &[undo(take(0, 1))]);
    world.leave(1, ConnectionEnd::Lost);
    world.done(0, set, &[post(0, 1)]);
    let OpenedProcess { process, key, ttl } = world.processes[1].opened;
    let connection = world.core.open_session().id();
    world.processes[1].connection = connection;
    let mailbox = Arc::clone(&world.processes[1].mailbox);
    let attached =
        world.core.attach_process((connection, &mailbox), process, &SessionKey([9; 16]), world.now());
    assert_eq!(attached, Err(Refusal::NoSuchSession), "only the key attaches to a process");
    let attached = world.core.attach_process((connection, &mailbox), process, &key, world.now());
    assert_eq!(attached, Ok(ttl.0));
    world.pass(u64::from(TTL_MS) * 2);
    // The repetition has the result, and takes nothing more.
    world.processes[1].requests -= 1;
    world.done(1, set, &[undo(take(0, 1))]);
    assert_eq!(world.values(set), [0]);
    world.leave(1, ConnectionEnd::Closed);
    assert_eq!(world.values(set), [1]);
}

#[test]
fn a_process_that_replaces_its_program_keeps_its_adjustments() {
    let mut world = World::new(3);
    let set = world.set(1);
    for by in [1, 2] {
        world.done(by, set, &[undo(post(0, 1))]);
        world.core.keep_process(world.processes[by].connection, 500).unwrap();
    }
    // One of them was not replaced after all.
    world.done(2, set, &[post(0, 1), take(0, 1)]);
    world.leave(2, ConnectionEnd::Closed);
    assert_eq!(world.values(set), [1]);
    world.leave(1, ConnectionEnd::Closed);
    world.pass(499);
    assert_eq!(world.values(set), [1]);
    let OpenedProcess { process, key, .. } = world.processes[1].opened;
    let (connection, mailbox) = (world.core.open_session().id(), Arc::default());
    world.core.attach_process((connection, &mailbox), process, &key, world.now()).unwrap();
    world.pass(u64::from(TTL_MS) * 2);
    assert_eq!(world.values(set), [1]);
    world.core.leave_process(connection, ConnectionEnd::Closed, world.now());
    assert_eq!(world.values(set), [0]);
}

#[test]
fn the_connections_of_a_process_share_it() {
    let mut world = World::new(2);
    let set = world.set(1);
    world.done(1, set, &[undo(post(0, 1))]);
    let OpenedProcess { process, key, .. } = world.processes[1].opened;
    let (connection, mailbox) = (world.core.open_session().id(), Arc::default());
    world.core.attach_process((connection, &mailbox), process, &key, world.now()).unwrap();
    world.leave(1, ConnectionEnd::Closed);
    assert_eq!(world.values(set), [1], "one connection is left");
    world.core.leave_process(connection, ConnectionEnd::Closed, world.now());
    assert_eq!(world.values(set), [0]);
}

#[test]
fn a_set_obeys_its_mode() {
    let mut world = World::new(1);
    let set = world.set(1);
    let ownership = Ownership { uid: 10, gid: 20, mode: 0o642 };
    assert_eq!(world.control(0, set, SetCommand::SetOwnership(ownership)), Ok(SetAnswer::Done));
    let owner = world.start(1, Caller { uid: 10, gid: 1 }, &[]);
    let member = world.start(2, Caller { uid: 11, gid: 1 }, &[5, 20]);
    let other = world.start(3, Caller { uid: 11, gid: 1 }, &[]);
    let denied = Err(Errno::Access);
    for (by, may_read, may_alter) in [(owner, true, true), (member, true, false), (other, false, true)] {
        let read = world.control(by, set, SetCommand::GetValue(0));
        assert_eq!(read == denied, !may_read, "{by}: {read:?}");
        let zero = world.op(by, set, &[zero(0)]);
        assert_eq!(zero == SysvOutcome::Answered(Err(Errno::Access)), !may_read);
        let altered = world.control(by, set, SetCommand::SetValue(0, 0));
        assert_eq!(altered == denied, !may_alter, "{by}: {altered:?}");
        let posted = world.op(by, set, &[post(0, 1), take(0, 1)]);
        assert_eq!(posted == SysvOutcome::Answered(Err(Errno::Access)), !may_alter);
        let removed = world.control(by, set, SetCommand::SetOwnership(ownership));
        assert_eq!(removed == Err(Errno::Perm), by != owner);
    }
    let nobody = Ownership { uid: u32::MAX, ..ownership };
    assert_eq!(world.control(0, set, SetCommand::SetOwnership(nobody)), Err(Errno::Inval));
    // The mode is checked for what semget asks for.
    let call = world.call(member);
    let outcome = world.core.sem_get(call, KEY, 0, 0o600, world.now());
    assert_eq!(outcome, SysvOutcome::Answered(Err(Errno::Access)));
    assert_eq!(world.control(member, set, SetCommand::Remove), Err(Errno::Perm));
    assert_eq!(world.control(owner, set, SetCommand::Remove), Ok(SetAnswer::Done));
}

#[test]
fn values_are_checked() {
    let mut world = World::new(1);
    let set = world.set(2);
    for (number, value, errno) in [(0, -1, Errno::Range), (0, 32_768, Errno::Range), (2, 0, Errno::Inval)] {
        assert_eq!(world.control(0, set, SetCommand::SetValue(number, value)), Err(errno));
    }
    assert_eq!(world.control(0, set, SetCommand::SetAll([1, 32_768].into())), Err(Errno::Range));
    assert_eq!(world.control(0, set, SetCommand::SetAll([1].into())), Err(Errno::Inval));
    for command in
        [SetCommand::GetValue(2), SetCommand::GetPid(2), SetCommand::GetNCount(2), SetCommand::GetZCount(2)]
    {
        assert_eq!(world.control(0, set, command), Err(Errno::Inval));
    }
    assert_eq!(world.values(set), [0, 0]);
}

#[test]
fn times_tell_of_operations_and_of_changes() {
    let mut world = World::new(1);
    let set = world.set(1);
    let times = |world: &mut World| match world.control(0, set, SetCommand::Stat) {
        Ok(SetAnswer::Stat(stat)) => (stat.operated_at.map(|at| at.0), stat.changed_at.0),
        other => panic!("{other:?}"),
    };
    assert_eq!(times(&mut world), (None, 1_000));
    world.pass(5_000);
    world.done(0, set, &[zero(0)]);
    assert_eq!(times(&mut world), (Some(1_005), 1_000));
    world.pass(5_000);
    world.set_value(set, 0, 1);
    assert_eq!(times(&mut world), (Some(1_005), 1_010));
    world.fails(0, set, &[nowait(zero(0))], Errno::Again);
    assert_eq!(times(&mut world), (Some(1_005), 1_010));
}

#[test]
fn a_repeated_call_is_made_once() {
    let mut world = World::new(1);
    let set = world.set(1);
    world.done(0, set, &[post(0, 1)]);
    world.processes[0].requests -= 1;
    world.done(0, set, &[post(0, 1)]);
    assert_eq!(world.values(set), [1]);
    assert_eq!(world.control(0, set, SetCommand::SetValue(0, 7)), Ok(SetAnswer::Done));
    world.done(0, set, &[post(0, 1)]);
    // The call has the number of the request before it.
    world.processes[0].requests -= 2;
    assert_eq!(world.control(0, set, SetCommand::SetValue(0, 7)), Ok(SetAnswer::Done));
    assert_eq!(world.values(set), [8]);
}

#[test]
fn listings_show_who_adjusts_and_who_waits() {
    let mut world = World::new(3);
    let set = world.set(2);
    world.done(1, set, &[undo(post(1, 4))]);
    world.waits(2, set, &[take(0, 1), take(1, 2)]);
    let mut listing = world.core.sets();
    let listed = world.core.list_sets(&mut listing);
    assert_eq!((listed.len(), listed[0].waiting, listed[0].adjusting), (1, 1, 1));
    assert!(world.core.list_sets(&mut listing).is_empty());
    let mut users = world.core.set_users(set).unwrap();
    let mut all = Vec::new();
    loop {
        let some = world.core.list_set_users(&mut users);
        if some.is_empty() {
            break;
        }
        all.extend(some);
    }
    let shown: Vec<_> = all.iter().map(|user| (user.role, user.pid, &user.operations[..])).collect();
    assert_eq!(
        shown,
        [(UserRole::Adjusts, 101, &[take(1, 4)][..]), (UserRole::Waits, 102, &[take(0, 1), take(1, 2)])]
    );
    assert_eq!(world.core.set_users(SetId(5)).map(|_| ()), Err(Refusal::NotFound));
}

#[test]
fn a_shutdown_ends_all_waits() {
    let mut world = World::new(2);
    let set = world.set(1);
    world.waits(1, set, &[take(0, 1)]);
    while world.core.shut_down(world.now()) {}
    assert_eq!(world.results(1), [Err(Errno::IdRm)]);
    world.fails(1, set, &[take(0, 1)], Errno::IdRm);
}

#[test]
fn in_the_order_of_arrival_a_large_call_is_not_starved() {
    for (order, is_starved) in [(Order::Kernel, true), (Order::Fifo, false)] {
        let mut world = World::new(5);
        world.core.set_sysv_rules(vec![KeyRule {
            keys: KEY as u32..=KEY as u32,
            order: Some(order),
            is_durable: false,
        }]);
        let set = world.set(2);
        world.set_value(set, 0, 3);
        world.done(1, set, &[take(0, 1)]);
        world.waits(2, set, &[take(0, 3)]);
        // A reader that comes later, and one that does not wait.
        let reader = world.op(3, set, &[take(0, 1)]);
        let impatient = world.op(4, set, &[nowait(take(0, 1)), post(1, 1)]);
        let (now, later) = (SysvOutcome::Answered(Ok(SetAnswer::Done)), SysvOutcome::Waiting);
        assert_eq!(reader, if is_starved { now } else { later }, "{order:?}");
        let refused = SysvOutcome::Answered(Err(Errno::Again));
        assert_eq!(impatient == refused, !is_starved, "{order:?}");
        if is_starved {
            continue;
        }
        world.done(4, set, &[post(1, 1), take(1, 1)]);
        world.done(1, set, &[post(0, 1)]);
        assert_eq!((world.results(2), world.results(3)), (DONE.to_vec(), vec![]));
        world.done(2, set, &[post(0, 3)]);
        assert_eq!((world.results(3), world.values(set)), (DONE.to_vec(), vec![2, 0]));
    }
}

#[test]
fn in_the_order_of_arrival_a_call_that_leaves_makes_room_for_those_behind_it() {
    let mut world = World::new(4);
    world.core.set_sysv_rules(vec![KeyRule {
        keys: 0..=u32::MAX,
        order: Some(Order::Fifo),
        is_durable: false,
    }]);
    let set = world.set(1);
    world.set_value(set, 0, 1);
    let call = world.call(1);
    assert_eq!(world.core.sem_op(call, set, &[take(0, 2)], Some(10), world.now()).0, SysvOutcome::Waiting);
    world.waits(2, set, &[take(0, 1)]);
    world.pass(10);
    assert_eq!((world.results(1), world.results(2)), (vec![Err(Errno::Again)], DONE.to_vec()));
    world.waits(3, set, &[take(0, 2)]);
    world.waits(1, set, &[take(0, 1)]);
    world.done(0, set, &[post(0, 1)]);
    assert_eq!(world.results(1), []);
    world.leave(3, ConnectionEnd::Closed);
    assert_eq!(world.results(1), DONE);
}

#[test]
fn a_check_visits_every_set_in_steps() {
    let mut world = World::new(1);
    for key in 1..=40 {
        world.get(0, key, 1, IPC_CREAT | IPC_EXCL).unwrap();
    }
    let mut check = SetCheck::default();
    let mut steps = 1;
    while world.core.check_sets(&mut check) {
        steps += 1;
    }
    assert_eq!((check.checked(), check.failures(), steps), (40, &[][..], 3));
}

#[test]
fn a_call_that_waits_for_long_can_be_repeated_whatever_its_process_did_meanwhile() {
    let mut world = World::new(2);
    let set = world.set(2);
    world.waits(1, set, &[take(0, 1)]);
    let waiting = RequestId(world.processes[1].requests);
    let repeat = |world: &mut World, set| {
        let mut call = world.call(1);
        call.ids = RequestIds { own: waiting, lowest_unanswered: RequestId(1) };
        world.core.sem_op(call, set, &[take(0, 1)], None, world.now()).0
    };
    let later_call = |world: &mut World| {
        let mut call = world.call(1);
        call.ids.lowest_unanswered = RequestId(call.ids.own.0.saturating_sub(1000).max(1));
        world.core.sem_op(call, set, &[post(1, 1)], None, world.now()).0
    };
    for _ in 0..1500 {
        assert_eq!(later_call(&mut world), SysvOutcome::Answered(Ok(SetAnswer::Done)));
    }
    assert_eq!(repeat(&mut world, set), SysvOutcome::Waiting);
    assert_eq!(world.results(1), [Err(Errno::Intr)], "the request that was repeated has a new address");
    world.done(0, set, &[post(0, 1)]);
    assert_eq!(world.results(1), DONE);
    later_call(&mut world);
    assert_eq!(repeat(&mut world, set), SysvOutcome::Answered(Ok(SetAnswer::Done)), "its answer was lost");
    assert_eq!(world.values(set), [0, 1501]);
}
