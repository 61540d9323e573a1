//! The extended operations, `0x20` to `0x54`: sessions, grants that are waited for, who holds what, and declared
//! semaphores (`docs/protocol.md`, "Extended operations").
//!
//! They stand apart from those of yrmcds' documents, which are simpler and must stay as fast as they are.

mod claims;
mod declaration;
mod declared;
mod event;
mod opcode;
mod request;
mod response;
mod value;

pub use claims::{AS_DECLARED, Claim, Claims, ClaimsError, ClaimsIter};
pub use declaration::{
    Declaration, DeclarationError, Declarations, DeclarationsIter, Idle, IfExists, Removal, Resizing,
};
pub use declared::{DeclaredEntry, DeclaredState};
pub use event::{Event, EventKind, Notice};
pub use opcode::ExtendedOpcode;
pub use request::{Extended, Queueing, Revocation, Scope, WaitingRequest};
pub use response::{
    AllGranted, ExtendedResponse, Granted, HelloAnswer, ListEntry, OpenedSession, VerifiedGrant,
};
pub use value::{
    Features, Generation, GrantId, GrantState, Milliseconds, Namespace, RequestId, RequestIds, SessionKey,
    TtlLeft, Wait,
};

/// The version of the extended operations that is spoken here; Hello tells it to the other side.
pub const EXTENDED_VERSION: u32 = 1;

/// Longest label of a session in bytes.
pub const LABEL_BYTES_MAX: usize = 255;

/// Most names of one AcquireAll.
pub const ACQUIRE_ALL_NAMES_MAX: usize = 64;

/// Most semaphores of one Declare.
pub const DECLARATIONS_MAX: usize = 64;

/// Largest capacity of a semaphore whose resources are numbered: how many of them a grant took is a `u16` on the wire.
pub const NUMBERED_CAPACITY_MAX: u32 = 1 << 16;

/// What a `u32` says in place of a number: no bound, or what the server has by default.
const NO_NUMBER: u32 = u32::MAX;

/// The label, where it is not too long.
fn checked_label(label: &[u8]) -> Option<&[u8]> {
    (label.len() <= LABEL_BYTES_MAX).then_some(label)
}

/// The length of a name or another text as it stands on the wire.
///
/// # Panics
/// Where it is longer than 65535 bytes.
fn length_of(text: &[u8]) -> u16 {
    u16::try_from(text.len()).expect("a name or label has at most 65535 bytes")
}
