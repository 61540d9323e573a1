//! `signalbox cluster drain`: what the command does. The node does the rest: `handover` if it leads.

use std::time::Duration;

use super::admin::{entry, format_of, is_led_by, read, revision_of, timing, watch};
use super::coordinator::{Compare, Coordinator, Operation, Revision, Transaction};
use super::error::AdminError;
use super::keys::{Drain, Incarnation, Keys, Leadership, LeadershipState, Node, decode, encode};
use super::members::read_below;

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
/// duration, and the request was withdrawn. [`AdminError::Died`]: it has ended otherwise. [`AdminError::Call`]: etcd did not
/// answer; the request was withdrawn if that was possible. Others: nothing was asked.
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
    let left = ask(coordinator, keys, name, joined, &drain, before)
        .and_then(|()| await_leaving(coordinator, keys, name, &drain, limit, silence_max));
    if let Err(AdminError::Call(_)) = &left {
        // Nobody would wait for what the node does later. Also an attempt to ask that was not answered may be performed.
        let _ = withdraw(coordinator, key, encode(&drain));
    }
    left?;
    let leader = if has_led { next_leader(coordinator, keys, &node.incarnation)? } else { None };
    Ok(Drained { has_led, leader })
}

/// Asks a node, which has joined at this revision, to leave. The key of the request was written last at revision `before`, so an
/// attempt that is repeated writes nothing if the one before was performed: for another revision, the node would begin again.
fn ask(
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
    // First the request: a node that leaves removes it with itself.
    let found = entry(coordinator, &key)?.filter(|found| found.modified != before);
    let is_asked = match found {
        Some(found) => Drain { refused: None, ..decode(&key, &found.value)? } == *drain,
        // An attempt was performed, and the node has obeyed already.
        None => read::<Node>(coordinator, &keys.node(name))?.is_none(),
    };
    if is_asked { Ok(()) } else { Err(AdminError::Changed) }
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
    let begun = coordinator.now();
    let mut heartbeat = (0, begun);
    loop {
        // First the request: a node that leaves removes it with itself.
        let key = keys.drain(name);
        let request = entry(coordinator, &key)?;
        let node: Option<Node> = read(coordinator, &keys.node(name))?;
        if node.is_none_or(|node| node.incarnation != drain.incarnation) {
            // It has removed the request if it has left. If it has died, the request is still there.
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
        coordinator.pause(LOOK_PERIOD);
    }
}

/// Removes a request that the node is not to see any more, if it still has this value.
fn withdraw(coordinator: &mut dyn Coordinator, key: Vec<u8>, value: Vec<u8>) -> Result<(), AdminError> {
    let transaction = Transaction {
        compare: vec![Compare::Value { key: key.clone(), is: value }],
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
    let deadline = coordinator.now().after(NEXT_LEADER_MAX);
    while coordinator.now() < deadline {
        let leadership: Option<Leadership> = read(coordinator, &keys.leadership())?;
        let next = leadership.filter(|of| of.state == LeadershipState::Held && of.incarnation != *former);
        if let Some(Leadership { node, epoch, .. }) = next {
            return Ok(Some((node, epoch)));
        }
        coordinator.pause(LOOK_PERIOD);
    }
    Ok(None)
}
