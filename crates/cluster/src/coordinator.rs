//! The interface to etcd: reads of ranges, and transactions. `etcd` implements it with a client; tests use a store in
//! memory.
//!
//! Calls block, because each thread has one request in flight at a time: a transaction compares what the previous one
//! wrote.

use std::thread;
use std::time::Duration;

use thiserror::Error;

use super::keys::end_of_prefix;
use super::timing::BootTime;

/// A revision of the store: it grows with every transaction that writes. 0 is before the first one.
pub type Revision = u64;

/// A linearizable store of keys and values, and the clock of its caller. Tests simulate both.
pub trait Coordinator: Send {
    /// Reads keys with their values, or counts keys.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing has changed in any case.
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError>;

    /// Performs a transaction: all of it at one revision, or nothing.
    ///
    /// # Errors
    ///
    /// After [`CallError::Unanswered`], the transaction may have been performed, or may still be performed at any later
    /// time; after [`CallError::Refused`], it was not and will not be.
    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError>;

    /// Waits between two calls.
    fn pause(&mut self, span: Duration) {
        thread::sleep(span);
    }

    /// The present time, which limits how long the caller repeats its calls.
    fn now(&self) -> BootTime {
        BootTime::now()
    }
}

/// The pause before an unanswered call is repeated. A client of etcd then calls another member.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Repeats a call that is not answered, as long as `may_repeat` permits. The call may be performed more than once, so
/// it must be idempotent.
pub(super) fn until_answered<C: Coordinator + ?Sized, T>(
    coordinator: &mut C,
    mut may_repeat: impl FnMut() -> bool,
    mut call: impl FnMut(&mut C) -> Result<T, CallError>,
) -> Result<T, CallError> {
    loop {
        match call(coordinator) {
            Err(CallError::Unanswered(_)) if may_repeat() => coordinator.pause(PAUSE),
            answer => return answer,
        }
    }
}

/// The number of attempts at each member of etcd. One is too few while the members elect a leader, which takes up to
/// 2.9 s.
const ROUNDS: usize = 2;

/// A connection to etcd that tries each member before it gives up.
#[derive(Clone, Debug)]
pub struct Persistent<C> {
    inner: C,
    attempts: usize,
}

impl<C: Coordinator> Persistent<C> {
    /// Wraps a connection to this number of members.
    pub fn new(inner: C, members: usize) -> Self {
        Self { inner, attempts: members.max(1) * ROUNDS }
    }

    /// The connection that makes single attempts.
    pub fn inner_mut(&mut self) -> &mut C {
        &mut self.inner
    }

    fn call<T>(&mut self, call: impl FnMut(&mut C) -> Result<T, CallError>) -> Result<T, CallError> {
        let mut left = self.attempts;
        let may_repeat = || {
            left -= 1;
            left > 0
        };
        until_answered(&mut self.inner, may_repeat, call)
    }
}

impl<C: Coordinator> Coordinator for Persistent<C> {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.call(|inner| inner.range(range))
    }

    /// If an attempt was performed but its answer was lost, the comparisons of the next attempt fail.
    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        self.call(|inner| inner.transact(transaction))
    }

    fn pause(&mut self, span: Duration) {
        self.inner.pause(span);
    }

    fn now(&self) -> BootTime {
        self.inner.now()
    }
}

/// Keys to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first key.
    pub from: Vec<u8>,
    /// The first key after the range; `None` means that `from` is the only key.
    pub to: Option<Vec<u8>>,
    /// The revision to read; `None`: the latest one, not older than the call (linearizable).
    pub at: Option<Revision>,
    /// Whether only the number of keys is read.
    pub count_only: bool,
}

impl Range {
    /// One key with its value, at the latest revision.
    pub fn of(key: Vec<u8>) -> Self {
        Self { from: key, to: None, at: None, count_only: false }
    }

    /// All keys that begin with this prefix, with their values, at the latest revision.
    pub fn below(prefix: &[u8]) -> Self {
        Self { from: prefix.to_vec(), to: Some(end_of_prefix(prefix)), at: None, count_only: false }
    }
}

/// The answer to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeAnswer {
    /// The revision of the store when it answered; this may be later than `at`.
    pub revision: Revision,
    /// The number of keys in the range.
    pub count: u64,
    /// The keys and values, in the order of keys; empty if only the number was read.
    pub entries: Vec<Entry>,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision at which it was written last.
    pub modified: Revision,
}

/// A transaction: if all comparisons hold, `then` is performed, else `otherwise`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The conditions.
    pub compare: Vec<Compare>,
    /// The operations if all conditions hold. No key may be written twice.
    pub then: Vec<Operation>,
    /// The operations otherwise.
    pub otherwise: Vec<Operation>,
}

/// A comparison of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key was written last at this revision; 0 means that it does not exist.
    Modified {
        /// The key.
        key: Vec<u8>,
        /// The revision.
        at: Revision,
    },
    /// The key has this value.
    Value {
        /// The key.
        key: Vec<u8>,
        /// The value.
        is: Vec<u8>,
    },
    /// No existing key of a range was written after this revision.
    NotAfter {
        /// The first key.
        from: Vec<u8>,
        /// The first key after the range.
        to: Vec<u8>,
        /// The revision.
        at: Revision,
    },
}

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes a key, if it exists.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Reads a key.
    Read {
        /// The key.
        key: Vec<u8>,
    },
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionAnswer {
    /// The revision of the store afterwards: that of this transaction, if it wrote.
    pub revision: Revision,
    /// Whether the comparisons held.
    pub held: bool,
    /// The results of the reads in the branch that was performed, in their order; `None`: the key does not exist.
    pub read: Vec<Option<Entry>>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The call was not answered in time, the connection was lost, or etcd has no leader at present.
    #[error("{0}")]
    Unanswered(String),
    /// etcd refused the call and will refuse it again: it is too large, etcd has no space, or the user has no
    /// permission.
    #[error("{0}")]
    Refused(String),
}
