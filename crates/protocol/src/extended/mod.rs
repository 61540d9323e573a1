//! The extended operations, `0x20` to `0x56` and `0x71`: sessions, grants with wait queues, listings, watches, declared
//! semaphores, and the nodes of a cluster (`docs/protocol.md`, "Extended operations").
//!
//! They are separate from yrmcds' operations, whose requests are smaller and faster to parse.

mod claims;
mod declarations;
mod entries;
mod features;
mod notice;
mod opcode;
mod request;
mod response;

pub use claims::{Claims, ClaimsError};
pub use declarations::{DeclarationError, check_declarations};
pub use features::{Credentials, Features, Queueing, Wait};
pub use notice::{End, Moved, ReceivedNotice, Whereabouts};
pub use opcode::ExtendedOpcode;
pub use request::{Extended, WaitingRequest};
pub use response::{AllGranted, ExtendedResponse, Granted, HelloAnswer, OpenedSession, Shares};
pub use signalbox_model::{ACQUIRE_ALL_NAMES_MAX, LABEL_BYTES_MAX};

/// The version of the extended operations, which Hello exchanges (`docs/protocol.md`, "Hello").
pub const EXTENDED_VERSION: u32 = 1;

/// The most semaphores of one Declare (`docs/protocol.md`, "Declare").
pub const DECLARATIONS_MAX: usize = 64;

/// The most sessions of one Held (`docs/protocol.md`, "Held").
pub const HELD_SESSIONS_MAX: usize = 1024;

/// The largest capacity of a semaphore with numbered slots: the number of a slot is a `u16` on the wire
/// (`docs/protocol.md`, "Declare").
pub const NUMBERED_CAPACITY_MAX: u32 = 1 << 16;

/// Returns the label, or `None` if it is too long.
fn checked_label(label: &[u8]) -> Option<&[u8]> {
    (label.len() <= LABEL_BYTES_MAX).then_some(label)
}
