//! `signalbox serve`: runs the server; and `signalbox check-config`: reports what `serve` would report about a configuration
//! file and the environment.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::arguments::Common;
use super::data;
use super::exit::{Exit, Failure};
use super::messages::warn;
use super::values::within;
use crate::config::{Loaded, Threshold};
use crate::server::{self, DaemonError, LogFormat, Options, RestoreError};

/// Run the server
///
/// Without a configuration file, and with one in TOML that does not say otherwise, the server listens on 127.0.0.1
/// only: for counters on port 11215, for semaphores on port 11216, each of which is enough for "signalbox run" and
/// "signalbox acquire" (semaphore.enable = false in the configuration disables one). The file is in TOML, or an
/// unchanged yrmcds.conf. Each key can also be set in the environment: SIGNALBOX_CONFIG_ and the key in capitals, with
/// two underscores for the dot, such as SIGNALBOX_CONFIG_COUNTER__PORT. Options override the environment, and the
/// environment overrides the file.
///
/// SIGTERM and SIGINT stop the server; it first answers the requests that it has received. SIGHUP reloads the configuration
/// (log level, limits, timeouts, declared semaphores), logs what changed, and reopens the log file. SIGUSR1 logs the
/// statistics and checks that the resources in use are the resources that are held.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox serve
  signalbox serve --config /etc/signalbox.toml
  signalbox serve --data-dir /var/lib/signalbox
  signalbox serve --bind 0.0.0.0 --counter-port 12000 --log-level debug
  SIGNALBOX_CONFIG_SESSION__MAX_TTL=600 signalbox serve")]
pub(super) struct Arguments {
    /// Configuration file, in TOML or in the format of yrmcds.conf
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address to listen on, instead of the configured ones; may be given several times
    #[arg(long, value_name = "ADDRESS", value_parser = ip_address)]
    bind: Vec<IpAddr>,

    /// Port for counters, instead of the configured one; 0 for any free port, which is logged
    #[arg(long, value_name = "PORT", value_parser = within(0..=u16::MAX))]
    counter_port: Option<u16>,

    /// Port for semaphores, instead of the configured one; 0 for any free port, which is logged
    #[arg(long, value_name = "PORT", value_parser = within(0..=u16::MAX))]
    semaphore_port: Option<u16>,

    /// Port for HTTP (metrics, health and the JSON API), instead of the configured one; it enables the listener; 0 for any
    /// free port, which is logged
    #[arg(long, value_name = "PORT", value_parser = within(0..=u16::MAX))]
    http_port: Option<u16>,

    /// Directory for declared semaphores and leased sessions, which then survive a restart, instead of the configured one
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,

    /// Lowest severity to log, instead of the configured one: error, warning, info or debug
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<Threshold>,

    /// Format of log lines
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "auto")]
    log_format: LogFormat,
}

fn ip_address(text: &str) -> Result<IpAddr, &'static str> {
    text.parse().map_err(|_| "expected an IP address, such as 127.0.0.1 or ::1")
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // The log and the errors show the absolute path.
    let data_dir = arguments.data_dir.as_deref().map(std::path::absolute).transpose()?;
    let options = Options {
        data_dir,
        config_file: arguments.config.clone(),
        bind: arguments.bind.clone(),
        counter_port: arguments.counter_port,
        semaphore_port: arguments.semaphore_port,
        http_port: arguments.http_port,
        log_level: arguments.log_level,
        log_format: arguments.log_format,
    };
    Ok(server::run(&options)?)
}

/// Check a configuration file
///
/// Prints all mistakes and warnings, and exits with status 78 if there is a mistake, or else with status 0. Also checks
/// what the server would use: certificates, keys, tokens, user and group, and the directories of data and logs. If any
/// of it cannot be used, that is a mistake. Warnings are for what expires within 30 days, files that the user who runs
/// the command cannot read, and listening on every address. Does not bind any port. The SIGNALBOX_CONFIG_ variables of
/// the environment override the file, as for "serve". With --json, the output is one object with the keys file and
/// warnings (an array of messages).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox check-config /etc/signalbox.toml
  signalbox check-config /etc/yrmcds.conf && systemctl reload signalbox")]
pub(super) struct CheckArguments {
    /// Configuration file, in TOML or in the format of yrmcds.conf
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn check(arguments: &CheckArguments, common: &Common) -> Result<(), Failure> {
    let loaded = Loaded::read(Some(&arguments.file), std::env::vars_os())?;
    let mut mistakes = loaded.validate().err().map_or_else(Vec::new, |error| error.mistakes().to_vec());
    let checked = server::check(&loaded.config);
    mistakes.extend(checked.mistakes);
    let notices = loaded.notices.into_iter().map(|notice| notice.sentence);
    let warnings: Vec<_> = notices.chain(checked.warnings).collect();
    mistakes.iter().for_each(|mistake| warn(mistake));
    if !common.json || !mistakes.is_empty() {
        warnings.iter().for_each(|warning| warn(warning));
    }
    if !mistakes.is_empty() {
        return Err(Failure::silent(Exit::Configuration));
    }
    let file = arguments.file.display().to_string();
    common.print(
        &json!({ "file": file, "warnings": warnings }),
        format_args!("{file}: the configuration is valid"),
    )
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        let exit = match &error {
            DaemonError::Config(_)
            | DaemonError::Tls(_)
            | DaemonError::Tokens(_)
            | DaemonError::ClusterSettings(_) => Exit::Configuration,
            DaemonError::Log(_) | DaemonError::Output { .. } => Exit::Output,
            DaemonError::Privileges(_) => Exit::NoPermission,
            DaemonError::Data(RestoreError::Storage(error)) => data::exit_for(error),
            DaemonError::Data(RestoreError::Contradiction(_))
            | DaemonError::Records(RestoreError::Contradiction(_))
            | DaemonError::ClusterFormat(_) => Exit::Data,
            DaemonError::Data(_)
            | DaemonError::Records(RestoreError::Thread(_))
            | DaemonError::Bind { .. }
            | DaemonError::System(_) => Exit::System,
            DaemonError::Records(_) | DaemonError::Cluster(_) => Exit::Unavailable,
        };
        Self::new(exit, error.to_string())
    }
}
