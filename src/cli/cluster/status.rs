//! `signalbox cluster status`: which node leads, and which nodes are alive.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::super::exit::{Exit, Failure, warn};
use super::super::output::{self, NOTHING, harmless, json, or_nothing};
use super::Source;
use crate::cluster::node_name;
use signalbox_cluster::admin::{ClusterStatus, FORMAT, Finalization, status};
use signalbox_cluster::error::AdminError;
use signalbox_cluster::etcd::Expected;
use signalbox_cluster::keys::Advertised;

/// Show which node leads, and which nodes are alive
///
/// Watches the nodes until each has sent a heartbeat, for a third of the renew deadline at most. STATE is "leads", "stands
/// by", "relays" for a node that may not lead, or "silent" if the node sent none. RELAYS is the number of connections of
/// clients that the node relays to the leader. HEARTBEAT is how long ago its last heartbeat was seen. FORMAT is the newest
/// format of records that the node reads. The line record_format says which format leaders write, and whether "signalbox
/// cluster finalize" can raise it. Problems of etcd are reported on standard error.
///
/// With NODE, only the figures of that node are shown, one to a line, with the addresses that it advertises to clients
/// (advertised) and whether it can be drained with "signalbox cluster drain" (drains). The statistics of its server are in
/// the metrics of its HTTP listener.
///
/// The exit status is 0 if a node leads and no node is silent, or not NODE, 1 if one is silent, 2 if none leads, and 69 if
/// etcd does not answer. It does not depend on which node the configuration file is of.
///
/// With --json, the output is one object with the keys cluster, this_node, leader (null if none leads), epoch, commits, records,
/// renew_deadline_ms, record_format, finalize (done, possible, blocked), nodes (node, state, version, record_format, relays,
/// heartbeat_age_ms, addresses, advertised, drains), etcd (member, version, leads, database_bytes, error) and warnings; with NODE,
/// its object of nodes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox cluster status
  signalbox cluster status sb2
  signalbox cluster status --json | jq -r .leader")]
pub(super) struct Arguments {
    /// Show the figures of this node alone
    node: Option<String>,

    #[command(flatten)]
    source: Source,
}

/// The state of a node that has sent no heartbeat.
const SILENT: &str = "silent";

/// A cluster in JSON.
#[derive(Serialize)]
struct Shown<'a> {
    cluster: &'a str,
    this_node: &'a str,
    leader: Option<&'a str>,
    epoch: Option<u32>,
    commits: Option<u64>,
    records: u64,
    renew_deadline_ms: u64,
    record_format: u32,
    finalize: &'static str,
    nodes: Vec<ShownNode<'a>>,
    etcd: Vec<ShownMember>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ShownNode<'a> {
    node: &'a str,
    state: &'static str,
    version: &'a str,
    record_format: u32,
    relays: Option<u32>,
    heartbeat_age_ms: Option<u64>,
    addresses: &'a [String],
    advertised: Vec<&'a str>,
    drains: bool,
}

#[derive(Serialize)]
struct ShownMember {
    member: String,
    version: Option<String>,
    leads: bool,
    database_bytes: Option<u64>,
    error: Option<String>,
}

pub(super) fn run(arguments: &Arguments, wants_json: bool) -> Result<ExitCode, Failure> {
    let mut cluster = arguments.source.open()?;
    let this_node = node_name(&cluster.config)?;
    let found = status(&mut cluster.etcd, &cluster.keys)?;
    if let Some(node) = &arguments.node {
        return show_node(&found, node, wants_json);
    }
    let renew_deadline = std::time::Duration::from_millis(found.format.renew_deadline_ms);
    let expected = Expected::of(&cluster.keys, renew_deadline);
    let (members, warnings) = cluster.etcd.inner_mut().inspect(&expected);
    let warnings: Vec<_> = warnings.iter().map(|warning| format!("etcd: {warning}")).collect();
    let leader = found.leader();
    let finalization = found.finalization(FORMAT);
    let shown = Shown {
        cluster: &cluster.config.name,
        this_node: &this_node,
        leader,
        epoch: found.leadership.as_ref().map(|leadership| leadership.epoch),
        commits: found.marker.map(|marker| marker.commit),
        records: found.records,
        renew_deadline_ms: found.format.renew_deadline_ms,
        record_format: found.format.record_format,
        finalize: match finalization {
            Finalization::Done => "done",
            Finalization::Possible => "possible",
            Finalization::Blocked(_) => "blocked",
        },
        nodes: nodes(&found),
        etcd: members
            .into_iter()
            .map(|member| {
                let (status, error) = match member.status {
                    Ok(status) => (Some(status), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                ShownMember {
                    member: member.endpoint,
                    leads: status.as_ref().is_some_and(|status| status.is_leader),
                    database_bytes: status.as_ref().map(|status| status.database_bytes),
                    version: status.map(|status| status.version),
                    error,
                }
            })
            .collect(),
        warnings,
    };
    if wants_json {
        writeln!(io::stdout(), "{}", json(&shown))?;
    } else {
        print(&shown, &finalization)?;
        shown.warnings.iter().for_each(|warning| warn(warning));
    }
    Ok(exit(found.leader(), &shown.nodes).into())
}

/// Shows the figures of one node.
fn show_node(found: &ClusterStatus, name: &str, wants_json: bool) -> Result<ExitCode, Failure> {
    let nodes = nodes(found);
    let Some(node) = nodes.iter().find(|node| node.node == name) else {
        // `AdminError` would have the exit status of a silent node.
        let error = AdminError::no_node(name, found.nodes.keys());
        return Err(Failure::usage(error.to_string()));
    };
    let mut out = io::stdout().lock();
    if wants_json {
        writeln!(out, "{}", json(node))?;
    } else {
        let figures = [
            ("node", node.node.to_owned()),
            ("state", node.state.to_owned()),
            ("version", node.version.to_owned()),
            ("record_format", node.record_format.to_string()),
            ("relays", relays_of(node)),
            ("heartbeat", heartbeat_of(node)),
            ("addresses", node.addresses.join(" ")),
            ("advertised", or_nothing(node.advertised.join(" ").as_bytes())),
            ("drains", if node.drains { "yes" } else { "no" }.to_owned()),
        ];
        output::figures(&mut out, 14, &figures)?;
    }
    Ok(exit(found.leader(), std::slice::from_ref(node)).into())
}

/// Whether the cluster serves, and the nodes that are shown are well.
fn exit(leader: Option<&str>, nodes: &[ShownNode<'_>]) -> Exit {
    match leader {
        None => Exit::Retiring,
        Some(_) if nodes.iter().any(|node| node.state == SILENT) => Exit::Failure,
        Some(_) => Exit::Success,
    }
}

fn relays_of(node: &ShownNode<'_>) -> String {
    node.relays.map_or_else(|| NOTHING.to_owned(), |relays| relays.to_string())
}

fn heartbeat_of(node: &ShownNode<'_>) -> String {
    let seconds = |age| format!("{:.2} s", age as f64 / 1000.0);
    node.heartbeat_age_ms.map_or_else(|| NOTHING.to_owned(), seconds)
}

fn nodes(found: &ClusterStatus) -> Vec<ShownNode<'_>> {
    let leader = found.leader();
    found
        .nodes
        .iter()
        .map(|(name, of)| {
            let Advertised { counters, semaphores } = &of.node.advertised;
            ShownNode {
                node: name,
                state: match (leader == Some(name.as_str()), of.is_alive(), of.node.is_eligible) {
                    (true, _, _) => "leads",
                    (false, true, true) => "stands by",
                    (false, true, false) => "relays",
                    (false, false, _) => SILENT,
                },
                version: &of.node.version,
                record_format: of.node.record_format,
                relays: of.relays,
                heartbeat_age_ms: of.heartbeat_age.and_then(|age| u64::try_from(age.as_millis()).ok()),
                addresses: &of.node.addresses,
                advertised: counters.iter().chain(semaphores).map(String::as_str).collect(),
                drains: of.node.drains,
            }
        })
        .collect()
}

/// The comment in the line of the record format.
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

fn print(shown: &Shown<'_>, finalization: &Finalization) -> io::Result<()> {
    let number = |number: Option<u64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
    let mut out = io::stdout().lock();
    let figures = [
        ("cluster", shown.cluster.to_owned()),
        ("this_node", shown.this_node.to_owned()),
        ("leader", shown.leader.unwrap_or("none").to_owned()),
        ("epoch", number(shown.epoch.map(u64::from))),
        ("commits", number(shown.commits)),
        ("records", shown.records.to_string()),
        ("renew_deadline", format!("{} s", shown.renew_deadline_ms as f64 / 1000.0)),
        ("record_format", format!("{}{}", shown.record_format, comment(finalization))),
    ];
    output::figures(&mut out, 14, &figures)?;
    writeln!(
        out,
        "\n{:<16}  {:<9}  {:<10}  {:<7}  {:<6}  {:<9}  ADDRESSES",
        "NODE", "STATE", "VERSION", "FORMAT", "RELAYS", "HEARTBEAT"
    )?;
    for node in &shown.nodes {
        let line = format!(
            "{:<16}  {:<9}  {:<10}  {:<7}  {:<6}  {:<9}  {}",
            node.node,
            node.state,
            node.version,
            node.record_format.to_string(),
            relays_of(node),
            heartbeat_of(node),
            node.addresses.join(" ")
        );
        writeln!(out, "{}", harmless(&line))?;
    }
    writeln!(out, "\n{:<32}  {:<8}  {:<6}  DATABASE", "ETCD", "VERSION", "LEADS")?;
    for member in &shown.etcd {
        match &member.error {
            Some(error) => writeln!(out, "{:<32}  {}", member.member, harmless(error))?,
            None => writeln!(
                out,
                "{:<32}  {:<8}  {:<6}  {} bytes",
                member.member,
                member.version.as_deref().unwrap_or_default(),
                if member.leads { "yes" } else { "no" },
                member.database_bytes.unwrap_or_default()
            )?,
        }
    }
    out.flush()
}
