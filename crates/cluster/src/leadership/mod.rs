//! Which node of a cluster leads, as a state machine without I/O and without a clock: times come in, transactions go out,
//! and their answers come in. At most one transaction of a node is in flight.
//!
//! Invariants, with the numbers of `docs/decisions/0020`:
//! - C2: each takeover raises the epoch by one.
//! - C3: a leader's deadline is the renew deadline after the *sending* of its last successful renewal. A machine past it
//!   has ended, whatever arrives afterwards.
//! - C4: without a release, a node takes over only the lease duration after the *arrival* of the answer that showed the
//!   leader's last sign of life, and only if that is still the last one, which the transaction compares.
//!
//! Both hold for any delay of requests and answers, and for attempts that are applied long after they were given up: each
//! transaction compares the revisions of the keys that its decision was based on. An unanswered attempt is never assumed to
//! have failed. What etcd shows later decides: see [`Machine::answered`].
//!
//! A standby looks at the leader with a transaction in each look period. It uses no watch: a watch that is late, broken or
//! compacted would need the looks all the same, and each look also gives the standby's own heartbeat.
//!
//! A standby may relay clients to the leader: [`Machine::relaying`] says to which, and until when; its heartbeats say which
//! relays are closed (invariant C5, `docs/decisions/0028`).
//!
//! The caller performs the transactions, ends the process at the deadline, loads the records and answers clients.

mod answers;
mod ending;
mod requests;
mod view;

use std::time::Duration;

use self::view::{Observation, Seen, Vacancy, View};
use crate::clock::BootTime;
use crate::coordinator::{CallError, Revision, Transaction, TransactionAnswer};
use crate::keys::{Drain, Format, Heartbeat, Keys, Leadership, Node, RelayEndpoint, Successor};
use crate::timing::Timing;

pub use self::ending::Ending;

/// What a node is, and what it has in common with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The keys of the cluster.
    pub keys: Keys,
    /// The name of this node.
    pub name: String,
    /// This run of the node.
    pub node: Node,
    /// The times, which must be those of the other nodes.
    pub timing: Timing,
    /// The oldest format of a record that this version writes.
    pub oldest_record_format: u32,
}

/// What a node has relayed, for its heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// It has no connection to a leader of an epoch below this one, and will have none.
    pub closed_below: u32,
    /// Connections that it relays.
    pub connections: u32,
}

/// To whom a node may relay connections of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relaying {
    /// Connections to leaders of epochs below this one have to be closed.
    pub epoch_min: u32,
    /// The leader, if there is one that accepts them: its epoch, and where.
    pub leader: Option<(u32, RelayEndpoint)>,
    /// When all of them have to be closed, unless this is extended before: the renew deadline after the sending of this
    /// node's last heartbeat that was confirmed, which a leader's renewals are, too.
    pub deadline: BootTime,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call [`Machine::sent`], perform the transaction, and call [`Machine::answered`].
    Send(Transaction),
    /// Nothing before this time, unless an answer or a release comes.
    WaitUntil(BootTime),
    /// The node's part in the cluster is over, as its phase says.
    End,
}

/// A term of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The fencing token: it grows by one with each takeover.
    pub epoch: u32,
    /// The revision of the leadership key since the takeover: every commit compares it, and the records are loaded as they were
    /// then.
    pub leadership_modified: Revision,
    /// The format in which the leader writes records, for all of its term. Every node that may take over from it reads it.
    pub record_format: u32,
}

/// What a node is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not joined yet. After a crash, it waits to see that the run before it gives no sign of life.
    Joining,
    /// It waits for the leader to release its leadership, or to give no sign of life.
    Standby {
        /// The node that leads or led last, and its epoch; `None` if there was none.
        leader: Option<(String, u32)>,
    },
    /// It leads until [`Machine::deadline`], which renewals extend: it has to load the records, and may serve.
    Leading(Term),
    /// It is leaving the cluster.
    Leaving,
    /// Its part is over: the process has to end, without another answer to a client.
    Over(Ending),
}

/// The leadership as one node sees it.
#[derive(Clone, Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    /// What `next` returned last, if it is to be sent.
    offered: Option<Request>,
    in_flight: Option<(Request, BootTime)>,
    /// The number of the last heartbeat that was sent.
    heartbeats: u64,
    relayed: Relayed,
    /// What an operator asks of this run.
    drain: Option<Seen<Drain>>,
    /// Until when a standby looks more often: something indicates that the leader has failed.
    hurries_until: BootTime,
    last_failure: Option<String>,
}

#[derive(Clone, Debug)]
enum State {
    Joining(Joining),
    Standby(Standby),
    Leading(Leading),
    Leaving(Leaving),
    Over(Ending),
}

/// The transactions, without what the machine knows anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// Reads, and writes the format if there is none.
    Read,
    Join,
    Look,
    TakeOver,
    /// With the number of the heartbeat.
    Renew(u64),
    Release,
    Leave,
}

#[derive(Clone, Debug)]
struct Joining {
    seen: Option<Box<Surroundings>>,
    /// Whether an attempt to join was sent: it may be applied, now or later.
    is_attempted: bool,
    /// When to read again.
    due: BootTime,
}

/// What a joining node has read.
#[derive(Clone, Debug)]
struct Surroundings {
    format: Seen<Format>,
    observation: Observation,
    /// Another run of the same name, if there is one.
    namesake: Option<Namesake>,
}

/// Another run with the name of this node.
#[derive(Clone, Debug)]
struct Namesake {
    node: Option<Seen<Node>>,
    heartbeat: Option<Seen<Heartbeat>>,
    /// When the answer arrived that showed these first.
    since: BootTime,
    /// How often they changed. One change may be a request that the run sent before its end.
    changes: u32,
}

#[derive(Clone, Debug)]
struct Standby {
    node_modified: Revision,
    format: Seen<Format>,
    observation: Observation,
    /// When to look again.
    due: BootTime,
    /// The sending of the last heartbeat that was confirmed, in this state.
    confirmed_at: BootTime,
    /// Whether a look has to come before a takeover, to see what became of the attempt before.
    is_look_first: bool,
}

#[derive(Clone, Debug)]
struct Leading {
    leadership: Seen<Leadership>,
    /// What the cluster agreed on when the node took over, or later.
    record_format: u32,
    /// The last known revision of the node's own heartbeat.
    heartbeat_modified: Revision,
    /// The sending of the last successful renewal.
    renewed_at: BootTime,
    /// Renewals that compared `heartbeat_modified` and were not answered: their heartbeats, and when they were sent.
    unanswered: Vec<(u64, BootTime)>,
    /// When to renew next.
    due: BootTime,
}

#[derive(Clone, Debug)]
struct Leaving {
    /// The leadership that has to be released.
    holding: Option<Seen<Leadership>>,
    /// Who is to lead next; `None`: whoever is first.
    successor: Option<Successor>,
    is_released: bool,
    /// When to give up; `None` until the first step.
    until: Option<BootTime>,
    /// When to try again.
    due: BootTime,
}

impl Machine {
    /// A node that has not joined yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Joining(Joining { seen: None, is_attempted: false, due: BootTime::default() }),
            offered: None,
            in_flight: None,
            heartbeats: 0,
            relayed: Relayed::default(),
            drain: None,
            hurries_until: BootTime::default(),
            last_failure: None,
        }
    }

    /// What to do at this time. It is the same until time passes or something is reported.
    pub fn next(&mut self, now: BootTime) -> Step {
        self.offered = None;
        self.check_deadline(now);
        let timing = self.settings.timing;
        let request = match &mut self.state {
            State::Over(_) => return Step::End,
            State::Leading(leading) => {
                let deadline = leading.deadline(timing);
                if self.in_flight.is_some() {
                    return Step::WaitUntil(deadline);
                }
                if now < leading.due {
                    return Step::WaitUntil(leading.due.min(deadline));
                }
                Request::Renew(self.heartbeats + 1)
            }
            State::Leaving(leaving) => {
                let until = *leaving.until.get_or_insert(now.after(2 * timing.request_timeout()));
                if now >= until {
                    let ending = leaving_ended(leaving.is_released, self.last_failure.clone());
                    return self.end(ending);
                }
                if self.in_flight.is_some() {
                    return Step::WaitUntil(until);
                }
                if now < leaving.due {
                    return Step::WaitUntil(leaving.due.min(until));
                }
                if leaving.holding.is_some() { Request::Release } else { Request::Leave }
            }
            // What is in flight is answered, or reported as unanswered, after the request timeout.
            State::Joining(_) | State::Standby(_) if self.in_flight.is_some() => {
                return Step::WaitUntil(now.after(timing.request_timeout()));
            }
            State::Joining(joining) => match joining.vacant_at(timing) {
                Some(vacant) if vacant <= now => Request::Join,
                _ if joining.due <= now => Request::Read,
                vacant => {
                    return Step::WaitUntil(vacant.map_or(joining.due, |vacant| vacant.min(joining.due)));
                }
            },
            State::Standby(standby) => {
                let vacancy =
                    standby.observation.vacancy(&self.settings.node.incarnation, timing.lease_duration());
                let may_take_over = self.settings.node.is_eligible && !standby.is_look_first;
                match vacancy {
                    Vacancy::AtOnce if may_take_over => Request::TakeOver,
                    Vacancy::At(time) if may_take_over && time <= now => Request::TakeOver,
                    _ if standby.due <= now => Request::Look,
                    Vacancy::At(time) if may_take_over => {
                        return Step::WaitUntil(time.min(standby.due));
                    }
                    _ => return Step::WaitUntil(standby.due),
                }
            }
        };
        match self.transaction(request) {
            Ok(transaction) => {
                self.offered = Some(request);
                Step::Send(transaction)
            }
            Err(ending) => self.end(ending),
        }
    }

    /// The transaction that [`Self::next`] returned last is going to be sent: to be called before that, with the time
    /// before that.
    pub fn sent(&mut self, now: BootTime) {
        let Some(request) = self.offered.take() else { return };
        match request {
            Request::Read | Request::Release | Request::Leave => {}
            Request::Join | Request::Look | Request::TakeOver | Request::Renew(_) => self.heartbeats += 1,
        }
        if let State::Joining(joining) = &mut self.state {
            joining.is_attempted |= request == Request::Join;
        }
        self.in_flight = Some((request, now));
    }

    /// The answer to the transaction that was sent, or that there is none.
    ///
    /// An unanswered attempt may have been applied, or may be later:
    /// - a takeover: the next look shows it. A look gives a heartbeat and reads the leadership key at one moment, so if it
    ///   shows that this run leads, it counts as a renewal from the time at which the *look* was sent.
    /// - a renewal: the next one finds its own earlier heartbeat, whose number says when it was sent.
    /// - a release: the next one finds the leadership key released.
    pub fn answered(&mut self, answer: Result<TransactionAnswer, CallError>, now: BootTime) {
        let Some((request, sent_at)) = self.in_flight.take() else { return };
        // Also if it is a successful renewal: others have seen the deadline pass.
        self.check_deadline(now);
        let outcome = match answer {
            Ok(answer) => self.performed(request, sent_at, &answer, now),
            Err(error) => {
                self.failed(request, sent_at, &error, now);
                Ok(())
            }
        };
        if let Err(ending) = outcome {
            self.end(ending);
        }
    }

    /// Until when a leader may write to clients; `None` for a node that does not lead, or is leaving. To be compared with
    /// the clock before each write.
    pub fn deadline(&self) -> Option<BootTime> {
        match &self.state {
            State::Leading(leading) => Some(leading.deadline(self.settings.timing)),
            _ => None,
        }
    }

    /// What the heartbeats from now on say of the node's relays. `closed_below` never falls.
    pub fn set_relayed(&mut self, relayed: Relayed) {
        assert!(
            relayed.closed_below >= self.relayed.closed_below,
            "a promise to other nodes is not taken back"
        );
        self.relayed = relayed;
    }

    /// What an operator asks of this run, with the revision at which it was written; `None`: nothing, or it has refused.
    pub fn drain(&self) -> Option<(&Drain, Revision)> {
        self.drain.as_ref().map(|seen| (&seen.value, seen.modified))
    }

    /// To whom the node may relay connections of clients.
    pub fn relaying(&self) -> Relaying {
        let none = |epoch_min, deadline| Relaying { epoch_min, leader: None, deadline };
        match &self.state {
            State::Joining(_) => none(0, BootTime::default()),
            State::Standby(standby) => {
                let (epoch_min, leader) = standby.observation.relayable(&self.settings.node.incarnation);
                let leader = leader.filter(|_| self.settings.node.relays);
                let deadline = standby.confirmed_at.after(self.settings.timing.renew_deadline());
                Relaying { epoch_min, leader, deadline }
            }
            // A process that has led relays no more. Nobody else leads before its deadline, so it may close them until then.
            State::Leading(leading) => none(u32::MAX, leading.deadline(self.settings.timing)),
            State::Leaving(_) | State::Over(_) => none(u32::MAX, BootTime::default()),
        }
    }

    /// Something indicates that the leader has failed, or the heartbeat has news for other nodes: a standby looks at once,
    /// and more often for a while.
    pub fn hurry(&mut self, now: BootTime) {
        if let State::Standby(standby) = &mut self.state {
            self.hurries_until = now.after(self.settings.timing.lease_duration());
            standby.due = standby.due.min(now);
        }
    }

    /// The time between two looks.
    fn look_period(&self, observation: &Observation, now: BootTime) -> Duration {
        let timing = self.settings.timing;
        // A leader that is well renews in each retry period.
        let is_silent = observation.silence(now) > 2 * timing.retry_period();
        if is_silent || now < self.hurries_until { timing.hurried_period() } else { timing.look_period() }
    }

    /// The node is to leave the cluster, and to release its leadership if it leads. A leader calls this after it has closed
    /// its last connection. `successor` is to lead next; `None`: whoever is first. [`Ending::Released`] follows, or
    /// [`Ending::NotReleased`] after two request timeouts.
    pub fn release(&mut self, successor: Option<Successor>) {
        let holding = match &self.state {
            State::Joining(joining) if !joining.is_attempted => {
                self.end(Ending::Released);
                return;
            }
            State::Joining(_) | State::Standby(_) => None,
            State::Leading(leading) => Some(leading.leadership.clone()),
            State::Leaving(_) | State::Over(_) => return,
        };
        self.offered = None;
        let due = BootTime::default();
        self.state = State::Leaving(Leaving { holding, successor, is_released: false, until: None, due });
    }

    /// What the node is doing.
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::Joining(_) => Phase::Joining,
            State::Standby(standby) => {
                let leader = standby.observation.leadership();
                Phase::Standby { leader: leader.map(|seen| (seen.value.node.clone(), seen.value.epoch)) }
            }
            State::Leading(leading) => Phase::Leading(leading.term()),
            State::Leaving(_) => Phase::Leaving,
            State::Over(ending) => Phase::Over(ending.clone()),
        }
    }

    /// Why the last transaction that failed did, if none has been answered since.
    pub fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }

    fn end(&mut self, ending: Ending) -> Step {
        self.offered = None;
        self.state = State::Over(ending);
        Step::End
    }

    /// Ends a leader whose deadline has passed (C3).
    fn check_deadline(&mut self, now: BootTime) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            let failure = self.last_failure.clone();
            let failure = failure.unwrap_or_else(|| "the node was suspended or overloaded".to_owned());
            self.end(Ending::DeadlinePassed(failure));
        }
    }
}

impl Joining {
    /// From when on the node may join; `None` if it has not read what is there.
    fn vacant_at(&self, timing: Timing) -> Option<BootTime> {
        let seen = self.seen.as_ref()?;
        let vacant = seen.namesake.as_ref().map(|namesake| namesake.since.after(timing.lease_duration()));
        Some(vacant.unwrap_or_default())
    }
}

impl Namesake {
    /// The other run in this view, if there is one.
    fn seen(former: Option<Self>, view: &View, now: BootTime) -> Option<Self> {
        let (node, heartbeat) = (view.node.clone(), view.heartbeat.clone());
        if node.is_none() && heartbeat.is_none() {
            return None;
        }
        let Some(former) = former else { return Some(Self { node, heartbeat, since: now, changes: 0 }) };
        if former.node == node && former.heartbeat == heartbeat {
            return Some(former);
        }
        Some(Self { node, heartbeat, since: now, changes: former.changes + 1 })
    }

    fn node_modified(&self) -> Revision {
        self.node.as_ref().map_or(0, |node| node.modified)
    }

    fn heartbeat_modified(&self) -> Revision {
        self.heartbeat.as_ref().map_or(0, |heartbeat| heartbeat.modified)
    }
}

impl Leading {
    fn term(&self) -> Term {
        Term {
            epoch: self.leadership.value.epoch,
            leadership_modified: self.leadership.modified,
            record_format: self.record_format,
        }
    }

    fn deadline(&self, timing: Timing) -> BootTime {
        self.renewed_at.after(timing.renew_deadline())
    }

    /// A heartbeat is known to be stored, and a renewal to have been sent at this time.
    fn renewed(&mut self, sent_at: BootTime, heartbeat: Revision, due: BootTime) {
        self.renewed_at = self.renewed_at.max(sent_at);
        self.heartbeat_modified = heartbeat;
        self.unanswered.clear();
        self.due = due;
    }
}

fn leaving_ended(is_released: bool, failure: Option<String>) -> Ending {
    if is_released {
        // The keys of the node are left behind, which delays nobody but its next run.
        return Ending::Released;
    }
    Ending::NotReleased(failure.unwrap_or_else(|| "no answer".to_owned()))
}
