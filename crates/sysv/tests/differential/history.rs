//! Histories of calls, and the state that is observed after each step.

use proptest::collection::vec;
use proptest::prelude::*;

/// Processes of a history.
pub const PROCESSES: usize = 4;

/// Keys that a history uses.
pub const KEYS: usize = 2;

/// The timeout of calls that are awaited until it has passed.
pub const SHORT_MS: u32 = 3;

/// A command of one process. The steps of a history are commands of processes that do not wait, except for signals and
/// kills.
#[derive(Clone, Debug)]
pub enum Command {
    /// `semget` with IPC_CREAT; `exclusive` adds IPC_EXCL.
    Get {
        key: usize,
        count: u8,
        creates: bool,
        exclusive: bool,
    },
    /// `semop`, or `semtimedop`.
    Operate {
        key: usize,
        operations: Vec<Operation>,
        timeout: Timeout,
    },
    SetValue {
        key: usize,
        number: u8,
        value: i32,
    },
    SetAll {
        key: usize,
        value: u16,
    },
    Remove {
        key: usize,
    },
    /// A signal, which the process catches.
    Signal,
    /// `kill -9`; another process takes its place.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    None,
    Zero,
    /// [`SHORT_MS`]; the step ends when the call does.
    Short,
}

#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub number: u8,
    pub change: i16,
    pub nowait: bool,
    pub undo: bool,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub process: usize,
    pub command: Command,
}

#[derive(Clone, Debug)]
pub struct History(pub Vec<Step>);

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Result {
    /// The value, 0 where it is an id.
    Value(i64),
    /// The name of the error.
    Failed(String),
}

/// The state of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It has made no call.
    New,
    /// Its last call is done.
    Done(Result),
    /// Its call waits.
    Waits,
}

/// One semaphore: its value, the process that operated on it last (by its number in the history, from 1), and how many
/// calls wait for it to grow and for 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Semaphore {
    pub value: u32,
    pub process: usize,
    pub growth: u32,
    pub zero: u32,
}

/// The state that is observed after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub processes: Vec<State>,
    /// For each key its set; `None`: there is none.
    pub sets: Vec<Option<Vec<Semaphore>>>,
}

/// The step could not be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

/// An implementation that executes histories.
pub trait World {
    /// Begins a history: there are no sets, and new processes.
    fn reset(&mut self);

    /// Takes a step, and observes the state after it.
    fn take(&mut self, step: &Step) -> std::result::Result<Observed, Failure>;
}

impl Observed {
    /// How many calls wait.
    pub fn waiting(&self) -> usize {
        self.processes.iter().filter(|state| **state == State::Waits).count()
    }

    /// The processes whose waiting calls are done since then, except that of the step.
    pub fn completed_since(&self, before: Option<&Self>, step: &Step) -> Vec<(usize, Result)> {
        let Some(before) = before else { return Vec::new() };
        let states = self.processes.iter().zip(&before.processes).enumerate();
        let completed = states.filter_map(|(process, (after, before))| match after {
            State::Done(result) if *before == State::Waits && process != step.process => {
                Some((process, result.clone()))
            }
            _ => None,
        });
        completed.collect()
    }
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    // Small changes interact with each other; a few reach the ends of the ranges.
    let change = prop_oneof![
        6 => Just(0_i16),
        20 => prop_oneof![Just(-2_i16), Just(-1), Just(-1), Just(1), Just(1), Just(2)],
        1 => prop_oneof![Just(i16::MAX), Just(i16::MIN), Just(20_000), Just(-20_000)],
    ];
    // Calls that do not wait at all would tell little.
    let flags = (prop::bool::weighted(0.15), prop::bool::weighted(0.4));
    let operation = (0..6_u8, change, flags).prop_map(|(number, change, (nowait, undo))| Operation {
        number,
        change,
        nowait,
        undo,
    });
    let few = prop_oneof![8 => 1..=1_usize, 5 => 2..=3_usize, 1 => 4..=8_usize];
    few.prop_flat_map(move |count| vec(operation.clone(), count))
}

fn commands() -> impl Strategy<Value = Command> {
    let key = prop_oneof![8 => Just(0), 1 => 0..KEYS];
    let value = prop_oneof![6 => 0..=3_i32, 1 => prop_oneof![Just(-1), Just(32_767), Just(32_768)]];
    let timeout = prop_oneof![20 => Just(Timeout::None), 2 => Just(Timeout::Zero), 1 => Just(Timeout::Short)];
    prop_oneof![
        2 => (key.clone(), 0..=6_u8, prop::bool::weighted(0.8), any::<bool>())
            .prop_map(|(key, count, creates, exclusive)| Command::Get { key, count, creates, exclusive }),
        30 => (key.clone(), operations(), timeout)
            .prop_map(|(key, operations, timeout)| Command::Operate { key, operations, timeout }),
        3 => (key.clone(), 0..6_u8, value).prop_map(|(key, number, value)| Command::SetValue { key, number, value }),
        2 => (key.clone(), 0..=3_u16).prop_map(|(key, value)| Command::SetAll { key, value }),
        1 => key.prop_map(|key| Command::Remove { key }),
        2 => Just(Command::Signal),
        2 => Just(Command::Kill),
    ]
}

/// Histories that begin with a set, most often of few semaphores, so that calls meet.
pub fn histories() -> impl Strategy<Value = History> {
    let count = prop_oneof![4 => 1..=2_u8, 1 => 3..=6_u8];
    let step = (0..PROCESSES, commands()).prop_map(|(process, command)| Step { process, command });
    (count, vec(step, 10..40)).prop_map(|(count, mut steps)| {
        let first = Command::Get { key: 0, count, creates: true, exclusive: false };
        steps.insert(0, Step { process: 0, command: first });
        // Most numbers are those of semaphores that the first set has.
        for step in &mut steps {
            if let Command::Operate { operations, .. } = &mut step.command {
                for operation in operations {
                    if operation.number < 5 {
                        operation.number %= count;
                    }
                }
            }
        }
        History(steps)
    })
}
