//! Signals: SIGHUP reads the configuration again, SIGUSR1 logs statistics and a self-check, SIGTERM and SIGINT stop the
//! daemon.

use std::io;

use nix::sys::signal::Signal::SIGXFSZ;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::super::log::Log;
use super::super::{Server, port_config, port_name, statistics, steps};
use super::options::{Options, log_notices};
use crate::config::Config;
use crate::core::Namespace;

/// Failures of the self-check that are logged one by one.
const CHECK_FAILURES_LOGGED: usize = 100;

/// The signals that the daemon listens to.
pub(super) struct Signals {
    hangup: Signal,
    user1: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on. Signals that come before [`obey`](Self::obey) are handled then.
    pub(super) fn listen() -> io::Result<Self> {
        // The process gets this signal when a file reaches its size limit, and by default the signal ends it. After one
        // handler was registered, it does not any more: the write fails, as on a full disk, and its caller handles that.
        drop(signal(SignalKind::from_raw(SIGXFSZ as i32))?);
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Handles signals until one stops the daemon.
    pub(super) async fn obey(mut self, server: &Server, options: &Options, config: &Config, log: &Log) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => reload(server, options, config, log),
                _ = self.user1.recv() => report(server, config).await,
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
            }
        }
    }
}

/// SIGHUP: reopens the log, and applies the settings that may change while the server runs. `config` is the
/// configuration that the server was started with; the other settings stay as they are there.
fn reload(server: &Server, options: &Options, config: &Config, log: &Log) {
    if let Err(error) = log.reopen() {
        error!(%error, "the log file could not be reopened; the old one stays in use");
    }
    let loaded = match options.load() {
        Ok(loaded) => loaded,
        Err(error) => return error!(%error, "the configuration is left as it was"),
    };
    log_notices(&loaded.notices);
    for key in config.changes_needing_restart(&loaded.config) {
        warn!(key, "this change takes effect only when the server is restarted");
    }
    log.set_threshold(loaded.config.log.threshold);
    server.apply(&loaded.config);
    server.declare_configured(&loaded.config.semaphore.declare);
    info!("the configuration was read again");
}

/// SIGUSR1: logs the statistics, as yrmcds does, and the result of a self-check.
async fn report(server: &Server, config: &Config) {
    for namespace in Namespace::ALL.into_iter().filter(|n| port_config(config, *n).enable) {
        let items = statistics::items(server, server.port(namespace));
        let items: Vec<_> = items.iter().map(|(name, value)| format!("{name}={value}")).collect();
        info!(port = port_name(namespace), "statistics: {}", items.join(" "));
        check_accounting(server, namespace).await;
    }
}

/// Checks invariant 1 on every name.
async fn check_accounting(server: &Server, namespace: Namespace) {
    let mut check = server.core.check(namespace);
    let mut failures = Vec::new();
    while check.step(steps::CHECK_NAMES, &mut failures) {
        tokio::task::yield_now().await;
    }
    for failure in failures.iter().take(CHECK_FAILURES_LOGGED) {
        error!(
            port = port_name(namespace),
            name = %failure.name.escape_ascii(),
            consumption = failure.consumption,
            held = failure.held,
            "the accounting is inconsistent: please report this"
        );
    }
    info!(
        port = port_name(namespace),
        names = check.checked(),
        failures = failures.len(),
        "checked the accounting"
    );
}
