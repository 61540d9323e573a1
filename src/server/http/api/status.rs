//! The status of the whole process: its stage, its statistics, refusals, the store and the cluster.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::super::super::access::Identity;
use super::super::super::clock::Clock;
use super::super::super::memory::MemoryBudget;
use super::super::super::node_view::NodeView;
use super::super::super::port::port_name;
use super::super::super::state::Server;
use super::super::super::statistics::{self, Object};
use super::super::access::Right;
use super::super::answer::{Answer, Json};
use super::super::request::Context;
use signalbox_cluster::members::SeenNode;
use signalbox_model::{Namespace, Target};

/// The process at a glance.
#[derive(Serialize)]
struct Status {
    version: &'static str,
    /// The state of `/readyz`: `starting`, `standby`, `relaying`, `serving` or `draining`.
    state: &'static str,
    /// The present time, in seconds since the Unix epoch.
    time: u64,
    /// The time of the start, in seconds since the Unix epoch.
    started: u64,
    /// Whether changes are possible over HTTP: the request's token may administer something, or, if the request has no token, any
    /// token may.
    changes: bool,
    cluster: Option<Cluster>,
    /// Missing while no clients are served.
    server: Option<Overall>,
}

#[derive(Serialize)]
struct Overall {
    #[serde(flatten)]
    figures: Map<String, Value>,
    memory: Memory,
    durable: bool,
}

#[derive(Serialize)]
struct Memory {
    used: u64,
    /// `None`: no limit.
    max: Option<u64>,
}

pub(in super::super) async fn status(context: Context) -> Answer {
    let shared = &context.connection.shared;
    let stage = shared.stage();
    let server = stage.server();
    context.check_read(Target::Server)?;
    let status = Status {
        version: env!("CARGO_PKG_VERSION"),
        state: shared.state(),
        time: Clock::system().now().0,
        started: shared.started.0,
        changes: may_change(&context),
        cluster: cluster_of(&context, server.as_ref()),
        server: server.as_deref().map(overall),
    };
    context.parameters.end()?;
    Json::of(&status)
}

fn may_change(context: &Context) -> bool {
    if let Some(Identity::Token(_)) = context.permissions.identity() {
        return context.permissions.may(Right::Administer, Target::Anywhere);
    }
    let (tokens, now) = (context.connection.shared.rules.access.tokens(), Clock::system().now().0);
    tokens
        .iter()
        .any(|entry| !entry.is_expired(now) && entry.rights.permit(Right::Administer, Target::Anywhere))
}

fn overall(server: &Server) -> Overall {
    Overall {
        figures: statistics::object(server, Object::Status),
        memory: Memory {
            used: MemoryBudget::in_use(),
            max: Some(server.memory.max()).filter(|max| *max > 0),
        },
        durable: server.is_durable(),
    }
}

/// Answers with the items of Stats, as `signalbox stats --json` prints them. If the request names no kind, the answer has
/// those of both ports.
pub(in super::super) async fn stats(mut context: Context) -> Answer {
    let kind = context.parameters.kind()?;
    let server = context.reads(Target::Server)?;
    let of_port = |namespace| {
        let items = statistics::json_items(&server, server.port(namespace));
        items.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>()
    };
    match kind {
        Some(namespace) => Json::of(&of_port(namespace)),
        None => {
            let ports =
                Namespace::ALL.map(|namespace| (port_name(namespace).to_owned(), of_port(namespace).into()));
            Json::of(&Map::from_iter(ports))
        }
    }
}

/// Answers with the numbers of requests and connections that were refused since the start, by reason.
pub(in super::super) async fn refusals(context: Context) -> Answer {
    let server = context.reads(Target::Server)?;
    let mut refusals = statistics::object(&server, Object::Refusals);
    refusals.insert("http_connections".to_owned(), context.connection.shared.refused.value().into());
    Json::of(&refusals)
}

/// Answers with the kind of the store, and its figures.
pub(in super::super) async fn store(context: Context) -> Answer {
    let server = context.reads(Target::Server)?;
    let kind = match (server.is_durable(), server.is_node()) {
        (false, _) => "memory",
        (true, false) => "directory",
        (true, true) => "cluster",
    };
    let mut store = statistics::object(&server, Object::Store);
    let commit_time = Duration::from_micros(server.stored.time_us.value());
    store.extend([
        ("kind".to_owned(), kind.into()),
        ("durable".to_owned(), server.is_durable().into()),
        ("commit_seconds".to_owned(), commit_time.as_secs_f64().into()),
    ]);
    Json::of(&store)
}

/// The cluster of this node.
#[derive(Serialize)]
struct Cluster {
    name: String,
    node: Option<String>,
    leads: bool,
    fenced: bool,
    /// The node that leads, as far as this one knows.
    leader: Option<String>,
    epoch: Option<u32>,
    /// How long ago this node sent the last heartbeat that was confirmed, in seconds.
    heartbeat_age: Option<f64>,
    /// Connections that this node relays to the leader.
    relayed_connections: u32,
    /// All nodes as this one sees them; empty for a node that may not lead.
    nodes: Vec<ClusterNode>,
}

/// Another node of the cluster, or this one.
#[derive(Serialize)]
struct ClusterNode {
    node: String,
    version: String,
    leads: bool,
    eligible: bool,
    /// How long ago its last heartbeat was seen, in seconds.
    heartbeat_age: f64,
    /// Connections that it relays.
    relayed_connections: Option<u32>,
    addresses: Vec<String>,
}

pub(in super::super) async fn cluster(context: Context) -> Answer {
    context.check_read(Target::Server)?;
    let server = context.connection.shared.stage().server();
    let cluster = cluster_of(&context, server.as_ref());
    context.parameters.end()?;
    Json::of(&cluster)
}

/// Returns the cluster as this node sees it; `None`: this process is not a node of a cluster.
fn cluster_of(context: &Context, server: Option<&Arc<Server>>) -> Option<Cluster> {
    let cluster = &context.connection.shared.cluster;
    let node = context.connection.shared.node();
    let (leader, epoch) = node.and_then(NodeView::leader).unzip();
    let shown = |seen: SeenNode| ClusterNode {
        leads: leader.as_ref() == Some(&seen.name),
        node: seen.name,
        version: seen.node.version,
        eligible: seen.node.is_eligible,
        heartbeat_age: seen.heartbeat_age.as_secs_f64(),
        relayed_connections: seen.relays,
        addresses: seen.node.addresses,
    };
    cluster.is_enabled().then(|| Cluster {
        name: cluster.name.clone(),
        node: node.map(|node| node.name.clone()).or_else(|| cluster.node.clone()),
        leads: server.is_some(),
        fenced: server.is_some_and(|server| server.is_fenced()),
        epoch,
        heartbeat_age: node.and_then(NodeView::heartbeat_age).map(|age| age.as_secs_f64()),
        relayed_connections: node.map_or(0, |node| node.relays.report().connections),
        nodes: node.map_or_else(Vec::new, |node| node.nodes().into_iter().map(shown).collect()),
        leader: leader.clone(),
    })
}
