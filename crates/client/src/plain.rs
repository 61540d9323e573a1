//! The plain client: the operations of yrmcds' counter and semaphore protocols over one connection.
//!
//! It works with every server of these protocols (`counter.md`, `semaphore.md`). The port decides whether a connection
//! uses counters or semaphores. Requests are pipelined, and responses are matched by their opaque.
//!
//! Resources belong to the connection. They are released by [`PlainClient::release`], or when the connection ends: when
//! its last [`PlainClient`], [`PlainPermit`] or [`Series`] is dropped, the server stops, or this process and its forks
//! end (see [the crate](crate#forks)).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::connection::Connection;
use super::error::requesting;
use super::{
    Address, CONNECT_TIMEOUT, ConnectError, Disconnect, Error, ErrorKind, Maximum, Resources, Series, Token,
    checked, socket,
};
use signalbox_model::{Quoted, Status};
use signalbox_protocol::{
    DumpEntry, EXTENDED_VERSION, Extended, Features, HelloAnswer, Request, ResponseFrame, Statistic,
};

/// A connection to a server. Clones share it; it is closed when the last clone is dropped.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox_client::{Maximum, PlainClient, Resources};
///
/// let client = PlainClient::connect(&"lock.example.org".parse()?).await?;
/// let permit = client.hold(b"backup", Resources(1), Maximum(1)).await?;
/// // The work goes here.
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PlainClient {
    pub(super) connection: Arc<Connection>,
}

impl PlainClient {
    /// Connects within [`CONNECT_TIMEOUT`]. The default port is that of the counters; [`Address::or_port`] sets
    /// another default. If the host has several IP addresses, connects to the first one at which a server answers.
    ///
    /// The failure of the server's host is detected within about 30 s.
    ///
    /// # Errors
    /// [`ConnectError`], the error of the last address that failed.
    ///
    #[doc = example!("", r#"let semaphores = PlainClient::connect(&"lock.example.org:11216".parse()?).await?;"#)]
    pub async fn connect(address: &Address) -> Result<Self, ConnectError> {
        Self::connect_within(address, CONNECT_TIMEOUT).await
    }

    /// Connects like [`PlainClient::connect`], but within `limit`.
    ///
    #[doc = example!(
        "",
        r#"let address = "lock.example.org".parse()?;"#,
        "let client = PlainClient::connect_within(&address, Duration::from_secs(1)).await?;",
    )]
    pub async fn connect_within(address: &Address, limit: Duration) -> Result<Self, ConnectError> {
        let is_one_of_several = address.exact().is_none();
        let open = move |stream, address| Self::open(stream, address, is_one_of_several);
        socket::first_of(address, limit, open).await
    }

    /// Uses a stream that is connected to an address. If the host may have other IP addresses, first checks with Noop
    /// that a server answers at this one.
    async fn open(
        stream: TcpStream,
        address: Address,
        is_one_of_several: bool,
    ) -> Result<Self, ConnectError> {
        let in_clear = socket::in_clear(&stream);
        let client = Self { connection: Arc::new(Connection::over(stream, in_clear)) };
        let Some(address) = address.resolved().filter(|_| is_one_of_several) else { return Ok(client) };
        match client.noop().await.map_err(|error| error.kind().clone()) {
            Err(ErrorKind::ConnectionLost(reason)) => {
                Err(ConnectError::Refused { address, source: Arc::new(io::Error::other(reason)) })
            }
            _ => Ok(client),
        }
    }

    /// Uses a connected stream: that of another transport, or of a simulated network.
    ///
    #[doc = example!(
        "",
        r#"let stream = tokio::net::UnixStream::connect("/run/tunnel").await?;"#,
        "let client = PlainClient::over(stream);",
    )]
    ///
    /// # Panics
    /// Outside a tokio runtime, because a task serves the connection.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self { connection: Arc::new(Connection::over(stream, None)) }
    }

    /// Checks that the server answers (`counter.md`, "Noop").
    ///
    #[doc = example!("client: PlainClient", "client.noop().await?;")]
    pub async fn noop(&self) -> Result<(), Error> {
        self.connection.ask_for_success(Request::Noop).await?;
        Ok(())
    }

    /// Sends Hello with a label for lists of holders, and returns the server's version, features and limits, and the
    /// namespace of the port (`docs/protocol.md`, "Hello"). `None`: the server has only the plain operations. A token
    /// decides what this connection may do from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `NotPermitted` if the server does not accept the token;
    /// [`ErrorKind::Connect`](super::ErrorKind::Connect) with `TokenInClear` if others may read it.
    ///
    #[doc = example!(
        "client: PlainClient",
        r#"let token = Token::from_file("/etc/worker/token")?;"#,
        r#"let port = client.introduce(b"backup on db1", Some(&token)).await?.map(|server| server.port);"#,
    )]
    pub async fn introduce(&self, label: &[u8], token: Option<&Token>) -> Result<Option<HelloAnswer>, Error> {
        let token = Token::latest(token).await;
        let hello = Extended::Hello {
            version: EXTENDED_VERSION,
            label,
            credentials: self.connection.credentials(token.as_ref())?,
            features: Features::default(),
        };
        match self.connection.ask_for_success(hello).await {
            Ok(frame) => Ok(Some(frame.hello()?)),
            Err(error) if error.status() == Some(Status::UnknownCommand) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the resources of a counter that are in use, or the resources of a semaphore that are available
    /// (`counter.md` and `semaphore.md`, "Get").
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `NotFound` if the name does not exist.
    ///
    #[doc = example!("client: PlainClient", r#"println!("{} in use", client.get(b"tenant/7").await?);"#)]
    pub async fn get(&self, name: &[u8]) -> Result<Resources, Error> {
        requesting(|| format!("get {}", Quoted(name)), async {
            let frame = self.connection.ask_for_success(Request::Get { name: checked(name)? }).await?;
            Ok(Resources(frame.resources()?))
        })
        .await
    }

    /// Acquires resources without waiting (`counter.md` and `semaphore.md`, "Acquire"). Returns the number of resources
    /// that were acquired.
    ///
    /// `maximum` is the maximum of a counter for this request, or the capacity of a semaphore that this request
    /// creates.
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `ResourceNotAvailable` if too few resources are available, or another refusal.
    ///
    #[doc = example!("client: PlainClient", r#"client.acquire(b"tenant/7", Resources(2), Maximum(8)).await?;"#)]
    pub async fn acquire(
        &self,
        name: &[u8],
        resources: Resources,
        maximum: Maximum,
    ) -> Result<Resources, Error> {
        let requested = || format!("acquire {resources} of {} (maximum {maximum})", Quoted(name));
        requesting(requested, async {
            let name = checked(name)?;
            let request = Request::Acquire { name, resources: resources.0, maximum: maximum.0 };
            let frame = self.connection.ask_for_success(request).await?;
            Ok(Resources(frame.resources()?))
        })
        .await
    }

    /// Acquires resources like [`Self::acquire`], and releases them when the permit is dropped. If the future is
    /// dropped, nothing stays acquired.
    ///
    /// # Errors
    /// The errors of [`Self::acquire`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox_client::{Maximum, PlainClient, Resources};
    ///
    /// let client = PlainClient::connect(&"lock.example.org".parse()?).await?;
    /// let permit = client.hold(b"backup", Resources(1), Maximum(1)).await?;
    /// // The work goes here.
    /// drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hold(
        &self,
        name: &[u8],
        resources: Resources,
        maximum: Maximum,
    ) -> Result<PlainPermit, Error> {
        self.connection.check_creator()?;
        let (client, name) = (self.clone(), name.to_vec());
        // A separate task acquires: if the caller is gone, the task drops the permit, which releases it.
        let (reply, permit) = oneshot::channel();
        tokio::spawn(async move {
            let acquired = client.acquire(&name, resources, maximum).await;
            drop(reply.send(acquired.map(|resources| PlainPermit {
                client,
                name,
                resources,
                released: false,
            })));
        });
        permit.await.map_err(|_| Disconnect::Stopped)?
    }

    /// Releases resources that this connection acquired (`counter.md` and `semaphore.md`, "Release").
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `NotAcquired` if the connection holds fewer resources.
    ///
    #[doc = example!("client: PlainClient", r#"client.release(b"tenant/7", Resources(2)).await?;"#)]
    pub async fn release(&self, name: &[u8], resources: Resources) -> Result<(), Error> {
        requesting(|| describe_release(name, resources), async {
            let request = Request::Release { name: checked(name)?, resources: resources.0 };
            self.connection.ask_for_success(request).await.map(drop)
        })
        .await
    }

    /// Returns the statistics of the server, in the server's order (`counter.md`, "Stats").
    ///
    /// ```no_run
    /// # async fn example(client: signalbox_client::PlainClient) -> Result<(), signalbox_client::Error> {
    /// for statistic in client.stats().await? {
    ///     println!("{} {}", statistic.name, statistic.value);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stats(&self) -> Result<Vec<Statistic>, Error> {
        Ok(self.connection.ask_for_success(Request::Stats).await?.statistics()?)
    }

    /// Lists all names (`counter.md`, "Dump"). The list is not a snapshot: names may change while it is read.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox_client::PlainClient) -> Result<(), signalbox_client::Error> {
    /// let mut dump = client.dump().await?;
    /// while let Some(entry) = dump.next().await {
    ///     println!("{} in use", entry?.consumption);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dump(&self) -> Result<Series<DumpEntry<Bytes>>, Error> {
        Series::ask(&self.connection, Request::Dump, ResponseFrame::dump_entry, None).await
    }

    /// Waits until the connection has ended, which releases all that it held, and returns why.
    ///
    #[doc = example!("client: PlainClient", r#"println!("everything was released: {}", client.closed().await);"#)]
    pub async fn closed(&self) -> Disconnect {
        self.connection.ended().await
    }

    /// Queues a release at once; the returned future waits for the answer. If the connection has ended, its resources
    /// are already released.
    pub(super) fn release_now(
        &self,
        name: &[u8],
        resources: Resources,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let answer = self.connection.ask_now(Request::Release { name, resources: resources.0 });
        let (connection, name) = (Arc::clone(&self.connection), name.to_vec());
        async move {
            let answered = async { connection.success(answer?).await.map(drop) };
            requesting(|| describe_release(&name, resources), answered).await
        }
    }
}

/// Describes a release, for an error.
fn describe_release(name: &[u8], resources: Resources) -> String {
    format!("release {resources} of {}", Quoted(name))
}

/// Resources that were acquired over a plain connection ([`PlainClient::hold`]). Dropping the permit releases them
/// without waiting for the answer. The server releases them too when the connection ends: see [`Self::lost`].
///
/// ```no_run
/// # async fn example(client: signalbox_client::PlainClient) -> Result<(), signalbox_client::Error> {
/// use signalbox_client::{Maximum, Resources};
///
/// let permit = client.hold(b"backup", Resources(1), Maximum(1)).await?;
/// tokio::select! {
///     reason = permit.lost() => eprintln!("{reason}"),
///     () = std::future::ready(()) => println!("the work is done"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a permit releases it; keep it for as long as the work lasts"]
pub struct PlainPermit {
    client: PlainClient,
    name: Vec<u8>,
    resources: Resources,
    /// Whether the release was sent.
    released: bool,
}

impl PlainPermit {
    /// Returns the number of resources that were acquired.
    ///
    #[doc = example!("permit: PlainPermit", r#"println!("{} held", permit.resources());"#)]
    pub fn resources(&self) -> Resources {
        self.resources
    }

    /// Releases the resources and waits for the answer (`counter.md` and `semaphore.md`, "Release").
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`](super::ErrorKind::ConnectionLost) if the connection ended, which also releases the
    /// resources.
    ///
    #[doc = example!("permit: PlainPermit", "permit.release().await?;")]
    pub async fn release(mut self) -> Result<(), Error> {
        self.released = true;
        self.client.release_now(&self.name, self.resources).await
    }

    /// Waits until the connection has ended, which releases the resources, and returns why. The failure of the server's
    /// host is detected within about 30 s. A [`Client`](super::Client) detects it at the latest when the lease ends.
    ///
    #[doc = example!("permit: PlainPermit", r#"eprintln!("{}", permit.lost().await);"#)]
    pub async fn lost(&self) -> Disconnect {
        self.client.closed().await
    }
}

impl Drop for PlainPermit {
    fn drop(&mut self) {
        if !self.released {
            // The answer is not awaited.
            drop(self.client.release_now(&self.name, self.resources));
        }
    }
}
