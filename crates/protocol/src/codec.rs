//! Framing: splits a byte stream into frames, and detects malformed streams.
//!
//! The server's codec returns all complete frames of a read as one [`Frames`], so that a burst of requests costs one
//! split of the buffer and requests are parsed in place. The client's codec returns one response at a time.

use crate::header::REQUEST_BODY_BYTES_MAX;
use crate::header::RESPONSE_BODY_BYTES_MAX;
use bytes::{Bytes, BytesMut};
use thiserror::Error;

use super::header::{HEADER_BYTES, Header, REQUEST_MAGIC, RESPONSE_MAGIC, TLS_HANDSHAKE};
use super::proxy_header::ProxyHeader;
use super::request::Frame;
use super::response::ResponseFrame;

/// An error in a byte stream. The start of the next frame is unknown, so the connection ends.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// A frame does not start with the magic byte.
    #[error(
        "a frame starts with the byte {found:#04x} instead of {expected:#04x}; check that the peer uses this protocol"
    )]
    WrongMagic {
        /// The byte that was received.
        found: u8,
        /// The magic byte.
        expected: u8,
    },
    /// A header of the PROXY protocol was received instead of a frame.
    #[error(
        "a header of the PROXY protocol is in the place of a frame; if this address is a proxy's, add it to the key \
         \"proxies\" of the configuration; otherwise make it send no such header"
    )]
    ProxyHeader,
    /// The stream begins with a TLS handshake. Its bytes are left in the buffer.
    #[error("a TLS handshake begins")]
    BeginsTls,
    /// A TLS handshake was received instead of a frame.
    #[error(
        "a TLS handshake is in the place of a frame; if the client should use TLS, set tls.cert and tls.key in the \
         configuration; otherwise make it connect without TLS"
    )]
    UnexpectedTls,
    /// An HTTP response was received instead of a response of this protocol.
    #[error("the server speaks HTTP on this port; give the port of the counters, or that of the semaphores")]
    Http,
    /// A header announces a body that is longer than the limit.
    #[error("a frame announces a body of {announced} bytes; the longest allowed is {limit}")]
    BodyTooLong {
        /// The announced length in bytes.
        announced: u32,
        /// The limit in bytes.
        limit: usize,
    },
    /// Reading from the stream failed. The codec itself does not read; `tokio-util` requires this variant.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The server's codec: decodes requests. It returns all complete frames of the buffer at once, and the error of a
/// malformed frame only after the frames before it.
///
/// A header with a wrong magic byte is returned as the last of these frames, without a body, so that the server can
/// answer it, except where TLS may begin. No memory is reserved for a body that is only announced.
#[derive(Debug, Default)]
pub struct RequestCodec {
    /// The error of a malformed frame, which is returned after the frames before it.
    failure: Option<DecodeError>,
    /// Whether TLS may begin: no frame was received yet.
    may_begin_tls: bool,
}

impl RequestCodec {
    /// Returns the codec of a new stream. If `may_begin_tls` is true, the stream may begin with a TLS handshake, which
    /// is reported as [`DecodeError::BeginsTls`].
    pub fn new(may_begin_tls: bool) -> Self {
        Self { failure: None, may_begin_tls }
    }

    /// Takes all complete frames from the front of the buffer; `None` if no frame is complete.
    pub fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Frames>, DecodeError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut rest = &source[..];
        while let Some(header) = Header::read(rest) {
            if header.magic != REQUEST_MAGIC {
                self.failure = Some(if ProxyHeader::is_at_the_start_of(rest) {
                    DecodeError::ProxyHeader
                } else if header.magic == TLS_HANDSHAKE && self.may_begin_tls && rest.len() == source.len() {
                    return Err(DecodeError::BeginsTls);
                } else if header.magic == TLS_HANDSHAKE {
                    DecodeError::UnexpectedTls
                } else {
                    DecodeError::WrongMagic { found: header.magic, expected: REQUEST_MAGIC }
                });
                rest = &rest[HEADER_BYTES..];
                break;
            }
            let body_bytes = header.body_bytes as usize;
            if body_bytes > REQUEST_BODY_BYTES_MAX {
                self.failure = Some(DecodeError::BodyTooLong {
                    announced: header.body_bytes,
                    limit: REQUEST_BODY_BYTES_MAX,
                });
                break;
            }
            let Some(after) = rest.get(HEADER_BYTES + body_bytes..) else { break };
            rest = after;
        }
        let end = source.len() - rest.len();
        if end > 0 {
            self.may_begin_tls = false;
            return Ok(Some(Frames { run: source.split_to(end), position: 0 }));
        }
        self.failure.take().map_or(Ok(None), Err)
    }
}

/// A run of complete frames, in the order in which they were received.
#[derive(Debug)]
pub struct Frames {
    run: BytesMut,
    position: usize,
}

impl Frames {
    /// Returns the next frame, which borrows from the run: nothing is copied.
    #[expect(
        clippy::should_implement_trait,
        reason = "the frames borrow from the run, which Iterator cannot express"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<Frame<'_>> {
        let rest = &self.run[self.position..];
        let header = Header::read(rest)?;
        // A header with a wrong magic byte is the last of its run, and its length is not reliable.
        let body_bytes = if header.magic == REQUEST_MAGIC { header.body_bytes as usize } else { 0 };
        self.position += HEADER_BYTES + body_bytes;
        Some(Frame::new(header, &rest[HEADER_BYTES..HEADER_BYTES + body_bytes]))
    }

    /// Returns whether all frames were returned.
    pub fn is_empty(&self) -> bool {
        self.position == self.run.len()
    }
}

/// The client's codec: decodes responses. Requests encode themselves ([`Request::compose`](super::Request::compose)).
#[derive(Debug, Default)]
pub struct ResponseCodec;

impl ResponseCodec {
    /// Takes one response from the front of the buffer; `None` if it is incomplete.
    pub fn decode(&mut self, source: &mut BytesMut) -> Result<Option<ResponseFrame>, DecodeError> {
        let Some(header) = Header::read(source) else {
            return Ok(None);
        };
        if header.magic != RESPONSE_MAGIC {
            if source.starts_with(b"HTTP/") {
                return Err(DecodeError::Http);
            }
            return Err(DecodeError::WrongMagic { found: header.magic, expected: RESPONSE_MAGIC });
        }
        let body_bytes = header.body_bytes as usize;
        if body_bytes > RESPONSE_BODY_BYTES_MAX {
            return Err(DecodeError::BodyTooLong {
                announced: header.body_bytes,
                limit: RESPONSE_BODY_BYTES_MAX,
            });
        }
        let frame_bytes = HEADER_BYTES + body_bytes;
        if source.len() < frame_bytes {
            source.reserve(frame_bytes - source.len());
            return Ok(None);
        }
        let body: Bytes = source.split_to(frame_bytes).freeze().slice(HEADER_BYTES..);
        Ok(Some(ResponseFrame { opcode: header.opcode, status: header.status, opaque: header.opaque, body }))
    }
}
