//! The transactions of a node, and the changes that their answers make.

use std::time::Duration;

use super::view::{AnswerError, Observation, Seen, TakeoverTime, View, drain_request, seen};
use super::{JoinView, Joining, Leading, Leaving, Machine, OtherRun, Request, Settings, Standby, State};
use crate::coordinator::{CallError, Compare, Operation, Revision, Transaction, TransactionAnswer};
use crate::error::Ending;
use crate::keys::{Drain, Format, Heartbeat, LAYOUT, Leadership, LeadershipState, Marker, encode};
use crate::timing::{BootTime, Timing};

impl Machine {
    pub(super) fn transaction(&self, request: Request) -> Result<Transaction, Ending> {
        let keys = &self.settings.keys;
        let reads = || View::reads(keys, &self.settings.name, self.watched());
        Ok(match (request, &self.state) {
            (Request::Join, State::Joining(Joining { seen: Some(seen), .. })) => Transaction {
                compare: vec![
                    modified(keys.format(), seen.format.modified),
                    modified(self.node_key(), seen.other_run.as_ref().map_or(0, OtherRun::node_modified)),
                    modified(
                        self.heartbeat_key(),
                        seen.other_run.as_ref().map_or(0, OtherRun::heartbeat_modified),
                    ),
                ],
                then: with(vec![put(self.node_key(), &self.settings.node), self.put_heartbeat()], reads()),
                otherwise: reads(),
            },
            (Request::Poll, State::Standby(standby)) => Transaction {
                compare: vec![modified(self.node_key(), standby.node_modified)],
                then: with(vec![self.put_heartbeat()], reads()),
                otherwise: reads(),
            },
            (Request::TakeOver, State::Standby(standby)) => self.take_over(standby)?,
            (Request::Renew(_), State::Leading(leading)) => Transaction {
                compare: vec![
                    modified(keys.leadership(), leading.leadership.modified),
                    modified(self.heartbeat_key(), leading.heartbeat_modified),
                ],
                then: vec![self.put_heartbeat(), read(self.drain_key())],
                otherwise: vec![read(keys.leadership()), read(self.heartbeat_key())],
            },
            (Request::Release, State::Leaving(Leaving { leadership: Some(leadership), successor, .. })) => {
                let released = Leadership {
                    state: LeadershipState::Released,
                    successor: successor.clone(),
                    ..leadership.value.clone()
                };
                Transaction {
                    compare: vec![modified(keys.leadership(), leadership.modified)],
                    then: vec![put(keys.leadership(), &released)],
                    otherwise: vec![],
                }
            }
            // The value is compared, because the revision is not known if the attempt to join was not answered. Another
            // run has another value.
            (Request::Leave, _) => Transaction {
                compare: vec![Compare::Value { key: self.node_key(), is: encode(&self.settings.node) }],
                then: vec![
                    Operation::Delete { key: self.node_key() },
                    Operation::Delete { key: self.heartbeat_key() },
                    Operation::Delete { key: self.drain_key() },
                    read(keys.leadership()),
                ],
                otherwise: vec![read(keys.leadership())],
            },
            // `Read`. The other requests are only made in the states above.
            _ => Transaction {
                compare: vec![modified(keys.format(), 0)],
                then: with(vec![put(keys.format(), &self.format())], reads()),
                otherwise: reads(),
            },
        })
    }

    fn take_over(&self, standby: &Standby) -> Result<Transaction, Ending> {
        let Settings { keys, name, .. } = &self.settings;
        let epoch = standby.observation.next_epoch().ok_or(Ending::EpochsExhausted)?;
        // The format is compared too: a node must not take over records that it cannot read, and must write what all
        // others can read.
        let mut compare = vec![
            modified(keys.format(), standby.format.modified),
            modified(self.node_key(), standby.node_modified),
            modified(keys.leadership(), standby.observation.leadership_modified()),
        ];
        if let (Some(leader), Some(at)) =
            (standby.observation.leader(), standby.observation.heartbeat_modified())
        {
            compare.push(modified(keys.heartbeat(leader), at));
        }
        let then = vec![
            put(keys.leadership(), &self.leadership(epoch)),
            put(keys.marker(), &Marker { epoch, commit: 0 }),
            self.put_heartbeat(),
        ];
        Ok(Transaction { compare, then, otherwise: View::reads(keys, name, self.watched()) })
    }

    /// The value of the leadership key while this run leads in this epoch.
    fn leadership(&self, epoch: u32) -> Leadership {
        Leadership {
            epoch,
            node: self.settings.name.clone(),
            incarnation: self.settings.node.incarnation.clone(),
            state: LeadershipState::Held,
            successor: None,
        }
    }

    /// The name of the node that leads or led last, whose keys are read too; `None`: there is none, or it is this node.
    fn watched(&self) -> Option<&str> {
        let observation = match &self.state {
            State::Joining(joining) => &joining.seen.as_ref()?.observation,
            State::Standby(standby) => &standby.observation,
            _ => return None,
        };
        observation.leader().filter(|leader| *leader != self.settings.name)
    }

    fn node_key(&self) -> Vec<u8> {
        self.settings.keys.node(&self.settings.name)
    }

    fn heartbeat_key(&self) -> Vec<u8> {
        self.settings.keys.heartbeat(&self.settings.name)
    }

    fn drain_key(&self) -> Vec<u8> {
        self.settings.keys.drain(&self.settings.name)
    }

    fn put_heartbeat(&self) -> Operation {
        let heartbeat = Heartbeat {
            incarnation: self.settings.node.incarnation.clone(),
            count: self.heartbeats + 1,
            relays_closed_below: self.relay_report.closed_below,
            relays: self.relay_report.connections,
        };
        put(self.heartbeat_key(), &heartbeat)
    }

    fn format(&self) -> Format {
        Format {
            layout: LAYOUT,
            record_format: self.settings.node.record_format,
            renew_deadline_ms: self.renew_deadline_ms(),
        }
    }

    fn renew_deadline_ms(&self) -> u64 {
        u64::try_from(self.settings.timing.renew_deadline().as_millis()).unwrap_or(u64::MAX)
    }

    /// Applies the answer to a request.
    pub(super) fn on_answer(
        &mut self,
        request: Request,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), AnswerError> {
        match (request, &self.state) {
            (Request::Read | Request::Join, State::Joining(_)) => self.on_read(request, sent_at, answer, now),
            (Request::Poll, State::Standby(_)) => self.on_poll(sent_at, answer, now),
            (Request::TakeOver, State::Standby(_)) => self.on_takeover(sent_at, answer, now),
            (Request::Renew(_), State::Leading(_)) => self.on_renewal(sent_at, answer, now),
            (Request::Release | Request::Leave, State::Leaving(_)) => self.on_leave(request, answer),
            // The node has ended, or is leaving; then its next transactions show the outcome.
            _ => Ok(()),
        }
    }

    fn on_read(
        &mut self,
        request: Request,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), AnswerError> {
        let view = View::new(&answer.read, self.watched())?;
        let format = self.acceptable_format(view.format.as_ref())?;
        let Settings { name, node: this, timing, .. } = &self.settings;
        let State::Joining(joining) = &mut self.state else { return Ok(()) };
        let former = joining.seen.take();
        let former_run = former.as_ref().and_then(|seen| seen.other_run.clone());
        let observation = match former {
            None => Observation::new(&view, name, now),
            Some(seen) => {
                let mut observation = seen.observation;
                if let (Request::Join, true, Some(other_run)) = (request, answer.held, &former_run) {
                    observation.replaced(other_run.heartbeat_modified());
                }
                observation.update(&view, name, now);
                observation
            }
        };
        match &view.node {
            // This run has joined, perhaps by an earlier attempt that was not answered.
            Some(node) if node.value.incarnation == this.incarnation => {
                self.state = State::Standby(Standby {
                    node_modified: node.modified,
                    format,
                    observation,
                    due: now,
                    confirmed_at: BootTime::default(),
                    must_poll_first: false,
                });
            }
            _ => {
                let other_run = OtherRun::seen(former_run, &view, now);
                if let Some(OtherRun { changes: 2.., node, .. }) = &other_run {
                    let incarnation = node.as_ref().map(|node| node.value.incarnation.to_string());
                    let incarnation = incarnation.unwrap_or_else(|| "unknown".to_owned());
                    return Err(Ending::NameInUse { node: name.clone(), incarnation }.into());
                }
                joining.due = sent_at.after(timing.poll_period());
                joining.seen = Some(Box::new(JoinView { format, observation, other_run }));
            }
        }
        Ok(())
    }

    fn on_poll(
        &mut self,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), AnswerError> {
        self.update_standby(answer, now)?;
        let timing = self.settings.timing;
        let incarnation = &self.settings.node.incarnation;
        let State::Standby(standby) = &self.state else { return Ok(()) };
        let period = self.poll_period(&standby.observation, now);
        let State::Standby(standby) = &mut self.state else { return Ok(()) };
        standby.must_poll_first = false;
        standby.due = sent_at.after(period);
        if answer.held {
            standby.confirmed_at = sent_at;
        }
        match standby.observation.takeover_time(incarnation, timing) {
            TakeoverTime::AfterPoll => standby.due = now,
            _ if !answer.held => standby.due = now,
            TakeoverTime::At(_) | TakeoverTime::Now => {}
        }
        let Some(leadership) = standby.observation.led_by(incarnation).cloned() else { return Ok(()) };
        // An unanswered takeover was applied. This poll counts as a renewal only if it has also written a heartbeat.
        if answer.held {
            self.lead(leadership, answer.revision, sent_at, now);
        }
        Ok(())
    }

    fn on_takeover(
        &mut self,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), AnswerError> {
        let timing = self.settings.timing;
        if !answer.held {
            self.update_standby(answer, now)?;
        }
        let State::Standby(standby) = &mut self.state else { return Ok(()) };
        standby.must_poll_first = true;
        standby.due = now;
        if answer.held {
            let epoch = standby.observation.next_epoch().ok_or(Ending::EpochsExhausted)?;
            let value = self.leadership(epoch);
            self.lead(Seen { value, modified: answer.revision }, answer.revision, sent_at, now);
        } else if standby.observation.takeover_time(&self.settings.node.incarnation, timing)
            != TakeoverTime::AfterPoll
        {
            standby.due = sent_at.after(timing.poll_period());
        }
        Ok(())
    }

    /// Begins to lead: this run has the leadership, and a transaction that was sent at `sent_at` wrote its heartbeat at
    /// the revision `heartbeat`. If the deadline that follows from `sent_at` has passed, the node stays a standby until
    /// its next poll.
    fn lead(&mut self, leadership: Seen<Leadership>, heartbeat: Revision, sent_at: BootTime, now: BootTime) {
        let timing = self.settings.timing;
        // The takeover compared this format, or the poll that found the takeover applied has read it. A node that does
        // not read this format cannot take over later, because its takeover would compare the format too.
        let State::Standby(Standby { format, .. }) = &self.state else { return };
        let leading = Leading {
            record_format: format.value.record_format,
            leadership,
            heartbeat_modified: heartbeat,
            renewed_at: sent_at,
            unanswered: Vec::new(),
            due: sent_at.after(timing.retry_period()),
        };
        if now < leading.deadline(timing) {
            self.state = State::Leading(leading);
        }
    }

    fn on_renewal(
        &mut self,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), AnswerError> {
        let Settings { name, node, timing, .. } = &self.settings;
        let State::Leading(leading) = &mut self.state else { return Ok(()) };
        if answer.revision < leading.heartbeat_modified {
            let seen = leading.heartbeat_modified;
            return Err(Ending::WentBack { seen, found: answer.revision }.into());
        }
        if answer.held {
            let [drain] = &answer.read[..] else { return Err(AnswerError::malformed()) };
            let drain = drain_request(drain);
            leading.renewed(sent_at, answer.revision, sent_at.after(timing.retry_period()));
            self.update_drain(drain);
            return Ok(());
        }
        let [leadership, heartbeat] = &answer.read[..] else { return Err(AnswerError::malformed()) };
        let leadership: Option<Seen<Leadership>> = seen(leadership)?;
        if let Some(found) = leadership.as_ref().filter(|found| found.modified < leading.leadership.modified)
        {
            let (seen, found) = (leading.leadership.modified, found.modified);
            return Err(Ending::WentBack { seen, found }.into());
        }
        if leadership.as_ref().is_none_or(|found| found.modified != leading.leadership.modified) {
            let epoch = leading.leadership.value.epoch;
            return Err(Ending::Superseded { epoch, by: leadership.map(|found| found.value) }.into());
        }
        let heartbeat: Option<Seen<Heartbeat>> = seen(heartbeat)?;
        let Some(heartbeat) = heartbeat else {
            return Err(Ending::Forgotten(name.clone()).into());
        };
        if heartbeat.value.incarnation != node.incarnation {
            return Err(Ending::NameTaken(name.clone()).into());
        }
        if heartbeat.modified < leading.heartbeat_modified {
            let seen = leading.heartbeat_modified;
            return Err(Ending::WentBack { seen, found: heartbeat.modified }.into());
        }
        // An earlier attempt was applied. If it was a renewal, its number identifies it; a poll that this node sent as
        // a standby proves nothing about the leadership.
        let count = heartbeat.value.count;
        let applied = leading.unanswered.iter().find(|(number, _)| *number == count).map(|(_, sent)| *sent);
        leading.renewed(applied.unwrap_or(leading.renewed_at), heartbeat.modified, now);
        Ok(())
    }

    fn on_leave(&mut self, request: Request, answer: &TransactionAnswer) -> Result<(), AnswerError> {
        let this = &self.settings.node.incarnation;
        let State::Leaving(leaving) = &mut self.state else { return Ok(()) };
        if request == Request::Release {
            // If the comparison failed, an earlier attempt was applied or another node leads: the next transaction
            // shows it.
            leaving.is_released |= answer.held;
            leaving.leadership = None;
            return Ok(());
        }
        let [leadership] = &answer.read[..] else { return Err(AnswerError::malformed()) };
        let leadership: Option<Seen<Leadership>> = seen(leadership)?;
        // The node is no longer in the cluster, so none of its earlier attempts to take over can be applied.
        match leadership {
            Some(found) if found.value.incarnation == *this && found.value.state == LeadershipState::Held => {
                leaving.leadership = Some(found);
                Ok(())
            }
            _ => Err(Ending::Released.into()),
        }
    }

    /// Applies what a standby has read.
    fn update_standby(&mut self, answer: &TransactionAnswer, now: BootTime) -> Result<(), AnswerError> {
        let view = View::new(&answer.read, self.watched())?;
        let name = &self.settings.name;
        let node = view.node.as_ref().ok_or_else(|| Ending::Forgotten(name.clone()))?;
        if node.value.incarnation != self.settings.node.incarnation {
            return Err(Ending::NameTaken(name.clone()).into());
        }
        let format = self.acceptable_format(view.format.as_ref())?;
        let State::Standby(standby) = &mut self.state else { return Ok(()) };
        standby.node_modified = node.modified;
        standby.format = format;
        standby.observation.update(&view, name, now);
        self.update_drain(view.drain);
        Ok(())
    }

    /// Keeps the request to drain this run, unless the node has refused it.
    fn update_drain(&mut self, drain: Option<Seen<Drain>>) {
        let this = &self.settings.node.incarnation;
        self.drain = drain.filter(|seen| seen.value.incarnation == *this && seen.value.refused.is_none());
    }

    fn acceptable_format(&self, format: Option<&Seen<Format>>) -> Result<Seen<Format>, Ending> {
        let key = || self.settings.keys.format().escape_ascii().to_string();
        let Some(format) = format else { return Err(Ending::FormatRemoved(key())) };
        let Format { layout, record_format, renew_deadline_ms } = format.value;
        let (own, own_ms) = (self.settings.node.record_format, self.renew_deadline_ms());
        if layout != LAYOUT {
            return Err(Ending::LayoutDiffers { stored: layout, own: LAYOUT });
        }
        if renew_deadline_ms != own_ms {
            return Err(Ending::RenewDeadlineDiffers { stored_ms: renew_deadline_ms, own_ms, key: key() });
        }
        if record_format > own {
            return Err(Ending::RecordFormatNewer { stored: record_format, own });
        }
        let oldest = self.settings.oldest_record_format;
        if record_format < oldest {
            return Err(Ending::RecordFormatOlder { stored: record_format, oldest, newest: own });
        }
        Ok(format.clone())
    }

    /// Handles a request that was refused or not answered.
    pub(super) fn on_failure(
        &mut self,
        request: Request,
        sent_at: BootTime,
        error: &CallError,
        now: BootTime,
    ) {
        let timing = self.settings.timing;
        self.last_failure = Some(error.to_string());
        // Try again at once if the request timeout has passed; otherwise after a pause, so as not to flood an etcd that
        // fails at once.
        let elapsed = now.since(sent_at);
        let is_refused = matches!(error, CallError::Refused(_));
        let pause = |longest| {
            if elapsed >= timing.request_timeout() { Duration::ZERO } else { longest }
        };
        let long_pause = if is_refused { timing.retry_period() } else { pause(timing.poll_period()) };
        match &mut self.state {
            State::Joining(joining) => joining.due = now.after(long_pause),
            State::Standby(standby) => {
                standby.must_poll_first = true;
                standby.due = now.after(long_pause);
            }
            State::Leading(leading) => {
                if let (Request::Renew(count), false) = (request, is_refused) {
                    leading.unanswered.push((count, sent_at));
                }
                let left = leading.deadline(timing).since(now);
                leading.due = now.after(pause((timing.retry_period() / 4).min(left / 4)));
            }
            State::Leaving(leaving) => leaving.due = now.after(pause(timing.retry_period() / 4)),
            State::Over(_) => {}
        }
    }
}

impl Joining {
    /// Returns when the node may join; `None`: it has read nothing yet.
    pub(super) fn may_join_at(&self, timing: Timing) -> Option<BootTime> {
        let seen = self.seen.as_ref()?;
        let silent = seen.other_run.as_ref().map(|other| other.since.after(timing.lease_duration()));
        Some(silent.unwrap_or_default())
    }
}

impl OtherRun {
    /// Returns the other run in this view, if there is one, and counts its changes since `former`.
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

fn modified(key: Vec<u8>, at: Revision) -> Compare {
    Compare::Modified { key, at }
}

fn put<T: serde::Serialize>(key: Vec<u8>, value: &T) -> Operation {
    Operation::Put { key, value: encode(value) }
}

fn read(key: Vec<u8>) -> Operation {
    Operation::Read { key }
}

fn with(mut writes: Vec<Operation>, reads: Vec<Operation>) -> Vec<Operation> {
    writes.extend(reads);
    writes
}
