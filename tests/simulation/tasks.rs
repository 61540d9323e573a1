//! Tasks of simulated programs, which are counted until they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a task or a client while it exists.
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a task that is counted until it ends.
pub fn spawn(task: impl Future<Output = ()> + 'static, tasks: &Arc<AtomicUsize>) {
    let counted = Counted::new(tasks);
    tokio::task::spawn_local(async move {
        task.await;
        drop(counted);
    });
}
