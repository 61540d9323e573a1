//! What an administrator does with all sessions of a client, or with all records (`docs/protocol.md`, "RevokeClient" and
//! "Export").

use tracing::{info, warn};

use super::super::export::{EXPORTS_MAX, Refused};
use super::extended::{Denial, Execution};
use super::{Executor, ResponseStream};
use crate::core::{ConnectionId, Moment, Outcome, Token};
use crate::protocol::{AddressRange, ExtendedResponse, Limit, Milliseconds, Opaque, ReachedLimit, Status};

impl Executor<'_> {
    pub(super) fn revoke_clients(
        &self,
        request: (ConnectionId, Token),
        clients: AddressRange,
        grace: Milliseconds,
        now: Moment,
    ) -> Outcome {
        let AddressRange { first, last } = clients;
        let outcome = self.server.core.revoke_clients(request, first..=last, grace.0, now);
        if !matches!(outcome, Outcome::Refused(_)) {
            let by = &self.extended.client;
            info!(%first, %last, grace_ms = grace.0, %by, "revoking the leased sessions of clients");
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
