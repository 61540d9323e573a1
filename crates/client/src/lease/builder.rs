//! Configures and creates clients.

use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::clock::{BootClock, Clock};
use super::executor::Executor;
use super::link::ATTEMPT_MAX;
use super::settings::{Settings, Terms, truncated_label};
use super::transport::{Tcp, Transport};
use crate::{Address, ConnectError, Error, Token};

/// The default of [`Builder::unreachable_after`].
const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);

/// The configuration of a client; [`Client::builder`] creates one.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox_client::Client;
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
#[must_use = "a builder does nothing before connect() or build()"]
pub struct Builder {
    settings: Settings,
    in_this_runtime: bool,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("addresses", &self.settings.addresses).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to a server of signalbox and opens a session, with default settings. An address without a port means
    /// 11215; names of both kinds can be acquired over either port.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the server is not reached within 5 s; the status
    /// [`Status::UnknownCommand`](crate::Status::UnknownCommand) if the server has no sessions, like yrmcdsd: use
    /// [`PlainClient`](crate::PlainClient) there.
    ///
    #[doc = example!("", r#"let client = Client::connect(&"lock.example.org:11215".parse()?).await?;"#)]
    pub async fn connect(address: &Address) -> Result<Self, Error> {
        Self::builder(address.clone()).connect().await
    }

    /// Configures a client of this server. [`Builder::address`] adds other addresses of the same service.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use signalbox_client::Client;
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
}

impl Builder {
    fn new(address: Address) -> Self {
        let settings = Settings {
            addresses: vec![address],
            first: None,
            terms: Terms { label: Vec::new(), ttl: None },
            token: None,
            unreachable_after: UNREACHABLE_AFTER,
            open_max: ATTEMPT_MAX,
            dial: Arc::new(Tcp),
            clock: Arc::new(BootClock),
            seed: fastrand::u64(..),
        };
        Self { settings, in_this_runtime: false }
    }

    /// Adds an address of the same service. The client begins with a random one of its addresses, and tries the others if
    /// that one fails. An address without a port means 11215. If a host name has several IP addresses, all are tried; it
    /// is resolved each time that the client connects.
    ///
    #[doc = example!(
        "",
        r#"let builder = Client::builder("lock-a.example.org".parse()?).address("lock-b.example.org".parse()?);"#,
    )]
    pub fn address(mut self, address: Address) -> Self {
        self.settings.addresses.push(address);
        self
    }

    /// Sets the label of the client in listings of holders and waiters. It is truncated to 255 bytes.
    /// [`Acquire::label`] gives a single permit another one.
    ///
    /// [`Acquire::label`]: super::Acquire::label
    ///
    #[doc = example!("", r#"let builder = Client::builder("lock.example.org".parse()?).label("nightly report");"#)]
    pub fn label(mut self, label: impl AsRef<[u8]>) -> Self {
        self.settings.terms.label = truncated_label(label.as_ref());
        self
    }

    /// Sets the time to live of the client's sessions: how long the server keeps permits and places in queues without a
    /// renewal. The server has a default and limits. A disconnect of about half this time loses nothing.
    /// [`Acquire::ttl`] gives a single permit another one.
    ///
    /// [`Acquire::ttl`]: super::Acquire::ttl
    ///
    #[doc = example!("", r#"let builder = Client::builder("lock.example.org".parse()?).ttl(Duration::from_secs(60));"#)]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.terms.ttl = Some(ttl);
        self
    }

    /// Sets the token, which decides what the client may do. The client sends it over each connection, but not to other
    /// machines without TLS, unless [`Token::over_plain`] allows that.
    ///
    #[doc = example!(
        "",
        r#"let token = Token::from_file("/etc/worker/token")?;"#,
        r#"let builder = Client::builder("lock.example.org".parse()?).token(token);"#,
    )]
    pub fn token(mut self, token: Token) -> Self {
        self.settings.token = Some(token);
        self
    }

    /// Sets how long acquires wait for an unreachable server before they fail with [`ErrorKind::Unreachable`]; 10 s by
    /// default. [`Acquire::acquire_or_proceed`] lets the caller work without a permit then.
    ///
    /// [`Acquire::acquire_or_proceed`]: super::Acquire::acquire_or_proceed
    /// [`ErrorKind::Unreachable`]: crate::ErrorKind::Unreachable
    ///
    #[doc = example!(
        "",
        r#"let builder = Client::builder("lock.example.org".parse()?).unreachable_after(Duration::from_secs(2));"#,
    )]
    pub fn unreachable_after(mut self, limit: Duration) -> Self {
        self.settings.unreachable_after = limit;
        self
    }

    /// Sets the transport; [`Tcp`] by default.
    ///
    #[doc = example!("", r#"let builder = Client::builder("lock.example.org".parse()?).transport(Tcp);"#)]
    pub fn transport(mut self, transport: impl Transport) -> Self {
        self.settings.dial = Arc::new(transport);
        self
    }

    /// Sets the clock that measures leases, for simulations; [`BootClock`] by default.
    ///
    #[doc = example!("", r#"let builder = Client::builder("lock.example.org".parse()?).clock(BootClock);"#)]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.settings.clock = Arc::new(clock);
        self
    }

    /// Sets the seed of the random pauses between attempts to connect, for simulations that are replayed; random by
    /// default.
    ///
    #[doc = example!("", r#"let builder = Client::builder("lock.example.org".parse()?).seed(4711);"#)]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Tries this address first, instead of a random one. It is one of those that were given, or resolved from one of
    /// them.
    #[doc(hidden)] // For the command line.
    pub fn begin_with(mut self, address: Address) -> Self {
        self.settings.first = Some(address);
        self
    }

    /// Sets how long each address may take to answer, and then to open a session, instead of 5 s. For attaching a
    /// session that is already open, the limit stays 5 s.
    #[doc(hidden)] // For the command line.
    pub fn open_max(mut self, limit: Duration) -> Self {
        self.settings.open_max = limit;
        self
    }

    /// Renews leases in the runtime that calls [`Self::connect`] or [`Self::build`], instead of a separate thread. A
    /// task that blocks this runtime for long loses the leases, and dropping the client does not wait until its session is
    /// closed. For simulations, and for programs that cannot start threads.
    ///
    #[doc = example!("", r#"let builder = Client::builder("lock.example.org".parse()?).in_this_runtime();"#)]
    pub fn in_this_runtime(mut self) -> Self {
        self.in_this_runtime = true;
        self
    }

    /// Connects and opens a session at the first address that answers. The next address is tried as soon as one has
    /// failed or takes long.
    ///
    /// # Errors
    /// If all addresses fail: the last error of a server that refuses the client or is not trusted, or the last error if
    /// there is no such server. Also the errors of [`Self::build`].
    ///
    #[doc = example!("", r#"let client = Client::builder("lock.example.org".parse()?).connect().await?;"#)]
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.build()?;
        client.await_open().await?;
        Ok(client)
    }

    /// Creates the client without waiting for a server. If no server is reachable, the first acquire fails.
    ///
    /// # Errors
    /// [`ConnectError::Thread`] if the thread that renews leases cannot be started.
    ///
    /// # Panics
    /// Outside a tokio runtime, after [`Self::in_this_runtime`].
    ///
    #[doc = example!("", r#"let client = Client::builder("lock.example.org".parse()?).build()?;"#)]
    pub fn build(self) -> Result<Client, Error> {
        let executor = if self.in_this_runtime {
            Executor::Caller(tokio::runtime::Handle::current())
        } else {
            Executor::thread().map_err(|source| ConnectError::Thread { source: Arc::new(source) })?
        };
        Ok(Client::new(self.settings, executor))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::time::Instant;

    use super::*;
    use crate::ErrorKind;

    /// Where nothing answers.
    struct Nowhere;

    impl Transport for Nowhere {
        type Stream = DuplexStream;

        async fn connect(&self, _: Address, _: Duration) -> Result<DuplexStream, ConnectError> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_the_time_to_answer_that_the_caller_gives() {
        for open_max in [Duration::from_secs(1), Duration::from_secs(60)] {
            let builder = || {
                let builder = Client::builder("nowhere".parse().unwrap()).transport(Nowhere);
                builder.open_max(open_max).in_this_runtime()
            };
            let began = Instant::now();
            let direct = builder().build().unwrap().direct().await.map(drop).unwrap_err();
            assert_eq!(began.elapsed(), open_max);
            let session = builder().connect().await.map(drop).unwrap_err();
            assert_eq!(began.elapsed(), open_max * 2);
            for error in [direct, session] {
                assert!(
                    matches!(error.kind(), ErrorKind::Connect(ConnectError::TimedOut { limit, .. }) if *limit == open_max),
                    "{error}"
                );
            }
        }
    }
}
