//! `signalbox cluster release`: releases the leadership of a node whose process has ended.

use std::path::Path;
use std::{env, fs, io};

use clap::Args;
use serde_json::json;

use super::super::arguments::Common;
use super::super::exit::Failure;
use super::Source;
use crate::cluster::node_name;
use signalbox_cluster::admin::{Release, release};

/// An environment variable that systemd sets only for ExecStop= and ExecStopPost=.
const SERVICE_RESULT: &str = "SERVICE_RESULT";

/// An environment variable that systemd sets for ExecStopPost= only after the main process has ended, when the sockets of
/// that process are closed.
const EXIT_CODE: &str = "EXIT_CODE";

/// The root of the control groups, if they are of version 2.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Remove this node from the cluster, because its process has ended
///
/// If the node led, another node takes over at once, without waiting until the leadership expires.
///
/// The systemd unit runs this command in ExecStopPost=. There it removes only that run of the service, and only if
/// systemd reports that the main process has ended (EXIT_CODE) and the control group of the service has no other
/// process; otherwise the other nodes wait until the leadership expires. Anywhere else it needs --process-has-ended: if
/// the process still exists, even if it is only suspended, two nodes may serve clients for a while, and clients may
/// hold more than the capacity of a semaphore. The command refuses a node that sends heartbeats.
///
/// With --json, the output is one object with the keys node and result (released, left, nothing).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ExecStopPost=-/usr/bin/signalbox cluster release --config /etc/signalbox.toml
  signalbox cluster release --process-has-ended")]
pub(super) struct Arguments {
    #[command(flatten)]
    source: Source,

    /// Confirm that this node has no process, not even a suspended one
    #[arg(long)]
    process_has_ended: bool,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let is_for_systemd = env::var_os(SERVICE_RESULT).is_some();
    let mut cluster = match arguments.source.open_if_enabled()? {
        Some(cluster) => cluster,
        // The unit runs this command even if there is no cluster.
        None if is_for_systemd => return Ok(()),
        None => return arguments.source.open().map(drop),
    };
    let node = node_name(&cluster.config)?;
    let invocation = match env::var("INVOCATION_ID") {
        _ if arguments.process_has_ended => None,
        Ok(invocation) if is_for_systemd && !invocation.is_empty() => {
            if !has_service_ended().unwrap_or(false) {
                return Err(Failure::refused(format!(
                    "the service of node \"{node}\" may still have a process, so it is not removed; other nodes wait until its \
                     leadership expires"
                )));
            }
            Some(invocation)
        }
        _ => {
            return Err(Failure::usage(format!(
                "it is not known whether the process of node \"{node}\" has ended; if it has, give --process-has-ended"
            )));
        }
    };
    let (result, sentence) = match release(&mut cluster.etcd, &cluster.keys, &node, invocation.as_deref())? {
        Release::Released => ("released", format!("node \"{node}\" led, and another node may lead now")),
        Release::Left => ("left", format!("node \"{node}\" did not lead, and has left the cluster")),
        Release::Nothing => ("nothing", format!("node \"{node}\" was not part of the cluster")),
    };
    common.print(&json!({ "node": node, "result": result }), sentence)
}

/// Returns whether systemd reports the end of the main process, and this process is the only one of the service. Some time
/// after SIGKILL, systemd runs ExecStopPost= even if the kernel has not ended a process yet, and that process may have
/// open connections.
fn has_service_ended() -> io::Result<bool> {
    if env::var_os(EXIT_CODE).is_none_or(|code| code.is_empty()) {
        return Ok(false);
    }
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let Some(group) = group_of_service(&own) else { return Ok(false) };
    let processes = fs::read_to_string(Path::new(CONTROL_GROUPS).join(group).join("cgroup.procs"))?;
    Ok(is_alone(&processes, std::process::id()))
}

/// Returns the control group of a service, relative to [`CONTROL_GROUPS`], from the list of the groups of a process
/// (`/proc/self/cgroup`); `None` if the process is in any other group, even one below that of a service.
fn group_of_service(groups: &str) -> Option<&str> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    group.ends_with(".service").then_some(group)
}

fn is_alone(processes: &str, own: u32) -> bool {
    processes.lines().eq([own.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_ended_if_its_control_group_has_only_this_process() {
        assert_eq!(
            group_of_service("0::/system.slice/signalbox.service\n"),
            Some("system.slice/signalbox.service")
        );
        for other in [
            "",
            "0::/\n",
            "0::/user.slice/x.scope\n",
            "0::/x.service/.control\n",
            "1:name=systemd:/x.service\n",
        ] {
            assert_eq!(group_of_service(other), None, "{other:?}");
        }
        assert!(is_alone("17\n", 17));
        for others in ["", "16\n", "16\n17\n", "0\n17\n"] {
            assert!(!is_alone(others, 17), "{others:?}");
        }
    }
}
