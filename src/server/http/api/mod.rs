//! The JSON API. Its objects have the keys of the objects that the command line prints with `--json` (`docs/cli.md`).

pub(super) mod changes;
pub(super) mod declarations;
pub(super) mod grants;
pub(super) mod lists;
pub(super) mod names;
pub(super) mod status;

use std::sync::Arc;

use super::super::state::Server;
use super::access::{Peer, Permissions, Right, refuse};
use super::answer::ApiError;
use super::connections::OpenConnection;
use super::query::Parameters;
use super::shared::Stage;
use signalbox_model::{Namespace, Quoted, Target};

/// A request that was checked, authorized and read.
pub(super) struct Context {
    pub(super) permissions: Permissions,
    /// The token that gives them; `None`: the request has none.
    pub(super) token: Option<Box<[u8]>>,
    pub(super) peer: Peer,
    /// The connection that has received the request.
    pub(super) connection: Arc<OpenConnection>,
    pub(super) parameters: Parameters,
}

impl Context {
    fn server(&self) -> Result<Arc<Server>, ApiError> {
        self.connection.shared.server()
    }

    /// The server, for a request that reads this and has taken all of its parameters: any other is unknown.
    fn reads(&self, target: Target<'_>) -> Result<Arc<Server>, ApiError> {
        let server = self.server()?;
        self.check_read(target)?;
        self.parameters.end()?;
        Ok(server)
    }

    /// The server, if it serves clients: one that is being stopped changes nothing.
    pub(super) fn serving(&self) -> Result<Arc<Server>, ApiError> {
        match self.connection.shared.stage() {
            Stage::Serving(server) => Ok(server),
            _ => Err(ApiError::no_server()),
        }
    }

    /// Refuses the request if its client may not read this.
    fn check_read(&self, target: Target<'_>) -> Result<(), ApiError> {
        if self.permissions.may(Right::Read, target) { Ok(()) } else { Err(self.refuse(Right::Read, target)) }
    }

    /// The error for a client that does not have a right.
    pub(super) fn refuse(&self, right: Right, target: Target<'_>) -> ApiError {
        refuse(&self.connection.shared.rules.access, &self.peer, &self.permissions, right, target)
    }
}

/// The error about a name that does not exist; `kind` as in the request.
fn no_such_name(kind: Option<Namespace>, name: &[u8]) -> ApiError {
    let what = match kind {
        None => "neither a counter nor a semaphore",
        Some(Namespace::Counters) => "no counter",
        Some(Namespace::Semaphores) => "no semaphore",
    };
    let name = Quoted(name);
    ApiError::not_found(format!("{what} {name} exists; check the name; /api/v1/names lists names"))
}
