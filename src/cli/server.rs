//! The connection options of the client subcommands: server, namespace and timeout.

use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::time::time;
use crate::client::{Address, COUNTER_PORT, Client, Direct, Error, Namespace, PlainClient, SEMAPHORE_PORT};

/// The options of all client subcommands.
#[derive(Debug, Args)]
pub(super) struct Server {
    /// Server to connect to; the default port is 11215, with --semaphore 11216
    #[arg(
        long = "server",
        value_name = "HOST[:PORT]",
        env = "SIGNALBOX_SERVER",
        default_value = "127.0.0.1"
    )]
    address: Address,

    /// Use semaphores instead of counters
    #[arg(long)]
    semaphore: bool,

    /// How long to wait for the connection and for each response, in seconds or with a unit (0.5, 30s, 5m, 1h)
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = time)]
    timeout: Duration,
}

impl Server {
    /// The address, with the default port if none was given.
    pub(super) fn address(&self) -> Address {
        self.address.clone().or_port(if self.semaphore { SEMAPHORE_PORT } else { COUNTER_PORT })
    }

    /// How long to wait for the connection and for each response.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What a name refers to: a counter or a semaphore.
    pub(super) fn kind(&self) -> &'static str {
        if self.semaphore { "semaphore" } else { "counter" }
    }

    /// The namespace of the names in the request.
    pub(super) fn namespace(&self) -> Namespace {
        if self.semaphore { Namespace::Semaphores } else { Namespace::Counters }
    }

    /// The failure for a name that does not exist.
    pub(super) fn not_found(&self, name: &Name) -> Failure {
        let advice = match self.namespace() {
            Namespace::Counters => "check the name; the first request that acquires a counter creates it",
            Namespace::Semaphores => {
                "check the name; \"signalbox declare\" or the first request that acquires a semaphore creates it"
            }
        };
        Failure::new(Exit::Failure, format!("{} {name} does not exist; {advice}", self.kind()))
    }

    /// Connects for operations that only signalbox's server supports.
    pub(super) async fn direct(&self) -> Result<Direct, Failure> {
        let client = Client::builder(self.address()).label(label("signalbox")).build()?;
        Ok(self.answer(client.direct()).await??)
    }

    /// Connects for plain operations, which any server of the protocol supports.
    pub(super) async fn connect(&self) -> Result<PlainClient, Failure> {
        Ok(PlainClient::connect_within(&self.address(), self.timeout).await?)
    }

    /// Waits for a response. The outer error is the failure that none came in time.
    pub(super) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<Result<T, Error>, Failure> {
        tokio::time::timeout(self.timeout, call).await.map_err(|_| {
            let message = format!(
                "{} did not respond within {} s; check the server, or raise --timeout",
                self.address(),
                self.timeout.as_secs_f64()
            );
            Failure::new(Exit::Unavailable, message)
        })
    }
}

/// The label of this process in lists of holders and waiters. It includes the machine, because a session that was handed
/// over is not connected and has no address. It excludes the command's arguments, because all clients can read labels.
pub(super) fn label(task: &str) -> Vec<u8> {
    /// The longest label that the protocol allows.
    const BYTES_MAX: usize = 255;
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut label = format!("{} {task}", machine.trim()).trim_start().as_bytes().to_vec();
    label.truncate(BYTES_MAX);
    label
}

/// The message for an administrative request that the server does not permit to this client.
pub(super) fn permission_denied(what_failed: &str) -> String {
    format!(
        "{what_failed}: permission denied; send the request from the server's machine, or from an address in admin_from \
         of its configuration"
    )
}

/// Runs the async part of a subcommand. One thread is enough for one connection and one terminal.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(
            Exit::Failure,
            format!("cannot start the async runtime: {error}; check the resource limits of this process"),
        )
    })?;
    let result = runtime.block_on(future);
    // The resolver's thread may still be busy with a host whose lookup timed out.
    runtime.shutdown_background();
    result
}
