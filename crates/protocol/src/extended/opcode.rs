//! The opcodes of the extended operations.

use signalbox_model::{Operation, Revocation, ServiceChange, codes};

codes! {
    /// The operations that this server adds to yrmcds' protocols, with their codes (`docs/protocol.md`, "Extended
    /// operations").
    pub enum ExtendedOpcode: u8 {
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
        /// Revokes the leased sessions of clients with these addresses.
        RevokeClient = 0x48,
        /// Returns all stored records as they are at one moment.
        Export = 0x49,
        /// Revokes the leased sessions of clients with this identity.
        RevokeIdentity = 0x4a,
        /// Cancels a waiting request, or those of a session, for an administrator.
        CancelWaiting = 0x4b,
        /// Returns whether the client may administer a name.
        MayAdminister = 0x4c,
        /// Lists what sessions hold and wait for.
        Held = 0x4d,
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
        /// Pauses or resumes a declared semaphore.
        Pause = 0x55,
        /// Takes a slot of a declared semaphore out of service, or puts it back.
        SetSlot = 0x56,
        /// Returns where clients reach the nodes of the cluster.
        Where = 0x71,
    }
}

impl ExtendedOpcode {
    /// Returns the opcode of an operation.
    pub fn of(operation: &Operation<'_>) -> Self {
        match operation {
            Operation::Declare { .. } => Self::Declare,
            Operation::Resize { .. } => Self::Resize,
            Operation::Remove { .. } => Self::Remove,
            Operation::ChangeService { how: ServiceChange::Pause | ServiceChange::Resume, .. } => Self::Pause,
            Operation::ChangeService {
                how: ServiceChange::SlotOut(_) | ServiceChange::SlotIn(_), ..
            } => Self::SetSlot,
            Operation::DeleteCounter { .. } => Self::DeleteCounter,
            Operation::Cancel(_) => Self::CancelWaiting,
            Operation::Revoke { what: Revocation::Grant(_) | Revocation::Session(_), .. } => Self::Revoke,
            Operation::Revoke { what: Revocation::Addresses(_), .. } => Self::RevokeClient,
            Operation::Revoke { what: Revocation::Identity(_), .. } => Self::RevokeIdentity,
        }
    }
}
