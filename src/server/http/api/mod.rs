//! The JSON API. Its objects have the keys of the objects that the command line prints with `--json` (`docs/cli.md`).

pub(super) mod changes;
pub(super) mod declared;
pub(super) mod entries;
pub(super) mod names;
pub(super) mod sessions;
pub(super) mod status;
pub(super) mod sysv;

use std::sync::Arc;

use tracing::field::display;
use tracing::info;

use super::super::access::Outcome;
use super::super::state::Server;
use super::access::{Permissions, Right, Target, refuse};
use super::answer::ApiError;
use super::peer::Peer;
use super::query::Parameters;
use super::requester::NO_ANSWER;
use super::shared::{Shared, Stage};
use signalbox_core::Namespace;

/// A request that passed the guard.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) permissions: Permissions,
    pub(super) peer: Peer,
    pub(super) parameters: Parameters,
}

impl Context {
    fn server(&self) -> Result<Arc<Server>, ApiError> {
        self.shared.server()
    }

    /// The server, if it serves clients: one that is being stopped changes nothing.
    fn serving(&self) -> Result<Arc<Server>, ApiError> {
        match self.shared.stage() {
            Stage::Serving(server) => Ok(server),
            _ => Err(ApiError::no_server()),
        }
    }

    /// Refuses the change if its client may not make it. The refusal goes to the audit log.
    fn check_administer(&self, operation: &str, target: Target<'_>) -> Result<(), ApiError> {
        let checked = self.check(Right::Administer, target);
        match self.server() {
            Ok(server) if checked.is_err() => self.record(&server, operation, target, checked),
            _ => checked,
        }
    }

    /// Refuses the request if its client may not read this.
    fn check_read(&self, target: Target<'_>) -> Result<(), ApiError> {
        self.check(Right::Read, target)
    }

    fn check(&self, right: Right, target: Target<'_>) -> Result<(), ApiError> {
        if self.permissions.may(right, target) {
            return Ok(());
        }
        Err(refuse(&self.shared, &self.peer, &self.permissions, right, target))
    }

    /// Writes a change to the audit log, whether it was made or refused, and to the log if it was made.
    fn record<T>(
        &self,
        server: &Server,
        operation: &str,
        target: Target<'_>,
        result: Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let outcome = match &result {
            Ok(_) => Outcome::Done,
            // It is in force, and may still be stored.
            Err(error) if error.code == NO_ANSWER => Outcome::Accepted,
            Err(error) => Outcome::Refused(error.code),
        };
        let identity = self.permissions.identity();
        server.audit.record(Some(&self.peer.client), identity, operation, &target, outcome);
        if result.is_ok() {
            let name =
                if let Target::Name(_, name) = target { Some(display(name.escape_ascii())) } else { None };
            info!(name, by = %self.peer.client, "{operation}, over HTTP");
        }
        result
    }
}

/// A name in a message: its start, in quotes.
fn quoted(name: &[u8]) -> String {
    const SHOWN_MAX: usize = 80;
    let text: String = String::from_utf8_lossy(name).escape_debug().take(SHOWN_MAX).collect();
    format!("\"{text}\"")
}

/// The error about a name that does not exist; `kind` as in the request.
fn no_such_name(kind: Option<Namespace>, name: &[u8]) -> ApiError {
    let what = match kind {
        None => "neither a counter nor a semaphore",
        Some(Namespace::Counters) => "no counter",
        Some(Namespace::Semaphores) => "no semaphore",
    };
    let name = quoted(name);
    ApiError::not_found(format!("{what} {name} exists; check the name; /api/v1/names lists names"))
}

/// Milliseconds as seconds.
fn seconds(ms: impl Into<u64>) -> f64 {
    ms.into() as f64 / 1000.0
}
