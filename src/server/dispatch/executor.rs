//! Executes the requests of one connection. The extended operations (`docs/protocol.md`, "Extended operations") are
//! here, the others in `plain` and `sysv`.

use std::cell::Cell;
use std::fmt;

use tracing::warn;

use super::super::access::{Ended, Right};
use super::super::export::{EXPORTS_MAX, Refused};
use super::super::metrics::Tally;
use super::super::operations::Requested;
use super::super::port::{Port, port_name};
use super::super::state::Server;
use super::super::steps;
use super::extended_state::{ExtendedState, WaitingRequest, compose_answer, token_of};
use super::response_stream::ResponseStream;
use super::rights;
use signalbox_core::{Answer, Call, ListingKind, Moment, Outcome, Queueing, Session, Waiting, Want};
use signalbox_model::{
    Claim, Limit, Milliseconds, Namespace, Operation, Place, ReachedLimit, Refusal, RequestIds, Scope,
    SessionId, Status, Target, UnixSeconds,
};
use signalbox_protocol::{
    self as wire, Extended, ExtendedOpcode, ExtendedResponse, Frame, FrameClass, Opaque, Response, Wait,
};

/// The next step of the connection after a frame was executed.
pub(in crate::server) enum NextStep {
    /// It executes the next frame.
    Continue,
    /// It yields to other connections first, because the requests took long.
    Yield,
    /// It sends this response first.
    Stream(Box<ResponseStream>),
    /// It ends, once the request is answered.
    Close,
}

/// The way in which a valid request is answered.
pub(super) enum Execution<'a> {
    Response(ExtendedResponse<'a>),
    /// The addresses of the nodes, for Where.
    Where,
    Answer(Answer),
    /// The core sends the answer later, as a message.
    Later,
    Stream(ResponseStream),
}

/// The answer to a request that returns nothing.
const DONE: Execution<'static> = Execution::Response(ExtendedResponse::Plain(Response::Done));

/// The reason why a request was not executed.
pub(super) enum Denial {
    Refused(Refusal),
    Status(Status),
    /// Refused, and the connection is closed.
    Closed(Refusal),
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Executes the requests of one turn of a connection.
pub(in crate::server) struct Executor<'a> {
    pub(in crate::server) server: &'a Server,
    pub(in crate::server) port: &'a Port,
    pub(in crate::server) session: &'a mut Session,
    pub(in crate::server) extended: &'a mut ExtendedState,
    pub(in crate::server) now: UnixSeconds,
    /// The limit on memory because of which plain Acquires are refused; `None`: there is enough memory. The core itself
    /// refuses other requests.
    pub(in crate::server) lack: Option<ReachedLimit>,
    pub(in crate::server) tally: Tally,
    /// Extended requests executed so far.
    pub(in crate::server) extended_requests: usize,
    /// The number of requests for which the client is slowed down: it has used up its share, or lacks the right.
    pub(in crate::server) slowing_requests: Cell<u32>,
}

impl Executor<'_> {
    /// Executes one frame and appends its response to `out`. A response of many frames is returned instead, and a request
    /// that has to wait is answered later.
    #[inline]
    pub(in crate::server) fn execute(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> NextStep {
        match frame.class() {
            FrameClass::Plain(_) => self.execute_plain(frame, out),
            FrameClass::Extended(opcode) => self.execute_extended(opcode, frame, out),
            FrameClass::Sysv(opcode) => self.execute_sysv(opcode, frame, out),
            FrameClass::Unknown(status) => {
                Response::Failed(status).compose(frame.opcode(), frame.opaque(), out);
                NextStep::Continue
            }
        }
    }

    /// Notes one more request for which the client is slowed down.
    pub(super) fn slow_down(&self) {
        self.slowing_requests.set(self.slowing_requests.get().saturating_add(1));
    }

    /// Returns whether the client lacks the right that a request needs. If so, the request is counted and logged.
    #[cold]
    pub(super) fn lacks(&self, operation: impl fmt::Debug, needed: Option<rights::Needed<'_>>) -> bool {
        let missing = needed.filter(|(right, target)| !self.extended.standing.may(*right, *target));
        missing.inspect(|missing| self.note_missing(operation, *missing)).is_some()
    }

    /// Counts and logs a request that is refused because the client lacks a right.
    fn note_missing(&self, operation: impl fmt::Debug, (right, _): rights::Needed<'_>) {
        self.slow_down();
        let (client, identity) = (&self.extended.client, self.extended.standing.permissions().identity());
        self.server.rules.access.note_missing(client, identity, &format!("{operation:?}"), right);
    }

    /// Adds the commands executed so far to the statistics.
    pub(in crate::server) fn record_commands(&mut self) {
        self.tally.record(&self.port.metrics.traffic);
    }

    /// Counts a refusal because of a limit on names or memory, or because of a share, and warns of it.
    pub(super) fn note_refusal(&self, refusal: Refusal) {
        let (server, port) = (self.server, self.port);
        match refusal {
            Refusal::TooManyNames => {
                port.metrics.refused_names.add(1);
                if port.warnings.refused_name.permits() {
                    warn!(
                        port = port_name(port.namespace),
                        session = %self.session.id(),
                        "new names are refused: max_names is reached; raise it, or find the client that makes so many"
                    );
                }
            }
            Refusal::LimitReached(limit @ ReachedLimit { is_share: true, max: share, .. }) => {
                self.slow_down();
                server.rules.shares.note_refusal(self.extended.client.address, limit.limit.key(), share);
            }
            Refusal::LimitReached(ReachedLimit { limit: Limit::Memory, .. }) => server.memory.note_refusal(),
            _ => {}
        }
    }
}

/// The extended operations.
impl Executor<'_> {
    /// Executes an extended request as [`execute`](Self::execute) does. After several of them, the connection yields,
    /// because each may take much work.
    #[cold]
    pub(super) fn execute_extended(
        &mut self,
        opcode: ExtendedOpcode,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> NextStep {
        let opaque = frame.opaque();
        // A refused request counts too: once it is answered, the client has forgotten when it sent the earlier ones, and a
        // notice must not count from them.
        self.extended.last_request = (opaque, self.server.monotonic());
        let outcome = frame.parse_extended().map_err(Denial::Status).and_then(|request| {
            self.port.metrics.extended_commands.add(1);
            if let Extended::Hello { credentials, .. } = request {
                // First, because the shares of the connection are those of the identity that Hello proves.
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
            Ok(Execution::Stream(response)) => return NextStep::Stream(Box::new(response)),
            Err(denial) => return self.deny(opcode.code(), opaque, denial, out),
        }
        self.yield_after_some()
    }

    /// Answers a request that is not executed.
    pub(super) fn deny(&mut self, opcode: u8, opaque: Opaque, denial: Denial, out: &mut Vec<u8>) -> NextStep {
        match denial {
            Denial::Refused(refusal) => {
                self.note_refusal(refusal);
                ExtendedResponse::Refused(refusal).compose(opcode, opaque, out);
            }
            Denial::Status(status) => Response::Failed(status).compose(opcode, opaque, out),
            Denial::Closed(refusal) => {
                ExtendedResponse::Refused(refusal).compose(opcode, opaque, out);
                return NextStep::Close;
            }
        }
        self.yield_after_some()
    }

    /// Returns the next step after a request: the connection yields after several, because each may take much work.
    /// Each step of checking the names of a session counts as a request.
    pub(super) fn yield_after_some(&mut self) -> NextStep {
        self.extended_requests += 1 + std::mem::take(&mut self.extended.checks);
        if self.extended_requests < steps::LEDGER_REQUESTS { NextStep::Continue } else { NextStep::Yield }
    }

    /// Executes a request if the client has the right to. The audit log records an Export even if the client lacks the
    /// right.
    fn execute_permitted(
        &mut self,
        opaque: Opaque,
        request: &Extended<'_>,
    ) -> Result<Execution<'static>, Denial> {
        let missing = rights::missing(&self.extended.standing, request);
        let Some(missing) = missing.or_else(|| self.missing_in_session(request)) else {
            return self.execute_request(opaque, request);
        };
        self.note_missing(request.opcode(), missing);
        if let Extended::Export = request {
            self.audit_export(Ended::Denied(Status::NotPermitted.name()));
        }
        Err(self.extended.standing.refusal().into())
    }

    /// Returns the right that the request needs, if it would renew the lease but the client may no longer acquire a
    /// name that its session holds or waits for.
    fn missing_in_session<'a>(&mut self, request: &Extended<'a>) -> Option<rights::Needed<'a>> {
        let is_renewal = matches!(
            request,
            Extended::KeepAlive | Extended::AcquireGrant { .. } | Extended::AcquireAll { .. }
        );
        if !is_renewal || !self.extended.lacks_rights {
            return None;
        }
        // The name may have been released since.
        self.extended.check_names(self.server);
        if self.extended.lacks_rights { rights::needed(request) } else { None }
    }

    fn execute_request(
        &mut self,
        opaque: Opaque,
        request: &Extended<'_>,
    ) -> Result<Execution<'static>, Denial> {
        let (core, connection) = (&self.server.core, self.extended.connection);
        let now = self.server.moment();
        let token = token_of(opaque);
        let call = |ids| Call { connection, ids, token };
        let mut place = None;
        let outcome = match *request {
            Extended::Hello { version, label, features, .. } => {
                return self.hello(opaque, version, label, features);
            }
            Extended::OpenSession { ttl, label, key } => self.open_session(opaque, ttl, label, key, now)?,
            Extended::AttachSession { session, key, repetitions } => {
                let session = SessionId::from_number(session).ok_or(Refusal::NoSuchSession)?;
                core.attach(session, connection, &key, repetitions)?;
                self.extended.regain_lease(self.server);
                return match &self.extended.lease {
                    Some(lease) => {
                        lease.renew(now.monotonic);
                        Ok(ttl(lease.ttl_ms()))
                    }
                    // The client must not assume more of the lease than is left.
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
            Extended::AcquireGrant { ids, claim, queueing, place: presented, is_shared } => {
                let wants = [Want { is_shared, ..self.want(claim)? }];
                let outcome;
                (outcome, place) = self.acquire_grant(opaque, call(ids), &wants, queueing, presented, now)?;
                outcome
            }
            Extended::AcquireAll { ids, queueing, ref claims, place: presented } => {
                let wants: Vec<_> = claims.iter().map(|claim| self.want(*claim)).collect::<Result<_, _>>()?;
                let outcome;
                (outcome, place) = self.acquire_grant(opaque, call(ids), &wants, queueing, presented, now)?;
                outcome
            }
            Extended::ReleaseGrant { ids, grant, is_done } => {
                self.check_opaque(opaque)?;
                core.release_grant(call(ids), grant, is_done, now)
            }
            Extended::Cancel(call) => {
                let waiting = match call {
                    wire::WaitingRequest::Id(id) => Waiting::Request(id),
                    wire::WaitingRequest::Opaque(opaque) => Waiting::Token(token_of(opaque)),
                };
                if let wire::WaitingRequest::Opaque(opaque) = call
                    && self.extended.waiting_calls.contains_key(&opaque)
                {
                    core.cancel_sem_op(connection, token_of(opaque), now);
                    return Ok(DONE);
                }
                core.cancel(connection, waiting, now)?;
                return Ok(DONE);
            }
            Extended::VerifyGrant { grant } => {
                let standing = &self.extended.standing;
                let may_read =
                    |namespace, name: &[u8]| standing.may(Right::Read, Target::Name(namespace, name));
                let verified = core.verify_for(connection, may_read, grant, now)?;
                return Ok(Execution::Response(ExtendedResponse::Verified(verified)));
            }
            // The client has the right: otherwise the request would have been refused before.
            Extended::MayAdminister { .. } => return Ok(DONE),
            Extended::Holders { namespace, name } => {
                let holders = core.listing(namespace, name, ListingKind::Holders)?;
                return Ok(Execution::Stream(ResponseStream::listing(holders, opaque)));
            }
            Extended::Waiters { namespace, name } => {
                let waiters = core.listing(namespace, name, ListingKind::Waiters)?;
                return Ok(Execution::Stream(ResponseStream::listing(waiters, opaque)));
            }
            Extended::Watch { namespace, scope } => return self.watch(opaque, namespace, scope, now),
            Extended::Unwatch { watch } => {
                core.unwatch(connection, token_of(watch), now)?;
                self.extended.end_watch(watch);
                return Ok(DONE);
            }
            Extended::Sessions => {
                return Ok(Execution::Stream(ResponseStream::sessions(core.sessions(), opaque)));
            }
            Extended::Held { ref sessions } => {
                return Ok(Execution::Stream(ResponseStream::held(self.server, sessions, opaque)?));
            }
            Extended::Export => return self.export(opaque),
            Extended::Change { ids, ref operation } => return self.change(opaque, ids, operation, now),
            Extended::Inspect { namespace: None, name } => {
                let namespace = Some(core.resolve(name));
                return self.execute_permitted(opaque, &Extended::Inspect { namespace, name });
            }
            Extended::Inspect { namespace: Some(namespace), name } => {
                let inspected = core.inspect(namespace, name, now)?;
                return Ok(Execution::Response(ExtendedResponse::Inspected(inspected)));
            }
            Extended::AwaitIdle { wait, until, namespace, name } => {
                self.check_opaque(opaque)?;
                let (key, name) = ((connection, token), (namespace, name));
                core.await_idle(key, name, until, self.wait_ms(wait), now)
            }
            Extended::List { prefix } => {
                return Ok(Execution::Stream(ResponseStream::declared(core.declared(prefix), opaque)));
            }
        };
        let execution = self.settle(opaque, request.opcode(), outcome, now, None)?;
        // The client is told the place of a waiting request now, and the answer later.
        Ok(place.map_or(execution, |place| Execution::Response(ExtendedResponse::Queued(place))))
    }

    /// Answers a request with this outcome, or notes that it waits. `requested`: the operation, if an administrator
    /// requests it.
    fn settle(
        &mut self,
        opaque: Opaque,
        opcode: ExtendedOpcode,
        outcome: Outcome,
        now: Moment,
        requested: Option<Box<Requested>>,
    ) -> Result<Execution<'static>, Denial> {
        match outcome {
            Outcome::Answered(answer) => Ok(Execution::Answer(answer)),
            Outcome::Refused(refusal) => Err(refusal.into()),
            Outcome::Waiting => {
                let waiting = WaitingRequest { opcode, since: now.monotonic, requested };
                self.extended.waiting.insert(opaque, waiting);
                Ok(Execution::Later)
            }
        }
    }

    /// Asks the core for a grant. If the request waits, also returns its place, unless the client has not asked for places.
    fn acquire_grant(
        &self,
        opaque: Opaque,
        call: Call,
        wants: &[Want<'_>],
        queueing: wire::Queueing,
        presented: Option<Place>,
        now: Moment,
    ) -> Result<(Outcome, Option<Place>), Denial> {
        self.check_opaque(opaque)?;
        let queue_max = queueing.queue_max.unwrap_or(u32::MAX);
        let queueing = Queueing { wait_ms: self.wait_ms(queueing.wait), queue_max };
        let core = &self.server.core;
        if !self.extended.is_told_places && presented.is_none() {
            return Ok((core.acquire_grant(call, wants, queueing, now), None));
        }
        let (outcome, place) = core.acquire_grant_at(call, wants, queueing, presented, now);
        Ok((outcome, place.filter(|_| self.extended.is_told_places)))
    }

    /// Converts a claim, which the protocol has checked, for the core.
    fn want<'a>(&self, claim: Claim<'a>) -> Result<Want<'a>, Denial> {
        let standing = &self.extended.standing;
        let may = |namespace| standing.may(Right::Acquire, Target::Name(namespace, claim.name));
        Want::of(claim, may).ok_or(Denial::Status(Status::InvalidArguments))
    }

    /// Returns the time to live, in milliseconds, of a session or process that requests `ttl`.
    pub(super) fn ttl_ms(&self, ttl: Option<Milliseconds>) -> u32 {
        self.server.config().session.ttl_ms(ttl)
    }

    /// Returns how long a request waits at most, in milliseconds.
    fn wait_ms(&self, wait: Wait) -> u32 {
        match wait {
            Wait::NotAtAll => 0,
            Wait::UpTo(span) => self.server.config().session.wait_ms(Some(span)),
            Wait::ServerDefault => self.server.config().session.wait_ms(None),
        }
    }

    /// Executes an operation of an administrator if the client has the right to, and records it.
    fn change(
        &mut self,
        opaque: Opaque,
        ids: RequestIds,
        operation: &Operation<'_>,
        now: Moment,
    ) -> Result<Execution<'static>, Denial> {
        let opcode = ExtendedOpcode::of(operation);
        let (client, permissions) = (&self.extended.client, self.extended.standing.permissions());
        let mut requested = match Requested::permitted(Some(self.server), client, permissions, operation) {
            Ok(requested) => requested,
            Err(target) => {
                self.note_missing(opcode, (Right::Administer, target));
                return Err(self.extended.standing.refusal().into());
            }
        };
        self.check_opaque(opaque)?;
        let call = Call { connection: self.extended.connection, ids, token: token_of(opaque) };
        let outcome = requested.execute(self.server, call, operation, now);
        self.settle(opaque, opcode, outcome, now, Some(Box::new(requested)))
    }

    fn export(&self, opaque: Opaque) -> Result<Execution<'static>, Denial> {
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

    fn audit_export(&self, ended: Ended) {
        let identity = self.extended.standing.permissions().identity();
        self.server.audit.record(
            Some(&self.extended.client),
            identity,
            "export all records",
            "server",
            ended,
        );
    }

    fn watch(
        &mut self,
        opaque: Opaque,
        namespace: Namespace,
        scope: Scope<&[u8]>,
        now: Moment,
    ) -> Result<Execution<'static>, Denial> {
        self.extended.hello.ok_or(Denial::Status(Status::NotPermitted))?;
        self.check_opaque(opaque)?;
        let core = &self.server.core;
        let snapshot = core.watch(self.extended.connection, token_of(opaque), namespace, scope, now)?;
        self.extended.watches.insert(opaque, 0);
        self.extended.snapshots.push((opaque, snapshot));
        Ok(Execution::Later)
    }

    /// Refuses an opaque that a waiting request or a watch still uses: the client could not tell the responses apart.
    pub(super) fn check_opaque(&self, opaque: Opaque) -> Result<(), Denial> {
        if self.extended.uses(opaque) {
            return Err(Denial::Status(Status::InvalidArguments));
        }
        Ok(())
    }
}

fn ttl(ttl_ms: u32) -> Execution<'static> {
    Execution::Response(ExtendedResponse::Ttl(Milliseconds(ttl_ms)))
}
