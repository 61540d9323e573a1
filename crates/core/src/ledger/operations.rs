//! The changes that administrators make: which rule executes each.

use super::backlog::{ClientSelector, STEP_GRANTS};
use super::replies::Changed;
use super::state::{Ledger, LedgerContext};
use crate::outcome::{Answer, Call, Executed, Outcome};
use crate::state::Core;
use crate::time::{Moment, MonotonicMs};
use signalbox_model::{
    Cancellation, EventKind, GrantId, Namespace, Operation, Refusal, Revocation, SessionId,
};

impl Core {
    /// Executes an operation of an administrator. One that has request ids makes one change, however often it is sent.
    pub fn execute(&self, call: Call, operation: &Operation<'_>, now: Moment) -> Executed {
        let (monotonic, context) = (now.monotonic, self.context(now.unix));
        let revoke_clients = |clients, grace| {
            let outcome =
                self.ledger().revoke_clients((call.connection, call.token), clients, grace, monotonic);
            Executed { is_change: outcome == Outcome::Waiting, outcome }
        };
        match *operation {
            Operation::DeleteCounter { name } => {
                Executed::at_once(self.delete_counter(name).map(|()| Answer::Done))
            }
            Operation::Cancel(what) => Executed::at_once(
                self.cancel_waiting(what, now).map(|requests| Answer::Canceled { requests }),
            ),
            Operation::Revoke { what: Revocation::Addresses(addresses), grace } => {
                revoke_clients(ClientSelector::Addresses(addresses), grace)
            }
            // No client has an identity that is not text.
            Operation::Revoke { what: Revocation::Identity(identity), grace } => {
                revoke_clients(ClientSelector::Identity(String::from_utf8_lossy(identity).into()), grace)
            }
            Operation::Declare { .. }
            | Operation::Resize { .. }
            | Operation::Remove { .. }
            | Operation::ChangeService { .. }
            | Operation::Revoke { .. } => self.ledger().change(call, monotonic, |ledger, session| {
                ledger.make_change(call, session, operation, monotonic, context)
            }),
        }
    }

    /// Deletes a counter that is not held and that no request waits for, with the peak of its interval.
    fn delete_counter(&self, name: &[u8]) -> Result<(), Refusal> {
        let ledger = self.ledger();
        let deleted = self.registry(Namespace::Counters).delete_unused(name)?;
        ledger.publish(Namespace::Counters, &deleted, EventKind::Removed, None, None, 0);
        Ok(())
    }

    /// Cancels waiting requests (`docs/protocol.md`, "CancelWaiting"), those of a session newest first, so that none of them
    /// is granted in between. Returns how many. Other requests are served between the steps.
    fn cancel_waiting(&self, what: Cancellation, now: Moment) -> Result<u64, Refusal> {
        let waiters = match what {
            Cancellation::Request(id) => vec![id],
            Cancellation::Session(session) => self.ledger().waiters_of(session)?,
        };
        let mut canceled = 0;
        for some in waiters.chunks(STEP_GRANTS) {
            let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
            for id in some {
                if ledger.grants.get(*id).is_some_and(|grant| grant.is_waiting()) {
                    ledger.refuse_waiter(*id, Refusal::Canceled, context);
                    canceled += 1;
                }
            }
            ledger.run_backlog(context);
        }
        match what {
            Cancellation::Request(_) if canceled == 0 => Err(Refusal::NotFound),
            _ => Ok(canceled),
        }
    }
}

impl Ledger {
    fn make_change(
        &mut self,
        call: Call,
        session: SessionId,
        operation: &Operation<'_>,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        match *operation {
            Operation::Declare { if_exists, ref declarations } => {
                self.declare((call.connection, session), declarations, if_exists, now, context)
            }
            Operation::Resize { name, how, expected } => {
                self.resize(session, name, (how, expected), now, context)
            }
            Operation::Remove { name, how, expected } => self.remove(name, (how, expected), now, context),
            Operation::ChangeService { name, how, expected } => {
                self.change_service(session, name, (how, expected), now, context)
            }
            Operation::Revoke { what: Revocation::Grant(grant), grace } => {
                self.revoke_grant(grant, grace, now, context)
            }
            Operation::Revoke { what: Revocation::Session(session), grace } => {
                self.revoke_session(session, grace, now, context)
            }
            Operation::Revoke { what: Revocation::Addresses(_) | Revocation::Identity(_), .. }
            | Operation::DeleteCounter { .. }
            | Operation::Cancel(_) => unreachable!("these have no request ids"),
        }
    }

    /// The waiting requests of a session, newest first.
    fn waiters_of(&self, session: SessionId) -> Result<Vec<GrantId>, Refusal> {
        let state = self.sessions.active(session)?;
        let is_waiting = |id: &GrantId| self.grants.existing(*id).is_waiting();
        Ok(state.grants_newest_first().filter(is_waiting).collect())
    }
}
