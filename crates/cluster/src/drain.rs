//! Drains a node: the command `signalbox cluster drain`, and the choice of the next leader by a leader that is drained.

use std::time::Duration;

use super::admin::{POLL_PERIOD, entry, format_of, is_led_by, read, revision_of, timing, watch};
use super::coordinator::{CallError, Compare, Coordinator, Operation, Persistent, Revision, Transaction};
use super::error::AdminError;
use super::keys::{Drain, Incarnation, Keys, Leadership, LeadershipState, Node, Successor, decode, encode};
use super::leadership::{DrainRequest, Term};
use super::members::{Reading, read_below};
use super::timing::Timing;

/// How long the command waits for the next leader after the node has left.
const NEXT_LEADER_MAX: Duration = Duration::from_secs(10);

/// A node that was drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Whether the node led.
    pub has_led: bool,
    /// The node that leads now, and its epoch; `None`: no node leads yet.
    pub leader: Option<(String, u32)>,
}

/// Asks a node to leave the cluster, and waits until it has left. A node that leads hands over to `to`, or to any node that
/// may lead.
///
/// # Errors
///
/// [`AdminError::Refused`]: the node continues. [`AdminError::NotInTime`]: it has not left within `limit`, and the request was
/// withdrawn; a handover that had begun is still completed. [`AdminError::FellSilent`]: it has sent no heartbeat for
/// the lease duration, and the request was withdrawn. [`AdminError::Died`]: it has ended without leaving.
/// [`AdminError::Call`]: etcd did not answer; the request was withdrawn if possible. [`AdminError::Changed`]: the node has
/// joined again, or the request was removed or replaced. Others, except [`AdminError::Value`]: no request was written.
pub fn drain(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    name: &str,
    to: Option<&str>,
    limit: Duration,
) -> Result<Drained, AdminError> {
    let format = format_of(coordinator, keys)?;
    let (_, mut nodes) = read_below::<Node>(coordinator, &keys.nodes())?;
    let Some((node, joined)) = nodes.remove(name) else {
        return Err(AdminError::no_node(name, nodes.keys()));
    };
    if !node.drains {
        return Err(AdminError::CannotDrain(name.to_owned(), node.version));
    }
    let has_led = is_led_by(coordinator, keys, &node.incarnation)?;
    if let (false, Some(_)) = (has_led, to) {
        return Err(AdminError::NothingToHandOver(name.to_owned()));
    }
    let timing = timing(&format);
    if !watch(coordinator, keys, timing, |node| node == name)?.contains_key(name) {
        return Err(AdminError::Silent(name.to_owned()));
    }
    let key = keys.drain(name);
    let before = revision_of(coordinator, &key)?;
    let drain = Drain { incarnation: node.incarnation.clone(), to: to.map(str::to_owned), refused: None };
    let silence_max = timing.lease_duration();
    let left = write_request(coordinator, keys, name, joined, &drain, before)
        .and_then(|()| await_leaving(coordinator, keys, name, &drain, limit, silence_max));
    if let Err(AdminError::Call(_)) = &left {
        // The node must not leave later, when no command waits for it. The request may have been written even if etcd
        // did not answer.
        let _ = withdraw(coordinator, key, encode(&drain));
    }
    left?;
    let leader = if has_led { next_leader(coordinator, keys, &node.incarnation)? } else { None };
    Ok(Drained { has_led, leader })
}

/// Writes the request. `joined` is the revision at which the node joined, and `before` that of the request's key. Both
/// are compared, so a repeated attempt writes nothing if the previous one was performed: a node takes a new revision of
/// the key for a new request.
fn write_request(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    name: &str,
    joined: Revision,
    drain: &Drain,
    before: Revision,
) -> Result<(), AdminError> {
    let key = keys.drain(name);
    let request = Transaction {
        compare: vec![
            Compare::Modified { key: keys.node(name), at: joined },
            Compare::Modified { key: key.clone(), at: before },
        ],
        then: vec![Operation::Put { key: key.clone(), value: encode(drain) }],
        otherwise: Vec::new(),
    };
    if coordinator.transact(&request)?.held {
        return Ok(());
    }
    // The request is read first: a node that leaves removes it together with its own keys.
    let found = entry(coordinator, &key)?.filter(|found| found.modified != before);
    let is_requested = match found {
        Some(found) => Drain { refused: None, ..decode(&key, &found.value)? } == *drain,
        // An attempt was performed, and the node has already left.
        None => read::<Node>(coordinator, &keys.node(name))?.is_none(),
    };
    if is_requested { Ok(()) } else { Err(AdminError::Changed) }
}

/// Waits until the run has left the cluster, but only as long as it sends heartbeats.
fn await_leaving(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    name: &str,
    drain: &Drain,
    limit: Duration,
    silence_max: Duration,
) -> Result<(), AdminError> {
    let begun = coordinator.now();
    let mut heartbeat = (0, begun);
    loop {
        // The request is read first: a node that leaves removes it together with its own keys.
        let key = keys.drain(name);
        let request = entry(coordinator, &key)?;
        let node: Option<Node> = read(coordinator, &keys.node(name))?;
        if node.is_none_or(|node| node.incarnation != drain.incarnation) {
            // A run that leaves removes the request. If the request is still there, the run has died.
            return match entry(coordinator, &key)? {
                Some(left) if request.is_some_and(|request| request.modified == left.modified) => {
                    withdraw(coordinator, key, left.value)?;
                    Err(AdminError::Died(name.to_owned()))
                }
                _ => Ok(()),
            };
        }
        let Some(request) = request else { return Err(AdminError::Changed) };
        match decode::<Drain>(&key, &request.value)? {
            Drain { refused: Some(reason), .. } => {
                withdraw(coordinator, key, request.value)?;
                return Err(AdminError::Refused(name.to_owned(), reason));
            }
            found if found != *drain => return Err(AdminError::Changed),
            _ => {}
        }
        let revision = revision_of(coordinator, &keys.heartbeat(name))?;
        if revision != heartbeat.0 {
            heartbeat = (revision, coordinator.now());
        }
        if coordinator.now().since(heartbeat.1) >= silence_max {
            withdraw(coordinator, key, request.value)?;
            return Err(AdminError::FellSilent(name.to_owned(), silence_max));
        }
        if coordinator.now().since(begun) >= limit {
            withdraw(coordinator, key, request.value)?;
            return Err(AdminError::NotInTime(name.to_owned(), limit));
        }
        coordinator.pause(POLL_PERIOD);
    }
}

/// Removes a request, if it still has this value.
fn withdraw(coordinator: &mut dyn Coordinator, key: Vec<u8>, value: Vec<u8>) -> Result<(), AdminError> {
    let transaction = Transaction {
        compare: vec![Compare::Value { key: key.clone(), is: value }],
        then: vec![Operation::Delete { key }],
        otherwise: Vec::new(),
    };
    coordinator.transact(&transaction)?;
    Ok(())
}

/// Waits until a run other than `former` leads. Returns its node and its epoch; `None` after [`NEXT_LEADER_MAX`].
fn next_leader(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    former: &Incarnation,
) -> Result<Option<(String, u32)>, AdminError> {
    let deadline = coordinator.now().after(NEXT_LEADER_MAX);
    while coordinator.now() < deadline {
        let leadership: Option<Leadership> = read(coordinator, &keys.leadership())?;
        let next =
            leadership.filter(|found| found.state == LeadershipState::Held && found.incarnation != *former);
        if let Some(Leadership { node, epoch, .. }) = next {
            return Ok(Some((node, epoch)));
        }
        coordinator.pause(POLL_PERIOD);
    }
    Ok(None)
}

/// The node that leads next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextLeader {
    /// Its name and its run.
    pub successor: Successor,
    /// Its value in etcd.
    pub node: Node,
}

/// A leader that an operator may drain.
#[derive(Debug)]
pub struct DrainedLeader<C> {
    /// A separate connection to etcd.
    pub coordinator: Persistent<C>,
    /// The keys of the cluster.
    pub keys: Keys,
    /// The name of the node.
    pub name: String,
    /// Its term.
    pub term: Term,
    /// Its run.
    pub incarnation: Incarnation,
    /// The times of the cluster.
    pub timing: Timing,
}

impl<C: Coordinator> DrainedLeader<C> {
    /// Chooses the node that leads next: the one that the request names, or, of those that may lead and send
    /// heartbeats, one with the newest version. This takes up to two retry periods, or longer if etcd is slow.
    ///
    /// # Errors
    ///
    /// The reason why the node continues to lead, for [`Self::refuse`].
    pub fn choose_successor(&mut self, request: &DrainRequest) -> Result<NextLeader, AdminError> {
        let next = self.choose(request.drain.to.as_deref())?;
        let modified = revision_of(&mut self.coordinator, &self.keys.drain(&self.name))?;
        if modified == request.written { Ok(next) } else { Err(AdminError::Withdrawn) }
    }

    /// Checks that the chosen run is still in the cluster, and returns it as the successor for the release of the
    /// leadership; `None`: it has left, so any node may lead next. Call this when the server has stored its last
    /// change.
    pub fn confirm_successor(&mut self, successor: Successor) -> Option<Successor> {
        let is_member = self.is_member(&successor);
        // If etcd does not answer, the run stays the successor. If that run is gone, the other nodes wait for the lease
        // duration.
        is_member.unwrap_or(true).then_some(successor)
    }

    fn is_member(&mut self, successor: &Successor) -> Result<bool, AdminError> {
        let node: Option<Node> = read(&mut self.coordinator, &self.keys.node(&successor.node))?;
        Ok(node.is_some_and(|node| node.incarnation == successor.incarnation))
    }

    /// Writes the reason of a refusal to etcd, where the command finds it.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the operator may not learn the reason.
    pub fn refuse(&mut self, request: &DrainRequest, refusal: &AdminError) -> Result<(), CallError> {
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

    fn choose(&mut self, to: Option<&str>) -> Result<NextLeader, AdminError> {
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
        let alive_names = watch(&mut self.coordinator, &self.keys, self.timing, awaited)?;
        let now = Reading::read(&mut self.coordinator, &self.keys)?;
        let is_alive = |name: &str, node: &Node| {
            let heartbeat = now.heartbeats.get(name);
            alive_names.contains_key(name) && heartbeat.is_some_and(|(heartbeat, _)| heartbeat.is_of(node))
        };
        let alive = now.nodes.iter().filter(|(name, node)| is_candidate(name, node) && is_alive(name, node));
        match (alive.max_by_key(|(_, node)| version(&node.version)), to) {
            (Some((name, node)), _) => {
                let successor = Successor { node: name.clone(), incarnation: node.incarnation.clone() };
                Ok(NextLeader { successor, node: node.clone() })
            }
            (None, Some(name)) => Err(AdminError::SilentSuccessor(name.to_owned())),
            (None, None) => Err(AdminError::NoOther),
        }
    }
}

/// The numbers in a version, for comparisons.
fn version(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}
