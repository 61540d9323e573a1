//! The times of a cluster, its clock and its fence.

use std::time::Duration;

use signalbox_cluster::timing::{BootTime, Fence, Timing};

const MS: Duration = Duration::from_millis(1);

#[test]
fn all_times_derive_from_the_renew_deadline() {
    let timing = Timing::new(3000 * MS).unwrap();
    assert_eq!((timing.renew_deadline(), timing.lease_duration()), (3000 * MS, 3400 * MS));
    assert_eq!((timing.retry_period(), timing.poll_period()), (500 * MS, 250 * MS));
    assert_eq!((timing.fast_poll_period(), timing.request_timeout()), (50 * MS, 500 * MS));
    assert_eq!(timing.round_trip_max(), 150 * MS);
    let shortest = Timing::new(2000 * MS).unwrap();
    assert_eq!((shortest.lease_duration(), shortest.request_timeout()), (2300 * MS, 400 * MS));
    assert_eq!(Timing::LONGEST.request_timeout(), 500 * MS);
}

#[test]
fn a_renew_deadline_has_limits() {
    let is_permitted = |ms| Timing::new(ms * MS).is_some();
    assert!(!is_permitted(1999) && is_permitted(2000));
    assert!(is_permitted(60_000) && !is_permitted(60_001));
}

#[test]
fn a_fence_has_no_deadline_before_it_is_set_and_is_past() {
    let fence = Fence::new(BootTime::default);
    assert!(fence.deadline().is_none() && fence.is_past());
    fence.set(BootTime(MS));
    assert_eq!(fence.deadline(), Some(BootTime(MS)));
    assert!(!fence.is_past());
}

#[test]
fn the_clock_runs_forward() {
    let before = BootTime::now();
    assert!(before > BootTime::default());
    assert!(BootTime::now() >= before);
}
