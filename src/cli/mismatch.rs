//! Warnings where the server has something else than the arguments say: another capacity of a semaphore, another length
//! of a lease. The command goes on, because it holds what it requested.

use std::time::Duration;

use super::exit::warn;
use super::server::Server;
use super::wanted::{Amount, Amounts};
use crate::client::{Direct, Namespace, Permit};

/// Reports semaphores whose capacity is not the given one.
pub(super) fn report_capacities(amounts: &Amounts, permit: &Permit) {
    for (amount, capacity) in amounts.each().iter().zip(permit.capacities()) {
        report_capacity(amounts, amount, *capacity);
    }
}

/// As [`report_capacities`], for an amount of a plain operation, whose answer does not have the capacity. Says nothing if
/// the server does not say.
pub(super) async fn report_plain_capacity(server: &Server, amounts: &Amounts, amount: &Amount) {
    if amounts.namespace_of(amount) == Namespace::Counters {
        return;
    }
    let ask = async {
        let direct: Direct = server.direct().await.ok()?;
        direct.inspect(Namespace::Semaphores, amount.name.bytes()).await.ok()
    };
    if let Ok(Some(inspected)) = tokio::time::timeout(server.timeout(), ask).await {
        report_capacity(amounts, amount, inspected.capacity);
    }
}

fn report_capacity(amounts: &Amounts, amount: &Amount, capacity: u32) {
    let given = amount.max.filter(|_| amounts.namespace_of(amount) == Namespace::Semaphores);
    if let Some(given) = given.filter(|given| *given != capacity) {
        warn(&format!(
            "semaphore {} has the capacity {capacity}, not {given} as given; the given one is only for a semaphore that \
             does not exist yet; correct it, or change the capacity with \"signalbox resize\"",
            amount.name
        ));
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
