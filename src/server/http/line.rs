//! A connection to the core, for one request of HTTP.

use std::sync::Arc;

use super::super::state::Server;
use signalbox_core::{Mailbox, Session};
use signalbox_model::ConnectionId;

/// A connection to the core, until it is dropped. Leased sessions outlive it.
pub(super) struct Line<'a> {
    server: &'a Server,
    session: Session,
    mailbox: Arc<Mailbox>,
}

impl<'a> Line<'a> {
    pub(super) fn open(server: &'a Server, mailbox: Mailbox, label: Option<&[u8]>) -> Self {
        let (session, mailbox) = (server.core.open_session(), Arc::new(mailbox));
        server.core.join(session.id(), label, &mailbox);
        Self { server, session, mailbox }
    }

    pub(super) fn connection(&self) -> ConnectionId {
        self.session.id()
    }

    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        // The connection itself holds nothing, so this is one step.
        while self.server.core.leave(self.session.id(), self.server.moment()) {}
    }
}
