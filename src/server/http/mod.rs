//! The HTTP listener: health, metrics and the JSON API (`docs/http.md`).
//!
//! `listener` accepts connections and bounds them, `stream` has their time limits, `guard` checks each request before its
//! handler sees it (Host, Origin, content type, rights), `routes` lists what there is, and `api`, `health` and `page` answer.
//! `answer` composes answers and errors, `query` reads parameters, `paging` takes lists in steps, and `requester` makes
//! changes.
//!
//! An answer that waits for its client is in memory as a whole. All of them are bounded by the number of connections and by the
//! length of a page and of a scrape.
//!
//! Everything runs on one thread with a runtime of its own, so that no request delays the workers. A node of a cluster has
//! the thread from its start: a standby answers too, and says that it does not serve clients.

mod access;
mod answer;
mod api;
mod guard;
mod health;
mod listener;
mod metrics;
mod openapi;
mod page;
mod paging;
mod query;
mod requester;
mod routes;
mod shared;
mod stream;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::node_view::NodeView;
use super::{Rules, Server};
use crate::config::Config;
use shared::{Shared, Stage};

/// The HTTP listener of a process. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Http {
    shared: Arc<Shared>,
    /// Ends the thread. `None`: the configuration enables no listener.
    _alive: Option<oneshot::Sender<Infallible>>,
}

impl Http {
    /// Starts the thread, if there are listeners.
    pub(super) fn start(config: &Config, listeners: Vec<TcpListener>, rules: Rules) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(config, rules));
        if listeners.is_empty() {
            return Ok(Self { shared, _alive: None });
        }
        let (alive, ended) = oneshot::channel::<Infallible>();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let its_shared = Arc::clone(&shared);
        std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = listener::serve(its_shared, listeners) => {}
                    // It fails when the sender is dropped.
                    _ = ended => {}
                }
            });
        })?;
        Ok(Self { shared, _alive: Some(alive) })
    }

    /// This process is a node of a cluster, which stands by until it leads.
    pub(super) fn join(&self, view: NodeView) {
        self.shared.set_node(view);
        self.shared.set_stage(Stage::Standby);
    }

    /// The server serves clients from now on.
    pub(super) fn serve(&self, server: &Arc<Server>) {
        self.shared.set_stage(Stage::Serving(Arc::clone(server)));
    }

    /// The server is being stopped: it is not ready any more, and changes nothing.
    pub(super) fn drain(&self) {
        self.shared.drain();
    }

    /// Applies the settings that may change while the server runs.
    pub(super) fn apply(&self, config: &Config) {
        self.shared.apply(config);
    }
}

/// The addresses of listeners, for the log.
pub(super) fn addresses(listeners: &[TcpListener]) -> io::Result<Vec<SocketAddr>> {
    listeners.iter().map(TcpListener::local_addr).collect()
}
