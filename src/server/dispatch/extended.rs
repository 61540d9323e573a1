//! Executes the extended operations (`docs/protocol.md`, "Extended operations").

use tracing::info;

use super::super::access::Right;
use super::super::session_limits::SessionLimits;
use super::super::steps;
use super::answer::{compose_answer, compose_refusal, compose_status};
use super::convert::{
    declare_of, ids_of, if_exists_of, inspected_on_wire, namespace_of, namespace_on_wire, pausing_of,
    place_of, place_on_wire, removal_of, resizing_of, scope_of, slot_change_of, token_of, ttl_left_on_wire,
    until_of, want_of,
};
use super::executor::{Executor, NextStep};
use super::response_stream::ResponseStream;
use super::rights;
use signalbox_core::{
    Answer, Call, ClientSelector, DeclarationRecord, Declare, GrantId, ListingKind, Moment, Outcome, Place,
    Queueing, REQUESTS_MAX, Refusal, RequestId, SessionId, SessionKey, Waiting, Want,
};
use signalbox_protocol::{
    self as wire, ACQUIRE_ALL_NAMES_MAX, AddressRange, Declarations, EXTENDED_VERSION, Extended,
    ExtendedOpcode, ExtendedResponse, Features, Frame, Generation, GraceLeft, GrantState, HelloAnswer,
    IfExists, Milliseconds, Opaque, Pausing, Removal, Resizing, Response, Revocation, Shares, SlotChange,
    Status, VerifiedGrant, Wait, WaitingRequest,
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

/// How a valid request is answered.
pub(super) enum Execution<'a> {
    Response(ExtendedResponse<'a>),
    /// To Where.
    Where,
    Answer(Answer),
    /// By a message of the core, later.
    Later,
    /// As `Later`, and the client is told the place of its request now.
    Queued(Place),
    Stream(ResponseStream),
}

const DONE: Execution<'static> = Execution::Response(ExtendedResponse::Plain(Response::Done));

impl Executor<'_> {
    /// Executes an extended request as [`execute`](Self::execute) does. A run of them yields after some, as each may take
    /// much work.
    #[cold]
    pub(super) fn execute_extended(
        &mut self,
        opcode: ExtendedOpcode,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> NextStep {
        let opaque = frame.opaque();
        // Refused requests count, too: the client forgets what it sent before a request that was answered.
        self.extended.last_request = (opaque, self.server.monotonic());
        let outcome = frame.parse_extended().map_err(Denial::Status).and_then(|request| {
            self.port.metrics.extended_commands.add(1);
            if let Extended::Hello { credentials, .. } = request {
                // First, because its shares are counted for the identity that it proves.
                self.authenticate(credentials, out)?;
            }
            self.extended.join(self.server);
            self.execute_permitted(opaque, &request)
        });
        match outcome {
            Ok(Execution::Response(response)) => response.compose(opcode.code(), opaque, out),
            Ok(Execution::Answer(answer)) => compose_answer(opcode, opaque, &answer, out),
            Ok(Execution::Later) => {}
            Ok(Execution::Where) => self.compose_whereabouts(opaque, out),
            Ok(Execution::Queued(place)) => {
                ExtendedResponse::Queued(place_on_wire(place)).compose(opcode.code(), opaque, out);
            }
            Ok(Execution::Stream(response)) => return NextStep::Stream(Box::new(response)),
            Err(Denial::Refused(refusal)) => {
                self.note_refusal(refusal);
                compose_refusal(opcode.code(), opaque, refusal, out);
            }
            Err(Denial::Status(status)) => compose_status(opcode.code(), opaque, status, out),
            Err(Denial::Closed) => {
                compose_status(opcode.code(), opaque, Status::NotPermitted, out);
                return NextStep::Close;
            }
        }
        self.extended_requests += 1;
        if self.extended_requests < steps::LEDGER_REQUESTS { NextStep::Continue } else { NextStep::Yield }
    }

    /// Executes a request if the client has the right to. Administrative ones go to the audit log in any case.
    fn execute_permitted(
        &mut self,
        opaque: Opaque,
        request: &Extended<'_>,
    ) -> Result<Execution<'static>, Denial> {
        let missing = rights::missing(&self.extended.standing, request);
        let executed = match missing.or_else(|| self.missing_in_session(request)) {
            None => self.execute_request(opaque, request),
            Some(missing) => {
                self.note_missing(&format!("{:?}", request.opcode()), missing);
                Err(Denial::Status(Status::NotPermitted))
            }
        };
        if let Some((Right::Administer, target)) = rights::needed(request) {
            self.audit(request, target, &executed);
        }
        executed
    }

    /// The right that a request needs which would renew the lease, if the client lacks it for a name that its session holds or
    /// waits for.
    fn missing_in_session<'a>(&mut self, request: &Extended<'a>) -> Option<rights::Needed<'a>> {
        let is_renewal = matches!(
            request,
            Extended::KeepAlive | Extended::AcquireGrant { .. } | Extended::AcquireAll { .. }
        );
        if !is_renewal || !self.extended.lacks_rights() {
            return None;
        }
        // It may have been released since.
        self.extended.check_names(self.server);
        if self.extended.lacks_rights() { rights::needed(request) } else { None }
    }

    fn execute_request(
        &mut self,
        opaque: Opaque,
        request: &Extended<'_>,
    ) -> Result<Execution<'static>, Denial> {
        let (core, connection) = (&self.server.core, self.extended.connection);
        let now = self.server.moment();
        let token = token_of(opaque);
        let call = |ids| Call { connection, ids: ids_of(ids), token };
        let mut place = None;
        let outcome = match *request {
            Extended::Hello { version, label, features, .. } => {
                return self.hello(opaque, version, label, features);
            }
            Extended::OpenSession { ttl, label, key } => self.open_session(opaque, ttl, label, key, now)?,
            Extended::AttachSession { session, key, repetitions } => {
                let session = SessionId::from_number(session).ok_or(Refusal::NoSuchSession)?;
                let key = SessionKey(key.0);
                core.attach_to_repeat(session, connection, &key, repetitions)?;
                self.extended.regain_lease(self.server);
                return match &self.extended.lease {
                    Some(lease) => {
                        lease.renew(now.monotonic);
                        Ok(ttl(lease.ttl_ms()))
                    }
                    // The client must not believe in more of the lease than is left.
                    None => Ok(ttl(core.ttl_left_ms(connection, now)?)),
                };
            }
            Extended::KeepAlive => return Ok(ttl(core.keep_alive(connection, now)?)),
            Extended::Where => return Ok(Execution::Where),
            Extended::CloseSession => {
                self.check_opaque(opaque)?;
                self.extended.drop_lease();
                core.close_leased(connection, token, now)
            }
            Extended::AcquireGrant { ids, claim, queueing, place: presented } => {
                let wants = [want_of(claim)?];
                let outcome;
                (outcome, place) = self.acquire_grant(opaque, call(ids), &wants, queueing, presented, now)?;
                outcome
            }
            Extended::AcquireAll { ids, queueing, claims, place: presented } => {
                let wants: Vec<_> = claims.iter().map(want_of).collect::<Result<_, _>>()?;
                let outcome;
                (outcome, place) = self.acquire_grant(opaque, call(ids), &wants, queueing, presented, now)?;
                outcome
            }
            Extended::ReleaseGrant { ids, grant } => {
                self.check_opaque(opaque)?;
                core.release_grant(call(ids), GrantId(grant.0), now)
            }
            Extended::Cancel(call) => {
                let waiting = match call {
                    WaitingRequest::Id(id) => Waiting::Request(RequestId(id.0)),
                    WaitingRequest::Opaque(opaque) => Waiting::Token(token_of(opaque)),
                };
                if let WaitingRequest::Opaque(opaque) = call
                    && self.extended.waiting_calls.contains_key(&opaque)
                {
                    core.cancel_sem_op(connection, token_of(opaque), now);
                    return Ok(DONE);
                }
                core.cancel(connection, waiting, now)?;
                return Ok(DONE);
            }
            Extended::VerifyGrant { grant } => return self.verify(GrantId(grant.0), now),
            Extended::Holders { namespace, name } => {
                let holders = core.listing(namespace_of(namespace), name, ListingKind::Holders)?;
                return Ok(Execution::Stream(ResponseStream::listing(holders, opaque)));
            }
            Extended::Waiters { namespace, name } => {
                let waiters = core.listing(namespace_of(namespace), name, ListingKind::Waiters)?;
                return Ok(Execution::Stream(ResponseStream::listing(waiters, opaque)));
            }
            Extended::Watch { namespace, scope } => return self.watch(opaque, namespace, scope, now),
            Extended::Unwatch { watch } => {
                core.unwatch(connection, token_of(watch), now)?;
                self.extended.end_watch(watch);
                return Ok(DONE);
            }
            Extended::Revoke { ids, what, grace } => {
                self.check_opaque(opaque)?;
                self.revoke(call(ids), what, grace, now)?
            }
            Extended::Sessions => {
                return Ok(Execution::Stream(ResponseStream::sessions(core.sessions(), opaque)));
            }
            Extended::RevokeClient { clients: AddressRange { first, last }, grace } => {
                self.check_opaque(opaque)?;
                let clients = ClientSelector::Addresses(first..=last);
                self.revoke_clients((connection, token), clients, grace, now)
            }
            Extended::RevokeIdentity { identity, grace } => {
                self.check_opaque(opaque)?;
                // No client has an identity that is not text.
                let clients = ClientSelector::Identity(String::from_utf8_lossy(identity).into());
                self.revoke_clients((connection, token), clients, grace, now)
            }
            Extended::Export => {
                self.check_opaque(opaque)?;
                return self.export(opaque);
            }
            Extended::Inspect { namespace, name } => {
                let inspected = core.inspect(namespace_of(namespace), name, now)?;
                return Ok(Execution::Response(ExtendedResponse::Inspected(inspected_on_wire(inspected))));
            }
            Extended::DeleteCounter { name } => {
                self.check_opaque(opaque)?;
                core.delete_counter(name)?;
                info!(name = %name.escape_ascii(), by = %self.extended.client, "counter deleted");
                return Ok(DONE);
            }
            Extended::Declare { ids, if_exists, declarations } => {
                self.check_opaque(opaque)?;
                self.declare(call(ids), declarations, if_exists, now)
            }
            Extended::Resize { ids, expected, how, name } => {
                self.check_opaque(opaque)?;
                let before = self.declared(name);
                let outcome = core.resize(call(ids), name, resizing_of(how), generation_of(expected), now);
                if before != self.declared(name) {
                    self.log_change(&outcome, name, resized(how));
                }
                outcome
            }
            Extended::Remove { ids, expected, how, name } => {
                self.check_opaque(opaque)?;
                let outcome = core.remove(call(ids), name, removal_of(how), generation_of(expected), now);
                self.log_change(&outcome, name, removed(how));
                outcome
            }
            Extended::Pause { ids, expected, how, name } => {
                self.check_opaque(opaque)?;
                let (change, expected) = (pausing_of(how), generation_of(expected));
                let before = self.declared(name);
                let outcome = core.change_service(call(ids), name, change, expected, now);
                if before != self.declared(name) {
                    let what = match how {
                        Pausing::Pause => "paused",
                        Pausing::Resume => "resumed",
                    };
                    self.log_change(&outcome, name, what.to_owned());
                }
                outcome
            }
            Extended::SetSlot { ids, expected, how, name } => {
                self.check_opaque(opaque)?;
                let (change, expected) = (slot_change_of(how), generation_of(expected));
                let before = self.declared(name);
                let outcome = core.change_service(call(ids), name, change, expected, now);
                if before != self.declared(name) {
                    let what = match how {
                        SlotChange::Out(slot) => format!("slot {slot} taken out of service"),
                        SlotChange::In(slot) => format!("slot {slot} put back into service"),
                    };
                    self.log_change(&outcome, name, what);
                }
                outcome
            }
            Extended::AwaitIdle { wait, until, namespace, name } => {
                self.check_opaque(opaque)?;
                let (key, name) = ((connection, token), (namespace_of(namespace), name));
                core.await_idle(key, name, until_of(until), self.wait_ms(wait), now)
            }
            Extended::List { prefix } => {
                return Ok(Execution::Stream(ResponseStream::declared(core.declared(prefix), opaque)));
            }
        };
        match outcome {
            Outcome::Answered(answer) => Ok(Execution::Answer(answer)),
            Outcome::Refused(refusal) => Err(refusal.into()),
            Outcome::Waiting => {
                self.extended.waiting.insert(opaque, (request.opcode(), now.monotonic));
                Ok(place.map_or(Execution::Later, Execution::Queued))
            }
        }
    }

    fn hello(
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
        let limits = self.server.session_limits();
        // Without a store, no session survives that could repeat a request.
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
            wait_max: Milliseconds(limits.max_wait_ms),
            wait_default: Milliseconds(limits.default_wait_ms),
            ttl_min: Milliseconds(limits.min_ttl_ms),
            ttl_max: Milliseconds(limits.max_ttl_ms),
            names_max: ACQUIRE_ALL_NAMES_MAX as u32,
            requests_max: REQUESTS_MAX as u32,
            port: namespace_on_wire(self.port.namespace),
            shares: self.shares(&limits),
        })))
    }

    /// Where clients reach the nodes of the cluster.
    fn compose_whereabouts(&self, opaque: Opaque, out: &mut Vec<u8>) {
        let opcode = ExtendedOpcode::Where.code();
        let Some(whereabouts) = self.server.whereabouts() else {
            return compose_status(opcode, opaque, Status::UnknownCommand, out);
        };
        let (namespace, others) = (self.port.namespace, whereabouts.others());
        let response = ExtendedResponse::Where(wire::Whereabouts {
            epoch: whereabouts.epoch,
            renew_deadline: Milliseconds::saturating_from(whereabouts.renew_deadline),
            is_relayed: self.extended.client.address.is_relayed(),
            leader: self.extended.reachable(self.server, whereabouts.leader.of(namespace)),
            others: self.extended.reachable(self.server, others.of(namespace)),
        });
        response.compose(opcode, opaque, out);
    }

    /// What one client may have.
    fn shares(&self, limits: &SessionLimits) -> Shares {
        let share = self.server.shares.share();
        let of = |max| u32::try_from(share.of(max)).unwrap_or(u32::MAX);
        Shares {
            connections: of(self.server.connections_limit(self.port)),
            sessions: of(limits.sessions_max as usize),
            waiters: of(limits.waiters_max as usize),
            watches: of(limits.watches_max as usize),
            memory: share.of(self.server.memory.max() as usize) as u64,
        }
    }

    fn open_session(
        &mut self,
        opaque: Opaque,
        ttl: Option<Milliseconds>,
        label: &[u8],
        key: Option<wire::SessionKey>,
        now: Moment,
    ) -> Result<Outcome, Denial> {
        self.check_opaque(opaque)?;
        let ttl_ms = self.ttl_ms(ttl);
        if self.server.core.has_its_sessions(self.extended.connection) {
            self.slow_down();
        }
        let (core, connection, token) = (&self.server.core, self.extended.connection, token_of(opaque));
        let key = match key {
            Some(key) => key.0,
            None => random_key()?,
        };
        let outcome = core.open_leased(connection, SessionKey(key), ttl_ms, label, token, now);
        self.extended.regain_lease(self.server);
        if let Some(lease) = &self.extended.lease {
            lease.renew(now.monotonic);
        }
        // The request is repeated, and the session has what the client may not have any more.
        if self.extended.lacks_rights() && !matches!(outcome, Outcome::Refused(_)) {
            return Err(Denial::Status(Status::NotPermitted));
        }
        Ok(outcome)
    }

    fn acquire_grant(
        &self,
        opaque: Opaque,
        call: Call,
        wants: &[Want<'_>],
        queueing: wire::Queueing,
        presented: Option<wire::Place>,
        now: Moment,
    ) -> Result<(Outcome, Option<Place>), Denial> {
        self.check_opaque(opaque)?;
        let queue_max = queueing.queue_max.unwrap_or(u32::MAX);
        let queueing = Queueing { wait_ms: self.wait_ms(queueing.wait), queue_max };
        let core = &self.server.core;
        if !self.extended.is_told_places && presented.is_none() {
            return Ok((core.acquire_grant(call, wants, queueing, now), None));
        }
        let presented = presented.map(place_of);
        let (outcome, place) = core.acquire_grant_at(call, wants, queueing, presented, now);
        Ok((outcome, place.filter(|_| self.extended.is_told_places)))
    }

    /// The time to live of a session or process that asks for this one, in milliseconds.
    pub(super) fn ttl_ms(&self, ttl: Option<Milliseconds>) -> u32 {
        let limits = self.server.session_limits();
        let ttl_ms = ttl.map_or(limits.default_ttl_ms, |ttl| ttl.0);
        ttl_ms.clamp(limits.min_ttl_ms, limits.max_ttl_ms)
    }

    /// How long a request waits, in milliseconds.
    fn wait_ms(&self, wait: Wait) -> u32 {
        let limits = self.server.session_limits();
        match wait {
            Wait::NotAtAll => 0,
            Wait::UpTo(span) => span.0.min(limits.max_wait_ms),
            Wait::ServerDefault => limits.default_wait_ms,
        }
    }

    fn verify(&self, grant: GrantId, now: Moment) -> Result<Execution<'static>, Denial> {
        let verified = self.server.core.verify(grant, now)?;
        let state = if verified.is_retiring { GrantState::Retiring } else { GrantState::Held };
        Ok(Execution::Response(ExtendedResponse::Verified(VerifiedGrant {
            session: verified.session.number(),
            ttl_left: ttl_left_on_wire(verified.ttl_left_ms),
            state,
            grace_left: verified
                .grace_left_ms
                .map_or(GraceLeft::NotRevoked, |left| GraceLeft::For(Milliseconds(left))),
        })))
    }

    fn watch(
        &mut self,
        opaque: Opaque,
        namespace: wire::Namespace,
        scope: wire::Scope<'_>,
        now: Moment,
    ) -> Result<Execution<'static>, Denial> {
        self.extended.hello.ok_or(Denial::Status(Status::NotPermitted))?;
        self.check_opaque(opaque)?;
        let (core, namespace) = (&self.server.core, namespace_of(namespace));
        let snapshot =
            core.watch(self.extended.connection, token_of(opaque), namespace, scope_of(scope), now)?;
        self.extended.watches.insert(opaque, 0);
        self.extended.snapshots.push((opaque, snapshot));
        Ok(Execution::Later)
    }

    fn revoke(
        &self,
        call: Call,
        what: Revocation,
        grace: Milliseconds,
        now: Moment,
    ) -> Result<Outcome, Denial> {
        let core = &self.server.core;
        let outcome = match what {
            Revocation::Grant(grant) => core.revoke_grant(call, GrantId(grant.0), grace.0, now),
            Revocation::Session(number) => {
                let session = SessionId::from_number(number).ok_or(Refusal::NoSuchSession)?;
                // The ledger may not know the connection of a plain client yet.
                if let Some(peer) = self.server.peers.find_session(session) {
                    core.join(peer.connection, None, &peer.mailbox);
                }
                core.revoke_session(call, session, grace.0, now)
            }
        };
        if !matches!(outcome, Outcome::Refused(_)) {
            let (grant, session) = match what {
                Revocation::Grant(grant) => (Some(grant.0), None),
                Revocation::Session(session) => (None, Some(session)),
            };
            info!(grant, session, grace_ms = grace.0, by = %self.extended.client, "revoked");
        }
        Ok(outcome)
    }

    fn declare(
        &self,
        call: Call,
        declarations: Declarations<'_>,
        if_exists: IfExists,
        now: Moment,
    ) -> Outcome {
        let wanted: Vec<_> = declarations.iter().map(declare_of).collect();
        let before: Vec<_> = wanted.iter().map(|declare| self.declared(declare.name)).collect();
        let outcome = self.server.core.declare(call, &wanted, if_exists_of(if_exists), now);
        for (Declare { name, capacity, numbered, .. }, before) in wanted.iter().zip(before) {
            if before != self.declared(name) {
                let resources = if *numbered { ", numbered slots" } else { "" };
                self.log_change(&outcome, name, format!("declared with capacity {capacity}{resources}"));
            }
        }
        outcome
    }

    /// The declaration of a name, to see whether a request changed it.
    fn declared(&self, name: &[u8]) -> Option<DeclarationRecord> {
        let core = &self.server.core;
        let mut listing = core.declared(name);
        // The list is ordered by name, so the name itself precedes all longer ones.
        let first = core.list_declared(&mut listing).into_iter().next();
        first.map(|declared| declared.record).filter(|record| *record.name == *name)
    }

    /// Logs a change of a declared semaphore that was made or begun.
    fn log_change(&self, outcome: &Outcome, name: &[u8], what: String) {
        if !matches!(outcome, Outcome::Refused(_)) {
            info!(name = %name.escape_ascii(), by = %self.extended.client, "{what}");
        }
    }

    /// Refuses an opaque that a waiting request or a watch still uses: the client could not tell the responses apart.
    pub(super) fn check_opaque(&self, opaque: Opaque) -> Result<(), Denial> {
        if self.extended.uses(opaque) {
            return Err(Denial::Status(Status::InvalidArguments));
        }
        Ok(())
    }
}

/// Why a request was not executed.
pub(super) enum Denial {
    Refused(Refusal),
    Status(Status),
    /// Not permitted, and the connection is closed.
    Closed,
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Status> for Denial {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

fn resized(how: Resizing) -> String {
    match how {
        Resizing::To(capacity) => format!("resized to {capacity}"),
        Resizing::GrowBy(more) => format!("resized by +{more}"),
        Resizing::ShrinkBy(less) => format!("resized by -{less}"),
    }
}

fn removed(how: Removal) -> String {
    match how {
        Removal::IfIdle => "removed".to_owned(),
        Removal::WithLastHolder => "removed with its last holder".to_owned(),
        Removal::Now { grace } => format!("removed with a grace period of {} ms", grace.0),
    }
}

fn ttl(ttl_ms: u32) -> Execution<'static> {
    Execution::Response(ExtendedResponse::Ttl(Milliseconds(ttl_ms)))
}

/// A key that cannot be guessed.
pub(super) fn random_key() -> Result<[u8; 16], Denial> {
    let mut key = [0; 16];
    // Fails only on a system without a source of randomness. No secret can be made there.
    getrandom::fill(&mut key).map_err(|_| Denial::Status(Status::LimitReached))?;
    Ok(key)
}

fn generation_of(expected: Option<Generation>) -> Option<u64> {
    expected.map(|generation| generation.0)
}
