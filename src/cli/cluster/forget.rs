//! `signalbox cluster forget`: removes a node that will not come back.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::exit::Failure;
use super::{Source, print};
use signalbox_cluster::admin::forget;

const LONG: &str = "\
Remove a node that will not come back

A node that stops in an orderly way leaves the cluster by itself. A node whose machine is lost stays in \"signalbox \
cluster status\" as silent, and does little harm. This command removes it. A node that sends heartbeats, or that leads, is not \
removed. If the node relays clients, the command first watches it for the lease duration, after which it has disconnected them.";

const EXAMPLES: &str = "\
Examples:
  signalbox cluster forget node-3";

/// Remove a node that will not come back
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Name of the node, as in "signalbox cluster status"
    #[arg(value_name = "NODE")]
    node: String,

    #[command(flatten)]
    source: Source,

    /// Print one JSON object with the key forgotten
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cluster = arguments.source.open()?;
    let node = arguments.node.as_str();
    forget(&mut cluster.etcd, &cluster.keys, node)?;
    let sentence = format!("node \"{node}\" is no longer part of the cluster");
    print(arguments.json, &json!({ "forgotten": node }), &sentence)
}
