//! Acquires in a leased session, for `run` and `acquire`. A signal ends the wait in the queue.

use std::time::Duration;

use super::exit::Failure;
use super::messages::warn;
use super::outer::{self, Holding};
use super::output::slot_list;
use super::place;
use super::refusal::{self, Questions, Usage};
use super::server::{Server, label};
use super::signals::Signals;
use super::values::{check_lease, check_wait};
use super::wanted::{Amount, Amounts, Waiting};
use signalbox_client::{AcquireAll, Builder, Client, Error, Flight, HelloAnswer, Namespace, Permit};

/// A permit, and the client that renews its lease.
pub(super) struct Held {
    pub(super) client: Client,
    pub(super) permit: Permit,
}

/// Acquires in a session with the time to live `lease`, or with the server's default. Fails if the request can never be
/// granted while the programs around this one hold `outer`. A signal during the wait closes the session; otherwise the
/// signal would end the process, and the session would keep its place in the queue without a client.
pub(super) async fn acquire(
    server: &Server,
    lease: Option<Duration>,
    task: &str,
    amounts: &Amounts,
    waiting: &Waiting,
    outer: &[Holding],
    signals: &mut Signals,
) -> Result<Held, Failure> {
    let mut questions = Questions::new(server, amounts);
    if lease.is_some() || matches!(waiting.wait, Some(Some(_))) {
        let limits = unless_signalled(signals, questions.limits()).await?;
        check_wait(waiting.wait.flatten(), limits)?;
        if let Some(lease) = lease {
            check_lease(lease, limits)?;
            report_longer_lease(lease, limits);
        }
    }
    let client = unless_signalled(signals, connect(server, lease, task)).await?;
    match unless_signalled(signals, request(&mut questions, server, &client, task, waiting, outer)).await {
        Ok(permit) => Ok(Held { client, permit }),
        Err(failure) => {
            client.close().await;
            Err(failure)
        }
    }
}

async fn connect(server: &Server, lease: Option<Duration>, task: &str) -> Result<Client, Failure> {
    // A waiting request keeps its place until the lease ends, so the client retries at least for the length of the lease.
    let unreachable_after = server.timeout.max(lease.unwrap_or_default());
    // Waits for a server that answers: while a node of a cluster takes over, the client's own attempt would fail at
    // once.
    server.leader().await?;
    let builder = server.builder(task)?.unreachable_after(unreachable_after);
    let builder = lease.into_iter().fold(builder, Builder::ttl);
    let addresses = server.addresses().len() as u32;
    Ok(server.answer_within(server.timeout * addresses, builder.connect()).await?)
}

async fn request(
    questions: &mut Questions<'_>,
    server: &Server,
    client: &Client,
    task: &str,
    waiting: &Waiting,
    outer: &[Holding],
) -> Result<Permit, Failure> {
    let amounts = questions.amounts;
    let request = client.acquire_all(amounts.claims());
    let request = waiting.queue_max.into_iter().fold(request, AcquireAll::queue_max);
    let result = match waiting.wait {
        None => server.answer(flight(request, false, waiting.share)).await,
        Some(limit) => {
            let request = limit.into_iter().fold(request, AcquireAll::timeout);
            tokio::select! {
                biased;
                result = flight(request, true, waiting.share) => result,
                conflict = show_wait(questions, task, outer) => return Err(conflict),
            }
        }
    };
    match result {
        Ok(Flight::Held(permit)) => {
            check_capacities(amounts, &permit);
            Ok(permit)
        }
        Ok(Flight::Done) => Err(waiting.done()),
        Err(error) if refusal::needs_usage(&error) => {
            let answers = questions.answers(!outer.is_empty()).await;
            if let Some(conflict) = outer::conflict(amounts, &answers, outer) {
                return Err(conflict);
            }
            let usages: Vec<_> =
                amounts.each.iter().zip(&answers).map(|(amount, answer)| Usage::of(amount, answer)).collect();
            Err(refusal::refused(amounts, waiting, error, &usages))
        }
        Err(error) => Err(refusal::refused(amounts, waiting, error, &[])),
    }
}

/// Sends a request, which `waits` in the queue or not, as a part of a single flight if `is_shared`.
async fn flight(request: AcquireAll<'_>, waits: bool, is_shared: bool) -> Result<Flight, Error> {
    match (is_shared, waits) {
        (true, true) => request.shared().await,
        (true, false) => request.try_shared().await,
        (false, true) => request.acquire().await.map(Flight::Held),
        (false, false) => request.try_acquire().await.map(Flight::Held),
    }
}

/// Shows the place of the request while it waits. Returns only if it cannot be granted before this program ends.
async fn show_wait(questions: &mut Questions<'_>, task: &str, outer: &[Holding]) -> Failure {
    if !outer.is_empty() {
        let answers = questions.answers(true).await;
        if let Some(conflict) = outer::conflict(questions.amounts, &answers, outer) {
            return conflict;
        }
    }
    match place::show(questions, &label(task)).await {}
}

/// Warns about semaphores whose capacity differs from the given one. Limits need no check: the server refuses a request
/// whose maximum is below the capacity.
fn check_capacities(amounts: &Amounts, permit: &Permit) {
    if amounts.kind != Some(Namespace::Semaphores) {
        return;
    }
    for (Amount { name, max, .. }, capacity) in amounts.each.iter().zip(permit.capacities()) {
        if let Some(given) = max.filter(|given| given != capacity) {
            warn(&format!(
                "semaphore {name} has the capacity {capacity}, not {given} as given; the given one is only for a semaphore \
                 that does not exist yet; correct it, or change the capacity with \"signalbox resize\""
            ));
        }
    }
}

/// Warns if the requested lease is shorter than the server allows, because the server then makes it longer.
fn report_longer_lease(requested: Duration, limits: HelloAnswer) {
    let shortest = Duration::from(limits.ttl_min);
    if requested < shortest {
        let (shortest, requested) = (shortest.as_secs_f64(), requested.as_secs_f64());
        warn(&format!(
            "the lease is {shortest} s, the shortest that the server allows, instead of {requested} s; change --lease"
        ));
    }
}

/// Returns the slots of each claim of a permit, in the order of the claims.
pub(super) fn slots_of(permit: &Permit) -> Vec<Vec<u16>> {
    (0..permit.claims().len()).map(|claim| permit.slots_of(claim).to_vec()).collect()
}

/// Returns the slots of all names of a permit, for environment variables: `0,1:` is two slots of the first name and
/// none of the second. `None` if no name has slots.
pub(super) fn slots_value(slots: &[Vec<u16>]) -> Option<String> {
    let has_slots = slots.iter().any(|slots| !slots.is_empty());
    has_slots.then(|| slots.iter().map(|slots| slot_list(slots)).collect::<Vec<_>>().join(":"))
}

/// Waits for the result of `future`. Fails if a signal arrives first.
pub(super) async fn unless_signalled<T>(
    signals: &mut Signals,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(Failure::interrupted(signal)),
        result = future => result,
    }
}
