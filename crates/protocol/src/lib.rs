//! The wire protocol: encodes and decodes requests and responses, for the server and the client.
//!
//! It is sans I/O: nothing here reads a socket, a clock or the state of the server. The frames are those of yrmcds'
//! counter and semaphore protocols (`counter.md`, `semaphore.md`), and of this server's extended operations and System
//! V operations (`docs/protocol.md`). The only other input is a proxy's header ([`ProxyHeader`]) and the start of a
//! relayed connection ([`relay`]). `core` implements the operations.

#![warn(clippy::unwrap_used)]

mod codec;
mod extended;
mod header;
mod layout;
mod proxy_header;
pub mod relay;
mod request;
mod response;
mod sysv;

pub use codec::{DecodeError, Frames, RequestCodec, ResponseCodec};
pub use extended::{
    ACQUIRE_ALL_NAMES_MAX, AllGranted, Claims, ClaimsError, Credentials, DECLARATIONS_MAX, DeclarationError,
    EXTENDED_VERSION, End, Extended, ExtendedOpcode, ExtendedResponse, Features, Granted, HELD_SESSIONS_MAX,
    HelloAnswer, LABEL_BYTES_MAX, Moved, NUMBERED_CAPACITY_MAX, OpenedSession, Queueing, ReceivedNotice,
    Shares, Wait, WaitingRequest, Whereabouts, check_declarations,
};
pub use header::{
    HEADER_BYTES, NAME_BYTES_MAX, Opaque, Opcode, REQUEST_BODY_BYTES_MAX, REQUEST_MAGIC,
    RESPONSE_BODY_BYTES_MAX, RESPONSE_MAGIC, TLS_HANDSHAKE,
};
pub use proxy_header::{PROXY_HEADER_BYTES_MAX, PROXY_HEADER_LOCAL, ProxyHeader, ProxyHeaderError};
pub use request::{Frame, FrameClass, Request};
pub use response::{BodyError, DumpEntry, Response, ResponseFrame, Statistic};
pub use sysv::{
    GROUPS_MAX, Operations, SysvOpcode, SysvRequest, WAIT_FOREVER_MS, compose_call, compose_listed_set,
    compose_listed_user, compose_opened_process,
};
