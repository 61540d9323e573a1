//! Operations with a series of responses, such as the names of a Dump, the holders of a name, or the events of a Watch.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::connection::{Connection, Outgoing};
use super::{Error, success};
use signalbox_protocol::{BodyError, ResponseFrame};

/// A series of responses to one request. It ends after the last entry or with an error; that of
/// [`Direct::watch`](super::Direct::watch) only ends with an error.
///
/// The reader sets the pace: the client buffers a few entries, and the server keeps the rest (backpressure). A series
/// that is neither read nor dropped therefore blocks all other requests of the connection. Read it, drop it, or use a
/// separate connection. A task that awaits another request of the same connection between two entries can deadlock.
///
/// A series can be dropped at any time: the rest is received and discarded.
///
/// ```no_run
/// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
/// use signalbox_client::Namespace;
///
/// let mut waiters = direct.waiters(Namespace::Counters, b"backup").await?;
/// while let Some(waiter) = waiters.next().await {
///     println!("{}", waiter?.position);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a series that is not read blocks the connection"]
pub struct Series<T> {
    frames: mpsc::Receiver<ResponseFrame>,
    read: fn(&ResponseFrame) -> Result<Option<T>, BodyError>,
    /// What was requested, for errors.
    requested: Option<Arc<str>>,
    /// Keeps the connection open while the series is read, and knows why it has ended.
    connection: Arc<Connection>,
    /// Whether the last entry or an error was returned.
    ended: bool,
}

impl<T> fmt::Debug for Series<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Series").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl<T> Series<T> {
    pub(super) async fn ask(
        connection: &Arc<Connection>,
        request: impl Outgoing,
        read: fn(&ResponseFrame) -> Result<Option<T>, BodyError>,
        requested: Option<String>,
    ) -> Result<Self, Error> {
        let requested = requested.map(Arc::from);
        let frames = connection.ask_for_series(request).await;
        let frames = frames.map_err(|reason| failed(reason.into(), requested.as_ref()))?;
        Ok(Self { frames, read, requested, connection: Arc::clone(connection), ended: false })
    }

    /// Returns the next entry; `None` after the last one and after an error. A child made by `fork` gets an error at each call.
    ///
    /// Cancel safe: dropping the future loses no entry.
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) if the server refused the request, `ConnectionLost` if the
    /// connection ended, or `Body` if an entry is malformed.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox_client::PlainClient) -> Result<(), signalbox_client::Error> {
    /// let mut dump = client.dump().await?;
    /// while let Some(entry) = dump.next().await {
    ///     println!("{:?}", entry?.name);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        if self.ended {
            return None;
        }
        if let Err(forked) = self.connection.check_creator() {
            return Some(Err(failed(forked.into(), self.requested.as_ref())));
        }
        let entry = match self.frames.recv().await {
            Some(frame) => success(frame).and_then(|frame| Ok((self.read)(&frame)?)),
            None => Err(self.connection.end_reason().into()),
        };
        self.ended = !matches!(entry, Ok(Some(_)));
        if self.ended {
            // Entries that follow a malformed one are discarded.
            self.frames.close();
        }
        entry.map_err(|error| failed(error, self.requested.as_ref())).transpose()
    }

    /// Collects all remaining entries in memory.
    ///
    /// # Errors
    /// The errors of [`Self::next`].
    ///
    #[doc = example!(
        "client: PlainClient",
        "let names = client.dump().await?.all().await?;",
        r#"println!("{} names", names.len());"#,
    )]
    pub async fn all(mut self) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        while let Some(entry) = self.next().await {
            all.push(entry?);
        }
        Ok(all)
    }
}

/// Adds what was requested to an error.
fn failed(error: Error, requested: Option<&Arc<str>>) -> Error {
    match requested {
        Some(requested) => error.with_request(Arc::clone(requested)),
        None => error,
    }
}
