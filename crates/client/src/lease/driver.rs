//! The driver of a session: it sends requests, renews the lease, connects again after a disconnect and marks permits
//! as lost. By default, it runs apart from the program's tasks, so that none of them can delay it.
//!
//! The driver relies on the server as little as possible: a lease is counted from the *sending* of a request that the
//! server has answered, and a connection is closed when KeepAlive is not answered for a quarter of the time to live (for
//! less in a cluster), or for twice the round trip if that is longer, but for 10 s at most.
//!
//! It combines parts with one purpose each: [`Link`] is the connection to a server, [`Reconnect`] decides when and where
//! to connect, [`RequestTable`] has the unanswered requests, [`GrantTable`] the grants of permits, and
//! [`LeaseValidity`] the end of the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

use super::claim::{AcquireSpec, WaitLimit};
use super::clock::{Clock, Moment, Sleep};
use super::grants::{GrantTable, LeaseValidity, safe_duration};
use super::link::{
    Attached, AttachmentFailure, Greeted, Greeting, Link, LinkEvent, SessionConnection, Tag,
    keep_alive_interval,
};
use super::reconnect::{AfterFailure, Reconnect};
use super::requests::{
    AcquireFailure, AcquireOutcome, Command, HeldGrant, Operation, ReleaseCaller, Request, RequestTable,
    SessionLoad, Transmission, read_granted, read_released,
};
use super::settings::Settings;
use crate::{Address, Disconnect, Error, ErrorKind, Lost, success};
use signalbox_model::{GraceLeft, GrantId, Notice, RequestId, Status, VerifiedGrant};
use signalbox_protocol::{
    AllGranted, Extended, Moved, OpenedSession, ReceivedNotice, ResponseFrame, WaitingRequest,
};

/// The longest time that closing a session may take. After that, the session ends with its time to live.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// The longest time that a caller waits for the answer to a release, as in the clients of other languages.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// The number of sessions that a client has lost. Its drivers count them.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses(Arc<AtomicU64>);

impl Losses {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) struct Driver {
    clock: Arc<dyn Clock>,
    lease: Arc<LeaseValidity>,
    load: Arc<SessionLoad>,
    losses: Losses,
    commands: mpsc::UnboundedReceiver<Command>,
    requests: RequestTable,
    grants: GrantTable,
    /// `None` until the session is opened.
    session: Option<OpenedSession>,
    link: Link,
    reconnect: Reconnect,
    session_move: Move,
    phase: Phase,
    sharing: Sharing,
    /// Callers that wait until the session is open.
    open_waiters: Vec<oneshot::Sender<Result<(), Error>>>,
    /// Callers that wait until the session is closed; their channels are then closed without a value.
    close_waiters: Vec<oneshot::Sender<()>>,
}

/// The phases of a session, in their order.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Active,
    /// No user is left, or the client is closed. The driver waits until this moment at most for the server to close the
    /// session.
    Closing {
        deadline: Moment,
    },
    /// The driver stops. Permits that are left are lost for this reason.
    Ended(Lost),
}

/// A move of the session to another connection: from a relayed connection to the leader of the cluster itself, or, if
/// the server refuses the token, to a connection with the token that has replaced it.
enum Move {
    None,
    /// The client says Hello to the server at this address, while the session stays on its present connection.
    Greeting(Address, Greeting),
    /// The former connection is closed, and the session is being attached to the other one.
    Attaching,
}

/// Which acquires may use the session.
#[derive(Debug)]
enum Sharing {
    /// Any acquire of the client.
    Shared,
    /// No acquire: the session is being handed over. These callers are answered when the server has answered all
    /// requests.
    Isolating(Vec<oneshot::Sender<Result<OpenedSession, Error>>>),
    /// No acquire: the session was handed over, or the handover has failed.
    Isolated,
}

/// An event that wakes a driver.
enum Event {
    Link(LinkEvent),
    /// The server to which the session may move has answered Hello, or cannot be reached.
    Greeted(Result<Greeted, Error>),
    /// `None`: the last user of the session is gone.
    Command(Option<Command>),
    Timer,
}

impl Driver {
    pub(super) fn new(
        settings: Settings,
        lease: Arc<LeaseValidity>,
        load: Arc<SessionLoad>,
        commands: mpsc::UnboundedReceiver<Command>,
        losses: Losses,
        replaces_lost: bool,
    ) -> Self {
        let clock = Arc::clone(&settings.clock);
        let now = clock.now();
        let (reconnect, first_attempt) = Reconnect::new(settings, now, replaces_lost);
        Self {
            clock,
            lease,
            load,
            losses,
            commands,
            requests: RequestTable::default(),
            grants: GrantTable::default(),
            session: None,
            link: Link::RetryAt(first_attempt),
            reconnect,
            session_move: Move::None,
            phase: Phase::Active,
            sharing: Sharing::Shared,
            open_waiters: Vec::new(),
            close_waiters: Vec::new(),
        }
    }

    /// Runs until the session is closed, handed over or lost.
    pub(super) async fn run(mut self) {
        // A timer that fires too early does no harm, so it is replaced only when it would fire too late.
        let mut timer: Option<(Moment, Sleep)> = None;
        while !matches!(self.phase, Phase::Ended(_)) {
            let due = self.next_deadline();
            if timer.as_ref().is_none_or(|(at, _)| due < *at) {
                timer = Some((due, self.clock.sleep_until(due)));
            }
            let (_, sleep) = timer.as_mut().expect("the timer was just set");
            let is_active = matches!(self.phase, Phase::Active);
            let event = tokio::select! {
                // Answers first: they may make the rest unnecessary.
                biased;
                event = self.link.event() => Event::Link(event),
                outcome = outcome_of(&mut self.session_move) => Event::Greeted(outcome),
                command = self.commands.recv(), if is_active => Event::Command(command),
                () = sleep => Event::Timer,
            };
            if matches!(event, Event::Timer) {
                timer = None;
            }
            match event {
                Event::Link(LinkEvent::Response(tag, frame)) => self.handle_response(tag, &frame),
                Event::Link(LinkEvent::Disconnected(reason)) => self.disconnected(&reason),
                Event::Link(LinkEvent::Attached(attached)) => self.attached(*attached),
                Event::Link(LinkEvent::AttachmentFailed(failure)) => self.attachment_failed(failure),
                Event::Greeted(outcome) => self.greeted(outcome),
                Event::Command(Some(command)) => self.handle_command(command),
                Event::Command(None) => self.close(),
                Event::Timer => {}
            }
            self.handle_deadlines();
            self.send_requests();
            self.finish_isolation();
            self.load.set_window(self.requests.window());
        }
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::AwaitOpen(reply) if self.link.is_attached() => drop(reply.send(Ok(()))),
            Command::AwaitOpen(reply) => self.open_waiters.push(reply),
            Command::Acquire { reply, .. } if !matches!(self.sharing, Sharing::Shared) => {
                self.load.remove();
                drop(reply.send(Err(self.session_ended())));
            }
            Command::Acquire { asked_at, spec, reply } => {
                self.requests.add(Operation::Acquire { spec, asked_at, reply: Some(reply) });
            }
            Command::CancelAcquires => {
                for id in self.requests.abandoned_acquires() {
                    drop(self.cancel(id));
                }
            }
            Command::Release { grant, is_done, reply } => self.release(grant, is_done, reply),
            Command::Isolate(reply) => self.isolate(reply),
            Command::StopRenewing => self.phase = Phase::Ended(Lost::TakenOver),
            Command::Close(reply) => {
                self.close_waiters.push(reply);
                self.close();
            }
        }
    }

    /// Returns the failure of an acquire that can be repeated in another session.
    fn session_ended(&self) -> AcquireFailure {
        let down_since = self.reconnect.down_since().unwrap_or_else(|| self.now());
        AcquireFailure::SessionEnded { down_since: Some(down_since) }
    }

    /// Cancels an acquire, and returns its reply channel. What the server grants before it receives the cancellation
    /// is released.
    fn cancel(&mut self, id: RequestId) -> Option<oneshot::Sender<AcquireOutcome>> {
        let (reply, was_sent) = self.requests.cancel(id);
        if was_sent {
            self.send_cancel(id);
        } else {
            self.load.remove();
        }
        reply
    }

    fn release(&mut self, grant: GrantId, is_done: bool, reply: Option<oneshot::Sender<Result<(), Error>>>) {
        self.grants.remove(grant);
        let until = self.now().after(RELEASE_MAX);
        let caller = reply.map(|reply| ReleaseCaller { until, reply });
        self.requests.add(Operation::Release { grant, is_done, caller });
        self.load.set_window(self.requests.window());
        self.load.remove();
    }

    /// Ends the waiting acquires of a session before it is handed over: the server would grant them to the session, and
    /// this client would not know.
    fn isolate(&mut self, reply: oneshot::Sender<Result<OpenedSession, Error>>) {
        self.load.isolate();
        // A move would end the connection over which the answers come.
        self.cancel_move();
        match &mut self.sharing {
            Sharing::Isolating(callers) => callers.push(reply),
            Sharing::Shared | Sharing::Isolated => self.sharing = Sharing::Isolating(vec![reply]),
        }
        let waiting: Vec<_> = self.requests.waiting_acquires().map(|(id, ..)| id).collect();
        for id in waiting {
            if let Some(caller) = self.cancel(id) {
                drop(caller.send(Err(self.session_ended())));
            }
        }
    }

    /// Answers the callers that hand the session over, once no request is left at the server, or if the connection is
    /// lost.
    fn finish_isolation(&mut self) {
        if matches!(self.session_move, Move::Attaching) {
            return;
        }
        let session = self.session.filter(|_| self.link.is_attached());
        if session.is_some() && !self.requests.is_empty() {
            return;
        }
        match std::mem::replace(&mut self.sharing, Sharing::Isolated) {
            Sharing::Isolating(callers) => {
                let failure = || self.reconnect.last_failure().cloned().unwrap_or(Disconnect::Stopped.into());
                callers.into_iter().for_each(|caller| drop(caller.send(session.ok_or_else(failure))));
            }
            sharing @ (Sharing::Shared | Sharing::Isolated) => self.sharing = sharing,
        }
    }

    /// Closes the session, because its last user is gone or the client is closed.
    fn close(&mut self) {
        if !matches!(self.phase, Phase::Active) {
            return;
        }
        self.phase = Phase::Closing { deadline: self.now().after(CLOSING_MAX) };
        // This comes before the request: after the close, the server may grant to others what the permits hold.
        self.grants.lose_all(Lost::Stopped);
        self.cancel_move();
        if self.link.is_attached() {
            self.post(Extended::CloseSession, Tag::Close);
        } else if self.session.is_none() {
            // A server may be opening a session, but no permit can be in it yet. It ends with its lease.
            self.phase = Phase::Ended(Lost::Stopped);
        }
    }

    /// Sends the unsent requests, in the order of their ids.
    fn send_requests(&mut self) {
        let Link::Attached(connection) = &mut self.link else { return };
        if !matches!(self.phase, Phase::Active) {
            return;
        }
        let mut canceled = Vec::new();
        while let Some((ids, operation, place)) = self.requests.next_to_send() {
            if operation.is_canceled() {
                canceled.push(ids.own);
            }
            if operation.post(connection, ids, place, self.clock.now()).is_err() {
                // The connection has ended, and everything is sent again over the next one.
                break;
            }
        }
        canceled.into_iter().for_each(|id| self.send_cancel(id));
    }

    /// Sends a request without an id. Without a connection, nothing is lost: over the next one, the driver cancels the
    /// same requests again, verifies all grants, and closes a session that has no users.
    fn post(&mut self, request: Extended<'_>, tag: Tag) {
        if let Some(connection) = self.link.connection_mut() {
            drop(connection.post(request, tag));
        }
    }

    fn send_cancel(&mut self, id: RequestId) {
        self.post(Extended::Cancel(WaitingRequest::Id(id)), Tag::Cancel);
    }

    fn handle_response(&mut self, tag: Tag, frame: &ResponseFrame) {
        match tag {
            Tag::Hello => match frame.notice() {
                Ok(Some(notice)) => self.handle_notice(notice),
                Ok(None) => {}
                Err(_) => debug!("a notice of the server is malformed"),
            },
            Tag::KeepAlive(sent) => {
                if let Some(connection) = self.link.connection_mut() {
                    connection.keep_alive_answered(sent);
                    self.reconnect.answered();
                }
                if self.check_session(frame) {
                    self.kept_alive(frame, sent);
                }
            }
            Tag::Request { id, sent } => {
                let renews = self.requests.is_acquire(id) && frame.status != Status::NotPermitted.code();
                if self.check_session(frame) && renews {
                    self.renewed(sent);
                }
                if !matches!(self.phase, Phase::Ended(_)) && self.link.is_attached() {
                    self.reconnect.answered();
                    self.handle_answer(id, frame);
                }
            }
            Tag::Verify { grant, sent } => {
                if self.check_session(frame) {
                    self.verified(grant, frame, sent);
                }
            }
            Tag::Where => self.on_whereabouts(frame),
            Tag::Cancel => {}
            Tag::Close => self.phase = Phase::Ended(Lost::Stopped),
        }
        if frame.status == Status::NotPermitted.code() {
            self.show_another_token();
        }
    }

    /// Returns whether the server that answers knows the session. If not, the session ends, or is attached again.
    fn check_session(&mut self, frame: &ResponseFrame) -> bool {
        let is_known = frame.status != Status::NoSuchSession.code();
        if !is_known {
            self.detached(Lost::Expired);
        }
        is_known
    }

    /// Handles the answer to KeepAlive, which was sent at this moment.
    fn kept_alive(&mut self, frame: &ResponseFrame, sent: Moment) {
        match success(frame.clone()) {
            Ok(_) => self.renewed(sent),
            Err(error) if error.status() == Some(Status::NotPermitted) => self.reconnect.refused(error),
            Err(_) => {}
        }
    }

    /// Extends the lease after an answer to a request that was sent at this moment. Servers renew a lease at every
    /// request of a client that may acquire, but only answers to KeepAlive and to acquires prove that this client may.
    fn renewed(&mut self, sent: Moment) {
        let Some(session) = self.session else { return };
        self.reconnect.renewed();
        if let Some(connection) = self.link.connection_mut() {
            connection.renewed(sent);
        }
        if !self.lease.renew(sent.after(safe_duration(session.ttl))) {
            self.end(Lost::Unreachable);
        }
    }

    /// Handles the answer to a request with an id, or the notice that it is queued.
    fn handle_answer(&mut self, id: RequestId, frame: &ResponseFrame) {
        if frame.status == Status::Queued.code() {
            match frame.queued() {
                Ok(place) => self.requests.set_place(id, place),
                Err(_) => debug!("a response of the server is malformed"),
            }
            return;
        }
        let Some(Request { operation, transmission, place }) = self.requests.remove(id) else { return };
        let is_repeated = transmission == Transmission::Repeated;
        match operation {
            Operation::Release { caller, .. } => {
                if let Some(caller) = caller {
                    drop(caller.reply.send(read_released(frame, is_repeated)));
                }
            }
            Operation::Acquire { spec, asked_at, reply } => {
                if frame.status == Status::ShuttingDown.code() && reply.is_some() {
                    // The acquire waits for the next server. If it has a place, it keeps its id, to which the place
                    // belongs; otherwise it gets a new id, because this one was answered. This server accepts no more
                    // requests, so the client disconnects first.
                    let operation = Operation::Acquire { spec, asked_at, reply };
                    match place {
                        Some(_) => self.requests.put_back(id, Request { operation, transmission, place }),
                        None => self.requests.add(operation),
                    }
                    return self.disconnected(&Disconnect::ClosedByServer);
                }
                match read_granted(frame, &spec) {
                    Ok(granted) => self.granted(granted, is_repeated, reply),
                    Err(error) => {
                        self.load.remove();
                        if let Some(reply) = reply {
                            drop(reply.send(Err(AcquireFailure::Final(error))));
                        }
                    }
                }
            }
        }
    }

    /// Passes a grant to the caller of its acquire, or releases it if the caller is gone.
    fn granted(
        &mut self,
        granted: AllGranted<Vec<u32>, Vec<Vec<u16>>>,
        is_repeated: bool,
        reply: Option<oneshot::Sender<AcquireOutcome>>,
    ) {
        let id = granted.grant;
        if is_repeated {
            // The answer may be old, and the grant revoked since.
            self.verify(id);
        }
        let Some(reply) = reply else { return self.release(id, false, None) };
        if matches!(self.phase, Phase::Closing { .. }) {
            // CloseSession releases it.
            self.load.remove();
            return drop(reply.send(Err(self.session_ended())));
        }
        let validity = self.grants.insert(id, &self.lease);
        if reply.send(Ok(HeldGrant { granted, validity })).is_err() {
            // The caller is gone.
            self.release(id, false, None);
        }
    }

    /// Asks the server whether a grant is still held and whether it is being revoked, because the notice of that may
    /// have been lost with an earlier connection.
    fn verify(&mut self, grant: GrantId) {
        let sent = self.now();
        self.post(Extended::VerifyGrant { grant }, Tag::Verify { grant, sent });
    }

    /// Handles the answer to VerifyGrant, which was sent at this moment.
    fn verified(&mut self, grant: GrantId, frame: &ResponseFrame, sent: Moment) {
        if frame.status == Status::NotAcquired.code() {
            self.grants.mark_lost(grant);
        } else if let Ok(VerifiedGrant { grace_left: GraceLeft::For(left), .. }) = frame.verified() {
            self.grants.revoked(grant, sent.after(safe_duration(left)));
        }
    }

    fn handle_notice(&mut self, notice: ReceivedNotice) {
        let Some(connection) = self.link.connection() else { return };
        match notice {
            Notice::GrantRevoked { grant, end } => self.grants.revoked(grant, connection.end_of(end)),
            Notice::SessionRevoked { session, end } if self.is_session(session) => {
                let at = connection.end_of(end);
                let left_ms = at.since(self.now()).as_millis();
                warn!(session, left_ms, "the session is being revoked");
                self.grants.session_revoked(at);
            }
            Notice::AttachedElsewhere { session } if self.is_session(session) => {
                self.detached(Lost::TakenOver);
            }
            Notice::ShuttingDown => info!("the server is shutting down"),
            Notice::Moved(moved) => self.on_moved(moved),
            Notice::SessionRevoked { .. } | Notice::AttachedElsewhere { .. } => {}
        }
    }

    fn is_session(&self, number: u64) -> bool {
        self.session.is_some_and(|session| session.session == number)
    }

    /// Handles the answer to Where: the addresses of the nodes of the cluster.
    fn on_whereabouts(&mut self, frame: &ResponseFrame) {
        let Ok(whereabouts) = frame.whereabouts() else {
            return debug!("the server does not say where the nodes of its cluster are");
        };
        self.reconnect.on_whereabouts(whereabouts);
        self.greet_leader();
    }

    /// Handles the notice that another node of the cluster is about to lead.
    fn on_moved(&mut self, moved: Moved<Vec<String>>) {
        info!(epoch = moved.epoch, to = ?moved.addresses, "the leader of the cluster is going to stop");
        self.cancel_move();
        self.reconnect.on_moved(moved);
    }

    /// Says Hello to the leader of the cluster, if another node relays the present connection.
    fn greet_leader(&mut self) {
        let leader = if self.may_move() { self.reconnect.greet_leader() } else { None };
        self.session_move =
            leader.map_or(Move::None, |(address, greeting)| Move::Greeting(address, greeting));
    }

    /// Begins a move to a connection with the latest token, after the server has refused a request for lack of a right.
    /// The token may have been replaced since it was sent.
    fn show_another_token(&mut self) {
        if self.may_move()
            && let Move::None = self.session_move
            && let Some(refused) = self.link.connection().and_then(SessionConnection::token)
            && let Some((address, greeting)) = self.reconnect.show_another_token(refused)
        {
            self.session_move = Move::Greeting(address, greeting);
        }
    }

    fn may_move(&self) -> bool {
        self.link.is_attached()
            && matches!(self.phase, Phase::Active)
            && matches!(self.sharing, Sharing::Shared)
    }

    /// Cancels a move while the session is still on its present connection.
    fn cancel_move(&mut self) {
        if let Move::Greeting(..) = self.session_move {
            self.session_move = Move::None;
        }
    }

    /// Moves the session to the other connection if Hello was answered there. Otherwise, the session stays.
    fn greeted(&mut self, outcome: Result<Greeted, Error>) {
        let Move::Greeting(address, _) = std::mem::replace(&mut self.session_move, Move::None) else {
            return;
        };
        match (outcome, self.session) {
            (Ok(greeted), Some(session)) if self.link.is_attached() => {
                info!(%address, "the session moves to another connection");
                self.session_move = Move::Attaching;
                // The present connection ends here, before the session is attached to the other one.
                let (places, now) = (self.requests.place_count(), self.now());
                let attaching = self.reconnect.attach_over(address, greeted, session, places, now);
                self.link = Link::Attaching(attaching);
            }
            (Ok(_), _) => {}
            (Err(error), _) => {
                debug!(%address, %error, "the session stays on its connection");
                self.greet_leader();
            }
        }
    }

    /// Continues over the connection to which the session is now attached.
    fn attached(&mut self, attached: Attached) {
        let Attached { session, connection, address, late_attachments } = attached;
        let until = connection.renewed_at().after(safe_duration(session.ttl));
        match self.session.replace(session) {
            None => {
                self.lease.begin(until);
                info!(session = session.session, ttl_ms = session.ttl.0, "session opened");
            }
            Some(_) if !self.lease.renew(until) => return self.end(Lost::Unreachable),
            Some(_) => info!(session = session.session, "session attached to a new connection"),
        }
        self.reconnect.attached(address, late_attachments, self.clock.now());
        self.session_move = Move::None;
        let answers_where = connection.answers_where();
        self.link = Link::Attached(connection);
        if answers_where {
            self.post(Extended::Where, Tag::Where);
        }
        self.requests.resend_all();
        let held: Vec<_> = self.grants.held().collect();
        held.into_iter().for_each(|grant| self.verify(grant));
        self.open_waiters.drain(..).for_each(|waiter| drop(waiter.send(Ok(()))));
        if matches!(self.phase, Phase::Closing { .. }) {
            self.post(Extended::CloseSession, Tag::Close);
        }
    }

    fn attachment_failed(&mut self, failure: AttachmentFailure) {
        let error = failure.error.clone();
        self.session_move = Move::None;
        debug!(%error, "the session could not be attached");
        let now = self.now();
        match self.reconnect.failed(failure, now) {
            AfterFailure::SessionLost => self.end(Lost::Expired),
            AfterFailure::RetryAt(at) => {
                self.open_waiters.drain(..).for_each(|waiter| drop(waiter.send(Err(error.clone()))));
                self.link = Link::RetryAt(at);
            }
        }
    }

    /// Connects again after the connection has ended. Unanswered requests are sent again over the next one.
    fn disconnected(&mut self, reason: &Disconnect) {
        info!(%reason, "the connection to the server was lost; connecting again");
        let now = self.now();
        self.session_move = Move::None;
        self.link = Link::RetryAt(self.reconnect.disconnected(reason, now));
    }

    /// Ends the session, which is no longer attached to the connection. If a late attachment of this client may have
    /// detached it ([`AttachmentFailure`]), attaches it again instead: the answer shows whether the session is lost.
    fn detached(&mut self, reason: Lost) {
        if self.reconnect.take_late_attachment() {
            self.disconnected(&Disconnect::ClosedByServer);
        } else {
            self.end(reason);
        }
    }

    /// Returns when [`Self::handle_deadlines`] has to run at the latest.
    fn next_deadline(&self) -> Moment {
        let mut due = match self.phase {
            Phase::Closing { deadline } => deadline,
            Phase::Active | Phase::Ended(_) => Moment(Duration::MAX),
        };
        if let Some(session) = self.session {
            due = due.min(self.lease.until().unwrap_or(Moment(Duration::ZERO)));
            if let Link::Attached(connection) = &self.link {
                due = due.min(
                    connection.keep_alive_due(self.keep_alive_interval(session), self.reconnect.probe_at()),
                );
            }
        }
        if let Link::RetryAt(at) = self.link {
            due = due.min(at);
        }
        due = self.grants.next_revocation().into_iter().fold(due, Moment::min);
        due = self.requests.release_deadline().into_iter().fold(due, Moment::min);
        if !self.link.is_attached() {
            let waiting = self.requests.waiting_acquires();
            due = waiting.map(|(_, spec, at)| self.acquire_deadline(spec, at)).fold(due, Moment::min);
        }
        due
    }

    fn handle_deadlines(&mut self) {
        let now = self.now();
        match self.phase {
            Phase::Ended(_) => return,
            Phase::Closing { deadline } if now >= deadline => {
                return self.phase = Phase::Ended(Lost::Stopped);
            }
            Phase::Active | Phase::Closing { .. } => {}
        }
        if let Some(session) = self.session {
            if self.lease.until().is_none_or(|until| now >= until) {
                return self.end(self.reconnect.why_not_renewed());
            }
            if self.grants.session_revoked_at().is_some_and(|at| now >= at) {
                return self.end(Lost::Revoked);
            }
            self.keep_alive(session, now);
        }
        self.grants.apply_revocations(now);
        while let Some(caller) = self.requests.take_overdue_release(now) {
            drop(caller.reply.send(Err(ErrorKind::Unanswered { within: RELEASE_MAX }.into())));
        }
        if !self.link.is_attached() {
            self.fail_overdue_acquires(now);
        }
        if matches!(self.link, Link::RetryAt(at) if now >= at) {
            self.link = Link::Attaching(self.reconnect.round(self.session, self.requests.place_count()));
        }
    }

    fn keep_alive(&mut self, session: OpenedSession, now: Moment) {
        let interval = self.keep_alive_interval(session);
        let Some(connection) = self.link.connection_mut() else { return };
        if let Err(reason) = connection.keep_alive(now, interval, self.reconnect.probe_at()) {
            self.disconnected(&reason);
        }
    }

    /// Returns the time without an answer after which KeepAlive is sent.
    fn keep_alive_interval(&self, session: OpenedSession) -> Duration {
        let interval = keep_alive_interval(session);
        self.reconnect.silence_max().map_or(interval, |most| interval.min(most))
    }

    /// Returns when an acquire fails if there is no connection until then.
    fn acquire_deadline(&self, spec: &AcquireSpec, asked_at: Moment) -> Moment {
        let unreachable_at = self.reconnect.unreachable_at(asked_at);
        match spec.wait {
            WaitLimit::Until(deadline) => unreachable_at.min(deadline),
            WaitLimit::None | WaitLimit::ServerMax => unreachable_at,
        }
    }

    /// Fails the acquires that have waited for a server for too long.
    fn fail_overdue_acquires(&mut self, now: Moment) {
        let waiting = self.requests.waiting_acquires();
        let overdue: Vec<_> = waiting
            .filter(|(_, spec, at)| now >= self.acquire_deadline(spec, *at))
            .map(|(id, _, at)| (id, at))
            .collect();
        for (id, asked_at) in overdue {
            let error = if now < self.reconnect.unreachable_at(asked_at) {
                // The caller's own timeout does not mean that the server is unreachable: the caller must not proceed
                // without a permit because of it.
                ErrorKind::Status(Status::TimedOut).into()
            } else {
                self.reconnect.unreachable(asked_at, now)
            };
            if let Some(reply) = self.cancel(id) {
                drop(reply.send(Err(AcquireFailure::Final(error))));
            }
        }
    }

    /// Stops the driver, because the session is lost.
    fn end(&mut self, reason: Lost) {
        warn!(%reason, "a session was lost");
        self.losses.add();
        self.phase = Phase::Ended(reason);
    }
}

/// Waits for the answer to Hello over the other connection. Cancel safe.
async fn outcome_of(session_move: &mut Move) -> Result<Greeted, Error> {
    match session_move {
        Move::Greeting(_, greeting) => greeting.await,
        Move::None | Move::Attaching => std::future::pending().await,
    }
}

/// However the driver ends, even with its runtime, no permit stays valid and no caller waits forever. Callers of
/// [`Command::AwaitOpen`] and [`Command::Close`] are informed by the end of their channels.
impl Drop for Driver {
    fn drop(&mut self) {
        let reason = match self.phase {
            Phase::Ended(reason) => {
                self.lease.end();
                reason
            }
            Phase::Active | Phase::Closing { .. } => {
                self.lease.abandon();
                Lost::Stopped
            }
        };
        self.commands.close();
        self.grants.lose_all(reason);
        let operations: Vec<_> = self.requests.drain().collect();
        for operation in operations {
            match operation {
                Operation::Acquire { reply: Some(reply), .. } => {
                    drop(reply.send(Err(self.session_ended())));
                }
                Operation::Release { caller: Some(caller), .. } => {
                    drop(caller.reply.send(Err(reason.into())));
                }
                Operation::Acquire { reply: None, .. } | Operation::Release { caller: None, .. } => {}
            }
        }
    }
}
