//! Histories as programs see them: with the kernel's semaphores, or with the library and a server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use signalbox::config::Config;
use signalbox::core::{NameHasher, Namespace, UserRole};
use signalbox::server::{Clock, Server, Workers, expire, serve_port};

use super::describe;
use super::history::{
    Command, Failure, KEYS, Observed, PROCESSES, Result, SHORT_MS, Semaphore, State, Step, Timeout, World,
};
use super::stepper::Stepper;

/// The first key of the test. Others on the machine do not use it.
const FIRST_KEY: i32 = 0x5b0c_0000;

pub struct Programs {
    semaphores: Semaphores,
    steppers: Vec<Stepper>,
    states: Vec<State>,
    observer: Stepper,
    /// The processes of the history by their process ids.
    numbers: BTreeMap<u32, usize>,
    sets: [i64; KEYS],
}

/// Who executes the calls.
enum Semaphores {
    Kernel,
    Server(TestServer),
}

struct TestServer {
    server: Arc<Server>,
    address: String,
    library: PathBuf,
    _runtime: tokio::runtime::Runtime,
}

impl Programs {
    /// Programs on the kernel; `None`: this machine does not permit semaphores.
    pub fn on_the_kernel() -> Option<Self> {
        let mut programs = Self::new(Semaphores::Kernel);
        let set = programs.observer.ask("get 0 1 0o600")?;
        programs.observer.ask(&format!("ctl {set} 0 IPC_RMID"))?;
        Some(programs)
    }

    /// Programs with the library, and a server.
    pub fn with_the_library() -> Self {
        Self::new(Semaphores::Server(TestServer::start()))
    }

    fn new(semaphores: Semaphores) -> Self {
        let observer = semaphores.stepper();
        let (steppers, states) = (Vec::new(), Vec::new());
        Self { semaphores, steppers, states, observer, numbers: BTreeMap::new(), sets: [0; KEYS] }
    }

    fn start(&mut self) -> Stepper {
        let stepper = self.semaphores.stepper();
        self.numbers.insert(stepper.pid(), self.numbers.len() + 1);
        stepper
    }

    /// Makes a call, and waits until it is done or waits. One that `ends` by itself is awaited.
    fn call(&mut self, by: usize, command: &str, ends: bool) -> std::result::Result<(), Failure> {
        self.steppers[by].tell(command);
        self.states[by] = State::Waits;
        let semaphores = &self.semaphores;
        let stepper = &self.steppers[by];
        if ends {
            stepper.until("the call is done", Stepper::has_answer)?;
            return self.collect();
        }
        stepper.until("the call is done or waits", |stepper| {
            stepper.has_answer() || semaphores.lets_wait(stepper)
        })?;
        self.collect()
    }

    /// Notes which calls are done. Those that a step completes are known to be when it is over.
    fn collect(&mut self) -> std::result::Result<(), Failure> {
        for (stepper, state) in self.steppers.iter_mut().zip(&mut self.states) {
            if *state == State::Waits {
                let semaphores = &self.semaphores;
                stepper.until("a call is done or waits", |stepper| {
                    stepper.has_answer() || semaphores.lets_wait(stepper)
                })?;
                if stepper.has_answer() {
                    *state = State::Done(stepper.answer()?);
                }
            }
        }
        Ok(())
    }

    fn observe(&mut self) -> Observed {
        let sets = (0..KEYS).map(|key| self.observe_set(key)).collect();
        Observed { processes: self.states.clone(), sets }
    }

    fn observe_set(&mut self, key: usize) -> Option<Vec<Semaphore>> {
        let set = self.sets[key];
        let values = self.observer.ask(&format!("ctl {set} 0 GETALL"))?;
        let values: Vec<u32> = values.split(',').map(|value| value.parse().expect("a value")).collect();
        let mut number = |index, command| -> u32 {
            let answer = self.observer.ask(&format!("ctl {set} {index} {command}"));
            answer.and_then(|text| text.parse().ok()).expect("a number")
        };
        let semaphores = (0..).zip(values).map(|(index, value): (usize, u32)| Semaphore {
            value,
            process: match number(index, "GETPID") {
                0 => 0,
                pid => self.numbers.get(&pid).copied().unwrap_or(usize::MAX),
            },
            growth: number(index, "GETNCNT"),
            zero: number(index, "GETZCNT"),
        });
        Some(semaphores.collect())
    }
}

impl World for Programs {
    fn reset(&mut self) {
        for key in 0..KEYS {
            if let Some(set) = self.observer.ask(&format!("get {} 0 0", FIRST_KEY + key as i32)) {
                self.observer.ask(&format!("ctl {set} 0 IPC_RMID"));
            }
        }
        // Those that wait have to be new; the others have nothing left.
        let steppers = std::mem::take(&mut self.steppers);
        let states = std::mem::take(&mut self.states);
        let idle = steppers.into_iter().zip(states).filter(|(_, state)| *state != State::Waits);
        let mut idle = idle.map(|(stepper, _)| stepper).collect::<Vec<_>>();
        self.numbers.clear();
        self.sets = [0; KEYS];
        for number in 0..PROCESSES {
            let stepper = idle.pop().unwrap_or_else(|| self.semaphores.stepper());
            self.numbers.insert(stepper.pid(), number + 1);
            self.steppers.push(stepper);
            self.states.push(State::New);
        }
    }

    fn take(&mut self, step: &Step) -> std::result::Result<Observed, Failure> {
        let by = step.process;
        let waits = self.states[by] == State::Waits;
        match &step.command {
            Command::Kill => {
                self.steppers[by].kill();
                self.semaphores.await_end(&self.steppers[by])?;
                let stepper = self.start();
                self.steppers[by] = stepper;
                self.states[by] = State::New;
                self.collect()?;
            }
            Command::Signal if waits => {
                self.steppers[by].signal();
                self.steppers[by].until("the call is interrupted", Stepper::has_answer)?;
                self.collect()?;
            }
            Command::Signal => {}
            _ if waits => {}
            Command::Get { key, count, creates, exclusive } => {
                let flags = 0o600
                    | if *creates { libc::IPC_CREAT } else { 0 }
                    | if *exclusive { libc::IPC_EXCL } else { 0 };
                self.call(by, &format!("get {} {count} {flags}", FIRST_KEY + *key as i32), true)?;
                if let State::Done(Result::Value(set)) = &mut self.states[by] {
                    self.sets[*key] = std::mem::take(set);
                }
            }
            Command::Operate { key, operations, timeout } => {
                let timeout_ns = match timeout {
                    Timeout::None => "-".to_owned(),
                    Timeout::Zero => "0".to_owned(),
                    Timeout::Short => (u64::from(SHORT_MS) * 1_000_000).to_string(),
                };
                let mut line = format!("op {} {timeout_ns}", self.sets[*key]);
                for operation in operations {
                    let flags = if operation.nowait { libc::IPC_NOWAIT } else { 0 }
                        | if operation.undo { libc::SEM_UNDO } else { 0 };
                    line += &format!(" {},{},{flags}", operation.number, operation.change);
                }
                self.call(by, &line, *timeout != Timeout::None)?;
            }
            Command::SetValue { key, number, value } => {
                self.call(by, &format!("ctl {} {number} SETVAL {value}", self.sets[*key]), true)?;
            }
            Command::SetAll { key, value } => {
                let count = self.observe_set(*key).map_or(1, |set| set.len());
                let values = vec![value.to_string(); count].join(",");
                self.call(by, &format!("ctl {} 0 SETALL {values}", self.sets[*key]), true)?;
            }
            Command::Remove { key } => {
                self.call(by, &format!("ctl {} 0 IPC_RMID", self.sets[*key]), true)?;
            }
        }
        Ok(self.observe())
    }
}

impl Semaphores {
    fn stepper(&self) -> Stepper {
        Stepper::start(|command| {
            if let Self::Server(TestServer { address, library, .. }) = self {
                command.env("LD_PRELOAD", library);
                command.env("SIGNALBOX_SYSV_SERVER", address);
                command.env("SIGNALBOX_SYSV_KEYS", "all");
            }
        })
    }

    /// Whether a call of the program waits.
    fn lets_wait(&self, stepper: &Stepper) -> bool {
        match self {
            // Twice, as a call that is about to be done may sleep for a moment on a loaded machine, for a page of memory.
            Self::Kernel => {
                stepper.sleeps_in_semop() && {
                    std::thread::sleep(Duration::from_micros(200));
                    !stepper.has_answer() && stepper.sleeps_in_semop()
                }
            }
            Self::Server(server) => server.uses(stepper.pid(), |role| role == UserRole::Waits),
        }
    }

    /// Waits until the end of a program has had its effect.
    fn await_end(&self, stepper: &Stepper) -> std::result::Result<(), Failure> {
        match self {
            Self::Kernel => Ok(()),
            Self::Server(server) => {
                stepper.until("the server knows of the end", |stepper| !server.uses(stepper.pid(), |_| true))
            }
        }
    }
}

impl TestServer {
    fn start() -> Self {
        let server = Server::new(&Config::without_file(), Clock::system(), NameHasher::new());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads");
        let workers = Workers::start(1.try_into().expect("one is not zero")).expect("a thread");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        runtime.spawn(serve_port(Arc::clone(&server), Namespace::Counters, listener, workers));
        runtime.spawn(expire(Arc::clone(&server)));
        Self { server, address, library: library(), _runtime: runtime }
    }

    /// Whether a process uses a set in such a role.
    fn uses(&self, pid: u32, is_wanted: impl Fn(UserRole) -> bool) -> bool {
        let core = self.server.core();
        let mut sets = core.sets();
        loop {
            let some = core.list_sets(&mut sets);
            if some.is_empty() {
                return false;
            }
            for set in some {
                let Ok(mut users) = core.set_users(set.set.number()) else { continue };
                loop {
                    let some = core.list_set_users(&mut users);
                    if some.is_empty() {
                        break;
                    }
                    if some.iter().any(|user| user.pid == pid && is_wanted(user.role)) {
                        return true;
                    }
                }
            }
        }
    }
}

/// The library, which cargo builds with its tests.
fn library() -> PathBuf {
    let stepper = Path::new(env!("CARGO_BIN_EXE_sysv-stepper"));
    let folder = stepper.parent().expect("a program is in a folder");
    // Cargo puts it beside the other parts of a build, and only `cargo build` copies it.
    let library = folder.join("deps/libsignalbox_sysv.so");
    assert!(library.exists(), "{}", describe(format!("{} was built", library.display())).0);
    library
}
