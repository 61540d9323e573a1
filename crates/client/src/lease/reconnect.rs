//! When and where a session connects next.
//!
//! A round tries all addresses, and resolves their names again. After each failed round there is a pause, which grows and is
//! random, so that the clients of a restarted server do not all connect at once.
//!
//! In a cluster, [`Guide`] knows more addresses: where the leader moves, and where all nodes are (`docs/protocol.md`, "Where"
//! and "Notices").

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use tracing::warn;

use super::clock::Moment;
use super::link::{
    Attaching, AttachmentFailure, Greeted, Greeting, Target, attach_at, attach_first, greet,
    greet_with_another_token,
};
use super::settings::Settings;
use crate::race::Reason;
use crate::{Address, ConnectError, Disconnect, Error, ErrorKind, Lost, Token};
use signalbox_model::SessionKey;
use signalbox_protocol::{Moved, OpenedSession, Whereabouts};

/// The first pause between two rounds, and the longest. Each is drawn between half of it and all of it.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The longest pause of a client of a cluster: another node is going to lead.
const PAUSE_MAX_IN_CLUSTER: Duration = Duration::from_millis(500);

/// How long after an attachment KeepAlive is sent, to prove that the connection is stable. A link that breaks again and
/// again within this time is as good as none.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// Whether a server is reachable.
#[derive(Clone, Copy, Debug)]
enum Reachability {
    /// A connection has proven stable, and has not ended since.
    Stable,
    /// There is a connection, which has not proven stable yet.
    Attached { down_since: Moment, attached_at: Moment },
    /// There is no connection, and none was stable since this moment.
    Down { since: Moment },
}

pub(super) struct Reconnect {
    settings: Settings,
    /// The key with which the session is opened: if the answer is lost, the next attempt gets the same session.
    key: Option<SessionKey>,
    /// The index of the configured address with which the next round begins.
    next_address: usize,
    /// The address of the last connection, or of the leader if the session moved there after it.
    last_address: Option<Address>,
    /// The number of rounds that have failed since that connection.
    failed_rounds: u32,
    /// Attachments and openings that were given up without an answer. The server may still execute one after a later one,
    /// which then loses the session to it.
    late_attachments: u32,
    reachability: Reachability,
    last_failure: Option<Error>,
    guide: Guide,
    /// Whether the client says Hello to the leader beside the present connection; otherwise it shows another token there.
    approaches_leader: bool,
    rng: Rng,
}

/// What the session does after a failed round.
pub(super) enum AfterFailure {
    SessionLost,
    /// The next round begins at this moment.
    RetryAt(Moment),
}

impl Reconnect {
    /// Also returns when the first round begins. A session that replaces a lost one begins with a pause, so that a
    /// client cannot open sessions as fast as a server ends them.
    pub(super) fn new(settings: Settings, now: Moment, replaces_lost: bool) -> (Self, Moment) {
        let mut rng = Rng::with_seed(settings.seed);
        let first = settings.first.clone().map(Address::unresolved);
        let first = first.and_then(|first| settings.addresses.iter().position(|address| *address == first));
        let next_address = first.unwrap_or_else(|| rng.usize(..settings.addresses.len()));
        let pause = if replaces_lost { random_pause(PAUSE_MIN, &mut rng) } else { Duration::ZERO };
        let reconnect = Self {
            settings,
            key: random_key(),
            next_address,
            last_address: None,
            failed_rounds: 0,
            late_attachments: 0,
            // An acquire that is the first to need the session waits since it was asked for.
            reachability: Reachability::Down { since: Moment(Duration::ZERO) },
            last_failure: None,
            guide: Guide::default(),
            approaches_leader: false,
            rng,
        };
        (reconnect, now.after(pause))
    }

    /// Starts a round: attaches the session, which will repeat this number of requests with their places, or opens one.
    pub(super) fn round(&mut self, session: Option<OpenedSession>, repetitions: u32) -> Attaching {
        let (before, from) = self.settings.addresses.split_at(self.next_address);
        let addresses = self.guide.round(from.iter().chain(before), self.last_address.as_ref());
        self.next_address = (self.next_address + 1) % self.settings.addresses.len();
        let target = session.map_or(Target::New(self.key), Target::Opened);
        attach_first(&self.settings, addresses, self.last_address.clone(), target, repetitions)
    }

    /// Starts to say Hello to the leader of the cluster, if the present connection is relayed and the leader's address is
    /// known.
    pub(super) fn approach_leader(&mut self) -> Option<(Address, Greeting)> {
        let address = self.guide.take_leader()?;
        self.approaches_leader = true;
        let greeting = greet(&self.settings, address.clone());
        Some((address, greeting))
    }

    /// Starts to say Hello again to the server that has refused a request, if the token was replaced since this one was shown.
    pub(super) fn show_another_token(&mut self, refused: &Token) -> Option<(Address, Greeting)> {
        let address = self.last_address.clone()?;
        self.approaches_leader = false;
        let greeting = greet_with_another_token(&self.settings, address.clone(), refused.clone());
        Some((address, greeting))
    }

    /// Attaches the session over another connection. The present one has to be closed before: requests over it would be answered
    /// as if the session did not exist.
    pub(super) fn attach_over(
        &mut self,
        address: Address,
        greeted: Greeted,
        session: OpenedSession,
        repetitions: u32,
        now: Moment,
    ) -> Attaching {
        if self.approaches_leader {
            self.guide.moves_to_leader();
        }
        // If this fails, it is the address that failed last. Acquires wait as after every disconnect, from now on.
        self.last_address = Some(address.clone());
        self.reachability = Reachability::Down { since: self.down_since().unwrap_or(now) };
        attach_at(&self.settings, address, greeted, Target::Opened(session), repetitions)
    }

    /// The server has said where the nodes of its cluster are.
    pub(super) fn on_whereabouts(&mut self, whereabouts: Whereabouts<Vec<String>>) {
        self.guide.learn(whereabouts);
    }

    /// The server has said where another node is going to lead.
    pub(super) fn on_moved(&mut self, moved: Moved<Vec<String>>) {
        self.guide.on_moved(moved);
    }

    /// Within which time the server of a connection has to give a sign of life; `None`: no sooner than the lease requires.
    pub(super) fn silence_max(&self) -> Option<Duration> {
        self.guide.silence_max()
    }

    /// The session is attached. The reason of the last failure is kept until the lease is renewed over the connection.
    pub(super) fn attached(&mut self, address: Address, late_attachments: u32, now: Moment) {
        self.last_address = Some(address);
        self.late_attachments += late_attachments;
        self.failed_rounds = 0;
        let down_since = self.down_since().unwrap_or(now);
        self.reachability = Reachability::Attached { down_since, attached_at: now };
    }

    /// A request of the program, or KeepAlive, was answered.
    pub(super) fn answered(&mut self) {
        if let Reachability::Attached { .. } = self.reachability {
            self.reachability = Reachability::Stable;
        }
    }

    /// The lease was renewed.
    pub(super) fn renewed(&mut self) {
        self.last_failure = None;
    }

    /// When KeepAlive is sent to prove that the connection is stable; `None` if that is proven, or if there is none.
    pub(super) fn probe_at(&self) -> Option<Moment> {
        match self.reachability {
            Reachability::Attached { attached_at, .. } => Some(attached_at.after(PROBE_AFTER)),
            Reachability::Stable | Reachability::Down { .. } => None,
        }
    }

    /// Since when no connection was stable, or always; `None` if one is.
    pub(super) fn down_since(&self) -> Option<Moment> {
        match self.reachability {
            Reachability::Stable => None,
            Reachability::Attached { down_since: since, .. } | Reachability::Down { since } => Some(since),
        }
    }

    /// The session could not be attached.
    pub(super) fn failed(&mut self, failure: AttachmentFailure, now: Moment) -> AfterFailure {
        let AttachmentFailure { error, session_is_lost, late_attachments } = failure;
        self.late_attachments += late_attachments;
        if session_is_lost {
            return AfterFailure::SessionLost;
        }
        match self.last_address.is_some() && error.is_of_server() {
            true => self.refused(error),
            false => self.last_failure = Some(error),
        }
        self.failed_rounds += 1;
        AfterFailure::RetryAt(now.after(self.pause()))
    }

    /// A server does not attach the session again, or does not renew its lease, which runs. Reported once for each reason.
    pub(super) fn refused(&mut self, error: Error) {
        let text = error.to_string();
        if self.last_failure.as_ref().is_none_or(|last| last.to_string() != text) {
            warn!("the lease is not renewed: {text}");
        }
        self.last_failure = Some(error);
    }

    /// Why the lease ends.
    pub(super) fn why_not_renewed(&self) -> Lost {
        match &self.last_failure {
            Some(failure) if failure.is_of_server() => Lost::Refused,
            _ => Lost::Unreachable,
        }
    }

    /// The connection has ended. Returns when the next round begins: not at once, so that the clients of a
    /// restarted server come at different times.
    pub(super) fn disconnected(&mut self, reason: &Disconnect, now: Moment) -> Moment {
        self.reachability = Reachability::Down { since: self.down_since().unwrap_or(now) };
        self.last_failure = Some(reason.clone().into());
        if self.guide.knows_next() { now } else { now.after(self.pause()) }
    }

    /// Whether an attachment that was given up may have taken the session from a later one. Each counts once.
    pub(super) fn take_late_attachment(&mut self) -> bool {
        let is_possible = self.late_attachments > 0;
        self.late_attachments = self.late_attachments.saturating_sub(1);
        is_possible
    }

    /// When an acquire fails that was asked for at this moment, unless a stable connection is there before. Only for use
    /// while there is no connection.
    pub(super) fn unreachable_at(&self, asked_at: Moment) -> Moment {
        self.unreachable_since(asked_at).after(self.settings.unreachable_after)
    }

    /// The error of an acquire that has waited until [`Self::unreachable_at`]. If a server is there and refuses the session, for
    /// example for lack of a right, or one of them does not trust the other, that is the error: a caller may proceed without a permit only if
    /// no server is reachable.
    pub(super) fn unreachable(&self, asked_at: Moment, now: Moment) -> Error {
        let within = now.since(self.unreachable_since(asked_at));
        // The first round has not ended.
        let last = self.last_failure.clone().unwrap_or_else(|| {
            let addresses: Vec<_> = self.settings.addresses.iter().map(ToString::to_string).collect();
            ConnectError::TimedOut { address: addresses.join(", "), limit: within }.into()
        });
        if last.is_of_server() {
            return last;
        }
        ErrorKind::Unreachable { within, last: last.into() }.into()
    }

    fn unreachable_since(&self, asked_at: Moment) -> Moment {
        self.down_since().map_or(asked_at, |since| since.max(asked_at))
    }

    pub(super) fn last_failure(&self) -> Option<&Error> {
        self.last_failure.as_ref()
    }

    /// The pause after a round: longer each time.
    fn pause(&mut self) -> Duration {
        let most = if self.guide.is_in_cluster() { PAUSE_MAX_IN_CLUSTER } else { PAUSE_MAX };
        let longest = PAUSE_MIN.saturating_mul(1 << self.failed_rounds.min(10)).min(most);
        random_pause(longest, &mut self.rng)
    }
}

/// A key that cannot be guessed; `None` on a system without a source of randomness.
fn random_key() -> Option<SessionKey> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).ok().map(|()| SessionKey(key))
}

/// A pause of between half of the longest and all of it.
fn random_pause(longest: Duration, rng: &mut Rng) -> Duration {
    longest.mul_f64(0.5 + rng.f64() / 2.0)
}

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
