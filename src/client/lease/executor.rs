//! Where drivers run: on a thread of the client, or in the caller's runtime.

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

/// Runs drivers.
#[derive(Clone)]
pub(super) enum Executor {
    /// A thread that does nothing else, so that no task of the program can delay a renewal.
    Thread(Arc<Thread>),
    /// The runtime that the client was created in.
    Caller(Handle),
}

/// A thread with a runtime. It ends with the last driver, once the client cannot start another.
pub(super) struct Thread {
    handle: Handle,
    /// Each driver has a clone; the thread ends when all are dropped.
    alive: mpsc::Sender<()>,
}

impl Executor {
    pub(super) fn thread() -> io::Result<Self> {
        let (alive, mut all_dropped) = mpsc::channel(1);
        let (sender, created) = std::sync::mpsc::sync_channel(1);
        // The thread creates the runtime itself: a caller in another runtime must not have to drop this one if the
        // thread cannot be started, because that would panic.
        std::thread::Builder::new().name("signalbox-lease".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(sender.send(Err(error))),
            };
            drop(sender.send(Ok(runtime.handle().clone())));
            runtime.block_on(async { while all_dropped.recv().await.is_some() {} });
            // Does not wait for a resolver that hangs.
            runtime.shutdown_background();
        })?;
        let handle = created.recv().map_err(io::Error::other)??;
        Ok(Self::Thread(Arc::new(Thread { handle, alive })))
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
