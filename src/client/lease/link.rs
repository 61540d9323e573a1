//! The link of a session to a server: a connection, or the next attempt to get one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::clock::{Clock, Moment};
use super::revocation::NoticeCount;
use super::settings::{ATTEMPT_MAX, Settings, Terms};
use super::transport::{Dial, Dialing};
use crate::client::connection::{Answers, Connection};
use crate::client::{Address, ConnectError, Disconnect, Error, success};
use crate::protocol::{
    EXTENDED_VERSION, Extended, Features, GrantId, Milliseconds, OpenedSession, RequestId, ResponseFrame,
    SessionKey,
};

/// The longest time that KeepAlive may stay unanswered.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The request that a response belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag {
    /// Hello: after its answer, notices of the server.
    Hello,
    /// KeepAlive, sent at this moment.
    KeepAlive(Moment),
    /// A numbered request, sent at this moment: perhaps that it is queued, and then its answer.
    Request { id: RequestId, sent: Moment },
    /// VerifyGrant, sent at this moment after this many notices.
    Verify { grant: GrantId, sent: Moment, after: NoticeCount },
    /// Where: where the nodes of the cluster are.
    Where,
    /// Cancel, whose answer is ignored: the canceled request has its own.
    Cancel,
    /// CloseSession.
    Close,
}

/// The state of a session's link.
pub(super) enum Link {
    /// A connection to which the session is attached.
    Attached(SessionConnection),
    /// An attempt to connect and to attach the session.
    Attaching(Attaching),
    /// No connection until the next attempt.
    RetryAt(Moment),
}

/// What happens on a link.
pub(super) enum LinkEvent {
    Response(Tag, ResponseFrame),
    Disconnected(Disconnect),
    Attached(OpenedSession, SessionConnection),
    AttemptFailed(AttemptFailure),
}

/// An attempt to attach, which yields the session with its time to live.
pub(super) type Attaching =
    Pin<Box<dyn Future<Output = Result<(OpenedSession, SessionConnection), AttemptFailure>> + Send>>;

/// An attempt to say Hello to a server to which no session is attached yet.
pub(super) type Greeting = Pin<Box<dyn Future<Output = Result<Greeted, AttemptFailure>> + Send>>;

/// A connection over which Hello was sent.
#[derive(Debug)]
pub(super) struct Greeted {
    connection: Connection,
    sender: mpsc::UnboundedSender<(Tag, ResponseFrame)>,
    responses: mpsc::UnboundedReceiver<(Tag, ResponseFrame)>,
    /// The features of the server; `None`: it has not answered yet.
    features: Option<Features>,
}

impl Greeted {
    /// Waits for the answer to Hello.
    async fn features(&mut self) -> Result<Features, AttemptFailure> {
        if let Some(features) = self.features {
            return Ok(features);
        }
        // The channel cannot close while the sender is here, so the end of the connection has to be awaited too.
        let hello = tokio::select! {
            biased;
            response = self.responses.recv() => response.map(|(_, frame)| frame),
            reason = self.connection.ended() => return Err(reason.into()),
        };
        let features = success(hello.ok_or(Disconnect::Stopped)?)?.hello()?.features;
        self.features = Some(features);
        Ok(features)
    }
}

/// Why an attempt to attach failed.
#[derive(Debug)]
pub(super) struct AttemptFailure {
    pub(super) error: Error,
    /// Whether the server speaks for all addresses, as the leader of a cluster does.
    pub(super) speaks_for_all: bool,
}

impl<T: Into<Error>> From<T> for AttemptFailure {
    fn from(error: T) -> Self {
        Self { error: error.into(), speaks_for_all: false }
    }
}

impl Link {
    /// Waits for the next event. Cancel safe.
    pub(super) async fn event(&mut self) -> LinkEvent {
        match self {
            Self::Attached(connection) => connection.event().await,
            Self::Attaching(attempt) => match attempt.await {
                Ok((session, connection)) => LinkEvent::Attached(session, connection),
                Err(failure) => LinkEvent::AttemptFailed(failure),
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
    connection: Connection,
    /// Kept for further requests.
    sender: mpsc::UnboundedSender<(Tag, ResponseFrame)>,
    responses: mpsc::UnboundedReceiver<(Tag, ResponseFrame)>,
    /// When the last request was sent that the server has answered: the lease was renewed after that.
    renewed_at: Moment,
    /// When the KeepAlive was sent that is not answered.
    keep_alive_sent: Option<Moment>,
    features: Features,
}

impl SessionConnection {
    /// Sends a request that has one response, which is reported with the tag.
    ///
    /// A failure means that the connection has ended, which [`LinkEvent::Disconnected`] reports too.
    pub(super) fn post(&self, request: Extended<'_>, tag: Tag) -> Result<(), Disconnect> {
        self.connection.post(request, tag, &self.sender, Answers::One)
    }

    async fn event(&mut self) -> LinkEvent {
        tokio::select! {
            // Responses that were received before the connection ended count.
            biased;
            Some((tag, frame)) = self.responses.recv() => LinkEvent::Response(tag, frame),
            reason = self.connection.ended() => LinkEvent::Disconnected(reason),
        }
    }

    /// Whether the server grants particular slots. An older one would ignore the slot of a request, and grant any.
    pub(super) fn grants_slots(&self) -> bool {
        self.features.contains(Features::SLOTS)
    }

    /// Whether the server says where the nodes of its cluster are.
    pub(super) fn says_where(&self) -> bool {
        self.features.contains(Features::WHERE)
    }

    /// When the last request was sent that the server has answered.
    pub(super) fn renewed_at(&self) -> Moment {
        self.renewed_at
    }

    /// A request was answered that was sent at this moment.
    pub(super) fn renewed(&mut self, sent: Moment) {
        self.renewed_at = self.renewed_at.max(sent);
    }

    /// KeepAlive was answered.
    pub(super) fn keep_alive_answered(&mut self) {
        self.keep_alive_sent = None;
    }

    /// When KeepAlive has to be sent, or its answer is overdue. `probe_at`: when it has to be sent at the latest, to prove
    /// that the connection is stable.
    pub(super) fn keep_alive_due(&self, interval: Duration, probe_at: Option<Moment>) -> Moment {
        match self.keep_alive_sent {
            Some(sent) => sent.after(interval),
            None => probe_at.into_iter().fold(self.renewed_at.after(interval), Moment::min),
        }
    }

    /// Sends KeepAlive when it is due. Fails when the server has not answered the one before in time.
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
        // A failure is reported as the end of the connection.
        drop(self.post(Extended::KeepAlive, Tag::KeepAlive(now)));
        Ok(())
    }
}

/// The time without an answer after which KeepAlive is sent, and for which its own answer may take.
pub(super) fn keep_alive_interval(session: OpenedSession) -> Duration {
    (Duration::from(session.ttl) / 4).min(SILENCE_MAX)
}

/// Which session an attempt attaches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// One that was opened.
    Opened(OpenedSession),
    /// One that is to be opened with this key. An earlier attempt may have opened it without an answer. `None`: the
    /// server makes the key.
    New(Option<SessionKey>),
}

/// Connects to an address and attaches the session there. Then the client will repeat so many requests with their places.
pub(super) fn attach(settings: &Settings, address: Address, target: Target, repetitions: u32) -> Attaching {
    let (begun, clock, terms) =
        (begin(settings, address.clone()), Arc::clone(&settings.clock), settings.terms.clone());
    limited(
        address,
        async move { attach_over(begun.await?, clock.as_ref(), &terms, target, repetitions).await },
    )
}

/// Connects to an address and says Hello.
pub(super) fn greet(settings: &Settings, address: Address) -> Greeting {
    let begun = begin(settings, address.clone());
    limited(address, async move {
        let mut greeted = begun.await?;
        greeted.features().await?;
        Ok(greeted)
    })
}

/// Attaches the session over a connection to this address, as [`attach`].
pub(super) fn attach_greeted(
    settings: &Settings,
    address: Address,
    greeted: Greeted,
    target: Target,
    repetitions: u32,
) -> Attaching {
    let (clock, terms) = (Arc::clone(&settings.clock), settings.terms.clone());
    limited(address, async move { attach_over(greeted, clock.as_ref(), &terms, target, repetitions).await })
}

/// An attempt at this address that fails when it takes too long.
fn limited<T>(
    address: Address,
    attempt: impl Future<Output = Result<T, AttemptFailure>> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Result<T, AttemptFailure>> + Send>> {
    Box::pin(async move {
        let late = || ConnectError::TimedOut { address: address.to_string(), limit: ATTEMPT_MAX };
        timeout(ATTEMPT_MAX, attempt).await.unwrap_or_else(|_| Err(late().into()))
    })
}

/// Connects to an address and sends Hello, without waiting for the answer.
fn begin(
    settings: &Settings,
    address: Address,
) -> impl Future<Output = Result<Greeted, AttemptFailure>> + Send + 'static {
    let dialing: Dialing = Dial::as_ref(&settings.dial)(address, ATTEMPT_MAX);
    let (label, token) = (settings.terms.label.clone(), settings.token.clone());
    async move {
        let connection = dialing.await?;
        let (sender, responses) = mpsc::unbounded_channel();
        let (label, credentials) = (&label[..], connection.credentials(token.as_ref())?);
        let features = Features::PLACES;
        let hello = Extended::Hello { version: EXTENDED_VERSION, label, credentials, features };
        connection.post(hello, Tag::Hello, &sender, Answers::AndNotices)?;
        Ok(Greeted { connection, sender, responses, features: None })
    }
}

/// Attaches the session, or opens it, over a connection.
async fn attach_over(
    mut greeted: Greeted,
    clock: &dyn Clock,
    Terms { label, ttl }: &Terms,
    target: Target,
    repetitions: u32,
) -> Result<(OpenedSession, SessionConnection), AttemptFailure> {
    // On the wire, 0 stands for the server's default.
    let ttl = ttl.map(|ttl| Milliseconds::saturating_from(ttl).max(Milliseconds(1)));
    let sent = clock.now();
    let answer = greeted.connection.ask_now(match target {
        Target::Opened(OpenedSession { session, key, .. }) => {
            Extended::AttachSession { session, key, repetitions }
        }
        Target::New(key) => Extended::OpenSession { ttl, label, key },
    })?;
    let features = greeted.features().await?;
    let speaks_for_all = features.contains(Features::CLUSTER);
    let failed = |error| AttemptFailure { error, speaks_for_all };
    let Greeted { connection, sender, responses, .. } = greeted;
    let frame = connection.success(answer).await.map_err(failed)?;
    let session = match target {
        Target::Opened(session) => OpenedSession { ttl: frame.ttl()?, ..session },
        Target::New(_) => frame.opened()?,
    };
    let connection = SessionConnection {
        connection,
        sender,
        responses,
        renewed_at: sent,
        keep_alive_sent: None,
        features,
    };
    Ok((session, connection))
}
