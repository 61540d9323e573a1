//! The flush mark: a note in the file's header that the engine's current commit is completely on the disk.
//!
//! The engine keeps two commits and a header that selects one. After an unclean end it uses the older one if it cannot
//! read the newer one, because a crash may interrupt a commit. But a commit that was acknowledged must not be rolled
//! back: an unreadable part of it is damage. So after each successful flush this layer rewrites one byte of the header,
//! without another flush. It sets the engine's own bit for "the current commit is complete" (the bit of its two-phase
//! commit), with which the engine refuses the file instead of using the older commit. It also copies the three bits
//! that the engine uses into the three highest bits, so that a changed bit of this byte is detected too.
//!
//! The engine's next write of the header removes the mark. If a process is killed after it acknowledged a commit, the
//! file has the mark. After a loss of power, the mark of the last commits may be missing.

use std::io;
use std::sync::{Mutex, PoisonError};

use redb::StorageBackend;

/// The offset in the file of the byte that selects the current commit (redb's "god byte").
const SELECTOR: u64 = 9;
/// The bits that the engine uses.
const ENGINE_BITS: u8 = 0b111;
/// The engine's bit for a current commit that is complete.
const COMPLETE: u8 = 0b100;
/// The number of the first bit of the copy.
const COPY_SHIFT: u32 = 5;

/// The state of the mark of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushMark {
    /// It was not written: a commit was in progress, or the power failed.
    Absent,
    /// The current commit is completely on the disk.
    Present,
    /// A bit was changed.
    Damaged,
}

/// The commit of a marked file that the engine may use if the current one cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// None: the file is refused as damaged.
    CurrentCommit,
    /// The older one, to save what can be saved.
    AnyCommit,
}

/// Writes the flush mark after each flush, and hides the copied bits from the engine.
#[derive(Debug)]
pub(super) struct FlushMarks {
    inner: Box<dyn StorageBackend>,
    trust: Trust,
    /// The selector that the engine wrote since the last mark.
    unmarked: Mutex<Option<u8>>,
}

impl FlushMark {
    pub(super) fn of(file: &dyn StorageBackend) -> io::Result<Self> {
        if file.len()? <= SELECTOR {
            return Ok(Self::Absent);
        }
        let mut selector = [0];
        file.read(SELECTOR, &mut selector)?;
        let [selector] = selector;
        Ok(match selector {
            unmarked if unmarked & !ENGINE_BITS == 0 => Self::Absent,
            marked if marked == mark(marked & ENGINE_BITS) => Self::Present,
            _ => Self::Damaged,
        })
    }
}

/// Returns the selector with the mark.
fn mark(selector: u8) -> u8 {
    let bits = selector & ENGINE_BITS | COMPLETE;
    bits | bits << COPY_SHIFT
}

impl FlushMarks {
    pub(super) fn new(inner: Box<dyn StorageBackend>, trust: Trust) -> Self {
        Self { inner, trust, unmarked: Mutex::new(None) }
    }
}

impl StorageBackend for FlushMarks {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)?;
        if let Some(selector) = selector_index(offset, out.len()).map(|index| &mut out[index]) {
            *selector &= match self.trust {
                Trust::CurrentCommit => ENGINE_BITS,
                Trust::AnyCommit => ENGINE_BITS & !COMPLETE,
            };
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()?;
        // Everything that was written before is on the disk, and with it the commit that the selector selects.
        let mut unmarked = self.unmarked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(selector) = *unmarked {
            self.inner.write(SELECTOR, &[mark(selector)])?;
            *unmarked = None;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)?;
        if let Some(index) = selector_index(offset, data.len()) {
            *self.unmarked.lock().unwrap_or_else(PoisonError::into_inner) = Some(data[index]);
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    super::backend::forward_locks!();
}

/// Returns the index of the selector in a range of bytes of the file, if it is in the range.
fn selector_index(offset: u64, bytes: usize) -> Option<usize> {
    let index = usize::try_from(SELECTOR.checked_sub(offset)?).ok()?;
    (index < bytes).then_some(index)
}
