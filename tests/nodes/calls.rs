//! The client against a real etcd: its requests, and what etcd refuses.

use std::time::Duration;

use signalbox_cluster::coordinator::{CallError, Coordinator, Range};
use signalbox_cluster::etcd::{EtcdClient, Settings};

use crate::support::calls::{always, between, delete, one, put, refused};
use crate::support::etcd::RealEtcd;

/// Writes keys with long values, by several transactions.
fn fill(client: &mut EtcdClient, keys: u32, value_bytes: usize) {
    for first in (0..keys).step_by(10) {
        let keys = first..(first + 10).min(keys);
        let puts = keys.map(|number| put(&format!("fill/{number:06}"), &vec![7; value_bytes]));
        client.transact(&always(puts.collect())).unwrap();
    }
}

/// `differential` compares the other semantics of reads with the store in memory.
#[test]
fn an_empty_key_begins_before_all_keys_and_ends_before_none() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    let mut client = etcd.client();
    let old = client.transact(&always(vec![put("a", b"1")])).unwrap().revision;
    let new = client.transact(&always(vec![put("a", b"2")])).unwrap().revision;
    assert_eq!(client.range(&between("", "b")).unwrap().count, 1, "the first key is after the empty one");
    for to in ["", "\0", "a"] {
        assert_eq!(client.range(&between("a", to)).unwrap().count, 0, "no key is before {to:?}");
        assert_eq!(client.range(&between("", to)).unwrap().count, 0, "no key is before {to:?}");
    }
    refused(client.range(&Range { at: Some(new + 1), ..one("a") }), "restored from a backup");
    etcd.control(&["compaction", &new.to_string()]);
    refused(client.range(&Range { at: Some(old), ..one("a") }), "compacted");
}

#[test]
fn a_range_of_more_than_4_mb_is_read_whole() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    let mut client = etcd.client();
    fill(&mut client, 200, 50_000);
    let answer = client.range(&between("fill/", "fill0")).unwrap();
    assert_eq!((answer.count, answer.entries.len()), (200, 200));
    assert!(answer.entries.iter().all(|entry| entry.value.len() == 50_000));
}

#[test]
fn what_etcd_will_never_accept_is_refused() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    let mut client = etcd.client();
    let before = client.range(&one("a")).unwrap().revision;
    refused(client.transact(&always(vec![put("a", &vec![0; 1_600_000])])), "--max-request-bytes");
    refused(client.transact(&always(vec![put("a", &vec![0; 3_000_000])])), "--max-request-bytes");
    let too_many = (0..5_000).map(|number| put(&format!("{number}"), b""));
    refused(client.transact(&always(too_many.collect())), "--max-txn-ops");
    refused(client.transact(&always(vec![put("a", b"1"), put("a", b"2")])), "a key twice");
    let mut far_apart: Vec<_> = (0..200).map(|number| put(&format!("{number}"), b"")).collect();
    far_apart.push(delete("0"));
    refused(client.transact(&always(far_apart)), "a key twice");
    refused(client.transact(&always(vec![put("", b"1")])), "key is not provided");
    refused(client.range(&one("")), "key is not provided");
    let after = client.range(&between("", "\u{7f}")).unwrap();
    assert_eq!((after.revision, after.count), (before, 0), "nothing was performed");
    client.transact(&always(vec![put("a", &vec![0; 1_500_000])])).unwrap();
}

#[test]
fn without_space_a_transaction_is_refused_only_once_it_is_sure_that_it_is_not_performed() {
    let Some(etcd) = RealEtcd::start_with(1, None, &["--quota-backend-bytes", "4000000"]) else { return };
    let mut client = etcd.client();
    let write = |number: u32| always(vec![put(&format!("fill/{number}"), &vec![7; 200_000])]);
    let mut number = 0;
    let error = loop {
        number += 1;
        if let Err(error) = client.transact(&write(number)) {
            break error;
        }
        assert!(number < 1_000, "the quota has an effect");
    };
    // etcd may perform the transaction that exceeds the quota, and yet answer that there is no space.
    assert!(matches!(&error, CallError::Unanswered(why) if why.contains("space exceeded")), "{error:?}");
    refused(client.transact(&write(number)), "alarm disarm");
    refused(client.transact(&write(number + 1)), "alarm disarm");
    assert_eq!(client.range(&one(&format!("fill/{}", number + 1))).unwrap().count, 0);
    let deletes = (1..=number).map(|number| delete(&format!("fill/{number}")));
    let revision = client.transact(&always(deletes.collect())).unwrap().revision;
    etcd.control(&["compaction", &revision.to_string()]);
    etcd.control(&["defrag"]);
    etcd.control(&["alarm", "disarm"]);
    client.transact(&write(1)).unwrap();
}

#[test]
fn a_client_whose_endpoint_is_no_etcd_gets_an_error_that_names_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            use std::io::Write;
            let _ = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let settings = Settings {
        endpoints: vec![endpoint.clone()],
        tls: None,
        user: None,
        request_timeout: Duration::from_secs(5),
    };
    let error = EtcdClient::new(&settings).unwrap().range(&one("a")).unwrap_err();
    assert!(matches!(&error, CallError::Unanswered(why) if why.contains(&endpoint)), "{error:?}");
}
