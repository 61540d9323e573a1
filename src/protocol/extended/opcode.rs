//! The opcodes of the extended operations.

/// The operations that this server adds to yrmcds' protocols, with their codes (`docs/protocol.md`, "Extended
/// operations").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExtendedOpcode {
    /// Introduces the client, and returns the server's features and limits.
    Hello = 0x20,
    /// Opens a leased session.
    OpenSession = 0x21,
    /// Attaches a leased session to this connection.
    AttachSession = 0x22,
    /// Renews the lease, and returns its duration.
    KeepAlive = 0x23,
    /// Closes the attached session.
    CloseSession = 0x24,
    /// Acquires resources of one name, in the order of its queue.
    AcquireGrant = 0x30,
    /// Releases a grant.
    ReleaseGrant = 0x31,
    /// Cancels a request that waits.
    Cancel = 0x32,
    /// Acquires resources of several names, all or none.
    AcquireAll = 0x33,
    /// Returns the holder and the state of a grant.
    VerifyGrant = 0x34,
    /// Lists the holders of a name.
    Holders = 0x40,
    /// Lists the waiters of a name.
    Waiters = 0x41,
    /// Reports the events of a name, or of all names with a prefix.
    Watch = 0x42,
    /// Ends a Watch.
    Unwatch = 0x43,
    /// Revokes a grant or a session.
    Revoke = 0x44,
    /// Returns the usage of a name, its capacity, and the length of its queue.
    Inspect = 0x45,
    /// Deletes a counter that is not in use.
    DeleteCounter = 0x46,
    /// Lists all sessions.
    Sessions = 0x47,
    /// Revokes the leased sessions of a client.
    RevokeClient = 0x48,
    /// Returns all stored records as they are at one moment.
    Export = 0x49,
    /// Revokes the leased sessions of a client with this identity.
    RevokeIdentity = 0x4a,
    /// Declares semaphores, which exist until they are removed.
    Declare = 0x50,
    /// Changes the capacity of a declared semaphore.
    Resize = 0x51,
    /// Removes a declared semaphore.
    Remove = 0x52,
    /// Waits until a name or a slot is idle.
    AwaitIdle = 0x53,
    /// Lists the declared semaphores.
    List = 0x54,
    /// Pauses a declared semaphore, or resumes it.
    Pause = 0x55,
    /// Takes a slot of a declared semaphore out of service, or puts it back.
    SetSlot = 0x56,
    /// Returns where clients reach the nodes of the cluster.
    Where = 0x71,
}

impl ExtendedOpcode {
    /// The operation with this code; `None` if it is unknown.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x20 => Self::Hello,
            0x21 => Self::OpenSession,
            0x22 => Self::AttachSession,
            0x23 => Self::KeepAlive,
            0x24 => Self::CloseSession,
            0x30 => Self::AcquireGrant,
            0x31 => Self::ReleaseGrant,
            0x32 => Self::Cancel,
            0x33 => Self::AcquireAll,
            0x34 => Self::VerifyGrant,
            0x40 => Self::Holders,
            0x41 => Self::Waiters,
            0x42 => Self::Watch,
            0x43 => Self::Unwatch,
            0x44 => Self::Revoke,
            0x45 => Self::Inspect,
            0x46 => Self::DeleteCounter,
            0x47 => Self::Sessions,
            0x48 => Self::RevokeClient,
            0x49 => Self::Export,
            0x4a => Self::RevokeIdentity,
            0x50 => Self::Declare,
            0x51 => Self::Resize,
            0x52 => Self::Remove,
            0x53 => Self::AwaitIdle,
            0x54 => Self::List,
            0x55 => Self::Pause,
            0x56 => Self::SetSlot,
            0x71 => Self::Where,
            _ => return None,
        })
    }

    /// The code of the operation on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }
}
