//! `signalbox cluster finalize`: raises the format of records, after an upgrade.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::exit::Failure;
use super::{Source, print};
use signalbox_cluster::admin::{FORMAT, Finalized, finalize};

const LONG: &str = "\
Complete an upgrade: let leaders write the newest format of records

After an upgrade, leaders continue to write the old format of records, so that the nodes can be downgraded. After this command, \
leaders write the newest format that this version knows, from the next takeover on. A version that does not read this format can \
no longer join.

The command refuses while a node does not read the new format, even a silent one: upgrade it, or remove it with \
\"signalbox cluster forget\". \"signalbox cluster status\" says whether the upgrade can be completed.";

const EXAMPLES: &str = "\
Examples:
  signalbox cluster finalize";

/// Complete an upgrade: let leaders write the newest format of records
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: Source,

    /// Print one JSON object with the keys from and to: the formats before and after
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cluster = arguments.source.open()?;
    let Finalized { from, to } = finalize(&mut cluster.etcd, &cluster.keys, FORMAT)?;
    let sentence = match from == to {
        true => {
            format!("nothing to do: the cluster writes format {to} of records, the newest of this version")
        }
        false => format!(
            "leaders write format {to} of records in place of format {from}, from the next takeover on; versions that do not \
             read it can no longer join"
        ),
    };
    print(arguments.json, &json!({ "from": from, "to": to }), &sentence)
}
