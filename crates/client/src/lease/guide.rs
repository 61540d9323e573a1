//! What a client of a cluster knows of its nodes (`docs/protocol.md`, "Where" and "Notices").

use std::collections::VecDeque;
use std::time::Duration;

use crate::Address;
use signalbox_protocol::{Moved, Whereabouts};

/// A client sends KeepAlive no more often than this.
const SILENCE_MIN: Duration = Duration::from_millis(100);

/// The addresses of a cluster's nodes.
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
    /// How long a leader serves after it last renewed its leadership; `None`: the client has not learned of a cluster.
    renew_deadline: Option<Duration>,
}

impl Guide {
    /// Replaces what the client knows by what a server has said.
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
    pub(super) fn on_moved(&mut self, moved: Moved<Vec<String>>) {
        self.moved = addresses(&moved.addresses);
        self.leader.clear();
    }

    /// The addresses to try, each once. Where the leader moves comes first, then what the program has configured, then what
    /// servers have said. The address of the connection before, `last`, comes last: it takes long to notice that it still
    /// fails. If it is one of the addresses of a name, the name stays where it is, for the others.
    pub(super) fn round<'a>(
        &mut self,
        configured: impl Iterator<Item = &'a Address>,
        last: Option<&Address>,
    ) -> Vec<Address> {
        let others = configured.cloned().chain(self.nodes.iter().cloned());
        let others = others.filter(|address| Some(address) != last);
        let mut round: Vec<Address> = Vec::new();
        let last = last.cloned().map(Address::unresolved);
        for address in self.moved.drain(..).chain(others).chain(last) {
            if !round.contains(&address) {
                round.push(address);
            }
        }
        round
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
    use signalbox_model::Milliseconds;

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

    /// The addresses of the next round, of a program that has configured two.
    fn round(guide: &mut Guide, last: &str) -> Vec<String> {
        let configured = ["x:1".parse().unwrap(), "y:1".parse().unwrap()];
        let round = guide.round(configured.iter(), address(last).as_ref());
        round.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_address_is_tried_once_in_a_round_and_what_has_failed_last() {
        let mut guide = Guide::default();
        assert_eq!(round(&mut guide, "x:1"), ["y:1", "x:1"]);
        assert_eq!(guide.silence_max(), None);
        // The client was connected to the leader, perhaps by another name.
        guide.learn(whereabouts(false));
        assert_eq!(round(&mut guide, "x:1"), ["y:1", "b:1", "c:1", "a:1", "x:1"]);
        // One of the addresses of a name.
        let configured = [address("x:1"), address("y:1")].map(Option::unwrap);
        let resolved = configured[0].clone().resolved_to(([127, 0, 0, 1], 1).into());
        let round_after = Guide::default().round(configured.iter(), Some(&resolved));
        assert_eq!(round_after, configured);
        // It was relayed.
        guide.learn(whereabouts(true));
        assert_eq!(round(&mut guide, "b:1"), ["x:1", "y:1", "a:1", "c:1", "b:1"]);
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
        guide.on_moved(Moved { epoch: 1, addresses: texts(&["b:1"]) });
        assert!(guide.knows_next());
        assert_eq!(guide.take_leader(), None, "it is about to stop");
        assert_eq!(round(&mut guide, "a:1"), ["b:1", "x:1", "y:1", "c:1", "a:1"]);
        assert!(!guide.knows_next(), "it was tried");
        assert_eq!(round(&mut guide, "a:1"), ["x:1", "y:1", "b:1", "c:1", "a:1"]);
    }
}
