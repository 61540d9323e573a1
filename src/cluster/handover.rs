//! The handover of a leadership: the leader that is drained chooses its successor, or says why it goes on to lead.

use std::time::Duration;

use super::admin::AdminError;
use super::coordinator::{
    CallError, Compare, Coordinator, Operation, Persistent, Range, Revision, Transaction,
};
use super::keys::{Drain, Incarnation, Keys, Node, Successor, decode, encode};
use super::leadership::Term;
use super::members::Reading;
use super::timing::Timing;

/// The time between two looks at heartbeats.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// A node that is going to lead next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Its name and its run.
    pub successor: Successor,
    /// What it has stated about itself.
    pub node: Node,
}

/// What an operator asks of a leader, and the revision of the request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The request.
    pub drain: Drain,
    /// When it was written.
    pub written: Revision,
}

/// A request that a leader has refused.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub refusal: AdminError,
    /// Whether the operator learns of it.
    pub told: Result<(), CallError>,
}

/// A leader that an operator may drain.
#[derive(Debug)]
pub struct Leader<C> {
    /// A connection to etcd of its own.
    pub coordinator: Persistent<C>,
    /// The keys of the cluster.
    pub keys: Keys,
    /// The name of the node.
    pub name: String,
    /// The term that it is going to end.
    pub term: Term,
    /// Its run.
    pub incarnation: Incarnation,
    /// The times of the cluster.
    pub timing: Timing,
}

impl<C: Coordinator> Leader<C> {
    /// Chooses who leads next, as an operator asks for it, or tells the operator why it does not. Any node that may lead can be
    /// it unless the request names one; one of the newest version comes first. Takes two heartbeats.
    ///
    /// # Errors
    ///
    /// [`Refused`]: the node goes on to lead.
    pub fn obey(&mut self, request: &Request) -> Result<Next, Refused> {
        let chosen = self.choose(request.drain.to.as_deref());
        chosen.and_then(|next| self.check(request).map(|()| next)).map_err(|refusal| {
            let told = self.refuse(request, &refusal);
            Refused { refusal, told }
        })
    }

    /// Whom to release the leadership for; `None`: the successor has left the cluster in the meantime, so any node may lead. To be
    /// called when the server has stored its last change.
    pub fn successor(&mut self, next: Next) -> Option<Successor> {
        let is_member = self.is_member(&next.successor);
        // If that is not known, the others leave the leadership to it for the lease duration.
        is_member.unwrap_or(true).then_some(next.successor)
    }

    fn is_member(&mut self, successor: &Successor) -> Result<bool, AdminError> {
        let key = self.keys.node(&successor.node);
        let entry = self.coordinator.range(&Range::of(key.clone()))?.entries.pop();
        let node: Option<Node> = entry.map(|entry| decode(&key, &entry.value)).transpose()?;
        Ok(node.is_some_and(|node| node.incarnation == successor.incarnation))
    }

    /// Checks that the operator still wants what was requested.
    fn check(&mut self, request: &Request) -> Result<(), AdminError> {
        let key = self.keys.drain(&self.name);
        let found = self.coordinator.range(&Range::of(key))?.entries.pop();
        let is_wanted = found.is_some_and(|entry| entry.modified == request.written);
        if is_wanted { Ok(()) } else { Err(AdminError::Withdrawn) }
    }

    /// Tells the operator that the request is refused. If that fails, the operator does not learn of it.
    fn refuse(&mut self, request: &Request, refusal: &AdminError) -> Result<(), CallError> {
        let key = self.keys.drain(&self.name);
        let refused = Drain { refused: Some(refusal.to_string()), ..request.drain.clone() };
        let leads = Compare::Modified { key: self.keys.leadership(), at: self.term.leadership_modified };
        let transaction = Transaction {
            compare: vec![leads, Compare::Modified { key: key.clone(), at: request.written }],
            then: vec![Operation::Put { key, value: encode(&refused) }],
            otherwise: Vec::new(),
        };
        self.coordinator.transact(&transaction).map(drop)
    }

    fn choose(&mut self, to: Option<&str>) -> Result<Next, AdminError> {
        let before = Reading::read(&mut self.coordinator, &self.keys)?;
        let deadline = self.coordinator.now().after(self.timing.retry_period() * 2);
        loop {
            let now = Reading::read(&mut self.coordinator, &self.keys)?;
            let is_other = |node: &Node| node.incarnation != self.incarnation;
            if let Some(name) = to {
                match now.nodes.get(name) {
                    None => return Err(AdminError::no_node(name, now.nodes.keys())),
                    Some(node) if !is_other(node) => {
                        return Err(AdminError::LeadsItself(name.to_owned()));
                    }
                    Some(node) if !node.is_eligible => {
                        return Err(AdminError::NotEligible(name.to_owned()));
                    }
                    Some(_) => {}
                }
            }
            let modified = |reading: &Reading, name: &str| reading.heartbeats.get(name).map(|(_, at)| *at);
            let is_alive = |name: &str, node: &Node| {
                let heartbeat = now.heartbeats.get(name).is_some_and(|(heartbeat, _)| heartbeat.is_of(node));
                heartbeat && modified(&now, name) != modified(&before, name)
            };
            let candidates = || {
                now.nodes.iter().filter(|(name, node)| {
                    node.is_eligible && is_other(node) && to.is_none_or(|to| to == *name)
                })
            };
            let is_late = self.coordinator.now() >= deadline;
            if is_late || candidates().all(|(name, node)| is_alive(name, node)) {
                let alive = candidates().filter(|(name, node)| is_alive(name, node));
                return match (alive.max_by_key(|(_, node)| version(&node.version)), to) {
                    (Some((name, node)), _) => {
                        let incarnation = node.incarnation.clone();
                        let successor = Successor { node: name.clone(), incarnation };
                        Ok(Next { successor, node: node.clone() })
                    }
                    (None, Some(name)) => Err(AdminError::SilentSuccessor(name.to_owned())),
                    (None, None) => Err(AdminError::NoOther),
                };
            }
            self.coordinator.pause(LOOK_PERIOD);
        }
    }
}

/// The numbers of a version, to compare two.
fn version(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}
