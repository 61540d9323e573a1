//! Which node of a cluster leads: step by step, in random histories, and in all histories of two nodes up to a depth.

mod exhaustive;
mod histories;
mod relays;
mod steps;
mod store;
mod world;

use std::time::Duration;

use signalbox_cluster::keys::{Incarnation, Keys, Node, RelayEndpoint, RelaySecret};
use signalbox_cluster::leadership::{Machine, Settings};
use signalbox_cluster::timing::Timing;

/// The renew deadline of all nodes. The lease duration is 3.4 s, the retry period 500 ms, the poll period 250 ms and the
/// request timeout 500 ms.
const RENEW_DEADLINE: Duration = Duration::from_secs(3);
const RECORD_FORMAT: u32 = 2;
const OLDEST_RECORD_FORMAT: u32 = 1;

fn keys() -> Keys {
    Keys::new("test")
}

fn timing() -> Timing {
    Timing::new(RENEW_DEADLINE).unwrap()
}

fn node(run: u32) -> Node {
    let run = format!("{run:032x}");
    let secret = RelaySecret(run.clone());
    Node {
        incarnation: Incarnation(run),
        version: "0.1.0".to_owned(),
        record_format: RECORD_FORMAT,
        is_eligible: true,
        relays: true,
        relay_endpoint: Some(RelayEndpoint { address: ([192, 0, 2, 1], 11218).into(), secret }),
        drains: true,
        ..Node::default()
    }
}

/// A run of the node with this name.
fn settings(name: &str, run: u32) -> Settings {
    Settings {
        keys: keys(),
        name: name.to_owned(),
        node: node(run),
        timing: timing(),
        oldest_record_format: OLDEST_RECORD_FORMAT,
    }
}

fn machine(name: &str, run: u32) -> Machine {
    Machine::new(settings(name, run))
}
