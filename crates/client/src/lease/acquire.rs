//! Requests for permits: the options and the acquire.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{Instrument, info_span};

use super::claim::{AcquireSpec, Claim, WaitLimit};
use super::client::{Client, SessionHandle};
use super::clock::Moment;
use super::permit::Permit;
use super::requests::{AcquireFailure, AcquireOutcome, Command};
use super::settings::{Terms, truncated_label};
use crate::error::{about, requesting};
use crate::{Disconnect, Error, ErrorKind, Namespace, Status};

impl Client {
    /// Begins a request for a limit: the declared semaphore of this name or, without one, the counter, which requires
    /// [`Acquire::maximum`].
    ///
    #[doc = example!("client: Client", r#"let permit = client.limit("deploys").acquire().await?;"#)]
    pub fn limit(&self, name: impl AsRef<[u8]>) -> Acquire<'_> {
        Acquire(AcquireRequest::new(self, vec![Claim::limit(name)]))
    }

    /// Begins a request for a semaphore; [`Semaphore::capacity`] or [`Semaphore::declared`] completes it.
    ///
    #[doc = example!(
        "client: Client",
        r#"let request = client.semaphore("deploys").capacity(3).resources(2).timeout(Duration::from_secs(30));"#,
        "let permit = request.acquire().await?;",
    )]
    pub fn semaphore(&self, name: impl AsRef<[u8]>) -> Semaphore<'_> {
        Semaphore { client: self, name: name.as_ref().to_vec() }
    }

    /// Begins a request for a counter; [`Counter::maximum`] completes it.
    ///
    #[doc = example!("client: Client", r#"let permit = client.counter("tenant/7").maximum(8).try_acquire().await?;"#)]
    pub fn counter(&self, name: impl AsRef<[u8]>) -> Counter<'_> {
        Counter { client: self, name: name.as_ref().to_vec() }
    }

    /// Begins a request for several names as one permit, all or none. Clients that acquire several names in this way do
    /// not deadlock with each other, in whatever order they give the names.
    ///
    #[doc = example!(
        "client: Client",
        r#"let claims = [Claim::semaphore("gpu", 4).resources(2), Claim::counter("licences", 10)];"#,
        "let permit = client.acquire_all(claims).acquire().await?;",
    )]
    pub fn acquire_all(&self, claims: impl IntoIterator<Item = Claim>) -> AcquireAll<'_> {
        AcquireAll(AcquireRequest::new(self, claims.into_iter().collect()))
    }
}

impl Acquire<'_> {
    /// Sets the maximum of a limit that is not declared ([`Claim::maximum`]).
    ///
    #[doc = example!("client: Client", r#"let permit = client.limit("tenant/7").maximum(8).acquire().await?;"#)]
    pub fn maximum(mut self, maximum: u32) -> Self {
        self.0.claims = self.0.claims.into_iter().map(|claim| claim.maximum(maximum)).collect();
        self
    }
}

/// A request for a semaphore, before its capacity is given.
///
#[doc = example!("client: Client", r#"let permit = client.semaphore("deploys").capacity(3).acquire().await?;"#)]
#[derive(Debug)]
#[must_use = "nothing is requested before acquire() or try_acquire()"]
pub struct Semaphore<'a> {
    client: &'a Client,
    name: Vec<u8>,
}

impl<'a> Semaphore<'a> {
    /// Sets the capacity that the semaphore gets if this request creates it. A semaphore that exists keeps its own
    /// capacity, which [`Permit::capacities`] returns. A capacity of 0 fails with [`ErrorKind::NoCapacity`].
    ///
    #[doc = example!("client: Client", r#"let permit = client.semaphore("deploys").capacity(3).acquire().await?;"#)]
    pub fn capacity(self, capacity: u32) -> Acquire<'a> {
        Acquire(AcquireRequest::new(self.client, vec![Claim::semaphore(self.name, capacity)]))
    }

    /// Uses a semaphore that exists, usually a declared one, and does not create it. If it does not exist, the request
    /// fails with [`Status::NotFound`](crate::Status::NotFound).
    ///
    #[doc = example!("client: Client", r#"let permit = client.semaphore("deploys").declared().acquire().await?;"#)]
    pub fn declared(self) -> Acquire<'a> {
        Acquire(AcquireRequest::new(self.client, vec![Claim::declared(self.name)]))
    }

    /// Returns how many resources of an existing semaphore, declared or not, are available: its capacity minus what is
    /// in use and the slots that are out of service; 0 while it is paused. The number may be outdated when it arrives,
    /// and requests that wait in the queue come before a new one.
    ///
    /// Each call opens a connection. A program that asks often uses [`Direct::inspect`](crate::Direct::inspect).
    ///
    /// # Errors
    /// [`Status::NotFound`](crate::Status::NotFound) if the semaphore does not exist, and the errors of
    /// [`Client::direct`].
    ///
    #[doc = example!("client: Client", r#"println!("{} GPUs are free", client.semaphore("gpu").available().await?);"#)]
    pub async fn available(self) -> Result<u32, Error> {
        let Self { client, name } = self;
        requesting(|| about("inspect", Namespace::Semaphores, &name), async {
            Ok(client.direct().await?.inspect(Namespace::Semaphores, &name).await?.available)
        })
        .await
    }
}

/// A request for a counter, before its maximum is given.
///
#[doc = example!("client: Client", r#"let permit = client.counter("tenant/7").maximum(8).acquire().await?;"#)]
#[derive(Debug)]
#[must_use = "nothing is requested before acquire() or try_acquire()"]
pub struct Counter<'a> {
    client: &'a Client,
    name: Vec<u8>,
}

impl<'a> Counter<'a> {
    /// Sets the maximum of the counter for this request, above which the request does not raise the consumption.
    ///
    #[doc = example!("client: Client", r#"let permit = client.counter("tenant/7").maximum(8).acquire().await?;"#)]
    pub fn maximum(self, maximum: u32) -> Acquire<'a> {
        Acquire(AcquireRequest::new(self.client, vec![Claim::counter(self.name, maximum)]))
    }
}

/// The result of a request that may proceed without a permit while no server is reachable.
///
/// ```no_run
/// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
/// use signalbox_client::Admission;
///
/// let admission = client.counter("tenant/7").maximum(8).try_acquire_or_proceed().await?;
/// if let Admission::Unguarded(error) = &admission {
///     eprintln!("not limited now: {error}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a permit releases it; keep it for as long as the work lasts"]
pub enum Admission {
    /// The permit is held.
    Held(Permit),
    /// No server was reachable, for this reason. Nothing limits the work that the client does without a permit.
    Unguarded(Error),
}

/// The result of a shared request ([`Acquire::shared`]).
///
/// ```no_run
/// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
/// use signalbox_client::Flight;
///
/// # fn cached() -> Option<String> { None }
/// # async fn render_into_cache() {}
/// match client.limit("page/7").shared().await? {
///     // Another client may have finished just before.
///     Flight::Held(permit) if cached().is_some() => permit.release_done().await?,
///     Flight::Held(permit) => {
///         permit.guard(render_into_cache()).await?;
///         permit.release_done().await?;
///     }
///     Flight::Done => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a permit releases it; keep it for as long as the work lasts"]
pub enum Flight {
    /// This client does the work: it first checks again whether the result exists, and calls [`Permit::release_done`]
    /// when the work is done. Dropping the permit passes the work to the next client.
    Held(Permit),
    /// Another client has done the work while the request waited. If its result is missing, try again.
    Done,
}

/// A request for one or several names.
#[derive(Debug)]
struct AcquireRequest<'a> {
    client: &'a Client,
    claims: Vec<Claim>,
    timeout: Option<Duration>,
    queue_max: Option<u32>,
    is_shared: bool,
    terms: Terms,
}

impl<'a> AcquireRequest<'a> {
    fn new(client: &'a Client, claims: Vec<Claim>) -> Self {
        let terms = client.terms().clone();
        Self { client, claims, timeout: None, queue_max: None, is_shared: false, terms }
    }

    async fn acquire(self, waits: bool) -> Result<Permit, Error> {
        let Self { client, claims, timeout, queue_max, is_shared, terms } = self;
        let wait = match timeout {
            _ if !waits => WaitLimit::None,
            Some(timeout) => WaitLimit::Until(client.now().after(timeout)),
            None => WaitLimit::ServerMax,
        };
        let names =
            claims.iter().map(|claim| String::from_utf8_lossy(claim.name())).collect::<Vec<_>>().join(" ");
        let span = info_span!("acquire", %names, waits);
        let spec = Arc::new(AcquireSpec { claims, wait, queue_max, is_shared });
        spec.check()?;
        let permit = acquire(client, &spec, &terms).instrument(span).await;
        permit.map_err(|error| {
            let within =
                timeout.filter(|_| waits).map(|timeout| format!(" within {} s", timeout.as_secs_f64()));
            error.with_request(spec.requested("acquire") + &within.unwrap_or_default())
        })
    }

    async fn acquire_shared(self, waits: bool) -> Result<Flight, Error> {
        let claims = self.claims.into_iter().map(Claim::shared).collect();
        match (Self { claims, is_shared: true, ..self }).acquire(waits).await {
            Ok(permit) => Ok(Flight::Held(permit)),
            Err(error) if error.status() == Some(Status::Done) => Ok(Flight::Done),
            Err(error) => Err(error),
        }
    }

    async fn acquire_or_proceed(self, waits: bool) -> Result<Admission, Error> {
        match self.acquire(waits).await {
            Ok(permit) => Ok(Admission::Held(permit)),
            Err(error) if matches!(error.kind(), ErrorKind::Unreachable { .. }) => {
                Ok(Admission::Unguarded(error))
            }
            Err(error) => Err(error),
        }
    }
}

/// Acquires in one session after another: if a session ends while the acquire waits, its place in the queue is lost,
/// and it queues again in another session. The time after which the acquire fails as unreachable is counted from the
/// call, or from the end of the last stable connection of these sessions if that was later.
async fn acquire(client: &Client, spec: &Arc<AcquireSpec>, terms: &Terms) -> Result<Permit, Error> {
    let mut asked_at = client.now();
    loop {
        client.check_creator()?;
        match PendingAcquire::run(client.session(terms), Arc::clone(spec), asked_at).await {
            Ok(permit) => return Ok(permit),
            Err(AcquireFailure::Final(error)) => return Err(error),
            Err(AcquireFailure::SessionEnded { down_since }) => {
                asked_at = down_since.into_iter().fold(asked_at, Moment::max);
            }
        }
    }
}

/// An acquire that waits for its outcome. Its grant becomes a permit, or is released when this is dropped.
#[derive(Debug)]
struct PendingAcquire {
    session: Arc<SessionHandle>,
    /// `None`: the outcome was received.
    outcome: Option<oneshot::Receiver<AcquireOutcome>>,
}

impl PendingAcquire {
    /// Acquires in a session, and waits for the outcome. Dropping the future cancels the acquire.
    async fn run(
        session: Arc<SessionHandle>,
        spec: Arc<AcquireSpec>,
        asked_at: Moment,
    ) -> Result<Permit, AcquireFailure> {
        let outcome = session.acquire(Arc::clone(&spec), asked_at);
        let mut pending = Self { session: Arc::clone(&session), outcome: Some(outcome) };
        let received = pending.outcome.as_mut().expect("the outcome is not received yet").await;
        pending.outcome = None;
        match received.unwrap_or(Err(AcquireFailure::SessionEnded { down_since: None })) {
            Ok(grant) => Ok(Permit::new(session, grant, spec)),
            Err(AcquireFailure::SessionEnded { .. }) if session.is_abandoned() => {
                Err(AcquireFailure::Final(Disconnect::Stopped.into()))
            }
            Err(failure) => Err(failure),
        }
    }
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        let Some(outcome) = &mut self.outcome else { return };
        // The channel is closed first, so the driver has already sent the grant or finds that the caller is gone.
        outcome.close();
        if let Ok(Ok(grant)) = outcome.try_recv() {
            self.session.send(Command::Release { grant: grant.granted.grant, is_done: false, reply: None });
        }
        // The driver ignores this if the acquire has ended.
        self.session.send(Command::CancelAcquires);
    }
}

macro_rules! request_methods {
    ($type:ident, $make:literal) => {
        impl<'a> $type<'a> {
            /// Limits how long the request waits. Without a timeout, it waits as long as the server allows:
            /// `session.max_wait`, 24 hours by default.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use std::time::Duration;
            /// # use signalbox_client::Claim;
            #[doc = concat!("let permit = ", $make, ".timeout(Duration::from_secs(5)).acquire().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.0.timeout = Some(timeout);
                self
            }

            /// Joins a queue only if fewer than this many requests wait in it. Otherwise the request fails at once
            /// with [`Status::QueueFull`](crate::Status::QueueFull).
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use signalbox_client::Claim;
            #[doc = concat!("let permit = ", $make, ".queue_max(10).acquire().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub fn queue_max(mut self, waiters: u32) -> Self {
                self.0.queue_max = Some(waiters);
                self
            }

            /// Sets the label of this request and its permit in listings of holders and waiters, instead of the
            /// client's ([`Builder::label`](crate::Builder::label)). It is truncated to 255 bytes.
            ///
            /// Permits of a client with the same label and the same [`Self::ttl`] share a session, which has a
            /// connection of its own. The session is opened for the first of them and closed after the last.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use signalbox_client::Claim;
            #[doc = concat!("let permit = ", $make, ".label(\"job 7\").acquire().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub fn label(mut self, label: impl AsRef<[u8]>) -> Self {
                self.0.terms.label = truncated_label(label.as_ref());
                self
            }

            /// Sets how long the server keeps this request's place in the queue and its permit without a renewal,
            /// instead of the client's time to live ([`Builder::ttl`](crate::Builder::ttl)). The server limits it.
            /// Permits with another time to live have a session of their own: see [`Self::label`].
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use std::time::Duration;
            /// # use signalbox_client::Claim;
            #[doc = concat!("let permit = ", $make, ".ttl(Duration::from_secs(300)).acquire().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub fn ttl(mut self, ttl: Duration) -> Self {
                self.0.terms.ttl = Some(ttl);
                self
            }

            /// Acquires, and waits in the queue if necessary. The request keeps its place during a disconnect that is
            /// shorter than the lease, and over a restart of a server with a data directory. If the session is lost,
            /// for example because a server without a data directory was restarted, the request queues again.
            ///
            /// Dropping the future cancels the request. If the server grants it at that moment, the grant is released.
            ///
            /// # Errors
            /// [`ErrorKind::Status`] with `ResourceNotAvailable`, `TimedOut`, `QueueFull` or another refusal of the
            /// server; [`ErrorKind::Unreachable`] if no server is reachable, so the request fails closed;
            /// [`ErrorKind::Claims`] if the request breaks a rule of the protocol (`docs/protocol.md`, "AcquireGrant" and
            /// "AcquireAll").
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use signalbox_client::Claim;
            #[doc = concat!("let permit = ", $make, ".acquire().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub async fn acquire(self) -> Result<Permit, Error> {
                self.0.acquire(true).await
            }

            /// Acquires at once, without waiting in a queue.
            ///
            /// # Errors
            /// [`Status::ResourceNotAvailable`](crate::Status::ResourceNotAvailable) if the resources are in
            /// use or other requests wait for them, and the errors of [`Self::acquire`].
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use signalbox_client::Claim;
            /// use signalbox_client::Status;
            ///
            #[doc = concat!("match ", $make, ".try_acquire().await {")]
            ///     Ok(permit) => drop(permit),
            ///     Err(error) if error.status() == Some(Status::ResourceNotAvailable) => println!("busy"),
            ///     Err(error) => return Err(error),
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub async fn try_acquire(self) -> Result<Permit, Error> {
                self.0.acquire(false).await
            }

            /// Acquires in a single flight, and waits like [`Self::acquire`]: of many clients that need the same
            /// result, one is granted the permit and does the work, and the waiting ones are informed when it is done
            /// ([`Permit::release_done`]). If that client fails, the next one does the work. The request is for one
            /// resource of one name with a maximum of 1, which is the default for a limit.
            ///
            /// The work may be repeated after a failover, a restart or a lost lease: check for the result before the request,
            /// and again when the permit is held.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use std::time::Duration;
            /// use signalbox_client::Flight;
            ///
            /// # async fn render_into_cache() {}
            /// let request = client.limit("page/7").timeout(Duration::from_secs(5));
            /// if let Flight::Held(permit) = request.shared().await? {
            ///     permit.guard(render_into_cache()).await?;
            ///     permit.release_done().await?;
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub async fn shared(self) -> Result<Flight, Error> {
                self.0.acquire_shared(true).await
            }

            /// Acquires in a single flight without waiting, for a client that does the work only if no other client is
            /// doing it ([`Self::shared`]).
            ///
            #[doc = example!("client: Client", r#"let flight = client.limit("page/7").try_shared().await?;"#)]
            pub async fn try_shared(self) -> Result<Flight, Error> {
                self.0.acquire_shared(false).await
            }

            /// Acquires like [`Self::acquire`], but fails open: if no server is reachable within
            /// [`Builder::unreachable_after`](crate::Builder::unreachable_after), the result is
            /// [`Admission::Unguarded`]. A refusal of a server is still an error.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use signalbox_client::Claim;
            /// use signalbox_client::Admission;
            ///
            #[doc = concat!("match ", $make, ".acquire_or_proceed().await? {")]
            ///     Admission::Held(permit) => drop(permit),
            ///     Admission::Unguarded(error) => eprintln!("working without a permit: {error}"),
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub async fn acquire_or_proceed(self) -> Result<Admission, Error> {
                self.0.acquire_or_proceed(true).await
            }

            /// Acquires like [`Self::try_acquire`], but fails open like [`Self::acquire_or_proceed`].
            ///
            /// ```no_run
            /// # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
            /// # use signalbox_client::Claim;
            #[doc = concat!("let admission = ", $make, ".try_acquire_or_proceed().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub async fn try_acquire_or_proceed(self) -> Result<Admission, Error> {
                self.0.acquire_or_proceed(false).await
            }
        }
    };
}

/// A request for resources of one name.
///
#[doc = example!(
    "client: Client",
    r#"let request = client.semaphore("deploys").capacity(3).queue_max(10);"#,
    "let permit = request.acquire().await?;",
)]
#[derive(Debug)]
#[must_use = "nothing is requested before acquire() or try_acquire()"]
pub struct Acquire<'a>(AcquireRequest<'a>);

request_methods!(Acquire, "client.semaphore(\"deploys\").capacity(3)");

impl Acquire<'_> {
    /// Requests this many resources instead of one; at least 1, at most the capacity or maximum.
    ///
    #[doc = example!(
        "client: Client",
        r#"let permit = client.semaphore("gpu").capacity(4).resources(2).acquire().await?;"#,
    )]
    pub fn resources(mut self, resources: u32) -> Self {
        self.0.claims = self.0.claims.into_iter().map(|claim| claim.resources(resources)).collect();
        self
    }

    /// Requests a particular slot of a declared semaphore; see [`Claim::slot`].
    ///
    /// # Errors
    /// The request fails with [`Status::NoSuchSlot`](crate::Status::NoSuchSlot) if the semaphore has no such
    /// slot.
    ///
    #[doc = example!(
        "client: Client",
        r#"let permit = client.semaphore("gpu").declared().slot(3).acquire().await?;"#,
        "assert_eq!(permit.slots(), [3]);",
    )]
    pub fn slot(mut self, slot: u16) -> Self {
        self.0.claims = self.0.claims.into_iter().map(|claim| claim.slot(slot)).collect();
        self
    }
}

/// A request for resources of several names: all of them are granted, or none.
///
#[doc = example!(
    "client: Client",
    r#"let request = client.acquire_all([Claim::counter("a", 1), Claim::semaphore("b", 2)]);"#,
    "let permit = request.try_acquire().await?;",
)]
#[derive(Debug)]
#[must_use = "nothing is requested before acquire() or try_acquire()"]
pub struct AcquireAll<'a>(AcquireRequest<'a>);

request_methods!(AcquireAll, "client.acquire_all([Claim::counter(\"a\", 1), Claim::counter(\"b\", 1)])");
