//! The twelve bytes in front of every body (`counter.md`, "Request header" and "Response header").

use std::fmt;

use bytes::{BufMut, BytesMut};

/// Length of a request's and of a response's header in bytes.
pub const HEADER_BYTES: usize = 12;

/// First byte of every request.
pub const REQUEST_MAGIC: u8 = 0x90;

/// First byte of every response.
pub const RESPONSE_MAGIC: u8 = 0x91;

/// Four bytes that a client chooses and the server copies into the response, to tell answers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opaque(pub [u8; 4]);

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", u32::from_be_bytes(self.0))
    }
}

/// The operations of the two documents (`counter.md`, "Opcodes"), with their codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Does nothing, successfully.
    Noop = 0x00,
    /// Reads a counter's consumption or what is left of a semaphore.
    Get = 0x01,
    /// Takes resources.
    Acquire = 0x02,
    /// Gives resources back.
    Release = 0x03,
    /// Reads the server's statistics.
    Stats = 0x10,
    /// Lists every name of the namespace.
    Dump = 0x11,
}

impl Opcode {
    /// The operation with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Noop,
            0x01 => Self::Get,
            0x02 => Self::Acquire,
            0x03 => Self::Release,
            0x10 => Self::Stats,
            0x11 => Self::Dump,
            _ => return None,
        })
    }

    /// The byte that stands for the operation on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// A header as it was read. The third and fourth bytes of a request (flags, reserved) mean nothing yet and are
/// skipped; the third byte of a response is its status.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) magic: u8,
    pub(super) opcode: u8,
    pub(super) status: u8,
    pub(super) body_bytes: u32,
    pub(super) opaque: Opaque,
}

impl Header {
    /// Reads a header from the start of `bytes`; `None` where fewer than [`HEADER_BYTES`] are there.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let h: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        Some(Self {
            magic: h[0],
            opcode: h[1],
            status: h[2],
            body_bytes: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
            opaque: Opaque([h[8], h[9], h[10], h[11]]),
        })
    }

    /// Appends a frame whose body is what `compose_body` appends; the header's length is put in when it is known.
    pub(super) fn compose_before(mut self, out: &mut BytesMut, compose_body: impl FnOnce(&mut BytesMut)) {
        let start = out.len();
        out.put_bytes(0, HEADER_BYTES);
        compose_body(out);
        let body_bytes = out.len() - start - HEADER_BYTES;
        self.body_bytes = u32::try_from(body_bytes).expect("bodies are far below 4 GiB");
        out[start..start + HEADER_BYTES].copy_from_slice(&self.bytes());
    }

    /// The header's bytes.
    pub(super) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let [b0, b1, b2, b3] = self.body_bytes.to_be_bytes();
        let [o0, o1, o2, o3] = self.opaque.0;
        [self.magic, self.opcode, self.status, 0, b0, b1, b2, b3, o0, o1, o2, o3]
    }
}
