//! The keys of a cluster in etcd, and the values of those that are not records.
//!
//! | key below `/signalbox/CLUSTER/` | value | written |
//! |---|---|---|
//! | `v` | [`Format`] | by the first node, and by `signalbox cluster finalize` |
//! | `n/NODE` | [`Node`] | when a node joins |
//! | `b/NODE` | [`Heartbeat`] | by each node, periodically |
//! | `p/0000/o` | [`Leadership`]: the leadership key | when a node takes over or releases |
//! | `p/0000/m` | [`Marker`]: the commit marker | with every takeover and every commit |
//! | `d/NODE` | [`Drain`] | by `signalbox cluster drain`, and by a node that refuses to hand over |
//! | `p/0000/r/KIND BUCKET REST` | a record | by commits |
//!
//! `signalbox data import --cluster` writes the format, a released leadership and the records.
//!
//! Values are JSON, which an operator can read with `etcdctl`; those of records are bytes. KIND is the first byte of a
//! record's key and REST the other bytes, so that records are ordered by kind. BUCKET is one byte, a hash of REST: etcd
//! reads records faster bucket by bucket than in pages of a range.
//!
//! `0000` is the number of the partition, of which there is one.

use std::net::SocketAddr;
use std::{fmt, io};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use signalbox_model::Namespace;

/// The version of the layout of keys.
pub const LAYOUT: u32 = 1;

/// The layout while records are being imported, with which no node may join.
pub const UNFINISHED_IMPORT: u32 = 0;

/// The keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// The settings that all nodes of a cluster have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// The version of the layout of keys: [`LAYOUT`].
    pub layout: u32,
    /// The format in which leaders write records: the newest one that may be stored.
    pub record_format: u32,
    /// The renew deadline, in milliseconds. Nodes with different renew deadlines could lead at the same time.
    pub renew_deadline_ms: u64,
}

/// A run of a node's process: 128 random bits, in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub String);

/// A node that has joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The run that has joined.
    pub incarnation: Incarnation,
    /// The run of the systemd service (`INVOCATION_ID`); empty without systemd.
    #[serde(default)]
    pub invocation: String,
    /// The version of the program.
    pub version: String,
    /// The newest format of a record that the node reads and writes.
    pub record_format: u32,
    /// The addresses at which clients reach the node, for people.
    pub addresses: Vec<String>,
    /// Whether the node may lead.
    pub is_eligible: bool,
    /// Whether the node relays connections of clients while another one leads. If so, a new leader waits until this node
    /// has closed them.
    #[serde(default)]
    pub relays: bool,
    /// Where the node accepts relayed connections when it leads; `None`: nowhere, because `cluster.bind` is not set.
    #[serde(default)]
    pub relay_endpoint: Option<RelayEndpoint>,
    /// The addresses that the node advertises to clients; may be empty.
    #[serde(default, skip_serializing_if = "Advertised::is_empty")]
    pub advertised: Advertised,
    /// Whether the node handles a [`Drain`].
    #[serde(default)]
    pub drains: bool,
}

/// Where clients reach a node: `HOST:PORT` of each of its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertised {
    /// Its port for counters.
    #[serde(default)]
    pub counters: Vec<String>,
    /// Its port for semaphores.
    #[serde(default)]
    pub semaphores: Vec<String>,
}

impl Advertised {
    /// Returns whether there are no addresses at all.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.semaphores.is_empty()
    }

    /// The addresses of the port for names of this kind.
    pub fn of(&self, namespace: Namespace) -> &[String] {
        match namespace {
            Namespace::Counters => &self.counters,
            Namespace::Semaphores => &self.semaphores,
        }
    }

    /// Adds the addresses of another node.
    pub fn extend(&mut self, other: &Self) {
        self.counters.extend_from_slice(&other.counters);
        self.semaphores.extend_from_slice(&other.semaphores);
    }
}

/// Where a leader accepts connections that other nodes relay.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayEndpoint {
    /// Its address and port.
    pub address: SocketAddr,
    /// The secret of this run: only programs that may read the cluster's keys in etcd know it.
    pub secret: RelaySecret,
}

/// 128 random bits of a run, in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RelaySecret(pub String);

/// The heartbeat that a node writes periodically while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The run that sends it.
    pub incarnation: Incarnation,
    /// The number of the heartbeat; it grows by one each time.
    pub count: u64,
    /// The node has no relayed connection to a leader of an epoch below this one, and will have none.
    #[serde(default)]
    pub relays_closed_below: u32,
    /// The number of connections that the node relays.
    #[serde(default)]
    pub relays: u32,
}

/// The node that leads, or led last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leadership {
    /// The number of the term of leadership. It grows by one with each takeover.
    pub epoch: u32,
    /// The name of the node.
    pub node: String,
    /// Its run.
    pub incarnation: Incarnation,
    /// Whether it has released the leadership.
    pub state: LeadershipState,
    /// The run to which a released leadership is handed over. Other nodes wait the lease duration for it to take over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<Successor>,
}

/// The run that leads next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// The name of the node.
    pub node: String,
    /// Its run.
    pub incarnation: Incarnation,
}

/// A request of an operator: the node hands over its leadership, if it leads, and leaves the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The run of the node.
    pub incarnation: Incarnation,
    /// The node that leads next, if this one leads; `None`: any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why the node has refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Whether a leadership was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeadershipState {
    /// The node leads, unless it has failed.
    Held,
    /// The node no longer leads: another one may take over at once.
    Released,
}

/// The last commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The epoch of the leader that committed.
    pub epoch: u32,
    /// The number of the commit in this epoch, from 1; 0 for the takeover.
    pub commit: u64,
}

/// Why the value of a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the value of \"{key}\" in etcd cannot be read ({problem}): it was written by a newer version of signalbox, or by \
     another program"
)]
pub struct ValueError {
    /// The key.
    pub key: String,
    /// Why its value cannot be decoded.
    pub problem: String,
}

impl Heartbeat {
    /// Returns whether the present run of the node has sent it, and not an earlier one.
    pub fn is_of(&self, node: &Node) -> bool {
        self.incarnation == node.incarnation
    }
}

impl Keys {
    /// The keys of the cluster with this name.
    pub fn new(cluster: &str) -> Self {
        Self { prefix: format!("/signalbox/{cluster}/") }
    }

    /// The prefix of all keys of the cluster.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of the [`Format`].
    pub fn format(&self) -> Vec<u8> {
        self.key("v")
    }

    /// The prefix of the keys of all nodes.
    pub fn nodes(&self) -> Vec<u8> {
        self.key("n/")
    }

    /// The key of a [`Node`].
    pub fn node(&self, name: &str) -> Vec<u8> {
        self.key(&format!("n/{name}"))
    }

    /// The prefix of the keys of all heartbeats.
    pub fn heartbeats(&self) -> Vec<u8> {
        self.key("b/")
    }

    /// The key of a [`Heartbeat`].
    pub fn heartbeat(&self, node: &str) -> Vec<u8> {
        self.key(&format!("b/{node}"))
    }

    /// The key of the [`Drain`] of a node.
    pub fn drain(&self, node: &str) -> Vec<u8> {
        self.key(&format!("d/{node}"))
    }

    /// The key of the [`Leadership`].
    pub fn leadership(&self) -> Vec<u8> {
        self.key("p/0000/o")
    }

    /// The key of the [`Marker`].
    pub fn marker(&self) -> Vec<u8> {
        self.key("p/0000/m")
    }

    /// The prefix of the keys of all records.
    pub fn records(&self) -> Vec<u8> {
        self.key("p/0000/r/")
    }

    fn key(&self, rest: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), rest.as_bytes()].concat()
    }
}

/// Encodes a value.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("these types have no maps and no errors of their own")
}

/// Decodes the value of a key.
pub fn decode<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, ValueError> {
    serde_json::from_slice(value)
        .map_err(|error| ValueError { key: key.escape_ascii().to_string(), problem: error.to_string() })
}

/// The first key after all that begin with `prefix`.
pub fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // For etcd, a range to this key has no end.
    vec![0]
}

/// 128 random bits in hexadecimal digits.
///
/// # Errors
///
/// The system provides no random numbers.
pub fn random_digits() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Without the secret, which must not be logged.
impl fmt::Debug for RelayEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayEndpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
