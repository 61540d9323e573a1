//! The operations beyond yrmcds' (`docs/protocol.md`, "Extended operations").

use std::sync::Arc;

use bytes::BytesMut;
use tracing::info;

use super::super::steps;
use super::translation::{
    grant_on_wire, ids_of, namespace_of, scope_of, status_of, token_of, ttl_left_on_wire, want_of,
};
use super::{After, Executor, Owed, note_refusal};
use crate::core::{
    Asked, GrantId, Granted, Lease, Moment, Queueing, REQUESTS_MAX, Refusal, SessionId, SessionKey, Waiting,
    Want,
};
use crate::protocol::{
    self as wire, ACQUIRE_ALL_NAMES_MAX, AllGranted, EXTENDED_VERSION, Extended, ExtendedOpcode,
    ExtendedResponse, Features, Frame, HelloAnswer, Milliseconds, Opaque, OpenedSession, Response,
    Revocation, Standing, Status, VerifiedGrant, Wait, WaitingRequest,
};

/// What this server can do.
const FEATURES: Features =
    Features::GRANTS.union(Features::ACQUIRE_ALL).union(Features::WATCH).union(Features::REVOKE);

/// What becomes of a request that is in order.
enum Outcome<'a> {
    Answer(ExtendedResponse<'a>),
    Granted(Granted),
    /// The answer comes when there is one.
    Later,
    Owed(Owed),
}

const DONE: Outcome<'static> = Outcome::Answer(ExtendedResponse::Plain(Response::Done));

impl Executor<'_> {
    /// Answers a frame that is none of yrmcds' operations, appending to `out`, unless it has to wait or is long.
    #[cold]
    pub(super) fn execute_extended(&mut self, frame: &Frame<'_>, out: &mut BytesMut) -> After {
        let (opcode, opaque) = (frame.opcode(), frame.opaque());
        let outcome = frame.parse_extended().and_then(|request| {
            self.port.metrics.extended_commands.add(1);
            self.party.join(self.server);
            self.extended(opaque, &request).map_err(|refusal| match refusal {
                Denial::Refused(refusal) => {
                    note_refusal(self.port, self.party.connection, refusal);
                    status_of(refusal)
                }
                Denial::Status(status) => status,
            })
        });
        match outcome {
            Ok(Outcome::Answer(response)) => response.compose(opcode, opaque, out),
            Ok(Outcome::Granted(granted)) => compose_granted(opcode, opaque, &granted, out),
            Ok(Outcome::Later) => {}
            Ok(Outcome::Owed(owed)) => return After::Owed(owed),
            Err(status) => compose_status(opcode, opaque, status, out),
        }
        self.extended += 1;
        if self.extended < steps::EXTENDED_REQUESTS { After::Continue } else { After::Pause }
    }

    fn extended(&mut self, opaque: Opaque, request: &Extended<'_>) -> Result<Outcome<'static>, Denial> {
        let (core, connection) = (&self.server.core, self.party.connection);
        let now = self.server.moment();
        Ok(match *request {
            Extended::Hello { version, label, .. } => self.hello(opaque, version, label)?,
            Extended::OpenSession { ttl, label } => {
                let limits = self.server.session_limits();
                let ttl_ms = ttl.map_or(limits.default_ttl_ms, |ttl| ttl.0);
                let ttl_ms = ttl_ms.clamp(limits.min_ttl_ms, limits.max_ttl_ms);
                let key = SessionKey(random_key()?);
                let (session, lease) = core.open_leased(connection, key, ttl_ms, label, now)?;
                self.party.lease = Some(lease);
                let key = wire::SessionKey(key.0);
                let opened = OpenedSession { session: session.number(), key, ttl: Milliseconds(ttl_ms) };
                Outcome::Answer(ExtendedResponse::Opened(opened))
            }
            Extended::AttachSession { session, key } => {
                let session = SessionId::from_number(session).ok_or(Refusal::NoSuchSession)?;
                let lease = core.attach(session, connection, &SessionKey(key.0), now)?;
                self.attached(lease)
            }
            Extended::KeepAlive => ttl(core.keep_alive(connection, now)?),
            Extended::CloseSession => {
                self.party.lease = None;
                core.close_leased(connection, now)?;
                DONE
            }
            Extended::AcquireGrant { ids, wanted, queueing } => self.acquire_grant(
                opaque,
                ids,
                &[want_of(wanted)?],
                queueing,
                ExtendedOpcode::AcquireGrant,
                now,
            )?,
            Extended::AcquireAll { ids, queueing, wanted } => {
                let wants: Vec<_> = wanted.iter().map(want_of).collect::<Result<_, _>>()?;
                self.acquire_grant(opaque, ids, &wants, queueing, ExtendedOpcode::AcquireAll, now)?
            }
            Extended::ReleaseGrant { ids, grant } => {
                core.release_grant(connection, ids_of(ids), GrantId(grant.0), now)?;
                DONE
            }
            Extended::Cancel(waiting) => {
                let waiting = match waiting {
                    WaitingRequest::Id(id) => Waiting::Request(id.0),
                    WaitingRequest::Opaque(opaque) => Waiting::Token(token_of(opaque)),
                };
                core.cancel(connection, waiting, now)?;
                DONE
            }
            Extended::VerifyGrant { grant } => {
                let (session, ttl_left_ms) = core.verify(GrantId(grant.0), now)?;
                let ttl_left = ttl_left_on_wire(ttl_left_ms);
                let verified =
                    VerifiedGrant { session: session.number(), ttl_left, standing: Standing::Held };
                Outcome::Answer(ExtendedResponse::Verified(verified))
            }
            Extended::Holders { namespace, name } => self.listing(opaque, namespace, name, false)?,
            Extended::Waiters { namespace, name } => self.listing(opaque, namespace, name, true)?,
            Extended::Watch { namespace, scope } => {
                self.party.hello.ok_or(Denial::Status(Status::NotPermitted))?;
                self.check_opaque(opaque)?;
                let namespace = namespace_of(namespace);
                let tour = core.watch(connection, token_of(opaque), namespace, scope_of(scope), now)?;
                self.party.watches.insert(opaque, 0);
                self.party.tours.push((opaque, tour));
                Outcome::Later
            }
            Extended::Unwatch { watch } => {
                core.unwatch(connection, token_of(watch), now)?;
                self.party.end_watch(watch);
                DONE
            }
            Extended::Revoke { ids, what, grace } => {
                self.check_administrator()?;
                let ids = ids_of(ids);
                match what {
                    Revocation::Grant(grant) => {
                        core.revoke_grant(connection, ids, GrantId(grant.0), grace.0, now)?;
                    }
                    Revocation::Session(number) => {
                        let session = SessionId::from_number(number).ok_or(Refusal::NoSuchSession)?;
                        // A connection that never said more than yrmcds' clients do is revoked like any other.
                        if let Some(peer) = self.server.peers.find(session) {
                            core.join(session, None, &peer.mailbox);
                        }
                        core.revoke_session(connection, ids, session, grace.0, now)?;
                    }
                }
                info!(?what, grace_ms = grace.0, by = %self.party.address, "revoked");
                DONE
            }
            Extended::Declare { .. }
            | Extended::Resize { .. }
            | Extended::Remove { .. }
            | Extended::AwaitIdle { .. }
            | Extended::List { .. } => return Err(Denial::Status(Status::UnknownCommand)),
        })
    }

    fn hello(&mut self, opaque: Opaque, version: u32, label: &[u8]) -> Result<Outcome<'static>, Denial> {
        if version == 0 {
            return Err(Denial::Status(Status::InvalidArguments));
        }
        self.party.introduce(self.server, opaque, label);
        let limits = self.server.session_limits();
        Ok(Outcome::Answer(ExtendedResponse::Hello(HelloAnswer {
            version: EXTENDED_VERSION,
            features: FEATURES,
            session: self.party.connection.number(),
            wait_max: Milliseconds(limits.max_wait_ms),
            wait_default: Milliseconds(limits.default_wait_ms),
            ttl_min: Milliseconds(limits.min_ttl_ms),
            ttl_max: Milliseconds(limits.max_ttl_ms),
            names_max: ACQUIRE_ALL_NAMES_MAX as u32,
            requests_max: REQUESTS_MAX as u32,
        })))
    }

    fn attached(&mut self, lease: Arc<Lease>) -> Outcome<'static> {
        let ttl_ms = lease.ttl_ms();
        self.party.lease = Some(lease);
        ttl(ttl_ms)
    }

    fn acquire_grant(
        &mut self,
        opaque: Opaque,
        ids: wire::RequestIds,
        wants: &[Want<'_>],
        queueing: wire::Queueing,
        opcode: ExtendedOpcode,
        now: Moment,
    ) -> Result<Outcome<'static>, Denial> {
        self.check_opaque(opaque)?;
        let limits = self.server.session_limits();
        let wait_ms = match queueing.wait {
            Wait::NotAtAll => 0,
            Wait::UpTo(span) => span.0.min(limits.max_wait_ms),
            Wait::ServerDefault => limits.default_wait_ms,
        };
        let queueing = Queueing { wait_ms, queue_max: queueing.queue_max.unwrap_or(u32::MAX) };
        let (core, connection) = (&self.server.core, self.party.connection);
        match core.acquire_grant(connection, ids_of(ids), wants, queueing, token_of(opaque), now) {
            Asked::Granted(granted) => Ok(Outcome::Granted(granted)),
            Asked::Refused(refusal) => Err(refusal.into()),
            Asked::Waiting => {
                self.party.waiting.insert(opaque, opcode.code());
                Ok(Outcome::Later)
            }
        }
    }

    fn listing(
        &self,
        opaque: Opaque,
        namespace: wire::Namespace,
        name: &[u8],
        waiters: bool,
    ) -> Result<Outcome<'static>, Denial> {
        let listing = self.server.core.listing(namespace_of(namespace), name, waiters)?;
        Ok(Outcome::Owed(Owed::listing(listing, opaque)))
    }

    /// Refuses an opaque under which something is still to come: its answers could not be told apart.
    fn check_opaque(&self, opaque: Opaque) -> Result<(), Denial> {
        if self.party.waiting.contains_key(&opaque) || self.party.watches.contains_key(&opaque) {
            return Err(Denial::Status(Status::InvalidArguments));
        }
        Ok(())
    }

    /// Whether the peer may do what is an administrator's: from loopback, and from where the configuration says.
    fn check_administrator(&self) -> Result<(), Denial> {
        let address = self.party.address.ip().to_canonical();
        if address.is_loopback() || self.server.is_administrator(address) {
            return Ok(());
        }
        Err(Denial::Status(Status::NotPermitted))
    }
}

/// Why a request is not done.
enum Denial {
    Refused(Refusal),
    Status(Status),
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

fn ttl(ttl_ms: u32) -> Outcome<'static> {
    Outcome::Answer(ExtendedResponse::Ttl(Milliseconds(ttl_ms)))
}

/// A key that nobody can guess.
fn random_key() -> Result<[u8; 16], Denial> {
    let mut key = [0; 16];
    // The system has no randomness to give, which no system of today comes to: nothing secret can be made then.
    getrandom::fill(&mut key).map_err(|_| Denial::Status(Status::LimitReached))?;
    Ok(key)
}

/// Appends what a request was granted.
pub(super) fn compose_granted(opcode: u8, opaque: Opaque, granted: &Granted, out: &mut BytesMut) {
    let grant = grant_on_wire(granted.grant);
    let ttl_left = ttl_left_on_wire(granted.ttl_left_ms);
    let response = if opcode == ExtendedOpcode::AcquireAll.code() {
        ExtendedResponse::AllGranted(AllGranted {
            grant,
            ttl_left,
            capacities: &granted.capacities[..],
            slots: &[],
        })
    } else {
        ExtendedResponse::Granted(wire::Granted {
            grant,
            // One name's resources and capacity are below 2^32 each.
            resources: granted.resources as u32,
            capacity: granted.capacities.first().copied().unwrap_or(0),
            ttl_left,
            slots: &[],
        })
    };
    response.compose(opcode, opaque, out);
}

pub(super) fn compose_status(opcode: u8, opaque: Opaque, status: Status, out: &mut BytesMut) {
    Response::Failed(status).compose(opcode, opaque, out);
}
