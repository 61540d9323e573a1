//! The leased client: permits that wait in a fair queue, survive a cut, and are known to be lost in time.
//!
//! One lane is one session: `driver` keeps it, over a `link` to whichever server answers, with its requests in a
//! `book`; `standing` is what permits may believe. A client uses one lane for as long as that has room.

mod acquire;
mod book;
mod builder;
mod claim;
mod clock;
mod dial;
mod driver;
mod executor;
mod lane;
mod link;
mod permit;
mod revocations;
mod settings;
mod standing;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use acquire::{Acquire, AcquireAll, Admission, Counter, Semaphore};
pub use builder::Builder;
pub use claim::Claim;
pub use clock::{BootClock, Clock, Moment, Sleep};
pub use dial::{Tcp, Transport};
pub use permit::{HandedOver, Permit};

use super::{Address, Direct, Error, Loss};
use claim::Terms;
use executor::Executor;
use lane::{Command, Failure, Lane};
use settings::{Settings, TRY_MAX};
use tokio::sync::oneshot;

/// A leased client: what it holds and waits for survives a cut of the network that is shorter than the lease.
///
/// Clones are the same client. Leases are renewed by a thread of its own, so that a program whose tasks are busy, or
/// which has no runtime of its own ([`blocking`](super::blocking)), does not lose them. When the last clone and the last
/// permit are dropped, the session is closed, and with it everything given back.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox::client::Client;
///
/// let client = Client::connect(&"lock.example.org".parse()?).await?;
/// let permit = client.semaphore("deploys").capacity(3).acquire().await?;
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
    executor: Executor,
    lanes: Mutex<Lanes>,
}

/// The sessions of a client.
#[derive(Default)]
struct Lanes {
    /// Where the next acquire goes, if there is room.
    current: Option<Arc<Lane>>,
    /// All that may still be there.
    all: Vec<Weak<Lane>>,
    /// How many there were.
    made: u64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("addresses", &self.inner.settings.addresses).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to a server of this kind and opens a session, with the usual settings. An address without a port means
    /// 11215; names of either kind can be asked for over either port.
    ///
    /// A server that has no sessions, as yrmcdsd, is refused: [`PlainClient`](super::PlainClient) is for those.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use signalbox::client::Client;
    /// let client = Client::connect(&"lock.example.org:11215".parse()?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(address: &Address) -> Result<Self, Error> {
        Self::builder(address.clone()).connect().await
    }

    /// A client of this server, and of others where they are added, with settings of one's own.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use signalbox::client::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::builder("lock-a.example.org".parse()?)
    ///     .address("lock-b.example.org".parse()?)
    ///     .label("nightly report")
    ///     .ttl(Duration::from_secs(60))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(address: Address) -> Builder {
        Builder::new(address)
    }

    /// Resources of a semaphore; its capacity is said next.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let request = client.semaphore("deploys").capacity(3).resources(2).timeout(Duration::from_secs(30));
    /// let permit = request.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<[u8]>) -> Semaphore<'_> {
        Semaphore::new(self, name.as_ref().to_vec())
    }

    /// Resources of a counter; the most that it may come to is said next.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let permit = client.counter("tenant/7").maximum(8).try_acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn counter(&self, name: impl AsRef<[u8]>) -> Counter<'_> {
        Counter::new(self, name.as_ref().to_vec())
    }

    /// Several names at once, all or none, as one permit. Whoever asks for several names in this way never deadlocks
    /// with others who do, in whatever order they name them.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox::client::Claim;
    ///
    /// let claims = [Claim::semaphore("gpu", 4).resources(2), Claim::counter("licences", 10)];
    /// let permit = client.acquire_all(claims).acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all(&self, claims: impl IntoIterator<Item = Claim>) -> AcquireAll<'_> {
        AcquireAll::new(self, claims.into_iter().collect())
    }

    /// A connection of its own, for listings, watches and administration: what is read slowly there holds up no
    /// renewal here.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox::client::Namespace;
    ///
    /// let mut holders = client.direct().await?.holders(Namespace::Semaphores, b"deploys").await?;
    /// while let Some(holder) = holders.next().await {
    ///     println!("{:?}", holder?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn direct(&self) -> Result<Direct, Error> {
        let Settings { addresses, dial, label, .. } = &self.inner.settings;
        let mut result = Err(Loss::Stopped.into());
        for address in addresses {
            let connection = match dial(address.clone(), TRY_MAX).await {
                Ok(connection) => connection,
                Err(error) => {
                    result = Err(error.into());
                    continue;
                }
            };
            result = Direct::enter(connection, label).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Closes the client's sessions and waits until the server has heard of it, for 2 s at most. Everything is given
    /// back; permits that are still there are lost ([`Lost::Stopped`](super::Lost::Stopped)).
    ///
    /// A program that just ends may end before its thread has said so; then the server frees what it held when the
    /// lease is over.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::Client) {
    /// client.close().await;
    /// # }
    /// ```
    pub async fn close(self) {
        let lanes: Vec<_> = {
            let mut lanes = self.inner.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            // Kept until it is found among all: where nobody else uses it, it would be gone before it is told to close.
            let _current = lanes.current.take();
            lanes.all.drain(..).filter_map(|lane| lane.upgrade()).collect()
        };
        let close = |lane: Arc<Lane>| {
            let (reply, closed) = oneshot::channel();
            lane.tell(Command::Close(reply));
            closed
        };
        // All are told before any is waited for, so that several take no longer than one.
        let closing: Vec<_> = lanes.into_iter().map(close).collect();
        for closed in closing {
            // Its end is the answer.
            let _ = closed.await;
        }
    }

    fn new(settings: Settings, executor: Executor) -> Self {
        Self { inner: Arc::new(Inner { settings, executor, lanes: Mutex::default() }) }
    }

    /// The lane for the next acquire.
    fn lane(&self) -> Arc<Lane> {
        let Inner { settings, executor, lanes } = &*self.inner;
        let mut lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.current.as_ref().filter(|lane| lane.has_room()) {
            return Arc::clone(lane);
        }
        lanes.made += 1;
        let settings = Settings { seed: settings.seed.wrapping_add(lanes.made), ..settings.clone() };
        let (lane, driver) = Lane::new(&settings, lanes.current.as_deref());
        executor.spawn(driver.run());
        lanes.all.retain(|lane| lane.strong_count() > 0);
        lanes.all.push(Arc::downgrade(&lane));
        lanes.current = Some(Arc::clone(&lane));
        lane
    }

    /// Waits in the runtime that keeps the leases.
    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.inner.executor.handle().block_on(future)
    }

    /// Whether a session can be had, after every server was tried.
    pub(super) async fn ready(&self) -> Result<(), Error> {
        let (reply, ready) = oneshot::channel();
        self.lane().tell(Command::Ready(reply));
        ready.await.unwrap_or_else(|_| Err(Loss::Stopped.into()))
    }

    async fn acquire(&self, terms: Terms) -> Result<Permit, Error> {
        terms.check()?;
        let terms = Arc::new(terms);
        let asked_at = self.inner.settings.clock.now();
        loop {
            match self.lane().ask(&terms, asked_at).outcome().await {
                Ok(permit) => return Ok(permit),
                Err(Failure::Final(error)) => return Err(error),
                // The place in the queue is gone with the session, so a new one is taken in another.
                Err(Failure::SessionEnded) => {}
            }
        }
    }
}
