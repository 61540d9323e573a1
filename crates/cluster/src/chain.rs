//! The chain of commits: each is a transaction that compares the leadership key and the commit marker of the commit
//! before, so that a leader that was replaced stores nothing, and no commit is stored twice.
//!
//! A commit that is not answered is sent again unchanged until its outcome is known. If etcd refuses it, the next commit is the
//! same one: an earlier attempt of it may still be applied.
//!
//! [`Commit`] has no I/O: [`Commit::transaction`] is what to send, and [`Chain::answered`] takes the answer.
//!
//! Invariants: the numbers of an epoch's commits grow by one; no number is used for two different commits; a commit is stored
//! before the next one is made.

use super::coordinator::{CallError, Compare, Operation, Transaction, TransactionAnswer};
use super::keys::{Keys, Leadership, Marker, decode, encode};
use super::leadership::Term;
use signalbox_storage::{CommitError, StorageError};

/// The commits of one leader.
#[derive(Debug)]
pub struct Chain {
    keys: Keys,
    term: Term,
    last: Marker,
}

/// A commit whose outcome is not known yet.
#[derive(Debug)]
pub struct Commit {
    transaction: Transaction,
    marker: Marker,
}

impl Chain {
    /// The chain of a leader that has just taken over.
    pub fn new(keys: Keys, term: Term) -> Self {
        let last = Marker { epoch: term.epoch, commit: 0 };
        Self { keys, term, last }
    }

    /// The term of leadership.
    pub fn term(&self) -> &Term {
        &self.term
    }

    /// Begins a commit of writes, in which no key occurs twice.
    pub fn begin(&self, writes: Vec<Operation>) -> Commit {
        let marker = Marker { commit: self.last.commit + 1, ..self.last };
        Commit { transaction: self.transaction(marker, writes), marker }
    }

    /// Takes the answer to an attempt of a commit, or the report that there is none. Returns the outcome if it is known;
    /// else the caller sends the commit again. After [`CommitError::NotStored`], the same changes must be committed next;
    /// after [`CommitError::LeadershipLost`], this node must store and answer nothing more.
    pub fn answered(
        &mut self,
        commit: &Commit,
        answer: Result<TransactionAnswer, CallError>,
    ) -> Option<Result<(), CommitError>> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(CallError::Refused(problem)) => {
                return Some(Err(CommitError::NotStored(StorageError::Etcd { problem })));
            }
            Err(CallError::Unanswered(_)) => return None,
        };
        let stored = if answer.held {
            commit.marker
        } else {
            match self.found(&answer) {
                Ok(marker) => marker,
                Err(reason) => return Some(Err(self.lost(reason))),
            }
        };
        if stored != commit.marker {
            return Some(Err(self.lost(format!(
                "the last commit in etcd is number {} of epoch {}, and this node has made {} of epoch {}",
                stored.commit, stored.epoch, self.last.commit, self.last.epoch
            ))));
        }
        self.last = stored;
        Some(Ok(()))
    }

    /// The error of a commit of a node that does not lead any more.
    pub(super) fn lost(&self, reason: String) -> CommitError {
        CommitError::LeadershipLost { epoch: self.term.epoch, reason }
    }

    /// The marker that was found by a transaction whose comparisons failed, if this node still leads.
    fn found(&self, answer: &TransactionAnswer) -> Result<Marker, String> {
        let [leadership, marker] = answer.read.as_slice() else {
            return Err("etcd's answer does not have what was asked for".to_owned());
        };
        let leadership = leadership.as_ref().ok_or("etcd does not have the leadership key any more")?;
        if leadership.modified != self.term.leadership_modified {
            let key = self.keys.leadership();
            return Err(match decode::<Leadership>(&key, &leadership.value) {
                Ok(other) => format!("node \"{}\" leads since, with epoch {}", other.node, other.epoch),
                Err(error) => error.to_string(),
            });
        }
        let marker = marker.as_ref().ok_or("etcd does not have the commit marker any more")?;
        decode(&self.keys.marker(), &marker.value).map_err(|error| error.to_string())
    }

    fn transaction(&self, marker: Marker, mut writes: Vec<Operation>) -> Transaction {
        let (leadership, key) = (self.keys.leadership(), self.keys.marker());
        writes.insert(0, Operation::Put { key: key.clone(), value: encode(&marker) });
        Transaction {
            compare: vec![
                Compare::Modified { key: leadership.clone(), at: self.term.leadership_modified },
                Compare::Value { key: key.clone(), is: encode(&self.last) },
            ],
            then: writes,
            otherwise: vec![Operation::Read { key: leadership }, Operation::Read { key }],
        }
    }
}

impl Commit {
    /// What to send, unchanged until there is an outcome.
    pub fn transaction(&self) -> &Transaction {
        &self.transaction
    }
}
