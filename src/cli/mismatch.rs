//! Warnings where the server has something else than the arguments say: another capacity of a semaphore, another length of a
//! lease. The command goes on, because it holds what it requested.

use std::time::Duration;

use super::exit::warn;
use super::wanted::{Amount, Amounts};
use signalbox_client::{Namespace, Permit};

/// Reports semaphores whose capacity is not the one that was given. A limit with a larger one is refused.
pub(super) fn report(amounts: &Amounts, permit: &Permit) {
    if amounts.kind() != Some(Namespace::Semaphores) {
        return;
    }
    for (Amount { name, max, .. }, capacity) in amounts.each().iter().zip(permit.capacities()) {
        if let Some(given) = max.filter(|given| given != capacity) {
            warn(&format!(
                "semaphore {name} has the capacity {capacity}, not {given} as given; the given one is only for a semaphore \
                 that does not exist yet; correct it, or change the capacity with \"signalbox resize\""
            ));
        }
    }
}

/// Reports that the server does not allow a lease of the requested length.
pub(super) fn report_lease(granted: Duration, requested: Duration, advice: &str) {
    // The protocol has whole milliseconds.
    let limit = match granted.as_millis().cmp(&requested.as_millis()) {
        std::cmp::Ordering::Less => "longest",
        std::cmp::Ordering::Equal => return,
        std::cmp::Ordering::Greater => "shortest",
    };
    let (granted, requested) = (granted.as_secs_f64(), requested.as_secs_f64());
    warn(&format!(
        "the lease is {granted} s, the {limit} that the server allows, instead of {requested} s; {advice}"
    ));
}
