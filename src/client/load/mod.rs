//! Load: as many requests as a server answers, or as many a second as one likes, and how long each answer took.
//!
//! [`Generator`] drives many connections from one thread. It is not made of [`Client`](super::Client)s, which are
//! made for sharing: a generator that costs more than the server measures itself. What goes over the wire is a
//! [`Dialect`], so that benchmarks put the same load on servers of other protocols.
//!
//! Invariant: when a run is over, everything that it acquired was given back, and nothing is on its way.
//!
//! Left to callers: threads (one generator each), and what the figures are shown as.

mod channel;
mod dialect;
mod error;
mod generator;
mod names;
mod process;
mod record;

pub use dialect::{Answer, Ask, Dialect, Sequence, Yrmcds};
pub use error::LoadError;
pub use generator::{Generator, Limit, Mix, Pace, Plan, Progress, resolve};
pub use names::{Distribution, Names, Random};
pub use process::{ProcessError, Usage};
pub use record::{Operation, OperationRecord, Record};
