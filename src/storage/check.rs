//! Whether a data directory is sound: the file, each record, and what the records say of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;

use super::StorageError;
use super::backend::Untouched;
use super::directory::{Directory, unusable};
use super::engine::{Opened, Options, each_record, open_engine, open_file, verify};
use super::record::in_words;
use crate::core::{Core, Moment, MonotonicMs, NameHasher, Namespace, Record, UnixSeconds};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether the file was not closed properly. Opening it for writing will repair it.
    pub needs_repair: bool,
    /// How many records there are.
    pub counts: Counts,
    /// What is wrong, a sentence each; empty where all is well.
    pub problems: Vec<String>,
}

/// How many records there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Declared semaphores.
    pub declarations: u64,
    /// Leased sessions.
    pub sessions: u64,
    /// Grants of leased sessions.
    pub grants: u64,
    /// Remembered answers.
    pub answers: u64,
}

impl Counts {
    fn count(&mut self, record: &Record) {
        match record {
            Record::Mark(_) => {}
            Record::Declaration(_) => self.declarations += 1,
            Record::Session(_) => self.sessions += 1,
            Record::Grant(_) => self.grants += 1,
            Record::Answer(_) => self.answers += 1,
        }
    }
}

/// Checks the data directory of a server that does not run. Changes nothing; what a repair would do is done in memory.
/// Fails where the file cannot be opened at all.
pub fn check(directory: &Path) -> Result<Report, StorageError> {
    let directory = Directory::look(directory)?;
    let path = directory.file();
    let Opened { mut database, was_repaired } = look(&path)?;
    let mut report = Report { needs_repair: was_repaired, counts: Counts::default(), problems: Vec::new() };
    let mut records = Vec::new();
    let read = each_record(&path, &database, &mut |record| match record {
        Ok(record) => {
            report.counts.count(&record);
            records.push(record);
        }
        Err(error) => report.problems.push(error.to_string()),
    });
    // After reading: a file that fails it is closed to readers too.
    for failed in [read, verify(&path, &mut database)].into_iter().filter_map(Result::err) {
        report.problems.push(failed.to_string());
    }
    report.problems.extend(disagreements(&records));
    Ok(report)
}

/// Opens a file for reading, damaged or not.
pub(super) fn look(path: &Path) -> Result<Opened, StorageError> {
    let untouched = open_file(path, false).and_then(Untouched::new).map_err(unusable(path))?;
    open_engine(path, untouched, Options::default())
}

/// What records say that cannot be true together, a sentence each. `records` is all there are, in any order.
pub fn disagreements(records: &[Record]) -> Vec<String> {
    let mut problems = Vec::new();
    let mark = records.iter().find_map(|record| match record {
        Record::Mark(id) => Some(*id),
        _ => None,
    });
    let sessions: BTreeSet<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Session(session) => Some(session.session),
            _ => None,
        })
        .collect();
    let mut slots = BTreeMap::new();
    for record in records {
        let title = in_words(&record.key());
        let (session, ids) = match record {
            Record::Mark(_) | Record::Session(_) => continue,
            Record::Declaration(semaphore) => (None, vec![semaphore.generation, semaphore.created]),
            Record::Grant(grant) => (Some(grant.session), vec![grant.grant.0]),
            Record::Answer(answer) => {
                (Some(answer.session), answer.answer.iter().map(|settled| settled.generation).collect())
            }
        };
        if let Some(session) = session.filter(|session| !sessions.contains(session)) {
            problems.push(format!("{title} is of session {session}, which does not exist"));
        }
        for id in ids.into_iter().filter(|id| mark.is_none_or(|mark| *id > mark)) {
            problems.push(match mark {
                Some(mark) => format!("{title} has id {id}, which is above the mark of ids, {mark}"),
                None => format!("{title} has id {id}, and there is no mark of ids"),
            });
        }
        let Record::Grant(grant) = record else { continue };
        for part in &grant.parts {
            let name = part.name.escape_ascii();
            if part.namespace == Namespace::Counters && !part.slots.is_empty() {
                problems.push(format!("{title} has slots of the counter \"{name}\", and counters have none"));
                continue;
            }
            for slot in &part.slots {
                if let Some(other) = slots.insert((&part.name, *slot), grant.grant) {
                    problems.push(format!(
                        "{title} has slot {slot} of the semaphore \"{name}\", and so has grant {other}"
                    ));
                }
            }
        }
    }
    if problems.is_empty() {
        problems.extend(brought_back(records).err());
    }
    problems
}

/// Has a core bring records back, as a server does at its start.
fn brought_back(records: &[Record]) -> Result<(), String> {
    let core = Core::new(NonZeroU32::MIN, NameHasher::with_seeds(0, 0, 0, 0));
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    let mut records: Vec<_> = records.iter().collect();
    records.sort_by_cached_key(|record| record.key());
    records.into_iter().try_for_each(|record| core.restore(record.clone(), now))
}
