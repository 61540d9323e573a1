//! Parse, execute, compose: one frame becomes one call of the core, and its outcome one response.
//!
//! Only this folder uses both the protocol and the core. `executor` takes each request of a connection, and executes the
//! extended operations. `plain` executes those of yrmcds, `sysv` those on System V semaphores, and `hello` those with which
//! a client begins. `rights` is the table of the right that each operation needs. `extended_state` is the state that a
//! connection keeps between extended requests, and composes what the core sends to the connection; `response_stream` is a
//! response of many frames.

mod executor;
mod extended_state;
mod hello;
mod plain;
mod response_stream;
mod rights;
mod sysv;

pub(super) use executor::{Executor, NextStep};
pub(super) use extended_state::{ExtendedState, Revoked};
pub(super) use response_stream::ResponseStream;
