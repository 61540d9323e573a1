//! The check of a data directory: the file, each record, and the consistency of the records with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;

use super::StorageError;
use super::backend::CopyOnWrite;
use super::directory::{Directory, unusable};
use super::engine::{Opened, open_engine, open_file, verify};
use super::flush_mark::Trust;
use super::reader::each_record;
use super::record::describe;
use signalbox_core::{Core, Moment, MonotonicMs, NameHasher, Record, SysvRecord};
use signalbox_model::Namespace;
use signalbox_model::UnixSeconds;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether the file was not closed properly. Opening it for writing will repair it.
    pub needs_repair: bool,
    /// The number of records.
    pub counts: Counts,
    /// The problems found, one sentence each.
    pub problems: Vec<String>,
}

/// The number of records of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Declared semaphores.
    pub declarations: u64,
    /// Leased sessions.
    pub sessions: u64,
    /// Grants of leased sessions.
    pub grants: u64,
    /// Cached replies.
    pub answers: u64,
    /// Durable System V semaphore sets.
    pub sets: u64,
    /// Processes that have used such sets.
    pub processes: u64,
}

impl Counts {
    /// Counts a record.
    pub fn count(&mut self, record: &Record) {
        match record {
            Record::Mark(_) | Record::PlaceKey(_) => {}
            Record::Declaration(_) => self.declarations += 1,
            Record::Session(_) => self.sessions += 1,
            Record::Grant(_) => self.grants += 1,
            Record::Answer(_) => self.answers += 1,
            Record::Sysv(SysvRecord::Set(_)) => self.sets += 1,
            Record::Sysv(SysvRecord::Process(_)) => self.processes += 1,
            // These belong to a process, which is counted.
            Record::Sysv(SysvRecord::Adjustments(_) | SysvRecord::Result(_)) => {}
        }
    }
}

/// Checks the data directory of a server that is not running. It changes nothing: if the file needs a repair, the
/// repair is done in memory. Fails if the file cannot be opened at all.
pub fn check(directory: &Path) -> Result<Report, StorageError> {
    let directory = Directory::open_shared(directory)?;
    let path = directory.file();
    let Opened { mut database, was_repaired } = open_for_reading(&path, Trust::CurrentCommit)?;
    let mut report = Report { needs_repair: was_repaired, counts: Counts::default(), problems: Vec::new() };
    let mut records = Vec::new();
    let read = each_record(&path, &database, &mut |record| match record {
        Ok(record) => {
            report.counts.count(&record);
            records.push(record);
        }
        Err(error) => report.problems.push(error.to_string()),
    });
    // Verified after reading, because a file that fails the verification can no longer be read.
    for failed in [read, verify(&path, &mut database)].into_iter().filter_map(Result::err) {
        report.problems.push(failed.to_string());
    }
    report.problems.extend(contradictions(&records));
    Ok(report)
}

/// Opens a file for reading, even if it needs a repair.
pub(super) fn open_for_reading(path: &Path, trust: Trust) -> Result<Opened, StorageError> {
    let file = open_file(path, false).map_err(unusable(path))?;
    let copy_on_write = CopyOnWrite::new(file.into()).map_err(unusable(path))?;
    open_engine(path, Box::new(copy_on_write), trust)
}

/// The contradictions between records, one sentence each. `records` has all records of a store, in any order.
pub fn contradictions(records: &[Record]) -> Vec<String> {
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
        let title = describe(&record.key());
        let (session, ids) = match record {
            // `restore_all` finds the contradictions between records of semaphore sets.
            Record::Mark(_) | Record::Session(_) | Record::Sysv(_) | Record::PlaceKey(_) => continue,
            Record::Declaration(semaphore) => (None, vec![semaphore.generation, semaphore.created]),
            Record::Grant(grant) => (Some(grant.session), vec![grant.grant.0]),
            Record::Answer(answer) => {
                (Some(answer.session), answer.answer.iter().map(|state| state.generation.0).collect())
            }
        };
        if let Some(session) = session.filter(|session| !sessions.contains(session)) {
            problems.push(format!("{title} belongs to session {session}, which does not exist"));
        }
        for id in ids.into_iter().filter(|id| mark.is_none_or(|mark| *id > mark)) {
            problems.push(match mark {
                Some(mark) => format!("{title} has id {id}, which is above the highest reserved id, {mark}"),
                None => format!("{title} has id {id}, but the record of the highest reserved id is missing"),
            });
        }
        let Record::Grant(grant) = record else { continue };
        for part in &grant.parts {
            let name = part.name.escape_ascii();
            if part.namespace == Namespace::Counters && !part.slots.is_empty() {
                problems.push(format!("{title} has slots of counter \"{name}\", but counters have no slots"));
                continue;
            }
            for slot in &part.slots {
                if let Some(other) = slots.insert((&part.name, *slot), grant.grant) {
                    problems.push(format!(
                        "{title} and grant {other} both have slot {slot} of semaphore \"{name}\""
                    ));
                }
            }
        }
    }
    if problems.is_empty() {
        problems.extend(restore_all(records).err());
    }
    problems
}

/// Restores the records into a new core, as a server does when it starts.
fn restore_all(records: &[Record]) -> Result<(), String> {
    let core = Core::new(NonZeroU32::MIN, NameHasher::with_seeds(0, 0, 0, 0));
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    let mut records: Vec<_> = records.iter().collect();
    records.sort_by_cached_key(|record| record.key());
    records.into_iter().try_for_each(|record| core.restore(record.clone(), now))
}
