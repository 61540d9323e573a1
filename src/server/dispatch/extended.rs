//! Executes the extended operations (`docs/protocol.md`, "Extended operations").

use super::super::access::{Ended, Right};
use super::super::operations::Requested;
use super::super::steps;
use super::answer::{compose_answer, compose_refusal, compose_status};
use super::executor::{Executor, NextStep};
use super::extended_state::{WaitingRequest, token_of};
use super::response_stream::ResponseStream;
use super::rights;
use crate::config::{SessionConfig, ms};
use signalbox_core::{Answer, Call, ListingKind, Moment, Outcome, Queueing, REQUESTS_MAX, Waiting, Want};
use signalbox_model::{
    Claim, Milliseconds, Namespace, Place, Refusal, Scope, SessionId, SessionKey, Status, Target,
};
use signalbox_protocol::{
    self as wire, ACQUIRE_ALL_NAMES_MAX, EXTENDED_VERSION, Extended, ExtendedOpcode, ExtendedResponse,
    Features, Frame, HelloAnswer, Opaque, Response, Shares, Wait,
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
    /// The addresses of the nodes, for Where.
    Where,
    Answer(Answer),
    /// By a message of the core, later.
    Later,
    Stream(ResponseStream),
}

const DONE: Execution<'static> = Execution::Response(ExtendedResponse::Plain(Response::Done));

impl Executor<'_> {
    /// Executes an extended request as [`execute`](Self::execute) does. After several of them, the connection yields, as each may
    /// take much work.
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
                // First, because the shares of the connection are counted for the identity that this proves.
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
                compose_refusal(opcode, opaque, refusal, out);
            }
            Denial::Status(status) => compose_status(opcode, opaque, status, out),
            Denial::Closed(refusal) => {
                compose_refusal(opcode, opaque, refusal, out);
                return NextStep::Close;
            }
        }
        self.yield_after_some()
    }

    /// The next step after a request, as each may take much work. A step of a check of a session's names counts as one.
    pub(super) fn yield_after_some(&mut self) -> NextStep {
        self.extended_requests += 1 + std::mem::take(&mut self.extended.checks);
        if self.extended_requests < steps::LEDGER_REQUESTS { NextStep::Continue } else { NextStep::Yield }
    }

    /// Executes a request if the client has the right to. Administrative ones go to the audit log in any case.
    fn execute_permitted(
        &mut self,
        opaque: Opaque,
        request: &Extended<'_>,
    ) -> Result<Execution<'static>, Denial> {
        let missing = rights::missing(&self.extended.standing, request);
        let Some(missing) = missing.or_else(|| self.missing_in_session(request)) else {
            return self.execute_request(opaque, request);
        };
        self.note_missing(&format!("{:?}", request.opcode()), missing);
        match request {
            Extended::Change { operation, .. } => {
                let permissions = self.extended.standing.permissions();
                Requested::new(&self.extended.client, permissions, operation).not_permitted(self.server);
            }
            Extended::Export => self.audit_export(Ended::Denied(Status::NotPermitted.name())),
            _ => {}
        }
        Err(self.extended.standing.refusal().into())
    }

    /// If this request would renew the lease, but the client may no longer acquire a name that its session holds or waits for:
    /// the right that the request needs.
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
            // It has the right, otherwise the request was refused.
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
        match outcome {
            Outcome::Answered(answer) => Ok(Execution::Answer(answer)),
            Outcome::Refused(refusal) => Err(refusal.into()),
            Outcome::Waiting => {
                let waiting =
                    WaitingRequest { opcode: request.opcode(), since: now.monotonic, requested: None };
                self.extended.waiting.insert(opaque, waiting);
                // The client is told the place now, and the answer later.
                let told = |place| Execution::Response(ExtendedResponse::Queued(place));
                Ok(place.map_or(Execution::Later, told))
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
        let session = &self.server.config().session;
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

    /// Where clients reach the nodes of the cluster.
    fn compose_whereabouts(&self, opaque: Opaque, out: &mut Vec<u8>) {
        let opcode = ExtendedOpcode::Where.code();
        let Some(whereabouts) = self.server.whereabouts() else {
            return compose_status(opcode, opaque, Status::UnknownCommand, out);
        };
        let (namespace, others) = (self.port.namespace, whereabouts.others.get());
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

    fn open_session(
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

    /// The claim as the core takes it. The protocol has checked it.
    fn want<'a>(&self, claim: Claim<'a>) -> Result<Want<'a>, Denial> {
        let standing = &self.extended.standing;
        let may = |namespace| standing.may(Right::Acquire, Target::Name(namespace, claim.name));
        Want::of(claim, may).ok_or(Denial::Status(Status::InvalidArguments))
    }

    /// The time to live of a session or process that asks for this one, in milliseconds.
    pub(super) fn ttl_ms(&self, ttl: Option<Milliseconds>) -> u32 {
        self.server.config().session.ttl_ms(ttl)
    }

    /// How long a request waits, in milliseconds.
    fn wait_ms(&self, wait: Wait) -> u32 {
        match wait {
            Wait::NotAtAll => 0,
            Wait::UpTo(span) => self.server.config().session.wait_ms(Some(span)),
            Wait::ServerDefault => self.server.config().session.wait_ms(None),
        }
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

/// Why a request was not executed.
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
