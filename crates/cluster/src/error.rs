//! Why an operation of administrators is not done.

use std::time::Duration;

use thiserror::Error;

use super::coordinator::CallError;
use super::keys::{LAYOUT, ValueError};

/// Why something was not done. The texts that name a node have its name first.
#[derive(Debug, Error)]
pub enum AdminError {
    /// etcd did not answer, or refused.
    #[error("{}", failed_call(.0))]
    Call(#[from] CallError),
    /// A value in etcd cannot be read.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// There is no cluster below this prefix.
    #[error(
        "etcd has no cluster below \"{0}\"; check cluster.name and cluster.etcd, or start the first node"
    )]
    NoCluster(String),
    /// There is no such node.
    #[error("the cluster has no node \"{0}\"; it has {1}")]
    NoNode(String, String),
    /// The node is alive.
    #[error("node \"{0}\" sends heartbeats; stop it first")]
    Alive(String),
    /// The node leads, as far as it is known.
    #[error(
        "node \"{0}\" leads the cluster or has led it last, and has not released it; another node takes over by itself, or \
         after \"signalbox cluster release\" on its machine"
    )]
    Leads(String),
    /// No node has joined, so nothing is known of those that will.
    #[error(
        "no node is part of the cluster, so it is not known which formats its nodes read; start the nodes, and run the command \
         again"
    )]
    NoNodes,
    /// Nodes that do not read the new format, or may not.
    #[error(
        "format {to} of records cannot be written yet: {}; upgrade these nodes, and remove those that will not come back with \
         \"signalbox cluster forget\"", nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Unready {
        /// The format that was to be written.
        to: u32,
        /// The nodes that do not read it.
        nodes: Vec<Unready>,
    },
    /// The keys have this layout, and not that of this program.
    #[error(
        "the cluster's keys have layout {0}, and this version of signalbox has layout {LAYOUT}: complete the import with \
         \"signalbox data import --cluster\" if it was interrupted, or run the version that the nodes run"
    )]
    Layout(u32),
    /// The cluster writes a newer format than this program knows.
    #[error(
        "the cluster writes format {stored} of records, and this version of signalbox knows formats up to {own}: run the \
         version that the nodes run"
    )]
    Newer {
        /// The format in etcd.
        stored: u32,
        /// The newest format of this program.
        own: u32,
    },
    /// The node gives no sign of life.
    #[error(
        "node \"{0}\" sends no heartbeats, so it hands nothing over; \"signalbox cluster forget\" removes one that will not \
         come back"
    )]
    Silent(String),
    /// The node's version cannot be drained.
    #[error(
        "node \"{0}\" has version {1}, which cannot be drained; stop it with \"systemctl stop signalbox\" on its machine"
    )]
    CannotDrain(String, String),
    /// A next leader was named for a node that does not lead.
    #[error("node \"{0}\" does not lead, so it has nothing to hand over; leave out --to")]
    NothingToHandOver(String),
    /// The node that was named as the next leader leads already.
    #[error("node \"{0}\" leads itself; name another one")]
    LeadsItself(String),
    /// The node that was named as the next leader must not lead.
    #[error("node \"{0}\" may not lead (cluster.eligible = false); name another one")]
    NotEligible(String),
    /// The node that was named as the next leader gives no heartbeat.
    #[error("node \"{0}\" sends no heartbeats; start it, or name another one")]
    SilentSuccessor(String),
    /// There is no node that could lead next.
    #[error(
        "no other node that may lead sends heartbeats; start one first, or stop this node, which ends the service"
    )]
    NoOther,
    /// The operator has given up.
    #[error("the request was withdrawn")]
    Withdrawn,
    /// The node hands nothing over, for this reason.
    #[error("node \"{0}\" goes on to lead: {1}")]
    Refused(String, String),
    /// The node gives no sign of life since it was asked to leave, for this time.
    #[error(
        "node \"{}\" was asked to leave the cluster, and has sent no heartbeat for {} s since then: it has ended or is frozen, \
         or does not reach etcd. The request is withdrawn; see the node's log and \"signalbox cluster status\"", .0, .1.as_secs_f64()
    )]
    FellSilent(String, Duration),
    /// The node has ended without handing over.
    #[error(
        "node \"{0}\" was asked to leave the cluster, and has ended without doing so, perhaps to be started again; see the \
         node's log and \"signalbox cluster status\""
    )]
    Died(String),
    /// The node has not left within this time.
    #[error(
        "node \"{}\" has not left the cluster within {} s; see its log for its progress. The request is withdrawn, but a handover that has \
         begun is still completed", .0, .1.as_secs_f64()
    )]
    NotInTime(String, Duration),
    /// Something changed in between.
    #[error("the cluster changed in the meantime; look at \"signalbox cluster status\", and try again")]
    Changed,
}

impl AdminError {
    /// There is no node of this name, but these.
    pub fn no_node<'a>(name: &str, existing: impl Iterator<Item = &'a String>) -> Self {
        let existing: Vec<_> = existing.map(|node| format!("\"{node}\"")).collect();
        let existing = if existing.is_empty() { "none".to_owned() } else { existing.join(", ") };
        Self::NoNode(name.to_owned(), existing)
    }
}

/// Every member was tried.
fn failed_call(error: &CallError) -> String {
    match error {
        CallError::Unanswered(_) => format!(
            "{error}; no member of etcd answers as it should: check cluster.etcd, and that a majority of etcd's members runs"
        ),
        CallError::Refused(_) => error.to_string(),
    }
}

/// A node that does not read a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unready {
    /// Its name.
    pub node: String,
    /// The version of its program.
    pub version: String,
    /// The newest format that it reads.
    pub reads: u32,
}

impl std::fmt::Display for Unready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, version, reads } = self;
        write!(f, "node \"{node}\" (version {version}) reads formats up to {reads}")
    }
}
