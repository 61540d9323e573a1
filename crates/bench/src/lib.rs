//! The load generator: sends requests as fast as a server answers, or at a fixed rate, and records the latencies.
//!
//! [`Generator`] drives many connections from one thread. It does not use [`signalbox_client::PlainClient`], which is
//! built for sharing and costs more: a generator that is slower than the server would only measure its own speed. A
//! [`Dialect`] encodes the requests, so that benchmarks put the same load on servers of other protocols.
//!
//! Invariant: at the end of a run, everything that it acquired was released, and no request is in flight.
//!
//! Callers provide the threads (one generator each) and print the figures.

#![warn(clippy::unwrap_used)]

mod channel;
mod dialect;
mod error;
mod generator;
mod names;
mod process;
mod record;

pub use hdrhistogram::Histogram;

pub use dialect::{Answer, Dialect, Sequence, Yrmcds};
pub use error::LoadError;
pub use generator::{Generator, Limit, Mix, Pace, Plan, Progress, resolve};
pub use names::{Distribution, Names};
pub use process::{ProcessError, Usage};
pub use record::{Operation, OperationRecord, Record};
