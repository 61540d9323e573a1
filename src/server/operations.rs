//! The changes that administrators make, on the service ports and over HTTP: the right that each needs, its execution,
//! and its lines in the log and in the audit log once its outcome is known.

use tracing::info;

use super::access::{Ended, Identity, Permissions, Right};
use super::client_address::Client;
use super::state::Server;
use signalbox_core::{Answer, Call, Executed, Moment, Outcome};
use signalbox_model::{Cancellation, Namespace, Operation, Quoted, Refusal, Revocation, Status, Target};

/// An operation that a client has requested. It is recorded when it has ended, or when no client waits for its end.
#[derive(Debug)]
pub(super) struct Requested {
    client: Client,
    identity: Option<Identity>,
    /// The texts of the operation and of its target, for each target.
    lines: Vec<(String, String)>,
    /// The subject of the grant or session that the operation ends. The text of the operation has only its id.
    of: Option<String>,
    is_change: bool,
}

impl Requested {
    /// Checks that a client may administer all targets of an operation. If not, this is recorded, and the error is the
    /// first target that the client may not administer. `server`: `None` while this process serves no clients.
    pub(super) fn permitted<'a>(
        server: Option<&Server>,
        client: &Client,
        permissions: &Permissions,
        operation: &Operation<'a>,
    ) -> Result<Self, Target<'a>> {
        let parts = operation.for_each_target();
        let requested = Self {
            client: client.clone(),
            identity: permissions.identity().cloned(),
            lines: parts.iter().map(|one| (one.to_string(), one.target().to_string())).collect(),
            of: None,
            is_change: false,
        };
        let mut targets = parts.iter().map(Operation::target);
        let Some(missing) = targets.find(|target| !permissions.may(Right::Administer, *target)) else {
            return Ok(requested);
        };
        if let Some(server) = server {
            requested.record(server, Ended::Denied(Status::NotPermitted.name()));
        }
        Err(missing)
    }

    /// Executes the operation. An outcome that is known at once is recorded.
    pub(super) fn execute(
        &mut self,
        server: &Server,
        call: Call,
        operation: &Operation<'_>,
        now: Moment,
    ) -> Outcome {
        if let Operation::Revoke { what: Revocation::Session(session), .. } = operation
            && let Some(peer) = server.peers.find_session(*session)
        {
            // The ledger may not know the connection of a plain client yet.
            server.core.join(peer.connection, None, &peer.mailbox);
        }
        // Read first, because the grant or session may have ended afterwards.
        self.of = subject(server, operation);
        let Executed { outcome, is_change } = server.core.execute(call, operation, now);
        self.is_change = is_change;
        match &outcome {
            Outcome::Answered(_) => self.record(server, Ended::Done),
            Outcome::Refused(refusal) => self.record(server, Ended::Refused(refusal.status().name())),
            Outcome::Waiting => {}
        }
        outcome
    }

    /// Records the answer to an operation that waited; `None`: no client waits for it any longer.
    pub(super) fn record_answer(&self, server: &Server, answer: Option<&Result<Answer, Refusal>>) {
        let ended = match answer {
            Some(Ok(_)) => Ended::Done,
            Some(Err(refusal)) => Ended::Refused(refusal.status().name()),
            None => Ended::Accepted,
        };
        self.record(server, ended);
    }

    /// Writes to the audit log how the operation has ended, and to the log if it has changed something.
    fn record(&self, server: &Server, ended: Ended) {
        for (operation, target) in &self.lines {
            let of = self.of.as_ref();
            let target = of.unwrap_or(target);
            server.audit.record(Some(&self.client), self.identity.as_ref(), operation, target, ended);
            if self.is_change && ended == Ended::Done {
                let identity = self.identity.as_ref().map(tracing::field::display);
                info!(by = %self.client, identity, of, "{operation}");
            }
        }
    }
}

/// Returns the subject of an operation on a grant or a session, such as `counter "backup" of "web-1 run[7] backup"`;
/// `None`: the operation is about something else, or there is no such grant or session.
fn subject(server: &Server, operation: &Operation<'_>) -> Option<String> {
    let subject = match *operation {
        Operation::Revoke { what: Revocation::Grant(grant), .. }
        | Operation::Cancel(Cancellation::Request(grant)) => server.core.subject_of_grant(grant)?,
        Operation::Revoke { what: Revocation::Session(session), .. }
        | Operation::Cancel(Cancellation::Session(session)) => server.core.subject_of_session(session)?,
        _ => return None,
    };
    let name = |(namespace, name): &(Namespace, Box<[u8]>)| Target::Name(*namespace, name).to_string();
    let mut text = subject.names.iter().map(name).collect::<Vec<_>>().join(", ");
    if subject.has_more {
        text += ", …";
    }
    if !subject.label.is_empty() {
        let separator = if text.is_empty() { "" } else { " of " };
        text += &format!("{separator}{}", Quoted(&subject.label));
    }
    Some(text).filter(|text| !text.is_empty())
}
