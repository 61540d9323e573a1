//! The leased client, which chooses the session for each acquire and opens sessions when they are needed.
//!
//! Each session has a connection, one label and one time to live (its terms), so permits with other terms than those of
//! the client are held by sessions of their own.
//!
//! Invariants:
//! - An acquire gets a session with its terms that has room, or a new one.
//! - A session with the client's own terms stays open while the client exists, so that the next acquire can use it. The
//!   others end with their last user, because there may be as many labels as jobs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{mpsc, oneshot};

use super::claim::AcquireSpec;
use super::clock::Moment;
use super::driver::{Driver, Losses};
use super::executor::Executor;
use super::grants::LeaseValidity;
use super::link::ask_first;
use super::requests::{AcquireOutcome, Command, SessionLoad};
use super::settings::{Settings, Terms};
use crate::creator::Creator;
use crate::{Direct, Disconnect, Error};

/// A leased client: its permits and its waiting acquires survive a disconnect that is shorter than the lease.
///
/// Clones share the client. A thread of the client renews the leases, so that a program whose tasks are busy, or
/// that has no runtime ([`blocking`](crate::blocking)), does not lose them.
///
/// When the last clone and the last permit are dropped, the session is closed, which releases everything. That drop
/// blocks until the server answers, for 1 s at most, so that a program can end right after it. In an asynchronous task,
/// use [`Client::close`], which waits without blocking. Also close a client that is never dropped (in a `static`, or if
/// the program calls [`std::process::exit`]), and one with
/// [`Builder::in_this_runtime`](crate::Builder::in_this_runtime), whose drop does not wait.
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
    creator: Creator,
    sessions: Mutex<Sessions>,
    /// The last field, so that the sessions are dropped before it: dropping it may wait until they are closed.
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
                creator: Creator::this_process(),
                executor,
                sessions: Mutex::default(),
            }),
        }
    }

    /// Fails in the child of a fork.
    pub(super) fn check_creator(&self) -> Result<(), Disconnect> {
        self.inner.creator.check()
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the session for the next acquire with these terms, and opens one if necessary.
    pub(super) fn session(&self, terms: &Terms) -> Arc<SessionHandle> {
        let Inner { settings, executor, .. } = &*self.inner;
        let mut sessions = self.sessions();
        let latest = if *terms == settings.terms {
            sessions.own.clone()
        } else {
            let mut all = sessions.all.iter().rev();
            all.find(|(others, _)| others == terms).and_then(|(_, session)| session.upgrade())
        };
        if let Some(session) = latest.filter(|session| session.has_room()) {
            return session;
        }
        sessions.opened += 1;
        let seed = settings.seed.wrapping_add(sessions.opened);
        let losses = sessions.losses.count();
        let replaces_lost = std::mem::replace(&mut sessions.losses_before, losses) != losses;
        let of_session = Settings { seed, terms: terms.clone(), ..settings.clone() };
        let session = SessionHandle::open(of_session, executor, sessions.losses.clone(), replaces_lost);
        let session = Arc::new(session);
        sessions.all.retain(|(_, session)| session.strong_count() > 0);
        sessions.all.push((terms.clone(), Arc::downgrade(&session)));
        if *terms == settings.terms {
            sessions.own = Some(Arc::clone(&session));
        }
        session
    }

    /// Returns the terms of an acquire without terms of its own.
    pub(super) fn terms(&self) -> &Terms {
        &self.inner.settings.terms
    }

    pub(super) fn now(&self) -> Moment {
        self.inner.settings.clock.now()
    }

    /// Waits until a session is open. Fails when every address has failed.
    pub(crate) async fn await_open(&self) -> Result<(), Error> {
        self.check_creator()?;
        let (reply, opened) = oneshot::channel();
        self.session(self.terms()).send(Command::AwaitOpen(reply));
        opened.await.unwrap_or_else(|_| Err(Disconnect::Stopped.into()))
    }

    /// Runs a future in the runtime that renews the leases, and blocks until it is done.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.inner.executor.handle().block_on(future)
    }

    /// Opens a separate connection for listings, watches and administration. Reading it slowly does not delay the
    /// renewals of this client.
    ///
    /// Uses the first address that answers. The addresses are tried in their order, each for 5 s at most, and the next
    /// one as soon as one has failed or takes long.
    ///
    /// # Errors
    /// If all addresses fail: the last error of a server that refuses the client or is not trusted, or the last error if
    /// there is no such server.
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
        self.check_creator()?;
        let settings = &self.inner.settings;
        let first =
            ask_first(settings, &settings.addresses, None, settings.open_max, |connection, settings| {
                Box::pin(async move {
                    Direct::open(connection, &settings.terms.label, settings.token.as_ref()).await
                })
            });
        Ok(first.await?.answer)
    }

    /// Closes the sessions of the client and waits for the server's answer, for 2 s at most. Everything is
    /// released; permits that still exist are lost ([`Lost::Stopped`](crate::Lost::Stopped)).
    ///
    /// Dropping the last clone and the last permit does the same, but blocks the thread, for 1 s at most.
    ///
    #[doc = example!("client: Client", "client.close().await;")]
    pub async fn close(self) {
        if self.check_creator().is_err() {
            return;
        }
        let (own, all) = {
            let mut sessions = self.sessions();
            // `own` is kept until all handles are upgraded: it may be the last one of its session, and dropping the
            // last one would end the session before the close is sent.
            let own = sessions.own.take();
            (own, sessions.all.drain(..).filter_map(|(_, session)| session.upgrade()).collect::<Vec<_>>())
        };
        drop(own);
        let close = |session: Arc<SessionHandle>| {
            let (reply, closed) = oneshot::channel();
            session.send(Command::Close(reply));
            closed
        };
        // All commands are sent before the first answer is awaited, so that several sessions take as long as one.
        let closing: Vec<_> = all.into_iter().map(close).collect();
        for closed in closing {
            // The driver answers by closing the channel.
            let _ = closed.await;
        }
    }
}

/// The sessions of a client.
#[derive(Default)]
struct Sessions {
    /// The latest session with the client's own terms, which the client keeps open.
    own: Option<Arc<SessionHandle>>,
    /// All sessions that may still exist, with their terms, the latest last.
    all: Vec<(Terms, Weak<SessionHandle>)>,
    /// How many sessions were opened so far.
    opened: u64,
    losses: Losses,
    /// How many sessions had been lost when the last one was opened.
    losses_before: u64,
}

/// A handle to a session, for its users: the client that starts acquires in it, waiting acquires, and permits. The
/// driver keeps the session open while a handle exists.
#[derive(Debug)]
pub(super) struct SessionHandle {
    commands: mpsc::UnboundedSender<Command>,
    lease: Arc<LeaseValidity>,
    load: Arc<SessionLoad>,
    /// The last field, so that `commands` is dropped before it: the driver then closes the session, and dropping the
    /// last executor waits for that.
    _executor: Executor,
}

impl SessionHandle {
    /// Starts the driver of a new session.
    fn open(settings: Settings, executor: &Executor, losses: Losses, replaces_lost: bool) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let lease = Arc::new(LeaseValidity::pending(Arc::clone(&settings.clock)));
        let load = Arc::new(SessionLoad::default());
        let shared = (Arc::clone(&lease), Arc::clone(&load));
        executor.spawn(Driver::new(settings, shared.0, shared.1, received, losses, replaces_lost).run());
        Self { commands, lease, load, _executor: executor.clone() }
    }

    /// Returns whether the next acquire can use this session.
    fn has_room(&self) -> bool {
        !self.commands.is_closed() && !self.lease.is_over() && self.load.has_room()
    }

    /// Returns whether the driver was dropped with its runtime.
    pub(super) fn is_abandoned(&self) -> bool {
        self.lease.is_abandoned()
    }

    /// Starts an acquire, and returns the receiver of its outcome.
    pub(super) fn acquire(
        &self,
        spec: Arc<AcquireSpec>,
        asked_at: Moment,
    ) -> oneshot::Receiver<AcquireOutcome> {
        let (reply, outcome) = oneshot::channel();
        self.load.add();
        self.send(Command::Acquire { asked_at, spec, reply });
        outcome
    }

    /// Sends a command to the driver. If the driver has ended, or belongs to the parent of this fork, the command is
    /// dropped with its reply channel, which informs the caller.
    pub(super) fn send(&self, command: Command) {
        if self.lease.creator().is_this_process() {
            drop(self.commands.send(command));
        }
    }
}

/// In a fork, the channel must not be closed, because that would wake the driver, which belongs to the parent.
impl Drop for SessionHandle {
    fn drop(&mut self) {
        if !self.lease.creator().is_this_process() {
            std::mem::forget(self.commands.clone());
        }
    }
}
