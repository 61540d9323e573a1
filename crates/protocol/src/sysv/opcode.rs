//! The opcodes of the System V operations.

use signalbox_model::codes;

codes! {
    /// The operations on semaphore sets, with their codes (`docs/protocol.md`, "System V semaphores").
    pub enum SysvOpcode: u8 {
        /// Makes a process, the owner of adjustments.
        OpenProcess = 0x60,
        /// Continues a process on this connection.
        AttachProcess = 0x61,
        /// Keeps a process for a while although its connections end.
        KeepProcess = 0x62,
        /// Finds or creates a set.
        SemGet = 0x63,
        /// Performs a list of operations, all or none.
        SemOp = 0x64,
        /// Reads or changes a set.
        SemCtl = 0x65,
        /// Lists all sets.
        ListSets = 0x66,
        /// Lists the processes that wait for a set or have adjustments of it.
        ListUsers = 0x67,
    }
}
