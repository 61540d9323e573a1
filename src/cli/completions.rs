//! `signalbox completions`: completion scripts for shells, generated from the definitions of `--help`.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Program;
use super::exit::{Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  signalbox completions bash > /etc/bash_completion.d/signalbox
  source <(signalbox completions zsh)";

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // The generator panics if writing fails, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Program::command(), "signalbox", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(Exit::Success.into())
}
