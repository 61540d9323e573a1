//! The plain client: the operations of yrmcds' documents over one connection, which any server of that protocol has.
//!
//! Requests are pipelined and answers matched by their opaque, so a task that waits long keeps nobody else waiting.
//! Works with every server of yrmcds' counter or semaphore protocol (`counter.md`, `semaphore.md`); which of the two
//! a connection speaks of is decided by its port.
//!
//! What is acquired belongs to the connection: it is given back by [`PlainClient::release`] or when the connection
//! ends, which is when the last [`PlainClient`], [`PlainPermit`] and [`Dump`] of it is dropped, when the server goes
//! away, or when this process dies.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::connection::Connection;
use super::{
    Address, CONNECT_TIMEOUT, ConnectError, Dump, Error, Loss, Maximum, PlainPermit, Resources, checked,
    socket,
};
use crate::protocol::{Request, ResponseFrame, Statistic};

/// A connection to a server. Clones share it; it is closed when the last one is dropped.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox::client::{Maximum, PlainClient, Resources};
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
    /// Connects within [`CONNECT_TIMEOUT`]. An address without a port means that of the counters; see
    /// [`Address::or_port`].
    ///
    /// A server that vanishes without a word is noticed about 30 seconds later.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox::client::{PlainClient, SEMAPHORE_PORT};
    ///
    /// let semaphores = PlainClient::connect(&"lock.example.org:11216".parse()?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(address: &Address) -> Result<Self, ConnectError> {
        Self::connect_within(address, CONNECT_TIMEOUT).await
    }

    /// As [`PlainClient::connect`], within `limit`.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use signalbox::client::PlainClient;
    /// use std::time::Duration;
    ///
    /// let address = "lock.example.org".parse()?;
    /// let client = PlainClient::connect_within(&address, Duration::from_secs(1)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_within(address: &Address, limit: Duration) -> Result<Self, ConnectError> {
        Ok(Self::over(socket::connect(address, limit).await?))
    }

    /// Speaks over a stream that is connected already: another transport, or a simulated network.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use signalbox::client::PlainClient;
    /// let stream = tokio::net::UnixStream::connect("/run/tunnel").await?;
    /// let client = PlainClient::over(stream);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Outside a tokio runtime; a task of it serves the connection.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self { connection: Arc::new(Connection::over(stream)) }
    }

    /// Asks for a sign of life (`counter.md`, "Noop").
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
    /// client.noop().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn noop(&self) -> Result<(), Error> {
        self.connection.ask_for_success(Request::Noop).await?;
        Ok(())
    }

    /// A counter's consumption, or what is left of a semaphore (`counter.md` and `semaphore.md`, "Get").
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
    /// println!("{} in use", client.get(b"tenant/7").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, name: &[u8]) -> Result<Resources, Error> {
        let frame = self.connection.ask_for_success(Request::Get { name: checked(name)? }).await?;
        Ok(Resources(frame.resources()?))
    }

    /// Takes resources, at once or not at all (`counter.md` and `semaphore.md`, "Acquire"); gives what was taken.
    ///
    /// `maximum` is a counter's for this request, or the capacity of a semaphore that this request creates.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::{Maximum, Resources};
    ///
    /// client.acquire(b"tenant/7", Resources(2), Maximum(8)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(
        &self,
        name: &[u8],
        resources: Resources,
        maximum: Maximum,
    ) -> Result<Resources, Error> {
        let name = checked(name)?;
        let request = Request::Acquire { name, resources: resources.0, maximum: maximum.0 };
        let frame = self.connection.ask_for_success(request).await?;
        Ok(Resources(frame.resources()?))
    }

    /// Takes resources as [`Self::acquire`] does, and gives them back when the permit is dropped. A future that is
    /// dropped before it is done leaves nothing behind.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox::client::{Maximum, PlainClient, Resources};
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
        let (client, name) = (self.clone(), checked(name)?.to_vec());
        // In a task of its own: what was granted to a caller that has gone is dropped there, and so given back.
        let (reply, permit) = oneshot::channel();
        tokio::spawn(async move {
            let acquired = client.acquire(&name, resources, maximum).await;
            drop(reply.send(acquired.map(|resources| PlainPermit::new(client, name, resources))));
        });
        permit.await.map_err(|_| Loss::Stopped)?
    }

    /// Gives back resources that this connection acquired (`counter.md` and `semaphore.md`, "Release").
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
    /// # use signalbox::client::Resources;
    /// client.release(b"tenant/7", Resources(2)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(&self, name: &[u8], resources: Resources) -> Result<(), Error> {
        self.connection
            .ask_for_success(Request::Release { name: checked(name)?, resources: resources.0 })
            .await?;
        Ok(())
    }

    /// The server's statistics, in its order (`counter.md`, "Stats").
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
    /// for statistic in client.stats().await? {
    ///     println!("{} {}", statistic.name, statistic.value);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stats(&self) -> Result<Vec<Statistic>, Error> {
        Ok(self.connection.ask_for_success(Request::Stats).await?.statistics()?)
    }

    /// Lists every name (`counter.md`, "Dump"). It is no picture of one moment: names come and go meanwhile.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
    /// let mut dump = client.dump().await?;
    /// while let Some(entry) = dump.next().await {
    ///     println!("{} in use", entry?.consumption);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dump(&self) -> Result<Dump, Error> {
        Dump::ask(&self.connection, Request::Dump, ResponseFrame::dump_entry).await
    }

    /// Resolves when the connection is gone, and with it all that it held.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::PlainClient) {
    /// println!("nothing is held any more: {}", client.closed().await);
    /// # }
    /// ```
    pub async fn closed(&self) -> Loss {
        self.connection.ended().await
    }

    /// Gives back; the request is queued before anything is waited for. Where the connection is gone, so is what it
    /// held.
    pub(super) fn release_now(
        &self,
        name: &[u8],
        resources: Resources,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let answer = self.connection.ask_now(Request::Release { name, resources: resources.0 });
        let connection = Arc::clone(&self.connection);
        async move { connection.success(answer?).await.map(drop) }
    }
}
