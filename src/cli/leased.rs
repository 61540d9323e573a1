//! Acquiring by a leased session, for `run` and `acquire`: who waits in a queue can be told by a signal to leave it.

use std::time::Duration;

use super::exit::Failure;
use super::server::{Server, label};
use super::signals::Signals;
use super::wanted::{Amounts, Waiting};
use crate::client::{Client, Permit};

/// What was acquired, and by what it is kept.
pub(super) struct Held {
    pub(super) client: Client,
    pub(super) permit: Permit,
}

/// Acquires in a session that lives for `lease`, or for as long as the server has it. A signal that arrives meanwhile
/// ends the program with nothing held: killed by it, it would leave a session in the queue that nobody listens to.
pub(super) async fn acquire(
    server: &Server,
    lease: Option<Duration>,
    task: &str,
    amounts: &Amounts,
    waiting: &Waiting,
    signals: &mut Signals,
) -> Result<Held, Failure> {
    let client = unless_signalled(signals, connect(server, lease, task)).await?;
    match unless_signalled(signals, ask(server, &client, amounts, waiting)).await {
        Ok(permit) => Ok(Held { client, permit }),
        Err(failure) => {
            client.close().await;
            Err(failure)
        }
    }
}

async fn connect(server: &Server, lease: Option<Duration>, task: &str) -> Result<Client, Failure> {
    // Who waits in a queue stays there for as long as its place is kept.
    let patience = server.timeout().max(lease.unwrap_or_default());
    let builder = Client::builder(server.address()).label(label(task)).unreachable_after(patience);
    let builder = match lease {
        Some(lease) => builder.ttl(lease),
        None => builder,
    };
    Ok(server.answer(builder.connect()).await??)
}

async fn ask(
    server: &Server,
    client: &Client,
    amounts: &Amounts,
    waiting: &Waiting,
) -> Result<Permit, Failure> {
    let mut request = client.acquire_all(amounts.claims());
    if let Some(waiters) = waiting.queue_max {
        request = request.queue_max(waiters);
    }
    let result = match waiting.wait {
        None => server.answer(request.try_acquire()).await?,
        Some(None) => request.acquire().await,
        Some(Some(limit)) => request.timeout(limit).acquire().await,
    };
    result.map_err(|error| amounts.refused(error, waiting))
}

async fn unless_signalled<T>(
    signals: &mut Signals,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        signal = signals.any() => Err(Failure::interrupted(signal)),
        result = future => result,
    }
}
