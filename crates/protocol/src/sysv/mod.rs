//! The operations of System V semaphore sets, `0x60` to `0x67` (`docs/protocol.md`, "System V semaphores").

mod answer;
mod list;
mod opcode;
mod request;

pub use answer::{compose_call, compose_opened_process};
pub use list::{compose_listed_set, compose_listed_user};
pub use opcode::SysvOpcode;
pub use request::{Groups, Operations, SysvRequest, WAIT_FOREVER_MS};

/// The most groups of a process (`docs/protocol.md`, "OpenProcess").
pub const GROUPS_MAX: usize = 1024;
