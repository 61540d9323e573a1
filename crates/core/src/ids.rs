//! The name that a connection gives a request.

/// The name that a connection chose for one of its requests or watches. The core returns it with the late answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);
