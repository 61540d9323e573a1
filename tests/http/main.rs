//! The HTTP listener: health, metrics and the JSON API, over real sockets.

mod bounds;
mod changes;
mod client;
mod declarations;
mod hostile;
mod leases;
mod lists;
mod metrics;
mod proxies;
mod serving;
#[path = "../support/mod.rs"]
mod support;
