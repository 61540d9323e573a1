//! `signalbox check-config`: reports what `serve` would report about a configuration file and the environment.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::messages::warn;
use crate::config::Loaded;
use crate::server::check;

/// Check a configuration file
///
/// Prints all mistakes and warnings, and exits with status 78 if there is a mistake, or else with status 0. Also looks at what the
/// server would use: certificates, keys, tokens, user and group, and the directories of data and logs. What cannot be used is a
/// mistake; what expires within 30 days, and a file that the user who runs the command cannot read, is a warning, and so is
/// listening on every address. Does not bind any port. The SIGNALBOX_CONFIG_ variables of the environment override the file, as
/// for "serve". With --json, the output is one object with the keys file and warnings (an array of messages).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox check-config /etc/signalbox.toml
  signalbox check-config /etc/yrmcds.conf && systemctl reload signalbox")]
pub(super) struct Arguments {
    /// Configuration file, in TOML or in the format of yrmcds.conf
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<ExitCode, Failure> {
    let loaded = Loaded::read(Some(&arguments.file), std::env::vars_os())?;
    let mut mistakes = loaded.validate().err().map_or_else(Vec::new, |error| error.mistakes().to_vec());
    let checked = check(&loaded.config);
    mistakes.extend(checked.mistakes);
    let notices = loaded.notices.into_iter().map(|notice| notice.sentence);
    let warnings: Vec<_> = notices.chain(checked.warnings).collect();
    mistakes.iter().for_each(|mistake| warn(mistake));
    if !common.json || !mistakes.is_empty() {
        warnings.iter().for_each(|warning| warn(warning));
    }
    if !mistakes.is_empty() {
        return Ok(Exit::Configuration.into());
    }
    let file = arguments.file.display().to_string();
    common.print(
        &json!({ "file": file, "warnings": warnings }),
        format_args!("{file}: the configuration is valid"),
    )
}
