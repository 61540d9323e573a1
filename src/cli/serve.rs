//! `signalbox serve`: the daemon.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::data;
use super::exit::{Exit, Failure};
use crate::config::Threshold;
use crate::server::{self, DaemonError, LogFormat, Options, RestoreError};

const LONG: &str = "\
Serve counters and semaphores

Without a configuration file both are served to this machine only: counters on port 11215, semaphores on port 11216. \
The file is TOML, or a yrmcds.conf as it is.

SIGTERM and SIGINT stop the server; what was received is still answered. SIGHUP reads the configuration again (log \
level, limits, timeouts) and reopens the log file. SIGUSR1 logs the statistics and checks the books.";

const EXAMPLES: &str = "\
Examples:
  signalbox serve
  signalbox serve --config /etc/signalbox.toml
  signalbox serve --bind 0.0.0.0 --counter-port 12000 --log-level debug";

/// Serve counters and semaphores
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Configuration file, in TOML or in the language of yrmcds.conf
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address to listen on instead of the configuration's; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    bind: Vec<IpAddr>,

    /// Port for counters instead of the configuration's; 0 takes any free port, which the log tells
    #[arg(long, value_name = "PORT")]
    counter_port: Option<u16>,

    /// Port for semaphores, likewise
    #[arg(long, value_name = "PORT")]
    semaphore_port: Option<u16>,

    /// Least important messages to log, instead of the configuration's: error, warning, info or debug
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<Threshold>,

    /// How log lines look; auto is journal under systemd's journal, else text
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "auto")]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Auto,
    Text,
    Json,
    Journal,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let options = Options {
        config_file: arguments.config.clone(),
        bind: arguments.bind.clone(),
        counter_port: arguments.counter_port,
        semaphore_port: arguments.semaphore_port,
        log_level: arguments.log_level,
        log_format: match arguments.log_format {
            Format::Auto => LogFormat::Auto,
            Format::Text => LogFormat::Text,
            Format::Json => LogFormat::Json,
            Format::Journal => LogFormat::Journal,
        },
    };
    server::run(&options)?;
    Ok(Exit::Success.into())
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        let exit = match &error {
            DaemonError::Config(_) => Exit::Configuration,
            DaemonError::Log(_) => Exit::Output,
            DaemonError::Privileges(_) => Exit::NoPermission,
            DaemonError::Data { source: RestoreError::Storage(error), .. } => data::exit_for(error),
            DaemonError::Data { source: RestoreError::Contradiction(_), .. } => Exit::Data,
            DaemonError::Data { source: RestoreError::Commit(_), .. } => Exit::System,
            DaemonError::Bind { .. } | DaemonError::System(_) => Exit::System,
        };
        Self::new(exit, error.to_string())
    }
}
