//! `signalbox cluster status`: which node leads, and which nodes are alive.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};

use super::super::arguments::Common;
use super::super::exit::{Exit, Failure};
use super::super::messages::warn;
use super::super::output::{self, Form, escaped, value_or_dash};
use super::super::table::{Column, Rows, write_fields};
use super::Source;
use crate::cluster::node_name;
use signalbox_cluster::admin::{ClusterStatus, FORMAT, Finalization, NodeStatus, status};
use signalbox_cluster::error::AdminError;
use signalbox_cluster::etcd::{Expected, Member};
use signalbox_cluster::keys::Advertised;

/// Show which node leads, and which nodes are alive
///
/// Waits until each node has sent a heartbeat, for a third of the renew deadline at most, or longer if etcd is slow.
/// STATE is "leads", "stands by", "relays" for a node that may not lead, or "silent" if the node sent none. RELAYS is
/// the number of connections of clients that the node relays to the leader. HEARTBEAT is how long ago its last
/// heartbeat was seen. FORMAT is the newest format of records that the node reads. The line record_format says which
/// format leaders write, and whether "signalbox cluster finalize" can raise it. Problems of etcd are reported on
/// standard error.
///
/// With NODE, only the values of that node are shown, one per line, with the addresses that it advertises to clients
/// (advertised) and whether it can be drained with "signalbox cluster drain" (drains). The statistics of its server are
/// in the metrics of its HTTP listener.
///
/// The exit status is 0 if a node leads and no node is silent (with NODE, not that one), 1 if one is silent, 2 if none
/// leads, and 69 if etcd does not answer. The configuration file can be that of any node.
///
/// With --json, the output is one object with the keys cluster, this_node, leader (null if none leads), epoch, commits,
/// records, renew_deadline_ms, record_format, finalize (done, possible, blocked), nodes (node, state, version,
/// record_format, relays, heartbeat_age_ms, addresses, advertised, drains), etcd (member, version, leads,
/// database_bytes, error) and warnings; with NODE, the object of that node in nodes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox cluster status
  signalbox cluster status sb2
  signalbox cluster status --json | jq -r .leader")]
pub(super) struct Arguments {
    /// Show only the values of this node
    node: Option<String>,

    #[command(flatten)]
    source: Source,
}

const KEYS: [&str; 8] =
    ["cluster", "this_node", "leader", "epoch", "commits", "records", "renew_deadline", "record_format"];

const KEYS_OF_NODE: [&str; 9] =
    ["node", "state", "version", "record_format", "relays", "heartbeat", "addresses", "advertised", "drains"];

const NODES: [Column; 7] = [
    Column::word("NODE", 16),
    Column::word("STATE", 9),
    Column::word("VERSION", 10),
    Column::word("FORMAT", 7).under("record_format"),
    Column::word("RELAYS", 6),
    Column::word("HEARTBEAT", 9),
    Column::text("ADDRESSES"),
];

const MEMBERS: [Column; 4] = [
    Column::word("ETCD", 32).under("member"),
    Column::word("VERSION", 8),
    Column::word("LEADS", 6),
    Column::text("DATABASE"),
];

/// The state of a node that has sent no heartbeat.
const SILENT: &str = "silent";

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let mut cluster = arguments.source.open()?;
    let this_node = node_name(&cluster.config)?;
    let found = status(&mut cluster.etcd, &cluster.keys)?;
    if let Some(node) = &arguments.node {
        return show_node(&found, node, common);
    }
    let renew_deadline = std::time::Duration::from_millis(found.format.renew_deadline_ms);
    let expected = Expected::of(&cluster.keys, renew_deadline);
    let (members, warnings) = cluster.etcd.inner_mut().inspect(&expected);
    let warnings: Vec<_> = warnings.iter().map(|warning| format!("etcd: {warning}")).collect();
    let finalization = found.finalization(FORMAT);
    let nodes = nodes(&found);
    let member = |member: &Member| {
        let status = member.status.as_ref().ok();
        json!({
            "member": member.endpoint,
            "version": status.map(|status| &status.version),
            "leads": status.is_some_and(|status| status.is_leader),
            "database_bytes": status.map(|status| status.database_bytes),
            "error": member.status.as_ref().err().map(ToString::to_string),
        })
    };
    let members: Vec<_> = members.iter().map(member).collect();
    let shown = json!({
        "cluster": cluster.config.name,
        "this_node": this_node,
        "leader": found.leader(),
        "epoch": found.leadership.as_ref().map(|leadership| leadership.epoch),
        "commits": found.marker.map(|marker| marker.commit),
        "records": found.records,
        "renew_deadline_ms": found.format.renew_deadline_ms,
        "record_format": found.format.record_format,
        "finalize": match finalization {
            Finalization::Done => "done",
            Finalization::Possible => "possible",
            Finalization::Blocked(_) => "blocked",
        },
        "nodes": nodes,
        "etcd": members,
        "warnings": warnings,
    });
    if common.json {
        writeln!(io::stdout(), "{}", output::json(&shown))?;
    } else {
        print(&shown, &finalization, &nodes, &members)?;
        warnings.iter().for_each(|warning| warn(warning));
    }
    check(found.leader(), &nodes)
}

fn show_node(found: &ClusterStatus, name: &str, common: &Common) -> Result<(), Failure> {
    let nodes = nodes(found);
    let Some(node) = nodes.iter().find(|node| node["node"] == name) else {
        // A `Failure` from the `AdminError` itself would have the exit status of a silent node.
        let error = AdminError::no_node(name, found.nodes.keys());
        return Err(Failure::usage(error.to_string()));
    };
    let mut out = io::stdout().lock();
    if common.json {
        writeln!(out, "{}", output::json(node))?;
    } else {
        write_fields(&mut out, 14, &KEYS_OF_NODE, node, &[("heartbeat", &heartbeat_of(node))])?;
    }
    check(found.leader(), std::slice::from_ref(node))
}

/// Fails, without a message, if no node leads or one of the shown nodes is silent.
fn check(leader: Option<&str>, nodes: &[Value]) -> Result<(), Failure> {
    match leader {
        None => Err(Failure::silent(Exit::Retiring)),
        Some(_) if nodes.iter().any(|node| node["state"] == SILENT) => Err(Failure::silent(Exit::Failure)),
        Some(_) => Ok(()),
    }
}

fn heartbeat_of(node: &Value) -> String {
    value_or_dash(node["heartbeat_age_ms"].as_f64().map(|age_ms| format!("{:.2} s", age_ms / 1000.0)))
}

fn nodes(found: &ClusterStatus) -> Vec<Value> {
    let node = |(name, of): (&String, &NodeStatus)| {
        let Advertised { counters, semaphores } = &of.node.advertised;
        json!({
            "node": name,
            "state": match (found.leader() == Some(name), of.is_alive(), of.node.is_eligible) {
                (true, _, _) => "leads",
                (false, true, true) => "stands by",
                (false, true, false) => "relays",
                (false, false, _) => SILENT,
            },
            "version": of.node.version,
            "record_format": of.node.record_format,
            "relays": of.relays,
            "heartbeat_age_ms": of.heartbeat_age.and_then(|age| u64::try_from(age.as_millis()).ok()),
            "addresses": of.node.addresses,
            "advertised": counters.iter().chain(semaphores).collect::<Vec<_>>(),
            "drains": of.node.drains,
        })
    };
    found.nodes.iter().map(node).collect()
}

/// Returns the comment in the line of the record format.
fn comment(finalization: &Finalization) -> String {
    match finalization {
        Finalization::Done => String::new(),
        Finalization::Possible => {
            format!(
                " (every node reads format {FORMAT}: complete the upgrade with \"signalbox cluster finalize\")"
            )
        }
        Finalization::Blocked(nodes) if nodes.is_empty() => {
            format!(" (format {FORMAT} needs nodes that read it, and there are none)")
        }
        Finalization::Blocked(nodes) => {
            let nodes: Vec<_> = nodes.iter().map(|node| format!("\"{}\"", node.node)).collect();
            format!(" (format {FORMAT} needs an upgrade of {})", nodes.join(", "))
        }
    }
}

fn print(shown: &Value, finalization: &Finalization, nodes: &[Value], members: &[Value]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let renew_deadline_s = shown["renew_deadline_ms"].as_f64().unwrap_or_default() / 1000.0;
    let given: [(&str, &str); 2] = [
        ("renew_deadline", &format!("{renew_deadline_s} s")),
        ("record_format", &format!("{}{}", shown["record_format"], comment(finalization))),
    ];
    // Without a leader, some values are missing.
    let none = ["leader", "epoch", "commits"].into_iter().filter(|key| shown[*key].is_null());
    let given: Vec<_> = none.map(|key| (key, "none")).chain(given).collect();
    write_fields(&mut out, 14, &KEYS, shown, &given)?;
    writeln!(out)?;
    let mut rows = Rows::new(Form::Table { has_header: true }, &NODES, &mut out);
    nodes.iter().try_for_each(|node| rows.push_with(node, &[("HEARTBEAT", &heartbeat_of(node))]))?;
    rows.finish()?;
    writeln!(out)?;
    let mut rows = Rows::new(Form::Table { has_header: true }, &MEMBERS, &mut out);
    for member in members {
        let database = match member["error"].as_str() {
            Some(error) => escaped(error.as_bytes()),
            None => format!("{} bytes", member["database_bytes"]),
        };
        rows.push_with(member, &[("DATABASE", &database)])?;
    }
    rows.finish()
}
