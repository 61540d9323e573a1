//! What a client of a cluster knows of its nodes (`docs/protocol.md`, "Where" and "Notices").

use std::collections::VecDeque;
use std::time::Duration;

use crate::client::Address;
use crate::protocol::{Moved, Whereabouts};

/// A client sends KeepAlive no more often than this.
const SILENCE_MIN: Duration = Duration::from_millis(100);

/// The addresses of a cluster's nodes. Where the leader moves comes first, then what the program has configured, then what
/// servers have said. An address that has just failed comes last: it may take a whole attempt to notice that it still does.
#[derive(Debug, Default)]
pub(super) struct Guide {
    /// The epoch of the leader that was learned of last.
    epoch: u32,
    /// The epoch in which the session was moved to an address of the leader, until the leader has said that it is direct
    /// there. An address that leads to another relay, or to refusals, is not used again in that epoch.
    moved_in: Option<u32>,
    /// Where the next leader is or may be, until they were tried.
    moved: VecDeque<Address>,
    /// Where the leader is, until it was tried; empty if the connection is not relayed.
    leader: VecDeque<Address>,
    /// Where nodes are. The one that the client is connected to is the last.
    nodes: Vec<Address>,
    /// Those that are left of the present round of attempts.
    round: VecDeque<Address>,
    /// How long a leader serves after it last renewed its leadership; `None`: the client has not learned of a cluster.
    renew_deadline: Option<Duration>,
}

impl Guide {
    /// Takes in what a server has said. What was learned before is forgotten.
    pub(super) fn learn(&mut self, whereabouts: Whereabouts<Vec<String>>) {
        let Whereabouts { epoch, renew_deadline, is_relayed, leader, others } = whereabouts;
        let (leader, others) = (addresses(&leader), addresses(&others));
        self.renew_deadline = Some(renew_deadline.into());
        self.moved.clear();
        let (first, last) = if is_relayed { (&leader, &others) } else { (&others, &leader) };
        self.nodes = first.iter().chain(last).cloned().collect();
        if !is_relayed {
            self.moved_in = None;
        }
        self.epoch = epoch;
        self.leader = if is_relayed && self.moved_in != Some(epoch) { leader } else { VecDeque::new() };
    }

    /// Another node is going to lead.
    pub(super) fn follow(&mut self, moved: Moved<Vec<String>>) {
        self.moved = addresses(&moved.addresses);
        self.leader.clear();
    }

    /// The connection has ended: a new round of attempts begins.
    pub(super) fn begin_round(&mut self) {
        self.round.clear();
    }

    /// The address to try after so many failures in a row; `last` is the one before. `None`: one of the configured addresses,
    /// since no others are known.
    pub(super) fn next<'a>(
        &mut self,
        failures: u32,
        configured: impl Iterator<Item = &'a Address>,
        last: Option<&Address>,
    ) -> Option<Address> {
        // In turn with the others: a node that has just failed may be among them.
        if failures.is_multiple_of(2)
            && let Some(next) = self.moved.pop_front()
        {
            return Some(next);
        }
        if self.nodes.is_empty() {
            return None;
        }
        if self.round.is_empty() {
            for address in configured.cloned().chain(self.nodes.iter().cloned()) {
                if Some(&address) != last && !self.round.contains(&address) {
                    self.round.push_back(address);
                }
            }
            self.round.extend(last.cloned());
        }
        self.round.pop_front()
    }

    /// Whether every address was tried since the round began, so that a pause is due; `None`: no others than the configured
    /// ones are known.
    pub(super) fn is_round_over(&self) -> Option<bool> {
        (!self.nodes.is_empty()).then_some(self.round.is_empty())
    }

    /// Whether the next leader is known, so that no pause is needed.
    pub(super) fn knows_next(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Where the leader is, if the client is not connected there; each address once.
    pub(super) fn take_leader(&mut self) -> Option<Address> {
        self.leader.pop_front()
    }

    /// The session moves to an address of the leader.
    pub(super) fn moves_to_leader(&mut self) {
        self.moved_in = Some(self.epoch);
    }

    pub(super) fn is_in_cluster(&self) -> bool {
        self.renew_deadline.is_some()
    }

    /// A leader or a relay that stays silent for twice this long may have failed. That is less than the renew deadline, so the
    /// client looks for another node before one leads.
    pub(super) fn silence_max(&self) -> Option<Duration> {
        self.renew_deadline.map(|deadline| (deadline / 3).max(SILENCE_MIN))
    }
}

/// Those that this client understands.
fn addresses(texts: &[String]) -> VecDeque<Address> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Milliseconds;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    fn whereabouts(is_relayed: bool) -> Whereabouts<Vec<String>> {
        let (leader, others) = (texts(&["a:1", "?:x"]), texts(&["b:1", "c:1"]));
        Whereabouts { epoch: 1, renew_deadline: Milliseconds(3000), is_relayed, leader, others }
    }

    fn address(text: &str) -> Option<Address> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn every_address_is_tried_once_in_a_round_and_what_has_failed_last() {
        let mut guide = Guide::default();
        let configured = ["x:1".parse().unwrap(), "y:1".parse().unwrap()];
        assert_eq!((guide.next(3, configured.iter(), None), guide.silence_max()), (None, None));
        assert_eq!(guide.is_round_over(), None);
        let tried = |guide: &mut Guide, last: Option<Address>| -> Vec<_> {
            guide.begin_round();
            let count = 1
                + (1..9)
                    .find(|_| {
                        guide.next(1, configured.iter(), last.as_ref());
                        guide.is_round_over() == Some(true)
                    })
                    .unwrap();
            guide.begin_round();
            (1..count)
                .map(|failures| guide.next(failures, configured.iter(), last.as_ref()).unwrap().to_string())
                .collect()
        };
        // The client was connected to the leader, perhaps by another name.
        guide.learn(whereabouts(false));
        assert_eq!(tried(&mut guide, address("x:1")), ["y:1", "b:1", "c:1", "a:1", "x:1"]);
        // It was relayed.
        guide.learn(whereabouts(true));
        assert_eq!(tried(&mut guide, address("b:1")), ["x:1", "y:1", "a:1", "c:1", "b:1"]);
        assert_eq!(guide.silence_max(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn the_leader_is_approached_once_and_only_from_a_relay() {
        let mut guide = Guide::default();
        guide.learn(whereabouts(false));
        assert_eq!(guide.take_leader(), None);
        guide.learn(whereabouts(true));
        assert_eq!((guide.take_leader(), guide.take_leader()), (address("a:1"), None));
    }

    /// Such as an address that all nodes advertise, or one that the client's own machine has as well.
    #[test]
    fn an_address_of_the_leader_that_leads_to_a_relay_is_not_used_again_in_the_epoch() {
        let mut guide = Guide::default();
        guide.learn(whereabouts(true));
        assert_eq!(guide.take_leader(), address("a:1"));
        guide.moves_to_leader();
        guide.learn(whereabouts(true));
        assert_eq!(guide.take_leader(), None);
        guide.learn(Whereabouts { epoch: 2, ..whereabouts(true) });
        assert_eq!(guide.take_leader(), address("a:1"), "another node may lead");
        guide.moves_to_leader();
        guide.learn(Whereabouts { epoch: 2, ..whereabouts(false) });
        guide.learn(Whereabouts { epoch: 2, ..whereabouts(true) });
        assert_eq!(guide.take_leader(), address("a:1"), "the connection was direct");
    }

    #[test]
    fn the_addresses_of_a_notice_are_tried_in_turn_with_the_configured_ones() {
        let mut guide = Guide::default();
        guide.follow(Moved { epoch: 1, addresses: texts(&["b:1", "c:1"]) });
        let configured = ["x:1".parse().unwrap(), "y:1".parse().unwrap()];
        let tried: Vec<_> = (0..5).map(|failures| guide.next(failures, configured.iter(), None)).collect();
        assert_eq!(tried, [address("b:1"), None, address("c:1"), None, None]);
    }

    /// A broken server must not make the client ask without a pause.
    #[test]
    fn a_client_does_not_ask_all_the_time() {
        let mut guide = Guide::default();
        guide.learn(Whereabouts { renew_deadline: Milliseconds(0), ..whereabouts(false) });
        assert_eq!(guide.silence_max(), Some(SILENCE_MIN));
    }

    #[test]
    fn the_next_leader_is_tried_first_and_without_a_pause() {
        let mut guide = Guide::default();
        guide.learn(whereabouts(true));
        guide.follow(Moved { epoch: 1, addresses: texts(&["b:1"]) });
        assert!(guide.knows_next());
        assert_eq!(guide.take_leader(), None, "it is about to stop");
        assert_eq!(guide.next(0, ["x:1".parse().unwrap()].iter(), None), address("b:1"));
        assert!(!guide.knows_next());
    }
}
