//! Settings of a client.

use std::sync::Arc;
use std::time::Duration;

use super::Client;
use super::clock::{BootClock, Clock};
use super::dial::{Dial, Tcp, Transport, dial_over};
use super::executor::Executor;
use super::settings::Settings;
use crate::client::{Address, ConnectError, Error};
use crate::protocol::LABEL_BYTES_MAX;

/// How long no server may be reached before acquires fail, where a client does not say.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);

/// What a client is to be like; [`Client::builder`] makes one.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox::client::Client;
/// use std::time::Duration;
///
/// let client = Client::builder("lock.example.org".parse()?)
///     .label("worker 17")
///     .ttl(Duration::from_secs(20))
///     .unreachable_after(Duration::from_secs(5))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until connect()"]
pub struct Builder {
    addresses: Vec<Address>,
    label: Vec<u8>,
    ttl: Option<Duration>,
    unreachable_after: Duration,
    dial: Dial,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
    in_this_runtime: bool,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Builder {
    pub(super) fn new(address: Address) -> Self {
        Self {
            addresses: vec![address],
            label: Vec::new(),
            ttl: None,
            unreachable_after: UNREACHABLE_AFTER,
            dial: dial_over(Tcp),
            clock: Arc::new(BootClock),
            seed: None,
            in_this_runtime: false,
        }
    }

    /// Another address of the same service, tried where the others do not answer.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = Client::builder("lock-a.example.org".parse()?).address("lock-b.example.org".parse()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn address(mut self, address: Address) -> Self {
        self.addresses.push(address);
        self
    }

    /// What the client is called where somebody asks who holds or waits; its first 255 bytes count.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = Client::builder("lock.example.org".parse()?).label("nightly report");
    /// # Ok(())
    /// # }
    /// ```
    pub fn label(mut self, label: impl AsRef<[u8]>) -> Self {
        let label = label.as_ref();
        self.label = label[..label.len().min(LABEL_BYTES_MAX)].to_vec();
        self
    }

    /// How long the server keeps what the client holds and waits for while it does not hear of it. Without, and beyond
    /// its bounds, that is for the server to say. A cut may last about half as long without anything being lost.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// let builder = Client::builder("lock.example.org".parse()?).ttl(Duration::from_secs(60));
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long no server may be reached before acquires fail with [`Error::Unreachable`]; 10 s unless set. Whether the
    /// work is done without a permit then is the caller's choice: see [`Acquire::acquire_or_proceed`].
    ///
    /// [`Acquire::acquire_or_proceed`]: super::Acquire::acquire_or_proceed
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// let builder = Client::builder("lock.example.org".parse()?).unreachable_after(Duration::from_secs(2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn unreachable_after(mut self, limit: Duration) -> Self {
        self.unreachable_after = limit;
        self
    }

    /// Another way to servers than TCP.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox::client::Tcp;
    /// let builder = Client::builder("lock.example.org".parse()?).transport(Tcp);
    /// # Ok(())
    /// # }
    /// ```
    pub fn transport(mut self, transport: impl Transport) -> Self {
        self.dial = dial_over(transport);
        self
    }

    /// Another clock than the kernel's, for a simulation.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox::client::BootClock;
    /// let builder = Client::builder("lock.example.org".parse()?).clock(BootClock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// What the pauses between tries are drawn from, for a simulation that is to be the same each time.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = Client::builder("lock.example.org".parse()?).seed(4711);
    /// # Ok(())
    /// # }
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Renews leases by tasks of the runtime that [`Self::connect`] is called in, in place of a thread. A task there
    /// that blocks for long loses them; it is for simulations, and for programs that may not have threads.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = Client::builder("lock.example.org".parse()?).in_this_runtime();
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_this_runtime(mut self) -> Self {
        self.in_this_runtime = true;
        self
    }

    /// Connects and opens a session, at one address after the other. Gives the last address' error where none of them
    /// lets it.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = Client::builder("lock.example.org".parse()?).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.build()?;
        client.ready().await?;
        Ok(client)
    }

    /// The client, without looking whether there is a server: that is found out by the first acquire.
    ///
    /// ```no_run
    /// # use signalbox::client::Client;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = Client::builder("lock.example.org".parse()?).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn build(self) -> Result<Client, Error> {
        let executor = if self.in_this_runtime {
            Executor::Caller(tokio::runtime::Handle::current())
        } else {
            Executor::thread().map_err(|source| ConnectError::Thread { source: Arc::new(source) })?
        };
        let settings = Settings {
            addresses: self.addresses,
            label: self.label,
            ttl: self.ttl,
            unreachable_after: self.unreachable_after,
            dial: self.dial,
            clock: self.clock,
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
        };
        Ok(Client::new(settings, executor))
    }
}
