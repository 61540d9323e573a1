//! Responses and their encoding (`counter.md`, "Response header").

use bytes::{BufMut, Bytes};
use thiserror::Error;

use super::header::{Header, Opaque, RESPONSE_MAGIC};
use super::layout::{Fields, Part, length_of};
use signalbox_model::Status;

/// One response of the server (`counter.md` and `semaphore.md`, the section of each operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// Success without a body; also the end of a Dump.
    Done,
    /// Success with a number of resources: those that an Acquire acquired, or the value of a Get.
    Resources(u32),
    /// One name of a Dump.
    Entry(DumpEntry<&'a [u8]>),
    /// The response to Stats: names and values.
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
                entry.name.compose(out);
            }
            Self::Statistics(items) => {
                let body_bytes = items.iter().map(|(name, value)| 4 + name.len() + value.len()).sum();
                out.put_slice(&header(Status::NoError, body_bytes));
                for (name, value) in *items {
                    for text in [*name, value.as_str()] {
                        out.put_u16(length_of(text.as_bytes()));
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
    /// Decodes a body that is one part.
    pub(super) fn part<'a, T: Part<'a>>(&'a self) -> Result<T, BodyError> {
        T::read(&mut Fields::new(&self.body)).ok_or(BodyError)
    }

    /// Decodes an entry of a list; `None` at its end, which is a response without a body.
    pub(super) fn entry<T>(&self, read: impl FnOnce(&Bytes) -> Option<T>) -> Result<Option<T>, BodyError> {
        if self.body.is_empty() {
            return Ok(None);
        }
        read(&self.body).map(Some).ok_or(BodyError)
    }

    /// Decodes the number of resources of a successful Get or Acquire (`counter.md` and `semaphore.md`, "Get" and
    /// "Acquire").
    pub fn resources(&self) -> Result<u32, BodyError> {
        self.part()
    }

    /// Decodes one response of a Dump (`counter.md`, "Dump"); `None` at its end.
    pub fn dump_entry(&self) -> Result<Option<DumpEntry<Bytes>>, BodyError> {
        self.entry(|body| {
            let mut fields = Fields::new(body);
            let (consumption, peak) = (fields.u32()?, fields.u32()?);
            Some(DumpEntry { consumption, peak, name: body.slice_ref(fields.text()?) })
        })
    }

    /// Decodes the response to Stats (`counter.md`, "Stats"), in the server's order.
    pub fn statistics(&self) -> Result<Vec<Statistic>, BodyError> {
        let mut fields = Fields::new(&self.body);
        let mut items = Vec::new();
        while !fields.is_empty() {
            items.push(read_statistic(&mut fields).ok_or(BodyError)?);
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

/// Decodes an item of the statistics: both lengths, and then both texts.
fn read_statistic(fields: &mut Fields<'_>) -> Option<Statistic> {
    let (name_bytes, value_bytes) = (fields.length()?, fields.length()?);
    let mut text = |bytes| Some(String::from_utf8_lossy(fields.bytes(bytes)?).into_owned());
    Some(Statistic { name: text(name_bytes)?, value: text(value_bytes)? })
}
