//! `signalbox check-config`: reports what `serve` would report about a configuration file and the environment.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure, warn};
use crate::config::Loaded;

const EXAMPLES: &str = "\
Examples:
  signalbox check-config /etc/signalbox.toml
  signalbox check-config /etc/yrmcds.conf && systemctl reload signalbox";

/// Check a configuration file
///
/// Prints the first error and exits with status 78, or prints the warnings and exits with status 0. Does not bind any
/// port. The SIGNALBOX_CONFIG_ variables of the environment override the file, as for "serve".
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Configuration file, in TOML or in the format of yrmcds.conf
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let invalid = |error: crate::config::ConfigError| Failure::new(Exit::Configuration, error.to_string());
    let loaded = Loaded::read(Some(&arguments.file), std::env::vars_os()).map_err(invalid)?;
    for notice in &loaded.notices {
        warn(&notice.sentence);
    }
    loaded.validate().map_err(invalid)?;
    writeln!(std::io::stdout(), "{}: the configuration is valid", arguments.file.display())?;
    Ok(Exit::Success.into())
}
