//! What the client says about a real etcd.

use std::time::Duration;

use signalbox::cluster::coordinator::Coordinator;
use signalbox::cluster::etcd::{EtcdClient, Expected, Settings, Warning};
use signalbox::cluster::keys::Keys;

use crate::support::calls::{always, put};
use crate::support::etcd::RealEtcd;

fn expected() -> Expected {
    let round_trip_max = Duration::from_secs(5);
    Expected { round_trip_max, ..Expected::of(&Keys::new("main"), Duration::from_secs(3)) }
}

#[test]
fn each_member_says_what_it_is() {
    let Some(etcd) = RealEtcd::start(3) else { return };
    let leader = etcd.leader();
    let mut client = etcd.client();
    client.transact(&always(vec![put("a", &[7; 100_000])])).unwrap();
    let members = client.status();
    let endpoints: Vec<_> = members.iter().map(|member| member.endpoint.clone()).collect();
    assert_eq!(endpoints, etcd.endpoints());
    for (index, member) in members.iter().enumerate() {
        let status = member.status.as_ref().unwrap();
        assert_eq!(status.is_leader, index == leader);
        assert!(status.has_leader && !status.is_learner && status.raft_term > 0, "{status:?}");
        assert!(status.version.starts_with("3."), "{status:?}");
        assert!(status.used_bytes > 0 && status.used_bytes <= status.database_bytes, "{status:?}");
        assert_eq!(status.errors, [""; 0]);
    }
    let round_trip = client.round_trip(b"a").unwrap();
    assert!(round_trip > Duration::ZERO && round_trip < Duration::from_secs(5), "{round_trip:?}");
    assert_eq!(client.warnings(&expected()), []);
}

#[test]
fn an_etcd_that_keeps_all_revisions_is_warned_about() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    let mut client = etcd.client();
    let mut revision = 0;
    for _ in 0..20 {
        revision = client.transact(&always(vec![put("a", b"1")])).unwrap().revision;
    }
    let few = Expected { revisions_max: 10, ..expected() };
    let warnings = client.warnings(&few);
    assert_eq!(warnings, [Warning::NotCompacted { revision }]);
    assert!(warnings[0].to_string().contains("--auto-compaction-retention=5m"), "{}", warnings[0]);
    etcd.control(&["compaction", "10"]);
    assert_eq!(client.warnings(&few), []);
}

#[test]
fn a_slow_etcd_is_warned_about() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    let fast = Expected { round_trip_max: Duration::from_nanos(1), ..expected() };
    let warnings = etcd.client().warnings(&fast);
    let [Warning::Slow { round_trip, .. }] = warnings[..] else { panic!("{warnings:?}") };
    assert!(round_trip > Duration::ZERO);
}

#[test]
fn an_etcd_without_space_is_warned_about() {
    let Some(etcd) = RealEtcd::start_with(1, None, &["--quota-backend-bytes", "1000000"]) else { return };
    let mut client = etcd.client();
    crate::support::eventually("etcd has no space", || {
        client.transact(&always(vec![put("a", &[7; 500_000])])).is_err()
    });
    let endpoint = etcd.endpoints()[0].clone();
    let warnings = client.warnings(&expected());
    assert_eq!(warnings, [Warning::NoSpace { endpoint }]);
    assert!(warnings[0].to_string().contains("etcdctl alarm disarm"), "{}", warnings[0]);
}

#[test]
fn a_member_that_does_not_answer_is_warned_about() {
    let Some(mut etcd) = RealEtcd::start(3) else { return };
    let leader = etcd.leader();
    let [dead, frozen] = [1, 2].map(|offset| (leader + offset) % 3);
    etcd.kill(dead);
    let request_timeout = Duration::from_secs(1);
    let mut client = EtcdClient::new(&Settings { request_timeout, ..etcd.settings() }).unwrap();
    let unreachable = |warnings: &[Warning]| -> Vec<String> {
        let found = warnings.iter().filter_map(|warning| match warning {
            Warning::Unreachable { endpoint, .. } => Some(endpoint.clone()),
            _ => None,
        });
        found.collect()
    };
    let warnings = client.warnings(&expected());
    assert_eq!(unreachable(&warnings), [etcd.endpoints()[dead].clone()]);
    let sentence = warnings[0].to_string();
    assert!(sentence.contains("2 of 3 members"), "{sentence}");
    // The one that is left has no majority.
    etcd.freeze(frozen);
    crate::support::eventually("the last member finds that there is no leader", || {
        client
            .warnings(&expected())
            .contains(&Warning::NoLeader { endpoint: etcd.endpoints()[leader].clone() })
    });
    assert_eq!(unreachable(&client.warnings(&expected())).len(), 2);
    etcd.thaw(frozen);
}

#[test]
fn a_learner_among_the_endpoints_is_warned_about_and_not_used() {
    let Some(mut etcd) = RealEtcd::start(1) else { return };
    etcd.add_learner();
    let learner = etcd.endpoints()[1].clone();
    let mut client = etcd.client();
    assert_eq!(client.warnings(&expected()), [Warning::Learner { endpoint: learner.clone() }]);
    let mut endpoints = etcd.endpoints();
    endpoints.reverse();
    let mut client = EtcdClient::new(&Settings { endpoints, ..etcd.settings() }).unwrap();
    let error = client.transact(&always(vec![put("a", b"1")])).unwrap_err();
    assert!(error.to_string().contains("learner"), "{error}");
    client.transact(&always(vec![put("a", b"1")])).unwrap();
}
