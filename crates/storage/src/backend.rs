//! The layers between the engine and the bytes of its file.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// Defines the lock methods of a layer, which forward to `inner`.
macro_rules! forward_locks {
    () => {
        $crate::backend::forward_locks! {
            try_lock_range -> bool;
            try_lock_shared_range -> bool;
            lock_range -> ();
            lock_shared_range -> ();
            unlock_range -> ();
            query_lock_range -> bool;
        }
    };
    ($($method:ident -> $answer:ty;)*) => {$(
        fn $method(
            &self,
            start: std::ops::Bound<u64>,
            end: std::ops::Bound<u64>,
        ) -> Result<$answer, redb::BackendError> {
            self.inner.$method(start, end)
        }
    )*};
}
pub(super) use forward_locks;

/// The first failed flush of a file, if any. It is kept until the process ends. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct FlushFailure(Arc<Mutex<Option<(io::ErrorKind, String)>>>);

impl FlushFailure {
    /// The error of the first failed flush.
    pub(super) fn get(&self) -> Option<io::Error> {
        let failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }

    fn record(&self, error: &io::Error) {
        let mut failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| (error.kind(), error.to_string()));
    }
}

/// Forwards every call and distinguishes a failed flush from other failures, which the engine does not. After a failed
/// flush it refuses to write and to flush, because a second flush would report success for data that the system may
/// have dropped.
#[derive(Debug)]
pub(super) struct FlushGuard {
    inner: Box<dyn StorageBackend>,
    flush_failure: FlushFailure,
}

impl FlushGuard {
    pub(super) fn new(inner: Box<dyn StorageBackend>, flush_failure: FlushFailure) -> Self {
        Self { inner, flush_failure }
    }

    fn refuse_after_failure(&self) -> io::Result<()> {
        self.flush_failure.get().map_or(Ok(()), Err)
    }
}

impl StorageBackend for FlushGuard {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.refuse_after_failure()?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.refuse_after_failure()?;
        self.inner.sync_data().inspect_err(|error| self.flush_failure.record(error))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.refuse_after_failure()?;
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    forward_locks!();
}

/// Keeps in memory what the engine writes, so that a file can be read, and even repaired in memory, without being
/// changed.
#[derive(Debug)]
pub(super) struct CopyOnWrite {
    inner: Arc<dyn StorageBackend>,
    overlay: Mutex<Overlay>,
}

/// The differences between the file as the engine sees it and the file on disk.
#[derive(Debug)]
struct Overlay {
    len: u64,
    /// The length of the part that is read from the file itself; the rest is zeros unless it was written.
    inner_len: u64,
    /// Written blocks, by number.
    blocks: BTreeMap<u64, Vec<u8>>,
}

const BLOCK_BYTES: u64 = 4096;

impl CopyOnWrite {
    pub(super) fn new(inner: Arc<dyn StorageBackend>) -> io::Result<Self> {
        let len = inner.len()?;
        Ok(Self { inner, overlay: Mutex::new(Overlay { len, inner_len: len, blocks: BTreeMap::new() }) })
    }

    fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a block as the engine sees it, with zeros beyond the end of the file.
    fn block(&self, overlay: &Overlay, number: u64) -> io::Result<Vec<u8>> {
        if let Some(block) = overlay.blocks.get(&number) {
            return Ok(block.clone());
        }
        let start = number * BLOCK_BYTES;
        let inner_bytes = overlay.inner_len.saturating_sub(start).min(BLOCK_BYTES);
        let mut block = vec![0; BLOCK_BYTES as usize];
        self.inner.read(start, &mut block[..inner_bytes as usize])?;
        Ok(block)
    }
}

/// Returns the blocks that a range of bytes covers: the number of each block, the offset of the range in it, and the
/// number of bytes.
fn blocks_of(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + bytes as u64;
    (offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(move |number| {
        let start = number * BLOCK_BYTES;
        let from = offset.max(start);
        let until = end.min(start + BLOCK_BYTES);
        (number, (from - start) as usize, (until - from) as usize)
    })
}

impl StorageBackend for CopyOnWrite {
    fn len(&self) -> io::Result<u64> {
        Ok(self.overlay().len)
    }

    fn read(&self, offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        let overlay = self.overlay();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > overlay.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, from, bytes) in blocks_of(offset, out.len()) {
            let (piece, rest) = out.split_at_mut(bytes);
            piece.copy_from_slice(&self.block(&overlay, number)?[from..from + bytes]);
            out = rest;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut overlay = self.overlay();
        if len < overlay.len {
            let last = self.block(&overlay, len / BLOCK_BYTES)?;
            overlay.blocks.retain(|number, _| *number < len / BLOCK_BYTES);
            overlay.inner_len = overlay.inner_len.min(len);
            if let Some(part) = last.get(..(len % BLOCK_BYTES) as usize).filter(|part| !part.is_empty()) {
                let mut block = part.to_vec();
                block.resize(BLOCK_BYTES as usize, 0);
                overlay.blocks.insert(len / BLOCK_BYTES, block);
            }
        }
        overlay.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, mut data: &[u8]) -> io::Result<()> {
        let mut overlay = self.overlay();
        overlay.len = overlay.len.max(offset + data.len() as u64);
        for (number, from, bytes) in blocks_of(offset, data.len()) {
            let mut block = self.block(&overlay, number)?;
            let (piece, rest) = data.split_at(bytes);
            block[from..from + bytes].copy_from_slice(piece);
            overlay.blocks.insert(number, block);
            data = rest;
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redb::backends::{FileBackend, InMemoryBackend};

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// At an offset: this byte, this often.
        Write(u64, u8, usize),
        SetLen(u64),
    }

    /// Up to four blocks, mostly not at the edge of one.
    fn any_step() -> impl Strategy<Value = Step> {
        let position = 0..4 * BLOCK_BYTES;
        let write = (position.clone(), any::<u8>(), 1..6000_usize);
        prop_oneof![
            write.prop_map(|(offset, byte, bytes)| Step::Write(offset, byte, bytes)),
            position.prop_map(Step::SetLen),
            (0..4_u64).prop_map(|blocks| Step::SetLen(blocks * BLOCK_BYTES)),
        ]
    }

    /// The whole file as the engine sees it.
    fn content(backend: &dyn StorageBackend) -> Vec<u8> {
        let mut content = vec![0xee; backend.len().unwrap() as usize];
        backend.read(0, &mut content).unwrap();
        content
    }

    /// Writes the data at an offset, after it has extended the file if need be, as the engine does.
    fn write(backend: &dyn StorageBackend, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        if backend.len().unwrap() < end {
            backend.set_len(end).unwrap();
        }
        backend.write(offset, data).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_copy_on_write_reads_like_a_file_and_changes_nothing(
            bytes in prop::collection::vec(any::<u8>(), 0..13_000),
            steps in prop::collection::vec(any_step(), 1..12),
        ) {
            let file = Arc::new(FileBackend::new(tempfile::tempfile().unwrap()).unwrap());
            let expected = InMemoryBackend::new();
            [&*file as &dyn StorageBackend, &expected].iter().for_each(|backend| write(*backend, 0, &bytes));
            let copy = CopyOnWrite::new(file.clone()).unwrap();
            for step in &steps {
                for backend in [&copy as &dyn StorageBackend, &expected] {
                    match step {
                        Step::Write(offset, byte, bytes) => write(backend, *offset, &vec![*byte; *bytes]),
                        Step::SetLen(bytes) => backend.set_len(*bytes).unwrap(),
                    }
                }
                prop_assert!(content(&copy) == content(&expected), "after {:?}", step);
            }
            prop_assert!(content(&*file) == bytes);
        }
    }
}
