//! Random histories of two to five nodes.
//!
//! A history begins with faults; after them, everything works: one node leads soon and stays leader, and an orderly
//! stop hands over at once. `PROPTEST_CASES=1000000 cargo test --release --test cluster histories` runs it for an hour.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::timing;
use super::world::{Fault, MS, Micros, Rate, Weather, World};

/// The number of histories without `PROPTEST_CASES`.
const HISTORIES: u32 = 500;
/// The slowest clock shows 0.96 s in a second.
const SLOWEST_PERMILLE: u64 = 960;
/// After the faults, a cluster may have no leader for the lease duration and this time: a node waits for a request that was
/// lost, ends, starts again, reads, joins, and takes over.
const SLACK: Duration = Duration::from_millis(2000);

fn rates() -> impl Strategy<Value = Rate> {
    let permille = prop_oneof![1 => Just(-40i64), 1 => Just(40), 2 => -40..=40i64];
    (permille, prop::sample::select(vec![0, 50_000, 86_400_000]))
        .prop_map(|(permille, offset_ms)| Rate { permille, offset_ms })
}

fn weathers() -> impl Strategy<Value = Weather> {
    let shares = || prop::sample::select(vec![0u8, 0, 10, 30, 60, 100]);
    let latencies = prop::sample::select(vec![5u64, 50, 300, 700]);
    (shares(), shares(), shares(), latencies).prop_map(
        |(lost_requests, lost_answers, late_requests, latency_ms)| Weather {
            lost_requests,
            lost_answers,
            late_requests,
            latency_ms,
        },
    )
}

fn faults() -> impl Strategy<Value = Fault> {
    let nodes = || 0..6usize;
    let spans = || prop_oneof![2 => 0..600u64, 2 => 600..4000u64, 1 => 4000..9000u64];
    prop_oneof![
        4 => (nodes(), weathers()).prop_map(|(node, weather)| Fault::Weather { node: Some(node), weather }),
        4 => weathers().prop_map(|weather| Fault::Weather { node: None, weather }),
        4 => (nodes(), spans()).prop_map(|(node, ms)| Fault::Freeze { node, ms }),
        4 => (nodes(), spans(), any::<bool>())
            .prop_map(|(node, ms, is_cut_off)| Fault::FreezeInFlight { node, ms, is_cut_off }),
        4 => (nodes(), spans()).prop_map(|(node, down_ms)| Fault::Crash { node, down_ms }),
        3 => (nodes(), spans()).prop_map(|(node, down_ms)| Fault::Stop { node, down_ms }),
        2 => (0..3000u64).prop_map(|ms| Fault::Outage { ms }),
        1 => nodes().prop_map(|node| Fault::Namesake { node }),
        2 => Just(Fault::Finalize),
    ]
}

/// Faults, each with the time before it in milliseconds.
fn timelines() -> impl Strategy<Value = Vec<(u64, Fault)>> {
    let gaps = prop_oneof![3 => 0..300u64, 3 => 300..1500u64, 2 => 3000..5000u64];
    prop::collection::vec((gaps, faults()), 0..24)
}

fn slowest(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap() * 1000 / SLOWEST_PERMILLE
}

fn play(clocks: &[Rate], seed: u64, timeline: &[(u64, Fault)]) -> World {
    let mut world = World::new(clocks, seed);
    world.run_for(1500 * MS);
    for (gap_ms, fault) in timeline {
        world.run_for(gap_ms * MS);
        world.fault(fault);
    }
    world.run_for(2000 * MS);
    world
}

/// From now on, one node leads soon, and the same one for a while.
fn check_recovery(world: &mut World) {
    world.calm();
    world.run_for(slowest(timing().lease_duration() + SLACK));
    let leader = world.leader();
    assert!(leader.is_some(), "no node leads:\n{}", world.describe());
    let terms = world.terms.len();
    world.run_for(slowest(2 * timing().renew_deadline()));
    assert_eq!(world.leader(), leader);
    assert_eq!(world.terms.len(), terms, "without faults, no node takes over");
}

/// An orderly stop hands over to a standby within a poll period and two answers.
fn check_stop(world: &mut World) {
    let Some(leader) = world.leader().filter(|_| world.standbys() > 0) else { return };
    world.stop(leader, 60_000);
    let answers = 4 * 2 * 11 * MS;
    world.run_for(slowest(timing().poll_period()) + answers);
    let next = world.leader();
    assert!(next.is_some_and(|next| next != leader), "no node took over:\n{}", world.describe());
}

#[test]
fn histories_reach_every_ending() {
    let mut runner = TestRunner::deterministic();
    let histories = (prop::collection::vec(rates(), 2..=5), any::<u64>(), timelines());
    let mut reached = BTreeMap::<&str, u64>::new();
    for _ in 0..300 {
        let (clocks, seed, timeline) = histories.new_tree(&mut runner).unwrap().current();
        for (what, times) in play(&clocks, seed, &timeline).statistics {
            *reached.entry(what).or_default() += times;
        }
    }
    let wanted = [
        ("takeovers by a successor", 5),
        ("takeovers in place of a successor", 5),
        ("terms", 400),
        ("takeovers without a release", 120),
        ("takeovers without an answer", 8),
        ("renewals without an answer", 50),
        ("released", 100),
        ("not released", 20),
        ("deadline passed", 100),
        ("name in use", 50),
        ("relays", 1000),
        ("relays that were closed", 200),
        ("leaders that answer", 300),
        ("finalized", 20),
        ("not finalized", 20),
        ("too old", 20),
    ];
    for (what, times) in wanted {
        let found = reached.get(what).copied().unwrap_or(0);
        assert!(found >= times, "{what}: {found} of {times} wanted, {reached:?}");
    }
}

fn configured() -> Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config { cases: cases.unwrap_or(HISTORIES), failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(configured())]

    #[test]
    fn one_leads_at_a_time_and_one_leads_again(
        clocks in prop::collection::vec(rates(), 2..=5),
        seed in any::<u64>(),
        timeline in timelines(),
    ) {
        let mut world = play(&clocks, seed, &timeline);
        check_recovery(&mut world);
        check_stop(&mut world);
    }
}

proptest! {
    #![proptest_config(Config { cases: configured().cases / 10, ..configured() })]

    #[test]
    fn one_leads_again_after_a_backup_was_restored(
        clocks in prop::collection::vec(rates(), 2..=5),
        seed in any::<u64>(),
        timeline in timelines(),
        backup in any::<usize>(),
    ) {
        let mut world = play(&clocks, seed, &timeline);
        world.fault(&Fault::Restore { backup });
        world.run_for(1000 * MS);
        check_recovery(&mut world);
    }
}
