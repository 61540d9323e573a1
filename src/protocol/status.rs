//! The status byte of a response and the sentence that goes with it.

/// How a request ended (`counter.md`, "Response status"; those that yrmcds does not know: `docs/protocol.md`,
/// "Statuses").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
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
    /// The request waited as long as it wanted, in vain.
    TimedOut = 0x23,
    /// As many requests wait as the request accepts before it, or as the server allows.
    QueueFull = 0x24,
    /// The request waited until Cancel or the end of its session ended that.
    Canceled = 0x25,
    /// The grant or the session was taken away by Revoke.
    Revoked = 0x26,
    /// The name was removed while the request waited for it.
    Removed = 0x27,
    /// There is no leased session with this number and key, or none is attached.
    NoSuchSession = 0x28,
    /// The semaphore that was to be declared exists.
    AlreadyExists = 0x29,
    /// The semaphore is not of the generation that the request is for: somebody changed it meanwhile.
    GenerationDiffers = 0x2a,
    /// The semaphore is held, and the request does not want to take it from anybody.
    InUse = 0x2b,
    /// The server does not know the opcode.
    UnknownCommand = 0x81,
    /// A configured limit keeps the server from making another name.
    OutOfMemory = 0x82,
    /// Who asks may not do this.
    NotPermitted = 0x83,
    /// The server is being stopped and grants nothing more.
    ShuttingDown = 0x84,
    /// A limit of the server keeps it from remembering another session, request or watch.
    LimitReached = 0x85,
    /// What was asked for could not be written to disk, and was taken back.
    NotStored = 0x86,
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
            0x23 => Self::TimedOut,
            0x24 => Self::QueueFull,
            0x25 => Self::Canceled,
            0x26 => Self::Revoked,
            0x27 => Self::Removed,
            0x28 => Self::NoSuchSession,
            0x29 => Self::AlreadyExists,
            0x2a => Self::GenerationDiffers,
            0x2b => Self::InUse,
            0x81 => Self::UnknownCommand,
            0x82 => Self::OutOfMemory,
            0x83 => Self::NotPermitted,
            0x84 => Self::ShuttingDown,
            0x85 => Self::LimitReached,
            0x86 => Self::NotStored,
            _ => return None,
        })
    }

    /// The byte that stands for the status on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The text that an error response carries as its body, the same to the byte as yrmcds' where it has the status.
    pub fn message(self) -> &'static str {
        match self {
            Self::NoError => "",
            Self::NotFound => "Not found",
            Self::InvalidArguments => "Invalid arguments",
            Self::ResourceNotAvailable => "Resource not available",
            Self::NotAcquired => "Not acquired",
            Self::TimedOut => "Timed out",
            Self::QueueFull => "Queue full",
            Self::Canceled => "Canceled",
            Self::Revoked => "Revoked",
            Self::Removed => "Removed",
            Self::NoSuchSession => "No such session",
            Self::AlreadyExists => "Already exists",
            Self::GenerationDiffers => "Generation differs",
            Self::InUse => "In use",
            Self::UnknownCommand => "Unknown command",
            Self::OutOfMemory => "OutOfMemory",
            Self::NotPermitted => "Not permitted",
            Self::ShuttingDown => "Shutting down",
            Self::LimitReached => "Limit reached",
            Self::NotStored => "Not stored",
        }
    }
}
