//! Warnings where the server has something else than the arguments say: another capacity of a semaphore, a semaphore with
//! the name of a counter, another length of a lease. The command goes on, because it holds what it requested.

use std::time::Duration;

use super::declared;
use super::exit::warn;
use super::server::{Server, exists};
use super::wanted::{Amount, Amounts};
use signalbox_client::{Direct, Error, Namespace, Permit};

/// Reports what the server has otherwise than the amounts that a permit holds.
pub(super) async fn report(server: &Server, amounts: &Amounts, permit: &Permit) {
    for (amount, capacity) in amounts.each().iter().zip(permit.capacities()) {
        report_capacity(amounts, amount, *capacity);
    }
    if amounts.each().iter().any(|amount| amounts.namespace_of(amount) == Namespace::Counters) {
        within(server, async |direct| report_semaphores(server, direct, amounts).await).await;
    }
}

/// As [`report`], for an amount of a plain operation, whose answer does not have the capacity.
pub(super) async fn report_plain(server: &Server, amounts: &Amounts, amount: &Amount) {
    let ask = async |direct: &Direct| match amounts.namespace_of(amount) {
        Namespace::Counters => report_semaphores(server, direct, amounts).await,
        Namespace::Semaphores => {
            let inspected = direct.inspect(Namespace::Semaphores, amount.name.bytes()).await?;
            report_capacity(amounts, amount, inspected.capacity);
            Ok(())
        }
    };
    within(server, ask).await;
}

/// Asks the server. Without an answer in time there is no report, because the resources are held in any case.
async fn within(server: &Server, ask: impl AsyncFnOnce(&Direct) -> Result<(), Error>) {
    let asked = async {
        let direct = server.direct().await.ok()?;
        ask(&direct).await.ok()
    };
    let _ = tokio::time::timeout(server.timeout(), asked).await;
}

/// Reports counters with the name of a semaphore, which is probably what was meant.
async fn report_semaphores(server: &Server, direct: &Direct, amounts: &Amounts) -> Result<(), Error> {
    for amount in amounts.each() {
        let name = amount.name.bytes();
        let is_counter = amounts.namespace_of(amount) == Namespace::Counters;
        if !is_counter || !exists(direct, Namespace::Semaphores, name).await? {
            continue;
        }
        let (declared, advice) = match declared::find(direct, name).await? {
            Some(_) if amount.resources == 1 => {
                ("declared ", format!("omit the maximum: {}", amount.name.shown()))
            }
            Some(_) => {
                ("declared ", format!("omit the maximum: {}={}/", amount.name.shown(), amount.resources))
            }
            None if server.has_port() => {
                ("", "add --semaphore, and give the port of the semaphores".to_owned())
            }
            None => ("", "add --semaphore".to_owned()),
        };
        warn(&format!(
            "counter {0} was acquired, and not the {declared}semaphore {0}; to acquire the semaphore, {advice}",
            amount.name
        ));
    }
    Ok(())
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
