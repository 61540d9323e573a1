//! The handover of a leadership: the leader that is drained chooses its successor, or says why it goes on to lead.

use super::admin::{read, revision_of, watch};
use super::coordinator::{CallError, Compare, Coordinator, Operation, Persistent, Revision, Transaction};
use super::error::AdminError;
use super::keys::{Drain, Incarnation, Keys, Node, Successor, encode};
use super::leadership::Term;
use super::members::Reading;
use super::timing::Timing;

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
        let node: Option<Node> = read(&mut self.coordinator, &self.keys.node(&successor.node))?;
        Ok(node.is_some_and(|node| node.incarnation == successor.incarnation))
    }

    /// Checks that the operator still wants what was requested.
    fn check(&mut self, request: &Request) -> Result<(), AdminError> {
        let modified = revision_of(&mut self.coordinator, &self.keys.drain(&self.name))?;
        if modified == request.written { Ok(()) } else { Err(AdminError::Withdrawn) }
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
        let is_other = |node: &Node| node.incarnation != self.incarnation;
        if let Some(name) = to {
            match before.nodes.get(name) {
                None => return Err(AdminError::no_node(name, before.nodes.keys())),
                Some(node) if !is_other(node) => return Err(AdminError::LeadsItself(name.to_owned())),
                Some(node) if !node.is_eligible => return Err(AdminError::NotEligible(name.to_owned())),
                Some(_) => {}
            }
        }
        let is_candidate =
            |name: &str, node: &Node| node.is_eligible && is_other(node) && to.is_none_or(|to| to == name);
        let awaited = |name: &str| before.nodes.get(name).is_some_and(|node| is_candidate(name, node));
        let heard = watch(&mut self.coordinator, &self.keys, self.timing, awaited)?;
        let now = Reading::read(&mut self.coordinator, &self.keys)?;
        let is_alive = |name: &str, node: &Node| {
            let heartbeat = now.heartbeats.get(name);
            heard.contains_key(name) && heartbeat.is_some_and(|(heartbeat, _)| heartbeat.is_of(node))
        };
        let alive = now.nodes.iter().filter(|(name, node)| is_candidate(name, node) && is_alive(name, node));
        match (alive.max_by_key(|(_, node)| version(&node.version)), to) {
            (Some((name, node)), _) => {
                let successor = Successor { node: name.clone(), incarnation: node.incarnation.clone() };
                Ok(Next { successor, node: node.clone() })
            }
            (None, Some(name)) => Err(AdminError::SilentSuccessor(name.to_owned())),
            (None, None) => Err(AdminError::NoOther),
        }
    }
}

/// The numbers of a version, to compare two.
fn version(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}
