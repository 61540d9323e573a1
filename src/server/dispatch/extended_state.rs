//! A connection's part in the extended operations: what it said of itself, what it waits for and watches, and how what
//! the core has to tell it goes out.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;

use super::super::{Server, steps};
use super::answer::{compose_answer, compose_status};
use super::translation::{event_on_wire, notice_on_wire, opaque_of, status_of, token_of};
use crate::core::{Lease, Mailbox, Message, Notice, SessionId, WatchSnapshot};
use crate::protocol::{ExtendedOpcode, ExtendedResponse, Opaque};

/// The part of one connection. It takes part from its first extended request on.
pub(in crate::server) struct Party {
    /// The connection's own session.
    pub(super) connection: SessionId,
    pub(super) address: SocketAddr,
    mailbox: Arc<Mailbox>,
    has_joined: bool,
    /// The opaque of its Hello, under which notices go out.
    pub(super) hello: Option<Opaque>,
    /// The opcodes of the requests that wait, by opaque.
    pub(super) waiting: HashMap<Opaque, u8>,
    /// The number of the last event of each watch.
    pub(super) watches: HashMap<Opaque, u64>,
    /// Watches that have still to be shown the names that exist.
    pub(super) snapshots: Vec<(Opaque, WatchSnapshot)>,
    /// Renewed by whatever is received.
    pub(super) lease: Option<Arc<Lease>>,
}

/// The connection's own session was revoked.
#[derive(Debug)]
pub(in crate::server) struct Revoked;

impl Party {
    pub(in crate::server) fn new(connection: SessionId, mailbox: Arc<Mailbox>, address: SocketAddr) -> Self {
        Self {
            connection,
            address,
            mailbox,
            has_joined: false,
            hello: None,
            waiting: HashMap::new(),
            watches: HashMap::new(),
            snapshots: Vec::new(),
            lease: None,
        }
    }

    pub(super) fn join(&mut self, server: &Server) {
        if !self.has_joined {
            self.has_joined = true;
            server.core.join(self.connection, None, &self.mailbox);
        }
    }

    /// Takes up what the peer says of itself.
    pub(super) fn introduce(&mut self, server: &Server, hello: Opaque, label: &[u8]) {
        self.hello = Some(hello);
        server.core.join(self.connection, Some(label), &self.mailbox);
    }

    /// Forgets a watch that ended: nothing of it must come under the next one's opaque.
    pub(super) fn end_watch(&mut self, watch: Opaque) {
        self.watches.remove(&watch);
        self.snapshots.retain(|(opaque, _)| *opaque != watch);
        self.mailbox.drop_events(token_of(watch));
    }

    /// Notes that something was received.
    #[inline]
    pub(in crate::server) fn renew(&self, server: &Server) {
        if let Some(lease) = &self.lease {
            lease.renew(server.monotonic_ms());
        }
    }

    /// Whether there is something to tell the peer, or to show it.
    #[inline]
    pub(in crate::server) fn has_news(&self) -> bool {
        self.mailbox.is_filled() || !self.snapshots.is_empty()
    }

    /// Whether answers are still to come.
    pub(in crate::server) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether answers are still to come that wait for nothing but the store.
    pub(in crate::server) fn is_storing(&self, server: &Server) -> bool {
        server.core.is_storing_for(&self.mailbox)
    }

    /// Whether the connection's own session was revoked.
    pub(in crate::server) fn is_revoked(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Appends what the core has to tell the peer to `out`, until that has `bytes` or more.
    pub(in crate::server) fn tell(
        &mut self,
        server: &Server,
        bytes: usize,
        out: &mut BytesMut,
    ) -> Result<(), Revoked> {
        while out.len() < bytes
            && let Some(message) = self.mailbox.take()
        {
            self.compose(server, message, out)?;
        }
        // One at a time, so that many take no longer than one. What it is shown comes by the mailbox too, in the next
        // turn.
        if let Some((_, snapshot)) = self.snapshots.last_mut()
            && !server.core.show(snapshot, steps::WATCH_NAMES)
        {
            self.snapshots.pop();
        }
        Ok(())
    }

    fn compose(&mut self, server: &Server, message: Message, out: &mut BytesMut) -> Result<(), Revoked> {
        match message {
            Message::Answer { token, outcome } => {
                let opaque = opaque_of(token);
                if let Some(opcode) = self.waiting.remove(&opaque) {
                    match &outcome {
                        Ok(answer) => compose_answer(opcode, opaque, answer, out),
                        Err(refusal) => compose_status(opcode, opaque, status_of(*refusal), out),
                    }
                }
            }
            Message::Event { token, event } => {
                let opaque = opaque_of(token);
                if let Some(number) = self.watches.get_mut(&opaque) {
                    *number += 1;
                    let response = ExtendedResponse::Event(event_on_wire(&event, *number));
                    response.compose(ExtendedOpcode::Watch.code(), opaque, out);
                }
            }
            Message::Notice(notice) => {
                if let Notice::AttachedElsewhere { .. } = notice {
                    // It may have another since.
                    self.lease = server.core.lease(self.connection);
                }
                if let Some(hello) = self.hello {
                    let response = ExtendedResponse::Notice(notice_on_wire(notice));
                    response.compose(ExtendedOpcode::Hello.code(), hello, out);
                }
            }
            Message::Close => return Err(Revoked),
        }
        Ok(())
    }
}
