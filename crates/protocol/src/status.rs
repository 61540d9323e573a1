//! The status byte of a response and its message.

use signalbox_model::codes;

codes! {
    /// The result of a request (`counter.md`, "Response status"; the statuses of this server alone: `docs/protocol.md`,
    /// "Statuses").
    pub enum Status: u8 {
        /// The request succeeded.
        NoError = 0x00,
        /// The name does not exist.
        NotFound = 0x01,
        /// The request breaks a rule of its operation and can never succeed.
        InvalidArguments = 0x04,
        /// The resources are in use; the same request may succeed later.
        ResourceNotAvailable = 0x21,
        /// The connection or session holds fewer resources than the request releases, or does not hold the grant.
        NotAcquired = 0x22,
        /// The request waited until its timeout and was not granted.
        TimedOut = 0x23,
        /// As many requests wait in the queue as the request accepts, or as the server allows.
        QueueFull = 0x24,
        /// Cancel, or the end of the session, removed the request from the queue.
        Canceled = 0x25,
        /// An administrator revoked the grant or the session.
        Revoked = 0x26,
        /// The name was removed while the request waited for it.
        Removed = 0x27,
        /// No leased session with this number and key exists, or none is attached.
        NoSuchSession = 0x28,
        /// The semaphore to be declared exists already.
        AlreadyExists = 0x29,
        /// The semaphore was changed since the generation that the request expects.
        GenerationDiffers = 0x2a,
        /// The semaphore is held, and the request only removes an idle one.
        InUse = 0x2b,
        /// The resources of the name are not numbered, or not that far.
        NoSuchSlot = 0x2c,
        /// The request waits at this place; its answer comes later. Only clients that ask for places get it.
        Queued = 0x2d,
        /// The server does not know the opcode.
        UnknownCommand = 0x81,
        /// The configured limit of names is reached.
        OutOfMemory = 0x82,
        /// The server does not permit the operation to this client.
        NotPermitted = 0x83,
        /// The server is shutting down and grants nothing more.
        ShuttingDown = 0x84,
        /// A limit of sessions, requests or watches is reached.
        LimitReached = 0x85,
        /// The change could not be written to disk, and was rolled back.
        NotStored = 0x86,
        /// The server accepts no requests without TLS from this client.
        TlsRequired = 0x87,
        /// The stored records could not be read to their end.
        ExportFailed = 0x88,
    }
}

impl Status {
    /// The body of an error response with this status: byte for byte the text of yrmcds, if it has the status. Empty
    /// for [`Self::NoError`].
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
            Self::NoSuchSlot => "No such slot",
            Self::Queued => "Queued",
            Self::UnknownCommand => "Unknown command",
            Self::OutOfMemory => "OutOfMemory",
            Self::NotPermitted => "Not permitted",
            Self::ShuttingDown => "Shutting down",
            Self::LimitReached => "Limit reached",
            Self::NotStored => "Not stored",
            Self::TlsRequired => "TLS required",
            Self::ExportFailed => "Export failed",
        }
    }
}
