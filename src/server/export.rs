//! Exports of all stored records while the server runs.
//!
//! The thread that owns the store makes a snapshot between two commits, so an export has everything that was
//! acknowledged before it began. Each export has a thread, which reads the snapshot and waits for the client, so an export
//! delays neither other clients nor commits, and takes little memory.
//!
//! While a snapshot of the file of a data directory is kept, the file cannot reuse space that was freed since, and
//! grows with each commit. So the text of such a snapshot is first written, as fast as possible, into an unnamed file
//! in the same directory, and waits there for the client.
//!
//! Invariants: a snapshot is freed when its export or its connection ends, and at the latest [`TIME_MAX`] after the
//! export began; that of a file is freed without waiting for the client. At most [`EXPORTS_MAX`] exports are read at
//! once.

use std::io::{self, BufWriter, Seek, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, mpsc as blocking};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use super::lock;
use super::steps;
use signalbox_storage::{ExportWriter, Snapshot, Storage, StorageError};

/// The most exports at once: one, and one whose client has vanished.
pub(super) const EXPORTS_MAX: usize = 2;

/// How long an export may take.
const TIME_MAX: Duration = Duration::from_secs(600);

/// How long an export waits for its snapshot. A disk may hang.
const SNAPSHOT_WAIT_MAX: Duration = Duration::from_secs(60);

/// The most parts that wait for the connection.
const PARTS_MAX: usize = 4;

/// The exports of a server, and their requests for snapshots.
#[derive(Debug)]
pub(super) struct Exports {
    /// Wakes the thread that owns the store; not set: there is no store.
    store: OnceLock<Waker>,
    /// The channels to which the requested snapshots are sent.
    requests: Mutex<Vec<blocking::SyncSender<SnapshotAnswer>>>,
    /// A permit for each export that is read.
    permits: Arc<Semaphore>,
    time_max: Duration,
}

type SnapshotAnswer = Result<Box<dyn Snapshot>, StorageError>;

/// The reason why an export did not begin.
#[derive(Debug)]
pub(super) enum Refused {
    /// The server has no store.
    NoStore,
    /// There are [`EXPORTS_MAX`] already.
    TooMany,
    /// The thread cannot be started.
    System(io::Error),
}

/// The reason why an export ended early.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the store made no snapshot within {} s", SNAPSHOT_WAIT_MAX.as_secs())]
    NoSnapshot,
    #[error("the client did not take all of it within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the client has disconnected")]
    Disconnected,
    #[error(
        "its text cannot be kept in {} until the client has taken it: {source}; it needs as much free space there as an export is long",
        directory.display()
    )]
    Spool { directory: PathBuf, source: io::Error },
    #[error(transparent)]
    System(#[from] io::Error),
}

/// An export, from which its connection takes the output.
#[derive(Debug)]
pub(super) struct Export {
    parts: Receiver<Next>,
    next: Option<Next>,
}

/// The next output of the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Text(Bytes),
    End,
    /// A failure in place of the rest.
    Failed,
}

impl Default for Exports {
    fn default() -> Self {
        Self {
            store: OnceLock::new(),
            requests: Mutex::default(),
            permits: Arc::new(Semaphore::new(EXPORTS_MAX)),
            time_max: TIME_MAX,
        }
    }
}

impl Exports {
    /// Notes that there is a store, whose owner calls [`Self::give_snapshots`] when it is woken.
    pub(super) fn set_store(&self, owner: Waker) {
        // A server has only one store in its life.
        let _ = self.store.set(owner);
    }

    /// Makes the snapshots that exports wait for. The thread that owns the store calls it between two commits.
    pub(super) fn give_snapshots(&self, storage: &mut dyn Storage) {
        for export in std::mem::take(&mut *lock(&self.requests)) {
            // If the export no longer waits, this frees the snapshot.
            let _ = export.send(storage.snapshot());
        }
    }

    /// Begins an export. `by` is its client, for the log.
    pub(super) fn begin(&self, by: impl ToString) -> Result<Export, Refused> {
        let store = self.store.get().ok_or(Refused::NoStore)?;
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| Refused::TooMany)?;
        let (request, snapshot) = blocking::sync_channel(1);
        let (sender, parts) = channel(PARTS_MAX);
        let (by, time_max) = (by.to_string(), self.time_max);
        let run = move || {
            let _permit = permit;
            match write(&snapshot, sender, time_max) {
                Ok(bytes) => info!(by, bytes, "exported all records"),
                Err(failure) => warn!(by, %failure, "an export has failed"),
            }
        };
        std::thread::Builder::new().name("export".to_owned()).spawn(run).map_err(Refused::System)?;
        lock(&self.requests).push(request);
        store.wake_by_ref();
        Ok(Export { parts, next: None })
    }
}

impl Export {
    /// Ready when [`Self::take_next`] returns an output.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.next.is_none() {
            // A thread that fails does not send `Next::End`.
            self.next = Some(ready!(self.parts.poll_recv(context)).unwrap_or(Next::Failed));
        }
        Poll::Ready(())
    }

    /// Takes the next output; `None`: it is not available yet.
    pub(super) fn take_next(&mut self) -> Option<Next> {
        self.next.take()
    }
}

/// Waits for the snapshot, and passes it to the connection as text. Returns the number of bytes.
fn write(
    snapshot: &blocking::Receiver<SnapshotAnswer>,
    sender: Sender<Next>,
    time_max: Duration,
) -> Result<u64, Failure> {
    let mut writer = PartWriter::new(sender, time_max)?;
    let snapshot = snapshot.recv_timeout(SNAPSHOT_WAIT_MAX).map_err(|_| Failure::NoSnapshot)??;
    let copied = match snapshot.directory() {
        None => copy(snapshot, &mut writer, || false),
        Some(directory) => {
            let directory = directory.to_owned();
            copy_spooled(snapshot, directory, &mut writer)
        }
    };
    // If the writer has failed, the copy failed only because of that.
    if let Some(failure) = writer.failure.take() {
        return Err(failure);
    }
    copied?;
    writer.end()
}

/// Writes a snapshot as text, and frees it. Stops early when `is_over` returns true: the client takes no more then.
fn copy(
    snapshot: Box<dyn Snapshot>,
    writer: &mut dyn Write,
    is_over: impl Fn() -> bool,
) -> Result<(), Failure> {
    let mut export = ExportWriter::begin(writer);
    let read = snapshot.read(&mut |record| {
        export.add(record);
        if export.has_failed() || is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let written = export.end();
    read?;
    Ok(written?)
}

/// Does the same as [`copy`] by way of a file in this directory.
fn copy_spooled(
    snapshot: Box<dyn Snapshot>,
    directory: PathBuf,
    writer: &mut PartWriter,
) -> Result<(), Failure> {
    let spool_failed = |source| Failure::Spool { directory: directory.clone(), source };
    let mut spool = BufWriter::new(tempfile::tempfile_in(&directory).map_err(spool_failed)?);
    copy(snapshot, &mut spool, || writer.check().is_err())?;
    writer.check()?;
    let mut spool = spool.into_inner().map_err(|error| spool_failed(error.into_error()))?;
    spool.rewind().map_err(spool_failed)?;
    io::copy(&mut spool, writer)?;
    Ok(writer.flush()?)
}

/// Passes text to the connection in parts, as fast as it takes them.
struct PartWriter {
    sender: Sender<Next>,
    /// For the time limit.
    runtime: Runtime,
    began: Instant,
    time_max: Duration,
    text: BytesMut,
    bytes: u64,
    failure: Option<Failure>,
}

impl PartWriter {
    fn new(sender: Sender<Next>, time_max: Duration) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (text, began) = (BytesMut::with_capacity(steps::DUMP_CHUNK_BYTES), Instant::now());
        Ok(Self { sender, runtime, began, time_max, text, bytes: 0, failure: None })
    }

    fn send(&self, part: Next) -> Result<(), Failure> {
        let sending = async { timeout_at(self.began + self.time_max, self.sender.send(part)).await };
        match self.runtime.block_on(sending) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Failure::Disconnected),
            Err(_) => Err(Failure::TimedOut(self.time_max)),
        }
    }

    /// Fails if the client has disconnected, or the time for the export is over.
    fn check(&self) -> Result<(), Failure> {
        if self.sender.is_closed() {
            return Err(Failure::Disconnected);
        }
        if self.began.elapsed() >= self.time_max {
            return Err(Failure::TimedOut(self.time_max));
        }
        Ok(())
    }

    fn send_text(&mut self) -> io::Result<()> {
        if self.text.is_empty() {
            return Ok(());
        }
        self.bytes += self.text.len() as u64;
        let text = self.text.split().freeze();
        self.send(Next::Text(text)).map_err(|failure| {
            self.failure.get_or_insert(failure);
            io::ErrorKind::BrokenPipe.into()
        })
    }

    /// Sends the end after everything was written. Returns the number of bytes.
    fn end(self) -> Result<u64, Failure> {
        self.send(Next::End)?;
        Ok(self.bytes)
    }
}

impl Write for PartWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(text);
        if self.text.len() >= steps::DUMP_CHUNK_BYTES {
            self.send_text()?;
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_text()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use signalbox_core::{Change, Record, SessionRecord};
    use signalbox_model::{SessionId, SessionKey};
    use signalbox_storage::Memory;

    /// A store with this many sessions, each of which fills half a part or more.
    fn filled(sessions: u64) -> Box<dyn Storage> {
        let mut storage = Memory::default().open();
        let session = |number| {
            Change::Put(Record::Session(SessionRecord {
                session: SessionId::from_number(number).unwrap(),
                key: SessionKey([7; 16]),
                ttl_ms: 1000,
                label: vec![b'a'; steps::DUMP_CHUNK_BYTES / 2].into(),
                revoked_grace_ms: None,
            }))
        };
        storage.commit(&(1..=sessions).map(session).collect::<Vec<_>>()).unwrap();
        Box::new(storage)
    }

    fn begun(exports: &Exports, storage: &mut dyn Storage) -> Export {
        exports.set_store(Waker::noop().clone());
        let export = exports.begin("a test").unwrap();
        exports.give_snapshots(storage);
        export
    }

    async fn next(export: &mut Export) -> Next {
        poll_fn(|context| export.poll_next(context)).await;
        export.take_next().unwrap()
    }

    /// Waits until every export has ended, without a limit of its own.
    fn wait_until_freed(exports: &Exports) {
        while exports.permits.available_permits() < EXPORTS_MAX {
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn an_export_whose_client_does_not_read_ends_and_says_so() {
        let exports = Exports { time_max: Duration::from_millis(50), ..Exports::default() };
        let mut export = begun(&exports, &mut *filled(100));
        wait_until_freed(&exports);
        let mut parts = 0;
        while let Next::Text(_) = next(&mut export).await {
            parts += 1;
        }
        assert!(parts <= PARTS_MAX, "{parts} parts are kept");
        assert_eq!(next(&mut export).await, Next::Failed);
    }

    #[test]
    fn the_end_of_a_connection_frees_its_export() {
        let (exports, mut storage) = (Exports::default(), filled(100));
        let export = begun(&exports, &mut *storage);
        let other = exports.begin("a test").unwrap();
        assert!(matches!(exports.begin("a test"), Err(Refused::TooMany)));
        exports.give_snapshots(&mut *storage);
        drop((export, other));
        wait_until_freed(&exports);
        assert!(exports.begin("a test").is_ok());
    }
}
