//! The shell: all sockets, clocks, signals and tasks.

pub mod log;
