//! The operations of System V semaphore sets, `0x60` to `0x67` (`docs/protocol.md`, "System V semaphores").

mod answer;
mod list;
mod request;

use signalbox_model::codes;

pub use answer::{compose_call, compose_opened_process};
pub use list::{compose_listed_set, compose_listed_user};
pub use request::{Groups, Operations, SysvRequest, WAIT_FOREVER_MS};

/// The most groups of a process (`docs/protocol.md`, "OpenProcess").
pub const GROUPS_MAX: usize = 1024;

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
