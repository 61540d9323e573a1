//! What the same load looks like on the wire of one kind of server or another.

use bytes::BytesMut;
use tokio_util::codec::Decoder;

use super::error::LoadError;
use crate::client::{Maximum, Resources};
use crate::protocol::{Opaque, Request, ResponseCodec, Status};

/// The number of a request on its connection, counted from 0 and wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence(pub u32);

/// One request of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// A sign of life.
    Noop,
    /// The value of a name.
    Get {
        /// Whose value.
        name: &'a [u8],
    },
    /// Some resources of a name.
    Acquire {
        /// What to take from.
        name: &'a [u8],
        /// How many.
        resources: Resources,
        /// Of how many.
        maximum: Maximum,
    },
    /// What was acquired of a name, back.
    Release {
        /// What to give back to.
        name: &'a [u8],
        /// How many.
        resources: Resources,
    },
}

/// What a generator has to know of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request that it answers, where the protocol says so.
    pub sequence: Option<Sequence>,
    /// How the request ended, as the code of a [`Status`]; what is none of them is shown as a number.
    pub status: u8,
}

/// A protocol in which every request has one answer, and answers come in the order of requests.
pub trait Dialect {
    /// Appends a request to `out`.
    fn compose(&self, sequence: Sequence, ask: Ask<'_>, out: &mut BytesMut);

    /// Takes the first answer from `received`; `None` where it is not complete.
    fn parse(&self, received: &mut BytesMut) -> Result<Option<Answer>, LoadError>;
}

/// yrmcds' counter and semaphore protocols: those of this server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Yrmcds;

impl Dialect for Yrmcds {
    fn compose(&self, sequence: Sequence, ask: Ask<'_>, out: &mut BytesMut) {
        let request = match ask {
            Ask::Noop => Request::Noop,
            Ask::Get { name } => Request::Get { name },
            Ask::Acquire { name, resources, maximum } => {
                Request::Acquire { name, resources: resources.0, maximum: maximum.0 }
            }
            Ask::Release { name, resources } => Request::Release { name, resources: resources.0 },
        };
        request.compose(Opaque(sequence.0.to_be_bytes()), out);
    }

    fn parse(&self, received: &mut BytesMut) -> Result<Option<Answer>, LoadError> {
        let Some(frame) = ResponseCodec.decode(received)? else { return Ok(None) };
        let sequence = Some(Sequence(u32::from_be_bytes(frame.opaque.0)));
        Ok(Some(Answer { sequence, status: frame.status }))
    }
}

impl Answer {
    /// Whether the request did what it was to do.
    pub fn is_success(&self) -> bool {
        self.status == Status::NoError.code()
    }
}
