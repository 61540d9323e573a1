//! `run` over a plain connection, which any server of the protocol has: what is held ends with the connection.
//!
//! The command must not run on without it where that can be helped: when the connection is lost the command is ended,
//! unless the user chose otherwise. That this process is killed by SIGKILL cannot be helped from here (the
//! parent-death signal would need unsafe code); the documentation says what to do.

use std::process::ExitCode;
use std::time::Duration;

use super::supervise::{Alarm, Hold, supervise};
use super::{Arguments, child};
use crate::cli::exit::{Failure, warn};
use crate::cli::server::Server;
use crate::cli::signals::Signals;
use crate::cli::wanted::{Amount, Amounts};
use crate::client::{Error, Maximum, PlainClient, Resources};

/// Runs the command while the connection holds the amount, which is the only one of the amounts.
pub(super) async fn run(
    arguments: &Arguments,
    amount: &Amount,
    max: Maximum,
    amounts: &Amounts,
) -> Result<ExitCode, Failure> {
    let client = arguments.server.connect().await?;
    acquire(arguments, amount, max, amounts, &client).await?;
    let result = run_holding(arguments, amount, &client).await;
    release(&arguments.server, amount, &client).await;
    result
}

async fn acquire(
    arguments: &Arguments,
    amount: &Amount,
    max: Maximum,
    amounts: &Amounts,
    client: &PlainClient,
) -> Result<(), Failure> {
    let call = client.acquire(amount.name.bytes(), Resources(amount.resources), max);
    let result = arguments.server.answer(call).await?;
    result.map(drop).map_err(|error| amounts.refused(error, &arguments.waiting))
}

async fn run_holding(
    arguments: &Arguments,
    amount: &Amount,
    client: &PlainClient,
) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen()?;
    let child = child::start(&arguments.command, None)?;
    let mut held = Connection { arguments, amount, client: Some(client) };
    supervise(&mut held, arguments.on_lost, child, &mut signals).await
}

/// A connection that holds.
struct Connection<'a> {
    arguments: &'a Arguments,
    amount: &'a Amount,
    /// `None` once it is known to be lost.
    client: Option<&'a PlainClient>,
}

impl Hold for Connection<'_> {
    async fn alarm(&mut self) -> Alarm {
        let Some(client) = self.client else { return std::future::pending().await };
        let loss = client.closed().await;
        self.client = None;
        let address = self.arguments.server.address();
        let name = &self.amount.name;
        let time: Duration = self.arguments.kill_after;
        let reason =
            format!("the connection to {address} was lost ({loss}), so others may acquire of {name} now");
        Alarm { reason, time }
    }
}

/// Gives back before the connection is closed, so that who acquires next finds it given back. Where that fails, the
/// end of the connection does it.
async fn release(server: &Server, amount: &Amount, client: &PlainClient) {
    let call = client.release(amount.name.bytes(), Resources(amount.resources));
    match server.answer(call).await {
        Ok(Ok(()) | Err(Error::ConnectionLost(_))) => {}
        Ok(Err(error)) => warn(&format!("giving back {} failed: {error}", amount.name)),
        Err(failure) => drop(failure.report()),
    }
}
