//! Histories as programs see them: with the kernel's semaphores, or with the library and a server.

use std::collections::BTreeMap;
use std::time::Instant;

use super::describe;
use super::history::{
    Command, Failure, KEYS, Observed, PROCESSES, Result, SHORT_MS, Semaphore, State, Step, Timeout, World,
};
use super::stepper::{PATIENCE, Stepper};
use super::support::{TestServer, first_unused_key, preload};

/// The id of no set: the last of the kernel's, which are given out in turn, and of the server's.
const NO_SET: i64 = i32::MAX as i64;

pub struct Programs {
    semaphores: Semaphores,
    steppers: Vec<Stepper>,
    states: Vec<State>,
    observer: Stepper,
    /// The processes of the history by their process ids.
    numbers: BTreeMap<u32, usize>,
    sets: [i64; KEYS],
}

/// The implementation that executes the calls.
enum Semaphores {
    Kernel,
    Server(TestServer),
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
        Self { semaphores, steppers, states, observer, numbers: BTreeMap::new(), sets: [NO_SET; KEYS] }
    }

    fn start(&mut self) -> Stepper {
        let stepper = self.semaphores.stepper();
        self.numbers.insert(stepper.pid(), self.numbers.len() + 1);
        stepper
    }

    /// Makes a call. One that `ends` by itself is awaited.
    fn call(&mut self, by: usize, command: &str, ends: bool) -> std::result::Result<(), Failure> {
        self.steppers[by].tell(command);
        self.states[by] = State::Waits;
        if ends {
            self.await_answer(by, "the call is done")?;
        }
        Ok(())
    }

    fn await_answer(&mut self, by: usize, what: &str) -> std::result::Result<(), Failure> {
        self.steppers[by].until(what, Stepper::has_answer)?;
        self.states[by] = State::Done(self.steppers[by].answer()?);
        Ok(())
    }

    /// Waits until each call is done or waits, and observes everything.
    ///
    /// A call waits if it is counted at a semaphore. Whether its program sleeps would not tell: it may sleep within the
    /// call for other reasons, such as a page of memory.
    ///
    /// A call that waits does nothing until another is performed. So at most one of the calls without an answer, that of
    /// the step, does anything, at one moment: it is performed, and others with it, or it begins to wait. An observation
    /// that ends before the moment does not count it, and so counts too few. One that begins after the moment is exact.
    /// One that does neither may count anything; so the result is the second of two in succession that count as many calls
    /// as there were without an answer.
    fn settle(&mut self) -> std::result::Result<Observed, Failure> {
        let begun = Instant::now();
        loop {
            let waiting: Vec<_> = (0..PROCESSES).filter(|by| self.is_unanswered(*by)).collect();
            let are_counted = |sets: &[Option<Vec<Semaphore>>]| {
                let semaphores = sets.iter().flatten().flatten();
                semaphores.map(|semaphore| semaphore.growth + semaphore.zero).sum::<u32>() as usize
                    == waiting.len()
            };
            let mut sets = self.observe_sets();
            if are_counted(&sets) {
                if !waiting.is_empty() {
                    sets = self.observe_sets();
                }
                if are_counted(&sets) {
                    self.note_answers(&waiting)?;
                    return Ok(Observed { processes: self.states.clone(), sets });
                }
            }
            if begun.elapsed() > PATIENCE {
                return Err(describe(format!(
                    "never counted: {waiting:?}, which have no answer, in {sets:?}"
                )));
            }
            std::thread::yield_now();
        }
    }

    fn is_unanswered(&self, by: usize) -> bool {
        self.states[by] == State::Waits && !self.steppers[by].has_answer()
    }

    /// Notes the results of all calls but those that wait.
    fn note_answers(&mut self, waiting: &[usize]) -> std::result::Result<(), Failure> {
        for by in 0..PROCESSES {
            if self.states[by] == State::Waits && !waiting.contains(&by) {
                self.await_answer(by, "the answer is there")?;
            }
        }
        Ok(())
    }

    /// The sets, by one exchange with the observer: each costs two changes of the running process.
    fn observe_sets(&mut self) -> Vec<Option<Vec<Semaphore>>> {
        let answers = self.observer.ask_all(&self.sets.map(|set| format!("look {set}")));
        answers.into_iter().map(|answer| answer.map(|text| self.semaphores_of(&text))).collect()
    }

    fn semaphores_of(&self, text: &str) -> Vec<Semaphore> {
        let semaphores = text.split(',').map(|semaphore| {
            let numbers: Vec<u32> =
                semaphore.split(':').map(|number| number.parse().expect("a number")).collect();
            let [value, pid, growth, zero] = numbers[..] else { panic!("four numbers: {semaphore}") };
            let process = match pid {
                0 => 0,
                pid => self.numbers.get(&pid).copied().unwrap_or(usize::MAX),
            };
            Semaphore { value, process, growth, zero }
        });
        semaphores.collect()
    }

    fn remove_sets(&mut self) {
        for key in 0..KEYS {
            if let Some(set) = self.observer.ask(&format!("get {} 0 0", first_unused_key() + key as i32)) {
                self.observer.ask(&format!("ctl {set} 0 IPC_RMID"));
            }
        }
    }
}

/// The kernel's sets outlive the test.
impl Drop for Programs {
    fn drop(&mut self) {
        self.remove_sets();
    }
}

impl World for Programs {
    fn reset(&mut self) {
        self.remove_sets();
        // Steppers that wait are replaced by new ones; the others have nothing left.
        let steppers = std::mem::take(&mut self.steppers);
        let states = std::mem::take(&mut self.states);
        let idle = steppers.into_iter().zip(states).filter(|(_, state)| *state != State::Waits);
        let mut idle = idle.map(|(stepper, _)| stepper).collect::<Vec<_>>();
        self.numbers.clear();
        self.sets = [NO_SET; KEYS];
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
            }
            Command::Signal if waits => {
                self.steppers[by].signal();
                self.await_answer(by, "the call is interrupted")?;
            }
            Command::Signal => {}
            _ if waits => {}
            Command::Get { key, count, creates, exclusive } => {
                let flags = 0o600
                    | if *creates { libc::IPC_CREAT } else { 0 }
                    | if *exclusive { libc::IPC_EXCL } else { 0 };
                self.call(by, &format!("get {} {count} {flags}", first_unused_key() + *key as i32), true)?;
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
                let count = self.observe_sets()[*key].as_ref().map_or(1, Vec::len);
                let values = vec![value.to_string(); count].join(",");
                self.call(by, &format!("ctl {} 0 SETALL {values}", self.sets[*key]), true)?;
            }
            Command::Remove { key } => {
                self.call(by, &format!("ctl {} 0 IPC_RMID", self.sets[*key]), true)?;
            }
        }
        self.settle()
    }
}

impl Semaphores {
    fn stepper(&self) -> Stepper {
        Stepper::start(|command| {
            if let Self::Server(server) = self {
                preload(command, server.address);
            }
        })
    }

    /// Waits until the end of a program has had its effect.
    fn await_end(&self, stepper: &Stepper) -> std::result::Result<(), Failure> {
        match self {
            Self::Kernel => Ok(()),
            Self::Server(server) => {
                stepper.until("the server knows of the end", |stepper| !is_user(server, stepper.pid()))
            }
        }
    }
}

/// Whether a process uses a set of the server: it waits, or has adjustments.
fn is_user(server: &TestServer, pid: u32) -> bool {
    let core = server.server.core();
    let mut sets = core.sets();
    loop {
        let some = core.list_sets(&mut sets);
        if some.is_empty() {
            return false;
        }
        for set in some {
            let Ok(mut users) = core.set_users(set.set) else { continue };
            loop {
                let some = core.list_set_users(&mut users);
                if some.is_empty() {
                    break;
                }
                if some.iter().any(|user| user.pid == pid) {
                    return true;
                }
            }
        }
    }
}
