//! A state machine that decides which node of a cluster leads, without I/O and without a clock: it takes times and the
//! answers to its transactions, and returns the next transaction. At most one transaction of a node is in flight.
//!
//! Invariants, with the numbers of `docs/decisions/0020`:
//! - C2: each takeover raises the epoch by one.
//! - C3: a leader's deadline is the renew deadline after the *sending* of its last successful renewal. A [`Machine`]
//!   past its deadline has ended, whatever arrives afterwards.
//! - C4: without a release, a node takes over only the lease duration after the *arrival* of the answer that showed the
//!   leader's last heartbeat, and only if that is still the last one, which the transaction compares.
//!
//! C3 and C4 hold for any delay of requests and answers, and for attempts that are applied long after they were given
//! up: each transaction compares the revisions of the keys that its decision was based on. An unanswered attempt is
//! never assumed to have failed. What etcd shows later decides: see [`Machine::answered`].
//!
//! A standby polls etcd with a transaction in each poll period. It uses no watch: a watch that is late, broken or compacted
//! would need the polls all the same, and each poll also sends the standby's own heartbeat.
//!
//! A standby may relay clients to the leader: [`Machine::relay_target`] has the leader and the deadline, and the
//! standby's heartbeats report which relays are closed (invariant C5, `docs/decisions/0028`).
//!
//! The driver is `src/server/daemon/node.rs`. It performs the transactions, applies [`Machine::deadline`] and
//! [`Machine::relay_target`] after each step, and ends the process at the deadline. `transactions` has the transactions and
//! what their answers change, `view` what a node has read about the leader.

mod transactions;
mod view;

use std::time::Duration;

use self::view::{AnswerError, Observation, Seen, TakeoverTime};
use crate::coordinator::{CallError, Revision, Transaction, TransactionAnswer};
use crate::error::Ending;
use crate::keys::{Drain, Format, Heartbeat, Keys, Leadership, Node, RelayEndpoint, Successor};
use crate::timing::{BootTime, Timing};

/// The settings of a node.
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

/// The report about a node's relays that its heartbeats contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayReport {
    /// The node has no connection to a leader of an epoch below this one, and will have none.
    pub closed_below: u32,
    /// The number of connections that the node relays.
    pub connections: u32,
}

/// The leader to which a node may relay connections of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayTarget {
    /// Connections to leaders of epochs below this one must be closed.
    pub epoch_min: u32,
    /// The epoch and the endpoint of the leader; `None`: no leader accepts relayed connections.
    pub leader: Option<(u32, RelayEndpoint)>,
    /// When all connections must be closed, unless the deadline is extended before: the renew deadline after the
    /// sending of this node's last confirmed heartbeat. A leader's renewals are heartbeats, too.
    pub deadline: BootTime,
}

/// The next step of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call [`Machine::sent`], perform the transaction, and call [`Machine::answered`].
    Send(Transaction),
    /// Wait until this time, or until an answer or an input arrives.
    WaitUntil(BootTime),
    /// The node no longer takes part in the cluster; [`Phase::Over`] has the reason.
    End,
}

/// A term of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The number of the term. It grows by one with each takeover.
    pub epoch: u32,
    /// The revision of the leadership key since the takeover: every commit compares it, and the records are loaded as they
    /// were at this revision.
    pub leadership_modified: Revision,
    /// The format in which the leader writes records, for all of its term. Every node that may take over reads this format.
    pub record_format: u32,
}

/// The phase of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not joined yet. After a crash, it waits until the previous run has sent no heartbeat for the lease
    /// duration.
    Joining,
    /// It waits until the leader releases its leadership or stops sending heartbeats.
    Standby {
        /// The node that leads or led last, and its epoch; `None`: no node has led yet.
        leader: Option<(String, u32)>,
    },
    /// It leads until [`Machine::deadline`], which renewals extend: it loads the records, and serves clients.
    Leading(Term),
    /// It is leaving the cluster.
    Leaving,
    /// It no longer takes part. The process has to end, without another response to a client.
    Over(Ending),
}

/// An event for the driver, from [`Machine::poll_event`].
#[derive(Clone, Debug)]
pub enum Event {
    /// The node is in another phase, or another node leads.
    Phase(Phase),
    /// etcd does not answer as it should, for this reason. Reported only once until etcd answers.
    EtcdFailing(String),
    /// etcd answers again.
    EtcdRecovered,
    /// An operator drains the node. Reported once for each request.
    Drain(DrainRequest),
}

/// An operator's request to drain a node.
#[derive(Clone, Debug)]
pub struct DrainRequest {
    /// Its value in etcd.
    pub drain: Drain,
    /// The revision at which it was written.
    pub written: Revision,
}

/// An input from another thread of the process, for [`Machine::handle`].
#[derive(Debug)]
pub enum Input {
    /// Calls [`Machine::release`].
    Release(Option<Successor>),
    /// Calls [`Machine::poll_now`].
    PollNow,
    /// Each thread that serves clients has just finished a turn, at this time at the latest. After the first such input, a
    /// leader renews its leadership only while more of them arrive: a leader whose threads hang must not keep it.
    ThreadsRan(BootTime),
}

/// A node's part in deciding which node leads.
#[derive(Clone, Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    /// The request whose transaction `next` has returned, until it is sent.
    offered: Option<Request>,
    in_flight: Option<(Request, BootTime)>,
    /// The number of the last heartbeat that was sent.
    heartbeats: u64,
    relay_report: RelayReport,
    /// The request of an operator to drain this run.
    drain: Option<Seen<Drain>>,
    /// Until when a standby polls more often, because something indicates that the leader has failed.
    polls_fast_until: BootTime,
    threads_ran_at: Option<BootTime>,
    /// Why the last transaction failed, until one is answered.
    last_failure: Option<String>,
    reported: Reported,
}

/// The state that [`Machine::poll_event`] has last reported.
#[derive(Clone, Debug, Default)]
struct Reported {
    phase: Option<Phase>,
    is_etcd_failing: bool,
    drain: Revision,
}

#[derive(Clone, Debug)]
enum State {
    Joining(Joining),
    Standby(Standby),
    Leading(Leading),
    Leaving(Leaving),
    Over(Ending),
}

/// The kinds of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// Reads, and writes the format if there is none.
    Read,
    Join,
    Poll,
    TakeOver,
    /// With the number of the heartbeat.
    Renew(u64),
    Release,
    Leave,
}

#[derive(Clone, Debug)]
struct Joining {
    seen: Option<Box<JoinView>>,
    /// Whether an attempt to join was sent: it may be applied, now or later.
    is_attempted: bool,
    /// When to read again.
    due: BootTime,
}

/// The cluster as a joining node has read it.
#[derive(Clone, Debug)]
struct JoinView {
    format: Seen<Format>,
    observation: Observation,
    other_run: Option<OtherRun>,
}

/// Another run with the name of this node.
#[derive(Clone, Debug)]
struct OtherRun {
    node: Option<Seen<Node>>,
    heartbeat: Option<Seen<Heartbeat>>,
    /// When the answer arrived that first showed these values.
    since: BootTime,
    /// How often they changed. One change may be a request that the run sent before its end.
    changes: u32,
}

#[derive(Clone, Debug)]
struct Standby {
    node_modified: Revision,
    format: Seen<Format>,
    observation: Observation,
    /// When to poll again.
    due: BootTime,
    /// When the last confirmed heartbeat in this state was sent.
    confirmed_at: BootTime,
    /// Whether a poll has to come before a takeover, to show the outcome of the previous attempt.
    must_poll_first: bool,
}

#[derive(Clone, Debug)]
struct Leading {
    leadership: Seen<Leadership>,
    /// The cluster's format of records when the node took over, or when a poll showed that it had.
    record_format: u32,
    /// The last known revision of the node's own heartbeat.
    heartbeat_modified: Revision,
    /// When the last successful renewal was sent.
    renewed_at: BootTime,
    /// Unanswered renewals that compared `heartbeat_modified`: the numbers of their heartbeats, and when they were
    /// sent.
    unanswered: Vec<(u64, BootTime)>,
    /// When to renew next.
    due: BootTime,
}

#[derive(Clone, Debug)]
struct Leaving {
    /// The leadership that has to be released.
    leadership: Option<Seen<Leadership>>,
    /// The node that leads next; `None`: any node.
    successor: Option<Successor>,
    is_released: bool,
    /// When to give up; `None` until the first step.
    until: Option<BootTime>,
    /// When to try again.
    due: BootTime,
}

impl Machine {
    /// Creates a node that has not joined yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Joining(Joining { seen: None, is_attempted: false, due: BootTime::default() }),
            offered: None,
            in_flight: None,
            heartbeats: 0,
            relay_report: RelayReport::default(),
            drain: None,
            polls_fast_until: BootTime::default(),
            threads_ran_at: None,
            last_failure: None,
            reported: Reported::default(),
        }
    }

    /// Returns the step for this time. It stays the same until time passes, or an answer or an input arrives.
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
                // Threads that are slow, but do not hang, have half of the renew deadline to finish a turn.
                if self.threads_ran_at.is_some_and(|at| now.since(at) > timing.renew_deadline() / 2) {
                    return Step::WaitUntil(deadline);
                }
                Request::Renew(self.heartbeats + 1)
            }
            State::Leaving(leaving) => {
                let until = *leaving.until.get_or_insert(now.after(2 * timing.request_timeout()));
                if now >= until {
                    let failure = self.last_failure.clone().unwrap_or_else(|| "no answer".to_owned());
                    // The node's keys may still be there. They only delay its next run.
                    let is_released = leaving.is_released;
                    return self.end(if is_released {
                        Ending::Released
                    } else {
                        Ending::NotReleased(failure)
                    });
                }
                if self.in_flight.is_some() {
                    return Step::WaitUntil(until);
                }
                if now < leaving.due {
                    return Step::WaitUntil(leaving.due.min(until));
                }
                if leaving.leadership.is_some() { Request::Release } else { Request::Leave }
            }
            // The request in flight is answered, or reported as unanswered, within the request timeout.
            State::Joining(_) | State::Standby(_) if self.in_flight.is_some() => {
                return Step::WaitUntil(now.after(timing.request_timeout()));
            }
            State::Joining(joining) => match joining.may_join_at(timing) {
                Some(time) if time <= now => Request::Join,
                _ if joining.due <= now => Request::Read,
                time => return Step::WaitUntil(time.map_or(joining.due, |time| time.min(joining.due))),
            },
            State::Standby(standby) => {
                let may_take_over = self.settings.node.is_eligible && !standby.must_poll_first;
                match standby.observation.takeover_time(&self.settings.node.incarnation, timing) {
                    TakeoverTime::Now if may_take_over => Request::TakeOver,
                    TakeoverTime::At(time) if may_take_over && time <= now => Request::TakeOver,
                    _ if standby.due <= now => Request::Poll,
                    TakeoverTime::At(time) if may_take_over => {
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

    /// Notes that the transaction that [`Self::next`] returned last is about to be sent. Call this before sending, with
    /// the time of the call.
    pub fn sent(&mut self, now: BootTime) {
        let Some(request) = self.offered.take() else { return };
        match request {
            Request::Read | Request::Release | Request::Leave => {}
            Request::Join | Request::Poll | Request::TakeOver | Request::Renew(_) => self.heartbeats += 1,
        }
        if let State::Joining(joining) = &mut self.state {
            joining.is_attempted |= request == Request::Join;
        }
        self.in_flight = Some((request, now));
    }

    /// Applies the answer to the transaction that was sent, or its failure.
    ///
    /// An unanswered attempt may have been applied, or may still be applied:
    /// - a takeover: the next poll shows it. A poll sends a heartbeat and reads the leadership key in one transaction,
    ///   so if it shows that this run leads, it counts as a renewal that was sent when the *poll* was sent.
    /// - a renewal: the next one finds the node's own earlier heartbeat, whose number shows when it was sent.
    /// - a release: the next one finds the leadership key released.
    pub fn answered(&mut self, answer: Result<TransactionAnswer, CallError>, now: BootTime) {
        let Some((request, sent_at)) = self.in_flight.take() else { return };
        // Not even a successful renewal saves a leader after its deadline, which other threads may have seen pass.
        self.check_deadline(now);
        let applied = answer
            .map_err(AnswerError::Call)
            .and_then(|answer| self.on_answer(request, sent_at, &answer, now));
        match applied {
            Ok(()) => self.last_failure = None,
            Err(AnswerError::Ends(ending)) => {
                self.end(ending);
            }
            Err(AnswerError::Call(error)) => self.on_failure(request, sent_at, &error, now),
        }
    }

    /// Returns until when a leader may write to clients; `None` for a node that does not lead, or is leaving. Compare
    /// it with the clock before each write.
    pub fn deadline(&self) -> Option<BootTime> {
        match &self.state {
            State::Leading(leading) => Some(leading.deadline(self.settings.timing)),
            _ => None,
        }
    }

    /// The leader to which the node may relay connections of clients.
    pub fn relay_target(&self) -> RelayTarget {
        let none = |epoch_min, deadline| RelayTarget { epoch_min, leader: None, deadline };
        match &self.state {
            State::Joining(_) => none(0, BootTime::default()),
            State::Standby(standby) => {
                let (epoch_min, leader) = standby.observation.relay_target(&self.settings.node.incarnation);
                let leader = leader.filter(|_| self.settings.node.relays);
                let deadline = standby.confirmed_at.after(self.settings.timing.renew_deadline());
                RelayTarget { epoch_min, leader, deadline }
            }
            // A process that has led no longer relays. No other node leads before its deadline, so it has until then to
            // close its relays.
            State::Leading(leading) => none(u32::MAX, leading.deadline(self.settings.timing)),
            State::Leaving(_) | State::Over(_) => none(u32::MAX, BootTime::default()),
        }
    }

    /// Sets the report about the node's relays for the next heartbeats. `closed_below` must not fall.
    pub fn set_relay_report(&mut self, report: RelayReport) {
        assert!(
            report.closed_below >= self.relay_report.closed_below,
            "other nodes rely on what a heartbeat has said"
        );
        self.relay_report = report;
    }

    /// The next event that was not returned before.
    pub fn poll_event(&mut self) -> Option<Event> {
        let phase = self.phase();
        if self.reported.phase.as_ref() != Some(&phase) {
            self.reported.phase = Some(phase.clone());
            return Some(Event::Phase(phase));
        }
        if self.reported.is_etcd_failing != self.last_failure.is_some() {
            self.reported.is_etcd_failing = self.last_failure.is_some();
            return Some(self.last_failure.clone().map_or(Event::EtcdRecovered, Event::EtcdFailing));
        }
        let Seen { value, modified } =
            self.drain.as_ref().filter(|seen| seen.modified != self.reported.drain)?;
        self.reported.drain = *modified;
        Some(Event::Drain(DrainRequest { drain: value.clone(), written: *modified }))
    }

    /// Takes an input of another thread.
    pub fn handle(&mut self, input: Input, now: BootTime) {
        match input {
            Input::Release(successor) => self.release(successor),
            Input::PollNow => self.poll_now(now),
            Input::ThreadsRan(at) => self.threads_ran_at = Some(at),
        }
    }

    /// Makes a standby poll at once, and more often for the lease duration, because something indicates that the leader
    /// has failed, or other nodes wait for this node's next heartbeat.
    pub fn poll_now(&mut self, now: BootTime) {
        if let State::Standby(standby) = &mut self.state {
            self.polls_fast_until = now.after(self.settings.timing.lease_duration());
            standby.due = standby.due.min(now);
        }
    }

    /// Makes the node leave the cluster, and release its leadership if it leads. A leader must have closed its last
    /// client connection before. `successor` leads next; `None`: any node. [`Ending::Released`] follows, or
    /// [`Ending::NotReleased`] after two request timeouts.
    pub fn release(&mut self, successor: Option<Successor>) {
        let leadership = match &self.state {
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
        self.state = State::Leaving(Leaving { leadership, successor, is_released: false, until: None, due });
    }

    /// The phase of the node.
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

    /// Returns why the last transaction failed, if none has been answered since.
    pub fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }

    /// The time between two polls.
    fn poll_period(&self, observation: &Observation, now: BootTime) -> Duration {
        let timing = self.settings.timing;
        // A healthy leader renews in each retry period.
        let is_silent = observation.unchanged_for(now) > 2 * timing.retry_period();
        if is_silent || now < self.polls_fast_until {
            timing.fast_poll_period()
        } else {
            timing.poll_period()
        }
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

    /// Notes that a heartbeat was stored at the revision `heartbeat`, and that a renewal that was sent at `sent_at`
    /// succeeded.
    fn renewed(&mut self, sent_at: BootTime, heartbeat: Revision, due: BootTime) {
        self.renewed_at = self.renewed_at.max(sent_at);
        self.heartbeat_modified = heartbeat;
        self.unanswered.clear();
        self.due = due;
    }
}
