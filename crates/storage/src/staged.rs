//! A file that is not changed until its data is accepted.
//!
//! The engine writes when it opens a file: it repairs a file that was not closed properly, and it notes that the file is
//! open. A file that turns out to be damaged must stay as it was. So writes stay in memory, in order, until
//! [`Staged::accept`] writes them to the file. They are few: a repair changes the header only.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use super::backend::CopyOnWrite;

/// A file and the changes to it that are not accepted yet. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    inner: Arc<dyn StorageBackend>,
    /// `None` after the file was accepted.
    stage: Arc<Mutex<Option<Stage>>>,
}

#[derive(Debug)]
struct Stage {
    /// The file as the engine sees it.
    view: CopyOnWrite,
    /// What changed the view, in order.
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

impl Staged {
    pub(super) fn new(inner: Box<dyn StorageBackend>) -> io::Result<Self> {
        let inner: Arc<dyn StorageBackend> = inner.into();
        let stage = Stage { view: CopyOnWrite::new(Arc::clone(&inner))?, changes: Vec::new() };
        Ok(Self { inner, stage: Arc::new(Mutex::new(Some(stage))) })
    }

    /// Makes the changes in the file, with the flushes in between, so that a crash during this leaves a file that the
    /// engine can repair. From then on, each change is made in the file at once. After a failure the engine must be
    /// closed; what it writes until then stays in memory.
    pub(super) fn accept(&self) -> io::Result<()> {
        let mut stage = self.stage();
        for change in stage.iter().flat_map(|stage| &stage.changes) {
            match change {
                Change::Write(offset, data) => self.inner.write(*offset, data)?,
                Change::SetLen(len) => self.inner.set_len(*len)?,
                Change::Sync => self.inner.sync_data()?,
            }
        }
        *stage = None;
        Ok(())
    }

    fn stage(&self) -> MutexGuard<'_, Option<Stage>> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for Staged {
    fn len(&self) -> io::Result<u64> {
        self.stage().as_ref().map_or_else(|| self.inner.len(), |stage| stage.view.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &*self.stage() {
            Some(stage) => stage.view.read(offset, out),
            None => self.inner.read(offset, out),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut stage = self.stage();
        let Some(stage) = &mut *stage else { return self.inner.set_len(len) };
        stage.changes.push(Change::SetLen(len));
        stage.view.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut stage = self.stage();
        let Some(stage) = &mut *stage else { return self.inner.sync_data() };
        stage.changes.push(Change::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut stage = self.stage();
        let Some(stage) = &mut *stage else { return self.inner.write(offset, data) };
        stage.changes.push(Change::Write(offset, data.to_vec()));
        stage.view.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    super::backend::forward_locks!();
}
