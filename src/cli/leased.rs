//! Acquiring in a leased session, for `run` and `acquire`. A signal ends the wait in the queue.

use std::future::pending;
use std::time::Duration;

use super::declared;
use super::exit::Failure;
use super::mismatch;
use super::outer::{self, Holding};
use super::place::shown_while;
use super::refusal::{self, Usage};
use super::server::Server;
use super::signals::Signals;
use super::time::check_wait;
use super::wanted::{Amount, Amounts, Waiting};
use signalbox_client::{AcquireAll, Client, Error, Flight, Permit, Status};

/// A permit, and the client that renews its lease.
pub(super) struct Held {
    pub(super) client: Client,
    pub(super) permit: Permit,
}

/// Acquires in a session with the time to live `lease`, or with the server's default, unless the request does not fit
/// beside what `outer` programs hold. A signal that arrives while this
/// function waits closes the session: otherwise the signal would end the process, and the session would keep its place
/// in the queue without a client.
pub(super) async fn acquire(
    server: &Server,
    lease: Option<Duration>,
    task: &str,
    amounts: &Amounts,
    waiting: &Waiting,
    outer: &[Holding],
    signals: &mut Signals,
) -> Result<Held, Failure> {
    if let Some(limit @ Some(_)) = waiting.wait {
        check_wait(limit, unless_signalled(signals, server.direct()).await?.server())?;
    }
    let client = unless_signalled(signals, connect(server, lease, task)).await?;
    match unless_signalled(signals, request(server, &client, task, amounts, waiting, outer)).await {
        Ok(permit) => Ok(Held { client, permit }),
        Err(failure) => {
            client.close().await;
            Err(failure)
        }
    }
}

async fn connect(server: &Server, lease: Option<Duration>, task: &str) -> Result<Client, Failure> {
    // A waiting request keeps its place for as long as the lease, so the client retries at least that long.
    let unreachable_after = server.timeout().max(lease.unwrap_or_default());
    // While a node of the cluster takes over, the client's own attempt would fail at once.
    server.leader().await?;
    let builder = server.builder(task)?.unreachable_after(unreachable_after);
    let builder = match lease {
        Some(lease) => builder.ttl(lease),
        None => builder,
    };
    Ok(server.answer_of_first(builder.connect()).await??)
}

async fn request(
    server: &Server,
    client: &Client,
    task: &str,
    amounts: &Amounts,
    waiting: &Waiting,
    outer: &[Holding],
) -> Result<Permit, Failure> {
    let mut request = client.acquire_all(amounts.claims());
    if let Some(waiters) = waiting.queue_max {
        request = request.queue_max(waiters);
    }
    let result = match waiting.wait {
        None => server.answer(flight(request, false, waiting.share)).await?,
        Some(limit) => {
            let request = match limit {
                Some(limit) => request.timeout(limit),
                None => request,
            };
            tokio::select! {
                biased;
                result = shown_while(server, task, amounts, flight(request, true, waiting.share)) => result,
                conflict = never_granted(server, amounts, outer) => return Err(conflict),
            }
        }
    };
    match result {
        Ok(Flight::Held(permit)) => {
            mismatch::report(amounts, &permit);
            Ok(permit)
        }
        Ok(Flight::Done) => Err(waiting.done()),
        Err(error) => Err(refused(server, amounts, waiting, outer, error).await),
    }
}

/// Makes a request, of a single flight or not.
async fn flight(request: AcquireAll<'_>, waits: bool, is_shared: bool) -> Result<Flight, Error> {
    match (is_shared, waits) {
        (true, true) => request.shared().await,
        (true, false) => request.try_shared().await,
        (false, true) => request.acquire().await.map(Flight::Held),
        (false, false) => request.try_acquire().await.map(Flight::Held),
    }
}

/// Resolves if the request cannot be granted before this program ends.
async fn never_granted(server: &Server, amounts: &Amounts, outer: &[Holding]) -> Failure {
    match outer::conflict(server, amounts, outer).await {
        Some(conflict) => conflict,
        None => pending().await,
    }
}

async fn refused(
    server: &Server,
    amounts: &Amounts,
    waiting: &Waiting,
    outer: &[Holding],
    error: Error,
) -> Failure {
    if error.status() == Some(Status::NoSuchSlot)
        && let Some(Amount { name, slot: Some(slot), .. }) = amounts.single()
        && let Ok(direct) = server.direct().await
    {
        return declared::slot_refused(server, &direct, error, name, *slot).await;
    }
    if !refusal::needs_usage(&error) {
        return refusal::refused(amounts, waiting, error, &[]);
    }
    if let Some(conflict) = outer::conflict(server, amounts, outer).await {
        return conflict;
    }
    let usages = Usage::of_all(server, amounts).await;
    refusal::refused(amounts, waiting, error, &usages)
}

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
