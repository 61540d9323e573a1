//! The vocabulary of the domain: the types that the rules, the protocol, the client, the command line and the HTTP API share.
//!
//! The types are data: the core has the rules, and the protocol encodes and decodes. A type that is a code on the wire
//! defines the code of each variant.

#![warn(clippy::unwrap_used)]

mod codes;
mod declarations;
mod events;
#[cfg(feature = "views")]
pub mod history;
mod ids;
#[cfg(feature = "views")]
pub mod json;
pub mod kubernetes;
mod names;
mod operations;
mod refusals;
mod sessions;
pub mod sysv;
mod text;
mod time;
#[cfg(feature = "views")]
pub mod views;

pub use declarations::{
    Declaration, DeclaredEntry, DeclaredState, Idle, IfExists, Removal, Resizing, ServiceChange,
};
pub use events::{Event, EventKind, GrantEnd, Notice};
pub use ids::{
    ConnectionId, Generation, GrantId, LeaseKey, Place, PlaceKey, PlaceProof, RequestId, RequestIds,
    SessionId, SessionKey,
};
pub use names::{
    ACQUIRE_ALL_NAMES_MAX, AS_DECLARED, Claim, HeldEntry, Inspected, LABEL_BYTES_MAX, ListEntry, Namespace,
    Scope,
};
pub use operations::{Cancellation, Changed, Operation, Revocation, Target};
pub use refusals::{Limit, ReachedLimit, Refusal, Status, TokenRefusal};
pub use sessions::{AddressRange, GraceLeft, GrantState, SessionEntry, SessionKind, TtlLeft, VerifiedGrant};
pub use text::{OfKind, Quoted, about_all, escaped, escaped_except, from_hex, hex, is_unsafe, noun};
pub use time::{Milliseconds, NoTime, UnixMilliseconds, UnixSeconds, span};
