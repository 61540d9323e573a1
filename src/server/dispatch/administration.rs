//! Authentication, and the requests that need the right to administer (`docs/protocol.md`, "Changes" and "Export").

use tracing::warn;

use super::super::access::{Ended, TokenRefused};
use super::super::export::{EXPORTS_MAX, Refused};
use super::super::operations::Requested;
use super::executor::Executor;
use super::extended::{Denial, Execution};
use super::extended_state::{ExtendedState, WaitingRequest, token_of};
use super::response_stream::ResponseStream;
use signalbox_core::{Call, Moment, Outcome};
use signalbox_model::{Limit, Operation, ReachedLimit, Refusal, RequestIds, Status};
use signalbox_protocol::{Credentials, ExtendedOpcode, Opaque};

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
        let proven = standing.authenticate(&self.server.rules.access, client, *is_encrypted, credentials.0);
        if let Err(TokenRefused { why, is_closed }) = proven {
            self.slow_down();
            let refusal = Refusal::Token(why);
            return Err(if is_closed { Denial::Closed(refusal) } else { Denial::Refused(refusal) });
        }
        let has_lost = !standing.permissions().include(&before);
        self.extended.note_identity(self.server);
        if has_lost {
            self.extended.end_what_is_not_permitted(self.server, out);
        }
        self.extended.regain_lease(self.server);
        Ok(())
    }

    /// Executes an operation of an administrator, and records it.
    pub(super) fn change(
        &mut self,
        opaque: Opaque,
        ids: RequestIds,
        operation: &Operation<'_>,
        now: Moment,
    ) -> Result<Execution<'static>, Denial> {
        self.check_opaque(opaque)?;
        let call = Call { connection: self.extended.connection, ids, token: token_of(opaque) };
        let permissions = self.extended.standing.permissions();
        let mut requested = Requested::new(&self.extended.client, permissions, operation);
        match requested.execute(self.server, call, operation, now) {
            Outcome::Answered(answer) => Ok(Execution::Answer(answer)),
            Outcome::Refused(refusal) => Err(refusal.into()),
            Outcome::Waiting => {
                let requested = Some(Box::new(requested));
                let waiting =
                    WaitingRequest { opcode: ExtendedOpcode::of(operation), since: now.monotonic, requested };
                self.extended.waiting.insert(opaque, waiting);
                Ok(Execution::Later)
            }
        }
    }

    pub(super) fn export(&self, opaque: Opaque) -> Result<Execution<'static>, Denial> {
        self.check_opaque(opaque)?;
        match self.server.exports.begin(&self.extended.client) {
            Ok(export) => {
                self.audit_export(Ended::Accepted);
                Ok(Execution::Stream(ResponseStream::export(export, opaque)))
            }
            Err(Refused::NoStore) => Err(Denial::Status(Status::NotFound)),
            Err(Refused::TooMany) => {
                let reached =
                    ReachedLimit { limit: Limit::Exports, max: EXPORTS_MAX as u64, is_share: false };
                Err(Denial::Refused(Refusal::LimitReached(reached)))
            }
            Err(Refused::System(error)) => {
                warn!(%error, "an export cannot be begun");
                Err(Denial::Status(Status::ExportFailed))
            }
        }
    }

    pub(super) fn audit_export(&self, ended: Ended) {
        let identity = self.extended.standing.permissions().identity();
        self.server.audit.record(
            Some(&self.extended.client),
            identity,
            "export all records",
            "server",
            ended,
        );
    }
}
