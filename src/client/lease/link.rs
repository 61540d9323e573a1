//! A session's way to a server: a connection, or the next try to get one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::clock::{Clock, Moment};
use super::dial::{Dial, Dialing};
use super::settings::{Settings, TRY_MAX};
use crate::client::connection::{Answers, Connection};
use crate::client::{Address, ConnectError, Error, Loss, success};
use crate::protocol::{EXTENDED_VERSION, Extended, GrantId, Milliseconds, OpenedSession, ResponseFrame};

/// What a response belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag {
    /// To the Hello: after its answer, what the server has to say.
    Hello,
    /// To KeepAlive, sent at that moment.
    KeepAlive(Moment),
    /// To a request of the session, sent at that moment.
    Request { id: u64, sent: Moment },
    /// To VerifyGrant, sent at that moment.
    Verify { grant: GrantId, sent: Moment },
    /// To a Cancel, which tells nothing by itself.
    Cancel,
    /// To CloseSession.
    Close,
}

/// A connection that acts for the session.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) connection: Connection,
    /// The sender is kept for further requests.
    pub(super) sender: mpsc::UnboundedSender<(Tag, ResponseFrame)>,
    pub(super) reports: mpsc::UnboundedReceiver<(Tag, ResponseFrame)>,
    pub(super) session: OpenedSession,
    /// When what made or renewed the session was sent.
    pub(super) sent: Moment,
}

impl Established {
    /// Queues a request with one answer, which is reported with the tag. Where it cannot be sent, the connection is
    /// gone, and says so by itself.
    pub(super) fn post(&self, request: Extended<'_>, tag: Tag) -> Result<(), Loss> {
        self.connection.post(request, tag, &self.sender, Answers::One)
    }
}

pub(super) type Establishing = std::pin::Pin<Box<dyn Future<Output = Result<Established, Error>> + Send>>;

/// Connects to one address and continues the session there, or opens one.
pub(super) fn establish(
    settings: &Settings,
    address: Address,
    session: Option<OpenedSession>,
) -> Establishing {
    let dialing: Dialing = Dial::as_ref(&settings.dial)(address.clone(), TRY_MAX);
    let (clock, label, ttl) = (Arc::clone(&settings.clock), settings.label.clone(), settings.ttl);
    Box::pin(async move {
        let attempt = async move {
            let connection = dialing.await?;
            enter(connection, clock.as_ref(), &label, ttl, session).await
        };
        let late = || ConnectError::TimedOut { address: address.to_string(), limit: TRY_MAX };
        timeout(TRY_MAX, attempt).await.unwrap_or_else(|_| Err(late().into()))
    })
}

async fn enter(
    connection: Connection,
    clock: &dyn Clock,
    label: &[u8],
    ttl: Option<Duration>,
    session: Option<OpenedSession>,
) -> Result<Established, Error> {
    let (sender, mut reports) = mpsc::unbounded_channel();
    // Zero would leave it to the server.
    let ttl = ttl.map(|ttl| Milliseconds::saturating_from(ttl).max(Milliseconds(1)));
    let hello = Extended::Hello { version: EXTENDED_VERSION, label, credentials: &[] };
    connection.post(hello, Tag::Hello, &sender, Answers::AndNotices)?;
    let sent = clock.now();
    let answer = connection.ask_now(match session {
        Some(OpenedSession { session, key, .. }) => Extended::AttachSession { session, key },
        None => Extended::OpenSession { ttl, label },
    })?;
    // The connection cannot give up the sender while it lasts, as one is kept here; so both are waited for at once.
    let hello = tokio::select! {
        biased;
        report = reports.recv() => report.map(|(_, frame)| frame),
        loss = connection.ended() => return Err(loss.into()),
    };
    success(hello.ok_or(Loss::Stopped)?)?.hello()?;
    let frame = connection.success(answer).await?;
    let session = match session {
        Some(session) => OpenedSession { ttl: frame.ttl()?, ..session },
        None => frame.opened()?,
    };
    Ok(Established { connection, sender, reports, session, sent })
}

/// Where a session stands with its servers.
pub(super) enum Link {
    Up(Established),
    /// On the way to one.
    Trying(Establishing),
    /// Until the next try.
    Resting(Moment),
}

/// What a link has to say.
pub(super) enum LinkEvent {
    Report(Tag, ResponseFrame),
    Lost(Loss),
    Tried(Result<Established, Error>),
}

impl Link {
    /// What happens next. Nothing is lost where this is dropped.
    pub(super) async fn event(&mut self) -> LinkEvent {
        match self {
            Self::Up(established) => tokio::select! {
                // What was answered before the connection was lost counts.
                biased;
                Some((tag, frame)) = established.reports.recv() => LinkEvent::Report(tag, frame),
                loss = established.connection.ended() => LinkEvent::Lost(loss),
            },
            Self::Trying(attempt) => LinkEvent::Tried(attempt.await),
            Self::Resting(_) => std::future::pending().await,
        }
    }
}
