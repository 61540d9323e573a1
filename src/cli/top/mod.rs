//! `signalbox top`: what a server does, on the whole terminal.
//!
//! [`reader`](self::reader) asks the server and makes a [`Snapshot`](reader::Snapshot), `model` has what is shown and
//! what keys do, `view` makes lines of it, `paint` writes those that are new, and `screen` has the terminal. `model` and `view` need neither a server nor a terminal.

mod model;
mod paint;
mod reader;
mod screen;
mod view;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::server::block_on_quietly;
use super::time::time;

/// Show what a server does, on the whole terminal
///
/// Four views, selected with 1 to 4 or Tab: names in use, declared semaphores, sessions, and the statistics of the server.
/// Enter shows the holders and the queue of a name. s sorts by the next column, r reverses the order, / filters by a part
/// of the name, label, address or identity, space stops the updates, ? lists all keys.
///
/// Without a port in --server, names are those of both the counters and the semaphores at their default ports; with a port,
/// or with --semaphore, of that port alone. Requests that wait are found by asking for the names of which most is in use,
/// up to 2,000 of them an update. With very many names, they are listed less often than everything else. Names are shown
/// with the escapes of lists. If the environment variable NO_COLOR is set, there are no colors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox top
  signalbox top --server lock.example.org --interval 5s
  signalbox top --semaphore")]
pub(super) struct Arguments {
    /// How long to wait between two updates, in seconds or with a unit
    #[arg(long, value_name = "TIME", default_value = "2", value_parser = time)]
    interval: Duration,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<ExitCode, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal as its input and its output; \"signalbox stats\", \"signalbox dump\" and \
                       \"signalbox sessions\" write lists",
        ));
    }
    block_on_quietly(screen::show(&common.server, arguments.interval))?;
    Ok(Exit::Success.into())
}
