//! `signalbox cluster drain`: hands over the leadership of a node, and stops it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::super::exit::Failure;
use super::super::time::time;
use super::{Source, print};
use signalbox_cluster::drain::{Drained, drain};

const LONG: &str = "\
Hand over the leadership of a node, then stop it

A node that leads chooses its successor. Then it tells clients where to connect next, answers the requests that it has read, and \
ends; the successor leads at once, and reads all records. Clients with a lease notice a short pause and lose nothing. Everything \
that clients hold without a lease is released, as with every stop. A node that stands by closes the connections that it relays, \
and ends.

The command waits until the node has left the cluster. The process ends with status 0, so systemd does not start it again; \
\"systemctl start signalbox\" has it join as a standby. If no other node can lead, the node refuses, and continues. The \
command does not wait for a node that no longer sends heartbeats.";

const EXAMPLES: &str = "\
Examples:
  signalbox cluster drain sb1
  signalbox cluster drain sb1 --to sb2";

/// Hand over the leadership of a node, then stop it
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
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

    /// Print one JSON object with the keys drained, leader and epoch
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cluster = arguments.source.open()?;
    let node = arguments.node.as_str();
    let drained = drain(&mut cluster.etcd, &cluster.keys, node, arguments.to.as_deref(), arguments.timeout)?;
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
    print(arguments.json, &json!({ "drained": node, "leader": leader, "epoch": epoch }), &sentence)
}
