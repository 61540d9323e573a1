//! The names of a namespace, one after the other as the server sends them.

use bytes::Bytes;
use tokio::sync::mpsc;

use super::error::Error;
use super::{Client, success};
use crate::protocol::{DumpEntry, ResponseFrame};

/// The answer to [`Client::dump`], in progress.
///
/// Reading a Dump sets the pace: what its consumer does not take stays in the server, apart from a few entries. A
/// Dump that is held and not read therefore delays every other user of the connection; read it, drop it, or give it
/// a connection of its own, as a later version does by itself. In particular, a task that awaits another call on the same connection between two entries
/// may wait for itself. A Dump may be dropped at any time: what is left of it is received and thrown away.
#[derive(Debug)]
#[must_use = "a Dump that is not read holds up the connection"]
pub struct Dump {
    series: mpsc::Receiver<ResponseFrame>,
    /// Keeps the connection open while the Dump is read, and knows why it ended.
    client: Client,
    /// No further entry follows the last or an error.
    ended: bool,
}

impl Dump {
    pub(super) fn new(client: Client, series: mpsc::Receiver<ResponseFrame>) -> Self {
        Self { series, client, ended: false }
    }

    /// The next name; `None` once every name was listed. An error is the last thing that a Dump yields.
    ///
    /// Cancel safe: where the future is dropped, no entry is lost.
    pub async fn next(&mut self) -> Option<Result<DumpEntry<Bytes>, Error>> {
        if self.ended {
            return None;
        }
        let entry = match self.series.recv().await {
            Some(frame) => success(frame).and_then(|frame| Ok(frame.dump_entry()?)),
            None => Err(self.client.connection.loss().into()),
        };
        self.ended = !matches!(entry, Ok(Some(_)));
        if self.ended {
            // Where a body was malformed, more may follow that nobody is going to take.
            self.series.close();
        }
        entry.transpose()
    }
}
