//! `signalbox cluster release`: gives up the leadership of a node whose process has ended.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::exit::{Exit, Failure};
use super::{Source, print};
use crate::cluster::admin::{Release, release};
use crate::cluster::configured::node_name;

/// A variable that systemd sets for ExecStopPost= only.
const SERVICE_RESULT: &str = "SERVICE_RESULT";

const LONG: &str = "\
Give up what this node has of the cluster, because its process has ended

If it led, another node takes over at once, and does not wait until the leadership has ended by itself.

The systemd unit runs this command in ExecStopPost=, when the last process of the service has ended. There it gives up only \
what that run of the service had. Anywhere else it needs --process-has-ended: if the process still runs, or is only \
stopped, two nodes may serve clients for a while, and more may be held than a semaphore has. A node that sends heartbeats is refused.";

const EXAMPLES: &str = "\
Examples:
  ExecStopPost=-/usr/bin/signalbox cluster release --config /etc/signalbox.toml
  signalbox cluster release --process-has-ended";

/// Give up what this node has of the cluster, because its process has ended
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: Source,

    /// Confirm that no process of this node is running, not even a stopped one
    #[arg(long)]
    process_has_ended: bool,

    /// Print one JSON object with the keys node and result (released, left, nothing)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let is_for_systemd = std::env::var_os(SERVICE_RESULT).is_some();
    let mut cluster = match arguments.source.open_if_enabled()? {
        Some(cluster) => cluster,
        // The unit is the same without a cluster.
        None if is_for_systemd => return Ok(Exit::Success.into()),
        None => return arguments.source.open().map(|_| Exit::Success.into()),
    };
    let node = node_name(&cluster.config)?;
    let invocation = match std::env::var("INVOCATION_ID") {
        _ if arguments.process_has_ended => None,
        Ok(invocation) if is_for_systemd && !invocation.is_empty() => Some(invocation),
        _ => {
            let message = format!(
                "whether the process of node \"{node}\" has ended is not known; if it has, give --process-has-ended"
            );
            return Err(Failure::new(Exit::Usage, message));
        }
    };
    let (result, sentence) = match release(&mut cluster.etcd, &cluster.keys, &node, invocation.as_deref())? {
        Release::Released => ("released", format!("node \"{node}\" led, and another node may lead now")),
        Release::Left => ("left", format!("node \"{node}\" did not lead, and has left the cluster")),
        Release::Nothing => ("nothing", format!("node \"{node}\" had nothing to give up")),
    };
    print(arguments.json, &json!({ "node": node, "result": result }), &sentence)
}
