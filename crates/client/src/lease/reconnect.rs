//! When and where a session connects next.
//!
//! A round tries all addresses, and resolves their hosts again. A pause follows each failed round. It grows and is
//! random, so that the clients of a restarted server do not all connect at once.
//!
//! In a cluster, servers report more addresses ([`ClusterAddresses`]): those of the next leader and of all nodes
//! (`docs/protocol.md`, "Where" and "Notices").

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

/// The limit of the first pause between two rounds, which doubles after each failed round. A pause is random, between
/// half of its limit and the limit.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The highest limit of a pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The highest limit of a pause in a cluster, where another node will soon lead.
const PAUSE_MAX_IN_CLUSTER: Duration = Duration::from_millis(500);

/// The time after an attachment at which KeepAlive is sent, to prove that the connection is stable. While connections
/// break before that, the server counts as unreachable.
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
    /// The key with which the session is opened. If the answer is lost, the next attempt gets the same session with
    /// this key.
    key: Option<SessionKey>,
    /// The index of the configured address with which the next round begins.
    next_address: usize,
    /// The address of the last connection, or that of the leader if the session was then moved there.
    last_address: Option<Address>,
    /// The number of failed rounds since that connection.
    failed_rounds: u32,
    /// See [`AttachmentFailure::late_attachments`].
    late_attachments: u32,
    reachability: Reachability,
    last_failure: Option<Error>,
    cluster: ClusterAddresses,
    /// Whether the last Hello of a move was for the leader; otherwise, it was to show another token.
    greets_leader: bool,
    rng: Rng,
}

/// The next step of a session after a failed round.
pub(super) enum AfterFailure {
    SessionLost,
    /// The next round begins at this moment.
    RetryAt(Moment),
}

impl Reconnect {
    /// Prepares the connections of a session that is not open yet. Also returns when the first round begins. A session
    /// that replaces a lost one begins with a pause, so that a client does not open sessions as fast as a server ends
    /// them.
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
            // For the first acquire, the time without a server is counted from its call, which is later.
            reachability: Reachability::Down { since: Moment(Duration::ZERO) },
            last_failure: None,
            cluster: ClusterAddresses::default(),
            greets_leader: false,
            rng,
        };
        (reconnect, now.after(pause))
    }

    /// Starts a round of attempts to attach the session, or to open one. `repetitions` is the number of requests that
    /// the client will then repeat with their places.
    pub(super) fn round(&mut self, session: Option<OpenedSession>, repetitions: u32) -> Attaching {
        let (before, from) = self.settings.addresses.split_at(self.next_address);
        let addresses = self.cluster.round(from.iter().chain(before), self.last_address.as_ref());
        self.next_address = (self.next_address + 1) % self.settings.addresses.len();
        let target = session.map_or(Target::New(self.key), Target::Opened);
        attach_first(&self.settings, addresses, self.last_address.clone(), target, repetitions)
    }

    /// Begins to say Hello to the leader of the cluster, if the present connection is relayed and the leader's address
    /// is known.
    pub(super) fn greet_leader(&mut self) -> Option<(Address, Greeting)> {
        let address = self.cluster.take_leader()?;
        self.greets_leader = true;
        let greeting = greet(&self.settings, address.clone());
        Some((address, greeting))
    }

    /// Begins to say Hello again to the same server, which has refused a request, with the token that has replaced
    /// `refused`.
    pub(super) fn show_another_token(&mut self, refused: &Token) -> Option<(Address, Greeting)> {
        let address = self.last_address.clone()?;
        self.greets_leader = false;
        let greeting = greet_with_another_token(&self.settings, address.clone(), refused.clone());
        Some((address, greeting))
    }

    /// Attaches the session over another connection. The present one has to be closed first, because requests over it
    /// would be answered as if the session did not exist.
    pub(super) fn attach_over(
        &mut self,
        address: Address,
        greeted: Greeted,
        session: OpenedSession,
        repetitions: u32,
        now: Moment,
    ) -> Attaching {
        if self.greets_leader {
            self.cluster.moves_to_leader();
        }
        // If this fails, the next round tries this address last. From now on, acquires wait as after every disconnect.
        self.last_address = Some(address.clone());
        self.reachability = Reachability::Down { since: self.down_since().unwrap_or(now) };
        attach_at(&self.settings, address, greeted, Target::Opened(session), repetitions)
    }

    /// Notes where the nodes of the cluster are, as a server has reported it.
    pub(super) fn on_whereabouts(&mut self, whereabouts: Whereabouts<Vec<String>>) {
        self.cluster.learn(whereabouts);
    }

    /// Notes where the next leader is or may be, as a server has reported it.
    pub(super) fn on_moved(&mut self, moved: Moved<Vec<String>>) {
        self.cluster.on_moved(moved);
    }

    /// Returns the longest time without an answer before KeepAlive is sent; `None`: as long as the lease allows.
    pub(super) fn silence_max(&self) -> Option<Duration> {
        self.cluster.silence_max()
    }

    /// Notes that the session is attached. The last failure is kept until the lease is renewed over the connection.
    pub(super) fn attached(&mut self, address: Address, late_attachments: u32, now: Moment) {
        self.last_address = Some(address);
        self.late_attachments += late_attachments;
        self.failed_rounds = 0;
        let down_since = self.down_since().unwrap_or(now);
        self.reachability = Reachability::Attached { down_since, attached_at: now };
    }

    /// Notes that a request of the program or KeepAlive was answered, which proves that the connection is stable.
    pub(super) fn answered(&mut self) {
        if let Reachability::Attached { .. } = self.reachability {
            self.reachability = Reachability::Stable;
        }
    }

    /// Notes that the lease was renewed.
    pub(super) fn renewed(&mut self) {
        self.last_failure = None;
    }

    /// Returns when KeepAlive is sent to prove that the connection is stable; `None` if it is stable or there is no
    /// connection.
    pub(super) fn probe_at(&self) -> Option<Moment> {
        match self.reachability {
            Reachability::Attached { attached_at, .. } => Some(attached_at.after(PROBE_AFTER)),
            Reachability::Stable | Reachability::Down { .. } => None,
        }
    }

    /// Returns since when no connection was stable; `None` if one is.
    pub(super) fn down_since(&self) -> Option<Moment> {
        match self.reachability {
            Reachability::Stable => None,
            Reachability::Attached { down_since: since, .. } | Reachability::Down { since } => Some(since),
        }
    }

    /// Decides what follows a failed round.
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

    /// Notes that a server refuses to attach the session or to renew its lease. Logs each new reason once.
    pub(super) fn refused(&mut self, error: Error) {
        let text = error.to_string();
        if self.last_failure.as_ref().is_none_or(|last| last.to_string() != text) {
            warn!("the lease is not renewed: {text}");
        }
        self.last_failure = Some(error);
    }

    /// Returns the reason for a lease that could not be renewed.
    pub(super) fn why_not_renewed(&self) -> Lost {
        match &self.last_failure {
            Some(failure) if failure.is_of_server() => Lost::Refused,
            _ => Lost::Unreachable,
        }
    }

    /// Notes that the connection has ended. Returns when the next round begins: after a pause, so that the clients of a
    /// restarted server connect at different times, or at once if the next leader is known.
    pub(super) fn disconnected(&mut self, reason: &Disconnect, now: Moment) -> Moment {
        self.reachability = Reachability::Down { since: self.down_since().unwrap_or(now) };
        self.last_failure = Some(reason.clone().into());
        if self.cluster.knows_next() { now } else { now.after(self.pause()) }
    }

    /// Returns whether a late attachment may have taken the session from a later one. Each counts once.
    pub(super) fn take_late_attachment(&mut self) -> bool {
        let is_possible = self.late_attachments > 0;
        self.late_attachments = self.late_attachments.saturating_sub(1);
        is_possible
    }

    /// Returns when an acquire that was called at this moment fails, unless there is a stable connection before. Only
    /// for use while there is no connection.
    pub(super) fn unreachable_at(&self, asked_at: Moment) -> Moment {
        self.unreachable_since(asked_at).after(self.settings.unreachable_after)
    }

    /// Returns the error of an acquire that has waited until [`Self::unreachable_at`]. If a server is reachable but
    /// refuses the session, for example for lack of a right, or if TLS fails for lack of trust, that is the error: a
    /// caller may proceed without a permit only if no server is reachable.
    pub(super) fn unreachable(&self, asked_at: Moment, now: Moment) -> Error {
        let within = now.since(self.unreachable_since(asked_at));
        // Without a failure, the first round has not ended.
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

    /// Returns the pause after a round, which grows with the number of failed rounds.
    fn pause(&mut self) -> Duration {
        let most = if self.cluster.is_known() { PAUSE_MAX_IN_CLUSTER } else { PAUSE_MAX };
        let longest = PAUSE_MIN.saturating_mul(1 << self.failed_rounds.min(10)).min(most);
        random_pause(longest, &mut self.rng)
    }
}

/// Returns a key that cannot be guessed; `None` on a system without a source of randomness.
fn random_key() -> Option<SessionKey> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).ok().map(|()| SessionKey(key))
}

/// Returns a random pause between half of the longest and all of it.
fn random_pause(longest: Duration, rng: &mut Rng) -> Duration {
    longest.mul_f64(0.5 + rng.f64() / 2.0)
}

/// The shortest time after which a client of a cluster sends KeepAlive, whatever renew deadline the server reports.
const SILENCE_MIN: Duration = Duration::from_millis(100);

/// The addresses of a cluster's nodes, as servers have reported them.
#[derive(Debug, Default)]
pub(super) struct ClusterAddresses {
    /// The epoch of the last leader that was reported.
    epoch: u32,
    /// The epoch in which the session was moved to an address of the leader, until the server there has reported that
    /// the connection is not relayed. In that epoch, the session is not moved again, because the address may lead to
    /// another relay or to refusals.
    moved_in: Option<u32>,
    /// The possible addresses of the next leader that were not tried yet.
    moved: VecDeque<Address>,
    /// The addresses of the leader that were not tried yet; empty if the connection is not relayed.
    leader: VecDeque<Address>,
    /// The addresses of all nodes. Those of the node that the client may be connected to are the last.
    nodes: Vec<Address>,
    /// How long a leader serves after its last renewal of the leadership; `None`: no server has reported a cluster.
    renew_deadline: Option<Duration>,
}

impl ClusterAddresses {
    /// Replaces the addresses by those that a server has reported.
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

    /// Replaces the addresses of the next leader by those that a server has reported.
    pub(super) fn on_moved(&mut self, moved: Moved<Vec<String>>) {
        self.moved = addresses(&moved.addresses);
        self.leader.clear();
    }

    /// Returns the addresses to try, each once: first those of the next leader, which are tried only in this round,
    /// then those that the program has configured, then those that servers have reported. The address of the former
    /// connection, `last`, is tried last, because it may take long to notice that it still fails. If `last` is one IP
    /// address of a host, the host keeps its position, for its other addresses.
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

    /// Returns whether the next leader is known, so that no pause is needed.
    pub(super) fn knows_next(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Returns the next untried address of the leader, if the connection is relayed.
    pub(super) fn take_leader(&mut self) -> Option<Address> {
        self.leader.pop_front()
    }

    /// Notes that the session is moved to an address of the leader.
    pub(super) fn moves_to_leader(&mut self) {
        self.moved_in = Some(self.epoch);
    }

    /// Returns whether a server has reported a cluster.
    pub(super) fn is_known(&self) -> bool {
        self.renew_deadline.is_some()
    }

    /// Returns the longest time without an answer before KeepAlive is sent. A leader or a relay that is silent for
    /// twice this time may have failed. That is less than the renew deadline, so the client already looks for another
    /// node when one takes over.
    pub(super) fn silence_max(&self) -> Option<Duration> {
        self.renew_deadline.map(|deadline| (deadline / 3).max(SILENCE_MIN))
    }
}

/// Parses addresses, and skips those that this client does not understand.
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
    fn round(cluster: &mut ClusterAddresses, last: &str) -> Vec<String> {
        let configured = ["x:1".parse().unwrap(), "y:1".parse().unwrap()];
        let round = cluster.round(configured.iter(), address(last).as_ref());
        round.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_address_is_tried_once_in_a_round_and_what_has_failed_last() {
        let mut cluster = ClusterAddresses::default();
        assert_eq!(round(&mut cluster, "x:1"), ["y:1", "x:1"]);
        assert_eq!(cluster.silence_max(), None);
        // The client was connected to the leader, perhaps by another name.
        cluster.learn(whereabouts(false));
        assert_eq!(round(&mut cluster, "x:1"), ["y:1", "b:1", "c:1", "a:1", "x:1"]);
        // One of the addresses of a name.
        let configured = [address("x:1"), address("y:1")].map(Option::unwrap);
        let resolved = configured[0].clone().resolved_to(([127, 0, 0, 1], 1).into());
        let round_after = ClusterAddresses::default().round(configured.iter(), Some(&resolved));
        assert_eq!(round_after, configured);
        // It was relayed.
        cluster.learn(whereabouts(true));
        assert_eq!(round(&mut cluster, "b:1"), ["x:1", "y:1", "a:1", "c:1", "b:1"]);
        assert_eq!(cluster.silence_max(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn the_leader_is_approached_once_and_only_from_a_relay() {
        let mut cluster = ClusterAddresses::default();
        cluster.learn(whereabouts(false));
        assert_eq!(cluster.take_leader(), None);
        cluster.learn(whereabouts(true));
        assert_eq!((cluster.take_leader(), cluster.take_leader()), (address("a:1"), None));
    }

    /// Such as an address that all nodes advertise, or one that the client's own machine has as well.
    #[test]
    fn an_address_of_the_leader_that_leads_to_a_relay_is_not_used_again_in_the_epoch() {
        let mut cluster = ClusterAddresses::default();
        cluster.learn(whereabouts(true));
        assert_eq!(cluster.take_leader(), address("a:1"));
        cluster.moves_to_leader();
        cluster.learn(whereabouts(true));
        assert_eq!(cluster.take_leader(), None);
        cluster.learn(Whereabouts { epoch: 2, ..whereabouts(true) });
        assert_eq!(cluster.take_leader(), address("a:1"), "another node may lead");
        cluster.moves_to_leader();
        cluster.learn(Whereabouts { epoch: 2, ..whereabouts(false) });
        cluster.learn(Whereabouts { epoch: 2, ..whereabouts(true) });
        assert_eq!(cluster.take_leader(), address("a:1"), "the connection was direct");
    }

    /// A broken server must not make the client ask without a pause.
    #[test]
    fn a_client_does_not_ask_all_the_time() {
        let mut cluster = ClusterAddresses::default();
        cluster.learn(Whereabouts { renew_deadline: Milliseconds(0), ..whereabouts(false) });
        assert_eq!(cluster.silence_max(), Some(SILENCE_MIN));
    }

    #[test]
    fn the_next_leader_is_tried_first_and_without_a_pause() {
        let mut cluster = ClusterAddresses::default();
        cluster.learn(whereabouts(true));
        cluster.on_moved(Moved { epoch: 1, addresses: texts(&["b:1"]) });
        assert!(cluster.knows_next());
        assert_eq!(cluster.take_leader(), None, "it is about to stop");
        assert_eq!(round(&mut cluster, "a:1"), ["b:1", "x:1", "y:1", "c:1", "a:1"]);
        assert!(!cluster.knows_next(), "it was tried");
        assert_eq!(round(&mut cluster, "a:1"), ["x:1", "y:1", "b:1", "c:1", "a:1"]);
    }
}
