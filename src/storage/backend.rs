//! What stands between the engine and the bytes of its file.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::{BackendError, StorageBackend};

/// Remembers that a flush failed, for as long as the process runs. Clones remember together.
#[derive(Clone, Debug, Default)]
pub(super) struct Flushes(Arc<Mutex<Option<(io::ErrorKind, String)>>>);

impl Flushes {
    /// The first failure, if there was one.
    pub(super) fn failure(&self) -> Option<io::Error> {
        let failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }

    fn remember(&self, error: &io::Error) {
        let mut failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| (error.kind(), error.to_string()));
    }
}

/// Passes everything on, and tells a failed flush from any other failure, which the engine does not. After one it refuses
/// to write and to flush: a second flush would succeed and mean nothing.
#[derive(Debug)]
pub(super) struct Watched {
    below: Box<dyn StorageBackend>,
    flushes: Flushes,
}

impl Watched {
    pub(super) fn new(below: Box<dyn StorageBackend>, flushes: Flushes) -> Self {
        Self { below, flushes }
    }

    fn refuse_after_failure(&self) -> io::Result<()> {
        self.flushes.failure().map_or(Ok(()), Err)
    }
}

impl StorageBackend for Watched {
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.below.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.refuse_after_failure()?;
        self.below.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.refuse_after_failure()?;
        self.below.sync_data().inspect_err(|error| self.flushes.remember(error))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.refuse_after_failure()?;
        self.below.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.below.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.below.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.below.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.below.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.below.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.below.query_lock_range(start, end)
    }
}

/// Lets the engine write what it likes and keeps that in memory, so that a file can be looked at, and even repaired for
/// the look, without being changed.
#[derive(Debug)]
pub(super) struct Untouched {
    below: Box<dyn StorageBackend>,
    over: Mutex<Over>,
}

/// What the engine believes to be in the file, where that is not what is.
#[derive(Debug)]
struct Over {
    len: u64,
    /// Up to where the file's own bytes show.
    own_len: u64,
    /// Blocks that were written, by their number.
    blocks: BTreeMap<u64, Vec<u8>>,
}

const BLOCK_BYTES: u64 = 4096;

impl Untouched {
    pub(super) fn new(below: Box<dyn StorageBackend>) -> io::Result<Self> {
        let len = below.len()?;
        Ok(Self { below, over: Mutex::new(Over { len, own_len: len, blocks: BTreeMap::new() }) })
    }

    fn over(&self) -> MutexGuard<'_, Over> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block as it would be in the file; zeros beyond its end.
    fn block(&self, over: &Over, number: u64) -> io::Result<Vec<u8>> {
        if let Some(block) = over.blocks.get(&number) {
            return Ok(block.clone());
        }
        let start = number * BLOCK_BYTES;
        let own_bytes = over.own_len.saturating_sub(start).min(BLOCK_BYTES);
        let mut block = vec![0; BLOCK_BYTES as usize];
        self.below.read(start, &mut block[..own_bytes as usize])?;
        Ok(block)
    }
}

/// The blocks that a range of bytes lies in: the number of each, where the range starts in it, and how many bytes.
fn blocks_of(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + bytes as u64;
    (offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(move |number| {
        let start = number * BLOCK_BYTES;
        let from = offset.max(start);
        let until = end.min(start + BLOCK_BYTES);
        (number, (from - start) as usize, (until - from) as usize)
    })
}

impl StorageBackend for Untouched {
    fn len(&self) -> io::Result<u64> {
        Ok(self.over().len)
    }

    fn read(&self, offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        let over = self.over();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > over.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, from, bytes) in blocks_of(offset, out.len()) {
            let (piece, rest) = out.split_at_mut(bytes);
            piece.copy_from_slice(&self.block(&over, number)?[from..from + bytes]);
            out = rest;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut over = self.over();
        if len < over.len {
            let kept = self.block(&over, len / BLOCK_BYTES)?;
            over.blocks.retain(|number, _| *number < len / BLOCK_BYTES);
            over.own_len = over.own_len.min(len);
            if let Some(part) = kept.get(..(len % BLOCK_BYTES) as usize).filter(|part| !part.is_empty()) {
                let mut block = part.to_vec();
                block.resize(BLOCK_BYTES as usize, 0);
                over.blocks.insert(len / BLOCK_BYTES, block);
            }
        }
        over.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, mut data: &[u8]) -> io::Result<()> {
        let mut over = self.over();
        over.len = over.len.max(offset + data.len() as u64);
        for (number, from, bytes) in blocks_of(offset, data.len()) {
            let mut block = self.block(&over, number)?;
            let (piece, rest) = data.split_at(bytes);
            block[from..from + bytes].copy_from_slice(piece);
            over.blocks.insert(number, block);
            data = rest;
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }
}
