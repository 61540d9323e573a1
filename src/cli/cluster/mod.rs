//! `signalbox cluster`: the commands for operators of a cluster. They read and write etcd directly, so they work while no node
//! serves clients.

mod release;
mod status;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::values::time;
use crate::cluster::client;
use crate::config::{ClusterConfig, Loaded};
use signalbox_cluster::admin::{self, FORMAT, Finalized};
use signalbox_cluster::coordinator::Persistent;
use signalbox_cluster::drain::{self, Drained};
use signalbox_cluster::error::AdminError;
use signalbox_cluster::etcd::{EtcdClient, SettingsError};
use signalbox_cluster::keys::Keys;

/// How long one call to one member of etcd may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Show and repair a cluster
///
/// Several servers with the section [cluster] in their configuration are the nodes of a cluster: one leads and serves
/// clients, the others stand by. These commands read and write the cluster's keys in etcd, with the same configuration file
/// as "signalbox serve". They work while no node is running.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox cluster status
  signalbox cluster status --config /etc/signalbox.toml --json
  signalbox cluster drain node-3
  signalbox cluster finalize
  signalbox cluster forget node-3")]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Status(status::Arguments),
    Drain(Drain),
    /// Complete an upgrade: let leaders write the newest format of records
    ///
    /// After an upgrade, leaders continue to write the old format of records, so that the nodes can be downgraded. After this
    /// command, leaders write the newest format that this version knows, from the next takeover on. A version that does not
    /// read this format can no longer join.
    ///
    /// The command fails while a node, even a silent one, does not read the new format: upgrade the node, or remove it
    /// with "signalbox cluster forget". "signalbox cluster status" says whether the upgrade can be completed.
    ///
    /// With --json, the output is one object with the keys from and to: the formats before and after.
    #[command(after_help = "Examples:\n  signalbox cluster finalize")]
    Finalize(Source),
    Release(release::Arguments),
    Forget(Forget),
}

/// Hand over the leadership of a node, then stop it
///
/// A node that leads chooses its successor. Then it tells clients where to connect next, answers the requests that it has
/// read, and ends; the successor leads at once, and reads all records. Clients with a lease notice a short pause and lose
/// nothing. Everything that clients hold without a lease is released, as with every stop. A node that stands by closes the
/// connections that it relays, and ends.
///
/// The command waits until the node has left the cluster. The process ends with status 0, so systemd does not start it
/// again; "systemctl start signalbox" makes it join as a standby. If no other node can lead, the node refuses, and
/// continues. The command does not wait for a node that no longer sends heartbeats.
///
/// With --json, the output is one object with the keys drained, leader and epoch.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox cluster drain sb1
  signalbox cluster drain sb1 --to sb2")]
struct Drain {
    /// Name of the node, as in "signalbox cluster status"
    #[arg(value_name = "NODE")]
    node: String,

    /// Node that leads next; by default one of the newest version
    #[arg(long, value_name = "NODE")]
    to: Option<String>,

    /// Give up after this time, and withdraw the request
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = time)]
    timeout: Duration,

    #[command(flatten)]
    source: Source,
}

/// Remove a node that will not come back
///
/// A node that stops in an orderly way leaves the cluster by itself. A node whose machine is lost stays in "signalbox
/// cluster status" as silent, and does little harm. This command removes it. A node that sends heartbeats, or that leads,
/// is not removed. If the node relays clients, the command first watches it for the lease duration, after which it has
/// disconnected them.
///
/// With --json, the output is one object with the key forgotten.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox cluster forget node-3")]
struct Forget {
    /// Name of the node, as in "signalbox cluster status"
    #[arg(value_name = "NODE")]
    node: String,

    #[command(flatten)]
    source: Source,
}

/// The option that selects a command's cluster.
#[derive(Debug, Args)]
pub(super) struct Source {
    /// Configuration file of this node, with the section [cluster]
    #[arg(long, value_name = "FILE", default_value = "/etc/signalbox.toml")]
    config: PathBuf,
}

/// A cluster, its configuration and the client of its etcd.
pub(super) struct Cluster {
    pub(super) config: ClusterConfig,
    pub(super) keys: Keys,
    pub(super) etcd: Persistent<EtcdClient>,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    match &arguments.action {
        Action::Status(arguments) => status::run(arguments, common),
        Action::Drain(arguments) => drain(arguments, common),
        Action::Finalize(source) => finalize(source, common),
        Action::Release(arguments) => release::run(arguments, common),
        Action::Forget(Forget { node, source }) => {
            let mut cluster = source.open()?;
            admin::forget(&mut cluster.etcd, &cluster.keys, node)?;
            let sentence = format_args!("node \"{node}\" is no longer part of the cluster");
            common.print(&json!({ "forgotten": node }), sentence)
        }
    }
}

fn drain(arguments: &Drain, common: &Common) -> Result<(), Failure> {
    let mut cluster = arguments.source.open()?;
    let node = arguments.node.as_str();
    let drained =
        drain::drain(&mut cluster.etcd, &cluster.keys, node, arguments.to.as_deref(), arguments.timeout)?;
    let Drained { has_led, leader } = &drained;
    let sentence = match leader {
        Some((next, epoch)) => {
            format!("node \"{node}\" has left the cluster; node \"{next}\" leads in epoch {epoch}")
        }
        None if *has_led => {
            format!(
                "node \"{node}\" has left the cluster; no node leads yet: see \"signalbox cluster status\""
            )
        }
        None => format!("node \"{node}\" has left the cluster; it did not lead"),
    };
    let (leader, epoch) = leader.as_ref().map(|(name, epoch)| (name, epoch)).unzip();
    common.print(&json!({ "drained": node, "leader": leader, "epoch": epoch }), sentence)
}

fn finalize(source: &Source, common: &Common) -> Result<(), Failure> {
    let mut cluster = source.open()?;
    let Finalized { from, to } = admin::finalize(&mut cluster.etcd, &cluster.keys, FORMAT)?;
    let sentence = match from == to {
        true => {
            format!("nothing to do: the cluster writes format {to} of records, the newest of this version")
        }
        false => format!(
            "leaders write format {to} of records in place of format {from}, from the next takeover on; versions that do not \
             read it can no longer join"
        ),
    };
    common.print(&json!({ "from": from, "to": to }), sentence)
}

impl Source {
    /// Opens the cluster of the configuration. Fails if the server is not a node of a cluster.
    pub(super) fn open(&self) -> Result<Cluster, Failure> {
        self.open_if_enabled()?.ok_or_else(|| {
            Failure::new(
                Exit::Configuration,
                format!(
                    "{}: cluster.etcd is not set, so this server is not a node of a cluster",
                    self.config.display()
                ),
            )
        })
    }

    fn open_if_enabled(&self) -> Result<Option<Cluster>, Failure> {
        let loaded = Loaded::read(Some(&self.config), std::env::vars_os())?;
        loaded.validate()?;
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
            // Not 1, with which "status" reports a silent node.
            AdminError::NoCluster(_) => Exit::Configuration,
            _ => Exit::Failure,
        };
        Self::new(exit, error.to_string())
    }
}
