//! What signals ask of the daemon: SIGHUP to read the configuration again, SIGUSR1 to report, SIGTERM and SIGINT to
//! stop.

use std::io;

use nix::sys::signal::Signal::SIGXFSZ;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::daemon::{Options, port_config};
use super::log::Log;
use super::{Server, port_name, statistics, steps};
use crate::config::{Config, Notice, Severity};
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
    /// Listens from now on; what comes before [`obey`](Self::obey) is obeyed then.
    pub(super) fn listen() -> io::Result<Self> {
        // A file that may not grow any more is for who writes it, like a full disk; by default the signal that comes with
        // it ends the process. Listened to once, it never does again, whoever hears it.
        drop(signal(SignalKind::from_raw(SIGXFSZ as i32))?);
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Does what signals ask for, until one asks to stop.
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

/// SIGHUP: reopens the log, and takes on what may change of the configuration. `config` is the one that the server
/// was started with: what cannot change stays as it is there.
fn reload(server: &Server, options: &Options, config: &Config, log: &Log) {
    if let Err(error) = log.reopen() {
        error!(%error, "the log file could not be reopened; lines go on to the old one");
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

/// SIGUSR1: logs the statistics, as yrmcds does, and checks the core's books.
async fn report(server: &Server, config: &Config) {
    for namespace in Namespace::ALL.into_iter().filter(|n| port_config(config, *n).enable) {
        let items = statistics::items(server, server.port(namespace));
        let items: Vec<_> = items.iter().map(|(name, value)| format!("{name}={value}")).collect();
        info!(port = port_name(namespace), "statistics: {}", items.join(" "));
        check_books(server, namespace).await;
    }
}

/// Checks invariant 1 on every name.
async fn check_books(server: &Server, namespace: Namespace) {
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
            "the books do not add up: please report this"
        );
    }
    info!(
        port = port_name(namespace),
        names = check.checked(),
        failures = failures.len(),
        "checked the books"
    );
}

/// Logs what is noteworthy about a configuration that was read.
pub(super) fn log_notices(notices: &[Notice]) {
    for notice in notices {
        match notice.severity {
            Severity::Warning => warn!("{}", notice.sentence),
            Severity::Info => info!("{}", notice.sentence),
        }
    }
}
