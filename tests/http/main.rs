//! The HTTP listener: health, metrics and the JSON API, over real sockets.

#[path = "../support/mod.rs"]
mod support;
