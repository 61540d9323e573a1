//! Bytes over real sockets to a server within the test, and the codec that reads and writes them.

mod compatibility;
mod connection_end;
mod declared;
mod durable;
mod export;
mod framing;
mod grants;
mod inspection;
mod lifetime;
mod limits;
mod linearizability;
mod operations;
mod ownership;
mod panic;
mod places;
mod poolcounter;
mod proxies;
mod resolve;
mod session_list;
mod sessions;
mod single_flight;
mod slots;
#[path = "../support/mod.rs"]
mod support;
mod yrmcds;
