//! Requests that change something: each is done once, however often it is sent, and answered when what it changed is
//! where it is to be kept.

use super::grant::{Phase, Reply};
use super::owner::{RequestIds, SessionKey};
use super::{GrantId, Granted, Ledger, Moment, Refusal, Remembered, SessionId, World};
use crate::core::durable::{Change, DeclaredState, Key};
use crate::core::mailbox::Token;

/// Which request of which connection asks for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The connection's own session.
    pub connection: SessionId,
    /// The request's place among those of the session that it is for.
    pub ids: RequestIds,
    /// What the connection calls the request: a late answer comes under it.
    pub token: Token,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Answered(Answer),
    /// It waits; the answer comes as a [`Message`](crate::core::Message).
    Waiting,
    /// It is refused.
    Refused(Refusal),
}

/// What a request is answered that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What was asked for is done.
    Done,
    /// What was asked for is granted.
    Granted(Granted),
    /// A session was opened.
    Opened(Opened),
    /// Declared semaphores are as was asked for, in the order of the request; of one that is removed there is nothing to
    /// say.
    Declared(Box<[DeclaredState]>),
    /// As little is in use as was waited for.
    Idle {
        /// Resources in use.
        in_use: u32,
    },
}

/// A leased session that was opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Its number.
    pub session: SessionId,
    /// Its secret.
    pub key: SessionKey,
    /// Its time to live in milliseconds.
    pub ttl_ms: u32,
}

impl PartialEq for Opened {
    fn eq(&self, other: &Self) -> bool {
        (self.session, self.key.0, self.ttl_ms) == (other.session, other.key.0, other.ttl_ms)
    }
}

impl Eq for Opened {}

/// What a change came to.
pub(super) struct Done {
    pub(super) outcome: Remembered,
    /// Whether it is to outlive the process, where that is kept.
    pub(super) is_durable: bool,
}

/// What a request can be answered with: another answer is another request's under the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Grant,
    Change,
}

impl Expected {
    fn is(self, outcome: &Remembered) -> bool {
        let is_grant = matches!(outcome, Remembered::Waiting(_) | Remembered::Granted(_));
        matches!(outcome, Remembered::Done(Err(_))) || is_grant == (self == Self::Grant)
    }
}

impl Ledger {
    /// Does a change for the session that a request is for: once, whatever the number of requests with these ids.
    pub(super) fn change(
        &mut self,
        call: Call,
        world: World<'_>,
        change: impl FnOnce(&mut Self, SessionId) -> Result<Done, Refusal>,
    ) -> Outcome {
        let (session, repeated) = match self.begin(call.connection, call.ids) {
            Ok(begun) => begun,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let (request, now) = (call.ids.own, world.now);
        let remembered = match repeated {
            Some(repeated) => repeated,
            None => match change(self, session) {
                Ok(Done { outcome, is_durable: true }) if self.journal.is_some() => {
                    self.answer_when_stored(session, request, now.monotonic_ms, outcome, None);
                    Remembered::Storing
                }
                changed => {
                    let outcome =
                        changed.map_or_else(|refusal| Remembered::Done(Err(refusal)), |done| done.outcome);
                    self.remember(session, request, outcome.clone());
                    outcome
                }
            },
        };
        self.answer(session, remembered, Expected::Change, call, now)
    }

    /// The session that a request is for, and what came of the request where it was made before.
    pub(super) fn begin(
        &mut self,
        connection: SessionId,
        ids: RequestIds,
    ) -> Result<(SessionId, Option<Remembered>), Refusal> {
        let session = self.acting(connection)?;
        let owner = self.owners.get_mut(&session).ok_or(Refusal::NoSuchSession)?;
        let mut forgotten = Vec::new();
        let found = owner.requests.find(ids, &mut forgotten).map(|found| found.cloned());
        if let Err(Refusal::LimitReached) = found {
            self.stats.limited += 1;
        }
        if self.is_durable(session) {
            for request in forgotten {
                self.note(Change::Delete(Key::Answer(session, request)));
            }
        }
        Ok((session, found?))
    }

    /// What has come of a request, whether it was made just now or is repeated: one that waits is answered to this
    /// connection from now on.
    pub(super) fn answer(
        &mut self,
        session: SessionId,
        remembered: Remembered,
        expected: Expected,
        call: Call,
        now: Moment,
    ) -> Outcome {
        if let Remembered::Storing = remembered {
            return self.await_store(session, expected, call, now);
        }
        // What was done under this number was another request.
        if !expected.is(&remembered) {
            return Outcome::Refused(Refusal::StaleRequest);
        }
        if let Remembered::Waiting(id) = remembered {
            self.reply_to(id, call.connection, call.token, now);
            return Outcome::Waiting;
        }
        match self.told(session, remembered, now.monotonic_ms) {
            Ok(answer) => Outcome::Answered(answer),
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    /// Answers a request that waits for the store to this connection from now on.
    fn await_store(&mut self, session: SessionId, expected: Expected, call: Call, now: Moment) -> Outcome {
        let mailbox = self.mailbox_of(call.connection).cloned();
        let storing = self.journal.as_mut().and_then(|journal| journal.storing(session, call.ids.own));
        let (Some(mailbox), Some(storing)) = (mailbox, storing) else {
            return Outcome::Refused(Refusal::NoSuchSession);
        };
        if !expected.is(&storing.outcome) {
            return Outcome::Refused(Refusal::StaleRequest);
        }
        storing.received_ms = now.monotonic_ms;
        if let Some(before) = storing.reply.replace(Reply { mailbox, token: call.token }) {
            before.answer(Err(Refusal::Canceled));
        }
        Outcome::Waiting
    }

    /// What came of a request, as its client is told.
    pub(super) fn told(
        &self,
        session: SessionId,
        outcome: Remembered,
        received_ms: u64,
    ) -> Result<Answer, Refusal> {
        match outcome {
            Remembered::Granted(granted) => {
                Ok(Answer::Granted(granted.told(self.ttl_left_ms(session, received_ms))))
            }
            Remembered::Declared(settled) => Ok(Answer::Declared(*settled)),
            Remembered::Done(outcome) => outcome.map(|()| Answer::Done),
            Remembered::Waiting(_) | Remembered::Storing => Err(Refusal::StaleRequest),
        }
    }

    /// Answers a request that waits to this connection from now on. Who waited for the answer before, does so no more.
    fn reply_to(&mut self, id: GrantId, connection: SessionId, token: Token, now: Moment) {
        let Some(mailbox) = self.mailbox_of(connection).cloned() else { return };
        if let Some(grant) = self.grants.get_mut(&id)
            && let Phase::Waiting { reply, received_ms, .. } = &mut grant.phase
            && let Some(owner) = self.owners.get_mut(&grant.session)
        {
            // The client counts the lease from when it sent the request that is answered.
            *received_ms = now.monotonic_ms;
            if let Some(before) = reply.replace(Reply { mailbox, token }) {
                owner.forget_token(before.token, id);
                before.answer(Err(Refusal::Canceled));
            }
            owner.tokens.insert(token, id);
        }
    }

    pub(super) fn remember(&mut self, session: SessionId, request: u64, what: Remembered) {
        if let Some(owner) = self.owners.get_mut(&session) {
            owner.requests.remember(request, what);
        }
    }
}
