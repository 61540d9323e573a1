//! `signalbox cluster drain`: what the command does. The node does the rest: `handover` if it leads.

use std::thread;
use std::time::{Duration, Instant};

use super::admin::{AdminError, entry, read, revision_of, timing, watch};
use super::coordinator::{Compare, Coordinator, Operation, Revision, Transaction};
use super::keys::{Drain, Format, Incarnation, Keys, Leadership, LeadershipState, Node, decode, encode};
use super::members::{NoSuchNode, read_below};

/// The time between two looks at what the node does.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// How long the command waits for the next leader, once the node has left.
const NEXT_LEADER_MAX: Duration = Duration::from_secs(10);

/// A node that was drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Whether the node led.
    pub has_led: bool,
    /// The node that leads now, and its epoch; `None`: nobody yet.
    pub leader: Option<(String, u32)>,
}

/// Asks a node to hand over what it does, and to leave, and waits until it has. A node that leads hands over to `to`, or to any
/// node that may lead.
///
/// # Errors
///
/// [`AdminError::Refused`]: the node goes on. [`AdminError::NotInTime`]: it has not left within `limit`, and the request was
/// withdrawn; a handover that had begun is still completed. [`AdminError::FellSilent`]: it gives no heartbeats for the lease
/// duration, and the request was withdrawn. [`AdminError::Call`]: etcd did not answer; the request was withdrawn
/// if that was possible. Others: nothing was asked.
pub fn drain(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    name: &str,
    to: Option<&str>,
    limit: Duration,
) -> Result<Drained, AdminError> {
    let format: Format = read(coordinator, &keys.format())?
        .ok_or_else(|| AdminError::NoCluster { prefix: keys.prefix().to_owned() })?;
    let (_, mut nodes) = read_below::<Node>(coordinator, &keys.nodes())?;
    let Some((node, joined)) = nodes.remove(name) else {
        return Err(NoSuchNode::new(name, nodes.keys()).into());
    };
    if !node.drains {
        return Err(AdminError::CannotDrain { node: name.to_owned(), version: node.version });
    }
    let has_led = is_led_by(coordinator, keys, &node.incarnation)?;
    if let (false, Some(_)) = (has_led, to) {
        return Err(AdminError::NothingToHandOver { node: name.to_owned() });
    }
    if !watch(coordinator, keys, &format)?.contains_key(name) {
        return Err(AdminError::Silent { node: name.to_owned() });
    }
    let key = keys.drain(name);
    let drain = Drain { incarnation: node.incarnation.clone(), to: to.map(str::to_owned), refused: None };
    let request = Transaction {
        compare: vec![Compare::Modified { key: keys.node(name), at: joined }],
        then: vec![Operation::Put { key: key.clone(), value: encode(&drain) }],
        otherwise: Vec::new(),
    };
    let asked = coordinator.transact(&request)?;
    // It has changed since. If it has left, a request that was not answered was obeyed before it was repeated.
    if !asked.held && read::<Node>(coordinator, &keys.node(name))?.is_some() {
        return Err(AdminError::Changed);
    }
    let silence_max = timing(&format).lease_duration();
    let left = await_leaving(coordinator, keys, name, &drain, limit, silence_max);
    if let Err(AdminError::Call(_)) = &left {
        // Nobody would wait for what the node does later.
        let _ = withdraw(coordinator, key, asked.revision);
    }
    left?;
    let leader = if has_led { next_leader(coordinator, keys, &node.incarnation)? } else { None };
    Ok(Drained { has_led, leader })
}

fn is_led_by(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    incarnation: &Incarnation,
) -> Result<bool, AdminError> {
    let leadership: Option<Leadership> = read(coordinator, &keys.leadership())?;
    Ok(leadership.is_some_and(|of| of.state == LeadershipState::Held && of.incarnation == *incarnation))
}

/// Waits until the run is no part of the cluster any more, but only as long as it gives heartbeats.
fn await_leaving(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    name: &str,
    drain: &Drain,
    limit: Duration,
    silence_max: Duration,
) -> Result<(), AdminError> {
    let deadline = Instant::now() + limit;
    let mut heartbeat = (0, Instant::now());
    loop {
        // First the request: a node that leaves removes it with itself.
        let key = keys.drain(name);
        let request = entry(coordinator, &key)?;
        let node: Option<Node> = read(coordinator, &keys.node(name))?;
        if node.is_none_or(|node| node.incarnation != drain.incarnation) {
            return Ok(());
        }
        let Some(request) = request else { return Err(AdminError::Changed) };
        match decode::<Drain>(&key, &request.value)? {
            Drain { refused: Some(reason), .. } => {
                withdraw(coordinator, key, request.modified)?;
                return Err(AdminError::Refused { node: name.to_owned(), reason });
            }
            found if found != *drain => return Err(AdminError::Changed),
            _ => {}
        }
        let revision = revision_of(coordinator, &keys.heartbeat(name))?;
        if revision != heartbeat.0 {
            heartbeat = (revision, Instant::now());
        }
        if heartbeat.1.elapsed() >= silence_max {
            withdraw(coordinator, key, request.modified)?;
            return Err(AdminError::FellSilent { node: name.to_owned(), silence: silence_max });
        }
        if Instant::now() >= deadline {
            withdraw(coordinator, key, request.modified)?;
            return Err(AdminError::NotInTime { node: name.to_owned(), limit });
        }
        thread::sleep(LOOK_PERIOD);
    }
}

/// Removes a request that the node is not to see any more.
fn withdraw(coordinator: &mut dyn Coordinator, key: Vec<u8>, at: Revision) -> Result<(), AdminError> {
    let transaction = Transaction {
        compare: vec![Compare::Modified { key: key.clone(), at }],
        then: vec![Operation::Delete { key }],
        otherwise: Vec::new(),
    };
    coordinator.transact(&transaction)?;
    Ok(())
}

/// Who leads after this run.
fn next_leader(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    former: &Incarnation,
) -> Result<Option<(String, u32)>, AdminError> {
    let deadline = Instant::now() + NEXT_LEADER_MAX;
    while Instant::now() < deadline {
        let leadership: Option<Leadership> = read(coordinator, &keys.leadership())?;
        let next = leadership.filter(|of| of.state == LeadershipState::Held && of.incarnation != *former);
        if let Some(Leadership { node, epoch, .. }) = next {
            return Ok(Some((node, epoch)));
        }
        thread::sleep(LOOK_PERIOD);
    }
    Ok(None)
}
