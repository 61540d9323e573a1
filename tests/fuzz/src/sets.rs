//! Arbitrary calls on System V semaphore sets by processes that connect, vanish and end. The invariants of the sets hold
//! after every step, and at the end no process is left and every set can be removed.

use std::num::NonZeroU32;
use std::sync::Arc;

use signalbox::core::{
    Caller, ConnectionEnd, ConnectionId, Core, Mailbox, Moment, MonotonicMs, NameHasher, Operation,
    Ownership, ProcessId, RequestId, RequestIds, SessionKey, SetAnswer, SetCommand, SysvCall, SysvLimits,
    SysvOutcome, Token, UnixSeconds,
};

/// The maximum number of steps in an input: longer inputs take long and find nothing new.
const STEPS_MAX: usize = 200;

const CONNECTIONS: usize = 4;
const KEYS: i32 = 3;
const TTL_MS: u32 = 1_000;

/// Each step is four bytes: the operation, the connection and the set, and two for the rest.
pub fn run(data: &[u8]) {
    let mut world = World::new();
    for step in data.chunks_exact(4).take(STEPS_MAX) {
        let [operation, who, one, other]: [u8; 4] = step.try_into().expect("a chunk is four bytes");
        world.execute(operation, who, one, other);
        assert_eq!(world.core.check_sysv(), Ok(()));
    }
    world.end_and_assert_nothing_is_left();
}

struct Connection {
    id: ConnectionId,
    mailbox: Arc<Mailbox>,
    /// The last process that it was attached to.
    process: Option<(ProcessId, SessionKey)>,
}

struct World {
    core: Core,
    connections: Vec<Connection>,
    sets: Vec<i32>,
    last_request: u64,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        let interval_s = NonZeroU32::new(10).expect("ten is not zero");
        let core = Core::new(interval_s, NameHasher::with_seeds(1, 2, 3, 4));
        core.set_sysv_limits(SysvLimits { sets_max: 3, semaphores_max: 10, ..SysvLimits::NONE });
        let connect = || Connection { id: core.open_session().id(), mailbox: Arc::default(), process: None };
        let connections = (0..CONNECTIONS).map(|_| connect()).collect();
        Self { core, connections, sets: vec![0], last_request: 0, now_ms: 0 }
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.now_ms), unix: UnixSeconds(self.now_ms / 1000) }
    }

    fn execute(&mut self, operation: u8, who: u8, one: u8, other: u8) {
        let by = usize::from(who) % CONNECTIONS;
        let set = self.sets[usize::from(who >> 2) % self.sets.len()];
        let number = u32::from(one % 5);
        let value = i32::from(other) * 129;
        match operation % 24 {
            0 => self.open(by, one),
            1 => self.attach(by, usize::from(one) % CONNECTIONS),
            2 => drop(self.core.keep_process(self.connections[by].id, u32::from(one) * 10)),
            3 => self.leave(by, ConnectionEnd::Closed),
            4 => self.leave(by, ConnectionEnd::Lost),
            5 => self.pass(u64::from(one) * 8),
            6 => drop(self.core.cancel_sem_op(self.connections[by].id, Token(u64::from(one)), self.now())),
            7 | 8 => {
                let key = i32::from(one) % KEYS;
                let flags = (other & 1 == 0, other & 2 != 0, 0o600);
                let call = self.call(by);
                let outcome = self.core.sem_get(call, key, u32::from(other >> 2) % 5, flags, self.now());
                if let SysvOutcome::Answered(Ok(SetAnswer::Set(set, _))) = outcome {
                    self.sets.push(set.number());
                }
            }
            9 => self.control(by, set, SetCommand::Remove),
            10 => self.control(by, set, SetCommand::SetValue(number, value)),
            11 => self.control(by, set, SetCommand::SetAll(&[u16::from(one); 3])),
            12 => {
                let ownership = Ownership { uid: u32::from(one % 3), gid: 0, mode: u32::from(other) };
                self.control(by, set, SetCommand::SetOwnership(ownership));
            }
            13 => {
                for command in [
                    SetCommand::Stat,
                    SetCommand::GetAll,
                    SetCommand::GetValue(number),
                    SetCommand::GetPid(number),
                    SetCommand::GetNCount(number),
                    SetCommand::GetZCount(number),
                ] {
                    self.control(by, set, command);
                }
                self.list();
            }
            _ => {
                let bytes = [one, other, operation.wrapping_mul(31), who];
                let operations: Vec<_> =
                    bytes[..=usize::from(operation >> 6)].iter().map(operation_of).collect();
                let wait_ms = (operation & 0x20 != 0).then_some(u32::from(one));
                let call = self.call(by);
                self.core.sem_op(call, set, &operations, wait_ms, self.now());
            }
        }
        self.read();
    }

    fn call(&mut self, by: usize) -> SysvCall {
        self.last_request += 1;
        let own = RequestId(self.last_request);
        SysvCall {
            connection: self.connections[by].id,
            ids: RequestIds {
                own,
                lowest_unanswered: RequestId(self.last_request.saturating_sub(500).max(1)),
            },
            token: Token(self.last_request % 256),
            caller: Caller { uid: (self.last_request % 3) as u32, gid: 0 },
        }
    }

    fn open(&mut self, by: usize, pid: u8) {
        let now = self.now();
        let Connection { id, mailbox, process } = &mut self.connections[by];
        let key = SessionKey([pid; 16]);
        let caller = Caller { uid: 0, gid: 0 };
        let opened = self.core.open_process((*id, mailbox), key, TTL_MS, (pid.into(), caller, &[]), b"", now);
        *process = opened.ok().map(|opened| (opened.process, key));
    }

    fn attach(&mut self, by: usize, to: usize) {
        let now = self.now();
        let Some((process, key)) = self.connections[to].process else { return };
        let Connection { id, mailbox, .. } = &self.connections[by];
        let _ = self.core.attach_process((*id, mailbox), process, &key, now);
        self.connections[by].process = Some((process, key));
    }

    /// The connection ends, and another one takes its place, which remembers the process.
    fn leave(&mut self, by: usize, how: ConnectionEnd) {
        let now = self.now();
        self.core.leave_process(self.connections[by].id, how, now);
        self.connections[by].id = self.core.open_session().id();
        self.connections[by].mailbox = Arc::default();
    }

    fn control(&mut self, by: usize, set: i32, command: SetCommand<'_>) {
        let call = self.call(by);
        self.core.sem_ctl(call, set, command, self.now());
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        while self.core.expire(self.now()) {
            assert_eq!(self.core.check_sysv(), Ok(()));
        }
    }

    fn list(&self) {
        let mut sets = self.core.sets();
        while !self.core.list_sets(&mut sets).is_empty() {}
        for set in &self.sets {
            if let Ok(mut users) = self.core.set_users(*set) {
                while !self.core.list_set_users(&mut users).is_empty() {}
            }
        }
    }

    fn read(&self) {
        for connection in &self.connections {
            while connection.mailbox.take().is_some() {}
        }
    }

    fn end_and_assert_nothing_is_left(&mut self) {
        for by in 0..CONNECTIONS {
            self.leave(by, ConnectionEnd::Lost);
        }
        self.pass(u64::from(TTL_MS) * 4);
        let stats = self.core.sysv_stats();
        assert_eq!((stats.processes, stats.waiting), (0, 0));
        assert_eq!(self.core.check_sysv(), Ok(()));
    }
}

/// An operation with a small change, and now and then a very large one.
fn operation_of(byte: &u8) -> Operation {
    let change = match byte >> 4 & 7 {
        0 | 1 => 0,
        2 => 1,
        3 => -1,
        4 => 2,
        5 => -2,
        6 => i16::MAX,
        _ => i16::MIN,
    };
    Operation { number: u16::from(byte & 3), change, is_nowait: byte & 4 != 0, is_undone: byte & 8 != 0 }
}
