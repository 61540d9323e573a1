//! Check, export and import.

use std::fs;
use std::io::{self, Write};

use signalbox_core::{
    AnswerRecord, Change, DeclarationRecord, GrantRecord, Key, Origin, PartRecord, Record, Service,
    SessionRecord, SysvKey,
};
use signalbox_model::{DeclaredState, Generation, GrantId, Namespace, RequestId, SessionKey, UnixSeconds};
use signalbox_storage::{
    Counts, FILE_NAME, ImportError, Storage, StorageError, check, contradictions, export, import,
};

use crate::records::{Life, session};
use crate::{loaded, open};

pub fn exported(directory: &std::path::Path) -> String {
    let mut text = Vec::new();
    assert_eq!(export(directory, &mut text).unwrap(), Vec::<String>::new());
    String::from_utf8(text).unwrap()
}

pub fn import_text(directory: &std::path::Path, text: &str) -> Result<u64, ImportError> {
    import(directory, &mut text.as_bytes())
}

#[test]
fn an_import_and_an_export_restore_the_text() {
    let scratch = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| scratch.path().join(name));
    let mut life = Life::new(7);
    let mut storage = open(&first).unwrap();
    (0..120).for_each(|_| storage.commit(&life.changes()).unwrap());
    drop(storage);
    let bytes = fs::read(first.join(FILE_NAME)).unwrap();
    let text = exported(&first);
    assert_eq!(text.lines().next(), Some(r#"{"kind":"export","format":1}"#));
    assert_eq!(import_text(&second, &text).unwrap(), life.state.len() as u64);
    assert_eq!(exported(&second), text);
    assert_eq!(loaded(&mut open(&second).unwrap()), life.state);
    let report = check(&first).unwrap();
    assert!(!report.needs_repair && report.problems.is_empty(), "{report:?}");
    let of = |wanted: fn(&Key) -> bool| life.state.keys().filter(|key| wanted(key)).count() as u64;
    let counts = Counts {
        declarations: of(|key| matches!(key, Key::Declaration(_))),
        sessions: of(|key| matches!(key, Key::Session(_))),
        grants: of(|key| matches!(key, Key::Grant(_))),
        answers: of(|key| matches!(key, Key::Answer(..))),
        sets: of(|key| matches!(key, Key::Sysv(SysvKey::Set(_)))),
        processes: of(|key| matches!(key, Key::Sysv(SysvKey::Process(_)))),
    };
    assert_eq!(report.counts, counts);
    assert_eq!(fs::read(first.join(FILE_NAME)).unwrap(), bytes, "neither operation changes the file");
}

#[test]
fn an_interrupted_import_can_be_repeated() {
    let scratch = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| scratch.path().join(name));
    open(&from).unwrap().commit(&[Change::Put(crate::a_session(1))]).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(to.join("signalbox.redb.new"), b"half of it").unwrap();
    assert_eq!(import_text(&to, &exported(&from)).unwrap(), 1);
}

#[test]
fn a_check_does_not_change_an_unclean_file() {
    let scratch = tempfile::tempdir().unwrap();
    let (data, copy) = (scratch.path().join("data"), scratch.path().join("copy"));
    let mut life = Life::new(8);
    let mut storage = open(&data).unwrap();
    (0..20).for_each(|_| storage.commit(&life.changes()).unwrap());
    // The file of an open store is as an unclean end leaves it.
    fs::create_dir(&copy).unwrap();
    fs::copy(data.join(FILE_NAME), copy.join(FILE_NAME)).unwrap();
    let bytes = fs::read(copy.join(FILE_NAME)).unwrap();
    let report = check(&copy).unwrap();
    assert!(report.needs_repair && report.problems.is_empty(), "{report:?}");
    drop(storage);
    assert_eq!(exported(&copy), exported(&data));
    assert_eq!(fs::read(copy.join(FILE_NAME)).unwrap(), bytes);
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 1, "no other file is created");
}

#[test]
fn contradictory_records_are_found() {
    let scratch = tempfile::tempdir().unwrap();
    let mut life = Life::new(9);
    let mut storage = open(scratch.path()).unwrap();
    (0..60).for_each(|_| storage.commit(&life.changes()).unwrap());
    let grant = life.state.values().rev().find_map(|record| match record {
        Record::Grant(grant) => Some(grant.clone()),
        _ => None,
    });
    let grant = grant.expect("a history has grants");
    let mut double = grant.clone();
    double.grant.0 = u64::MAX;
    let mut of_a_counter = grant.clone();
    of_a_counter.grant.0 += 1 << 30;
    of_a_counter.session = session(1 << 40);
    of_a_counter.parts[0].namespace = Namespace::Counters;
    let wrong = [double, of_a_counter].map(|grant| Change::Put(Record::Grant(grant)));
    storage.commit(&wrong).unwrap();
    drop(storage);
    let problems = check(scratch.path()).unwrap().problems;
    for problem in [
        "which is above the highest reserved id",
        "belongs to session 1099511627776, which does not exist",
        " both have slot ",
        "has slots of counter \"slots\"",
    ] {
        assert!(problems.iter().any(|found| found.contains(problem)), "{problem}: {problems:#?}");
    }
    assert_eq!(problems.len(), 5, "{problems:#?}");
    let refused = import_text(&scratch.path().join("new"), &exported(scratch.path())).unwrap_err();
    assert!(matches!(refused, ImportError::Contradiction(_)), "{refused}");
}

#[test]
fn a_refused_import_names_the_line_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("data");
    let head = r#"{"kind":"export","format":1}"#;
    let place_key = format!(r#"{{"kind":"place_key","key_hex":"{}"}}"#, "07".repeat(16));
    let mark = r#"{"kind":"mark","id":"12"}"#;
    let session = r#"{"kind":"session","session":1,"key_hex":"000102030405060708090a0b0c0d0e0f","ttl_ms":5,"label":"","revoked_grace_ms":null}"#;
    let end = |records| format!(r#"{{"kind":"end","records":{records}}}"#);
    let cases = [
        (String::new(), "line 1: the export is incomplete"),
        (mark.to_owned(), "line 1: the first line"),
        (r#"{"kind":"export","format":2}"#.to_owned(), "line 1: the export has format 2"),
        (format!("{head}\n{mark}\n"), "line 3: the export is incomplete"),
        (format!("{head}\n{mark}\n{}\n", end(2)), "its last line states 2"),
        (
            format!("{head}\n{mark}\n{mark}\n{}\n", end(2)),
            "line 3: the highest reserved id occurs a second time",
        ),
        (format!("{head}\n{head}\n"), "line 2: a second export"),
        (format!("{head}\n{}\n{mark}\n", end(0)), "line 3: unexpected data after"),
        (format!("{head}\nnonsense\n"), "line 2: this is not a line of an export"),
        (format!("{head}\n{}\n", mark.replace("\"12\"", "12")), "line 2: this is not a line"),
        (format!("{head}\n{}\n", mark.replace("12", "-1")), "is not an unsigned 64-bit number"),
        (format!("{head}\n{}\n", session.replace("0f\"", "\"")), "must have 32 hexadecimal digits"),
        (format!("{head}\n{place_key}\n{place_key}\n"), "line 3: the key of places occurs a second time"),
        (format!("{head}\n{}\n", place_key.replace("07\"", "\"")), "must have 32 hexadecimal digits"),
        (
            format!("{head}\n{}\n", session.replace("\"session\":1", "\"session\":0")),
            "expected a nonzero u64",
        ),
        (format!("{head}\n{}\n", session.replace("\"label\":\"\",", "")), "either label or label_hex"),
        (
            format!("{head}\n{}\n", session.replace("\"label\":", "\"label_hex\":\"0\",\"label\":")),
            "either label",
        ),
        (
            format!("{head}\n{}\n", session.replace("\"label\":\"", "\"label_hex\":\"xy")),
            "label_hex must consist of two",
        ),
        (format!("{head}\n{}\n", session.replace("ttl_ms", "ttl")), "line 2: this is not a line"),
    ];
    for (text, sentence) in cases {
        let error = import_text(&directory, &text).unwrap_err().to_string();
        assert!(error.contains(sentence), "{text}\n{error}");
        assert!(!directory.exists());
    }
    let text = format!("{head}\n{mark}\n{session}\n{}\n", end(2));
    assert_eq!(import_text(&directory, &text).unwrap(), 2);
    assert_eq!(exported(&directory), text);
    let again = import_text(&directory, &text).unwrap_err();
    assert!(matches!(again, ImportError::NotEmpty(_)), "{again}");
    assert_eq!(exported(&directory), text);
}

#[test]
fn a_directory_without_data_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    for error in [check(scratch.path()).err(), export(&scratch.path().join("no"), &mut Vec::new()).err()] {
        assert!(matches!(error, Some(StorageError::Missing { .. })), "{error:?}");
    }
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// A check must find what a server refuses to start with.
#[test]
fn records_that_a_server_would_refuse_are_found() {
    let declared = DeclarationRecord {
        name: (*b"a").into(),
        capacity: 4,
        label: Box::default(),
        numbered: true,
        generation: 2,
        created: 2,
        origin: Origin::Request,
        removing: false,
        evicted_grace_ms: None,
        service: Service::default(),
    };
    let owner = SessionRecord {
        session: session(1),
        key: SessionKey([1; 16]),
        ttl_ms: 1000,
        label: Box::default(),
        revoked_grace_ms: None,
    };
    let part = |name: &[u8], position, slots: &[u16]| PartRecord {
        namespace: Namespace::Semaphores,
        name: name.into(),
        position,
        resources: 2,
        capacity: 4,
        slots: slots.into(),
    };
    let grant = |parts: &[PartRecord]| GrantRecord {
        grant: GrantId(3),
        session: session(1),
        request: RequestId(1),
        since: UnixSeconds(0),
        revoked_grace_ms: None,
        parts: parts.into(),
    };
    let found = |declared: &DeclarationRecord, grant: GrantRecord| {
        let mut records = vec![Record::Mark(100), Record::Session(owner.clone()), Record::Grant(grant)];
        records.push(Record::Declaration(declared.clone()));
        contradictions(&records)
    };
    let (whole, other) = (part(b"a", 0, &[0, 3]), part(b"b", 1, &[]));
    assert_eq!(found(&declared, grant(&[whole.clone(), other.clone()])), Vec::<String>::new());
    let unnumbered = DeclarationRecord { numbered: false, ..declared.clone() };
    let too_many = DeclarationRecord { capacity: 65_537, ..declared.clone() };
    let vast = PartRecord { resources: u32::MAX, ..other.clone() };
    for (declared, parts, problem) in [
        (&unnumbered, vec![whole.clone()], "has slots of a that it cannot have"),
        (&too_many, vec![whole.clone()], "a has 65537 slots"),
        (&declared, vec![], "grant 3 has no name"),
        (&declared, vec![part(b"a", 1, &[])], "are not in order"),
        (&declared, vec![whole.clone(), part(b"b", 0, &[])], "are not in order"),
        (
            &declared,
            vec![whole.clone(), vast.clone(), PartRecord { position: 2, ..vast }],
            "more of b is held",
        ),
        (&declared, vec![part(b"a", 0, &[1, 1])], "slot 1"),
    ] {
        let problems = found(declared, grant(&parts));
        assert!(problems.iter().any(|found| found.contains(problem)), "{problem}: {problems:?}");
    }
}

/// The ids of a server come from what it has reserved: the highest one may be in use, and no higher one.
#[test]
fn no_record_has_an_id_above_the_highest_reserved_one() {
    let declaration = DeclarationRecord {
        name: (*b"a").into(),
        capacity: 4,
        label: Box::default(),
        numbered: false,
        generation: 7,
        created: 7,
        origin: Origin::Request,
        removing: false,
        evicted_grace_ms: None,
        service: Service::default(),
    };
    let state = |generation| DeclaredState { generation: Generation(generation), capacity: 1, in_use: 0 };
    let answer = |answer: &[DeclaredState]| AnswerRecord {
        session: session(1),
        request: RequestId(1),
        answer: answer.into(),
    };
    let grant = GrantRecord {
        grant: GrantId(7),
        session: session(1),
        request: RequestId(2),
        since: UnixSeconds(0),
        revoked_grace_ms: None,
        parts: [PartRecord {
            namespace: Namespace::Counters,
            name: (*b"b").into(),
            position: 0,
            resources: 1,
            capacity: 1,
            slots: Box::default(),
        }]
        .into(),
    };
    for record in [
        Record::Declaration(declaration.clone()),
        Record::Declaration(DeclarationRecord { generation: 6, ..declaration.clone() }),
        Record::Declaration(DeclarationRecord { created: 6, ..declaration }),
        Record::Answer(answer(&[state(7)])),
        Record::Answer(answer(&[state(6), state(7)])),
        Record::Grant(grant),
    ] {
        let found = |mark: Option<u64>| {
            let others = [crate::a_session(1), record.clone()];
            contradictions(&mark.map(Record::Mark).into_iter().chain(others).collect::<Vec<_>>())
        };
        assert_eq!(found(Some(7)), [""; 0], "{record:?}");
        for mark in [Some(6), None] {
            assert!(!found(mark).is_empty(), "{mark:?}: {record:?}");
        }
    }
}

/// Fails in one of its calls, and in no later one.
struct FailsOnce {
    calls_before: usize,
    is_flushed: bool,
}

impl FailsOnce {
    fn call(&mut self) -> io::Result<()> {
        match self.calls_before.checked_sub(1) {
            Some(left) => self.calls_before = left,
            None => {
                self.calls_before = usize::MAX;
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(())
    }
}

impl Write for FailsOnce {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_flushed = false;
        self.call().map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.is_flushed = true;
        self.call()
    }
}

#[test]
fn an_export_of_which_a_part_was_not_written_has_failed() {
    let scratch = tempfile::tempdir().unwrap();
    let records = [1, 2, 3].map(|number| Change::Put(crate::a_session(number)));
    open(scratch.path()).unwrap().commit(&records).unwrap();
    let mut failures = 0;
    for calls_before in 0.. {
        let mut out = FailsOnce { calls_before, is_flushed: false };
        let exported = export(scratch.path(), &mut out);
        if out.calls_before < usize::MAX / 2 {
            assert_eq!(exported.unwrap(), [""; 0], "all calls have succeeded");
            assert!(out.is_flushed);
            break;
        }
        assert!(matches!(exported, Err(StorageError::Unusable { .. })), "{calls_before}: {exported:?}");
        failures += 1;
    }
    assert!(failures > 5, "there are lines");
}
