//! The state of a connection for the extended operations: its Hello, its waiting requests, its watches and its lease.
//! This file also composes the frames of what the core sends: answers, events and notices.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::super::access::{Right, Standing};
use super::super::client_address::{Client, ClientAddress};
use super::super::operations::Requested;
use super::super::state::Server;
use super::super::steps;
use signalbox_core::{
    Answer, CheckedNames, Granted, Lease, Mailbox, Message, MonotonicMs, Token, Waiting, WatchSnapshot,
};
use signalbox_model::{
    ConnectionId, GrantId, Milliseconds, Namespace, Notice, Status, Target, TtlLeft, UnixSeconds,
};
use signalbox_protocol::{
    AllGranted, End, ExtendedOpcode, ExtendedResponse, Moved, Opaque, OpenedSession, Response, SysvOpcode,
    compose_call,
};

/// A connection's state for the extended operations. The ledger learns of the connection with its first extended
/// request, so that connections of plain clients cost it nothing.
pub(in crate::server) struct ExtendedState {
    pub(super) connection: ConnectionId,
    pub(super) client: Client,
    /// The namespace of the port.
    pub(super) namespace: Namespace,
    pub(super) is_encrypted: bool,
    /// The rights of the client.
    pub(super) standing: Standing,
    /// Receives late answers, events and notices.
    pub(super) mailbox: Arc<Mailbox>,
    has_joined: bool,
    /// The opaque of the connection's Hello. Notices are sent with it.
    pub(super) hello: Option<Opaque>,
    /// The opaque of the last request, and when it was received. Times in notices count from then.
    pub(super) last_request: (Opaque, MonotonicMs),
    /// Whether the client has asked to be told the places of its waiting requests.
    pub(super) is_told_places: bool,
    /// Each request that is not answered yet, by its opaque.
    pub(super) waiting: HashMap<Opaque, WaitingRequest>,
    /// The opcode of each call on a semaphore set that is not answered yet, by its opaque.
    pub(super) waiting_calls: HashMap<Opaque, SysvOpcode>,
    /// The number of the last event of each watch.
    pub(super) watches: HashMap<Opaque, u64>,
    /// Snapshots of existing names that were not yet sent in full to their watches.
    pub(super) snapshots: Vec<(Opaque, WatchSnapshot)>,
    /// The lease of the attached session, if the client may acquire every name that the session holds or waits for. Every byte
    /// received renews it.
    pub(super) lease: Option<Arc<Lease>>,
    /// The grant up to which the names of the session were checked under the present rules. The names of later grants were
    /// checked when they were requested.
    checked_up_to: Option<GrantId>,
    /// Whether the session holds or waits for a name that the client may no longer acquire.
    pub(super) lacks_rights: bool,
    /// The number of steps that have checked names of the session, and that were not yet counted as requests.
    pub(super) checks: usize,
}

/// The connection session was revoked: the connection must be closed.
#[derive(Debug)]
pub(in crate::server) struct Revoked;

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) opcode: ExtendedOpcode,
    /// When it was received.
    pub(super) since: MonotonicMs,
    /// The operation of an administrator, which is recorded when it has ended.
    pub(super) requested: Option<Box<Requested>>,
}

/// Returns the token by which the core identifies a request or watch of a connection: the opaque that the client chose.
pub(super) fn token_of(opaque: Opaque) -> Token {
    Token(u32::from_be_bytes(opaque.0).into())
}

pub(super) fn opaque_of(token: Token) -> Opaque {
    let [_, _, _, _, opaque @ ..] = token.0.to_be_bytes();
    Opaque(opaque)
}

impl ExtendedState {
    pub(in crate::server) fn new(
        server: &Server,
        connection: ConnectionId,
        mailbox: Arc<Mailbox>,
        client: Client,
        namespace: Namespace,
    ) -> Self {
        let standing = Standing::of(&server.rules.access, &client);
        Self {
            connection,
            client,
            namespace,
            is_encrypted: false,
            standing,
            mailbox,
            has_joined: false,
            hello: None,
            last_request: (Opaque([0; 4]), MonotonicMs(0)),
            is_told_places: false,
            waiting: HashMap::new(),
            waiting_calls: HashMap::new(),
            watches: HashMap::new(),
            snapshots: Vec::new(),
            lease: None,
            checked_up_to: None,
            lacks_rights: false,
            checks: 0,
        }
    }

    pub(in crate::server) fn client_address(&self) -> ClientAddress {
        self.client.address
    }

    /// Sets the task that a message for the connection wakes.
    pub(in crate::server) fn set_reader(&self, reader: &Waker) {
        self.mailbox.set_reader(reader);
    }

    /// Notes that the connection now uses TLS, by which the client may have shown a certificate.
    pub(in crate::server) fn set_encrypted(&mut self, server: &Server, client: Client) {
        self.standing = Standing::of(&server.rules.access, &client);
        self.client = client;
        self.is_encrypted = true;
    }

    /// Decides again what the client may do, if the rules were replaced or its token has expired. What it may no longer do ends:
    /// watches are refused, waiting requests are canceled, and its session is not renewed. Returns whether it has lost rights.
    #[inline]
    pub(in crate::server) fn refresh_standing(
        &mut self,
        server: &Server,
        now: UnixSeconds,
        out: &mut Vec<u8>,
    ) -> bool {
        self.standing.is_stale(&server.rules.access, now) && self.apply_rules(server, out)
    }

    /// Does the same as [`Self::refresh_standing`] if there are new rules that the connection has not applied.
    #[inline]
    pub(in crate::server) fn refresh_on_new_rules(&mut self, server: &Server, out: &mut Vec<u8>) -> bool {
        self.mailbox.take_new_rules() && self.apply_rules(server, out)
    }

    #[cold]
    fn apply_rules(&mut self, server: &Server, out: &mut Vec<u8>) -> bool {
        let has_lost = self.standing.refresh(&server.rules.access, &self.client, self.is_encrypted);
        if has_lost {
            self.end_what_is_not_permitted(server, out);
        }
        // The connection may renew its lease again, or may no longer do so.
        if has_lost || self.lease.is_none() {
            self.regain_lease(server);
        }
        has_lost
    }

    /// Ends the watches of a client that has lost rights, unless it may still read everything, and its waiting requests,
    /// unless it may still acquire everything (for AwaitIdle: read everything). The names are not kept here, so they cannot
    /// be checked one by one.
    pub(super) fn end_what_is_not_permitted(&mut self, server: &Server, out: &mut Vec<u8>) {
        let now = server.moment();
        if !self.standing.may(Right::Read, Target::Server) {
            for watch in self.watches.keys().copied().collect::<Vec<_>>() {
                // The watch exists, so this does not fail.
                let _ = server.core.unwatch(self.connection, token_of(watch), now);
                self.end_watch(watch);
                let ended = Response::Failed(Status::NotPermitted);
                ended.compose(ExtendedOpcode::Watch.code(), watch, out);
            }
        }
        for (waiting, WaitingRequest { opcode, .. }) in &self.waiting {
            let right = if *opcode == ExtendedOpcode::AwaitIdle { Right::Read } else { Right::Acquire };
            if !self.standing.may(right, Target::Server) {
                // The request may have been answered already.
                let _ = server.core.cancel(self.connection, Waiting::Token(token_of(*waiting)), now);
            }
        }
        if !self.standing.may(Right::Acquire, Target::Server) {
            for call in self.waiting_calls.keys() {
                server.core.cancel_sem_op(self.connection, token_of(*call), now);
            }
        }
    }

    /// Decides again whether the connection renews the lease of its attached session: only if the client may acquire
    /// every name that the session holds or waits for.
    pub(super) fn regain_lease(&mut self, server: &Server) {
        self.drop_lease();
        self.check_names(server);
    }

    /// Does the same as [`Self::regain_lease`] if only the names of the session have changed since the last check: the
    /// check continues after the names that have passed. The core serves requests of other clients between the steps. A
    /// client that may acquire everything needs no check.
    pub(super) fn check_names(&mut self, server: &Server) {
        self.lacks_rights = false;
        let may = |target: Target<'_>| self.standing.may(Right::Acquire, target);
        if !may(Target::Anywhere) {
            return;
        }
        let Some(lease) = server.core.lease(self.connection) else { return };
        if !Namespace::ALL.iter().all(|namespace| may(Target::Prefix(*namespace, b""))) {
            loop {
                self.checks += 1;
                let passes = |namespace, name: &[u8]| may(Target::Name(namespace, name));
                match server.core.check_names(self.connection, self.checked_up_to, passes) {
                    CheckedNames::All => break,
                    CheckedNames::UpTo(grant) => self.checked_up_to = Some(grant),
                    CheckedNames::Failed => {
                        self.lacks_rights = true;
                        return;
                    }
                }
            }
        }
        self.lease = Some(lease);
    }

    /// Stops renewing the lease.
    pub(super) fn drop_lease(&mut self) {
        self.lease = None;
        self.checked_up_to = None;
        self.lacks_rights = false;
    }

    /// Makes the connection known to the ledger, unless it is known already. Its shares are those of the identity that it has
    /// proven by now, if there is one.
    pub(super) fn join(&mut self, server: &Server) {
        if !self.has_joined {
            self.has_joined = true;
            if let Some(identity) = self.standing.permissions().identity() {
                self.mailbox.identify(&identity.to_string());
            }
            server.core.join(self.connection, None, &self.mailbox);
        }
    }

    /// Notes that the client has proven an identity. If the connection has joined already, it is only listed and
    /// revoked under that identity; its shares stay.
    pub(super) fn note_identity(&self, server: &Server) {
        if let Some(identity) = self.standing.permissions().identity().filter(|_| self.has_joined) {
            self.mailbox.identify_again(&identity.to_string());
            server.core.note_client(self.connection);
        }
    }

    /// Returns whether a waiting request or a watch uses an opaque. If so, the client could not tell apart the responses to
    /// another request with it.
    pub(super) fn uses(&self, opaque: Opaque) -> bool {
        self.waiting.contains_key(&opaque)
            || self.waiting_calls.contains_key(&opaque)
            || self.watches.contains_key(&opaque)
    }

    /// Takes the label from the peer's Hello, and its opaque for notices.
    pub(super) fn introduce(&mut self, server: &Server, hello: Opaque, label: &[u8]) {
        self.hello = Some(hello);
        server.core.join(self.connection, Some(label), &self.mailbox);
    }

    /// Drops the state of a watch that has ended. A later watch may use the same opaque, and must not receive events of
    /// this one.
    pub(super) fn end_watch(&mut self, watch: Opaque) {
        self.watches.remove(&watch);
        self.snapshots.retain(|(opaque, _)| *opaque != watch);
        self.mailbox.drop_events(token_of(watch));
    }

    /// Renews the lease, because something was received.
    #[inline]
    pub(in crate::server) fn renew(&self, server: &Server) {
        if let Some(lease) = &self.lease {
            lease.renew(server.monotonic());
        }
    }

    /// Returns whether the core has messages for the peer, or a snapshot has not been sent in full.
    #[inline]
    pub(in crate::server) fn has_messages(&self) -> bool {
        self.mailbox.is_filled() || !self.snapshots.is_empty()
    }

    /// Returns whether there are requests that have not been answered yet.
    pub(in crate::server) fn awaits_answers(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether answers wait for the store, and for nothing else. The server must have a store.
    pub(in crate::server) fn awaits_store(&self, server: &Server) -> bool {
        let is_change = |waiting: &WaitingRequest| match waiting.opcode {
            // A request in a queue does not wait for the store.
            ExtendedOpcode::AcquireGrant | ExtendedOpcode::AcquireAll | ExtendedOpcode::AwaitIdle => false,
            _ => true,
        };
        self.waiting.values().any(is_change) || server.core.is_storing_for(self.connection, &self.mailbox)
    }

    /// Returns whether the connection session was revoked.
    pub(in crate::server) fn is_revoked(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Returns these addresses of nodes if the client should connect to them directly; none if its relay encrypts the
    /// connection, or if the client would lose rights that it has through its relay.
    pub(super) fn reachable<'a>(&self, server: &Server, addresses: &'a [String]) -> &'a [String] {
        let address = self.client.address;
        let is_better_relayed = address.is_relayed()
            && (address.is_encrypted_by_relay()
                || !self.standing.is_kept_directly(&server.rules.access, &self.client, self.is_encrypted));
        if is_better_relayed { &[] } else { addresses }
    }

    /// Ends the state with its connection: operations that are not stored yet are recorded as accepted.
    pub(in crate::server) fn end(&self, server: &Server) {
        for requested in self.waiting.values().filter_map(|waiting| waiting.requested.as_ref()) {
            requested.record_answer(server, None);
        }
    }
}

/// Messages of the core.
impl ExtendedState {
    /// Appends the core's messages to `out`, until it has `bytes` or more, and runs one step of a snapshot.
    pub(in crate::server) fn encode_messages(
        &mut self,
        server: &Server,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Revoked> {
        while out.len() < bytes
            && let Some(message) = self.mailbox.take()
        {
            self.compose(server, message, out)?;
        }
        // One snapshot at a time, so that many take no longer than one. Its events go through the mailbox, and are sent in
        // the next turn.
        if let Some((_, snapshot)) = self.snapshots.last_mut()
            && !server.core.show(snapshot, steps::WATCH_NAMES)
        {
            self.snapshots.pop();
        }
        Ok(())
    }

    fn compose(&mut self, server: &Server, message: Message, out: &mut Vec<u8>) -> Result<(), Revoked> {
        match message {
            Message::Answer { token, outcome } => {
                let opaque = opaque_of(token);
                if let Some(WaitingRequest { opcode, since, requested }) = self.waiting.remove(&opaque) {
                    if let ExtendedOpcode::AcquireGrant | ExtendedOpcode::AcquireAll = opcode {
                        let waited_ms = server.monotonic().0.saturating_sub(since.0);
                        server.waits.note(Duration::from_millis(waited_ms));
                    }
                    if let Some(requested) = requested {
                        requested.record_answer(server, Some(&outcome));
                    }
                    match &outcome {
                        Ok(answer) => compose_answer(opcode, opaque, answer, out),
                        Err(refusal) => {
                            ExtendedResponse::Refused(*refusal).compose(opcode.code(), opaque, out);
                        }
                    }
                }
            }
            Message::Operated { token, result } => {
                let opaque = opaque_of(token);
                if let Some(opcode) = self.waiting_calls.remove(&opaque) {
                    compose_call(&result, opcode, opaque, out);
                }
            }
            Message::Event { token, event } => {
                let opaque = opaque_of(token);
                if let Some(number) = self.watches.get_mut(&opaque) {
                    *number += 1;
                    let response = ExtendedResponse::Event(*number, event.borrowed());
                    response.compose(ExtendedOpcode::Watch.code(), opaque, out);
                }
            }
            Message::Notice(notice) => {
                if let Notice::AttachedElsewhere { .. } = notice {
                    // The connection may have attached to another session since.
                    self.regain_lease(server);
                }
                if let Some(hello) = self.hello {
                    self.compose_notice(server, hello, notice, out);
                }
            }
            Message::Close => return Err(Revoked),
        }
        Ok(())
    }

    fn compose_notice(&self, server: &Server, hello: Opaque, notice: Notice<MonotonicMs>, out: &mut Vec<u8>) {
        let (request, received) = self.last_request;
        let end = |at| End { request, after: Milliseconds(received.until(at)) };
        let notice = match notice {
            Notice::GrantRevoked { grant, end: at } => Notice::GrantRevoked { grant, end: end(at) },
            Notice::SessionRevoked { session, end: at } => Notice::SessionRevoked { session, end: end(at) },
            Notice::AttachedElsewhere { session } => Notice::AttachedElsewhere { session },
            Notice::ShuttingDown => Notice::ShuttingDown,
            Notice::Moved(()) => {
                let Some(whereabouts) = server.whereabouts() else { return };
                let Some(next) = whereabouts.next.get() else { return };
                let is_permitted = self.standing.may(Right::Acquire, Target::Anywhere);
                let addresses =
                    if is_permitted { self.reachable(server, next.of(self.namespace)) } else { &[] };
                let moved = Moved { epoch: whereabouts.epoch, addresses };
                let moved = ExtendedResponse::Notice(Notice::Moved(moved));
                return moved.compose(ExtendedOpcode::Hello.code(), hello, out);
            }
        };
        ExtendedResponse::Notice(notice).compose(ExtendedOpcode::Hello.code(), hello, out);
    }
}

/// Appends the answer to a request with this opcode.
pub(super) fn compose_answer(opcode: ExtendedOpcode, opaque: Opaque, answer: &Answer, out: &mut Vec<u8>) {
    let code = opcode.code();
    let response = match (opcode, answer) {
        (ExtendedOpcode::AcquireGrant | ExtendedOpcode::AcquireAll, Answer::Granted(granted)) => {
            return compose_granted(opcode, opaque, granted, out);
        }
        (ExtendedOpcode::OpenSession, Answer::Opened(opened)) => ExtendedResponse::Opened(OpenedSession {
            session: opened.session.number(),
            key: opened.key,
            ttl: Milliseconds(opened.ttl_ms),
        }),
        (ExtendedOpcode::Declare, Answer::Declared(states)) => ExtendedResponse::Declared(states),
        (
            ExtendedOpcode::Resize | ExtendedOpcode::Pause | ExtendedOpcode::SetSlot,
            Answer::Declared(states),
        ) if !states.is_empty() => ExtendedResponse::Resized(states[0]),
        (ExtendedOpcode::Remove, Answer::Declared(states)) if states.is_empty() => {
            ExtendedResponse::Plain(Response::Done)
        }
        (
            ExtendedOpcode::RevokeClient | ExtendedOpcode::RevokeIdentity,
            Answer::Revoked { sessions: count },
        )
        | (ExtendedOpcode::CancelWaiting, Answer::Canceled { requests: count }) => {
            ExtendedResponse::Count(*count)
        }
        (ExtendedOpcode::AwaitIdle, Answer::Idle { in_use }) => ExtendedResponse::InUse(*in_use),
        (
            ExtendedOpcode::CloseSession
            | ExtendedOpcode::ReleaseGrant
            | ExtendedOpcode::Revoke
            | ExtendedOpcode::DeleteCounter,
            Answer::Done,
        ) => ExtendedResponse::Plain(Response::Done),
        // The cached answer under this request id belongs to another kind of request.
        _ => ExtendedResponse::Plain(Response::Failed(Status::InvalidArguments)),
    };
    response.compose(code, opaque, out);
}

fn compose_granted(opcode: ExtendedOpcode, opaque: Opaque, granted: &Granted, out: &mut Vec<u8>) {
    let grant = granted.grant;
    let ttl_left =
        granted.ttl_left_ms.map_or(TtlLeft::Connection, |left_ms| TtlLeft::For(Milliseconds(left_ms)));
    if opcode == ExtendedOpcode::AcquireAll {
        let slots: Vec<_> = granted.slots.iter().map(|slots| &slots[..]).collect();
        let (capacities, slots) = (&granted.capacities[..], &slots[..]);
        ExtendedResponse::AllGranted(AllGranted { grant, ttl_left, capacities, slots }).compose(
            opcode.code(),
            opaque,
            out,
        );
        return;
    }
    let response = ExtendedResponse::Granted(signalbox_protocol::Granted {
        grant,
        // The grant has one name, whose resources are below 2^32.
        resources: granted.resources as u32,
        capacity: granted.capacities.first().copied().unwrap_or(0),
        ttl_left,
        slots: granted.slots.first().map_or(&[][..], |slots| slots),
    });
    response.compose(opcode.code(), opaque, out);
}
