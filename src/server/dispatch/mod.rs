//! Parse, execute, compose: one frame becomes one call of the core, and its outcome one response.
//!
//! Only this folder uses both the protocol and the core. `executor` has yrmcds' operations, `extended` the extended ones,
//! `sysv` those of System V semaphores, `administration` what concerns all sessions and all records.
//! `rights` is the table of what each operation needs.
//! `extended_state` is what a connection keeps between extended requests, `response_stream` a response of many frames,
//! `answer` composes the answers of the core, and `convert` converts between the types of the two sides.

mod administration;
mod answer;
mod convert;
mod executor;
mod extended;
mod extended_state;
mod response_stream;
mod rights;
mod sysv;

pub(super) use convert::{
    declared_on_wire, entry_on_wire, inspected_on_wire, listed_set_on_wire, listed_user_on_wire,
    namespace_of, namespace_on_wire, session_on_wire, status_of,
};
pub(super) use executor::{Executor, NextStep};
pub(super) use extended_state::{ExtendedState, Revoked};
pub(super) use response_stream::ResponseStream;
