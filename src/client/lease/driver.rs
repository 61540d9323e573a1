//! What keeps a session: it renews the lease, finds servers again after a cut and repeats there what is unanswered,
//! and tells permits when they are lost. It runs apart from the program's tasks, so that none of them can hold it up.
//!
//! A server is believed as little as possible: a lease lasts from when a request was *sent* that the server answered, and
//! a connection on which KeepAlive is not answered for a quarter of the time to live is given up.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

use super::book::{Book, Request, What};
use super::claim::{Patience, Terms};
use super::clock::{Moment, Sleep};
use super::lane::{Command, Failure, Lane};
use super::link::{Established, Link, LinkEvent, Tag, establish};
use super::permit::{Permit, Taken};
use super::revocations::Revocations;
use super::settings::{Settings, TRY_MAX, believed};
use super::standing::{Lease, Standing};
use crate::client::{ConnectError, Error, Loss, Lost, success};
use crate::protocol::{
    AllGranted, Claims, Extended, GrantId, Granted, Milliseconds, Notice, OpenedSession, Queueing, RequestId,
    ResponseFrame, Status, TtlLeft, VerifiedGrant, Wait, WaitingRequest,
};

/// The first pause between two rounds of tries, and the longest. Each is drawn between half and whole.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long a session that nobody uses any more may take to be closed. After that, its time to live has to do.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// Longest that KeepAlive may stay unanswered.
const SILENCE_MAX: Duration = Duration::from_secs(10);

pub(super) struct Driver {
    settings: Settings,
    lane: Weak<Lane>,
    lease: Arc<Lease>,
    commands: mpsc::UnboundedReceiver<Command>,
    book: Book,
    session: Option<OpenedSession>,
    link: Link,
    /// Which address is tried next, and how many tries have failed since a connection was there.
    next_address: usize,
    failures: u32,
    /// How many addresses one after the other said that there is no such session.
    denials: usize,
    /// Tries that were given up and whose attachment may arrive yet, after that of a later one, and win.
    strays: u32,
    /// Since when there is no connection; of no meaning while there is one.
    down_since: Moment,
    last_failure: Option<Error>,
    /// When the last request was sent that was answered.
    heard: Moment,
    keep_alive_sent: Option<Moment>,
    revocations: Revocations,
    /// Who wants to know whether there is a session.
    curious: Vec<oneshot::Sender<Result<(), Error>>>,
    /// Why the session has ended.
    over: Option<Lost>,
    /// When to stop trying to close, once nobody uses the session any more.
    leaving: Option<Moment>,
    /// Who wants to know that it is closed.
    closers: Vec<oneshot::Sender<()>>,
    rng: Rng,
}

/// What wakes a driver.
enum Event {
    Link(LinkEvent),
    Command(Option<Command>),
    Time,
}

impl Driver {
    pub(super) fn new(
        settings: Settings,
        lane: Weak<Lane>,
        lease: Arc<Lease>,
        commands: mpsc::UnboundedReceiver<Command>,
        follows_a_loss: bool,
    ) -> Self {
        let now = settings.clock.now();
        let mut rng = Rng::with_seed(settings.seed);
        // Different clients begin with different addresses, and share the servers so.
        let next_address = rng.usize(..settings.addresses.len());
        let rest = if follows_a_loss { drawn(PAUSE_MIN, &mut rng) } else { Duration::ZERO };
        Self {
            lane,
            lease,
            commands,
            book: Book::default(),
            session: None,
            link: Link::Resting(now.after(rest)),
            next_address,
            failures: 0,
            denials: 0,
            strays: 0,
            down_since: now,
            last_failure: None,
            heard: now,
            keep_alive_sent: None,
            revocations: Revocations::new(now),
            curious: Vec::new(),
            over: None,
            leaving: None,
            closers: Vec::new(),
            rng,
            settings,
        }
    }

    /// Keeps the session until nobody uses it or it is lost.
    pub(super) async fn run(mut self) {
        // A timer that rings too early does no harm, so it is made anew only where it would ring too late.
        let mut alarm: Option<(Moment, Sleep)> = None;
        while self.over.is_none() {
            let due = self.due();
            if alarm.as_ref().is_none_or(|(at, _)| due < *at) {
                alarm = Some((due, self.settings.clock.sleep_until(due)));
            }
            let (_, ring) = alarm.as_mut().expect("was just set");
            let event = tokio::select! {
                // Answers first: they may carry what makes the rest needless.
                biased;
                event = self.link.event() => Event::Link(event),
                command = self.commands.recv(), if self.leaving.is_none() => Event::Command(command),
                () = ring => Event::Time,
            };
            if matches!(event, Event::Time) {
                alarm = None;
            }
            self.handle(event);
            self.look_at_the_clock();
            self.send();
            self.lease.window.store(self.book.window(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> Moment {
        self.settings.clock.now()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Link(LinkEvent::Report(tag, frame)) => self.report(tag, &frame),
            Event::Link(LinkEvent::Lost(loss)) => self.down(&loss),
            Event::Link(LinkEvent::Tried(Ok(established))) => self.up(established),
            Event::Link(LinkEvent::Tried(Err(error))) => self.failed(error),
            Event::Command(Some(command)) => self.command(command),
            Event::Command(None) => self.leave(),
            Event::Time => {}
        }
    }

    // ---- the connection

    /// A connection acts for the session from now on.
    fn up(&mut self, established: Established) {
        let Established { session, sent, .. } = established;
        let until = sent.after(believed(session.ttl));
        match self.session.replace(session) {
            None => {
                self.lease.begin(until);
                info!(session = session.session, ttl_ms = session.ttl.0, "session opened");
            }
            Some(_) if !self.lease.extend(until) => return self.end(Lost::Unreachable),
            Some(_) => info!(session = session.session, "session continued over a new connection"),
        }
        self.heard = sent;
        self.keep_alive_sent = None;
        self.failures = 0;
        self.denials = 0;
        self.last_failure = None;
        self.link = Link::Up(established);
        self.book.send_again();
        self.revocations.doubt_all(&self.book, sent);
        self.curious.drain(..).for_each(|curious| drop(curious.send(Ok(()))));
        if self.leaving.is_some() {
            self.close();
        }
    }

    /// The connection is gone. What it was asked is asked again over the next one.
    fn down(&mut self, loss: &Loss) {
        info!(%loss, "the connection to the server was lost; connecting again");
        self.down_since = self.now();
        self.last_failure = Some(loss.clone().into());
        // A moment later, and not all clients of a server that was started anew at the same one.
        let pause = self.pause();
        self.link = Link::Resting(self.down_since.after(pause));
    }

    /// A try came to nothing.
    fn failed(&mut self, error: Error) {
        debug!(%error, "no session over this connection");
        let addresses = self.settings.addresses.len();
        self.failures += 1;
        let was_silent =
            matches!(error, Error::ConnectionLost(_) | Error::Connect(ConnectError::TimedOut { .. }));
        if was_silent && self.session.is_some() {
            self.strays += 1;
        }
        if matches!(error, Error::Status(Status::NoSuchSession)) {
            self.denials += 1;
            // One of several servers may not know what another one does.
            if self.denials >= addresses {
                return self.end(Lost::Expired);
            }
        } else {
            self.denials = 0;
        }
        let now = self.now();
        let tried_all = (self.failures as usize).is_multiple_of(addresses);
        if tried_all {
            self.curious.drain(..).for_each(|curious| drop(curious.send(Err(error.clone()))));
        }
        let pause = if tried_all { self.pause() } else { Duration::ZERO };
        self.last_failure = Some(error);
        self.link = Link::Resting(now.after(pause));
    }

    /// How long to rest after a round of tries: longer each time, and never for all clients alike.
    fn pause(&mut self) -> Duration {
        let rounds = self.failures / u32::try_from(self.settings.addresses.len()).unwrap_or(u32::MAX);
        let longest = PAUSE_MIN.saturating_mul(1 << rounds.min(10)).min(PAUSE_MAX);
        drawn(longest, &mut self.rng)
    }

    // ---- what the server says

    fn report(&mut self, tag: Tag, frame: &ResponseFrame) {
        match tag {
            Tag::Hello => match frame.notice() {
                Ok(Some(notice)) => self.notice(notice),
                Ok(None) => {}
                Err(_) => debug!("a notice of a server was not understood"),
            },
            Tag::KeepAlive(sent) => {
                self.keep_alive_sent = None;
                self.renewed(frame, sent);
            }
            Tag::Request { id, sent } => {
                self.renewed(frame, sent);
                if self.over.is_none() && matches!(self.link, Link::Up(_)) {
                    self.answer(id, frame);
                }
            }
            Tag::Verify { grant, sent } => {
                self.renewed(frame, sent);
                self.verified(grant, frame, sent);
            }
            Tag::Cancel => {}
            Tag::Close => self.over = Some(Lost::Stopped),
        }
    }

    /// What VerifyGrant says. That a grant is to end before its lease, which this very request has renewed, is told by
    /// its time only once the grace is shorter than the lease: so it is asked again, for as long as it is held.
    fn verified(&mut self, grant: GrantId, frame: &ResponseFrame, sent: Moment) {
        let (Some(standing), Some(session)) = (self.book.grants.get(&grant), self.session) else { return };
        if frame.status == Status::NotAcquired.code() {
            standing.lose(Lost::Revoked);
            self.revocations.forget(grant);
        } else if let Ok(VerifiedGrant { ttl_left: TtlLeft::For(left), .. }) = frame.verified()
            && Duration::from(left) < believed(session.ttl)
        {
            self.revocations.add(grant, standing, sent.after(believed(left)));
        }
    }

    /// An answer says that the server received the request, and so renewed the lease, after it was sent.
    fn renewed(&mut self, frame: &ResponseFrame, sent: Moment) {
        if frame.status == Status::NoSuchSession.code() {
            return self.detached(Lost::Expired);
        }
        let Some(session) = self.session else { return };
        self.heard = self.heard.max(sent);
        if !self.lease.extend(sent.after(believed(session.ttl))) {
            self.end(Lost::Unreachable);
        }
    }

    /// The connection does not act for the session any more: the session is lost, unless it is an attachment of this
    /// very client that came late. Then it is attached anew, which says whether it is there.
    fn detached(&mut self, reason: Lost) {
        match self.strays.checked_sub(1) {
            None => self.end(reason),
            Some(left) => {
                self.strays = left;
                self.down(&Loss::ClosedByServer);
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        // The notice was sent after the answer before it, which was sent after its request: what is counted from then
        // is over before the server's grace is.
        let end_of = |grace: Milliseconds| self.heard.after(believed(grace));
        match notice {
            Notice::GrantRevoked { grant, grace } => {
                if let Some(standing) = self.book.grants.get(&grant) {
                    warn!(grant = grant.0, grace_ms = grace.0, "a permit is being revoked");
                    self.revocations.add(grant, standing, end_of(grace));
                }
            }
            Notice::SessionRevoked { session, grace } if self.is_ours(session) => {
                warn!(session, grace_ms = grace.0, "the session is being revoked");
                self.revocations.add_session(&self.book, end_of(grace));
            }
            Notice::AttachedElsewhere { session } if self.is_ours(session) => {
                self.detached(Lost::TakenOver);
            }
            Notice::ShuttingDown { .. } => info!("the server is being stopped"),
            Notice::SessionRevoked { .. } | Notice::AttachedElsewhere { .. } => {}
        }
    }

    fn is_ours(&self, number: u64) -> bool {
        self.session.is_some_and(|session| session.session == number)
    }

    /// The answer to a request.
    fn answer(&mut self, id: u64, frame: &ResponseFrame) {
        let Some(Request { what, is_repeated, .. }) = self.book.remove(id) else { return };
        match what {
            What::Release { reply, .. } => {
                if let Some(reply) = reply {
                    drop(reply.send(released(frame, is_repeated)));
                }
            }
            What::Acquire { ticket, terms, asked_at, reply } => {
                if frame.status == Status::ShuttingDown.code() && reply.is_some() {
                    // It waits on for the next server, under a new number since this one has its answer. This server
                    // takes nothing more, so the connection is given up before it closes it.
                    self.book.add(What::Acquire { ticket, terms, asked_at, reply });
                    return self.down(&Loss::ClosedByServer);
                }
                match granted(frame, &terms) {
                    Ok(taken) => {
                        if is_repeated {
                            self.revocations.doubt(taken.grant, self.now());
                        }
                        self.granted(taken, terms, reply);
                    }
                    Err(error) => {
                        self.lease.load.fetch_sub(1, Ordering::Relaxed);
                        if let Some(reply) = reply {
                            drop(reply.send(Err(Failure::Final(error))));
                        }
                    }
                }
            }
        }
    }

    fn granted(
        &mut self,
        taken: Taken,
        terms: Arc<Terms>,
        reply: Option<oneshot::Sender<Result<Permit, Failure>>>,
    ) {
        let grant = taken.grant;
        let standing = Arc::new(Standing::new(Arc::clone(&self.lease)));
        if let Some(at) = self.revocations.of_session() {
            standing.revoke_at(at);
        }
        let (Some(reply), Some(lane)) = (reply, self.lane.upgrade()) else {
            return self.release(grant, None);
        };
        if let Some(other) = self.book.grants.insert(grant, Arc::clone(&standing)) {
            // No server gives a number twice. One that does must not leave a permit that never hears of its loss.
            other.lose(Lost::Expired);
        }
        // A permit that nobody takes is dropped, and so comes back as a release.
        drop(reply.send(Ok(Permit::new(lane, taken, terms, standing))));
    }

    // ---- what the program says

    fn command(&mut self, command: Command) {
        match command {
            Command::Ready(reply) => match self.link {
                Link::Up(_) => drop(reply.send(Ok(()))),
                _ => self.curious.push(reply),
            },
            Command::Acquire { ticket, asked_at, terms, reply } => {
                self.book.add(What::Acquire { ticket, terms, asked_at, reply: Some(reply) });
            }
            Command::Abandon { ticket } => {
                if let Some(id) = self.book.ticket(ticket) {
                    self.abandon(id);
                }
            }
            Command::Release { grant, reply } => self.release(grant, reply),
            Command::HandOver(reply) => {
                let session = self.session.filter(|_| matches!(self.link, Link::Up(_)));
                let failure = || self.last_failure.clone().unwrap_or(Loss::Stopped.into());
                drop(reply.send(session.ok_or_else(failure)));
            }
            Command::LetGo => self.over = Some(Lost::TakenOver),
            Command::Close(reply) => {
                self.closers.push(reply);
                self.leave();
            }
        }
    }

    /// Nobody waits for this acquire any more. What the server may have is canceled there; what it grants before it
    /// hears of that is given back.
    fn abandon(&mut self, id: u64) {
        drop(self.book.take_reply(id));
        match self.book.get(id) {
            Some(Request { was_sent: true, .. }) => self.cancel(id),
            _ => {
                self.book.remove(id);
                self.lease.load.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn cancel(&self, id: u64) {
        if let Link::Up(up) = &self.link {
            let request = Extended::Cancel(WaitingRequest::Id(RequestId(id)));
            // Where it cannot be sent, the connection is gone, and the request is canceled when it is repeated.
            drop(up.post(request, Tag::Cancel));
        }
    }

    fn release(&mut self, grant: GrantId, reply: Option<oneshot::Sender<Result<(), Error>>>) {
        self.book.grants.remove(&grant);
        self.revocations.forget(grant);
        self.book.add(What::Release { grant, reply });
        self.lease.window.store(self.book.window(), Ordering::Relaxed);
        self.lease.load.fetch_sub(1, Ordering::Relaxed);
    }

    /// Nobody uses the session any more.
    fn leave(&mut self) {
        if self.leaving.is_some() {
            return;
        }
        self.leaving = Some(self.now().after(CLOSING_MAX));
        match (&self.link, self.session) {
            (Link::Up(_), _) => self.close(),
            // A server may be about to make one, but it is nobody's yet.
            (_, None) => self.over = Some(Lost::Stopped),
            (_, Some(_)) => {}
        }
    }

    fn close(&mut self) {
        if let Link::Up(up) = &self.link {
            drop(up.post(Extended::CloseSession, Tag::Close));
        }
    }

    // ---- what time says

    /// When the driver has to look at the clock at the latest.
    fn due(&self) -> Moment {
        let mut due = self.leaving.unwrap_or(Moment(Duration::MAX));
        if let Some(session) = self.session {
            due = due.min(self.lease.until().unwrap_or(Moment(Duration::ZERO)));
            if let Link::Up(_) = self.link {
                due = due.min(self.keep_alive_sent.unwrap_or(self.heard).after(patience(session)));
                if self.leaving.is_none() {
                    due = self.revocations.ask_due().into_iter().fold(due, Moment::min);
                }
            }
        }
        if let Link::Resting(until) = self.link {
            due = due.min(until);
        }
        due = self.revocations.due().into_iter().fold(due, Moment::min);
        if !matches!(self.link, Link::Up(_)) {
            due = self
                .book
                .waited_for()
                .map(|(_, terms, at)| self.gives_up_at(terms, at))
                .fold(due, Moment::min);
        }
        due
    }

    /// When an acquire is over that no server can be asked for.
    fn gives_up_at(&self, terms: &Terms, asked_at: Moment) -> Moment {
        let unreachable = self.down_since.max(asked_at).after(self.settings.unreachable_after);
        match terms.patience {
            Patience::Until(deadline) => unreachable.min(deadline),
            Patience::None | Patience::Endless => unreachable,
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = self.now();
        if self.over.is_some() {
            return;
        }
        if self.leaving.is_some_and(|at| now >= at) {
            return self.over = Some(Lost::Stopped);
        }
        if let Some(session) = self.session {
            if self.lease.until().is_none_or(|until| now >= until) {
                return self.end(Lost::Unreachable);
            }
            if self.revocations.of_session().is_some_and(|at| now >= at) {
                return self.end(Lost::Revoked);
            }
            self.keep_alive(session, now);
            self.verify(session, now);
        }
        self.revocations.take_effect(&self.book, now);
        if !matches!(self.link, Link::Up(_)) {
            self.give_up(now);
        }
        if matches!(self.link, Link::Resting(until) if now >= until) {
            self.try_next();
        }
    }

    fn keep_alive(&mut self, session: OpenedSession, now: Moment) {
        let Link::Up(up) = &self.link else { return };
        match self.keep_alive_sent {
            None if now >= self.heard.after(patience(session)) => {
                self.keep_alive_sent = Some(now);
                // Where it cannot be sent, the connection is gone, and says so.
                drop(up.post(Extended::KeepAlive, Tag::KeepAlive(now)));
            }
            Some(sent) if now >= sent.after(patience(session)) => {
                let silent = std::io::Error::new(std::io::ErrorKind::TimedOut, "the server does not answer");
                self.down(&silent.into());
            }
            _ => {}
        }
    }

    /// Asks about grants that may have been revoked unheard.
    fn verify(&mut self, session: OpenedSession, now: Moment) {
        let Link::Up(up) = &self.link else { return };
        if self.leaving.is_some() {
            return;
        }
        for grant in self.revocations.ask_about(now, now.after(patience(session))) {
            // Where it cannot be sent, the connection is gone, and it is asked over the next one.
            drop(up.post(Extended::VerifyGrant { grant }, Tag::Verify { grant, sent: now }));
        }
    }

    /// Tells those who have waited long enough for a server that there is none.
    fn give_up(&mut self, now: Moment) {
        let overdue: Vec<_> = self
            .book
            .waited_for()
            .filter(|(_, terms, at)| now >= self.gives_up_at(terms, *at))
            .map(|(id, _, at)| (id, at))
            .collect();
        for (id, asked_at) in overdue {
            let since = self.down_since.max(asked_at);
            let error = if now < since.after(self.settings.unreachable_after) {
                // Its own time is over, which says nothing of the server: nobody may go on without a permit for that.
                Error::Status(Status::TimedOut)
            } else {
                let last = self.last_failure.clone().unwrap_or_else(|| {
                    let address = self.settings.addresses[self.next_address].to_string();
                    ConnectError::TimedOut { address, limit: TRY_MAX }.into()
                });
                Error::Unreachable { within: now.since(since), last: Arc::new(last) }
            };
            if let Some(reply) = self.book.take_reply(id) {
                drop(reply.send(Err(Failure::Final(error))));
            }
            self.abandon(id);
        }
    }

    fn try_next(&mut self) {
        let address = self.settings.addresses[self.next_address].clone();
        self.next_address = (self.next_address + 1) % self.settings.addresses.len();
        self.link = Link::Trying(establish(&self.settings, address, self.session));
    }

    // ---- sending

    /// Sends what there is to send, in the order of the numbers.
    fn send(&mut self) {
        let Link::Up(up) = &self.link else { return };
        if self.leaving.is_some() || self.over.is_some() {
            return;
        }
        let mut unwanted = Vec::new();
        while let Some((ids, request)) = self.book.next_unsent() {
            let now = self.settings.clock.now();
            request.is_repeated = request.was_sent;
            request.was_sent = true;
            let tag = Tag::Request { id: ids.own.0, sent: now };
            let post = |request: Extended<'_>| up.post(request, tag);
            let posted = match &request.what {
                What::Release { grant, .. } => post(Extended::ReleaseGrant { ids, grant: *grant }),
                What::Acquire { terms, reply, .. } => {
                    let mut queueing = terms.queueing(now);
                    if reply.is_none() {
                        // Repeated only to hear what came of it.
                        queueing = Queueing { wait: Wait::NotAtAll, queue_max: None };
                        unwanted.push(ids.own.0);
                    }
                    match terms.wanted().as_slice() {
                        [claim] => post(Extended::AcquireGrant { ids, claim: *claim, queueing }),
                        several => {
                            let claims = Claims::new(several).expect("was checked when it was asked for");
                            post(Extended::AcquireAll { ids, queueing, claims })
                        }
                    }
                }
            };
            if posted.is_err() {
                // The connection is gone, which it will say; then everything is sent again.
                break;
            }
        }
        unwanted.into_iter().for_each(|id| self.cancel(id));
    }

    // ---- the end

    /// The session is lost.
    fn end(&mut self, reason: Lost) {
        warn!(%reason, "a session was lost");
        self.over = Some(reason);
    }
}

/// Whatever ends the driver, be it the end of its runtime: nobody is left believing or waiting.
impl Drop for Driver {
    fn drop(&mut self) {
        let reason = self.over.unwrap_or(Lost::Stopped);
        self.lease.is_abandoned.store(self.over.is_none(), Ordering::Release);
        self.lease.end();
        self.commands.close();
        let (requests, grants) = self.book.drain();
        grants.iter().for_each(|standing| standing.lose(reason));
        for request in requests {
            match request.what {
                What::Acquire { reply: Some(reply), .. } => drop(reply.send(Err(Failure::SessionEnded))),
                What::Release { reply: Some(reply), .. } => drop(reply.send(Err(reason.into()))),
                What::Acquire { reply: None, .. } | What::Release { reply: None, .. } => {}
            }
        }
        // Those who want to know whether there is a session, or that it is closed, learn it by the end of their
        // channels.
    }
}

/// A pause of between half of the longest and all of it, so that not all clients come at once.
fn drawn(longest: Duration, rng: &mut Rng) -> Duration {
    longest.mul_f64(0.5 + rng.f64() / 2.0)
}

/// After how much of silence KeepAlive is sent, and for how long it may stay unanswered.
fn patience(session: OpenedSession) -> Duration {
    (Duration::from(session.ttl) / 4).min(SILENCE_MAX)
}

/// What a release came to. Of one that was sent before, nobody knows whether it was that which gave the grant back: a
/// server that was started anew remembers grants, and not releases.
fn released(frame: &ResponseFrame, is_repeated: bool) -> Result<(), Error> {
    match success(frame.clone()) {
        Err(Error::Status(Status::NotAcquired)) if is_repeated => Ok(()),
        Err(Error::Status(Status::NotAcquired)) => Err(Lost::Revoked.into()),
        result => result.map(drop),
    }
}

fn granted(frame: &ResponseFrame, terms: &Terms) -> Result<Taken, Error> {
    let frame = success(frame.clone())?;
    if let [_] = terms.claims[..] {
        let Granted { grant, capacity, slots, .. } = frame.granted()?;
        return Ok(Taken { grant, capacities: vec![capacity], slots: vec![slots] });
    }
    let AllGranted { grant, capacities, slots, .. } = frame.all_granted()?;
    Ok(Taken { grant, capacities, slots })
}
