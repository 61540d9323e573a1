//! How a client begins: Hello, in which it proves its identity and learns the features and limits of the server;
//! OpenSession; and Where, which returns the addresses of a cluster's nodes (`docs/protocol.md`, "Hello", "OpenSession" and
//! "Where").

use super::super::access::TokenRefused;
use super::executor::{Denial, Execution, Executor};
use super::extended_state::{ExtendedState, token_of};
use crate::config::{SessionConfig, ms};
use signalbox_core::{Moment, Outcome, REQUESTS_MAX};
use signalbox_model::{Milliseconds, Refusal, SessionKey, Status};
use signalbox_protocol::{
    ACQUIRE_ALL_NAMES_MAX, Credentials, EXTENDED_VERSION, ExtendedOpcode, ExtendedResponse, Features,
    HelloAnswer, Opaque, Response, Shares, Whereabouts,
};

/// The features of every server, with and without a store.
const FEATURES: Features = Features::GRANTS
    .union(Features::ACQUIRE_ALL)
    .union(Features::WATCH)
    .union(Features::REVOKE)
    .union(Features::DECLARE)
    .union(Features::SLOTS)
    .union(Features::SYSV)
    .union(Features::SESSIONS);

impl Executor<'_> {
    /// Gives the connection the rights of the token in Hello, if there is one. They replace its earlier rights. If it loses
    /// rights by that, [`ExtendedState::end_what_is_not_permitted`] ends its watches and waiting requests.
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

    pub(super) fn hello(
        &mut self,
        opaque: Opaque,
        version: u32,
        label: &[u8],
        wanted: Features,
    ) -> Result<Execution<'static>, Denial> {
        if version == 0 {
            return Err(Denial::Status(Status::InvalidArguments));
        }
        self.extended.introduce(self.server, opaque, label);
        self.extended.is_told_places = wanted.contains(Features::PLACES);
        let session = &self.server.config().session;
        // Without a store, no session survives a restart, so no request is repeated with its place.
        let durable = if self.server.is_durable() {
            Features::DURABLE.union(Features::PLACES).union(Features::EXPORT)
        } else {
            Features::default()
        };
        let cluster = if self.server.is_node() {
            Features::CLUSTER.union(Features::WHERE)
        } else {
            Features::default()
        };
        Ok(Execution::Response(ExtendedResponse::Hello(HelloAnswer {
            version: EXTENDED_VERSION,
            features: FEATURES.union(durable).union(cluster),
            session: self.extended.connection.number(),
            wait_max: Milliseconds(ms(session.max_wait_s)),
            wait_default: Milliseconds(ms(session.default_wait_s)),
            ttl_min: Milliseconds(ms(session.min_ttl_s)),
            ttl_max: Milliseconds(ms(session.max_ttl_s)),
            names_max: ACQUIRE_ALL_NAMES_MAX as u32,
            requests_max: REQUESTS_MAX as u32,
            port: self.port.namespace,
            shares: self.shares(session),
        })))
    }

    /// Composes the answer to Where: the addresses at which clients reach the nodes of the cluster.
    pub(super) fn compose_whereabouts(&self, opaque: Opaque, out: &mut Vec<u8>) {
        let opcode = ExtendedOpcode::Where.code();
        let Some(whereabouts) = self.server.whereabouts() else {
            return Response::Failed(Status::UnknownCommand).compose(opcode, opaque, out);
        };
        let (namespace, others) = (self.port.namespace, whereabouts.others.get());
        let response = ExtendedResponse::Where(Whereabouts {
            epoch: whereabouts.epoch,
            renew_deadline: Milliseconds::saturating_from(whereabouts.renew_deadline),
            is_relayed: self.extended.client.address.is_relayed(),
            leader: self.extended.reachable(self.server, whereabouts.leader.of(namespace)),
            others: self.extended.reachable(self.server, others.of(namespace)),
        });
        response.compose(opcode, opaque, out);
    }

    /// Returns the shares of one client.
    fn shares(&self, session: &SessionConfig) -> Shares {
        let share = self.server.rules.shares.share();
        let of = |max| u32::try_from(share.of(max)).unwrap_or(u32::MAX);
        Shares {
            connections: of(self.server.connections_limit(self.port.namespace)),
            sessions: of(session.max_sessions as usize),
            waiters: of(session.max_waiters as usize),
            watches: of(session.max_watches as usize),
            memory: share.of(self.server.memory.max() as usize) as u64,
        }
    }

    /// Opens a leased session (`docs/protocol.md`, "OpenSession"), or finds the one that the request opened before, if
    /// it is repeated.
    pub(super) fn open_session(
        &mut self,
        opaque: Opaque,
        ttl: Option<Milliseconds>,
        label: &[u8],
        key: Option<SessionKey>,
        now: Moment,
    ) -> Result<Outcome, Denial> {
        self.check_opaque(opaque)?;
        let ttl_ms = self.ttl_ms(ttl);
        if self.server.core.has_reached_session_share(self.extended.connection) {
            self.slow_down();
        }
        let (core, connection, token) = (&self.server.core, self.extended.connection, token_of(opaque));
        let key = match key {
            Some(key) => key,
            None => SessionKey(random_key()?),
        };
        let outcome = core.open_leased(connection, key, ttl_ms, label, token, now);
        self.extended.regain_lease(self.server);
        if let Some(lease) = &self.extended.lease {
            lease.renew(now.monotonic);
        }
        // The request was repeated, and the session holds or waits for a name that the client may no longer acquire.
        if self.extended.lacks_rights && !matches!(outcome, Outcome::Refused(_)) {
            return Err(Denial::Status(Status::NotPermitted));
        }
        Ok(outcome)
    }
}

/// Returns a key that cannot be guessed.
pub(super) fn random_key() -> Result<[u8; 16], Denial> {
    let mut key = [0; 16];
    // Fails only on a system without a source of randomness.
    getrandom::fill(&mut key).map_err(|_| Denial::Status(Status::LimitReached))?;
    Ok(key)
}
