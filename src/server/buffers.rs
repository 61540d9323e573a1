//! Buffers that the connections of a thread share, so that an idle connection has none.

use std::cell::RefCell;

use bytes::BytesMut;

/// The most bytes of spare output buffers that a thread keeps.
const SPARE_BYTES_MAX: usize = 1024 * 1024;

/// The most bytes of one spare buffer. A larger one was used for a Dump or for a peer that does not read.
const SPARE_BUFFER_BYTES_MAX: usize = 32 * 1024;

/// The buffers of a thread.
#[derive(Default)]
pub(super) struct Buffers {
    /// The buffer to read into; empty between turns.
    pub input: BytesMut,
    /// Empty output buffers, the one used last on top.
    spares: Vec<Vec<u8>>,
    spare_bytes: usize,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

impl Buffers {
    /// Runs a turn with the buffers of this thread.
    pub fn with<R>(turn: impl FnOnce(&mut Self) -> R) -> R {
        BUFFERS.with_borrow_mut(|buffers| {
            // A turn that panicked may have left bytes.
            buffers.input.clear();
            turn(buffers)
        })
    }

    /// Lends an empty buffer for output.
    #[inline]
    pub fn lend(&mut self) -> Vec<u8> {
        let spare = self.spares.pop().unwrap_or_default();
        self.spare_bytes -= spare.capacity();
        spare
    }

    /// Takes back a buffer whose output was sent. Keeps it for another connection, unless the buffer or the spare buffers
    /// together are too large.
    #[inline]
    pub fn take_back(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        let bytes = buffer.capacity();
        if bytes > 0 && bytes <= SPARE_BUFFER_BYTES_MAX && self.spare_bytes + bytes <= SPARE_BYTES_MAX {
            self.spare_bytes += bytes;
            self.spares.push(buffer);
        }
    }
}
