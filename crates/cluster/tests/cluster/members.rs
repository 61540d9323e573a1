//! What a node knows of the others.

use std::time::Duration;

use signalbox_cluster::coordinator::Revision;
use signalbox_cluster::keys::{Advertised, Heartbeat, Incarnation, Node};
use signalbox_cluster::leadership::Term;
use signalbox_cluster::members::{Members, OldRelays, Reading, RelayWait};
use signalbox_cluster::timing::BootTime;

fn node(run: &str) -> Node {
    let advertised = Advertised { counters: vec![format!("{run}:1")], semaphores: Vec::new() };
    Node {
        incarnation: Incarnation(run.to_owned()),
        record_format: 1,
        is_eligible: true,
        relays: true,
        advertised,
        drains: true,
        ..Node::default()
    }
}

#[test]
fn a_new_leader_waits_for_silent_relays_and_gives_up_faulty_ones() {
    let lease_duration = Duration::from_secs(3);
    let at = |ms| BootTime(Duration::from_millis(ms));
    let reading = |heartbeats: &[(&str, Revision)]| Reading {
        revision: 10,
        nodes: heartbeats.iter().map(|(run, _)| ((*run).to_owned(), node(run))).collect(),
        heartbeats: heartbeats
            .iter()
            .map(|(run, modified)| {
                let incarnation = Incarnation((*run).to_owned());
                let heartbeat = Heartbeat { incarnation, count: 1, relays_closed_below: 4, relays: 1 };
                ((*run).to_owned(), (heartbeat, *modified))
            })
            .collect(),
    };
    let term = Term { epoch: 5, leadership_modified: 10, record_format: 0 };
    let begin = || RelayWait::new(term, Incarnation("this".to_owned()), lease_duration, at(0));
    let open = OldRelays::Open;

    // A silent node that is read late.
    let (mut wait, mut members) = (begin(), Members::default());
    assert_eq!(wait.check(&members, at(500)), open, "nothing was read");
    members.update(reading(&[("this", 9), ("silent", 2)]), at(1000));
    assert_eq!(wait.check(&members, at(1000)), open);
    assert_eq!(wait.check(&members, at(3999)), open);
    assert_eq!(wait.check(&members, at(4000)), OldRelays::Closed);

    // A node whose former run has reported that its relays are closed.
    let (mut wait, mut members) = (begin(), Members::default());
    let mut reading_of_former = reading(&[("this", 9), ("new", 12)]);
    let of_former = Heartbeat {
        incarnation: Incarnation("former".to_owned()),
        count: 1,
        relays_closed_below: u32::MAX,
        relays: 0,
    };
    reading_of_former.heartbeats.insert("new".to_owned(), (of_former, 12));
    members.update(reading_of_former, at(0));
    assert_eq!(wait.check(&members, at(0)), open);

    // A node that sends heartbeats, and does not close its relays.
    let (mut wait, mut members) = (begin(), Members::default());
    for ms in (0..6000).step_by(500) {
        members.update(reading(&[("this", 9), ("faulty", 10 + ms)]), at(ms));
        assert_eq!(wait.check(&members, at(ms)), open);
    }
    assert_eq!(wait.check(&members, at(6000)), OldRelays::Faulty(vec!["faulty".to_owned()]));
}

#[test]
fn the_addresses_of_nodes_that_send_heartbeats_are_advertised() {
    let lease_duration = Duration::from_secs(3);
    let heartbeat = |run: &str| Heartbeat {
        incarnation: Incarnation(run.to_owned()),
        count: 1,
        relays_closed_below: 0,
        relays: 0,
    };
    let reading = |revision| Reading {
        revision,
        nodes: ["this", "alive", "dead", "new"].map(|run| (run.to_owned(), node(run))).into(),
        heartbeats: [("this", revision), ("alive", revision), ("dead", 1)]
            .map(|(run, modified)| (run.to_owned(), (heartbeat(run), modified)))
            .into(),
    };
    let at = |seconds| BootTime(Duration::from_secs(seconds));
    let mut members = Members::default();
    members.update(reading(1), at(0));
    let advertised = |members: &Members, now| {
        members.advertised(&Incarnation("this".to_owned()), lease_duration, now).counters
    };
    assert_eq!(advertised(&members, at(1)), ["alive:1", "dead:1"]);
    members.update(reading(2), at(2));
    assert_eq!(advertised(&members, at(4)), ["alive:1"]);
}
