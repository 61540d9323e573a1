//! What the answers to a node's transactions mean.

use std::time::Duration;

use super::view::{NoAnswer, Observation, Seen, Vacancy, View, request, seen};
use super::{Ending, Leading, Machine, Namesake, Request, Settings, Standby, State, Surroundings};
use crate::clock::BootTime;
use crate::coordinator::{CallError, Revision, TransactionAnswer};
use crate::keys::{Drain, Format, Heartbeat, LAYOUT, Leadership, LeadershipState};

impl Machine {
    /// Takes in the answer to a request; the error is how the node's part ends.
    pub(super) fn performed(
        &mut self,
        request: Request,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), Ending> {
        let done = match (request, &self.state) {
            (Request::Read | Request::Join, State::Joining(_)) => {
                self.read_joining(request, sent_at, answer, now)
            }
            (Request::Look, State::Standby(_)) => self.looked(sent_at, answer, now),
            (Request::TakeOver, State::Standby(_)) => self.tried_to_take_over(sent_at, answer, now),
            (Request::Renew(_), State::Leading(_)) => self.tried_to_renew(sent_at, answer, now),
            (Request::Release | Request::Leave, State::Leaving(_)) => self.left(request, answer),
            // The node is leaving, which finds out what became of it, or has ended.
            _ => return Ok(()),
        };
        match done {
            Ok(()) => {
                self.last_failure = None;
                Ok(())
            }
            Err(NoAnswer::Ends(ending)) => Err(ending),
            Err(NoAnswer::Malformed) => {
                let error = CallError::Unanswered("etcd's answer does not fit the request".to_owned());
                self.failed(request, sent_at, &error, now);
                Ok(())
            }
        }
    }

    fn read_joining(
        &mut self,
        request: Request,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), NoAnswer> {
        let view = View::new(&answer.read, self.watched())?;
        let format = self.acceptable_format(view.format.as_ref())?;
        let Settings { name, node: this, timing, .. } = &self.settings;
        let State::Joining(joining) = &mut self.state else { return Ok(()) };
        let former = joining.seen.take();
        let former_namesake = former.as_ref().and_then(|seen| seen.namesake.clone());
        let observation = match former {
            None => Observation::new(&view, name, now),
            Some(seen) => {
                let mut observation = seen.observation;
                if let (Request::Join, true, Some(namesake)) = (request, answer.held, &former_namesake) {
                    observation.replaced(namesake.heartbeat_modified());
                }
                observation.update(&view, name, now);
                observation
            }
        };
        match &view.node {
            // Also an earlier attempt that was not answered.
            Some(node) if node.value.incarnation == this.incarnation => {
                self.state = State::Standby(Standby {
                    node_modified: node.modified,
                    format,
                    observation,
                    due: now,
                    confirmed_at: BootTime::default(),
                    is_look_first: false,
                });
            }
            _ => {
                let namesake = Namesake::seen(former_namesake, &view, now);
                if let Some(Namesake { changes: 2.., node, .. }) = &namesake {
                    let incarnation = node.as_ref().map(|node| node.value.incarnation.to_string());
                    let incarnation = incarnation.unwrap_or_else(|| "unknown".to_owned());
                    return Err(Ending::NameInUse { node: name.clone(), incarnation }.into());
                }
                joining.due = sent_at.after(timing.look_period());
                joining.seen = Some(Box::new(Surroundings { format, observation, namesake }));
            }
        }
        Ok(())
    }

    fn looked(
        &mut self,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), NoAnswer> {
        self.take_in(answer, now)?;
        let timing = self.settings.timing;
        let incarnation = &self.settings.node.incarnation;
        let State::Standby(standby) = &self.state else { return Ok(()) };
        let period = self.look_period(&standby.observation, now);
        let State::Standby(standby) = &mut self.state else { return Ok(()) };
        standby.is_look_first = false;
        standby.due = sent_at.after(period);
        if answer.held {
            standby.confirmed_at = sent_at;
        }
        match standby.observation.vacancy(incarnation, timing.lease_duration()) {
            Vacancy::AfterLook => standby.due = now,
            _ if !answer.held => standby.due = now,
            Vacancy::At(_) | Vacancy::AtOnce => {}
        }
        let Some(leadership) = standby.observation.led_by(incarnation).cloned() else { return Ok(()) };
        // An unanswered takeover was applied. If the deadline has passed already, another look is needed.
        if answer.held {
            self.lead(leadership, answer.revision, sent_at, now);
        }
        Ok(())
    }

    fn tried_to_take_over(
        &mut self,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), NoAnswer> {
        let timing = self.settings.timing;
        if !answer.held {
            self.take_in(answer, now)?;
        }
        let State::Standby(standby) = &mut self.state else { return Ok(()) };
        standby.is_look_first = true;
        standby.due = now;
        if answer.held {
            let epoch = standby.observation.next_epoch().ok_or(Ending::EpochsExhausted)?;
            let value = self.leadership(epoch);
            self.lead(Seen { value, modified: answer.revision }, answer.revision, sent_at, now);
        } else if standby.observation.vacancy(&self.settings.node.incarnation, timing.lease_duration())
            != Vacancy::AfterLook
        {
            standby.due = sent_at.after(timing.look_period());
        }
        Ok(())
    }

    /// This run has the leadership, and gave its heartbeat at this revision with a transaction sent at this time. If the
    /// deadline that follows from it has passed, the node stays a standby, whose next look counts instead.
    fn lead(&mut self, leadership: Seen<Leadership>, heartbeat: Revision, sent_at: BootTime, now: BootTime) {
        let timing = self.settings.timing;
        // What the takeover compared, or what the look saw that found it: in both cases, a node that does not read this
        // format does not take over any more.
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

    fn tried_to_renew(
        &mut self,
        sent_at: BootTime,
        answer: &TransactionAnswer,
        now: BootTime,
    ) -> Result<(), NoAnswer> {
        let Settings { name, node, timing, .. } = &self.settings;
        let State::Leading(leading) = &mut self.state else { return Ok(()) };
        if answer.revision < leading.heartbeat_modified {
            let seen = leading.heartbeat_modified;
            return Err(Ending::WentBack { seen, found: answer.revision }.into());
        }
        if answer.held {
            let [drain] = &answer.read[..] else { return Err(NoAnswer::Malformed) };
            let drain = request(drain);
            leading.renewed(sent_at, answer.revision, sent_at.after(timing.retry_period()));
            self.note_drain(drain);
            return Ok(());
        }
        let [leadership, heartbeat] = &answer.read[..] else { return Err(NoAnswer::Malformed) };
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
        // An earlier attempt was applied. If it was a renewal, its number says which; if it was a look from the time as a
        // standby, it says nothing about the leadership.
        let count = heartbeat.value.count;
        let applied = leading.unanswered.iter().find(|(number, _)| *number == count).map(|(_, sent)| *sent);
        leading.renewed(applied.unwrap_or(leading.renewed_at), heartbeat.modified, now);
        Ok(())
    }

    fn left(&mut self, request: Request, answer: &TransactionAnswer) -> Result<(), NoAnswer> {
        let this = &self.settings.node.incarnation;
        let State::Leaving(leaving) = &mut self.state else { return Ok(()) };
        if request == Request::Release {
            // If it did not hold, an earlier attempt was applied or another node leads: leaving shows it.
            leaving.is_released |= answer.held;
            leaving.holding = None;
            return Ok(());
        }
        let [leadership] = &answer.read[..] else { return Err(NoAnswer::Malformed) };
        let leadership: Option<Seen<Leadership>> = seen(leadership)?;
        // Now that the node is gone from the cluster, no earlier attempt of it to take over can be applied any more.
        match leadership {
            Some(found) if found.value.incarnation == *this && found.value.state == LeadershipState::Held => {
                leaving.holding = Some(found);
                Ok(())
            }
            _ => Err(Ending::Released.into()),
        }
    }

    /// Takes in what a standby has read.
    fn take_in(&mut self, answer: &TransactionAnswer, now: BootTime) -> Result<(), NoAnswer> {
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
        self.note_drain(view.drain);
        Ok(())
    }

    /// Notes what an operator asks of this run.
    fn note_drain(&mut self, drain: Option<Seen<Drain>>) {
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

    /// A request was not answered, or refused.
    pub(super) fn failed(&mut self, request: Request, sent_at: BootTime, error: &CallError, now: BootTime) {
        let timing = self.settings.timing;
        self.last_failure = Some(error.to_string());
        // At once if the timeout was used up, else after a pause, so as not to flood an etcd that refuses at once.
        let elapsed = now.since(sent_at);
        let is_refused = matches!(error, CallError::Refused(_));
        let pause = |longest| {
            if elapsed >= timing.request_timeout() { Duration::ZERO } else { longest }
        };
        let patient = if is_refused { timing.retry_period() } else { pause(timing.look_period()) };
        match &mut self.state {
            State::Joining(joining) => joining.due = now.after(patient),
            State::Standby(standby) => {
                standby.is_look_first = true;
                standby.due = now.after(patient);
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
