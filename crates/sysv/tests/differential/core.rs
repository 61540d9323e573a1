//! Histories as the core of the server executes them.

use std::sync::Arc;

use signalbox_core::{
    ConnectionEnd, Core, Mailbox, Message, Moment, MonotonicMs, NameHasher, SysvCall, SysvOutcome, Token,
};
use signalbox_model::sysv::{
    Caller, Errno, IPC_CREAT, IPC_EXCL, IPC_NOWAIT, Operation, SEM_UNDO, SetAnswer, SetCommand, SetId,
};
use signalbox_model::{ConnectionId, Milliseconds, RequestId, RequestIds, SessionKey, UnixSeconds};

use super::describe;
use super::history::{
    self, Command, Failure, KEYS, Observed, PROCESSES, Result, SHORT_MS, Semaphore, State, Step, Timeout,
    World,
};

const ROOT: Caller = Caller { uid: 0, gid: 0 };

pub struct CoreWorld {
    core: Core,
    processes: Vec<Process>,
    observer: Process,
    /// The last id that was seen for each key.
    sets: [SetId; KEYS],
    started: usize,
    now_ms: u64,
}

struct Process {
    connection: ConnectionId,
    mailbox: Arc<Mailbox>,
    requests: u64,
    state: State,
}

impl CoreWorld {
    pub fn new() -> Self {
        let core = Core::new(10.try_into().expect("ten is not zero"), NameHasher::with_seeds(1, 2, 3, 4));
        let observer = start(&core, 0, 0);
        let mut world =
            Self { core, processes: Vec::new(), observer, sets: [SetId(0); KEYS], started: 0, now_ms: 0 };
        for _ in 0..PROCESSES {
            world.started += 1;
            world.processes.push(start(&world.core, world.started as u32, 0));
        }
        world
    }

    fn now(&self) -> Moment {
        moment(self.now_ms)
    }

    fn operate(&mut self, by: usize, key: usize, operations: &[history::Operation], timeout: Timeout) {
        let operations: Vec<_> = operations
            .iter()
            .map(|operation| Operation {
                number: operation.number.into(),
                change: operation.change,
                flags: flag(operation.nowait, IPC_NOWAIT) | flag(operation.undo, SEM_UNDO),
            })
            .collect();
        let wait_ms = match timeout {
            Timeout::None => None,
            Timeout::Zero => Some(0),
            Timeout::Short => Some(SHORT_MS),
        };
        let call = self.processes[by].call();
        let outcome = self.core.sem_op(call, self.sets[key], &operations, wait_ms, self.now()).0;
        self.note(by, outcome);
        if timeout == Timeout::Short && self.processes[by].state == State::Waits {
            self.now_ms += u64::from(SHORT_MS);
            while self.core.expire(self.now()) {}
        }
    }

    fn control(&mut self, by: usize, key: usize, command: SetCommand) {
        let call = self.processes[by].call();
        let outcome = self.core.sem_ctl(call, self.sets[key], &command, self.now());
        self.note(by, outcome);
    }

    fn note(&mut self, by: usize, outcome: SysvOutcome) {
        self.processes[by].state = match outcome {
            SysvOutcome::Answered(result) => State::Done(result_of(result)),
            SysvOutcome::Waiting => State::Waits,
            SysvOutcome::Refused(refusal) => panic!("{refusal:?}"),
        };
    }

    fn observe(&mut self) -> std::result::Result<Observed, Failure> {
        self.core.check_sysv().map_err(describe)?;
        for process in &mut self.processes {
            while let Some(message) = process.mailbox.take() {
                let Message::Operated { result, .. } = message else { panic!("{message:?}") };
                process.state = State::Done(result_of(result));
            }
        }
        let sets = (0..KEYS).map(|key| self.observe_set(key)).collect();
        Ok(Observed { processes: self.processes.iter().map(|process| process.state.clone()).collect(), sets })
    }

    fn observe_set(&mut self, key: usize) -> Option<Vec<Semaphore>> {
        let mut read = |command| match self.core.sem_ctl(
            self.observer.call(),
            self.sets[key],
            &command,
            moment(self.now_ms),
        ) {
            SysvOutcome::Answered(result) => result.ok(),
            other => panic!("{other:?}"),
        };
        let Some(SetAnswer::Values(values)) = read(SetCommand::GetAll) else { return None };
        let mut number = |command| match read(command) {
            Some(SetAnswer::Number(number)) => number,
            other => panic!("{other:?}"),
        };
        let semaphores = (0..).zip(values.iter()).map(|(index, value)| Semaphore {
            value: (*value).into(),
            process: number(SetCommand::GetPid(index)) as usize,
            growth: number(SetCommand::GetNCount(index)),
            zero: number(SetCommand::GetZCount(index)),
        });
        Some(semaphores.collect())
    }
}

impl World for CoreWorld {
    fn reset(&mut self) {
        *self = Self::new();
    }

    fn take(&mut self, step: &Step) -> std::result::Result<Observed, Failure> {
        let by = step.process;
        let waits = self.processes[by].state == State::Waits;
        match &step.command {
            Command::Kill => {
                self.core.leave_process(self.processes[by].connection, ConnectionEnd::Closed, self.now());
                while self.core.expire(self.now()) {}
                self.started += 1;
                self.processes[by] = start(&self.core, self.started as u32, self.now_ms);
            }
            Command::Signal => {
                let process = &self.processes[by];
                self.core.cancel_sem_op(process.connection, Token(process.requests), self.now());
            }
            _ if waits => {}
            Command::Get { key, count, creates, exclusive } => {
                let call = self.processes[by].call();
                let flags = flag(*creates, IPC_CREAT) | flag(*exclusive, IPC_EXCL) | 0o600;
                let outcome = self.core.sem_get(call, *key as i32 + 1, (*count).into(), flags, self.now());
                if let SysvOutcome::Answered(Ok(SetAnswer::Set(set, _))) = &outcome {
                    self.sets[*key] = *set;
                }
                self.note(by, outcome);
            }
            Command::Operate { key, operations, timeout } => self.operate(by, *key, operations, *timeout),
            Command::SetValue { key, number, value } => {
                self.control(by, *key, SetCommand::SetValue((*number).into(), *value));
            }
            Command::SetAll { key, value } => {
                let count = self.observe_set(*key).map_or(0, |set| set.len());
                self.control(by, *key, SetCommand::SetAll(vec![*value; count].into()));
            }
            Command::Remove { key } => self.control(by, *key, SetCommand::Remove),
        }
        self.observe()
    }
}

impl Process {
    fn call(&mut self) -> SysvCall {
        self.requests += 1;
        let own = RequestId(self.requests);
        let ids = RequestIds { own, lowest_unanswered: own };
        SysvCall { connection: self.connection, ids, token: Token(self.requests), caller: ROOT }
    }
}

fn start(core: &Core, pid: u32, now_ms: u64) -> Process {
    let connection = core.open_session().id();
    let mailbox = Arc::default();
    let key = SessionKey([1; 16]);
    let opened = core.open_process(
        (connection, &mailbox),
        key,
        Milliseconds(60_000),
        (pid, ROOT, &[]),
        b"",
        moment(now_ms),
    );
    opened.expect("there are no limits");
    Process { connection, mailbox, requests: 0, state: State::New }
}

fn moment(ms: u64) -> Moment {
    Moment { monotonic: MonotonicMs(ms), unix: UnixSeconds(ms / 1000) }
}

fn result_of(result: std::result::Result<SetAnswer, Errno>) -> Result {
    match result {
        Ok(SetAnswer::Number(number)) => Result::Value(number.into()),
        Ok(_) => Result::Value(0),
        Err(errno) => Result::Failed(errno.name().to_owned()),
    }
}

fn flag<F: Default>(is_set: bool, flag: F) -> F {
    if is_set { flag } else { F::default() }
}
