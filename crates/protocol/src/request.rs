//! Requests of yrmcds' protocols and their encoding (`counter.md`, "Request header").

use super::extended::{Extended, ExtendedOpcode};
use super::header::{Header, Opaque, Opcode, REQUEST_MAGIC};
use super::layout::{Fields, Part, requests};
use super::sysv::{SysvOpcode, SysvRequest};
use signalbox_model::Status;

/// One complete frame that was received. Its body borrows from the receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: Header,
    body: &'a [u8],
}

impl<'a> Frame<'a> {
    #[inline]
    pub(super) fn new(header: Header, body: &'a [u8]) -> Self {
        Self { header, body }
    }

    /// The opcode, which may be unknown. The response repeats it.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.header.opcode
    }

    /// The four bytes that the response repeats.
    #[inline]
    pub fn opaque(&self) -> Opaque {
        self.header.opaque
    }

    /// The operation that the frame asks for, by its magic and its opcode; the body is not read yet.
    #[inline]
    pub fn class(&self) -> FrameClass {
        if self.header.magic != REQUEST_MAGIC {
            return FrameClass::Unknown(Status::InvalidArguments);
        }
        let code = self.header.opcode;
        let plain = Opcode::from_code(code).map(FrameClass::Plain);
        let class = plain
            .or_else(|| ExtendedOpcode::from_code(code).map(FrameClass::Extended))
            .or_else(|| SysvOpcode::from_code(code).map(FrameClass::Sysv));
        class.unwrap_or(FrameClass::Unknown(Status::UnknownCommand))
    }

    /// Reads a request of the class [`FrameClass::Plain`]. A frame that is not a valid one gives the status to answer
    /// with. Bytes of the body beyond those that the operation defines are ignored, as in yrmcds.
    #[inline]
    pub fn parse(&self) -> Result<Request<'a>, Status> {
        match self.class() {
            FrameClass::Plain(opcode) => Request::parse(opcode, self.body).ok_or(Status::InvalidArguments),
            FrameClass::Extended(_) | FrameClass::Sysv(_) => Err(Status::UnknownCommand),
            FrameClass::Unknown(status) => Err(status),
        }
    }

    /// Reads a request of the class [`FrameClass::Extended`] (`docs/protocol.md`, "Extended operations"). It is separate
    /// from [`Self::parse`] because an extended request is larger, and plain requests must not pay for that. A frame that
    /// is not a valid extended request gives the status to answer with.
    #[cold]
    pub fn parse_extended(&self) -> Result<Extended<'a>, Status> {
        match self.class() {
            FrameClass::Extended(opcode) => Extended::parse(opcode, self.body),
            FrameClass::Plain(_) | FrameClass::Sysv(_) => Err(Status::UnknownCommand),
            FrameClass::Unknown(status) => Err(status),
        }
    }

    /// Reads a request of the class [`FrameClass::Sysv`] (`docs/protocol.md`, "System V semaphores"). A frame that is not
    /// a valid one gives the status to answer with.
    #[cold]
    pub fn parse_sysv(&self) -> Result<SysvRequest<'a>, Status> {
        match self.class() {
            FrameClass::Sysv(opcode) => SysvRequest::parse(opcode, self.body),
            FrameClass::Plain(_) | FrameClass::Extended(_) => Err(Status::UnknownCommand),
            FrameClass::Unknown(status) => Err(status),
        }
    }
}

/// The operation that a frame asks for, as far as its header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameClass {
    /// An operation of yrmcds' two documents, to be read by [`Frame::parse`].
    Plain(Opcode),
    /// An extended operation, to be read by [`Frame::parse_extended`].
    Extended(ExtendedOpcode),
    /// An operation of System V semaphores, to be read by [`Frame::parse_sysv`].
    Sysv(SysvOpcode),
    /// No operation of this server, with the status to answer with.
    Unknown(Status),
}

requests! {
    /// A request of the two documents. Names are 1 to [`NAME_BYTES_MAX`](crate::NAME_BYTES_MAX) bytes, any bytes; amounts are
    /// numbers of resources.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Request<'a>: Opcode {
        /// Does nothing.
        Noop,
        /// `counter.md` and `semaphore.md`, "Get".
        Get {
            /// The name to read.
            name: &'a [u8],
        },
        /// `counter.md` and `semaphore.md`, "Acquire".
        Acquire {
            /// The number of resources to acquire; at least 1, at most `maximum`.
            resources: u32,
            /// The maximum of a counter for this request, or the capacity of a semaphore that this request creates.
            maximum: u32,
            /// The counter or semaphore, which is created if it does not exist.
            name: &'a [u8],
        },
        /// `counter.md` and `semaphore.md`, "Release".
        Release {
            /// The number of resources to release; may be 0.
            resources: u32,
            /// The counter or semaphore.
            name: &'a [u8],
        },
        /// `counter.md`, "Stats".
        Stats,
        /// `counter.md`, "Dump".
        Dump,
    }
}

impl<'a> Request<'a> {
    /// Decodes a body; `None` if it breaks a rule of the operation.
    #[inline]
    fn parse(opcode: Opcode, body: &'a [u8]) -> Option<Self> {
        Self::read(opcode, &mut Fields::new(body)).filter(|request| match *request {
            Self::Noop | Self::Stats | Self::Dump => true,
            Self::Get { name } | Self::Release { name, .. } => !name.is_empty(),
            Self::Acquire { resources, maximum, name } => {
                (1..=maximum).contains(&resources) && !name.is_empty()
            }
        })
    }
}
