//! `signalbox cluster`: the commands for operators of a cluster. They read and write etcd directly, so they work while no node
//! serves clients.

mod drain;
mod finalize;
mod forget;
mod release;
mod status;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::exit::{Exit, Failure};
use super::output::json;
use crate::cluster::client;
use crate::config::{ClusterConfig, Loaded};
use signalbox_cluster::coordinator::Persistent;
use signalbox_cluster::error::AdminError;
use signalbox_cluster::etcd::{EtcdClient, SettingsError};
use signalbox_cluster::keys::Keys;

/// How long one call to one member of etcd may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

const LONG: &str = "\
Show and repair a cluster

Several servers with the section [cluster] in their configuration are the nodes of a cluster: one leads and serves clients, \
the others stand by. These commands read and write the cluster's keys in etcd, with the same configuration file as \
\"signalbox serve\". They work while no node is running.";

const EXAMPLES: &str = "\
Examples:
  signalbox cluster status
  signalbox cluster status --config /etc/signalbox.toml --json
  signalbox cluster drain node-3
  signalbox cluster finalize
  signalbox cluster forget node-3";

/// Show and repair a cluster
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Status(status::Arguments),
    Drain(drain::Arguments),
    Finalize(finalize::Arguments),
    Release(release::Arguments),
    Forget(forget::Arguments),
}

/// The cluster of a command.
#[derive(Debug, Args)]
pub(super) struct Source {
    /// Configuration file of this node, with the section [cluster]
    #[arg(long, value_name = "FILE", default_value = "/etc/signalbox.toml")]
    config: PathBuf,
}

/// The cluster of a configuration.
pub(super) struct Cluster {
    pub(super) config: ClusterConfig,
    pub(super) keys: Keys,
    pub(super) etcd: Persistent<EtcdClient>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        Action::Status(arguments) => status::run(arguments),
        Action::Drain(arguments) => drain::run(arguments),
        Action::Finalize(arguments) => finalize::run(arguments),
        Action::Release(arguments) => release::run(arguments),
        Action::Forget(arguments) => forget::run(arguments),
    }
}

/// Prints the result of a command: a JSON object or a sentence.
fn print(wants_json: bool, object: &Value, sentence: &str) -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout();
    if wants_json {
        writeln!(out, "{}", json(object))?
    } else {
        writeln!(out, "{sentence}")?
    }
    Ok(Exit::Success.into())
}

impl Source {
    /// The connection to the cluster's etcd. A server that is not a node of a cluster is an error.
    pub(super) fn open(&self) -> Result<Cluster, Failure> {
        self.open_if_enabled()?.ok_or_else(|| {
            let message = format!(
                "{}: cluster.etcd is not set, so this server is not a node of a cluster",
                self.config.display()
            );
            Failure::new(Exit::Configuration, message)
        })
    }

    fn open_if_enabled(&self) -> Result<Option<Cluster>, Failure> {
        let invalid =
            |error: crate::config::ConfigError| Failure::new(Exit::Configuration, error.to_string());
        let loaded = Loaded::read(Some(&self.config), std::env::vars_os()).map_err(invalid)?;
        loaded.validate().map_err(invalid)?;
        let config = loaded.config.cluster;
        if !config.is_enabled() {
            return Ok(None);
        }
        let etcd = Persistent::new(client(&config, REQUEST_TIMEOUT)?, config.etcd.len());
        Ok(Some(Cluster { keys: Keys::new(&config.name), config, etcd }))
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::new(Exit::Configuration, format!("cluster: {error}"))
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        let exit = match error {
            AdminError::Call(_) => Exit::Unavailable,
            AdminError::Value(_) | AdminError::Layout(_) | AdminError::Newer { .. } => Exit::Data,
            // Not 1: for "status", that is another leader.
            AdminError::NoCluster(_) => Exit::Configuration,
            _ => Exit::Failure,
        };
        Self::new(exit, error.to_string())
    }
}
