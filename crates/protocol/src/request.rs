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

    /// The opaque, which the response repeats.
    #[inline]
    pub fn opaque(&self) -> Opaque {
        self.header.opaque
    }

    /// The class of the frame, by its magic byte and its opcode. The body is not read.
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

    /// Decodes a request of the class [`FrameClass::Plain`]. If it is not valid, the error is the status of the
    /// response. Bytes after those that the operation defines are ignored, as in yrmcds.
    #[inline]
    pub fn parse(&self) -> Result<Request<'a>, Status> {
        match self.class() {
            FrameClass::Plain(opcode) => Request::parse(opcode, self.body).ok_or(Status::InvalidArguments),
            FrameClass::Extended(_) | FrameClass::Sysv(_) => Err(Status::UnknownCommand),
            FrameClass::Unknown(status) => Err(status),
        }
    }

    /// Decodes a request of the class [`FrameClass::Extended`] (`docs/protocol.md`, "Extended operations"). If it is
    /// not valid, the error is the status of the response. This is separate from [`Self::parse`] because an extended
    /// request is larger, and plain requests must not pay for that.
    #[cold]
    pub fn parse_extended(&self) -> Result<Extended<'a>, Status> {
        match self.class() {
            FrameClass::Extended(opcode) => Extended::parse(opcode, self.body),
            FrameClass::Plain(_) | FrameClass::Sysv(_) => Err(Status::UnknownCommand),
            FrameClass::Unknown(status) => Err(status),
        }
    }

    /// Decodes a request of the class [`FrameClass::Sysv`] (`docs/protocol.md`, "System V semaphores"). If it is not
    /// valid, the error is the status of the response.
    #[cold]
    pub fn parse_sysv(&self) -> Result<SysvRequest<'a>, Status> {
        match self.class() {
            FrameClass::Sysv(opcode) => SysvRequest::parse(opcode, self.body),
            FrameClass::Plain(_) | FrameClass::Extended(_) => Err(Status::UnknownCommand),
            FrameClass::Unknown(status) => Err(status),
        }
    }
}

/// The operation of a frame, by its header, and the method that decodes the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameClass {
    /// An operation of yrmcds' two documents; [`Frame::parse`] decodes it.
    Plain(Opcode),
    /// An extended operation; [`Frame::parse_extended`] decodes it.
    Extended(ExtendedOpcode),
    /// An operation of System V semaphores; [`Frame::parse_sysv`] decodes it.
    Sysv(SysvOpcode),
    /// Not an operation of this server; the status of the response.
    Unknown(Status),
}

requests! {
    /// A request of yrmcds' two documents. Names are 1 to [`NAME_BYTES_MAX`](crate::NAME_BYTES_MAX) arbitrary bytes.
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
