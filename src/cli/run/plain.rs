//! `run` over a plain connection, which any server of the protocol supports: the resources are released when the
//! connection ends.
//!
//! If the connection is lost, the command is ended, unless the user chose otherwise. If this process is killed by
//! SIGKILL, the command keeps running: the parent-death signal would need unsafe code. The documentation shows how to
//! set it with `setpriv`.

use std::future::pending;

use super::arguments::Arguments;
use super::processes::{Event, Processes};
use super::supervise::{Alarm, Hold, Outcome, supervise};
use crate::cli::exit::{End, Failure};
use crate::cli::outer::{self, Holding};
use crate::cli::refusal::{self, Questions, Usage};
use crate::cli::server::Server;
use crate::cli::signals::Signals;
use crate::cli::wanted::{Amount, Amounts};
use signalbox_client::{ErrorKind, Maximum, PlainClient, Resources};

/// Runs the command while the connection holds the amount, which is the only one of the amounts.
pub(super) async fn run(
    arguments: &Arguments,
    server: &Server,
    amount: &Amount,
    max: Maximum,
    amounts: &Amounts,
) -> Result<End, Failure> {
    let (client, session) = server.connect_for(&arguments.task()).await?;
    acquire(arguments, server, amount, max, amounts, &client).await?;
    let end = match run_holding(arguments, server, amount, &client, session).await {
        Ok(Outcome::Release(end)) => Ok(end),
        Ok(Outcome::Keep(failure)) | Err(failure) => Err(failure),
    };
    release(server, amount, &client).await;
    end
}

async fn acquire(
    arguments: &Arguments,
    server: &Server,
    amount: &Amount,
    max: Maximum,
    amounts: &Amounts,
    client: &PlainClient,
) -> Result<(), Failure> {
    let call = client.acquire(amount.name.bytes(), Resources(amount.resources), max);
    let Err(error) = server.answer(call).await else { return Ok(()) };
    let outer = outer::all();
    if refusal::needs_usage(&error) && !outer.is_empty() {
        let answers = Questions::new(server, amounts).answers(true).await;
        if let Some(conflict) = outer::conflict(amounts, &answers, &outer) {
            return Err(conflict);
        }
    }
    let usage = match refusal::needs_usage(&error) {
        true => Usage::by_get(server, client, amount, server.namespace()).await,
        false => Usage::Unknown,
    };
    Err(refusal::refused(amounts, &arguments.waiting, error, &[usage]))
}

async fn run_holding(
    arguments: &Arguments,
    server: &Server,
    amount: &Amount,
    client: &PlainClient,
    session: Option<u64>,
) -> Result<Outcome, Failure> {
    let mut signals = Signals::listen()?;
    let holding = session.map(|session| Holding::Connection { session, process: std::process::id() });
    let processes = Processes::start(&arguments.command, &mut signals, None, holding.as_ref())?;
    let mut hold = ConnectionHold { arguments, server, amount, client: Some(client) };
    Ok(supervise(&mut hold, arguments, processes, &mut signals).await)
}

/// Resources that a connection holds.
struct ConnectionHold<'a> {
    arguments: &'a Arguments,
    server: &'a Server,
    amount: &'a Amount,
    /// `None` once the connection was lost and the alarm was raised; nothing else can happen.
    client: Option<&'a PlainClient>,
}

impl Hold for ConnectionHold<'_> {
    async fn alarm(&mut self) -> Alarm {
        let Some(client) = self.client else { return pending().await };
        let loss = client.closed().await;
        self.client = None;
        let (address, name) = (self.server.shown(), &self.amount.name);
        let reason =
            format!("the connection to {address} was lost ({loss}), so others may acquire {name} now");
        Alarm { event: Event::Lost, reason, time: self.arguments.kill_after }
    }
}

/// Releases the resources before the connection is closed, so that they are available when this process has ended. If
/// the release fails, the end of the connection releases them.
async fn release(server: &Server, amount: &Amount, client: &PlainClient) {
    let call = client.release(amount.name.bytes(), Resources(amount.resources));
    match server.answer(call).await {
        Err(error) if !matches!(error.kind(), ErrorKind::ConnectionLost(_)) => Failure::from(error).report(),
        _ => {}
    }
}
