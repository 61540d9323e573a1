//! The [`Storage`] of the node that leads: the records of the cluster, in etcd.
//!
//! Each commit is a transaction that compares the leadership key and the commit marker of the previous commit, so that
//! a leader that was replaced stores nothing, and no commit is stored twice. A commit that is not answered is sent
//! again unchanged until its outcome is known. If etcd refuses it, the next commit must be the same one, because an
//! earlier attempt may still be applied.
//!
//! Each record is one key. Its value begins with the format of the record's bytes, because nodes of different versions may
//! have written them.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use super::coordinator::{
    CallError, Compare, Coordinator, Operation, Range, RangeAnswer, Revision, Transaction, TransactionAnswer,
    until_answered,
};
use super::keys::{self, Keys, Leadership, Marker, encode, end_of_prefix};
use super::leadership::Term;
use super::timing::Fence;
use signalbox_core::{BatchLimit, Change, Key, Record};
use signalbox_storage::record::{self, FORMAT};
use signalbox_storage::{CommitError, Snapshot, Storage, StorageError};

/// The approximate number of records in one answer, which limits the memory for reading all records.
const RECORDS_OF_ANSWER: u64 = 4_000;

/// The records of the cluster that this node leads.
///
/// Invariants: the numbers of an epoch's commits grow by one; no number is used for two different commits; a commit is stored
/// before the next one is made.
#[derive(Debug)]
pub struct ClusterStorage<C> {
    coordinator: C,
    keys: Keys,
    term: Term,
    /// The last commit that is stored.
    last: Marker,
    fence: Fence,
}

/// A commit whose outcome is not known yet.
#[derive(Debug)]
pub struct Commit {
    transaction: Transaction,
    marker: Marker,
}

impl Commit {
    /// The transaction to send, unchanged until the outcome is known.
    pub fn transaction(&self) -> &Transaction {
        &self.transaction
    }
}

impl<C> ClusterStorage<C> {
    /// Creates the storage of a node that has just taken over. After the deadline of `fence`, it repeats no call.
    pub fn new(coordinator: C, keys: Keys, term: Term, fence: Fence) -> Self {
        let last = Marker { epoch: term.epoch, commit: 0 };
        Self { coordinator, keys, term, last, fence }
    }

    /// Begins a commit. The caller sends its transaction and passes the answer to [`Self::answered`].
    pub fn begin(&self, changes: &[Change]) -> Commit {
        self.begin_writes(writes(&self.keys, self.term.record_format, changes))
    }

    /// Begins a commit of writes, which must not contain a key twice.
    pub fn begin_writes(&self, mut writes: Vec<Operation>) -> Commit {
        let marker = Marker { commit: self.last.commit + 1, ..self.last };
        let (leadership, key) = (self.keys.leadership(), self.keys.marker());
        writes.insert(0, Operation::Put { key: key.clone(), value: encode(&marker) });
        let transaction = Transaction {
            compare: vec![
                Compare::Modified { key: leadership.clone(), at: self.term.leadership_modified },
                Compare::Value { key: key.clone(), is: encode(&self.last) },
            ],
            then: writes,
            otherwise: vec![Operation::Read { key: leadership }, Operation::Read { key }],
        };
        Commit { transaction, marker }
    }

    /// Takes the answer to an attempt of a commit. Returns the outcome; `None`: it is not known, and the caller sends the
    /// transaction again. After [`CommitError::NotStored`], the same changes must be committed next; after
    /// [`CommitError::LeadershipLost`], this node must store and answer nothing more.
    pub fn answered(
        &mut self,
        commit: &Commit,
        answer: Result<TransactionAnswer, CallError>,
    ) -> Option<Result<(), CommitError>> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(CallError::Refused(problem)) => {
                return Some(Err(CommitError::NotStored(StorageError::Etcd(problem))));
            }
            Err(CallError::Unanswered(_)) if self.fence.is_past() => {
                return Some(Err(self.lost("etcd did not answer within the renew deadline".to_owned())));
            }
            Err(CallError::Unanswered(_)) => return None,
        };
        let stored = if answer.held {
            commit.marker
        } else {
            match self.found_marker(&answer) {
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

    fn lost(&self, reason: String) -> CommitError {
        CommitError::LeadershipLost { epoch: self.term.epoch, reason }
    }

    /// Returns the commit marker that was found by a transaction whose comparisons failed. Fails if this node no longer
    /// leads.
    fn found_marker(&self, answer: &TransactionAnswer) -> Result<Marker, String> {
        let [leadership, marker] = answer.read.as_slice() else {
            return Err("etcd's answer does not have the requested reads".to_owned());
        };
        let leadership = leadership.as_ref().ok_or("etcd no longer has the leadership key")?;
        if leadership.modified != self.term.leadership_modified {
            let key = self.keys.leadership();
            return Err(match keys::decode::<Leadership>(&key, &leadership.value) {
                Ok(other) => format!("node \"{}\" has taken over, with epoch {}", other.node, other.epoch),
                Err(error) => error.to_string(),
            });
        }
        let marker = marker.as_ref().ok_or("etcd no longer has the commit marker")?;
        keys::decode(&self.keys.marker(), &marker.value).map_err(|error| error.to_string())
    }
}

impl<C: Coordinator + Clone + 'static> Storage for ClusterStorage<C> {
    fn epoch(&self) -> u64 {
        self.term.epoch.into()
    }

    fn batch_limit(&self) -> BatchLimit {
        // A unit fits into a transaction, for which etcd accepts 1.5 MiB. Larger transactions would also take longer.
        BatchLimit::UNIT
    }

    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError> {
        let Self { coordinator, keys, term, fence, .. } = self;
        let mut call = |range: &Range| range_answered(coordinator, range, fence);
        load(keys, term.leadership_modified, &mut call, each)
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, StorageError> {
        let (coordinator, keys) = (self.coordinator.clone(), self.keys.clone());
        Ok(Box::new(ClusterSnapshot { coordinator, keys, fence: self.fence.clone() }))
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        let commit = self.begin(changes);
        loop {
            let may_repeat = || !self.fence.is_past();
            let send = |coordinator: &mut C| coordinator.transact(commit.transaction());
            let answer = until_answered(&mut self.coordinator, may_repeat, send);
            if let Some(outcome) = self.answered(&commit, answer) {
                return outcome;
            }
        }
    }
}

/// The records of a cluster at the revision of the first read.
struct ClusterSnapshot<C> {
    /// Has connections of its own, so that reads do not delay commits.
    coordinator: C,
    keys: Keys,
    fence: Fence,
}

impl<C: Coordinator> Snapshot for ClusterSnapshot<C> {
    fn read(self: Box<Self>, each: &mut dyn FnMut(Record) -> ControlFlow<()>) -> Result<(), StorageError> {
        let Self { mut coordinator, keys, fence } = *self;
        let prefix = keys.records();
        let all = Range { count_only: true, ..Range::below(&prefix) };
        let now = range_answered(&mut coordinator, &all, &fence).map_err(refused)?.revision;
        let is_over = AtomicBool::new(false);
        let mut call = |range: &Range| match is_over.load(Ordering::Relaxed) {
            true => Err(CallError::Refused("the reader has ended".to_owned())),
            false => range_answered(&mut coordinator, range, &fence),
        };
        let mut pass = |record| {
            if !is_over.load(Ordering::Relaxed) && each(record).is_break() {
                is_over.store(true, Ordering::Relaxed);
            }
        };
        match load(&keys, now, &mut call, &mut pass) {
            Err(_) if is_over.load(Ordering::Relaxed) => Ok(()),
            read => read,
        }
    }
}

/// Repeats a read until it is answered, but not past the deadline of the leadership.
fn range_answered(
    coordinator: &mut impl Coordinator,
    range: &Range,
    fence: &Fence,
) -> Result<RangeAnswer, CallError> {
    until_answered(coordinator, || !fence.is_past(), |coordinator| coordinator.range(range))
}

/// The writes of a batch in this format: only the last change of each key, because etcd refuses a transaction that
/// writes a key twice.
fn writes(keys: &Keys, format: u32, changes: &[Change]) -> Vec<Operation> {
    let mut last = HashMap::new();
    for (index, change) in changes.iter().enumerate() {
        last.insert(key_of(change), index);
    }
    let is_last = |(index, change): &(usize, &Change)| last.get(&key_of(change)) == Some(index);
    let operation = |(_, change): (usize, &Change)| match change {
        Change::Put(record) => {
            Operation::Put { key: record_key(keys, &record.key()), value: record_value(format, record) }
        }
        Change::Delete(key) => Operation::Delete { key: record_key(keys, key) },
    };
    changes.iter().enumerate().filter(is_last).map(operation).collect()
}

fn key_of(change: &Change) -> Key {
    match change {
        Change::Put(record) => record.key(),
        Change::Delete(key) => key.clone(),
    }
}

/// The key of a record in etcd.
pub fn record_key(keys: &Keys, key: &Key) -> Vec<u8> {
    let bytes = record::encode_key(key);
    let (kind, rest) = bytes.split_first().expect("every key has a kind");
    [keys.records().as_slice(), &[*kind, bucket(rest)], rest].concat()
}

/// The value of a record in etcd, in a format that this program writes.
pub fn record_value(format: u32, record: &Record) -> Vec<u8> {
    let number = u8::try_from(format).expect("the numbers of formats are small");
    [&[number], record::encode_value(record).as_slice()].concat()
}

/// The bucket of a key without its kind: the FNV-1a hash, folded to a byte. It is part of the layout of keys.
fn bucket(rest: &[u8]) -> u8 {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let hash = rest.iter().fold(OFFSET, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(PRIME));
    hash.to_be_bytes().into_iter().fold(0, |folded, byte| folded ^ byte)
}

/// A call that reads a range.
pub(super) type Read<'a> = dyn FnMut(&Range) -> Result<RangeAnswer, CallError> + Send + 'a;

/// Passes all records at a revision to `each`, in the order of their kinds. While `each` processes the records of one
/// answer, another thread reads the next ones.
pub fn load(
    keys: &Keys,
    at: Revision,
    read: &mut Read<'_>,
    each: &mut dyn FnMut(Record),
) -> Result<(), StorageError> {
    let prefix = keys.records();
    let (ranges, expected) = ranges(&prefix, at, read).map_err(refused)?;
    let mut found = 0;
    thread::scope(|scope| {
        let (sender, answers) = mpsc::sync_channel(1);
        scope.spawn(move || {
            for range in ranges {
                let answer = read(&range);
                let is_over = answer.is_err();
                // The receiver is gone if a record could not be decoded.
                if sender.send(answer).is_err() || is_over {
                    return;
                }
            }
        });
        for answer in answers {
            for entry in answer.map_err(refused)?.entries {
                each(decode(&prefix, &entry.key, &entry.value)?);
                found += 1;
            }
        }
        Ok::<_, StorageError>(())
    })?;
    if found == expected {
        return Ok(());
    }
    let problem = format!(
        "there are {expected} records, and this version of signalbox knows the kinds of {found}; a newer version has written \
         the others"
    );
    Err(StorageError::Etcd(problem))
}

/// Converts the error of a call to etcd.
pub(super) fn refused(error: CallError) -> StorageError {
    StorageError::Etcd(error.to_string())
}

/// The ranges to read, in the order of the kinds of records, and the number of all records.
fn ranges(prefix: &[u8], at: Revision, read: &mut Read<'_>) -> Result<(Vec<Range>, u64), CallError> {
    let range = |from: &[u8], to: &[u8], count_only| Range {
        from: from.to_vec(),
        to: Some(to.to_vec()),
        at: Some(at),
        count_only,
    };
    let all = read(&range(prefix, &end_of_prefix(prefix), true))?.count;
    let mut ranges = Vec::new();
    for kind in record::KINDS {
        let kind = [prefix, &[kind]].concat();
        let end = end_of_prefix(&kind);
        let count = read(&range(&kind, &end, true))?.count;
        let buckets = bucket_ranges(&kind, &end, count);
        ranges.extend(buckets.iter().map(|(from, to)| range(from, to, false)));
    }
    Ok((ranges, all))
}

/// Divides a kind with `count` records into ranges of whole buckets, each with about [`RECORDS_OF_ANSWER`] records.
fn bucket_ranges(kind: &[u8], end: &[u8], count: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    if count == 0 {
        return Vec::new();
    }
    let ranges = count.div_ceil(RECORDS_OF_ANSWER).min(256);
    let start = |range: u64| match range * 256 / ranges {
        0 => kind.to_vec(),
        256.. => end.to_vec(),
        bucket => [kind, &[bucket as u8]].concat(),
    };
    (0..ranges).map(|range| (start(range), start(range + 1))).collect()
}

fn decode(prefix: &[u8], key: &[u8], value: &[u8]) -> Result<Record, StorageError> {
    let damaged = StorageError::Etcd;
    let named = || key.escape_ascii();
    let stripped = key.strip_prefix(prefix).and_then(|key| {
        let (kind, [_, rest @ ..]) = key.split_first()? else { return None };
        Some([&[*kind], rest].concat())
    });
    let record_key = stripped.ok_or_else(|| damaged(format!("the key \"{}\" is too short", named())))?;
    let (format, value) =
        value.split_first().ok_or_else(|| damaged(format!("the value of \"{}\" is empty", named())))?;
    if u32::from(*format) != FORMAT {
        return Err(damaged(format!(
            "the record of \"{}\" has format {format}, and this version of signalbox knows format {FORMAT}; update \
             signalbox on this node",
            named()
        )));
    }
    record::decode(&record_key, value).map_err(|error| damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_keys_does_not_change() {
        // The hashes that the authors of FNV-1a publish are 811c9dc5, e40c292c and bf9cf968.
        assert_eq!(["", "a", "foobar"].map(|rest| bucket(rest.as_bytes())), [0xc5, 0xed, 0xb2]);
    }
}
