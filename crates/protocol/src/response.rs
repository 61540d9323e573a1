//! Responses and their encoding (`counter.md`, "Response header").

use bytes::{BufMut, Bytes};
use thiserror::Error;

use super::header::{Header, Opaque, RESPONSE_MAGIC};
use signalbox_model::Status;

/// One response of the server (`counter.md` and `semaphore.md`, the section of each operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// Success without a body; also the end of a Dump.
    Done,
    /// Success with a number of resources: those that Acquire acquired, or the value that Get read.
    Resources(u32),
    /// One name of a Dump.
    Entry(DumpEntry<&'a [u8]>),
    /// The answer to Stats: names and values.
    Statistics(&'a [(&'static str, String)]),
    /// A failure; the message of the status is the body.
    Failed(Status),
}

/// A name in the response to Dump (`counter.md`, "Dump").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpEntry<N> {
    /// Resources in use now.
    pub consumption: u32,
    /// The most resources that were in use at once: in the counter's current interval, or since the semaphore was
    /// created.
    pub peak: u32,
    /// The name's bytes.
    pub name: N,
}

impl Response<'_> {
    /// Appends the encoded frame to `out`, as the response to a request with this opcode and opaque (`counter.md`,
    /// "Response header").
    #[inline]
    pub fn compose(&self, opcode: u8, opaque: Opaque, out: &mut Vec<u8>) {
        let header = |status: Status, body_bytes: usize| {
            Header {
                magic: RESPONSE_MAGIC,
                opcode,
                status: status.code(),
                body_bytes: u32::try_from(body_bytes).expect("bodies of the server are far below 4 GiB"),
                opaque,
            }
            .bytes()
        };
        match self {
            Self::Done => out.extend_from_slice(&header(Status::NoError, 0)),
            Self::Resources(resources) => {
                let [h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11] = header(Status::NoError, 4);
                let [r0, r1, r2, r3] = resources.to_be_bytes();
                out.extend_from_slice(&[h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, r0, r1, r2, r3]);
            }
            Self::Entry(entry) => {
                out.put_slice(&header(Status::NoError, 10 + entry.name.len()));
                out.put_u32(entry.consumption);
                out.put_u32(entry.peak);
                out.put_u16(u16::try_from(entry.name.len()).expect("a name has at most 65535 bytes"));
                out.put_slice(entry.name);
            }
            Self::Statistics(items) => {
                let body_bytes = items.iter().map(|(name, value)| 4 + name.len() + value.len()).sum();
                out.put_slice(&header(Status::NoError, body_bytes));
                for (name, value) in *items {
                    for text in [*name, value.as_str()] {
                        out.put_u16(u16::try_from(text.len()).expect("statistics are short texts"));
                    }
                    out.put_slice(name.as_bytes());
                    out.put_slice(value.as_bytes());
                }
            }
            Self::Failed(status) => {
                let message = status.message().as_bytes();
                out.put_slice(&header(*status, message.len()));
                out.put_slice(message);
            }
        }
    }
}

/// One response that a client received. The request decides how its body is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseFrame {
    /// The opcode of the request, repeated.
    pub opcode: u8,
    /// The status byte; see [`Status::from_code`].
    pub status: u8,
    /// The opaque of the request, repeated.
    pub opaque: Opaque,
    /// The body: the result on success, a message on failure.
    pub body: Bytes,
}

/// An item of the statistics (`counter.md`, "Stats"; the items of this server: `docs/protocol.md`, "Items of Stats").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// The item's name.
    pub name: String,
    /// Its value, as text.
    pub value: String,
}

/// The body of a successful response does not have the format of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the server's response is malformed for its operation; check that it is a server of yrmcds' counter or semaphore \
    protocol"
)]
pub struct BodyError;

impl ResponseFrame {
    /// Decodes the number of resources of a successful Get or Acquire (`counter.md` and `semaphore.md`, "Get" and
    /// "Acquire").
    pub fn resources(&self) -> Result<u32, BodyError> {
        let value = self.body.first_chunk().ok_or(BodyError)?;
        Ok(u32::from_be_bytes(*value))
    }

    /// Decodes one response of a Dump (`counter.md`, "Dump"); `None` at its end.
    pub fn dump_entry(&self) -> Result<Option<DumpEntry<Bytes>>, BodyError> {
        if self.body.is_empty() {
            return Ok(None);
        }
        let fixed: &[u8; 10] = self.body.first_chunk().ok_or(BodyError)?;
        let [c0, c1, c2, c3, p0, p1, p2, p3, n0, n1] = *fixed;
        let end = fixed.len() + usize::from(u16::from_be_bytes([n0, n1]));
        if end > self.body.len() {
            return Err(BodyError);
        }
        Ok(Some(DumpEntry {
            consumption: u32::from_be_bytes([c0, c1, c2, c3]),
            peak: u32::from_be_bytes([p0, p1, p2, p3]),
            name: self.body.slice(fixed.len()..end),
        }))
    }

    /// Decodes the response to Stats (`counter.md`, "Stats"), in the server's order.
    pub fn statistics(&self) -> Result<Vec<Statistic>, BodyError> {
        let mut rest = &self.body[..];
        let mut items = Vec::new();
        while !rest.is_empty() {
            let ([n0, n1, v0, v1], texts) = rest.split_first_chunk().ok_or(BodyError)?;
            let name_bytes = usize::from(u16::from_be_bytes([*n0, *n1]));
            let value_bytes = usize::from(u16::from_be_bytes([*v0, *v1]));
            let (name, texts) = texts.split_at_checked(name_bytes).ok_or(BodyError)?;
            let (value, texts) = texts.split_at_checked(value_bytes).ok_or(BodyError)?;
            items.push(Statistic {
                name: String::from_utf8_lossy(name).into_owned(),
                value: String::from_utf8_lossy(value).into_owned(),
            });
            rest = texts;
        }
        Ok(items)
    }

    /// Appends the encoded frame to `out`; the inverse of decoding it.
    pub fn compose(&self, out: &mut Vec<u8>) {
        let (opcode, status, opaque) = (self.opcode, self.status, self.opaque);
        let header = Header { magic: RESPONSE_MAGIC, opcode, status, body_bytes: 0, opaque };
        header.compose_before(out, |out| out.put_slice(&self.body));
    }
}
