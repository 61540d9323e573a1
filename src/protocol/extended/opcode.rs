//! The codes of the extended operations.

/// The operations that this server has beyond the two documents (`docs/protocol.md`, "Extended operations"), with
/// their codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExtendedOpcode {
    /// Tells the server who is there, and the client what the server can do.
    Hello = 0x20,
    /// Makes a leased session.
    OpenSession = 0x21,
    /// Continues a leased session on this connection.
    AttachSession = 0x22,
    /// Renews the lease, and tells how long it lasts.
    KeepAlive = 0x23,
    /// Ends the attached session.
    CloseSession = 0x24,
    /// Takes resources of one name, in turn.
    AcquireGrant = 0x30,
    /// Gives a grant back.
    ReleaseGrant = 0x31,
    /// Ends the waiting of a request.
    Cancel = 0x32,
    /// Takes resources of several names, all or none.
    AcquireAll = 0x33,
    /// Tells whether a grant is still held.
    VerifyGrant = 0x34,
    /// Lists who holds a name.
    Holders = 0x40,
    /// Lists who waits for a name.
    Waiters = 0x41,
    /// Reports what happens to a name, or to all that start alike.
    Watch = 0x42,
    /// Ends a Watch.
    Unwatch = 0x43,
    /// Takes a grant or a session away from its holder.
    Revoke = 0x44,
    /// Makes semaphores that exist until they are removed.
    Declare = 0x50,
    /// Changes the capacity of a declared semaphore.
    Resize = 0x51,
    /// Removes a declared semaphore.
    Remove = 0x52,
    /// Waits until a name, or a slot, is not in use.
    AwaitIdle = 0x53,
    /// Lists the declared semaphores.
    List = 0x54,
}

impl ExtendedOpcode {
    /// The operation with this code, if there is one.
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
            0x50 => Self::Declare,
            0x51 => Self::Resize,
            0x52 => Self::Remove,
            0x53 => Self::AwaitIdle,
            0x54 => Self::List,
            _ => return None,
        })
    }

    /// The byte that stands for the operation on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }
}
