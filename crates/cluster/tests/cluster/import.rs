//! The import of an export into a cluster, as etcd performs it.

use std::time::Duration;

use signalbox_cluster::coordinator::Operation;
use signalbox_cluster::data::{ImportError, import, read_all};
use signalbox_cluster::keys::{Format, LAYOUT, Leadership, LeadershipState, UNFINISHED_IMPORT, decode};
use signalbox_cluster::timing::Timing;
use signalbox_core::Record;
use signalbox_storage::FORMAT;

use crate::admin::Operator;
use crate::commits::{declaration, keys, session};
use crate::etcd::FakeEtcd;
use crate::handover::{put, write};

fn timing() -> Timing {
    Timing::new(Duration::from_secs(2)).unwrap()
}

fn format(layout: u32) -> Format {
    Format { layout, record_format: FORMAT, renew_deadline_ms: 2000 }
}

/// All records of the cluster, in the order of their keys.
fn records(etcd: &FakeEtcd) -> Vec<Record> {
    let mut records = Vec::new();
    read_all(&mut etcd.client(), &keys(), &mut |record| records.push(record)).unwrap();
    records.sort_by_key(Record::key);
    records
}

#[test]
fn sessions_of_the_first_leader_have_higher_numbers_than_all_that_were_imported() {
    let etcd = FakeEtcd::default();
    let imported = [2, 7, 3].map(|epoch: u64| session(epoch << 32 | 1));
    import(&mut etcd.client(), &keys(), timing(), &imported).unwrap();
    let leadership = etcd.with_store(|store| store.get(&keys().leadership())).unwrap();
    let leadership: Leadership = decode(&leadership.key, &leadership.value).unwrap();
    assert_eq!((leadership.epoch, leadership.state), (7, LeadershipState::Released));
    let found = etcd.with_store(|store| store.get(&keys().format())).unwrap();
    assert_eq!(decode::<Format>(&found.key, &found.value).unwrap(), format(LAYOUT));
}

/// etcd refuses transactions with more.
#[test]
fn any_number_of_records_of_any_size_is_imported() {
    let many: Vec<_> = (1..=10_000).map(session).collect();
    let large: Vec<_> = (10..70).map(|n| declaration(&[&[n][..], &[b'x'; 60_000]].concat())).collect();
    for expected in [Vec::new(), many, large] {
        let etcd = FakeEtcd::default();
        import(&mut etcd.client(), &keys(), timing(), &expected).unwrap();
        assert!(records(&etcd) == expected, "{} records", expected.len());
    }
}

#[test]
fn an_import_that_was_interrupted_is_replaced_and_a_cluster_in_use_is_not() {
    let record_key = [&keys().records()[..], b"\x01xyz"].concat();
    let rest = || Operation::Put { key: record_key.clone(), value: b"of it".to_vec() };
    for (writes, is_replaced) in [
        (vec![], true),
        (vec![put(keys().format(), &format(UNFINISHED_IMPORT)), rest()], true),
        (vec![put(keys().format(), &format(LAYOUT))], false),
        (vec![rest()], false),
    ] {
        let etcd = FakeEtcd::default();
        write(&etcd, writes);
        let imported = import(&mut etcd.client(), &keys(), timing(), &[session(1)]);
        match is_replaced {
            true => assert_eq!((imported.unwrap(), records(&etcd)), ((), vec![session(1)])),
            false => assert!(matches!(imported, Err(ImportError::InUse(_))), "{imported:?}"),
        }
    }
}

#[test]
fn of_two_imports_at_a_time_the_first_one_writes_nothing_more() {
    // The claim, the records, and the end.
    for transactions_before in 0..3 {
        let etcd = FakeEtcd::default();
        let mut overtaken = Operator::of(&etcd);
        overtaken.before_transaction =
            Some((transactions_before, vec![put(keys().format(), &format(UNFINISHED_IMPORT))]));
        let imported = import(&mut overtaken, &keys(), timing(), &[session(1)]);
        assert!(matches!(imported, Err(ImportError::Concurrent)), "{imported:?}");
        assert_eq!(etcd.with_store(|store| store.get(&keys().leadership())), None);
    }
}

#[test]
fn what_is_no_cluster_has_no_records() {
    let refused = read_all(&mut FakeEtcd::default().client(), &keys(), &mut |_| {});
    assert!(refused.unwrap_err().to_string().contains("there is no cluster"));
}
