//! The knowledge of a node about the others.

use std::time::Duration;

use signalbox_cluster::coordinator::Revision;
use signalbox_cluster::keys::{Advertised, Heartbeat, Incarnation, Node, RelayEndpoint, RelaySecret};
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

#[test]
fn a_new_leader_waits_for_other_nodes_that_relay_until_they_have_closed_the_relays_of_earlier_terms() {
    let term = Term { epoch: 5, leadership_modified: 10, record_format: 0 };
    for (relays, relays_closed_below, expected) in
        [(true, 4, OldRelays::Open), (true, 5, OldRelays::Closed), (false, 0, OldRelays::Closed)]
    {
        let incarnation = Incarnation("other".to_owned());
        let heartbeat = Heartbeat { incarnation, count: 1, relays_closed_below, relays: 0 };
        let other = Node { relays, ..node("other") };
        let reading = Reading {
            revision: 10,
            nodes: [("this".to_owned(), node("this")), ("other".to_owned(), other)].into(),
            heartbeats: [("other".to_owned(), (heartbeat, 9))].into(),
        };
        let mut members = Members::default();
        members.update(reading, BootTime::default());
        let this = Incarnation("this".to_owned());
        let mut wait = RelayWait::new(term, this, Duration::from_secs(3), BootTime::default());
        assert_eq!(wait.check(&members, BootTime::default()), expected, "{relays_closed_below}");
    }
}

#[test]
fn the_relays_of_a_node_are_at_its_address_and_as_many_as_its_present_run_has_reported() {
    let at = |address: &str| RelayEndpoint {
        address: address.parse().unwrap(),
        secret: RelaySecret("a secret".to_owned()),
    };
    let nodes = [
        ("relays", true, Some(at("[::ffff:10.0.0.1]:1"))),
        ("does not", false, None),
        ("restarted", true, Some(at("[2001:db8::1]:1"))),
    ];
    let heartbeat = |name: &str| {
        let run = if name == "restarted" { "former" } else { name };
        Heartbeat { incarnation: Incarnation(run.to_owned()), count: 1, relays_closed_below: 0, relays: 3 }
    };
    let reading = Reading {
        revision: 1,
        heartbeats: nodes.each_ref().map(|(name, ..)| ((*name).to_owned(), (heartbeat(name), 1))).into(),
        nodes: nodes
            .map(|(name, relays, relay_endpoint)| {
                (name.to_owned(), Node { relays, relay_endpoint, ..node(name) })
            })
            .into(),
    };
    let mut members = Members::default();
    members.update(reading, BootTime::default());
    let relays: Vec<_> =
        members.seen(BootTime::default()).into_iter().map(|seen| (seen.name, seen.relays)).collect();
    let expected = [("does not", None), ("relays", Some(3)), ("restarted", None)];
    assert_eq!(relays, expected.map(|(name, relays)| (name.to_owned(), relays)));
    for (address, is_of_a_relay) in [("10.0.0.1", true), ("2001:db8::1", true), ("10.0.0.2", false)] {
        assert_eq!(members.has_relay_at(address.parse().unwrap()), is_of_a_relay, "{address}");
    }
}
