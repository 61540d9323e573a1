//! Where drivers run: on a thread of the client's own, or in the caller's runtime.

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

/// Runs drivers.
#[derive(Clone)]
pub(super) enum Executor {
    /// A thread that does nothing else, so that no task of the program can hold up a renewal.
    Thread(Arc<Thread>),
    /// The runtime that the client was made in.
    Caller(Handle),
}

/// A thread with a runtime, which ends with the last driver once nobody can spawn another.
pub(super) struct Thread {
    handle: Handle,
    /// Its copies are with the drivers; the thread ends when all are gone.
    alive: mpsc::Sender<()>,
}

impl Executor {
    pub(super) fn thread() -> io::Result<Self> {
        let (alive, mut ended) = mpsc::channel(1);
        let (sender, made) = std::sync::mpsc::sync_channel(1);
        // The runtime is made by the thread: where there is none, the caller's runtime must not have to drop it, which
        // would panic.
        std::thread::Builder::new().name("signalbox-lease".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(sender.send(Err(error))),
            };
            drop(sender.send(Ok(runtime.handle().clone())));
            runtime.block_on(async { while ended.recv().await.is_some() {} });
            // A resolver that hangs must not keep the thread.
            runtime.shutdown_background();
        })?;
        let handle = made.recv().map_err(io::Error::other)??;
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
