//! Answers that come one after the other: the names of a Dump, who holds or waits for a name, the events of a Watch.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::connection::{Connection, Outgoing};
use super::error::Error;
use super::success;
use crate::protocol::{BodyError, DeclaredEntry, DumpEntry, Event, ListEntry, ResponseFrame};

/// A series of answers, in progress. It ends after the last or an error; a [`Watch`] has no last.
///
/// Reading it sets the pace: what its consumer does not take stays in the server, apart from a few entries. One that
/// is held and not read therefore delays every other user of the connection; read it, drop it, or give it a connection
/// of its own. In particular, a task that awaits another call on the same connection between two entries may wait for
/// itself. It may be dropped at any time: what is left of it is received and thrown away.
///
/// ```no_run
/// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::Namespace;
///
/// let mut waiters = direct.waiters(Namespace::Counters, b"backup").await?;
/// while let Some(waiter) = waiters.next().await {
///     println!("{}", waiter?.position);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a series that is not read holds up the connection"]
pub struct Series<T> {
    frames: mpsc::Receiver<ResponseFrame>,
    read: fn(&ResponseFrame) -> Result<Option<T>, BodyError>,
    /// Kept open while the series is read, and knows why it ended.
    connection: Arc<Connection>,
    /// No further entry follows the last or an error.
    ended: bool,
}

/// The names of a namespace ([`PlainClient::dump`](super::PlainClient::dump)).
///
/// ```no_run
/// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::Dump;
///
/// let dump: Dump = client.dump().await?;
/// # Ok(())
/// # }
/// ```
pub type Dump = Series<DumpEntry<Bytes>>;

/// Those who hold a name or wait for it ([`Direct::holders`](super::Direct::holders)).
///
/// ```no_run
/// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::{Listing, Namespace};
///
/// let holders: Listing = direct.holders(Namespace::Counters, b"backup").await?;
/// # Ok(())
/// # }
/// ```
pub type Listing = Series<ListEntry<Bytes, Vec<u16>>>;

/// Declared semaphores ([`Direct::list`](super::Direct::list)).
///
/// ```no_run
/// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::Declared;
///
/// let declared: Declared = direct.list(b"gpu/").await?;
/// # Ok(())
/// # }
/// ```
pub type Declared = Series<DeclaredEntry<Bytes>>;

/// What happens to names ([`Direct::watch`](super::Direct::watch)).
///
/// ```no_run
/// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::{Namespace, Scope, Watch};
///
/// let watch: Watch = direct.watch(Namespace::Counters, Scope::Name(b"backup")).await?;
/// # Ok(())
/// # }
/// ```
pub type Watch = Series<Event<Bytes>>;

impl<T> fmt::Debug for Series<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Series").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl<T> Series<T> {
    pub(super) async fn ask(
        connection: &Arc<Connection>,
        request: impl Into<Outgoing<'_>>,
        read: fn(&ResponseFrame) -> Result<Option<T>, BodyError>,
    ) -> Result<Self, Error> {
        let frames = connection.ask_for_series(request).await?;
        Ok(Self { frames, read, connection: Arc::clone(connection), ended: false })
    }

    /// The next entry; `None` after the last. An error is the last thing that a series yields.
    ///
    /// Cancel safe: where the future is dropped, no entry is lost.
    ///
    /// ```no_run
    /// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
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
        let entry = match self.frames.recv().await {
            Some(frame) => success(frame).and_then(|frame| Ok((self.read)(&frame)?)),
            None => Err(self.connection.loss().into()),
        };
        self.ended = !matches!(entry, Ok(Some(_)));
        if self.ended {
            // Where a body was malformed, more may follow that nobody is going to take.
            self.frames.close();
        }
        entry.transpose()
    }
}
