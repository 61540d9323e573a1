//! Parse, execute, compose: one frame becomes one call of the core, and its outcome one response.
//!
//! Only this folder uses both the protocol and the core. `executor` takes each request of a connection and has the
//! extended operations, `plain` has yrmcds' operations, `hello` how a client begins, and `sysv` those of System V
//! semaphores. `rights` is the table of what each operation needs. `extended_state` is what a connection keeps between
//! extended requests, and composes what the core sends to it; `response_stream` is a response of many frames.

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
