//! Buffers that the connections of a thread share, so that one with nothing under way has none.

use std::cell::RefCell;

use bytes::BytesMut;

/// Most bytes that a thread keeps for output to come.
const SPARE_BYTES_MAX: usize = 1024 * 1024;

/// Most bytes of one of them: a larger one was for a Dump or for a peer that does not read.
const SPARE_MAX: usize = 32 * 1024;

/// Buffers of a thread.
#[derive(Default)]
pub(super) struct Buffers {
    /// What is being read; empty between turns.
    pub input: BytesMut,
    /// Empty ones for output, the last used on top.
    spares: Vec<BytesMut>,
    spare_bytes: usize,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

impl Buffers {
    /// Runs a turn with the buffers of this thread.
    pub fn with<R>(turn: impl FnOnce(&mut Self) -> R) -> R {
        BUFFERS.with_borrow_mut(|buffers| {
            // A turn that panicked may have left something.
            buffers.input.clear();
            turn(buffers)
        })
    }

    /// An empty buffer for output.
    #[inline]
    pub fn lend(&mut self) -> BytesMut {
        let spare = self.spares.pop().unwrap_or_default();
        self.spare_bytes -= spare.capacity();
        spare
    }

    /// Takes a buffer whose output has been sent as a whole, for the next connection that has some.
    #[inline]
    pub fn take_back(&mut self, mut buffer: BytesMut) {
        buffer.clear();
        let bytes = buffer.capacity();
        if bytes > 0 && bytes <= SPARE_MAX && self.spare_bytes + bytes <= SPARE_BYTES_MAX {
            self.spare_bytes += bytes;
            self.spares.push(buffer);
        }
    }
}
