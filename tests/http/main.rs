//! The HTTP listener: health, metrics and the JSON API, over real sockets.

mod bounds;
mod browser;
mod changes;
mod client;
mod hostile;
mod hostile_page;
mod lists;
mod metrics;
mod page;
mod serving;
#[path = "../support/mod.rs"]
mod support;
