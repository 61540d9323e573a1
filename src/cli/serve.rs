//! `signalbox serve`: runs the server.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::data;
use super::exit::{Exit, Failure};
use super::number::within;
use crate::config::Threshold;
use crate::server::{self, DaemonError, LogFormat, Options, RestoreError};

/// Run the server
///
/// Without a configuration file, and with one in TOML that does not say otherwise, the server listens on 127.0.0.1 only:
/// for counters on port 11215, for semaphores on port 11216, each of which is enough for "signalbox run" and "signalbox acquire"
/// (semaphore.enable = false in the configuration leaves one out). The file is in TOML, or an unchanged yrmcds.conf. Each key can
/// also be set in the environment: SIGNALBOX_CONFIG_ and the key in capitals, with two underscores for the dot, such as
/// SIGNALBOX_CONFIG_COUNTER__PORT. Options override the environment, and the environment overrides the file.
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

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // The log and the errors name the directory, whatever the current one is.
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
    server::run(&options)?;
    Ok(Exit::Success.into())
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        let exit = match &error {
            DaemonError::Config(_)
            | DaemonError::Tls(_)
            | DaemonError::Tokens { .. }
            | DaemonError::ClusterSettings { .. } => Exit::Configuration,
            DaemonError::Log(_) | DaemonError::Output { .. } => Exit::Output,
            DaemonError::Privileges(_) => Exit::NoPermission,
            DaemonError::Data { source: RestoreError::Storage(error), .. } => data::exit_for(error),
            DaemonError::Data { source: RestoreError::Contradiction(_), .. } => Exit::Data,
            DaemonError::Data { source: RestoreError::Commit(_) | RestoreError::Randomness(_), .. } => {
                Exit::System
            }
            DaemonError::Records {
                source: RestoreError::Storage(_) | RestoreError::Commit(_) | RestoreError::Randomness(_),
            } => Exit::Unavailable,
            DaemonError::Records { source: RestoreError::Contradiction(_) }
            | DaemonError::ClusterFormat { .. } => Exit::Data,
            DaemonError::Cluster { .. } => Exit::Unavailable,
            DaemonError::Bind { .. } | DaemonError::System(_) => Exit::System,
        };
        Self::new(exit, error.to_string())
    }
}
