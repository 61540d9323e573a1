//! The vocabulary of the domain: the types that the rules, the protocol, the client, the command line and the HTTP API share.
//!
//! They are data. The core has the rules, and the protocol encodes and decodes. A type that is a code on the wire has that
//! code beside its variants.

#![warn(clippy::unwrap_used)]

mod codes;
