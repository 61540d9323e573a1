//! The warnings of the client about a real etcd.

use std::time::Duration;

use signalbox_cluster::coordinator::Coordinator;
use signalbox_cluster::etcd::{EtcdClient, Expected, Settings};
use signalbox_cluster::keys::Keys;

use crate::support::calls::{always, put};
use crate::support::etcd::RealEtcd;

fn expected() -> Expected {
    let round_trip_max = Duration::from_secs(5);
    Expected { round_trip_max, ..Expected::of(&Keys::new("main"), Duration::from_secs(3)) }
}

fn warnings(client: &mut EtcdClient, expected: &Expected) -> Vec<String> {
    client.inspect(expected).1
}

#[track_caller]
fn assert_one(warnings: &[String], parts: [&str; 2]) {
    assert!(warnings.len() == 1 && parts.iter().all(|part| warnings[0].contains(part)), "{warnings:?}");
}

#[test]
fn each_member_says_what_it_is() {
    let Some(etcd) = RealEtcd::start(3) else { return };
    let leader = etcd.leader();
    let mut client = etcd.client();
    client.transact(&always(vec![put("a", &[7; 100_000])])).unwrap();
    let (members, warnings) = client.inspect(&expected());
    let endpoints: Vec<_> = members.iter().map(|member| member.endpoint.clone()).collect();
    assert_eq!(endpoints, etcd.endpoints());
    for (index, member) in members.iter().enumerate() {
        let status = member.status.as_ref().unwrap();
        assert_eq!(status.is_leader, index == leader);
        assert!(status.has_leader && !status.is_learner && status.database_bytes > 0, "{status:?}");
        assert!(status.version.starts_with("3."), "{status:?}");
        assert_eq!(status.errors, [""; 0]);
    }
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn an_etcd_that_keeps_all_revisions_or_is_slow_is_warned_about() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    let mut client = etcd.client();
    for _ in 0..20 {
        client.transact(&always(vec![put("a", b"1")])).unwrap();
    }
    let few = Expected { revisions_max: 10, ..expected() };
    assert_one(&warnings(&mut client, &few), ["revisions", "--auto-compaction-retention=5m"]);
    etcd.control(&["compaction", "10"]);
    assert_eq!(warnings(&mut client, &few), [""; 0]);
    let fast = Expected { round_trip_max: Duration::from_nanos(1), ..expected() };
    assert_one(&warnings(&mut client, &fast), ["a read from etcd takes", "0.0 ms at most"]);
}

#[test]
fn an_etcd_without_space_is_warned_about() {
    let Some(etcd) = RealEtcd::start_with(1, None, &["--quota-backend-bytes", "1000000"]) else { return };
    let mut client = etcd.client();
    crate::support::eventually("etcd has no space", || {
        client.transact(&always(vec![put("a", &[7; 500_000])])).is_err()
    });
    assert_one(&warnings(&mut client, &expected()), [&etcd.endpoints()[0], "etcdctl alarm disarm"]);
}

#[test]
fn a_member_that_does_not_answer_is_warned_about() {
    let Some(mut etcd) = RealEtcd::start(3) else { return };
    let leader = etcd.leader();
    let [dead, frozen] = [1, 2].map(|offset| (leader + offset) % 3);
    etcd.kill(dead);
    let request_timeout = Duration::from_secs(1);
    let mut client = EtcdClient::new(&Settings { request_timeout, ..etcd.settings() }).unwrap();
    assert_one(&warnings(&mut client, &expected()), [&etcd.endpoints()[dead], "2 of 3 members"]);
    // The one that is left has no majority.
    etcd.freeze(frozen);
    let no_leader = format!("member {} of etcd knows no leader", etcd.endpoints()[leader]);
    crate::support::eventually("the last member finds that there is no leader", || {
        warnings(&mut client, &expected()).iter().any(|warning| warning.starts_with(&no_leader))
    });
    let found = warnings(&mut client, &expected());
    assert_eq!(found.iter().filter(|warning| warning.contains("1 of 3 members")).count(), 2, "{found:?}");
    etcd.thaw(frozen);
}

#[test]
fn a_learner_among_the_endpoints_is_warned_about_and_not_used() {
    let Some(mut etcd) = RealEtcd::start(1) else { return };
    etcd.add_learner();
    let learner = etcd.endpoints()[1].clone();
    assert_one(&warnings(&mut etcd.client(), &expected()), [&learner, "is a learner"]);
    let mut endpoints = etcd.endpoints();
    endpoints.reverse();
    let mut client = EtcdClient::new(&Settings { endpoints, ..etcd.settings() }).unwrap();
    let error = client.transact(&always(vec![put("a", b"1")])).unwrap_err();
    assert!(error.to_string().contains("learner"), "{error}");
    client.transact(&always(vec![put("a", b"1")])).unwrap();
}
