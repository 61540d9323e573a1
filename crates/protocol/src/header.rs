//! The twelve bytes before every body (`counter.md`, "Request header" and "Response header").

use std::fmt;

use bytes::BufMut;

use signalbox_model::Status;
use signalbox_model::codes;

/// The length of a header in bytes (`counter.md`, "Request header" and "Response header").
pub const HEADER_BYTES: usize = 12;

/// The first byte of every request (`counter.md`, "Request header").
pub const REQUEST_MAGIC: u8 = 0x90;

/// The first byte of every response (`counter.md`, "Response header").
pub const RESPONSE_MAGIC: u8 = 0x91;

/// The first byte of a connection over TLS: the type of a handshake record (RFC 8446, 5.1).
pub const TLS_HANDSHAKE: u8 = 0x16;

/// The longest body of a request in bytes (`docs/protocol.md`, "Limits"). A header that announces a longer one ends the
/// connection.
pub const REQUEST_BODY_BYTES_MAX: usize = 128 * 1024;

/// The longest body of a response that a client accepts, in bytes. The longest response about one name is an entry of
/// List, of at most 193 KiB: the name, and all 65536 slots, each out of service. The rest is reserved for later
/// versions.
pub const RESPONSE_BODY_BYTES_MAX: usize = 1024 * 1024;

/// The longest name in bytes: its length is a `u16` on the wire (`counter.md` and `semaphore.md`, "Acquire").
pub const NAME_BYTES_MAX: usize = u16::MAX as usize;

/// Four bytes that a client chooses and the server copies into the response, so that the client finds the request of a
/// response (`counter.md`, "Request header").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opaque(pub [u8; 4]);

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", u32::from_be_bytes(self.0))
    }
}

codes! {
    /// The operations of yrmcds' counter and semaphore protocols, with their codes (`counter.md`, "Opcodes").
    pub enum Opcode: u8 {
        /// Does nothing, successfully.
        Noop = 0x00,
        /// Reads the consumption of a counter, or the available resources of a semaphore.
        Get = 0x01,
        /// Acquires resources.
        Acquire = 0x02,
        /// Releases resources.
        Release = 0x03,
        /// Reads the server's statistics.
        Stats = 0x10,
        /// Lists every name of the namespace.
        Dump = 0x11,
    }
}

/// A decoded header. The third and fourth bytes of a request (flags, reserved) are unused and skipped; the third byte
/// of a response is its status.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) magic: u8,
    pub(super) opcode: u8,
    pub(super) status: u8,
    pub(super) body_bytes: u32,
    pub(super) opaque: Opaque,
}

impl Header {
    /// Returns the header of a request. [`Self::compose_before`] sets the length of the body.
    pub(super) fn request(opcode: u8, opaque: Opaque) -> Self {
        Self { magic: REQUEST_MAGIC, opcode, status: 0, body_bytes: 0, opaque }
    }

    /// Returns the header of a response to a request with this opcode and opaque.
    #[inline]
    pub(super) fn response(opcode: u8, status: Status, opaque: Opaque) -> Self {
        Self { magic: RESPONSE_MAGIC, opcode, status: status.code(), body_bytes: 0, opaque }
    }

    /// Decodes the header at the start of `bytes`; `None` if there are fewer than [`HEADER_BYTES`].
    #[inline]
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

    /// Appends a frame with the body that `compose_body` appends. The length in the header is written afterwards.
    pub(super) fn compose_before(mut self, out: &mut Vec<u8>, compose_body: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.put_bytes(0, HEADER_BYTES);
        compose_body(out);
        let body_bytes = out.len() - start - HEADER_BYTES;
        self.body_bytes = u32::try_from(body_bytes).expect("bodies are far below 4 GiB");
        out[start..start + HEADER_BYTES].copy_from_slice(&self.bytes());
    }

    #[inline]
    pub(super) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let [b0, b1, b2, b3] = self.body_bytes.to_be_bytes();
        let [o0, o1, o2, o3] = self.opaque.0;
        [self.magic, self.opcode, self.status, 0, b0, b1, b2, b3, o0, o1, o2, o3]
    }
}
