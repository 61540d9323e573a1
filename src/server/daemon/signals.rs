//! Signals: SIGHUP reads the configuration again, SIGUSR1 logs statistics and a self-check, SIGTERM and SIGINT stop the
//! daemon.

use std::io;

use nix::sys::signal::Signal::SIGXFSZ;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::super::access::Ended;
use super::super::log::Log;
use super::super::port::{port_config, port_name};
use super::super::rules::Rules;
use super::super::state::Server;
use super::super::{statistics, steps};
use super::options::{Options, log_notices};
use crate::config::{Change, Config, declaration_key};
use signalbox_core::SetCheck;
use signalbox_model::Namespace;

/// The most failures of the self-check that are logged.
const CHECK_FAILURES_LOGGED: usize = 100;

/// The signals that the daemon listens to.
pub(super) struct Signals {
    hangup: Signal,
    user1: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on. Signals that come before [`handle`](Self::handle) are handled then.
    pub(super) fn listen() -> io::Result<Self> {
        // The process gets this signal when a file reaches its size limit, and by default the signal ends it. After a
        // handler was registered once, the write fails instead, as on a full disk, and its caller handles that.
        drop(signal(SignalKind::from_raw(SIGXFSZ as i32))?);
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Handles signals until one stops the daemon. `server`: `None` while this node does not lead. `started` is the configuration
    /// that the process was started with.
    pub(super) async fn handle(
        &mut self,
        server: Option<&Server>,
        rules: &Rules,
        options: &Options,
        started: &Config,
        log: &Log,
    ) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => reload(server, rules, options, started, log),
                _ = self.user1.recv() => match server {
                    Some(server) => report(server, started, log).await,
                    None => info!("there are no statistics: this node does not lead"),
                },
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
            }
        }
    }
}

/// Handles SIGHUP: reopens the log, the audit log and the history of grants, and applies the settings that may change
/// while the process runs. The others stay as they are in `started`. A node that does not lead has neither an audit log
/// nor a history.
fn reload(server: Option<&Server>, rules: &Rules, options: &Options, started: &Config, log: &Log) {
    if let Err(error) = log.reopen() {
        error!(%error, "the log file could not be reopened; the old one stays in use");
    }
    let audit = |ended| {
        if let Some(server) = server {
            server.audit.record(None, None, "reload", "server", ended);
        }
    };
    if let Some(server) = server {
        if let Err(error) = server.audit.reopen() {
            error!(%error, "the audit log could not be reopened; the old one stays in use");
        }
        server.history.reopen();
    }
    let applied = rules.config.get();
    let mut loaded = match options.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            audit(Ended::Refused("the configuration cannot be used"));
            return error!(%error, "the configuration is left as it was");
        }
    };
    log_notices(&loaded.notices);
    log.set_threshold(loaded.config.log.threshold);
    let tls = rules.load_tls(&loaded.config.tls);
    let tokens = rules.access.load_tokens(&loaded.config.access);
    audit(match (&tls, &tokens) {
        (Ok(()), Ok(())) => Ended::Done,
        (Err(_), Ok(())) => Ended::Refused("the files of TLS cannot be used"),
        (Ok(()), Err(_)) => Ended::Refused("the file of tokens cannot be used"),
        (Err(_), Err(_)) => Ended::Refused("the files of TLS and the file of tokens cannot be used"),
    });
    if let Err(error) = tls {
        error!(%error, "the certificates and the rules of TLS are left as they were");
        loaded.config.tls.clone_from(&applied.tls);
    }
    if let Err(error) = tokens {
        error!(%error, "the tokens are left as they were");
        loaded.config.access.tokens.clone_from(&applied.access.tokens);
    }
    let config = loaded.config;
    for Change { key, from, to, .. } in started.changes(&config).iter().filter(|change| !change.takes_effect)
    {
        warn!(key, from, to, "this change takes effect only when the server is restarted");
    }
    rules.apply(&config);
    let refused = server.map_or_else(Vec::new, |server| {
        server.apply_limits();
        server.declare_configured()
    });
    let refused: Vec<_> =
        refused.iter().map(|name| declaration_key(&String::from_utf8_lossy(name))).collect();
    let takes_effect = |change: &&Change| change.takes_effect && !refused.contains(&change.key);
    for Change { key, from, to, .. } in applied.changes(&config).iter().filter(takes_effect) {
        info!(key, from, to, "this change takes effect now");
    }
    rules.warn_of_expirations();
    info!("the configuration was read again");
}

/// Handles SIGUSR1: logs the statistics, as yrmcds does, and the result of a self-check.
async fn report(server: &Server, config: &Config, log: &Log) {
    for namespace in Namespace::ALL.into_iter().filter(|n| port_config(config, *n).enable) {
        let items = statistics::json_items(server, server.port(namespace));
        log.info("statistics", [("port", port_name(namespace).into())].into_iter().chain(items));
        check_accounting(server, namespace).await;
    }
    check_sets(server).await;
}

/// Checks the invariants of every semaphore set.
async fn check_sets(server: &Server) {
    let mut check = SetCheck::default();
    while server.core.check_sets(&mut check) {
        tokio::task::yield_now().await;
    }
    for failure in check.failures().iter().take(CHECK_FAILURES_LOGGED) {
        error!(%failure, "a semaphore set is inconsistent: please report this");
    }
    info!(sets = check.checked(), failures = check.failures().len(), "checked the semaphore sets");
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
