//! The status byte of a response and the sentence that goes with it.

/// How a request ended (`counter.md`, "Response status").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The request succeeded.
    NoError = 0x00,
    /// No counter or semaphore has this name.
    NotFound = 0x01,
    /// The request breaks a rule of its operation, so that it can never succeed as it is.
    InvalidArguments = 0x04,
    /// The resources are in use; the same request may succeed later.
    ResourceNotAvailable = 0x21,
    /// The connection holds fewer resources than it wants to give back.
    NotAcquired = 0x22,
    /// The server does not know the opcode.
    UnknownCommand = 0x81,
    /// A configured limit keeps the server from making another name.
    OutOfMemory = 0x82,
}

impl Status {
    /// The status with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::NoError,
            0x01 => Self::NotFound,
            0x04 => Self::InvalidArguments,
            0x21 => Self::ResourceNotAvailable,
            0x22 => Self::NotAcquired,
            0x81 => Self::UnknownCommand,
            0x82 => Self::OutOfMemory,
            _ => return None,
        })
    }

    /// The byte that stands for the status on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The text that an error response carries as its body, the same to the byte as yrmcds'.
    pub fn message(self) -> &'static str {
        match self {
            Self::NoError => "",
            Self::NotFound => "Not found",
            Self::InvalidArguments => "Invalid arguments",
            Self::ResourceNotAvailable => "Resource not available",
            Self::NotAcquired => "Not acquired",
            Self::UnknownCommand => "Unknown command",
            Self::OutOfMemory => "OutOfMemory",
        }
    }
}
