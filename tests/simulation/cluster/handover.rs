//! The parts of a node in a handover of the leadership. They follow `src/server/daemon/handover.rs`, and run the same code of
//! the product.
//!
//! Checked when a node takes over: what it has read in advance is, with the changes, what etcd has (invariant C9).

use std::sync::Arc;
use std::time::Duration;

use signalbox::cluster::coordinator::Revision;
use signalbox::cluster::handover::{Completed, Leader, Next, Refused, Trace};
use signalbox::cluster::keys::Successor;
use signalbox::cluster::leadership::Term;
use signalbox::cluster::participation::News;
use signalbox::cluster::preload::Preload;
use signalbox::cluster::store::ClusterStorage;
use signalbox::core::Record;
use signalbox::storage::Storage;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::blocking::{self, Remote};
use super::node::Command;
use super::process::Process;
use super::steps::Step;
use super::world::node_name;
use crate::support::etcd::Handle;

/// How long a leader's calls wait for an answer, as the daemon's.
const INSPECTION_MAX: Duration = Duration::from_secs(2);

/// A handover that is prepared: the successor has read the records.
pub struct Prepared {
    leader: Leader<Remote>,
    next: Next,
}

/// Prepares the handovers that an operator asks of a leader, until one is prepared.
pub async fn prepare(
    process: &Process,
    term: Term,
    trace: &Trace,
    news: &mut UnboundedReceiver<News>,
) -> Prepared {
    loop {
        let request = loop {
            match news.recv().await {
                Some(News::Drain(request)) => break request,
                Some(_) => {}
                // The process ends.
                None => std::future::pending().await,
            }
        };
        process.awake().await;
        process.event(format_args!("prepares a handover to {:?}", request.drain.to));
        process.world.steps.reach(Step::Chooses);
        let (keys, timing) = (process.world.keys.clone(), process.world.timing);
        let (name, incarnation, trace) = (node_name(process.node), process.incarnation(), trace.clone());
        let prepare = move |coordinator| {
            let mut leader =
                Leader { coordinator, keys, name, term, incarnation, timing, trace, handover: 0 };
            leader.obey(&request).map(|next| Prepared { leader, next })
        };
        match blocking::run(process, INSPECTION_MAX, prepare).await {
            Ok(prepared) => return prepared,
            Err(Refused { refusal, told }) => {
                process
                    .event(format_args!("hands over to nobody: {refusal}; the operator is told: {told:?}"));
            }
        }
    }
}

impl Prepared {
    /// Gives the successor what it does not know yet, when everything is stored. `None`: it has left the cluster.
    pub async fn complete(self, process: &Process) -> Option<Successor> {
        process.world.steps.reach(Step::HasClosed);
        let complete = move |coordinator| {
            let Self { mut leader, next } = self;
            leader.coordinator = coordinator;
            leader.complete(next)
        };
        let Completed { successor, written } = blocking::run(process, INSPECTION_MAX, complete).await;
        let name = successor.as_ref().map(|successor| &successor.node);
        process.event(format_args!("hands over to {name:?}: {written:?}"));
        process.world.drains.handed_over();
        successor
    }
}

/// Reads the records in advance for this handover, and reports it. `None`: forgets what was read.
pub fn preload(
    preload: &Preload,
    handover: Option<Revision>,
    process: &Arc<Process>,
    commands: &UnboundedSender<Command>,
) {
    preload.want(handover);
    let Some(handover) = handover else { return };
    process.event(format_args!("reads the records for the handover of revision {handover}"));
    process.world.steps.reach(Step::Reads);
    let (preload, process, commands) = (preload.clone(), Arc::clone(process), commands.clone());
    tokio::task::spawn_local(async move {
        let keys = process.world.keys.clone();
        let read = move |mut etcd: Remote| preload.read(&mut etcd, &keys, handover, drop);
        if blocking::run(&process, process.world.timing.request_timeout(), read).await {
            // The participation may have ended.
            let _ = commands.send(Command::Preloaded(handover));
        }
    });
}

/// The storage of a new leader, with what was read in advance if that is complete.
pub fn storage(
    preload: &Preload,
    process: &Process,
    new: impl Fn() -> ClusterStorage<Handle>,
) -> ClusterStorage<Handle> {
    let mut storage = new();
    let Some(preloaded) = preload.take() else { return storage };
    let mut another = new();
    let is_complete = another.preload(preloaded.clone()).expect("etcd answers at once");
    process.event(format_args!("has read the records in advance; they are complete: {is_complete}"));
    if is_complete {
        let (found, expected) = (records(&mut another), records(&mut new()));
        if found != expected {
            process.world.scene.fail(format!(
                "node {} has read {found:?} in advance, and etcd has {expected:?}",
                process.node
            ));
        }
        process.world.drains.read_in_advance();
    }
    storage.preload(preloaded).expect("etcd answers at once");
    storage
}

fn records(storage: &mut ClusterStorage<Handle>) -> Vec<Record> {
    let mut records = Vec::new();
    storage.load(&mut |record| records.push(record)).expect("every record can be read");
    records.sort_by_key(Record::key);
    records
}
