//! `signalbox check-config`: reports what `serve` would report about a configuration file and the environment.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure, warn};
use super::output::json;
use crate::config::Loaded;
use crate::server::check_files;

const EXAMPLES: &str = "\
Examples:
  signalbox check-config /etc/signalbox.toml
  signalbox check-config /etc/yrmcds.conf && systemctl reload signalbox";

/// Check a configuration file
///
/// Prints the first error and exits with status 78, or prints the warnings and exits with status 0. Also looks at the files of
/// certificates and tokens: what cannot be used is an error, what expires within 30 days a warning, and so is a file that the
/// user who runs the command cannot read. Does not bind any port. The SIGNALBOX_CONFIG_ variables of the environment override the file, as for "serve".
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Configuration file, in TOML or in the format of yrmcds.conf
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print one JSON object with the keys file and warnings (an array of messages)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let invalid = |error: crate::config::ConfigError| Failure::new(Exit::Configuration, error.to_string());
    let loaded = Loaded::read(Some(&arguments.file), std::env::vars_os()).map_err(invalid)?;
    let mut warnings: Vec<_> = loaded.notices.iter().map(|notice| notice.sentence.to_string()).collect();
    if !arguments.json {
        warnings.drain(..).for_each(|warning| warn(&warning));
    }
    loaded.validate().map_err(invalid)?;
    let found = check_files(&loaded.config).map_err(|error| Failure::new(Exit::Configuration, error))?;
    match arguments.json {
        true => warnings.extend(found),
        false => found.iter().for_each(|warning| warn(warning)),
    }
    let file = arguments.file.display().to_string();
    let text = match arguments.json {
        true => json(&serde_json::json!({ "file": file, "warnings": warnings })),
        false => format!("{file}: the configuration is valid"),
    };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(Exit::Success.into())
}
