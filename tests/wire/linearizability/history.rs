//! The operations of clients on one name, and the sequential model of one name.
//!
//! The model is written from the protocol documents and knows nothing of the product's core.

/// An operation of one connection on the name, from before its request was sent until after its answer was read.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub connection: usize,
    pub call: Call,
    pub answer: Answer,
    /// A reading of the monotonic clock that all operations share.
    pub invoked_ns: u64,
    pub returned_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Acquire {
        resources: u32,
    },
    Release {
        resources: u32,
    },
    Get,
    /// The connection is closed. Everything that it held is released at some later time.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    NotAvailable,
    NotAcquired,
    NotFound,
    Value(u32),
    /// The connection was closed before an answer arrived: the operation may have happened before that, or never.
    Lost,
}

/// The kind of the name.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// A semaphore's capacity, or the maximum that every Acquire of the counter gives.
    pub limit: u32,
    pub is_semaphore: bool,
}

/// The name between two operations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    was_made: bool,
    /// By connection; `None` is closed.
    holdings: Vec<Option<u32>>,
}

impl State {
    pub fn new(connections: usize) -> Self {
        Self { was_made: false, holdings: vec![Some(0); connections] }
    }

    fn consumption(&self) -> u32 {
        self.holdings.iter().flatten().sum()
    }

    /// The name is unused: it may be collected, or was never created.
    fn may_be_absent(&self, name: Name) -> bool {
        self.consumption() == 0 && (name.is_semaphore || !self.was_made)
    }

    /// The state after an operation with this answer; `None` if the answer is impossible.
    pub fn after(&self, name: Name, operation: &Operation) -> Option<Self> {
        let mut after = self.clone();
        let holding = &mut after.holdings[operation.connection];
        if let Call::Close = operation.call {
            *holding = None;
            return Some(after);
        }
        let Some(held) = holding else {
            // An operation after the end of its connection has not happened.
            return (operation.answer == Answer::Lost).then_some(after);
        };
        let is_possible = match (operation.call, operation.answer) {
            (Call::Acquire { resources }, answer) => {
                let fits = self.consumption() + resources <= name.limit;
                after.was_made = true;
                if fits {
                    *held += resources;
                }
                match answer {
                    Answer::Done => fits,
                    Answer::NotAvailable => !fits,
                    answer => answer == Answer::Lost,
                }
            }
            (Call::Release { resources }, answer) => {
                let has = *held >= resources;
                if has {
                    *held -= resources;
                }
                match answer {
                    Answer::Done => has,
                    Answer::NotAcquired => !has,
                    Answer::NotFound => self.may_be_absent(name),
                    answer => answer == Answer::Lost,
                }
            }
            (Call::Get, Answer::Value(value)) => {
                let consumption = self.consumption();
                self.was_made
                    && value == if name.is_semaphore { name.limit - consumption } else { consumption }
            }
            (Call::Get, Answer::NotFound) => self.may_be_absent(name),
            (Call::Get, answer) => answer == Answer::Lost,
            (Call::Close, _) => unreachable!("it was handled above"),
        };
        is_possible.then_some(after)
    }
}
