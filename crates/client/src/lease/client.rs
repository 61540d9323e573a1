//! The leased client.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::clock::Moment;
use super::command::Command;
use super::executor::Executor;
use super::link::ask_first;
use super::session_handle::SessionHandle;
use super::session_pool::SessionPool;
use super::settings::{Settings, Terms};
use crate::maker::Maker;
use crate::{Direct, Disconnect, Error};

/// A leased client: its permits and its waiting acquires survive a disconnect that is shorter than the lease.
///
/// Clones are the same client. A thread of the client renews the leases, so that a program whose tasks are busy, or
/// that has no runtime ([`blocking`](crate::blocking)), does not lose them.
///
/// When the last clone and the last permit are dropped, the session is closed, which releases everything. That drop waits
/// for the server's answer, for 1 s at most, so that a program can end right after it. To an asynchronous task that is a
/// short block; [`Client::close`] waits without blocking, and nothing is left to wait for after it. A client that is
/// never dropped (in a `static`, or if the program calls [`std::process::exit`]), and one with
/// [`Builder::in_this_runtime`](crate::Builder::in_this_runtime), waits for nothing: close it.
///
/// [`Client::builder`] configures a client.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox_client::Client;
///
/// let client = Client::connect(&"lock.example.org".parse()?).await?;
/// let permit = client.limit("deploys").maximum(3).acquire().await?;
/// // The work goes here.
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    maker: Maker,
    sessions: Mutex<SessionPool>,
    /// The last field: dropping it may wait until the sessions are closed, which have to be dropped before.
    executor: Executor,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("addresses", &self.inner.settings.addresses).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(settings: Settings, executor: Executor) -> Self {
        Self {
            inner: Arc::new(Inner {
                settings,
                maker: Maker::this_process(),
                executor,
                sessions: Mutex::default(),
            }),
        }
    }

    /// Fails in the child of a fork.
    pub(super) fn check_maker(&self) -> Result<(), Disconnect> {
        self.inner.maker.check()
    }

    /// The session for the next acquire with these terms.
    pub(super) fn session(&self, terms: &Terms) -> Arc<SessionHandle> {
        let Inner { settings, executor, sessions, .. } = &*self.inner;
        sessions.lock().unwrap_or_else(PoisonError::into_inner).session(settings, terms, executor)
    }

    /// The terms of an acquire that has none of its own.
    pub(super) fn terms(&self) -> &Terms {
        &self.inner.settings.terms
    }

    pub(super) fn now(&self) -> Moment {
        self.inner.settings.clock.now()
    }

    /// Waits until a session is open, or every address has failed.
    pub(crate) async fn await_open(&self) -> Result<(), Error> {
        self.check_maker()?;
        let (reply, opened) = oneshot::channel();
        self.session(self.terms()).send(Command::AwaitOpen(reply));
        opened.await.unwrap_or_else(|_| Err(Disconnect::Stopped.into()))
    }

    /// Runs a future in the runtime that renews the leases, and blocks until it is done.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.inner.executor.handle().block_on(future)
    }

    /// Opens a separate connection for listings, watches and administration. Reading it slowly delays no renewal of
    /// this client.
    ///
    /// The addresses are tried in their order, the next one as soon as one has failed or takes long, each for 5 s at most. The
    /// first one that answers is used.
    ///
    /// # Errors
    /// The error of the last address, if no server answers.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::Namespace;
    ///
    /// let mut holders = client.direct().await?.holders(Namespace::Semaphores, b"deploys").await?;
    /// while let Some(holder) = holders.next().await {
    ///     println!("{:?}", holder?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn direct(&self) -> Result<Direct, Error> {
        self.check_maker()?;
        let settings = &self.inner.settings;
        let first =
            ask_first(settings, &settings.addresses, None, settings.open_max, |connection, settings| {
                Box::pin(async move {
                    Direct::enter(connection, &settings.terms.label, settings.token.as_ref()).await
                })
            });
        Ok(first.await?.answer)
    }

    /// Closes the sessions of the client and waits until the server has confirmed it, for 2 s at most. Everything is
    /// released; permits that still exist are lost ([`Lost::Stopped`](crate::Lost::Stopped)).
    ///
    /// Dropping the last clone and the last permit does the same, but blocks the thread, for 1 s at most.
    ///
    #[doc = example!("client: Client", "client.close().await;")]
    pub async fn close(self) {
        if self.check_maker().is_err() {
            return;
        }
        let sessions = self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner).take_all();
        let close = |session: Arc<SessionHandle>| {
            let (reply, closed) = oneshot::channel();
            session.send(Command::Close(reply));
            closed
        };
        // All commands are sent before the first answer is awaited, so that several sessions take as long as one.
        let closing: Vec<_> = sessions.into_iter().map(close).collect();
        for closed in closing {
            // The end of the channel is the answer.
            let _ = closed.await;
        }
    }
}
