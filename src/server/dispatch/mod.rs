//! Parse, execute, compose: one frame becomes one call of the core, and its outcome one response.
//!
//! Only this folder uses both the protocol and the core. `executor` has yrmcds' operations, `extended` the extended ones,
//! `hello` how a client begins, and `sysv` those of System V semaphores. `rights` is the table of what each operation needs.
//! `extended_state` is what a connection keeps between extended requests, `response_stream` a response of many frames, and
//! `answers` composes what the core says.

mod answers;
mod executor;
mod extended;
mod extended_state;
mod hello;
mod response_stream;
mod rights;
mod sysv;

pub(super) use answers::Revoked;
pub(super) use executor::{Executor, NextStep};
pub(super) use extended_state::ExtendedState;
pub(super) use response_stream::ResponseStream;
