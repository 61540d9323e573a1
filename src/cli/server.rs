//! Which server the client subcommands ask, and how long they wait for it.

use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use crate::client::{Address, COUNTER_PORT, Error, PlainClient, SEMAPHORE_PORT};

/// The options that all client subcommands have.
#[derive(Debug, Args)]
pub(super) struct Server {
    /// Server to ask; without a port, 11215 (with --semaphore, 11216)
    #[arg(
        long = "server",
        value_name = "HOST[:PORT]",
        env = "SIGNALBOX_SERVER",
        default_value = "127.0.0.1"
    )]
    address: Address,

    /// Ask for semaphores instead of counters
    #[arg(long)]
    semaphore: bool,

    /// How long to wait for a connection and for each answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
}

impl Server {
    /// The address with the port that is asked.
    pub(super) fn address(&self) -> Address {
        self.address.clone().or_port(if self.semaphore { SEMAPHORE_PORT } else { COUNTER_PORT })
    }

    /// How long to wait for a connection and for each answer.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What a name stands for on this server.
    pub(super) fn kind(&self) -> &'static str {
        if self.semaphore { "semaphore" } else { "counter" }
    }

    pub(super) async fn connect(&self) -> Result<PlainClient, Failure> {
        Ok(PlainClient::connect_within(&self.address(), self.timeout).await?)
    }

    /// Waits for an answer; the outer failure is that none came.
    pub(super) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<Result<T, Error>, Failure> {
        tokio::time::timeout(self.timeout, call).await.map_err(|_| {
            let message = format!(
                "{} gave no answer within {} s; check the server, or give it more time with --timeout",
                self.address(),
                self.timeout.as_secs_f64()
            );
            Failure::new(Exit::Unavailable, message)
        })
    }
}

/// Runs a subcommand's async part. One thread is enough: it serves one connection and one terminal.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Failure, format!("cannot start ({error}); check the limits of this process"))
    })?;
    let result = runtime.block_on(future);
    // The resolver may still be busy with a host that was given up on.
    runtime.shutdown_background();
    result
}

/// A time above zero, given as seconds with or without a fraction.
pub(super) fn seconds(text: &str) -> Result<Duration, &'static str> {
    let advice = "give a number of seconds above 0, such as 5 or 0.5";
    let seconds: f64 = text.parse().map_err(|_| advice)?;
    // Beyond some decades a deadline does not fit the clock any more.
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && time < Duration::from_secs(1_000_000_000) => Ok(time),
        _ => Err(advice),
    }
}
