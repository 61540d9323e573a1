//! Where the drivers of sessions run: on a thread of the client, or in the caller's runtime.
//!
//! The client and the handles of its sessions, which its permits keep, share the executor. When the last of them is
//! dropped, nothing can use the client: the drop waits until the drivers on the client's thread have closed
//! their sessions, so that a program can end right after it.

use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

use crate::maker::Maker;

/// The longest time for which dropping the last user of a client waits. Long enough for an answer of a server that is
/// reachable; after that, the leases release what is held.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Runs drivers.
#[derive(Clone, Debug)]
pub(super) enum Executor {
    /// A thread that does nothing else, so that no task of the program can delay a renewal.
    Thread(Arc<Thread>),
    /// The runtime that the client was created in.
    Caller(Handle),
}

/// A thread with a runtime. It ends with the last driver, once the client cannot start another.
#[derive(Debug)]
pub(super) struct Thread {
    handle: Handle,
    id: ThreadId,
    maker: Maker,
    /// Each driver has a clone; the thread ends when all are dropped. `None` only while this is dropped.
    alive: Option<mpsc::Sender<()>>,
    /// Disconnected when all drivers have ended. In a mutex because a receiver cannot be shared between threads.
    ended: Mutex<Receiver<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if !self.maker.is_this_process() {
            // The thread is the parent's.
            return std::mem::forget(self.alive.take());
        }
        self.alive = None;
        if std::thread::current().id() != self.id {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            // Nothing is ever sent: the wait ends with the last driver, or after this time.
            let _ = ended.recv_timeout(FLUSH_MAX);
        }
    }
}

impl Executor {
    pub(super) fn thread() -> io::Result<Self> {
        let (alive, mut all_dropped) = mpsc::channel(1);
        let (sender, created) = std::sync::mpsc::sync_channel(1);
        let (running, ended) = std::sync::mpsc::sync_channel(0);
        // The thread creates the runtime itself: a caller in another runtime must not have to drop this one if the
        // thread cannot be started, because that would panic.
        let thread = std::thread::Builder::new().name("signalbox-lease".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(sender.send(Err(error))),
            };
            drop(sender.send(Ok(runtime.handle().clone())));
            runtime.block_on(async { while all_dropped.recv().await.is_some() {} });
            drop(running);
            // Does not wait for a resolver that hangs.
            runtime.shutdown_background();
        })?;
        let handle = created.recv().map_err(io::Error::other)??;
        let (id, alive, ended) = (thread.thread().id(), Some(alive), Mutex::new(ended));
        Ok(Self::Thread(Arc::new(Thread { handle, id, maker: Maker::this_process(), alive, ended })))
    }

    /// The runtime that drivers run in.
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
