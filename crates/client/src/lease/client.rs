//! The leased client, and its sessions: which one the next acquire uses, and when another one is opened.
//!
//! A label and a time to live belong to a session, so permits with other terms than those of the client are held by
//! sessions of their own. Each session has a connection.
//!
//! Invariants:
//! - An acquire gets a session with its terms that has room, or a new one.
//! - A session with the client's own terms stays open while the client exists, so that the next acquire finds it. The
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
    sessions: Mutex<Sessions>,
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

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session for the next acquire with these terms.
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
        let (own, all) = {
            let mut sessions = self.sessions();
            // Kept until all are upgraded: if it is the last handle, dropping it would end the session before the close is sent.
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
            // The end of the channel is the answer.
            let _ = closed.await;
        }
    }
}

/// The sessions of a client.
#[derive(Default)]
struct Sessions {
    /// The latest with the client's own terms, which it keeps open.
    own: Option<Arc<SessionHandle>>,
    /// All that may still exist, with their terms, the latest last.
    all: Vec<(Terms, Weak<SessionHandle>)>,
    /// How many were opened so far.
    opened: u64,
    losses: Losses,
    /// How many were lost when the last one was opened.
    losses_before: u64,
}

/// A handle to a session, for its users: the client that starts acquires in it, acquires that wait, and permits. The driver
/// keeps the session for as long as there is a handle.
#[derive(Debug)]
pub(super) struct SessionHandle {
    commands: mpsc::UnboundedSender<Command>,
    lease: Arc<LeaseValidity>,
    load: Arc<SessionLoad>,
    /// The last field: when the last user of the client drops it, the driver knows by the end of `commands` that it has to
    /// close the session.
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

    /// Whether the next acquire can use this session.
    fn has_room(&self) -> bool {
        !self.commands.is_closed() && !self.lease.is_over() && self.load.has_room()
    }

    /// Whether the driver was dropped with its runtime.
    pub(super) fn is_abandoned(&self) -> bool {
        self.lease.is_abandoned()
    }

    /// Starts an acquire, and returns where the driver sends its outcome.
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

    /// Sends a command to the driver. If the driver has ended, or belongs to the parent of this fork, the command is dropped, and
    /// with it the reply channel, which informs the caller.
    pub(super) fn send(&self, command: Command) {
        if self.lease.maker().is_this_process() {
            drop(self.commands.send(command));
        }
    }
}

/// In a fork, the end of the channel must not wake the driver, which is the parent's.
impl Drop for SessionHandle {
    fn drop(&mut self) {
        if !self.lease.maker().is_this_process() {
            std::mem::forget(self.commands.clone());
        }
    }
}
