//! The state that the connections of the listener share: the stage of the process, its rules, and results that are kept for
//! later requests.

use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::super::clock::Clock;
use super::super::current::Current;
use super::super::metrics::Count;
use super::super::node_view::NodeView;
use super::super::rules::Rules;
use super::super::state::Server;
use super::super::throttle::Throttle;
use super::answer::ApiError;
use super::forward::Forwarder;
use super::leases::Leases;
use super::metrics::series::Selection;
use crate::config::{ClusterConfig, Config};
use signalbox_model::UnixSeconds;

/// The most read requests that are answered at a time, each with one page in memory. Further ones wait.
const COMPUTED_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Shared {
    stage: Current<Stage>,
    pub(super) rules: Rules,
    pub(super) cluster: ClusterConfig,
    /// Set once this process is a node of a cluster.
    node: OnceLock<NodeView>,
    /// Set if this node forwards requests while it does not lead.
    forwarder: OnceLock<Forwarder>,
    /// Cancelled before the server stops. Other nodes then repeat the requests that they have forwarded.
    pub(super) stopping: CancellationToken,
    pub(super) started: UnixSeconds,
    /// Connections that were closed for others, because of the limit or a share.
    pub(super) refused: Count,
    pub(super) warnings: Throttle,
    /// Connections that were accepted.
    pub(super) accepted: Count,
    /// A permit for each read request that is being answered.
    pub(super) computed: Semaphore,
    /// The permit of the document of declarations that is being applied.
    pub(super) applying: Semaphore,
    pub(super) series: Selection,
    pub(super) requests: Count,
    pub(super) leases: Leases,
}

/// The stage of the process.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// It starts.
    Starting,
    /// It is a node of a cluster that another node leads.
    Standby,
    /// It serves clients.
    Serving(Arc<Server>),
    /// It is being stopped.
    Draining(Arc<Server>),
}

impl Shared {
    pub(super) fn new(config: &Config, rules: Rules) -> Self {
        Self {
            stage: Current::new(Stage::Starting),
            rules,
            cluster: config.cluster.clone(),
            node: OnceLock::new(),
            forwarder: OnceLock::new(),
            stopping: CancellationToken::new(),
            started: Clock::system().now(),
            leases: Leases::default(),
            refused: Count::default(),
            warnings: Throttle::default(),
            accepted: Count::default(),
            computed: Semaphore::new(COMPUTED_MAX),
            applying: Semaphore::new(1),
            series: Selection::default(),
            requests: Count::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn of_test(config: &Config) -> Self {
        Self::new(config, Rules::of(config, None, Clock::system()))
    }

    pub(super) fn set_node(&self, view: NodeView) {
        let is_first = self.node.set(view).is_ok();
        assert!(is_first, "a process joins once");
    }

    pub(super) fn set_forwarder(&self, forwarder: Forwarder) {
        let is_first = self.forwarder.set(forwarder).is_ok();
        assert!(is_first, "a process joins once");
    }

    /// Returns the forwarder of requests to the leader; `None`: this node leads, or does not forward.
    pub(super) fn forwarder(&self) -> Option<&Forwarder> {
        self.forwarder.get().filter(|_| matches!(self.stage(), Stage::Standby))
    }

    /// Returns the cluster as this node knows it; `None`: it is not a node of one, or has not joined yet.
    pub(super) fn node(&self) -> Option<&NodeView> {
        self.node.get()
    }

    /// Returns the state of the process in one word, for answers. Clients that connect are served while it is `serving`
    /// or `relaying`.
    pub(super) fn state(&self) -> &'static str {
        match self.stage() {
            Stage::Standby if self.node().is_some_and(NodeView::reaches_leader) => "relaying",
            Stage::Starting => "starting",
            Stage::Standby => "standby",
            Stage::Serving(_) => "serving",
            Stage::Draining(_) => "draining",
        }
    }

    /// Returns whether nothing may be written to clients any longer.
    pub(super) fn is_fenced(&self) -> bool {
        self.stage().server().is_some_and(|server| server.is_fenced())
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        self.stage.set(stage);
    }

    pub(super) fn drain(&self) {
        self.stopping.cancel();
        if let Stage::Serving(server) = self.stage() {
            self.set_stage(Stage::Draining(server));
        }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage.get()
    }

    pub(super) fn config(&self) -> Arc<Config> {
        self.rules.config.get()
    }

    /// Returns the server, even while it is being stopped.
    pub(super) fn server(&self) -> Result<Arc<Server>, ApiError> {
        self.stage().server().ok_or_else(ApiError::no_server)
    }
}

impl Stage {
    pub(super) fn server(&self) -> Option<Arc<Server>> {
        match self {
            Self::Starting | Self::Standby => None,
            Self::Serving(server) | Self::Draining(server) => Some(Arc::clone(server)),
        }
    }
}
