//! Runs the drivers of sessions on a thread of the client, or in the caller's runtime.
//!
//! The client shares the executor with the handles of its sessions, which its permits keep. Dropping the last clone
//! waits until the drivers on the client's thread have closed their sessions, so that a program can end right after it.

use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

use crate::creator::Creator;

/// The longest time for which dropping the last clone of an executor waits: long enough for a reachable server to
/// answer. If no server does, what is held is released when the leases end.
const DROP_WAIT_MAX: Duration = Duration::from_secs(1);

/// Runs drivers.
#[derive(Clone, Debug)]
pub(super) enum Executor {
    /// A thread that does nothing else, so that no task of the program can delay a renewal.
    Thread(Arc<Thread>),
    /// The runtime that the client was created in.
    Caller(Handle),
}

/// A thread with a runtime. It ends with the last driver, once the client cannot start another one.
#[derive(Debug)]
pub(super) struct Thread {
    handle: Handle,
    id: ThreadId,
    creator: Creator,
    /// Each driver has a clone; the thread ends when all are dropped. `None` only while this is dropped.
    alive: Option<mpsc::Sender<()>>,
    /// Closed when all drivers have ended. In a mutex, because a receiver cannot be shared between threads.
    ended: Mutex<Receiver<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if !self.creator.is_this_process() {
            // The thread belongs to the parent.
            return std::mem::forget(self.alive.take());
        }
        self.alive = None;
        if std::thread::current().id() != self.id {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            // Nothing is ever sent: the wait ends with the last driver, or after `DROP_WAIT_MAX`.
            let _ = ended.recv_timeout(DROP_WAIT_MAX);
        }
    }
}

impl Executor {
    pub(super) fn thread() -> io::Result<Self> {
        let (alive, mut all_dropped) = mpsc::channel(1);
        let (sender, created) = std::sync::mpsc::sync_channel(1);
        let (running, ended) = std::sync::mpsc::sync_channel(0);
        // The thread creates the runtime itself. If the caller did, and the thread could not be started, the caller
        // would have to drop it, which panics in another runtime.
        let thread = std::thread::Builder::new().name("signalbox-lease".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(sender.send(Err(error))),
            };
            drop(sender.send(Ok(runtime.handle().clone())));
            runtime.block_on(async { while all_dropped.recv().await.is_some() {} });
            drop(running);
            // Do not wait for a resolver that hangs.
            runtime.shutdown_background();
        })?;
        let handle = created.recv().map_err(io::Error::other)??;
        let (id, alive, ended) = (thread.thread().id(), Some(alive), Mutex::new(ended));
        Ok(Self::Thread(Arc::new(Thread { handle, id, creator: Creator::this_process(), alive, ended })))
    }

    /// Returns the runtime that drivers run in.
    pub(super) fn handle(&self) -> &Handle {
        match self {
            Self::Thread(thread) => &thread.handle,
            Self::Caller(handle) => handle,
        }
    }

    pub(super) fn spawn(&self, driver: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Thread(thread) => {
                let alive = thread.alive.clone();
                thread.handle.spawn(async move {
                    driver.await;
                    drop(alive);
                });
            }
            Self::Caller(handle) => drop(handle.spawn(driver)),
        }
    }
}
