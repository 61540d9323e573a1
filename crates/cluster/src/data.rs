//! The records of a cluster for `signalbox data`: an export of all records at one revision, and an import into an empty cluster.

use thiserror::Error;

use super::coordinator::{
    CallError, Compare, Coordinator, Operation, Range, Revision, Transaction, TransactionAnswer,
};
use super::keys::{
    Format, Incarnation, Keys, LAYOUT, Leadership, LeadershipState, UNFINISHED_IMPORT, encode,
};
use super::store::{load, record_key, record_value, refused};
use super::timing::Timing;
use signalbox_core::Record;
use signalbox_storage::{FORMAT, StorageError};

/// The largest number of records in one transaction of an import.
const RECORDS_MAX: usize = 4_000;
/// The largest size of several records in one transaction of an import, in bytes. A larger record has a transaction of
/// its own.
const BYTES_MAX: usize = 1 << 20;

/// Why records were not imported into a cluster.
#[derive(Debug, Error)]
pub enum ImportError {
    /// etcd did not answer, or refused. If the import had begun, no node can join until an import is completed.
    #[error("etcd: {0}; run the command again")]
    Call(#[from] CallError),
    /// The cluster is in use.
    #[error(
        "etcd has keys below \"{0}\" already: the cluster is or was in use; import into a new cluster (cluster.name), \
         or stop all nodes and delete these keys"
    )]
    InUse(String),
    /// Another import runs at the same time.
    #[error("another import into this cluster runs; wait until it has ended, and run the command again")]
    Concurrent,
}

/// Passes all records at one revision to `each`, kind by kind. The cluster may be in use.
pub fn read_all(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    each: &mut dyn FnMut(Record),
) -> Result<(), StorageError> {
    let all = all_keys(keys);
    let now = coordinator.range(&all).map_err(refused)?;
    if now.count == 0 {
        let problem = format!("there is no cluster below \"{}\"; check cluster.name", keys.prefix());
        return Err(StorageError::Etcd(problem));
    }
    load(keys, now.revision, &mut |range| coordinator.range(range), each)
}

/// Writes the records into a cluster that no node has joined yet. Nodes cannot join before all records are written.
pub fn import(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    timing: Timing,
    records: &[Record],
) -> Result<(), ImportError> {
    let renew_deadline_ms = u64::try_from(timing.renew_deadline().as_millis()).unwrap_or(u64::MAX);
    let format = |layout| encode(&Format { layout, record_format: FORMAT, renew_deadline_ms });
    let claimed = claim(coordinator, keys, &format(UNFINISHED_IMPORT))?;
    let mut write = |then| write_exclusively(coordinator, keys, claimed, then);
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let entry = |record: &Record| (record_key(keys, &record.key()), record_value(FORMAT, record));
    for (key, value) in records.iter().map(entry) {
        let size = key.len() + value.len();
        if batch.len() == RECORDS_MAX || (bytes + size > BYTES_MAX && !batch.is_empty()) {
            write(std::mem::take(&mut batch))?;
            bytes = 0;
        }
        bytes += size;
        batch.push(Operation::Put { key, value });
    }
    write(batch)?;
    // A session's number begins with an epoch. The first leader gets a higher epoch than the imported sessions have, so
    // that its own sessions get unused numbers.
    let epoch = records.iter().filter_map(epoch_of).max().unwrap_or(0);
    let leadership = Leadership {
        epoch,
        node: "import".to_owned(),
        incarnation: Incarnation("0".repeat(32)),
        state: LeadershipState::Released,
        successor: None,
    };
    write(vec![
        Operation::Put { key: keys.leadership(), value: encode(&leadership) },
        Operation::Put { key: keys.format(), value: format(LAYOUT) },
    ])
    .map(drop)
}

/// Claims a cluster that is empty or has an unfinished import, and removes the records of that import. Returns the
/// revision afterwards.
fn claim(coordinator: &mut dyn Coordinator, keys: &Keys, unfinished: &[u8]) -> Result<Revision, ImportError> {
    let in_use = || ImportError::InUse(keys.prefix().to_owned());
    let found = coordinator.range(&Range { count_only: false, ..all_keys(keys) })?.entries;
    let format = found.iter().find(|entry| entry.key == keys.format());
    let before = match format {
        None if found.is_empty() => 0,
        Some(entry) if entry.value == unfinished => entry.modified,
        _ => return Err(in_use()),
    };
    for entries in found.chunks(RECORDS_MAX) {
        let rest = entries.iter().filter(|entry| entry.key != keys.format());
        let deletions = rest.map(|entry| Operation::Delete { key: entry.key.clone() }).collect();
        write_exclusively(coordinator, keys, before, deletions)?;
    }
    let writes = vec![Operation::Put { key: keys.format(), value: unfinished.to_vec() }];
    write_exclusively(coordinator, keys, before, writes)
}

/// Writes if no other import has begun, which would have changed the format key. Returns the revision afterwards.
fn write_exclusively(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    format_modified: Revision,
    then: Vec<Operation>,
) -> Result<Revision, ImportError> {
    let compare = vec![Compare::Modified { key: keys.format(), at: format_modified }];
    let transaction = Transaction { compare, then, otherwise: Vec::new() };
    match coordinator.transact(&transaction)? {
        TransactionAnswer { held: true, revision, .. } => Ok(revision),
        TransactionAnswer { held: false, .. } => Err(ImportError::Concurrent),
    }
}

fn all_keys(keys: &Keys) -> Range {
    let prefix = keys.prefix().as_bytes();
    Range { count_only: true, ..Range::below(prefix) }
}

/// The epoch in the number of a session record.
fn epoch_of(record: &Record) -> Option<u32> {
    match record {
        Record::Session(session) => u32::try_from(session.session.number() >> 32).ok(),
        _ => None,
    }
}
