//! Why a node has ended, and why a command of an operator was not performed.

use std::time::Duration;

use thiserror::Error;

use super::coordinator::CallError;
use super::keys::{LAYOUT, Leadership, UNFINISHED_IMPORT, ValueError};

/// Why a node no longer takes part in the cluster. The message says what to do, if anything.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Ending {
    /// The node stopped in order, and etcd has confirmed it.
    #[error("the node has left the cluster")]
    Released,
    /// The node stopped in order, but etcd did not confirm it in time.
    #[error(
        "the node stopped, but etcd did not confirm it in time ({0}): if it led, another node takes over after the \
         lease duration"
    )]
    NotReleased(String),
    /// The leader could not renew its leadership in time, or its machine was suspended.
    #[error(
        "the node could not renew its leadership within the renew deadline ({0}), so another node may lead now: \
         check that this node reaches etcd, and start the node again"
    )]
    DeadlinePassed(String),
    /// The leadership key is no longer this leader's.
    #[error("the leadership of epoch {epoch} is over: {}", superseded_by(by.as_ref()))]
    Superseded {
        /// The epoch in which the node led.
        epoch: u32,
        /// The value of the leadership key; `None` if it does not exist.
        by: Option<Leadership>,
    },
    /// Another run with the same node name sends heartbeats.
    #[error(
        "node \"{node}\" runs already, as incarnation {incarnation}: give this node another name (cluster.node), or stop \
         the other one"
    )]
    NameInUse {
        /// The name of the node.
        node: String,
        /// The other run.
        incarnation: String,
    },
    /// Another run with the same node name has replaced this one, which had sent no heartbeat for the lease duration.
    #[error(
        "another run of node \"{0}\" has replaced this one, which had not reached etcd for the lease duration: start \
         only one node with this name"
    )]
    NameTaken(String),
    /// The keys of the node were removed.
    #[error(
        "node \"{0}\" was removed from the cluster, or etcd was restored from a backup: start the node again if it \
         belongs to the cluster"
    )]
    Forgotten(String),
    /// The keys have another layout.
    #[error("{}", layouts(*stored, *own))]
    LayoutDiffers {
        /// The layout in etcd.
        stored: u32,
        /// The layout of this program.
        own: u32,
    },
    /// The cluster has another renew deadline.
    #[error(
        "the cluster's renew deadline is {stored_ms} ms, and this node's is {own_ms} ms: set cluster.renew_deadline to the \
         same value on all nodes; to change it, stop all nodes and delete \"{key}\" in etcd"
    )]
    RenewDeadlineDiffers {
        /// The renew deadline in etcd, in milliseconds.
        stored_ms: u64,
        /// The renew deadline of this node, in milliseconds.
        own_ms: u64,
        /// The key in etcd that has the cluster's renew deadline.
        key: String,
    },
    /// The cluster has records of a newer format.
    #[error(
        "the cluster's records have format {stored}, and this version of signalbox reads formats up to {own}: upgrade this \
         node"
    )]
    RecordFormatNewer {
        /// The format in etcd.
        stored: u32,
        /// The newest format of this program.
        own: u32,
    },
    /// The cluster stores records in a format that this version no longer writes.
    #[error(
        "the cluster stores records in format {stored}, and this version of signalbox writes formats {oldest} to {newest}: \
         upgrade all nodes to a version that writes formats {stored} and {oldest}, run \"signalbox cluster finalize\" with it, \
         and then start this version"
    )]
    RecordFormatOlder {
        /// The format in etcd.
        stored: u32,
        /// The oldest format that this program writes.
        oldest: u32,
        /// The newest format of this program.
        newest: u32,
    },
    /// The format key is no longer in etcd.
    #[error("\"{0}\" was deleted in etcd: stop all nodes, check what else is missing, and start them again")]
    FormatRemoved(String),
    /// All epochs are used up.
    #[error(
        "all {} epochs of the cluster are used up: export the data and import it into a new cluster",
        u32::MAX
    )]
    EpochsExhausted,
    /// etcd has an earlier state than the leader has seen.
    #[error(
        "etcd has gone back from revision {seen} to revision {found}, probably because it was restored from a backup: \
         later changes are lost; start the node again to serve the earlier state"
    )]
    WentBack {
        /// The latest revision that the leader knew.
        seen: u64,
        /// The revision that it found.
        found: u64,
    },
    /// A value cannot be read.
    #[error(transparent)]
    Value(#[from] ValueError),
}

fn layouts(stored: u32, own: u32) -> String {
    if stored == UNFINISHED_IMPORT {
        return "an import into the cluster was not completed: run \"signalbox data import --cluster\" again"
            .to_owned();
    }
    format!(
        "the cluster's keys have layout {stored}, and this version of signalbox has layout {own}: run the version that the \
         other nodes run"
    )
}

fn superseded_by(by: Option<&Leadership>) -> String {
    match by {
        None => "the leadership key was deleted in etcd".to_owned(),
        Some(by) => format!("node \"{}\" has epoch {}", by.node, by.epoch),
    }
}

/// Why a command was not performed. In variants with several strings, the first one is the name of the node.
#[derive(Debug, Error)]
pub enum AdminError {
    /// etcd did not answer, or refused.
    #[error("{}", failed_call(.0))]
    Call(#[from] CallError),
    /// A value in etcd cannot be read.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// etcd has no cluster below this prefix.
    #[error(
        "etcd has no cluster below \"{0}\"; check cluster.name and cluster.etcd, or start the first node"
    )]
    NoCluster(String),
    /// The cluster has no such node.
    #[error("the cluster has no node \"{0}\"; it has {1}")]
    NoNode(String, String),
    /// The node sends heartbeats.
    #[error("node \"{0}\" sends heartbeats; stop it first")]
    Alive(String),
    /// The leadership key names the node.
    #[error(
        "node \"{0}\" leads the cluster, or led it last and did not release it; another node takes over by itself, or \
         after \"signalbox cluster release\" on its machine"
    )]
    Leads(String),
    /// No node has joined, so the formats that nodes read are not known.
    #[error(
        "no node is part of the cluster, so it is not known which formats its nodes read; start the nodes, and run the command \
         again"
    )]
    NoNodes,
    /// Some nodes do not read the new format.
    #[error(
        "format {to} of records cannot be written yet: {}; upgrade these nodes, and remove those that will not come back with \
         \"signalbox cluster forget\"", nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Unready {
        /// The new format.
        to: u32,
        /// The nodes that do not read it.
        nodes: Vec<Unready>,
    },
    /// The keys have this layout, which differs from that of this program.
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
    /// The node sends no heartbeats.
    #[error(
        "node \"{0}\" sends no heartbeats, so it cannot hand over; \"signalbox cluster forget\" removes a node that will not \
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
    /// The node that was named as the next leader already leads.
    #[error("node \"{0}\" is the leader; name another node")]
    LeadsItself(String),
    /// The node that was named as the next leader may not lead.
    #[error("node \"{0}\" may not lead (cluster.eligible = false); name another node")]
    NotEligible(String),
    /// The node that was named as the next leader sends no heartbeats.
    #[error("node \"{0}\" sends no heartbeats; start it, or name another node")]
    SilentSuccessor(String),
    /// No other node can lead next.
    #[error(
        "no other node that may lead sends heartbeats; start one first, or stop this node, which ends the service"
    )]
    NoOther,
    /// The operator has withdrawn the request.
    #[error("the request was withdrawn")]
    Withdrawn,
    /// The node refuses to hand over, for this reason.
    #[error("node \"{0}\" continues to lead: {1}")]
    Refused(String, String),
    /// The node has sent no heartbeat for this time since it was asked to leave.
    #[error(
        "node \"{}\" was asked to leave the cluster, and has sent no heartbeat for {} s since then: it has ended or is frozen, \
         or does not reach etcd. The request is withdrawn; see the node's log and \"signalbox cluster status\"", .0, .1.as_secs_f64()
    )]
    FellSilent(String, Duration),
    /// The node has ended without leaving the cluster.
    #[error(
        "node \"{0}\" was asked to leave the cluster, and has ended without leaving it, and may have been restarted; see the \
         node's log and \"signalbox cluster status\""
    )]
    Died(String),
    /// The node has not left within this time.
    #[error(
        "node \"{}\" has not left the cluster within {} s; see its log. The request is withdrawn, but a handover that has \
         begun is still completed", .0, .1.as_secs_f64()
    )]
    NotInTime(String, Duration),
    /// The cluster changed during the command.
    #[error("the cluster changed during the command; see \"signalbox cluster status\", and try again")]
    Changed,
}

impl AdminError {
    /// Creates [`Self::NoNode`] for a name, with the names of the existing nodes.
    pub fn no_node<'a>(name: &str, existing: impl Iterator<Item = &'a String>) -> Self {
        let existing: Vec<_> = existing.map(|node| format!("\"{node}\"")).collect();
        let existing = if existing.is_empty() { "none".to_owned() } else { existing.join(", ") };
        Self::NoNode(name.to_owned(), existing)
    }
}

/// The message for a call that has failed, after an attempt at every member.
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
    /// The name of the node.
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
