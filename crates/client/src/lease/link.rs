//! The link of a session to a server: a connection, or an attempt to attach the session to one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::clock::{Clock, Moment};
use super::grants::safe_duration;
use super::settings::{Settings, Terms};
use crate::connection::{Answers, Connection};
use crate::race::{Accepted, First, Limit, Stage, first_answer};
use crate::{Address, ConnectError, Disconnect, Error, ErrorKind, Token, success};
use signalbox_model::{GrantId, Milliseconds, RequestId, SessionKey, Status};
use signalbox_protocol::{EXTENDED_VERSION, End, Extended, Features, Opaque, OpenedSession, ResponseFrame};

/// The longest time for one address to answer, and again for the session to be attached there. It is short, because
/// little of the lease may be left. For a session that is not open yet, it is the default of [`Settings::open_max`].
pub(super) const ATTEMPT_MAX: Duration = Duration::from_secs(5);

/// The longest time that KeepAlive may stay unanswered.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The request that a response belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag {
    /// Hello: its answer, and then notices of the server.
    Hello,
    /// KeepAlive, sent at this moment.
    KeepAlive(Moment),
    /// A request with an id, sent at this moment. The notice that it is queued may come before its answer.
    Request { id: RequestId, sent: Moment },
    /// VerifyGrant, sent at this moment.
    Verify { grant: GrantId, sent: Moment },
    /// Where, whose answer has the addresses of the cluster's nodes.
    Where,
    /// Cancel, whose answer is ignored, because the canceled request has an answer of its own.
    Cancel,
    /// CloseSession.
    Close,
}

/// The state of a session's link.
pub(super) enum Link {
    /// A connection to which the session is attached.
    Attached(SessionConnection),
    /// A round of attempts to connect and to attach the session.
    Attaching(Attaching),
    /// No connection until the next round.
    RetryAt(Moment),
}

/// An event of a link.
pub(super) enum LinkEvent {
    Response(Tag, ResponseFrame),
    Disconnected(Disconnect),
    /// Boxed, because it is by far the largest variant.
    Attached(Box<Attached>),
    AttachmentFailed(AttachmentFailure),
}

/// An attempt to attach the session, or to open it, at one of several addresses.
pub(super) type Attaching = Stage<Attached, AttachmentFailure>;

/// An attempt to say Hello over a new connection, to which no session is attached yet.
pub(super) type Greeting = Stage<Greeted, Error>;

/// The result of an attachment.
pub(super) struct Attached {
    pub(super) session: OpenedSession,
    pub(super) connection: SessionConnection,
    pub(super) address: Address,
    /// See [`AttachmentFailure::late_attachments`].
    pub(super) late_attachments: u32,
}

/// A connection over which Hello was answered.
#[derive(Debug)]
pub(super) struct Greeted {
    connection: Connection,
    /// Kept for further requests.
    sender: mpsc::UnboundedSender<(Tag, ResponseFrame)>,
    responses: mpsc::UnboundedReceiver<(Tag, ResponseFrame)>,
    features: Features,
    /// The token that was sent in Hello, if there was one.
    token: Option<Token>,
}

/// Why the session could not be attached.
#[derive(Debug)]
pub(super) struct AttachmentFailure {
    /// The error of the last attempt; if no address answered Hello, the one that [`first_answer`] prefers.
    pub(super) error: Error,
    /// Whether the session no longer exists.
    pub(super) session_is_lost: bool,
    /// How many attachments and openings were given up without an answer. The server may still execute one of them
    /// later, which detaches the session from the connection that it has by then.
    pub(super) late_attachments: u32,
}

impl Link {
    /// Waits for the next event. Cancel safe.
    pub(super) async fn event(&mut self) -> LinkEvent {
        match self {
            Self::Attached(connection) => connection.event().await,
            Self::Attaching(attempt) => match attempt.await {
                Ok(attached) => LinkEvent::Attached(Box::new(attached)),
                Err(failure) => LinkEvent::AttachmentFailed(failure),
            },
            Self::RetryAt(_) => std::future::pending().await,
        }
    }

    pub(super) fn connection(&self) -> Option<&SessionConnection> {
        match self {
            Self::Attached(connection) => Some(connection),
            Self::Attaching(_) | Self::RetryAt(_) => None,
        }
    }

    pub(super) fn connection_mut(&mut self) -> Option<&mut SessionConnection> {
        match self {
            Self::Attached(connection) => Some(connection),
            Self::Attaching(_) | Self::RetryAt(_) => None,
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        matches!(self, Self::Attached(_))
    }
}

/// A connection to which a session is attached.
#[derive(Debug)]
pub(super) struct SessionConnection {
    greeted: Greeted,
    /// When the last request that is known to have renewed the lease was sent.
    renewed_at: Moment,
    /// When the unanswered KeepAlive was sent, if there is one.
    keep_alive_sent: Option<Moment>,
    /// When the last KeepAlive was sent, even if it was refused; before the first one, when the attachment was sent.
    kept_alive_at: Moment,
    /// How long the last answer to KeepAlive or to the attachment took.
    round_trip: Duration,
    /// The requests from which a notice may count its time, with the times of their sending: the last answered one and
    /// all later ones.
    sent: VecDeque<(Opaque, Moment)>,
    clock: Arc<dyn Clock>,
}

impl SessionConnection {
    /// Sends a request that has one response, which is reported with the tag.
    ///
    /// A failure means that the connection has ended, which [`LinkEvent::Disconnected`] reports too.
    pub(super) fn post(&mut self, request: Extended<'_>, tag: Tag) -> Result<(), Disconnect> {
        let now = self.clock.now();
        let Greeted { connection, sender, .. } = &self.greeted;
        let opaque = connection.post(request, tag, sender, Answers::One)?;
        self.sent.push_back((opaque, now));
        Ok(())
    }

    /// Returns when a grant or a session ends at the earliest, according to a notice. The server counts from its
    /// receipt of a request that the notice names. Since the notice may be late, the client counts from the sending of
    /// that request.
    pub(super) fn end_of(&self, End { request, after }: End) -> Moment {
        let sent = self.sent.iter().find(|(opaque, _)| *opaque == request);
        // A notice that names another request is a fault of the server; the end that it reports counts as past.
        sent.map_or(Moment(Duration::ZERO), |(_, sent)| sent.after(safe_duration(after)))
    }

    async fn event(&mut self) -> LinkEvent {
        tokio::select! {
            // Responses that were received before the connection ended are valid.
            biased;
            Some((tag, frame)) = self.greeted.responses.recv() => {
                // The notices that follow count from this request or from a later one.
                if let Some(answered) = self.sent.iter().position(|(opaque, _)| *opaque == frame.opaque) {
                    self.sent.drain(..answered);
                }
                LinkEvent::Response(tag, frame)
            }
            reason = self.greeted.connection.ended() => LinkEvent::Disconnected(reason),
        }
    }

    /// Returns whether the server answers Where.
    pub(super) fn answers_where(&self) -> bool {
        self.greeted.features.contains(Features::WHERE)
    }

    /// Returns the token that was sent in Hello.
    pub(super) fn token(&self) -> Option<&Token> {
        self.greeted.token.as_ref()
    }

    /// Returns when the last request that is known to have renewed the lease was sent.
    pub(super) fn renewed_at(&self) -> Moment {
        self.renewed_at
    }

    /// Notes that a request that was sent at this moment has renewed the lease.
    pub(super) fn renewed(&mut self, sent: Moment) {
        self.renewed_at = self.renewed_at.max(sent);
    }

    /// Notes the answer to the KeepAlive that was sent at this moment.
    pub(super) fn keep_alive_answered(&mut self, sent: Moment) {
        self.keep_alive_sent = None;
        self.round_trip = self.clock.now().since(sent);
    }

    /// Returns how long the answer to KeepAlive may take. It takes longer in a slow network, where closing the
    /// connection would lose leases that can be kept.
    fn answer_max(&self, interval: Duration) -> Duration {
        interval.max(self.round_trip * 2).min(SILENCE_MAX)
    }

    /// Returns when KeepAlive has to be sent, or when the answer to an unanswered one is overdue. KeepAlive is sent at
    /// `probe_at` at the latest, to prove that the connection is stable.
    pub(super) fn keep_alive_due(&self, interval: Duration, probe_at: Option<Moment>) -> Moment {
        match self.keep_alive_sent {
            Some(sent) => sent.after(self.answer_max(interval)),
            None => {
                let last = self.renewed_at.max(self.kept_alive_at);
                probe_at.into_iter().fold(last.after(interval), Moment::min)
            }
        }
    }

    /// Sends KeepAlive when it is due. Fails when the server has not answered the previous one in time.
    pub(super) fn keep_alive(
        &mut self,
        now: Moment,
        interval: Duration,
        probe_at: Option<Moment>,
    ) -> Result<(), Disconnect> {
        if now < self.keep_alive_due(interval, probe_at) {
            return Ok(());
        }
        if self.keep_alive_sent.is_some() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer").into());
        }
        self.keep_alive_sent = Some(now);
        self.kept_alive_at = now;
        // A failure is reported as the end of the connection.
        drop(self.post(Extended::KeepAlive, Tag::KeepAlive(now)));
        Ok(())
    }
}

/// Returns the time without an answer after which KeepAlive is sent, if no cluster requires a shorter one.
pub(super) fn keep_alive_interval(session: OpenedSession) -> Duration {
    (Duration::from(session.ttl) / 4).min(SILENCE_MAX)
}

/// The session that an attempt attaches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// A session that was opened.
    Opened(OpenedSession),
    /// A session that is to be opened with this key. An earlier attempt whose answer was lost may have opened it
    /// already. `None`: the server makes the key.
    New(Option<SessionKey>),
}

impl Target {
    /// The longest time for one address.
    fn attempt_max(self, settings: &Settings) -> Duration {
        match self {
            Self::Opened(_) => ATTEMPT_MAX,
            Self::New(_) => settings.open_max,
        }
    }
}

/// Attaches the session, or opens it, at the first of several addresses that answers. If this fails, for example because
/// the session is not known there, tries the others. Of the IP addresses of one host, `last` is tried last.
/// `repetitions` is the number of requests that the client will then repeat with their places.
pub(super) fn attach_first(
    settings: &Settings,
    addresses: Vec<Address>,
    last: Option<Address>,
    target: Target,
    repetitions: u32,
) -> Attaching {
    let settings = settings.clone();
    Box::pin(async move {
        let mut left = addresses;
        let mut late_attachments = 0;
        let mut is_known_nowhere = true;
        loop {
            let First { address, answer: greeted, others } =
                greet_first(&settings, &left, last.as_ref(), target.attempt_max(&settings))
                    .await
                    .map_err(|error| AttachmentFailure { error, session_is_lost: false, late_attachments })?;
            left = others;
            match attach_at(&settings, address, greeted, target, repetitions).await {
                Ok(attached) => return Ok(Attached { late_attachments, ..attached }),
                Err(failure) => {
                    let AttachmentFailure { error, session_is_lost, .. } = failure;
                    late_attachments += failure.late_attachments;
                    // One of several servers may not know the sessions of the others.
                    is_known_nowhere &= error.status() == Some(Status::NoSuchSession);
                    if session_is_lost || left.is_empty() {
                        let session_is_lost = session_is_lost || is_known_nowhere;
                        return Err(AttachmentFailure { error, session_is_lost, late_attachments });
                    }
                }
            }
        }
    })
}

/// Connects to several addresses, each within `attempt_max`, and returns the first answer to `ask`. Of the IP addresses
/// of one host, `last` is tried last.
pub(super) async fn ask_first<T: Send + 'static>(
    settings: &Settings,
    addresses: &[Address],
    last: Option<&Address>,
    attempt_max: Duration,
    ask: fn(Connection, Settings) -> Stage<T, Error>,
) -> Result<First<T>, Error> {
    let dial = || Arc::clone(&settings.dial);
    let resolve = |address: &Address| -> Stage<Vec<Address>, Error> {
        let resolving = dial().resolve(address.clone());
        let (first, last) = (settings.first.clone(), last.cloned());
        Box::pin(async move {
            let mut resolved = resolving.await?;
            let (first, last) = (first.as_ref(), last.as_ref());
            resolved.sort_by_key(|address| (Some(address) == last, Some(address) != first));
            Ok(resolved)
        })
    };
    let ask = |address: &Address, accepted: Accepted| -> Stage<T, Error> {
        let connecting = dial().connect(address.clone(), attempt_max, accepted.clone());
        let settings = settings.clone();
        Box::pin(async move {
            let connection = connecting.await?;
            accepted.note();
            ask(connection, settings).await
        })
    };
    let too_late = |address: &Address| too_late(address, attempt_max);
    first_answer(addresses, Limit::Each(attempt_max), too_late, resolve, ask).await
}

/// Connects to the first of several addresses that answers Hello.
async fn greet_first(
    settings: &Settings,
    addresses: &[Address],
    last: Option<&Address>,
    attempt_max: Duration,
) -> Result<First<Greeted>, Error> {
    ask_first(settings, addresses, last, attempt_max, |connection, settings| {
        Box::pin(say_hello(connection, settings))
    })
    .await
}

/// Connects to an address and says Hello.
pub(super) fn greet(settings: &Settings, address: Address) -> Greeting {
    let settings = settings.clone();
    Box::pin(async move { Ok(greet_first(&settings, &[address], None, ATTEMPT_MAX).await?.answer) })
}

/// Connects to an address and says Hello with the latest token. Fails if that is still the refused one.
pub(super) fn greet_with_another_token(settings: &Settings, address: Address, refused: Token) -> Greeting {
    let settings = settings.clone();
    Box::pin(async move {
        let latest = Token::latest(settings.token.as_ref()).await;
        if latest.is_none_or(|latest| latest.is(&refused)) {
            return Err(ErrorKind::Status(Status::NotPermitted).into());
        }
        greet(&settings, address).await
    })
}

/// Sends Hello, and waits for the answer.
async fn say_hello(
    connection: Connection,
    Settings { terms, token, .. }: Settings,
) -> Result<Greeted, Error> {
    let (sender, mut responses) = mpsc::unbounded_channel();
    let token = Token::latest(token.as_ref()).await;
    let credentials = connection.credentials(token.as_ref())?;
    let (label, features) = (&terms.label[..], Features::PLACES);
    let hello = Extended::Hello { version: EXTENDED_VERSION, label, credentials, features };
    connection.post(hello, Tag::Hello, &sender, Answers::OneAndNotices)?;
    // The channel stays open while this function has the sender, so the end of the connection has to be awaited too.
    let answer = tokio::select! {
        biased;
        response = responses.recv() => response.map(|(_, frame)| frame),
        reason = connection.ended() => return Err(reason.into()),
    };
    let features = success(answer.ok_or(Disconnect::Stopped)?)?.hello()?.features;
    Ok(Greeted { connection, sender, responses, features, token })
}

/// Attaches the session over a connection to this address, or opens it there.
pub(super) fn attach_at(
    settings: &Settings,
    address: Address,
    greeted: Greeted,
    target: Target,
    repetitions: u32,
) -> Attaching {
    let (clock, terms) = (Arc::clone(&settings.clock), settings.terms.clone());
    let attempt_max = target.attempt_max(settings);
    Box::pin(async move {
        // A session that the leader of a cluster does not know is at no other address.
        let is_leader = greeted.features.contains(Features::CLUSTER);
        let attaching = attach_over(greeted, clock, &terms, target, repetitions);
        let outcome = timeout(attempt_max, attaching).await;
        let outcome = outcome.unwrap_or_else(|_| Err(too_late(&address, attempt_max)));
        let failed = |error: Error| {
            let is_unanswered = matches!(
                error.kind(),
                ErrorKind::ConnectionLost(_) | ErrorKind::Connect(ConnectError::TimedOut { .. })
            );
            let session_is_lost = is_leader && error.status() == Some(Status::NoSuchSession);
            AttachmentFailure { error, session_is_lost, late_attachments: is_unanswered.into() }
        };
        let (session, connection) = outcome.map_err(failed)?;
        Ok(Attached { session, connection, address, late_attachments: 0 })
    })
}

/// Returns the error of an attempt at this address that takes longer than `limit`.
fn too_late(address: &Address, limit: Duration) -> Error {
    ConnectError::TimedOut { address: address.to_string(), limit }.into()
}

/// Attaches the session over a connection, or opens it.
async fn attach_over(
    greeted: Greeted,
    clock: Arc<dyn Clock>,
    Terms { label, ttl }: &Terms,
    target: Target,
    repetitions: u32,
) -> Result<(OpenedSession, SessionConnection), Error> {
    // On the wire, 0 means the server's default.
    let ttl = ttl.map(|ttl| Milliseconds::saturating_from(ttl).max(Milliseconds(1)));
    let sent = clock.now();
    let request = match target {
        Target::Opened(OpenedSession { session, key, .. }) => {
            Extended::AttachSession { session, key, repetitions }
        }
        Target::New(key) => Extended::OpenSession { ttl, label, key },
    };
    let frame = greeted.connection.ask_for_success(request).await?;
    let session = match target {
        Target::Opened(session) => OpenedSession { ttl: frame.ttl()?, ..session },
        Target::New(_) => frame.opened()?,
    };
    let connection = SessionConnection {
        greeted,
        renewed_at: sent,
        keep_alive_sent: None,
        kept_alive_at: sent,
        round_trip: clock.now().since(sent),
        sent: VecDeque::from([(frame.opaque, sent)]),
        clock,
    };
    Ok((session, connection))
}
