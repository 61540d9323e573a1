//! The wire protocol: encodes and decodes requests and responses, for the server and the client.
//!
//! Sans I/O: nothing here reads a socket, a clock or the state of the server. The frames are those of yrmcds' counter
//! and semaphore protocols (`counter.md`, `semaphore.md`), and the extended operations and the System V operations of
//! this server (`docs/protocol.md`). `core` implements the operations. A proxy's
//! header ([`ProxyHeader`]) and the start of a relayed connection ([`relay`]) are the only other input.

#![warn(clippy::unwrap_used)]

mod codec;
mod extended;
mod fields;
mod header;
mod proxy_header;
pub mod relay;
mod request;
mod response;
mod status;
mod sysv;

pub use codec::{DecodeError, Frames, RequestCodec, ResponseCodec};
pub use extended::{
    ACQUIRE_ALL_NAMES_MAX, AS_DECLARED, AddressRange, AllGranted, Claim, Claims, ClaimsError, Credentials,
    DECLARATIONS_MAX, Declaration, DeclarationError, Declarations, DeclaredEntry, DeclaredState,
    EXTENDED_VERSION, End, Event, EventKind, Extended, ExtendedOpcode, ExtendedResponse, Features,
    Generation, GraceLeft, GrantId, GrantState, Granted, HelloAnswer, Idle, IfExists, Inspected,
    LABEL_BYTES_MAX, Limit, ListEntry, Milliseconds, Moved, NUMBERED_CAPACITY_MAX, Namespace, Notice,
    OpenedSession, Pausing, Place, Queueing, ReachedLimit, Removal, RequestId, RequestIds, Resizing,
    Revocation, Scope, SessionEntry, SessionKey, SessionKind, Shares, SlotChange, TtlLeft, VerifiedGrant,
    Wait, WaitingRequest, Whereabouts,
};
pub use header::{
    HEADER_BYTES, NAME_BYTES_MAX, Opaque, Opcode, REQUEST_BODY_BYTES_MAX, REQUEST_MAGIC,
    RESPONSE_BODY_BYTES_MAX, RESPONSE_MAGIC, TLS_HANDSHAKE,
};
pub use proxy_header::{PROXY_HEADER_BYTES_MAX, ProxyHeader, ProxyHeaderError};
pub use request::{Frame, FrameClass, Request};
pub use response::{BodyError, DumpEntry, Response, ResponseFrame, Statistic};
pub use status::Status;
pub use sysv::{
    Caller, Errno, GROUPS_MAX, Groups, IPC_CREAT, IPC_EXCL, IPC_NOWAIT, ListedSet, ListedUser, OpenedProcess,
    Operation, Operations, Ownership, SEM_UNDO, SetCommand, SetStat, SysvAnswer, SysvOpcode, SysvRequest,
    UserRole, Values, WAIT_FOREVER_MS,
};
