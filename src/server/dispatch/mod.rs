//! Parse, execute, compose: one frame becomes one call of the core, and its outcome one response.
//!
//! Only this folder uses both the protocol and the core. `executor` has yrmcds' operations, `extended` the extended ones,
//! `sysv` those of System V semaphores, `administration` what needs the right to administer.
//! `rights` is the table of what each operation needs.
//! `extended_state` is what a connection keeps between extended requests, `response_stream` a response of many frames, and
//! `answer` composes the answers of the core.

mod administration;
mod answer;
mod executor;
mod extended;
mod extended_state;
mod response_stream;
mod rights;
mod sysv;

pub(super) use executor::{Executor, NextStep};
pub(super) use extended_state::{ExtendedState, Revoked};
pub(super) use response_stream::ResponseStream;
