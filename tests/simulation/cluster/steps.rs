//! The steps of a drain of the leader, as the machines and etcd reach them.
//!
//! A write has two steps: its transaction is on the way to etcd, and it is performed, with the answer on the way back. So a
//! fault that follows a step at once can lose the request, the answer, or what comes next.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use signalbox::cluster::coordinator::{Operation, Transaction};
use signalbox::cluster::keys::{Drain, Heartbeat, Keys, Leadership, LeadershipState, decode};

use super::world::{NODES, node_name};

/// A step of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The command begins.
    Begins,
    /// The transaction of this write is on the way to etcd.
    Sent(Write),
    /// This write is performed, and its answer on the way.
    Written(Write),
    /// The leader has seen the request, and chooses its successor.
    Chooses,
    /// The successor reads the records.
    Reads,
    /// The leader begins to close the connections of its clients.
    Closes,
    /// All of them are closed, and everything is stored.
    HasClosed,
    /// The successor serves clients.
    Serves,
}

/// What a drain writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Write {
    /// The command: the node is to leave.
    Request,
    /// The leader: this node is to read the records.
    Handover,
    /// The successor: it has read them.
    Report,
    /// The leader: what has changed since then.
    Changes,
    /// The leader: the successor may lead.
    Release,
    /// The former leader: it is no part of the cluster any more.
    Leave,
    /// The successor: it leads.
    Takeover,
}

impl Step {
    /// All of them, about in their order: the former leader leaves while the successor takes over.
    pub const ALL: [Self; 20] = [
        Self::Begins,
        Self::Sent(Write::Request),
        Self::Written(Write::Request),
        Self::Chooses,
        Self::Sent(Write::Handover),
        Self::Written(Write::Handover),
        Self::Reads,
        Self::Sent(Write::Report),
        Self::Written(Write::Report),
        Self::Closes,
        Self::HasClosed,
        Self::Sent(Write::Changes),
        Self::Written(Write::Changes),
        Self::Sent(Write::Release),
        Self::Written(Write::Release),
        Self::Sent(Write::Leave),
        Self::Written(Write::Leave),
        Self::Sent(Write::Takeover),
        Self::Written(Write::Takeover),
        Self::Serves,
    ];

    /// Whether it is this step or one after it.
    pub fn is_from(self, first: Self) -> bool {
        let place = |step| Self::ALL.iter().position(|other| *other == step);
        place(self) >= place(first)
    }
}

/// The steps that were reached since they were watched.
#[derive(Default)]
pub struct Steps(Mutex<State>);

#[derive(Default)]
struct State {
    is_watched: bool,
    reached: BTreeSet<Step>,
}

impl Steps {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it notes a step")
    }

    /// Watches the drain that begins now.
    pub fn watch(&self) {
        *self.state() = State { is_watched: true, reached: BTreeSet::new() };
    }

    pub fn reach(&self, step: Step) {
        let mut state = self.state();
        if state.is_watched {
            state.reached.insert(step);
        }
    }

    pub fn has(&self, step: Step) -> bool {
        self.state().reached.contains(&step)
    }

    /// A transaction is on the way to etcd.
    pub fn sent(&self, keys: &Keys, transaction: &Transaction) {
        if let Some(write) = write_of(keys, transaction) {
            self.reach(Step::Sent(write));
        }
    }

    /// A transaction is performed, and its comparisons have held.
    pub fn written(&self, keys: &Keys, transaction: &Transaction) {
        if let Some(write) = write_of(keys, transaction) {
            self.reach(Step::Written(write));
        }
    }
}

/// What a transaction writes for a drain, if it does.
fn write_of(keys: &Keys, transaction: &Transaction) -> Option<Write> {
    let is_of = |of: fn(&Keys, &str) -> Vec<u8>, key: &[u8]| {
        (0..NODES).any(|node| of(keys, &node_name(node)).as_slice() == key)
    };
    transaction.then.iter().find_map(|operation| match operation {
        Operation::Put { key, value } if is_of(Keys::drain, key) => {
            let drain: Drain = decode(key, value).expect("it was just encoded");
            drain.refused.is_none().then_some(Write::Request)
        }
        Operation::Put { key, .. } if *key == keys.handover() => Some(Write::Handover),
        Operation::Put { key, .. } if *key == keys.changes() => Some(Write::Changes),
        Operation::Put { key, value } if *key == keys.leadership() => {
            let leadership: Leadership = decode(key, value).expect("it was just encoded");
            let is_held = leadership.state == LeadershipState::Held;
            Some(if is_held { Write::Takeover } else { Write::Release })
        }
        Operation::Put { key, value } if is_of(Keys::heartbeat, key) => {
            let heartbeat: Heartbeat = decode(key, value).expect("it was just encoded");
            (heartbeat.preloaded > 0).then_some(Write::Report)
        }
        Operation::Delete { key } if is_of(Keys::node, key) => Some(Write::Leave),
        _ => None,
    })
}
