//! The encoding of a load for a server: yrmcds' protocols here, others in the benchmarks.

use bytes::BytesMut;

use super::error::LoadError;
use signalbox_client::Token;
use signalbox_model::Status;
pub(super) use signalbox_protocol::Request;
use signalbox_protocol::{EXTENDED_VERSION, Extended, Features, Opaque, ResponseCodec};

/// The label, in listings of sessions, of connections that present a token.
const LABEL: &[u8] = b"signalbox bench";

/// The number of a request on its connection, counted from 0 and wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence(pub u32);

/// The parts of a response that a generator uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of its request, if the protocol has one.
    pub sequence: Option<Sequence>,
    /// The code of the result. Reports show the text of the [`Status`] with this code, or the number if there is none.
    pub status: u8,
}

/// A protocol with one response to each request, in the order of the requests.
pub trait Dialect {
    /// Appends the first request of a connection, if the dialect has one. The connection waits for the answer before it
    /// sends others.
    fn introduce(&self, _out: &mut Vec<u8>) {}

    /// Appends a request to `out`.
    fn compose(&self, sequence: Sequence, request: Request<'_>, out: &mut Vec<u8>);

    /// Takes the first response from `received`; `None` if it is incomplete.
    fn parse(&self, received: &mut BytesMut) -> Result<Option<Answer>, LoadError>;
}

/// yrmcds' counter and semaphore protocols, which signalbox's server uses.
#[derive(Clone, Debug, Default)]
pub struct Yrmcds {
    /// The token of the connections; `None`: they have the rights of clients without a token.
    pub token: Option<Token>,
}

impl Dialect for Yrmcds {
    fn introduce(&self, out: &mut Vec<u8>) {
        if let Some(token) = &self.token {
            let hello = Extended::Hello {
                version: EXTENDED_VERSION,
                label: LABEL,
                credentials: token.credentials(),
                features: Features::default(),
            };
            hello.compose(Opaque([0; 4]), out);
        }
    }

    fn compose(&self, sequence: Sequence, request: Request<'_>, out: &mut Vec<u8>) {
        request.compose(Opaque(sequence.0.to_be_bytes()), out);
    }

    fn parse(&self, received: &mut BytesMut) -> Result<Option<Answer>, LoadError> {
        let Some(frame) = ResponseCodec.decode(received)? else { return Ok(None) };
        let sequence = Some(Sequence(u32::from_be_bytes(frame.opaque.0)));
        Ok(Some(Answer { sequence, status: frame.status }))
    }
}

impl Answer {
    /// Returns whether the server admits the connection: it accepts the token, or is a yrmcdsd, which has no tokens.
    pub(super) fn is_welcome(&self) -> bool {
        self.is_success() || self.status == Status::UnknownCommand.code()
    }

    /// Returns whether the request succeeded.
    pub fn is_success(&self) -> bool {
        self.status == Status::NoError.code()
    }
}
