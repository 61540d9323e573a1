//! Which server the client subcommands ask, and how long they wait for it.

use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::time::time;
use crate::client::{Address, COUNTER_PORT, Client, Direct, Error, Namespace, PlainClient, SEMAPHORE_PORT};

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

    /// How long to wait for a connection and for each answer, in seconds or with a unit (0.5, 30s, 5m, 1h)
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = time)]
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

    /// The kind of name that is asked for.
    pub(super) fn namespace(&self) -> Namespace {
        if self.semaphore { Namespace::Semaphores } else { Namespace::Counters }
    }

    /// That there is no such name.
    pub(super) fn not_found(&self, name: &Name) -> Failure {
        let message =
            format!("there is no {} named {name}; whoever acquires of it first makes it", self.kind());
        Failure::new(Exit::Failure, message)
    }

    /// A connection for operations that only signalbox's own server has.
    pub(super) async fn direct(&self) -> Result<Direct, Failure> {
        let client = Client::builder(self.address()).label(label("signalbox")).build()?;
        Ok(self.answer(client.direct()).await??)
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

/// What this process is called where somebody asks who holds or waits. Its machine is in it, since the address of a
/// session that was handed over is not told; its arguments are not, as everybody may read a label.
pub(super) fn label(task: &str) -> Vec<u8> {
    /// The longest that the wire takes.
    const BYTES_MAX: usize = 255;
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut label = format!("{} {task}", machine.trim()).trim_start().as_bytes().to_vec();
    label.truncate(BYTES_MAX);
    label
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
