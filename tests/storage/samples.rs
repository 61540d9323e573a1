//! Data directories and exports that earlier versions wrote: this version reads them, finds in them what was written, and
//! migrates them to its own format.
//!
//! `tests/storage/samples/README.md` says how a sample is made. A test that fails here means that the format has changed:
//! either it was not meant to, or the change needs a migration. A sample is never made again by a newer version.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Waker;

use redb::{ReadableDatabase, ReadableTable};
use signalbox::core::{
    Answer, Call, Claim, ConnectionId, Core, DeclarationRecord, Declare, GrantId, GrantRecord, IfExists,
    Listed, ListingKind, Mailbox, Moment, MonotonicMs, NameHasher, Namespace, Outcome, Queueing, Record,
    RequestId, RequestIds, SessionId, SessionRecord, SysvRecord, Token, UnixSeconds, Want,
};
use signalbox::storage::record::{decode, encode_key, encode_value};
use signalbox::storage::{Counts, FILE_NAME, FORMAT, Storage, check};

use crate::records::State;
use crate::text::{exported, import_text};
use crate::{loaded, open};

const EXPORT: &str = "export.jsonl";
const NOW: Moment = Moment { monotonic: MonotonicMs(1_000_000), unix: UnixSeconds(2_000_000_000) };

/// An export as this version writes it: one of format 1 lacks what is out of service.
fn present(export: &str) -> String {
    let head = |format| format!(r#"{{"kind":"export","format":{format}}}"#);
    if let Some(rest) = [2, 3].iter().find_map(|format| export.strip_prefix(&head(*format))) {
        return head(4) + rest;
    }
    let Some(rest) = export.strip_prefix(&head(1)) else { return export.to_owned() };
    let line = |line: &str| match line.strip_suffix('}') {
        Some(declaration) if line.starts_with(r#"{"kind":"declaration","#) => {
            format!("{declaration},\"paused\":false,\"slots_out\":[]}}")
        }
        _ => line.to_owned(),
    };
    let lines: Vec<_> = rest.split('\n').map(line).collect();
    head(4) + &lines.join("\n")
}

/// The directories of all samples.
fn samples() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/storage/samples");
    let paths = fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path());
    let samples: Vec<_> = paths.filter(|path| path.is_dir()).collect();
    assert!(samples.iter().any(|sample| sample.ends_with("e819932")));
    samples
}

/// Calls a function with each sample: a data directory with a copy of its file, a new one, and its export.
fn for_each_sample(test: impl Fn(&Path, &Path, &str)) {
    for sample in samples() {
        let scratch = tempfile::tempdir().unwrap();
        let [copy, new] = ["copy", "new"].map(|name| scratch.path().join(name));
        fs::create_dir(&copy).unwrap();
        fs::copy(sample.join(FILE_NAME), copy.join(FILE_NAME)).unwrap();
        test(&copy, &new, &fs::read_to_string(sample.join(EXPORT)).unwrap());
    }
}

#[test]
fn a_sample_is_sound_and_its_export_is_the_same_to_the_byte() {
    for_each_sample(|copy, new, export| {
        import_text(new, export).unwrap();
        let report = check(copy).unwrap();
        assert!(!report.needs_repair && report.problems.is_empty(), "{report:?}");
        let lines = |kind| export.lines().filter(|line| line.starts_with(kind)).count() as u64;
        let counts = Counts {
            declarations: lines(r#"{"kind":"declaration","#),
            sessions: lines(r#"{"kind":"session","#),
            grants: lines(r#"{"kind":"grant","#),
            answers: lines(r#"{"kind":"answer","#),
            sets: lines(r#"{"kind":"sysv_set","#),
            processes: lines(r#"{"kind":"sysv_process","#),
        };
        assert_eq!(report.counts, counts);
        let (export, bytes) = (present(export), fs::read(copy.join(FILE_NAME)).unwrap());
        assert_eq!(exported(copy), export);
        assert_eq!(fs::read(copy.join(FILE_NAME)).unwrap(), bytes, "a check and an export do not migrate it");
        assert_eq!(exported(new), export);
        // A difference would be in one record, which these lists show.
        let [opened, imported] = [copy, new].map(|directory| loaded(&mut open(directory).unwrap()));
        for (key, record) in &opened {
            assert_eq!(imported.get(key), Some(record));
        }
        assert_eq!(opened.len(), imported.len());
        assert_eq!(exported(copy), export, "opening it changes no record");
    });
}

/// All entries of a data file, with its metadata.
fn entries(directory: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let database = redb::Database::open(directory.join(FILE_NAME)).unwrap();
    let transaction = database.begin_read().unwrap();
    let table = transaction.open_table(redb::TableDefinition::<&[u8], &[u8]>::new("signalbox")).unwrap();
    let entries = table.iter().unwrap().map(Result::unwrap);
    entries.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())).collect()
}

/// When a server has opened a file, what is in it is what this version would write. A file of format 1 was migrated: its
/// declarations got an end, and all else is as it was.
#[test]
fn a_record_of_a_sample_is_written_as_it_was() {
    const FORMAT_KEY: &[u8] = b"\0f";
    for_each_sample(|copy, _, _| {
        let before = entries(copy);
        open(copy).unwrap().commit(&[]).unwrap();
        let after = entries(copy);
        assert_eq!(after[FORMAT_KEY], FORMAT.to_be_bytes());
        assert!(before.keys().eq(after.keys()));
        let has_format_1 = before[FORMAT_KEY] == 1_u32.to_be_bytes();
        let records: Vec<_> = after.iter().filter(|(key, _)| key[0] != 0).collect();
        assert!(records.len() > 30, "{records:?}");
        for (key, value) in records {
            let record = decode(key, value).unwrap();
            assert_eq!((&encode_key(&record.key()), &encode_value(&record)), (key, value));
            let end =
                if has_format_1 && matches!(record, Record::Declaration(_)) { &[0; 5][..] } else { &[] };
            assert_eq!([&before[key], end].concat(), *value, "{record:?}");
        }
    });
}

/// A file that cannot be migrated is not changed: its server is not started.
#[test]
fn a_sample_with_a_damaged_declaration_is_not_migrated() {
    let scratch = tempfile::tempdir().unwrap();
    let sample = samples().into_iter().find(|sample| sample.ends_with("e819932")).unwrap();
    fs::copy(sample.join(FILE_NAME), scratch.path().join(FILE_NAME)).unwrap();
    let damage = || {
        let database = redb::Database::open(scratch.path().join(FILE_NAME))?;
        let transaction = database.begin_write()?;
        let table = redb::TableDefinition::<&[u8], &[u8]>::new("signalbox");
        transaction.open_table(table)?.insert(&b"\x02plain"[..], &b"short"[..])?;
        transaction.commit()?;
        Ok::<_, redb::Error>(())
    };
    damage().unwrap();
    let before = entries(scratch.path());
    let opened = open(scratch.path()).and_then(|mut storage| {
        storage.load(&mut |_| {})?;
        Ok(())
    });
    let refused = opened.unwrap_err().to_string();
    assert!(
        refused.contains("the record of declared semaphore \"plain\" has an invalid boolean"),
        "{refused}"
    );
    assert_eq!(entries(scratch.path()), before);
}

#[test]
fn a_core_restores_all_of_a_sample() {
    for_each_sample(|copy, _, _| assert_restored(&loaded(&mut open(copy).unwrap())));
}

/// Restores records into a core, as a server does at its start, and finds each of them there.
fn assert_restored(records: &State) {
    let core = Core::new(NonZeroU32::MIN, NameHasher::with_seeds(1, 2, 3, 4));
    records.values().for_each(|record| core.restore(record.clone(), NOW).unwrap());
    core.keep_journal(Waker::noop().clone(), NOW);
    core.check_ledger().unwrap();

    let mut declared = BTreeMap::<&[u8], &DeclarationRecord>::new();
    let mut sessions = BTreeMap::<SessionId, &SessionRecord>::new();
    let mut holders = BTreeMap::<(Namespace, &[u8]), Vec<Listed>>::new();
    let mut sysv = Vec::new();
    for record in records.values() {
        match record {
            Record::Mark(_) | Record::Answer(_) | Record::PlaceKey(_) => {}
            Record::Sysv(record) => sysv.push(record),
            Record::Declaration(semaphore) => _ = declared.insert(&semaphore.name, semaphore),
            Record::Session(session) => _ = sessions.insert(session.session, session),
            // Grants come in the order of their ids, as in a listing, and after their sessions.
            Record::Grant(grant) => {
                for part in &grant.parts {
                    let holder = Listed {
                        grant: Some(grant.grant),
                        session: grant.session,
                        since: Some(grant.since),
                        resources: part.resources,
                        position: 0,
                        slots: part.slots.clone(),
                        label: sessions[&grant.session].label.clone(),
                        connection: None,
                    };
                    holders.entry((part.namespace, &part.name)).or_default().push(holder);
                }
            }
        }
    }
    assert!(declared.len() > 5 && sessions.len() > 5 && holders.len() > 5, "{records:?}");

    let in_use = |namespace, name| {
        let holders = holders.get(&(namespace, name)).into_iter().flatten();
        holders.map(|holder| holder.resources).sum::<u32>()
    };
    let mut listing = core.declared(b"");
    let listed: Vec<_> = std::iter::repeat_with(|| core.list_declared(&mut listing))
        .take_while(|page| !page.is_empty())
        .flatten()
        .collect();
    assert_eq!(listed.len(), declared.len());
    for (found, (name, record)) in listed.iter().zip(&declared) {
        assert_eq!(found.record, **record);
        assert_eq!((found.in_use, found.waiting), (in_use(Namespace::Semaphores, name), 0));
    }
    for ((namespace, name), holders) in &holders {
        let mut listing = core.listing(*namespace, name, ListingKind::Holders).unwrap();
        assert_eq!(core.list(&mut listing), *holders);
        let used = in_use(*namespace, name);
        let value = core.value(*namespace, name).unwrap();
        match declared.get(name).filter(|_| *namespace == Namespace::Semaphores) {
            Some(semaphore) => {
                // A slot that is out of service is not available; if it is held, it counts as used.
                let is_held = |slot: &u16| holders.iter().any(|holder| holder.slots.contains(slot));
                let is_withheld = |slot: &&u16| u32::from(**slot) < semaphore.capacity && !is_held(slot);
                let withheld = semaphore.service.slots_out.iter().filter(is_withheld).count() as u32;
                let is_stopped = semaphore.removing || semaphore.service.paused;
                let usable = if is_stopped { 0 } else { semaphore.capacity - withheld };
                assert_eq!(value, usable.saturating_sub(used), "{}", name.escape_ascii());
            }
            None if *namespace == Namespace::Counters => assert_eq!(value, used),
            None => assert!(value > 0, "an undeclared semaphore has its capacity from the grant"),
        }
    }

    for session in sessions.values() {
        let connection = connection(&core);
        let lease = core.attach(session.session, connection, &session.key, NOW);
        assert!(lease.is_ok(), "{session:?}");
        assert_eq!(core.keep_alive(connection, NOW), Ok(lease_left_ms(session)), "{session:?}");
        for record in records.values() {
            match record {
                Record::Grant(grant) if grant.session == session.session => {
                    assert_held(&core, connection, grant, session, &declared);
                }
                Record::Answer(answer) if answer.session == session.session => {
                    let repeated = call(connection, answer.request);
                    let other = Declare { name: b"other", capacity: 1, numbered: false, label: b"" };
                    let outcome = core.declare(repeated, &[other], IfExists::Fail, NOW);
                    assert_eq!(outcome, Outcome::Answered(Answer::Declared(answer.answer.clone())));
                }
                _ => {}
            }
        }
    }
    core.check_ledger().unwrap();
    assert_sets_restored(&core, &sysv);
}

/// Finds each durable set with its figures, and the adjustments of each process, which its connection acts for again.
fn assert_sets_restored(core: &Core, records: &[&SysvRecord]) {
    core.check_sysv().unwrap();
    let mut listing = core.sets();
    let listed = core.list_sets(&mut listing);
    let sets = records.iter().filter(|record| matches!(record, SysvRecord::Set(_))).count();
    assert_eq!(listed.len(), sets);
    for record in records {
        match record {
            SysvRecord::Set(set) => {
                let found = listed.iter().find(|found| found.set == set.set).unwrap();
                assert_eq!((found.stat.key, found.stat.ownership), (set.key, set.ownership));
                assert_eq!(
                    (found.stat.operated_at, found.stat.changed_at),
                    (set.operated_at, set.changed_at)
                );
                assert_eq!(found.stat.count as usize, set.semaphores.len());
            }
            SysvRecord::Process(process) => {
                let connection = core.open_session().id();
                let mailbox = Arc::new(Mailbox::default());
                let attached =
                    core.attach_process((connection, &mailbox), process.process, &process.key, NOW);
                assert_eq!(attached, Ok(process.ttl_ms));
            }
            SysvRecord::Adjustments(record) => {
                let mut users = core.set_users(record.set.number()).unwrap();
                let users = core.list_set_users(&mut users);
                let user = users.iter().find(|user| user.process == record.process).unwrap();
                let changes = record.adjustments.iter().filter(|change| **change != 0);
                assert!(user.operations.iter().map(|operation| &operation.change).eq(changes));
            }
            SysvRecord::Result(_) => {}
        }
    }
}

fn lease_left_ms(session: &SessionRecord) -> u32 {
    session.revoked_grace_ms.unwrap_or(u32::MAX).min(session.ttl_ms)
}

fn connection(core: &Core) -> ConnectionId {
    let connection = core.open_session().id();
    core.join(connection, None, &Arc::new(Mailbox::default()));
    connection
}

/// A request that repeats an earlier one of the session.
fn call(connection: ConnectionId, request: RequestId) -> Call {
    let ids = RequestIds { own: request, lowest_unanswered: RequestId(1) };
    Call { connection, ids, token: Token(1) }
}

/// The grant is held, and the repeated request is answered with it.
fn assert_held(
    core: &Core,
    connection: ConnectionId,
    grant: &GrantRecord,
    session: &SessionRecord,
    declared: &BTreeMap<&[u8], &DeclarationRecord>,
) {
    let left = grant.revoked_grace_ms.unwrap_or(u32::MAX).min(lease_left_ms(session));
    let verified = core.verify(grant.grant, NOW).unwrap();
    assert_eq!((verified.session, verified.ttl_left_ms), (grant.session, Some(left)), "{grant:?}");
    let is_leaving = grant.parts.iter().any(|part| {
        let semaphore = declared.get(&*part.name).filter(|_| part.namespace == Namespace::Semaphores);
        semaphore.is_some_and(|semaphore| {
            let is_past_the_end = |slot: &u16| u32::from(*slot) >= semaphore.capacity;
            let is_of_an_earlier_one = grant.grant < GrantId(semaphore.created);
            let is_out = |slot: &u16| semaphore.service.slots_out.contains(slot);
            let is_leaving = |slot: &u16| is_past_the_end(slot) || is_out(slot);
            semaphore.removing || is_of_an_earlier_one || part.slots.iter().any(is_leaving)
        })
    });
    let is_revoked = grant.revoked_grace_ms.or(session.revoked_grace_ms).is_some();
    assert_eq!(verified.is_retiring, is_leaving || is_revoked, "{grant:?}");

    let other =
        Want { namespace: Namespace::Counters, name: b"other", claim: Claim::new(1, 1).unwrap(), slot: None };
    let queueing = Queueing { wait_ms: 0, queue_max: 0 };
    let outcome = core.acquire_grant(call(connection, grant.request), &[other], queueing, NOW);
    let Outcome::Answered(Answer::Granted(granted)) = outcome else { panic!("{grant:?}: {outcome:?}") };
    let mut parts: Vec<_> = grant.parts.iter().collect();
    parts.sort_by_key(|part| part.place);
    assert_eq!(granted.grant, grant.grant);
    assert_eq!(*granted.capacities, *parts.iter().map(|part| part.capacity).collect::<Vec<_>>());
    let has_slots = parts.iter().any(|part| !part.slots.is_empty());
    let slots: Vec<_> = parts.iter().map(|part| part.slots.clone()).filter(|_| has_slots).collect();
    assert_eq!(*granted.slots, *slots, "{grant:?}");
}

/// As [`a_sample_has_records_of_every_shape`], for what format 2 has added.
#[test]
fn a_sample_of_format_2_has_what_is_out_of_service() {
    let sample = samples().into_iter().find(|sample| sample.ends_with("0d76367")).unwrap();
    let text = fs::read_to_string(sample.join(EXPORT)).unwrap();
    for shape in [
        r#""name":"paused","#,
        r#""paused":true,"slots_out":[]"#,
        r#""slots_out":[90,99]"#,
        r#""slots":[90]"#,
    ] {
        assert!(text.contains(shape), "{shape}");
    }
}

/// The same for format 4.
#[test]
fn a_sample_of_format_4_has_the_key_of_places() {
    let sample = samples().into_iter().find(|sample| sample.ends_with("991bf8a")).unwrap();
    let text = fs::read_to_string(sample.join(EXPORT)).unwrap();
    assert!(text.starts_with(r#"{"kind":"export","format":4}"#));
    assert_eq!(text.matches(r#"{"kind":"place_key","#).count(), 1);
}

/// The text itself is pinned by its file; this pins that the sample of e819932 has records of every kind and shape.
#[test]
fn a_sample_has_records_of_every_shape() {
    let sample = samples().into_iter().find(|sample| sample.ends_with("e819932")).unwrap();
    let text = fs::read_to_string(sample.join(EXPORT)).unwrap();
    for shape in [
        r#""kind":"mark""#,
        r#""name_hex":"ff01","capacity":4294967295"#,
        r#""label":"Spuren der Brücke","numbered":true"#,
        r#""origin":"configuration""#,
        r#""removing":true}"#,
        r#""removing":true,"evicted_grace_ms":3240000000"#,
        r#""removing":false,"evicted_grace_ms":3240000000"#,
        r#""label":"worker 7","revoked_grace_ms":null"#,
        r#""revoked_grace_ms":2520000000"#,
        r#""revoked_grace_ms":2880000000"#,
        r#""slots":[0,1,2,3,4,70]"#,
        r#""name":"shrunk","place":0,"resources":8,"capacity":8,"slots":[0,1,2,3,4,5,6,7]"#,
        r#""name":"lift","place":2"#,
        r#""namespace":"counters","name":"jobs","place":1,"resources":5,"capacity":9"#,
        r#""name":"undeclared""#,
        r#""kind":"answer""#,
        r#""capacity":2,"in_use":0}]"#,
    ] {
        assert!(text.contains(shape), "{shape}");
    }
}
