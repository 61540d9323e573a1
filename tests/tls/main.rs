//! TLS on the service ports, from the files of the configuration to the options of the command line.

mod certificates;
mod client;
mod command_line;
mod daemon;
mod hostile;
mod replaced;
mod serving;
#[path = "../support/mod.rs"]
mod support;
mod wire;
