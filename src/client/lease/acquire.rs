//! Asking for a permit.

use std::time::Duration;

use tracing::{Instrument, info_span};

use super::claim::{Claim, Patience, Terms};
use super::{Client, Permit};
use crate::client::Error;

/// A semaphore whose capacity has not been said yet.
///
/// ```no_run
/// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
/// let permit = client.semaphore("deploys").capacity(3).acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is asked for before acquire() or try_acquire()"]
pub struct Semaphore<'a> {
    client: &'a Client,
    name: Vec<u8>,
}

impl<'a> Semaphore<'a> {
    pub(super) fn new(client: &'a Client, name: Vec<u8>) -> Self {
        Self { client, name }
    }

    /// What the semaphore has if this request makes it. One that exists keeps its own: [`Permit::capacities`] tells.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
    /// let permit = client.semaphore("deploys").capacity(3).acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn capacity(self, capacity: u32) -> Acquire<'a> {
        Acquire(Asking::new(self.client, vec![Claim::semaphore(self.name, capacity)]))
    }

    /// As it is declared, or as who made it wanted it. It is not made: where there is none, the answer is
    /// [`Status::NotFound`](crate::client::Status::NotFound).
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
    /// let permit = client.semaphore("deploys").declared().acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn declared(self) -> Acquire<'a> {
        Acquire(Asking::new(self.client, vec![Claim::declared(self.name)]))
    }
}

/// A counter whose maximum has not been said yet.
///
/// ```no_run
/// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
/// let permit = client.counter("tenant/7").maximum(8).acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is asked for before acquire() or try_acquire()"]
pub struct Counter<'a> {
    client: &'a Client,
    name: Vec<u8>,
}

impl<'a> Counter<'a> {
    pub(super) fn new(client: &'a Client, name: Vec<u8>) -> Self {
        Self { client, name }
    }

    /// The most that the counter may come to by this request.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
    /// let permit = client.counter("tenant/7").maximum(8).acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn maximum(self, maximum: u32) -> Acquire<'a> {
        Acquire(Asking::new(self.client, vec![Claim::counter(self.name, maximum)]))
    }
}

/// What became of a request whose caller chose to go on where no server answers.
///
/// ```no_run
/// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::Admission;
///
/// let admission = client.counter("tenant/7").maximum(8).try_acquire_or_proceed().await?;
/// if let Admission::Unguarded(error) = &admission {
///     eprintln!("not limited now: {error}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back; keep it for as long as the work lasts"]
pub enum Admission {
    /// It is held.
    Held(Permit),
    /// No server answered, so nobody keeps others from doing the same.
    Unguarded(Error),
}

/// What single and several names have in common.
#[derive(Debug)]
struct Asking<'a> {
    client: &'a Client,
    claims: Vec<Claim>,
    timeout: Option<Duration>,
    queue_max: Option<u32>,
}

impl<'a> Asking<'a> {
    fn new(client: &'a Client, claims: Vec<Claim>) -> Self {
        Self { client, claims, timeout: None, queue_max: None }
    }

    async fn ask(self, waits: bool) -> Result<Permit, Error> {
        let Self { client, claims, timeout, queue_max } = self;
        let patience = match timeout {
            _ if !waits => Patience::None,
            Some(timeout) => Patience::Until(client.inner.settings.clock.now().after(timeout)),
            None => Patience::Endless,
        };
        let names =
            claims.iter().map(|claim| String::from_utf8_lossy(claim.name())).collect::<Vec<_>>().join(" ");
        let span = info_span!("acquire", %names, waits);
        client.acquire(Terms { claims, patience, queue_max }).instrument(span).await
    }

    async fn ask_or_proceed(self, waits: bool) -> Result<Admission, Error> {
        match self.ask(waits).await {
            Ok(permit) => Ok(Admission::Held(permit)),
            Err(error @ Error::Unreachable { .. }) => Ok(Admission::Unguarded(error)),
            Err(error) => Err(error),
        }
    }
}

macro_rules! asking {
    ($type:ident, $make:literal) => {
        impl<'a> $type<'a> {
            /// Waits at most for so long. Without, for as long as the server lets it: `session.max_wait`, an hour
            /// unless its administrator chose otherwise.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
            /// # use std::time::Duration;
            /// # use signalbox::client::Claim;
            #[doc = concat!("let permit = ", $make, ".timeout(Duration::from_secs(5)).acquire().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.0.timeout = Some(timeout);
                self
            }

            /// Joins a queue only while fewer than this many wait there; else it is refused at once with
            /// [`Status::QueueFull`](crate::client::Status::QueueFull).
            ///
            /// ```no_run
            /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
            /// # use signalbox::client::Claim;
            #[doc = concat!("let permit = ", $make, ".queue_max(10).acquire().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub fn queue_max(mut self, waiters: u32) -> Self {
                self.0.queue_max = Some(waiters);
                self
            }

            /// Waits in the queue until it is granted. The place is kept over cuts that are shorter than the lease; where
            /// the session is lost, for a server that was started anew for one, it queues again.
            ///
            /// Fails closed: where no server answers there is no permit, but [`Error::Unreachable`]. Dropping the future
            /// leaves the queue and leaks nothing.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
            /// # use signalbox::client::Claim;
            #[doc = concat!("let permit = ", $make, ".acquire().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub async fn acquire(self) -> Result<Permit, Error> {
                self.0.ask(true).await
            }

            /// Takes it at once, or fails with
            /// [`Status::ResourceNotAvailable`](crate::client::Status::ResourceNotAvailable). Fails closed, as
            /// [`Self::acquire`] does.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
            /// # use signalbox::client::Claim;
            /// use signalbox::client::{Error, Status};
            ///
            #[doc = concat!("match ", $make, ".try_acquire().await {")]
            ///     Ok(permit) => drop(permit),
            ///     Err(Error::Status(Status::ResourceNotAvailable)) => println!("busy"),
            ///     Err(error) => return Err(error),
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub async fn try_acquire(self) -> Result<Permit, Error> {
                self.0.ask(false).await
            }

            /// As [`Self::acquire`], but fails open: where no server answers in the time that
            /// [`Builder::unreachable_after`](crate::client::Builder::unreachable_after) says, the caller chooses to
            /// go on without a permit. What a server refuses stays refused.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
            /// # use signalbox::client::Claim;
            /// use signalbox::client::Admission;
            ///
            #[doc = concat!("match ", $make, ".acquire_or_proceed().await? {")]
            ///     Admission::Held(permit) => drop(permit),
            ///     Admission::Unguarded(error) => eprintln!("going on without: {error}"),
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub async fn acquire_or_proceed(self) -> Result<Admission, Error> {
                self.0.ask_or_proceed(true).await
            }

            /// As [`Self::try_acquire`], but fails open, as [`Self::acquire_or_proceed`] does.
            ///
            /// ```no_run
            /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
            /// # use signalbox::client::Claim;
            #[doc = concat!("let admission = ", $make, ".try_acquire_or_proceed().await?;")]
            /// # Ok(())
            /// # }
            /// ```
            pub async fn try_acquire_or_proceed(self) -> Result<Admission, Error> {
                self.0.ask_or_proceed(false).await
            }
        }
    };
}

/// A request for resources of one name.
///
/// ```no_run
/// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
/// let request = client.semaphore("deploys").capacity(3).queue_max(10);
/// let permit = request.acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is asked for before acquire() or try_acquire()"]
pub struct Acquire<'a>(Asking<'a>);

asking!(Acquire, "client.semaphore(\"deploys\").capacity(3)");

impl Acquire<'_> {
    /// As many instead of one; at least 1, at most the capacity or maximum.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
    /// let permit = client.semaphore("gpu").capacity(4).resources(2).acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn resources(mut self, resources: u32) -> Self {
        self.0.claims = self.0.claims.into_iter().map(|claim| claim.resources(resources)).collect();
        self
    }
}

/// A request for resources of several names, all or none.
///
/// ```no_run
/// # async fn example(client: signalbox::client::Client) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::Claim;
///
/// let request = client.acquire_all([Claim::counter("a", 1), Claim::semaphore("b", 2)]);
/// let permit = request.try_acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is asked for before acquire() or try_acquire()"]
pub struct AcquireAll<'a>(Asking<'a>);

asking!(AcquireAll, "client.acquire_all([Claim::counter(\"a\", 1), Claim::counter(\"b\", 1)])");

impl<'a> AcquireAll<'a> {
    pub(super) fn new(client: &'a Client, claims: Vec<Claim>) -> Self {
        Self(Asking::new(client, claims))
    }
}
