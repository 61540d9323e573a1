//! Authentication, the audit log, and the administrative requests about all sessions of a client or all records
//! (`docs/protocol.md`, "RevokeClient", "RevokeIdentity" and "Export").

use tracing::{info, warn};

use super::super::access::{IsClosed, Outcome as Audited, Target, after};
use super::super::export::{EXPORTS_MAX, Refused};
use super::convert::status_of;
use super::executor::Executor;
use super::extended::{Denial, Execution};
use super::extended_state::ExtendedState;
use super::response_stream::ResponseStream;
use signalbox_core::{ClientSelector, ConnectionId, Moment, Namespace, Outcome, Token};
use signalbox_protocol::{
    AddressRange, Credentials, Declaration, Extended, ExtendedResponse, IfExists, Limit, Milliseconds,
    Opaque, Pausing, ReachedLimit, Removal, Resizing, Revocation, SlotChange, Status,
};

impl Executor<'_> {
    /// Takes the rights of the token in Hello, if there is one. They replace those before, so what these permitted ends.
    pub(super) fn authenticate(
        &mut self,
        credentials: Credentials<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Denial> {
        if credentials.0.is_empty() {
            return Ok(());
        }
        let ExtendedState { standing, client, is_encrypted, .. } = &mut *self.extended;
        let before = standing.permissions().clone();
        let proven = standing.authenticate(&self.server.access, client, *is_encrypted, credentials.0);
        if let Err(IsClosed(is_closed)) = proven {
            self.slow_down();
            return Err(if is_closed { Denial::Closed } else { Denial::Status(Status::NotPermitted) });
        }
        let has_lost = !standing.permissions().include(&before);
        self.extended.note_identity(self.server);
        if has_lost {
            self.extended.end_what_is_not_permitted(self.server, out);
        }
        self.extended.regain_lease(self.server);
        Ok(())
    }

    /// Writes an administrative request to the audit log with its amounts: a line for each of its names.
    pub(super) fn audit(
        &self,
        request: &Extended<'_>,
        target: Target<'_>,
        executed: &Result<Execution<'_>, Denial>,
    ) {
        let status = match executed {
            Ok(_) => Status::NoError,
            Err(Denial::Refused(refusal)) => status_of(*refusal),
            Err(Denial::Status(status)) => *status,
            Err(Denial::Closed) => Status::NotPermitted,
        };
        let outcome = match executed {
            Ok(Execution::Later | Execution::Queued(_) | Execution::Stream(_)) => Audited::Accepted,
            Ok(_) => Audited::Done,
            Err(_) => Audited::Refused(status.message()),
        };
        let identity = self.extended.standing.permissions().identity();
        let record = |operation: &str, target: &Target<'_>| {
            self.server.audit.record(Some(&self.extended.client), identity, operation, target, outcome);
        };
        match request {
            Extended::Declare { if_exists, declarations, .. } => {
                for declaration in declarations.iter() {
                    record(
                        &declared(&declaration, *if_exists),
                        &Target::Name(Namespace::Semaphores, declaration.name),
                    );
                }
            }
            other => record(&audited(other), &target),
        }
    }

    pub(super) fn revoke_clients(
        &self,
        request: (ConnectionId, Token),
        clients: ClientSelector,
        grace: Milliseconds,
        now: Moment,
    ) -> Outcome {
        let of = clients.to_string();
        let outcome = self.server.core.revoke_clients(request, clients, grace.0, now);
        if !matches!(outcome, Outcome::Refused(_)) {
            let by = &self.extended.client;
            info!(of, grace_ms = grace.0, %by, "revoking the leased sessions of clients");
        }
        outcome
    }

    pub(super) fn export(&self, opaque: Opaque) -> Result<Execution<'static>, Denial> {
        match self.server.exports.begin(&self.extended.client) {
            Ok(export) => Ok(Execution::Stream(ResponseStream::export(export, opaque))),
            Err(Refused::NoStore) => Err(Denial::Status(Status::NotFound)),
            Err(Refused::TooMany) => {
                let reached =
                    ReachedLimit { limit: Limit::Exports, max: EXPORTS_MAX as u64, is_share: false };
                Ok(Execution::Response(ExtendedResponse::LimitReached(reached)))
            }
            Err(Refused::System(error)) => {
                warn!(%error, "an export cannot be begun");
                Err(Denial::Status(Status::ExportFailed))
            }
        }
    }
}

/// A declaration in the audit log.
fn declared(declaration: &Declaration<'_>, if_exists: IfExists) -> String {
    let slots = if declaration.numbered { " with slots" } else { "" };
    let if_exists = match if_exists {
        IfExists::Fail => "",
        IfExists::Keep => ", keeps an existing one",
        IfExists::Set => ", changes an existing one",
    };
    format!("Declare with capacity {}{slots}{if_exists}", declaration.capacity)
}

/// An administrative request in the audit log: the operation and what it was asked to do.
fn audited(request: &Extended<'_>) -> String {
    match *request {
        Extended::Resize { how: Resizing::To(capacity), .. } => format!("Resize to {capacity}"),
        Extended::Resize { how: Resizing::GrowBy(more), .. } => format!("Resize by +{more}"),
        Extended::Resize { how: Resizing::ShrinkBy(less), .. } => format!("Resize by -{less}"),
        Extended::Remove { how: Removal::IfIdle, .. } => "Remove if idle".to_owned(),
        Extended::Remove { how: Removal::WithLastHolder, .. } => "Remove with its last holder".to_owned(),
        Extended::Remove { how: Removal::Now { grace }, .. } => format!("Remove now{}", after(grace.0)),
        Extended::SetSlot { how: SlotChange::Out(slot), .. } => format!("SetSlot {slot} out of service"),
        Extended::SetSlot { how: SlotChange::In(slot), .. } => format!("SetSlot {slot} into service"),
        Extended::Pause { how: Pausing::Resume, .. } => "Resume".to_owned(),
        Extended::Revoke { what: Revocation::Grant(grant), grace, .. } => {
            format!("Revoke grant {}{}", grant.0, after(grace.0))
        }
        Extended::Revoke { what: Revocation::Session(session), grace, .. } => {
            format!("Revoke session {session}{}", after(grace.0))
        }
        Extended::RevokeClient { clients: AddressRange { first, last }, grace, .. } => {
            format!("RevokeClient {first}-{last}{}", after(grace.0))
        }
        Extended::RevokeIdentity { identity, grace, .. } => {
            format!("RevokeIdentity {}{}", identity.escape_ascii(), after(grace.0))
        }
        ref other => format!("{:?}", other.opcode()),
    }
}
