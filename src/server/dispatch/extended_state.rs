//! What a connection keeps for the extended operations: its Hello, its waiting requests, its watches and its lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use super::super::access::{Right, Standing};
use super::super::client_address::{Client, ClientAddress};
use super::super::operations::Requested;
use super::super::state::Server;
use signalbox_core::{CheckedNames, Lease, Mailbox, MonotonicMs, Token, Waiting, WatchSnapshot};
use signalbox_model::{ConnectionId, GrantId, Namespace, Status, Target, UnixSeconds};
use signalbox_protocol::{ExtendedOpcode, Opaque, Response, SysvOpcode};

/// A connection's state of the extended operations. The ledger learns of the connection with its first extended request,
/// so that connections of plain clients cost it nothing.
pub(in crate::server) struct ExtendedState {
    pub(super) connection: ConnectionId,
    pub(super) client: Client,
    /// The kind of names that the port is for.
    pub(super) namespace: Namespace,
    pub(super) is_encrypted: bool,
    /// What the client may do.
    pub(super) standing: Standing,
    /// Receives late answers, events and notices.
    pub(super) mailbox: Arc<Mailbox>,
    has_joined: bool,
    /// The opaque of the connection's Hello. Notices are sent with it.
    pub(super) hello: Option<Opaque>,
    /// The opaque of the last request, and when it was received. Notices count from then.
    pub(super) last_request: (Opaque, MonotonicMs),
    /// Whether the client has asked to be told the places of its waiting requests.
    pub(super) is_told_places: bool,
    /// Each request that is not answered yet, by its opaque.
    pub(super) waiting: HashMap<Opaque, WaitingRequest>,
    /// The opcode of each call on a semaphore set that is not answered yet, by its opaque.
    pub(super) waiting_calls: HashMap<Opaque, SysvOpcode>,
    /// The number of the last event of each watch.
    pub(super) watches: HashMap<Opaque, u64>,
    /// Snapshots of existing names that watches have not been sent in full yet.
    pub(super) snapshots: Vec<(Opaque, WatchSnapshot)>,
    /// The lease of the attached session, if the client may acquire every name that the session holds or waits for. Every byte
    /// received renews it.
    pub(super) lease: Option<Arc<Lease>>,
    /// Those names were checked up to this grant under the present rules. Requests check the names of later ones.
    checked_up_to: Option<GrantId>,
    /// Whether the session holds or waits for a name that the client may no longer acquire.
    pub(super) lacks_rights: bool,
    /// Steps of checks of names that no request has been counted for yet.
    pub(super) checks: usize,
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) opcode: ExtendedOpcode,
    /// When it was received.
    pub(super) since: MonotonicMs,
    /// The operation of an administrator, which is recorded when it has ended.
    pub(super) requested: Option<Box<Requested>>,
}

/// The core identifies a connection's requests and watches by the opaque that the client chose.
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

    /// The connection uses TLS now, which may have shown the client's certificate.
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

    /// As [`Self::refresh_standing`], if there are new rules that the connection has not applied.
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
        // It may renew its lease again, or no longer.
        if has_lost || self.lease.is_none() {
            self.regain_lease(server);
        }
        has_lost
    }

    /// Ends the watches and waiting requests of a client that has lost rights.
    pub(super) fn end_what_is_not_permitted(&mut self, server: &Server, out: &mut Vec<u8>) {
        let now = server.moment();
        if !self.standing.may(Right::Read, Target::Server) {
            for watch in self.watches.keys().copied().collect::<Vec<_>>() {
                // It exists, so this does not fail.
                let _ = server.core.unwatch(self.connection, token_of(watch), now);
                self.end_watch(watch);
                let ended = Response::Failed(Status::NotPermitted);
                ended.compose(ExtendedOpcode::Watch.code(), watch, out);
            }
        }
        for (waiting, WaitingRequest { opcode, .. }) in &self.waiting {
            let right = if *opcode == ExtendedOpcode::AwaitIdle { Right::Read } else { Right::Acquire };
            if !self.standing.may(right, Target::Server) {
                // It may have been answered already.
                let _ = server.core.cancel(self.connection, Waiting::Token(token_of(*waiting)), now);
            }
        }
        if !self.standing.may(Right::Acquire, Target::Server) {
            for call in self.waiting_calls.keys() {
                server.core.cancel_sem_op(self.connection, token_of(*call), now);
            }
        }
    }

    /// From now on, renews the lease of the attached session if the client may acquire every name that the session holds or waits
    /// for, and no longer renews it otherwise.
    pub(super) fn regain_lease(&mut self, server: &Server) {
        self.drop_lease();
        self.check_names(server);
    }

    /// As [`Self::regain_lease`], if only the names of the session have changed since. Other requests are served between its
    /// steps, and a client that may acquire everything needs none.
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

    /// The client has proven an identity. If the connection has joined already, it is only listed and revoked under that.
    pub(super) fn note_identity(&self, server: &Server) {
        if let Some(identity) = self.standing.permissions().identity().filter(|_| self.has_joined) {
            self.mailbox.identify_again(&identity.to_string());
            server.core.note_client(self.connection);
        }
    }

    /// Whether a waiting request or a watch uses an opaque. The client could not tell the responses to another request
    /// with it apart.
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

    /// Drops the state of a watch that has ended. A later watch may use the same opaque, and must not get events of this one.
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

    /// Whether the core has messages for the peer, or a snapshot has not been sent in full.
    #[inline]
    pub(in crate::server) fn has_messages(&self) -> bool {
        self.mailbox.is_filled() || !self.snapshots.is_empty()
    }

    /// Whether requests have not been answered yet.
    pub(in crate::server) fn awaits_answers(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether answers wait for the store, and for nothing else. The server has one.
    pub(in crate::server) fn awaits_store(&self, server: &Server) -> bool {
        let is_change = |waiting: &WaitingRequest| match waiting.opcode {
            // What is in a queue does not wait for the store.
            ExtendedOpcode::AcquireGrant | ExtendedOpcode::AcquireAll | ExtendedOpcode::AwaitIdle => false,
            _ => true,
        };
        self.waiting.values().any(is_change) || server.core.is_storing_for(self.connection, &self.mailbox)
    }

    /// Whether the connection session was revoked.
    pub(in crate::server) fn is_revoked(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// These addresses of nodes, if the client should connect to them directly. None if its relay encrypts what it sends, or if
    /// the client would lose rights that it has through its relay.
    pub(super) fn reachable<'a>(&self, server: &Server, addresses: &'a [String]) -> &'a [String] {
        let address = self.client.address;
        let is_better_relayed = address.is_relayed()
            && (address.is_encrypted_by_relay()
                || !self.standing.is_kept_directly(&server.rules.access, &self.client, self.is_encrypted));
        if is_better_relayed { &[] } else { addresses }
    }

    /// The connection has ended. Operations that are not stored yet are recorded as accepted.
    pub(in crate::server) fn end(&self, server: &Server) {
        for requested in self.waiting.values().filter_map(|waiting| waiting.requested.as_ref()) {
            requested.record_answer(server, None);
        }
    }
}
