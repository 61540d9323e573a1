//! `signalbox check-config`: what `serve` would say of a configuration file, without serving.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure, warn};
use crate::config::Config;

const EXAMPLES: &str = "\
Examples:
  signalbox check-config /etc/signalbox.toml
  signalbox check-config /etc/yrmcds.conf && systemctl reload signalbox";

/// Check a configuration file without serving
///
/// Says what is wrong with it and exits with status 78, or what is noteworthy about it and exits with 0. Nothing is
/// bound.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Configuration file, in TOML or in the language of yrmcds.conf
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let wrong = |error: crate::config::ConfigError| Failure::new(Exit::Configuration, error.to_string());
    let loaded = Config::load(&arguments.file).map_err(wrong)?;
    for notice in &loaded.notices {
        warn(&notice.sentence);
    }
    loaded.config.validate().map_err(wrong)?;
    writeln!(std::io::stdout(), "{}: the configuration is right", arguments.file.display())?;
    Ok(Exit::Success.into())
}
