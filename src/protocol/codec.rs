//! Framing: where a frame ends, and which frames end the conversation.
//!
//! The server's side yields all complete frames that a read brought as one [`Frames`], so that a burst of requests
//! costs one split of the buffer and requests are parsed in place. The client's side yields one response at a time.

use bytes::{Bytes, BytesMut};
use thiserror::Error;
use tokio_util::codec::{Decoder, Encoder};

use super::header::{HEADER_BYTES, Header, Opaque, REQUEST_MAGIC, RESPONSE_MAGIC};
use super::request::{Frame, Request};
use super::response::ResponseFrame;

/// Longest body of a request in bytes; a longer one ends the connection when it is announced.
pub const REQUEST_BODY_BYTES_MAX: usize = 128 * 1024;

/// Longest body of a response that a client accepts, in bytes. The longest about one name is a grant of all the slots
/// that a semaphore can have, 128 KiB; an AcquireAll may take those of seven such names, and the rest is room for
/// servers to come.
pub const RESPONSE_BODY_BYTES_MAX: usize = 1024 * 1024;

/// What makes a byte stream unusable: where the next frame starts is not known any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A frame does not start with the magic byte of its kind.
    #[error(
        "a frame starts with the byte {found:#04x} instead of {expected:#04x}; the peer speaks another protocol"
    )]
    WrongMagic {
        /// The byte that stands there.
        found: u8,
        /// The byte that belongs there.
        expected: u8,
    },
    /// A header announces more than the limit.
    #[error("a frame announces a body of {announced} bytes; the longest allowed is {limit}")]
    BodyTooLong {
        /// Bytes that the header announces.
        announced: u32,
        /// Bytes that are allowed.
        limit: usize,
    },
    /// Reading failed. The codec itself reads nothing; `tokio-util` asks for this variant.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The server's codec: requests in. Decoding gives every complete frame of the buffer at once; a frame that ends
/// the conversation gives the frames before it first, and then the error.
///
/// A header with the wrong magic is the last frame of its run, without a body, so that it can be answered. Nothing is
/// reserved for a body that is only announced.
#[derive(Debug, Default)]
pub struct RequestCodec {
    /// Set by the frame that ended the conversation, reported once the frames before it were taken.
    failure: Option<DecodeError>,
}

impl Decoder for RequestCodec {
    type Item = Frames;
    type Error = DecodeError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Frames>, DecodeError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut end = 0;
        while let Some(header) = Header::read(&source[end..]) {
            if header.magic != REQUEST_MAGIC {
                self.failure = Some(DecodeError::WrongMagic { found: header.magic, expected: REQUEST_MAGIC });
                end += HEADER_BYTES;
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
            let frame_bytes = HEADER_BYTES + body_bytes;
            if source.len() - end < frame_bytes {
                break;
            }
            end += frame_bytes;
        }
        if end > 0 {
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
    /// The next frame; it borrows from the run, so that nothing is copied.
    #[expect(
        clippy::should_implement_trait,
        reason = "the frames borrow from the run, which Iterator cannot say"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<Frame<'_>> {
        let header = Header::read(&self.run[self.position..])?;
        let start = self.position + HEADER_BYTES;
        // A header with the wrong magic closes a run, and its body is not known to be one.
        let body_bytes = if header.magic == REQUEST_MAGIC { header.body_bytes as usize } else { 0 };
        self.position = start + body_bytes;
        Some(Frame::new(header, &self.run[start..self.position]))
    }

    /// Whether every frame was taken.
    pub fn is_empty(&self) -> bool {
        self.position == self.run.len()
    }
}

/// The client's codec: requests out, responses in.
#[derive(Debug, Default)]
pub struct ResponseCodec;

impl Decoder for ResponseCodec {
    type Item = ResponseFrame;
    type Error = DecodeError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<ResponseFrame>, DecodeError> {
        let Some(header) = Header::read(source) else {
            return Ok(None);
        };
        if header.magic != RESPONSE_MAGIC {
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

impl Encoder<(Opaque, Request<'_>)> for ResponseCodec {
    type Error = DecodeError;

    fn encode(
        &mut self,
        (opaque, request): (Opaque, Request<'_>),
        out: &mut BytesMut,
    ) -> Result<(), DecodeError> {
        request.compose(opaque, out);
        Ok(())
    }
}
