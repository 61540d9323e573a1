//! Why a node's part in the cluster is over.

use thiserror::Error;

use crate::keys::{Leadership, UNFINISHED_IMPORT, ValueError};

/// Why a node's part in the cluster is over. The message says what to do, where there is something to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Ending {
    /// The node stopped in order, and etcd knows it.
    #[error("the node has left the cluster")]
    Released,
    /// The node stopped in order, but etcd did not answer in time.
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
    /// The leadership key is not this leader's any more.
    #[error("the leadership of epoch {epoch} is over: {}", successor(by.as_ref()))]
    Superseded {
        /// The epoch in which the node led.
        epoch: u32,
        /// What the leadership key says; `None` if it does not exist.
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
    /// Another run with the same node name has replaced this one, which had given no sign of life for the lease duration.
    #[error(
        "another run of node \"{0}\" has replaced this one, which had not reached etcd for the lease duration: start \
         only one node with this name"
    )]
    NameTaken(String),
    /// The keys of the node were removed.
    #[error(
        "node \"{0}\" was removed from the cluster, or etcd was restored from a backup: start the node again if it is \
         to be part of the cluster"
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
         same value on all nodes; to change the cluster's, stop all nodes and delete \"{key}\" in etcd"
    )]
    RenewDeadlineDiffers {
        /// That in etcd, in milliseconds.
        stored_ms: u64,
        /// That of this node, in milliseconds.
        own_ms: u64,
        /// The key that has the cluster's.
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
    /// The cluster stores records in a format that this version does not write any more.
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
    /// What all nodes have in common is no longer in etcd.
    #[error("\"{0}\" was deleted in etcd: stop all nodes, check what else is missing, and start them again")]
    FormatRemoved(String),
    /// There are no epochs left.
    #[error(
        "all {} epochs of the cluster are used up: export the data and import it into a new cluster",
        u32::MAX
    )]
    EpochsExhausted,
    /// The store has an earlier state than the leader has seen.
    #[error(
        "etcd has gone back from revision {seen} to revision {found}, probably because it was restored from a backup: what \
         was stored after that is lost; start the node again to serve what is left"
    )]
    WentBack {
        /// The latest revision that the leader knew.
        seen: u64,
        /// What it found.
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

fn successor(by: Option<&Leadership>) -> String {
    match by {
        None => "the leadership key was deleted in etcd".to_owned(),
        Some(by) => format!("node \"{}\" has epoch {}", by.node, by.epoch),
    }
}
